//! A configuration file of `LightningCLI`, to lay over your own.
//!
//! ```sh
//! python main.py fit --config config.yaml --config tuned.yaml
//! ```
//! The data module takes `DataLoader`'s own argument names under `data.init_args`. f32 is what `Trainer` does unless it
//! is told otherwise and is left out, so a script that was tuned as a command keeps the types that it sets itself.

use std::fmt::Write;

use super::pytorch::{self, LoaderArguments};
use super::{Answer, ExportError, Exporter};
use crate::train::{BatchNorm, Precision};

/// The format in messages.
const NAME: &str = "Lightning's Trainer";

/// Lightning.
#[derive(Debug)]
pub struct Lightning;

impl Exporter for Lightning {
    fn export(&self, answer: &Answer<'_>) -> Result<String, ExportError> {
        let recommended = answer.recommended;
        let loader = LoaderArguments::of(answer)?;
        pytorch::refuse_checkpointing(answer, NAME)?;
        pytorch::refuse_trim(answer, NAME)?;
        let precision = match recommended.precision {
            Precision::F32 => None,
            Precision::Bf16 => Some("bf16-true"),
            Precision::F16 => Some("16-true"),
            Precision::MixedBf16 => Some("bf16-mixed"),
            Precision::MixedF16 => Some("16-mixed"),
        };
        let mut text =
            format!("# {}\ntrainer:\n  accumulate_grad_batches: {}\n", answer.origin(), recommended.accumulation_steps);
        // Writing to a String cannot fail.
        if let Some(precision) = precision {
            let _ = writeln!(text, "  precision: \"{precision}\"");
        }
        if recommended.batch_norm == BatchNorm::Sync {
            text.push_str("  sync_batchnorm: true\n");
        }
        let _ = write!(
            text,
            "data:\n  init_args:\n    batch_size: {}\n    num_workers: {}\n    persistent_workers: {}\n    pin_memory: {}\n",
            recommended.batch_size, loader.num_workers, loader.persistent_workers, loader.pin_memory
        );
        if let Some(prefetch_factor) = loader.prefetch_factor {
            let _ = writeln!(text, "    prefetch_factor: {prefetch_factor}");
        }
        Ok(text)
    }

    fn notes(&self, answer: &Answer<'_>) -> Vec<String> {
        let mut notes = pytorch::left_out_notes(answer);
        if answer.recommended.batch_norm != BatchNorm::Sync {
            notes.extend(pytorch::batch_norm_notes(answer));
        }
        notes.extend(pytorch::shared_memory_note(answer));
        notes
    }
}

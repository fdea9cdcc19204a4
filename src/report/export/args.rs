//! Command-line arguments, in one line.
//!
//! ```sh
//! tune_args=$(tune export --format args recommendation.yaml)
//! eval "set -- $tune_args \"\$@\""                           # or $tune_args unquoted: no word of it needs quotes
//! exec python train.py "$@"
//! ```
//! argparse refuses what it was not told of, so only what a script must be told is there: batch size, accumulation
//! steps and loader workers always, the rest where it is not what PyTorch does by itself (`--precision` other than f32,
//! `--device-prefetch` above 0, …). A yes is a bare flag and a no is left out, as `action="store_true"` and
//! `BooleanOptionalAction` read it; `type=bool` would take the word `false` for a yes. `--prefetch-depth` is left out
//! without workers: `DataLoader` refuses it there.

use super::{Answer, ExportError, Exporter, name_of, pytorch, quote};
use crate::memory::Trim;
use crate::train::{BatchNorm, GradientCheckpointing, Precision};

/// Command-line arguments.
#[derive(Debug)]
pub struct Args;

impl Exporter for Args {
    fn export(&self, answer: &Answer<'_>) -> Result<String, ExportError> {
        let recommended = answer.recommended;
        let mut words = Vec::new();
        let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
        option("--batch-size", recommended.batch_size.to_string());
        option("--accumulation-steps", recommended.accumulation_steps.to_string());
        option("--loader-workers", recommended.loader_workers.to_string());
        if recommended.loader_workers > 0 {
            option("--prefetch-depth", recommended.prefetch_depth.to_string());
        }
        if recommended.device_prefetch > 0 {
            option("--device-prefetch", recommended.device_prefetch.to_string());
        }
        if recommended.precision != Precision::F32 {
            option("--precision", recommended.precision.to_string());
        }
        if recommended.batch_norm != BatchNorm::Train {
            option("--batch-norm", name_of(&recommended.batch_norm));
        }
        if recommended.trim != Trim::Never {
            option("--trim", name_of(&recommended.trim));
        }
        if recommended.gradient_checkpointing != GradientCheckpointing::None {
            words.push("--gradient-checkpointing".to_owned());
        }
        if recommended.pin_memory {
            words.push("--pin-memory".to_owned());
        }
        let quoted: Option<Vec<String>> = words.iter().map(|word| quote::shell(word)).collect();
        let quoted = quoted.ok_or(ExportError::Unrepresentable { field: "recommended" })?;
        Ok(format!("{}\n", quoted.join(" ")))
    }

    fn notes(&self, answer: &Answer<'_>) -> Vec<String> {
        pytorch::conf_note(answer).into_iter().collect()
    }
}

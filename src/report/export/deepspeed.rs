//! A DeepSpeed configuration: what was tuned, merged into the file of `--into` where there is one.
//!
//! ```sh
//! tune export --format deepspeed --into ds_config.json --output ds_tuned.json recommendation.yaml
//! ```
//! Everything else of that file is kept. `train_batch_size` is micro-batch × accumulation × processes, and DeepSpeed
//! checks it. Of `bf16` and `fp16`, which exclude each other (and `amp`), the tuned one is enabled and the others are
//! disabled. Either keeps f32 master weights, so parameters in half precision alone are refused; f32 leaves the file's
//! types as they are, because a script that was tuned as a command may set them there.
//! (Keys: `deepspeed/runtime/constants.py`.)

use serde_json::{Map, Value};

use super::{Answer, ExportError, Exporter, pretty_json, pytorch};
use crate::train::Precision;

/// The format in messages.
const NAME: &str = "DeepSpeed's configuration";
/// Sections that turn on a type, of which one at most may be enabled.
const TYPES: [&str; 4] = ["bf16", "bfloat16", "fp16", "amp"];

/// DeepSpeed.
#[derive(Debug)]
pub struct Deepspeed;

impl Exporter for Deepspeed {
    fn export(&self, answer: &Answer<'_>) -> Result<String, ExportError> {
        let recommended = answer.recommended;
        // The script's loader, as the note has it, must be one that PyTorch takes.
        pytorch::LoaderArguments::of(answer)?;
        pytorch::refuse_checkpointing(answer, NAME)?;
        pytorch::refuse_trim(answer, NAME)?;
        let mut merged = match answer.base {
            Some(Value::Object(base)) => base.clone(),
            Some(_) => return Err(ExportError::NoObject { key: "$".to_owned() }),
            None => Map::new(),
        };
        merged.insert("train_micro_batch_size_per_gpu".to_owned(), recommended.batch_size.into());
        merged.insert("gradient_accumulation_steps".to_owned(), recommended.accumulation_steps.into());
        merged.insert("train_batch_size".to_owned(), recommended.effective_batch_size.into());
        match recommended.precision {
            Precision::F32 => {}
            Precision::MixedBf16 => enable(&mut merged, "bf16")?,
            Precision::MixedF16 => enable(&mut merged, "fp16")?,
            Precision::Bf16 | Precision::F16 => return Err(pytorch::no_precision(answer, NAME)),
        }
        pretty_json(&merged)
    }

    fn notes(&self, answer: &Answer<'_>) -> Vec<String> {
        let loader = pytorch::loader_note(answer).into_iter();
        let notes = loader.chain(pytorch::batch_norm_notes(answer)).chain(pytorch::left_out_notes(answer));
        notes.chain(type_note(answer)).collect()
    }
}

/// A type that the file enables and that was not measured.
fn type_note(answer: &Answer<'_>) -> Option<String> {
    let base = answer.base.filter(|_| answer.recommended.precision == Precision::F32)?;
    let is_on = |name: &&&str| match base.get(**name).and_then(|section| section.get("enabled")) {
        Some(Value::Bool(enabled)) => *enabled,
        // `auto`, which the launcher decides.
        Some(Value::String(_)) => true,
        _ => false,
    };
    let name = TYPES.iter().find(is_on)?;
    Some(format!(
        "the file keeps `{name}` enabled, and the recommendation has `precision: f32` (hint: if the script does not train in it by itself, tune again with that precision, or disable it)"
    ))
}

/// Enables one type and disables the others that the file has.
fn enable(merged: &mut Map<String, Value>, chosen: &str) -> Result<(), ExportError> {
    merged.entry(chosen).or_insert_with(|| Map::new().into());
    for name in TYPES {
        let Some(section) = merged.get_mut(name) else { continue };
        let section = section.as_object_mut().ok_or_else(|| ExportError::NoObject { key: name.to_owned() })?;
        section.insert("enabled".to_owned(), (name == chosen).into());
    }
    Ok(())
}

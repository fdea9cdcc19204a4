//! Shell assignments for a job script.
//!
//! ```sh
//! tune_env=$(tune export --format env recommendation.yaml)   # stops here under `set -e` if there is none
//! eval "$tune_env"
//! ```
//! Two statements, because `eval "$(…)"` swallows a failure even under `set -e`. Every value is quoted, so whatever
//! a name holds cannot break out.

use std::fmt::Write;

use super::{Answer, ExportError, Exporter, name_of, pytorch, quote};

/// The variable of PyTorch's allocator settings.
pub(super) const ALLOC_CONF: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// Shell assignments.
#[derive(Debug)]
pub struct Env;

impl Exporter for Env {
    fn export(&self, answer: &Answer<'_>) -> Result<String, ExportError> {
        assignments(answer)
    }

    fn notes(&self, answer: &Answer<'_>) -> Vec<String> {
        pytorch::shared_memory_note(answer).into_iter().collect()
    }
}

/// `export NAME=value`, a line each.
pub(super) fn assignments(answer: &Answer<'_>) -> Result<String, ExportError> {
    let mut text = String::new();
    for (name, value) in variables(answer) {
        let quoted = quote::shell(&value).ok_or(ExportError::Unrepresentable { field: name })?;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "export {name}={quoted}");
    }
    Ok(text)
}

/// Everything of a recommendation that a launch sets, as environment variables.
pub(super) fn variables(answer: &Answer<'_>) -> Vec<(&'static str, String)> {
    let recommended = answer.recommended;
    let mut variables = vec![
        ("TUNE_BATCH_SIZE", recommended.batch_size.to_string()),
        ("TUNE_ACCUMULATION_STEPS", recommended.accumulation_steps.to_string()),
        ("TUNE_EFFECTIVE_BATCH_SIZE", recommended.effective_batch_size.to_string()),
        ("TUNE_LOADER_WORKERS", recommended.loader_workers.to_string()),
        ("TUNE_PREFETCH_DEPTH", recommended.prefetch_depth.to_string()),
        ("TUNE_DEVICE_PREFETCH", recommended.device_prefetch.to_string()),
        ("TUNE_PIN_MEMORY", recommended.pin_memory.to_string()),
        ("TUNE_PRECISION", name_of(&recommended.precision)),
        ("TUNE_GRADIENT_CHECKPOINTING", name_of(&recommended.gradient_checkpointing)),
        ("TUNE_BATCH_NORM", name_of(&recommended.batch_norm)),
        ("TUNE_TRIM", name_of(&recommended.trim)),
        ("TUNE_LIMIT_BYTES", recommended.allocator.limit_bytes.to_string()),
        ("TUNE_REPLICAS", answer.recommended.replicas.to_string()),
        ("TUNE_STATUS", answer.recommendation.status.name().to_owned()),
    ];
    if let Some(conf) = &recommended.allocator.conf {
        variables.push((ALLOC_CONF, conf.clone()));
    }
    variables
}

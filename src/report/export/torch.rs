//! A Python module for a plain PyTorch loop.
//!
//! ```sh
//! tune export --format torch --output tune_settings.py recommendation.yaml
//! ```
//! ```python
//! import tune_settings                                  # plain values: nothing runs, torch is not imported
//! tune_settings.apply()                                 # before the first tensor on the card
//! loader = DataLoader(dataset, shuffle=True, **tune_settings.DATALOADER)
//! ```
//! `apply` sets the allocator settings, which PyTorch reads from the environment when its allocator starts, and the
//! memory limit as a fraction of the card that it runs on; `MEMORY_FRACTION` is that of the card tuned on.
//! Every text is an ASCII literal, so the module is valid Python whatever it holds.

use std::fmt::Write;

use super::pytorch::{self, LoaderArguments};
use super::{Answer, ExportError, Exporter, env, name_of, quote};

/// The constant part: what puts the settings into force.
const APPLY: &str = r#"

def apply(device=None):
    """Puts allocator settings and memory limit into force. Call it before the first tensor is made on the card."""
    import os

    if ALLOC_CONF is not None:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = ALLOC_CONF
    if MEMORY_FRACTION is not None:
        import torch

        total_bytes = torch.cuda.get_device_properties(0 if device is None else device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, LIMIT_BYTES / total_bytes), device)
"#;

/// PyTorch.
#[derive(Debug)]
pub struct Torch;

impl Exporter for Torch {
    fn export(&self, answer: &Answer<'_>) -> Result<String, ExportError> {
        let recommended = answer.recommended;
        let loader = LoaderArguments::of(answer)?;
        let conf = match &recommended.allocator.conf {
            Some(conf) if conf.contains('\0') => return Err(ExportError::Unrepresentable { field: env::ALLOC_CONF }),
            Some(conf) => quote::literal(conf),
            None => "None".to_owned(),
        };
        // No comment with a stranger's words in it: on the first two lines it could name the file's encoding (PEP 263).
        let mut text =
            "\"\"\"Settings that batchtune found and proved. Nothing runs on import; see apply().\"\"\"\n\n".to_owned();
        // Writing to a String cannot fail.
        let mut set = |name: &str, value: String| {
            let _ = writeln!(text, "{name} = {value}");
        };
        set("ORIGIN", quote::literal(&answer.origin()));
        set("BATCH_SIZE", recommended.batch_size.to_string());
        set("ACCUMULATION_STEPS", recommended.accumulation_steps.to_string());
        set("EFFECTIVE_BATCH_SIZE", recommended.effective_batch_size.to_string());
        set("DATALOADER", loader_dict(recommended.batch_size, loader));
        set("DEVICE_PREFETCH", recommended.device_prefetch.to_string());
        set("PRECISION", quote::literal(&recommended.precision.to_string()));
        set("GRADIENT_CHECKPOINTING", quote::literal(&name_of(&recommended.gradient_checkpointing)));
        set("BATCH_NORM", quote::literal(&name_of(&recommended.batch_norm)));
        set("TRIM", quote::literal(&name_of(&recommended.trim)));
        set("LIMIT_BYTES", recommended.allocator.limit_bytes.to_string());
        set("MEMORY_FRACTION", memory_fraction(answer)?);
        set("ALLOC_CONF", conf);
        set("DEVICE_NAME", quote::literal(&answer.recommendation.environment.name));
        set("CONFIG_SHA256", quote::literal(&answer.recommendation.provenance.config_sha256));
        text.push_str(APPLY);
        Ok(text)
    }

    fn notes(&self, answer: &Answer<'_>) -> Vec<String> {
        let mut notes = pytorch::batch_norm_notes(answer);
        notes.extend(pytorch::shared_memory_note(answer));
        notes
    }
}

fn loader_dict(batch_size: usize, loader: LoaderArguments) -> String {
    let LoaderArguments { num_workers, prefetch_factor, persistent_workers, pin_memory } = loader;
    let prefetch = prefetch_factor.map_or_else(String::new, |factor| format!(", \"prefetch_factor\": {factor}"));
    format!(
        "{{\"batch_size\": {batch_size}, \"num_workers\": {num_workers}{prefetch}, \"persistent_workers\": {}, \"pin_memory\": {}}}",
        python(persistent_workers),
        python(pin_memory)
    )
}

/// The limit as a share of the card, which PyTorch takes from 0 to 1; without a card there is none.
fn memory_fraction(answer: &Answer<'_>) -> Result<String, ExportError> {
    if !answer.is_cuda() {
        return Ok("None".to_owned());
    }
    let limit_bytes = answer.recommended.allocator.limit_bytes;
    let total_bytes = answer.recommendation.environment.total_bytes;
    if limit_bytes == 0 || limit_bytes > total_bytes {
        return Err(ExportError::NoPlace {
            field: "allocator.limit_bytes",
            value: limit_bytes.to_string(),
            format: "set_per_process_memory_fraction",
            hint: "it is a share of `environment.total_bytes`, over 0 and up to 1",
        });
    }
    Ok(format!("{:?}", limit_bytes as f64 / total_bytes as f64))
}

/// `True` or `False`.
fn python(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

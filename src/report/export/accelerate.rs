//! A configuration file of Hugging Face accelerate, for `accelerate launch --config_file`.
//!
//! The file configures the launcher: how many processes, which devices, which mixed precision. Keys that it does not
//! know it refuses (`accelerate/commands/config/config_args.py`), and neither the batch size nor the loader are among
//! them. Accumulation is read from `ACCELERATE_GRADIENT_ACCUMULATION_STEPS`, the rest is the script's: a comment at the
//! top says it all, with the variables of `--format env`.

use std::fmt::Write;

use super::env::variables;
use super::{Answer, ExportError, Exporter, pytorch, quote};
use crate::train::Precision;

/// The format in messages.
const NAME: &str = "accelerate's configuration";

/// accelerate.
#[derive(Debug)]
pub struct Accelerate;

impl Exporter for Accelerate {
    fn export(&self, answer: &Answer<'_>) -> Result<String, ExportError> {
        let recommended = answer.recommended;
        // The script's loader, as the note has it, must be one that PyTorch takes.
        pytorch::LoaderArguments::of(answer)?;
        pytorch::refuse_checkpointing(answer, NAME)?;
        pytorch::refuse_trim(answer, NAME)?;
        let mixed_precision = match recommended.precision {
            Precision::F32 => "no",
            Precision::MixedBf16 => "bf16",
            Precision::MixedF16 => "fp16",
            Precision::Bf16 | Precision::F16 => return Err(pytorch::no_precision(answer, NAME)),
        };
        let replicas = answer.recommended.replicas;
        let distributed_type = match (answer.is_cuda(), replicas) {
            (_, 0 | 1) => "NO",
            (true, _) => "MULTI_GPU",
            (false, _) => "MULTI_CPU",
        };
        let mut text = format!(
            "# {}\n# Not accelerate's to set, but the script's and its environment's (`tune export --format env`):\n#   ACCELERATE_GRADIENT_ACCUMULATION_STEPS={}\n",
            answer.origin(),
            recommended.accumulation_steps
        );
        for (name, value) in variables(answer) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "#   {name}={}", quote::one_line(&value));
        }
        let _ = write!(
            text,
            "compute_environment: LOCAL_MACHINE\ndistributed_type: \"{distributed_type}\"\nmachine_rank: 0\nmain_training_function: main\nmixed_precision: \"{mixed_precision}\"\nnum_machines: 1\nnum_processes: {replicas}\nuse_cpu: {}\n",
            !answer.is_cuda()
        );
        Ok(text)
    }

    fn notes(&self, answer: &Answer<'_>) -> Vec<String> {
        let steps = answer.recommended.accumulation_steps;
        let accumulation = format!(
            "the script's: Accelerator(gradient_accumulation_steps={steps}), or ACCELERATE_GRADIENT_ACCUMULATION_STEPS={steps} in its environment"
        );
        let loader = pytorch::loader_note(answer).into_iter().chain([accumulation]);
        loader.chain(pytorch::batch_norm_notes(answer)).chain(pytorch::left_out_notes(answer)).collect()
    }
}

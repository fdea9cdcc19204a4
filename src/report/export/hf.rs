//! Keyword arguments of Hugging Face's `TrainingArguments`, as JSON.
//!
//! ```python
//! TrainingArguments(output_dir="out", **json.load(open("tuned.json")))
//! ```
//! or, with `HfArgumentParser`, among the arguments of `parse_json_file`. f32 is what `Trainer` does unless it is told
//! otherwise and is left out, so a script that was tuned as a command keeps the types that it sets itself. `bf16` and
//! `fp16` there are mixed precision; parameters in half precision are the model's business (`dtype=` of
//! `from_pretrained`) and are refused.
//!
//! `torch_empty_cache_steps` counts updates, and `Trainer` then clears the cache after every micro-batch of such an
//! update: `trim: after_update` and `every_k` become 1, which clears at least as often as was measured.
//! (Names and checks: `transformers/training_args.py`.)

use serde_json::{Map, Value};

use super::pytorch::{self, LoaderArguments};
use super::{Answer, ExportError, Exporter, name_of, pretty_json};
use crate::memory::Trim;
use crate::train::{GradientCheckpointing, Precision};

/// The format in messages.
const NAME: &str = "TrainingArguments";

/// `TrainingArguments`.
#[derive(Debug)]
pub struct Hf;

impl Exporter for Hf {
    fn export(&self, answer: &Answer<'_>) -> Result<String, ExportError> {
        let recommended = answer.recommended;
        let loader = LoaderArguments::of(answer)?;
        let mut arguments = Map::new();
        let mut set = |name: &str, value: Value| arguments.insert(name.to_owned(), value);
        set("per_device_train_batch_size", recommended.batch_size.into());
        set("gradient_accumulation_steps", recommended.accumulation_steps.into());
        set("dataloader_num_workers", loader.num_workers.into());
        set("dataloader_persistent_workers", loader.persistent_workers.into());
        set("dataloader_pin_memory", loader.pin_memory.into());
        if let Some(prefetch_factor) = loader.prefetch_factor {
            set("dataloader_prefetch_factor", prefetch_factor.into());
        }
        match recommended.precision {
            Precision::F32 => None,
            Precision::MixedBf16 => set("bf16", true.into()),
            Precision::MixedF16 => set("fp16", true.into()),
            Precision::Bf16 | Precision::F16 => return Err(pytorch::no_precision(answer, NAME)),
        };
        if recommended.gradient_checkpointing != GradientCheckpointing::None {
            set("gradient_checkpointing", true.into());
        }
        match recommended.trim {
            Trim::Never => None,
            Trim::AfterUpdate | Trim::EveryK => set("torch_empty_cache_steps", 1.into()),
            Trim::AfterEval => {
                return Err(ExportError::NoPlace {
                    field: "trim",
                    value: name_of(&recommended.trim),
                    format: NAME,
                    hint: "a TrainerCallback with torch.cuda.empty_cache() in on_evaluate does it",
                });
            }
        };
        pretty_json(&arguments)
    }

    fn notes(&self, answer: &Answer<'_>) -> Vec<String> {
        let mut notes = [pytorch::batch_norm_notes(answer), pytorch::left_out_notes(answer)].concat();
        notes.extend(pytorch::shared_memory_note(answer));
        notes
    }
}

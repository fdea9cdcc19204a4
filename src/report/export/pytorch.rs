//! What PyTorch and everything built on it share: the rules of its `DataLoader`, and what no file of theirs can say.
//!
//! `DataLoader` takes a `prefetch_factor` with workers only, and of at least 1; `persistent_workers` needs workers as
//! well (the checks are in its constructor, `torch/utils/data/dataloader.py`). Workers that persist are what was
//! measured: a trial starts its loader once.
//!
//! The memory limit is left out where there is no place for it: the answer was shown to stay under it.

use super::env::ALLOC_CONF;
use super::{Answer, ExportError, name_of, quote};
use crate::memory::Trim;
use crate::report::recommendation::Recommended;
use crate::train::{BatchNorm, GradientCheckpointing};
use crate::units::{Bytes, plural};

/// Arguments of `torch.utils.data.DataLoader` but the batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoaderArguments {
    pub(super) num_workers: usize,
    /// Absent without workers.
    pub(super) prefetch_factor: Option<usize>,
    pub(super) persistent_workers: bool,
    pub(super) pin_memory: bool,
}

impl LoaderArguments {
    pub(super) fn of(answer: &Answer<'_>) -> Result<Self, ExportError> {
        let recommended = answer.recommended;
        let has_workers = recommended.loader_workers > 0;
        if has_workers && recommended.prefetch_depth == 0 {
            return Err(ExportError::NoPlace {
                field: "prefetch_depth",
                value: "0".to_owned(),
                format: "a DataLoader with workers",
                hint: "PyTorch's workers prefetch at least 1 batch: leave 0 out of `search.prefetch_depth`",
            });
        }
        Ok(Self {
            num_workers: recommended.loader_workers,
            prefetch_factor: has_workers.then_some(recommended.prefetch_depth),
            persistent_workers: has_workers,
            pin_memory: recommended.pin_memory,
        })
    }
}

/// Room for the batches that workers keep ready: they hand them over in shared memory, of which a container has 64 MiB
/// unless it is told otherwise, and die of a bus error where there is too little.
pub(super) fn shared_memory_note(answer: &Answer<'_>) -> Option<String> {
    let Recommended { loader_workers, prefetch_depth, .. } = answer.recommended;
    let batch_bytes = answer.recommendation.measured.as_ref()?.batch_bytes?;
    let batches = loader_workers.saturating_mul(*prefetch_depth) as u64;
    let (needed_bytes, free_bytes) = (batch_bytes.saturating_mul(batches), answer.shared_memory_bytes?);
    (needed_bytes > free_bytes).then(|| {
        format!(
            "PyTorch's workers keep {} in /dev/shm ({} a batch × {} × {prefetch_depth}), and {} are free (hint: a larger `--shm-size` for the container, or fewer workers)",
            Bytes(needed_bytes),
            Bytes(batch_bytes),
            plural(*loader_workers, "worker"),
            Bytes(free_bytes)
        )
    })
}

/// Refuses recomputation for a framework that leaves it to the model.
pub(super) fn refuse_checkpointing(answer: &Answer<'_>, format: &'static str) -> Result<(), ExportError> {
    match answer.recommended.gradient_checkpointing {
        GradientCheckpointing::None => Ok(()),
        mode => Err(ExportError::NoPlace {
            field: "gradient_checkpointing",
            value: name_of(&mode),
            format,
            hint: "the model's code turns it on: read TUNE_GRADIENT_CHECKPOINTING of `--format env`",
        }),
    }
}

/// Refuses trimming for a framework that has none.
pub(super) fn refuse_trim(answer: &Answer<'_>, format: &'static str) -> Result<(), ExportError> {
    match answer.recommended.trim {
        Trim::Never => Ok(()),
        trim => Err(ExportError::NoPlace {
            field: "trim",
            value: name_of(&trim),
            format,
            hint: "the loop calls torch.cuda.empty_cache(): read TUNE_TRIM of `--format env`",
        }),
    }
}

/// Refuses a precision.
pub(super) fn no_precision(answer: &Answer<'_>, format: &'static str) -> ExportError {
    ExportError::NoPlace {
        field: "precision",
        value: answer.recommended.precision.to_string(),
        format,
        hint: "it knows f32 parameters with half-precision compute only: tune with `mixed_bf16` or `mixed_f16`",
    }
}

/// What a framework's file leaves to the script and to the environment.
pub(super) fn left_out_notes(answer: &Answer<'_>) -> Vec<String> {
    let recommended = answer.recommended;
    let mut notes = Vec::new();
    if recommended.device_prefetch > 0 {
        notes.push(format!(
            "`device_prefetch: {}` is the script's: without batches staged on the device it needs less memory",
            recommended.device_prefetch
        ));
    }
    notes.extend(conf_note(answer));
    notes
}

/// The loader, where the file has no place for it.
pub(super) fn loader_note(answer: &Answer<'_>) -> Option<String> {
    let LoaderArguments { num_workers, prefetch_factor, persistent_workers, .. } = LoaderArguments::of(answer).ok()?;
    let prefetch = prefetch_factor.map_or_else(String::new, |factor| format!(", prefetch_factor={factor}"));
    let persistent = if persistent_workers { ", persistent_workers=True" } else { "" };
    let batch_size = answer.recommended.batch_size;
    Some(format!("the script's: DataLoader(batch_size={batch_size}, num_workers={num_workers}{prefetch}{persistent})"))
}

/// What batch normalisation needs. Whether the model has any, nobody has said.
pub(super) fn batch_norm_notes(answer: &Answer<'_>) -> Vec<String> {
    let recommended = answer.recommended;
    let text = match recommended.batch_norm {
        BatchNorm::Train if recommended.accumulation_steps > 1 => {
            let over_replicas =
                if answer.recommended.replicas > 1 { "torch.nn.SyncBatchNorm for those of all replicas, " } else { "" };
            format!(
                "batch normalisation, if the model has any, takes its statistics over micro-batches of {}, not over {} samples (hint: {over_replicas}`train.batch_norm: frozen`, or group normalisation)",
                recommended.batch_size, recommended.effective_batch_size
            )
        }
        BatchNorm::Train => return Vec::new(),
        BatchNorm::Frozen => {
            "batch normalisation was measured frozen: put its layers in eval() after every model.train()".to_owned()
        }
        BatchNorm::Sync => {
            "batch normalisation was measured over all replicas: torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)"
                .to_owned()
        }
    };
    vec![text]
}

/// Allocator settings are read from the environment, before the first tensor is made.
pub(super) fn conf_note(answer: &Answer<'_>) -> Option<String> {
    let conf = answer.recommended.allocator.conf.as_deref()?;
    Some(format!(
        "{ALLOC_CONF}={} belongs into the launch's environment (hint: `--format env` sets it)",
        quote::one_line(conf)
    ))
}

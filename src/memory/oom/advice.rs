//! What to change.

use super::classify::Verdict;
use super::{OomClass, OomFigures, OomSource};
use crate::memory::policy::AllocConf;

/// Allocator settings that are on already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Active {
    expandable: bool,
    max_split: bool,
    garbage_collection: bool,
    async_backend: bool,
}

/// What stands before a setting in PyTorch's own hint, where it is advised and not on.
const HINT: &str = "try setting ";

impl Active {
    /// From a configuration, and from settings within the text itself (a log often shows the environment).
    pub(super) fn of(text: &str, conf: Option<&str>) -> Self {
        let mut active = Self::default();
        for name in ["PYTORCH_CUDA_ALLOC_CONF=", "PYTORCH_ALLOC_CONF="] {
            for (at, _) in text.match_indices(name) {
                let hinted = text[..at].ends_with(HINT);
                let value = text[at + name.len()..].trim_start_matches(['"', '\'']);
                let end = value.find(|letter: char| letter.is_whitespace() || "\"';".contains(letter));
                if !hinted {
                    active.add(&value[..end.unwrap_or(value.len())]);
                }
            }
        }
        if let Some(conf) = conf {
            active.add(conf);
        }
        active.async_backend |=
            text.contains("TF_GPU_ALLOCATOR=cuda_malloc_async ") && !text.contains("environment variable");
        active
    }

    fn add(&mut self, conf: &str) {
        // A configuration that does not parse is PyTorch's to complain about.
        let Ok(conf) = conf.parse::<AllocConf>() else { return };
        self.expandable |= conf.settings.expandable_segments;
        self.max_split |= conf.settings.max_split_bytes.is_some();
        self.garbage_collection |= conf.settings.garbage_collection_threshold.is_some();
        self.async_backend |= conf.backend != crate::memory::policy::Backend::Native;
    }
}

pub(super) fn advice(source: OomSource, figures: &OomFigures, verdict: &Verdict, active: Active) -> Vec<String> {
    let advice: Vec<&str> = match verdict.class {
        OomClass::Fragmentation => fragmentation(source, active),
        OomClass::Capacity => capacity(verdict),
        OomClass::OtherProcess => vec![
            "end the other processes on this device (`nvidia-smi` lists them), or choose another one with `CUDA_VISIBLE_DEVICES`",
            "if the device is to be shared, lower the batch size until the step fits what is left",
        ],
        OomClass::HostOrDriverLimit => vec![
            "look at the host: free memory and swap, the container's memory limit, and on Windows the commit limit",
            "start fewer loader workers: each one may hold a CUDA context and a copy of the dataset",
            "look at the driver's own log (`dmesg`), and for a MIG slice or a limit set outside this process",
        ],
        OomClass::Unknown => unknown(source, figures),
    };
    advice.into_iter().map(str::to_owned).collect()
}

fn fragmentation(source: OomSource, active: Active) -> Vec<&'static str> {
    let mut advice = Vec::new();
    match source {
        OomSource::Pytorch => {
            if !active.expandable && !active.async_backend {
                advice.push("set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`");
            }
            if !active.max_split && !active.expandable && !active.async_backend {
                advice.push("or keep large blocks whole: `PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128`");
            }
            if !active.garbage_collection && !active.async_backend && !active.expandable {
                advice.push(
                    "or release unused segments earlier: `garbage_collection_threshold:0.8` with a memory fraction set",
                );
            }
            advice.push(
                "record a snapshot (`torch.cuda.memory._record_memory_history`) and run `tune replay FILE --compare`",
            );
        }
        OomSource::Bfc => {
            if !active.async_backend {
                advice.push("set `TF_GPU_ALLOCATOR=cuda_malloc_async` (TensorFlow)");
            }
            advice.push("under JAX let the allocator have more: `XLA_CLIENT_MEM_FRACTION`");
        }
        OomSource::Cupy => {
            advice.push("free the pool's unused blocks: `cupy.get_default_memory_pool().free_all_blocks()`");
        }
        OomSource::Candle | OomSource::Batchtune | OomSource::Library | OomSource::Driver | OomSource::Unknown => {
            advice.push("try another allocator: `memory.allocator: expandable` in the configuration");
        }
    }
    advice.push("make shapes uniform: pad batches to a few lengths, and drop the last partial batch");
    advice.push("free large temporaries before long-lived tensors are made");
    advice
}

fn capacity(verdict: &Verdict) -> Vec<&'static str> {
    let mut advice =
        vec!["lower the micro-batch size and raise gradient accumulation (`tune --config model.yaml` finds the pair)"];
    if verdict.limit_binds {
        advice.insert(0, "raise the memory limit of this process: the device has more free than it may use");
    }
    advice.push("recompute activations (gradient checkpointing), or train in bf16");
    advice.push("shorten the sequences, or shard the optimizer state over replicas");
    advice
}

fn unknown(source: OomSource, figures: &OomFigures) -> Vec<&'static str> {
    let mut advice = Vec::new();
    match source {
        OomSource::Candle => advice.push(
            "candle passes on the driver's code without figures: run the step under `tune`, which records every allocation",
        ),
        OomSource::Pytorch if figures.requested_bytes.is_none() => {
            advice.push("it was not PyTorch's allocator that was refused but the driver: look with `nvidia-smi` for other processes on the device, and start fewer that open it");
            advice.push("leave room outside the allocator, for the context and the libraries: `torch.cuda.set_per_process_memory_fraction`");
        }
        OomSource::Library => {
            advice.push("the library found no room for its workspace beside the allocator's cache: lower the memory limit of the allocator (`torch.cuda.set_per_process_memory_fraction`, or `memory.limit` under `tune`)");
            advice.push("or make the workspace smaller: `CUBLAS_WORKSPACE_CONFIG=:4096:2`, `torch.backends.cudnn.benchmark = False`");
        }
        OomSource::Driver => advice.push(
            "the driver's code comes without figures: look with `nvidia-smi` at what is free, and whether other processes hold the device",
        ),
        OomSource::Bfc if figures.requested_bytes.is_none() => {
            advice.push("paste the lines with the allocator's statistics too");
            advice.push("look with `nvidia-smi` whether another process had the memory before: TensorFlow and JAX take most of the device at their start");
        }
        OomSource::Cupy if figures.limit_bytes.is_none() => {
            advice.push("CuPy does not say how much the device has: compare `nvidia-smi` with the bytes allocated so far");
        }
        OomSource::Unknown => advice.push("paste the whole message, from `out of memory` on"),
        _ => advice.push("paste the lines with the allocator's statistics too"),
    }
    advice.push("lower the micro-batch size to see whether the step fits at all");
    advice
}

//! What is concluded, in words.

use serde::Serialize;

/// What kind of thing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Memory is given back and taken again while much of the card is in use.
    Jumping,
    /// It did, and the end came with memory free.
    FragmentationLike,
    /// Memory climbs steadily.
    Leak,
    /// The end came with the card full.
    CardFull,
    /// Others hold memory of the card.
    OtherProcesses,
    /// Whose memory it is cannot be told.
    HiddenProcesses,
}

/// How sure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// It was seen.
    Seen,
    /// The process failed, and this is the likely cause.
    Likely,
    /// It is so if the program ran out of memory, which was not seen.
    IfOutOfMemory,
}

/// Something that is concluded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What kind of thing.
    #[serde(rename = "finding")]
    pub kind: Kind,
    /// How sure.
    pub certainty: Certainty,
    /// What was seen, and what it means.
    pub text: String,
    /// What to do, the most promising first.
    pub advice: Vec<&'static str>,
}

impl Finding {
    pub(super) fn new(kind: Kind, certainty: Certainty, text: String) -> Self {
        Self { kind, certainty, text, advice: advice(kind).to_vec() }
    }

    /// The text with a capital and a full stop.
    pub fn sentence(&self) -> String {
        let mut letters = self.text.chars();
        let first: String = letters.next().map(|first| first.to_uppercase().collect()).unwrap_or_default();
        format!("{first}{}.", letters.as_str())
    }
}

fn advice(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Jumping => &[
            "record a snapshot (`torch.cuda.memory._record_memory_history`) and run `tune replay FILE --compare`",
            "make shapes uniform: pad batches to a few lengths, and drop the last partial batch",
        ],
        Kind::FragmentationLike => &[
            "paste the error into `tune explain-oom`: it tells fragmentation from one request that is too large and from a limit set within the program",
            "under PyTorch set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`",
            "record a snapshot (`torch.cuda.memory._record_memory_history`) and run `tune replay FILE --compare`",
            "make shapes uniform: pad batches to a few lengths, and drop the last partial batch",
        ],
        Kind::Leak => &[
            "look for tensors that are kept from step to step: a loss summed without `.item()`, outputs in a list, hooks, a growing cache",
            "two snapshots some hundred steps apart show who holds it: `tune inspect FILE`",
            "if lengths vary, a cache that has not met its largest batch grows too: put the longest batch first",
        ],
        Kind::CardFull => &[
            "lower the micro-batch size and raise gradient accumulation (`tune --config model.yaml` finds the pair)",
            "recompute activations (gradient checkpointing), or train in bf16",
        ],
        Kind::OtherProcesses => {
            &["end them if they are not meant to be there, or choose another card with `CUDA_VISIBLE_DEVICES`"]
        }
        Kind::HiddenProcesses => &[
            "watch from outside the container, or start it with the host's process numbers (`docker run --pid=host`), to have each process's own memory",
        ],
    }
}

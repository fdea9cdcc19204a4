//! The events of a run, in the order in which the device saw them.

use serde::{Deserialize, Serialize};

/// The number of an allocation within one recording, counted from 0. It stands for the pointer, which has no
/// meaning outside the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ordinal(pub u64);

/// The stream a block belongs to. Caching allocators never hand a block of one stream to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stream(pub u64);

/// One thing that happened to device memory, or a mark between such things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A tensor was allocated.
    Alloc {
        /// Its number.
        ordinal: Ordinal,
        /// The bytes asked for, before any rounding.
        bytes: u64,
        /// The stream it was asked for on.
        stream: Stream,
    },
    /// A tensor was freed.
    Free {
        /// The number it was allocated under.
        ordinal: Ordinal,
    },
    /// The program freed a tensor that another stream still uses; a [`Free`](Event::Free) follows when that ends.
    FreeRequested {
        /// The number it was allocated under.
        ordinal: Ordinal,
    },
    /// Something other than memory happened.
    Mark(Mark),
}

/// A point between events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mark", content = "value", rename_all = "snake_case")]
pub enum Mark {
    /// A step (one micro-batch) begins; counted from 0.
    Step(u32),
    /// A phase begins and lasts until the next mark.
    Phase(Phase),
    /// The program handed cached memory back to the device (`empty_cache`, `cuMemPoolTrimTo`).
    Trim,
}

/// What a training thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Building the model and the optimizer state.
    Build,
    /// Moving a batch to the device.
    Load,
    /// The forward pass and the loss.
    Forward,
    /// The backward pass and the accumulation of gradients.
    Backward,
    /// The optimizer step.
    Optimizer,
    /// A pass without gradients over held-out data.
    Evaluation,
    /// Writing the weights and the optimizer state.
    Checkpoint,
}

//! What is known of batch sizes that were not run.
//!
//! Probes at tiny batches record every allocation; a [`Forecaster`](crate::memory::forecast::Forecaster) computes from
//! them what any batch takes. A strategy does no I/O, so the driver reads the recordings ([`probed`]) and hands the
//! strategy this pure view of them. The view of the same recordings is the same, so a study resumes to the same answer.
//!
//! What memory a step takes depends on more than the batch. A [`Kind`] names what else has to be alike for one probe to
//! speak for a point: whether gradients are summed, and whether activations are recomputed. The data path does not
//! matter, since probes stage as many batches on the device as any point may.

use crate::memory::forecast::Method;
use crate::train::GradientCheckpointing;
use crate::trial::Point;

pub mod probed;

/// The points that one set of probes speaks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// Micro-batches per optimizer step as trials run them: 1, or 2 for 2 and more.
    pub accumulation: usize,
    /// Recomputation of activations.
    pub gradient_checkpointing: GradientCheckpointing,
}

impl Kind {
    /// The kind of a point.
    pub fn of(point: &Point) -> Self {
        Self { accumulation: point.trial_accumulation(), gradient_checkpointing: point.gradient_checkpointing }
    }
}

/// What is forecast of a batch size.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// Highest A.
    pub peak_allocated_bytes: u64,
    /// Highest V.
    pub peak_reserved_bytes: u64,
    /// C.
    pub limit_bytes: u64,
    /// Whether every request is served, whatever the rules say of it.
    pub fits: bool,
    /// Why the size is ruled out, in a sentence. A forecast that may err rules out only what breaks a rule even if it
    /// is as far off as it may be.
    pub breach: Option<String>,
}

/// Settings of PyTorch's allocator that a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunedConf {
    /// In the form of `PYTORCH_CUDA_ALLOC_CONF`; `None` where the program's own are the best.
    pub conf: Option<String>,
    /// Why, in a sentence.
    pub reason: String,
}

/// The pure view of the probes' forecasts.
pub trait Knowledge {
    /// How points of a kind are forecast; `None` without probes of it.
    fn method(&self, kind: Kind) -> Option<Method>;

    /// Whether a probe at a third size would tell more: a few sizes may have been padded, or none of them fits.
    fn wants_a_third_probe(&self, kind: Kind) -> bool;

    /// What a batch size of a kind takes. `None` where nothing is known of it, as always below a batch of 2.
    fn expect(&self, kind: Kind, batch_size: usize) -> Option<Expectation>;

    /// Whether the whole run of a point can be played, once the probes for it have run. What comes of it is told to the
    /// history.
    fn can_play(&self, _point: &Point) -> bool {
        false
    }

    /// The best settings of PyTorch's allocator for a point, searched for by playing its steps; `None` where that cannot be
    /// done.
    fn tuned_alloc_conf(&self, _point: &Point) -> Option<TunedConf> {
        None
    }

    /// What a batch size of a kind takes if the program's allocator had these settings (in the form of `PYTORCH_CUDA_ALLOC_CONF`).
    fn expect_under(&self, _kind: Kind, _batch_size: usize, _alloc_conf: &str) -> Option<Expectation> {
        None
    }
}

/// Nothing is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl Knowledge for Nothing {
    fn method(&self, _kind: Kind) -> Option<Method> {
        None
    }

    fn wants_a_third_probe(&self, _kind: Kind) -> bool {
        false
    }

    fn expect(&self, _kind: Kind, _batch_size: usize) -> Option<Expectation> {
        None
    }
}

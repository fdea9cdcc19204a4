//! The memory room: what the product knows about device memory.
//!
//! Everything is built from one idea. A device hook turns a run into a stream of [`Event`]s (this tensor was
//! allocated, that one was freed, a step began). A [`Policy`] is the exact model of an allocator: it places the
//! events at addresses and can be asked for its [`PoolState`] at any time. The rates of
//! [`fragmentation`] are pure formulas over that state. A trace recorded once can therefore be replayed under any
//! allocator and any limit.
//!
//! | file | what it holds |
//! |---|---|
//! | [`event`], [`player`] | the events, and feeding them to a policy |
//! | [`policy`] | the allocators, and their settings in the form of `PYTORCH_CUDA_ALLOC_CONF` |
//! | [`fragmentation`] | the rates |
//! | [`trace`], [`snapshot`], [`recording`] | files: our own traces, RMM's logs, PyTorch's snapshots |
//! | [`replay`], [`compare`] | what a recording needs under other settings (`tune replay`) |
//! | [`inspect`] | what a file says about memory (`tune inspect`) |
//! | [`blocks`], [`timeline`] | where blocks lie at a moment, and what was held over time: for drawings |
//! | [`oom`] | what an error text says (`tune explain-oom`) |
//! | [`shadow`] | another allocator watching a run, on a thread of its own |
//!
//! This room is pure: it opens no device, runs no trial, knows no model and holds no `unsafe`.
//!
//! # To add an allocator policy
//! Create `memory/policy/<name>.rs` with a type that implements [`Policy`], add one line to
//! [`policy::build`], and the laws in `memory/policy/contract.rs` run over it.

pub mod blocks;
pub mod compare;
pub mod event;
pub mod forecast;
pub mod fragmentation;
pub mod inspect;
pub mod oom;
pub(crate) mod parallel;
pub mod player;
pub mod policy;
pub mod recording;
pub mod replay;
pub mod shadow;
pub mod snapshot;
pub mod spec;
pub mod timeline;
pub mod trace;

pub use event::{Event, Mark, Ordinal, Phase, Stream};
pub use fragmentation::{MemorySample, Rates};
pub use player::Player;
pub use policy::{Address, OutOfMemory, Policy, PoolState};
pub use spec::{AllocatorKind, FragmentationMetric, FragmentationSource, LimitSpec, Trim};

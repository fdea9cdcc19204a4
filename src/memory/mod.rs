//! The memory room: what the product knows about device memory.
//!
//! Everything is built from one idea. A device hook turns a run into a stream of [`Event`]s (this tensor was
//! allocated, that one was freed, a step began). A [`Policy`] is the exact model of an allocator: it places the
//! events at addresses and can be asked for its [`PoolState`] at any time. The rates of
//! [`fragmentation`] are pure formulas over that state. A trace recorded once can therefore be replayed under any
//! allocator and any limit.
//!
//! This room is pure: it opens no device, runs no trial, knows no model and holds no `unsafe`.
//!
//! # To add an allocator policy
//! Create `memory/policy/<name>.rs` with a type that implements [`Policy`], add one line to
//! [`policy::build`], and the laws in `memory/policy/contract.rs` run over it.

pub mod event;
pub mod fragmentation;
pub mod player;
pub mod policy;
pub mod spec;

pub use event::{Event, Mark, Ordinal, Phase, Stream};
pub use fragmentation::{MemorySample, Rates};
pub use player::Player;
pub use policy::{Address, OutOfMemory, Policy, PolicyError, PoolState};
pub use spec::{AllocatorKind, FragmentationMetric, FragmentationSource, LimitSpec, Trim};

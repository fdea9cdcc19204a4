//! Replicas of one training that work as a group: what PyTorch calls a process group.
//!
//! In data-parallel training every replica holds the whole model, works on its own share of each batch, and averages its
//! gradients with the others before each update (Li et al., "PyTorch Distributed", VLDB 2020). A [`Collective`] is one
//! replica's place in such a group: one *rank* a process, ranks from 0 to `world` − 1, and operations that every rank
//! calls in the same order. A rank that calls another one, or none, makes the others wait: for as long as their
//! patience, never longer.
//!
//! There are two kinds. [`unix`] connects processes of one host by sockets and sums on the host, in rank order, so that
//! all ranks get the same bits: it is what the CPU's replicas use. On CUDA the tensors go through NCCL (feature `nccl`),
//! and the sockets beside it carry what is not a tensor: words to agree on, the communicator's identity at first, and the
//! news that a rank is lost, which NCCL by itself would wait for for ever. Where the ranks of NCCL are on several machines
//! their driver stands in for the sockets ([`Relay`]).
//!
//! This room knows no training. What is averaged, and when, is [`train`](crate::train)'s business.
//!
//! # Beside the computation
//! A reduction can be begun ([`Collective::begin_all_reduce`]) and waited for later ([`Work`]), with computation in between:
//! on a thread of its own between processes, on a stream of its own on CUDA. What is begun still comes in order: an
//! operation that is called starts once all that were begun before it are done, so every rank sees one order.
//!
//! # Losing a rank
//! The first error of a group is its last operation: the rank that sees it tells the others who is lost, and every later
//! call gives the same error. A group is not mended; its processes are ended and a new one is formed.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};

mod host;
mod link;
mod meeting;
mod queue;
mod relay;
#[cfg(test)]
mod tests;
pub mod unix;

pub use relay::Relay;
pub use unix::UnixGroup;

/// The most ranks of a group: each is a process of this host with a device of its own.
pub const MOST_RANKS: usize = 64;

/// One rank's place in a group, as its driver assigns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    /// Which one, counted from 0.
    pub rank: usize,
    /// How many there are.
    pub world: usize,
    /// How the ranks meet.
    pub meeting: Meeting,
    /// What tells this group's ranks from strangers.
    pub token: u64,
    /// Which card it takes, where it is left to it.
    #[serde(default)]
    pub cards: Cards,
    /// How long to wait for all ranks to come.
    pub start: Duration,
    /// How long to wait for a rank that builds its model, or does what is no step.
    pub build: Duration,
    /// How long to wait for a rank within a step.
    pub step: Duration,
}

/// How the ranks of a group find each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Meeting {
    /// In a folder of their machine, which is of this group alone.
    Folder(PathBuf),
    /// By their driver, since they are not on one machine.
    Driver(Apart),
}

/// Two ranks whose machines are apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Apart {
    /// The node of rank 0.
    pub first: String,
    /// The first rank that is on another.
    pub rank: usize,
    /// Its node.
    pub other: String,
}

/// Which cards the ranks of a group see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cards {
    /// The same ones.
    #[default]
    Shared,
    /// What starts them gives each its own, most of the time (a scheduler does, a remote shell does not).
    Assigned,
}

impl Replica {
    /// The ranks that this one has a connection to: rank 0 to all others, and those to it.
    pub fn peers(&self) -> std::ops::Range<usize> {
        if self.rank == 0 { 1..self.world } else { 0..1 }
    }

    /// Where the rank's card stands among those from the first on, of which the worker sees so many.
    pub fn card(&self, seen: usize) -> usize {
        match self.cards {
            Cards::Assigned if seen < self.world => 0,
            Cards::Assigned | Cards::Shared => self.rank,
        }
    }
}

/// What is made of the values of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
}

/// A reduction that was begun. Its tensor is not to be read or written before it was waited for. Dropped without, it goes
/// on for the other ranks' sake, and what it made is lost.
pub trait Work: fmt::Debug {
    /// Makes what is done with the tensor from now on come after the reduction. On a host that is once it has returned; on
    /// a device, what is submitted afterwards waits there, and an error shows where the device is waited for.
    fn wait(self: Box<Self>) -> Result<(), CollectiveError>;
}

/// A rank's place in a group of replicas. All ranks call the same operations in the same order.
pub trait Collective: fmt::Debug + Send + Sync {
    /// Which rank this is.
    fn rank(&self) -> usize;

    /// How many there are.
    fn world(&self) -> usize;

    /// The word of every rank, in their order. Every rank gives one and gets all.
    fn gather(&self, word: u64) -> Result<Vec<u64>, CollectiveError>;

    /// Replaces the values of each tensor by what the reduction makes of all ranks'. The tensors are contiguous, of a
    /// floating-point type, and alike on all ranks. All ranks get the same bits.
    fn all_reduce(&self, tensors: &[&Tensor], reduction: Reduction) -> Result<(), CollectiveError>;

    /// Begins to replace the values of a tensor, under the same conditions, once what was done with it so far is done.
    fn begin_all_reduce(&self, tensor: &Tensor, reduction: Reduction) -> Result<Box<dyn Work>, CollectiveError>;

    /// Replaces the values of each tensor by those of rank 0, under the same conditions.
    fn broadcast(&self, tensors: &[&Tensor]) -> Result<(), CollectiveError>;

    /// Operations that this rank has come to so far. All ranks come to the same ones in one order, so one that has come to
    /// fewer than another is what that one waits for.
    fn entered(&self) -> u64;

    /// How long an operation waits for another rank from now on.
    fn set_patience(&self, patience: Duration);

    /// Ends the group, for a reason that no operation of its own found: the others are told, and need not wait.
    fn give_up(&self, error: CollectiveError);

    /// What ended the group, where something did.
    fn failure(&self) -> Option<CollectiveError>;

    /// Takes part no more.
    fn leave(&self) {
        self.give_up(CollectiveError::PeerLost { rank: self.rank() });
    }

    /// Returns once every rank has called it.
    fn barrier(&self) -> Result<(), CollectiveError> {
        self.gather(0).map(drop)
    }

    /// The largest of all ranks' words.
    fn largest(&self, word: u64) -> Result<u64, CollectiveError> {
        Ok(self.gather(word)?.into_iter().max().unwrap_or(word))
    }

    /// Fails unless all ranks have the same word: a checksum of what must be equal.
    fn check_equal(&self, what: &'static str, word: u64) -> Result<(), CollectiveError> {
        let words = self.gather(word)?;
        let first = words.first().copied().unwrap_or(word);
        match words.iter().position(|word| *word != first) {
            Some(rank) => {
                let error = CollectiveError::Unequal { what, rank };
                self.give_up(error.clone());
                Err(error)
            }
            None => Ok(()),
        }
    }
}

/// Why a group cannot go on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CollectiveError {
    /// A rank ended, or left.
    #[error("rank {rank} is lost")]
    PeerLost {
        /// Which.
        rank: usize,
    },
    /// A rank said nothing for too long.
    #[error("rank {rank} was not heard of for {seconds:.1} s")]
    PeerSilent {
        /// Which.
        rank: usize,
        /// How long it was waited for.
        seconds: f64,
    },
    /// This rank itself has left, while an operation of its own was under way.
    #[error("this rank has left the group")]
    Left,
    /// A rank does something else than this one.
    #[error("rank {rank} is out of step: {reason}")]
    OutOfStep {
        /// Which.
        rank: usize,
        /// How that shows.
        reason: String,
    },
    /// What must be equal on all ranks is not.
    #[error("the {what} of rank {rank} differ from those of rank 0")]
    Unequal {
        /// What.
        what: &'static str,
        /// The first rank that differs.
        rank: usize,
    },
    /// The place in the group makes no sense.
    #[error("rank {rank} of {world} is no place in a group of 1 to {MOST_RANKS} replicas")]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// The size of the group.
        world: usize,
    },
    /// The ranks cannot meet.
    #[error("replicas cannot meet in `{}`: {reason}", folder.display())]
    Meeting {
        /// Where.
        folder: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The ranks' machines are apart, and what they exchange does not leave one.
    #[error(
        "replicas on the CPU meet on one machine, and rank 0 is on `{}`, rank {} on `{}` (hint: let the launcher ask for one node, such as `--nodelist={}` for Slurm, or run `tune` inside an allocation of one)",
        _0.first, _0.rank, _0.other, _0.first
    )]
    Apart(Apart),
    /// A wire to another rank cannot be made.
    #[error("replicas cannot be connected: {0}")]
    Wire(String),
    /// The tensors cannot be exchanged.
    #[error("{0}")]
    Tensors(String),
    /// The library that exchanges them on a device cannot.
    #[error("NCCL cannot {operation}: {reason}")]
    Library {
        /// What was being done.
        operation: &'static str,
        /// What it said.
        reason: String,
    },
    /// There is none in this build.
    #[error(
        "replicas on CUDA need NCCL, and this build of tune has no NCCL support (hint: build with `cargo build --release --features nccl`, or use `--device cpu`)"
    )]
    NotCompiled,
}

impl CollectiveError {
    /// The rank that is to blame, and how long it was silent where that is how it showed. `None` where no rank is.
    pub fn lost_rank(&self) -> Option<(usize, Option<f64>)> {
        match self {
            Self::PeerLost { rank } => Some((*rank, None)),
            Self::PeerSilent { rank, seconds } => Some((*rank, Some(*seconds))),
            _ => None,
        }
    }
}

/// Meets the other ranks, and gives this one's place among them. `device` is the one that tensors are exchanged on;
/// `relay` has the wires through the driver, where there are any.
pub fn join(replica: &Replica, device: &Device, relay: &Relay) -> Result<Arc<dyn Collective>, CollectiveError> {
    match (device, &replica.meeting) {
        (Device::Cuda(_), _) => super::cuda::join(replica, device, relay),
        // Gradients of the size of a model would crawl through the driver, and their time would be measured.
        (_, Meeting::Driver(apart)) => Err(CollectiveError::Apart(apart.clone())),
        (_, Meeting::Folder(_)) => Ok(Arc::new(UnixGroup::meet(replica, relay)?)),
    }
}

//! PyTorch memory snapshots.

mod pickle;

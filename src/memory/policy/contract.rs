//! The laws of a policy, run over every kind in the registry with random programs.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::native::Native;
use super::settings::Settings;
use super::*;
use crate::units::{GIB, MIB};

/// One call of a random program.
#[derive(Clone, Copy, Debug)]
enum Call {
    Allocate {
        bytes: u64,
        stream: u64,
    },
    /// Frees the live block of this rank, modulo the number of live blocks.
    Free(usize),
    Release,
    ResetPeaks,
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..4096_u64,
        4 => 0..2 * MIB,
        4 => (0..40_u64).prop_map(|mib| mib * MIB + 512),
        2 => 0..200 * MIB,
        1 => Just(u64::MAX),
        1 => any::<u64>(),
    ]
}

fn program(sizes: impl Strategy<Value = u64>) -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        10 => (sizes, 0..3_u64).prop_map(|(bytes, stream)| Call::Allocate { bytes, stream }),
        8 => any::<usize>().prop_map(Call::Free),
        1 => Just(Call::Release),
        1 => Just(Call::ResetPeaks),
    ];
    proptest::collection::vec(call, 0..120)
}

/// A policy with what an observer knows of it.
struct Observed {
    policy: Box<dyn Policy>,
    live: BTreeMap<u64, u64>,
}

impl Observed {
    fn new(policy: Box<dyn Policy>) -> Self {
        Self { policy, live: BTreeMap::new() }
    }

    /// Makes one call and checks what must hold after any call.
    fn call(&mut self, call: Call) -> Result<(), TestCaseError> {
        match call {
            Call::Allocate { bytes, stream } => {
                let before = self.policy.state();
                match self.policy.allocate(bytes, Stream(stream)) {
                    Ok(address) => self.check_new(address, bytes)?,
                    Err(error) => {
                        prop_assert!(bytes > 0 || before.limit_bytes < 2 * MIB + before.allocated_bytes);
                        prop_assert_eq!(error.requested_bytes, bytes);
                    }
                }
            }
            Call::Free(rank) => {
                if let Some(address) = self.live.keys().nth(rank % self.live.len().max(1)).copied() {
                    self.live.remove(&address);
                    self.policy.free(Address(address));
                }
            }
            Call::Release => self.policy.release_cached(),
            Call::ResetPeaks => self.policy.reset_peaks(),
        }
        self.check_state()
    }

    fn check_new(&mut self, address: Address, bytes: u64) -> Result<(), TestCaseError> {
        let end = address.0.checked_add(bytes.max(1)).expect("a block ends within the address space");
        if let Some((start, size)) = self.live.range(..end).next_back() {
            prop_assert!(start + (*size).max(1) <= address.0, "two live blocks overlap");
        }
        self.live.insert(address.0, bytes);
        Ok(())
    }

    fn check_state(&self) -> Result<(), TestCaseError> {
        let state = self.policy.state();
        let requested: u64 = self.live.values().sum();
        prop_assert_eq!(state.requested_bytes, requested);
        prop_assert_eq!(state.allocated_blocks, self.live.len() as u64);
        prop_assert!(requested <= state.allocated_bytes);
        prop_assert!(state.allocated_bytes <= state.reserved_bytes);
        prop_assert!(state.reserved_bytes <= state.limit_bytes);
        prop_assert!(state.peak_allocated_bytes >= state.allocated_bytes);
        prop_assert!(state.peak_reserved_bytes >= state.reserved_bytes);
        prop_assert!(state.unreleasable_bytes + state.allocated_bytes <= state.reserved_bytes);
        prop_assert!(state.largest_satisfiable_bytes <= state.limit_bytes - state.allocated_bytes);
        Ok(())
    }
}

fn run(policy: Box<dyn Policy>, calls: &[Call]) -> Result<Observed, TestCaseError> {
    let mut observed = Observed::new(policy);
    for call in calls {
        observed.call(*call)?;
    }
    Ok(observed)
}

fn variants() -> Vec<Settings> {
    let base = Settings::default();
    vec![
        base,
        Settings { max_split_bytes: Some(20 * MIB), ..base },
        Settings { garbage_collection_threshold: Some(0.6), ..base },
        Settings { search_after_release: true, ..base.with_roundup_divisions(4) },
        Settings::expandable(),
        Settings { max_split_bytes: Some(20 * MIB), garbage_collection_threshold: Some(0.5), ..Settings::expandable() },
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn live_blocks_never_overlap_and_bytes_are_conserved(calls in program(sizes()), limit in 0..2 * GIB) {
        for kind in KINDS {
            run(build(kind, limit), &calls)?;
        }
        for settings in variants() {
            run(Box::new(Native::with_settings(settings, limit)), &calls)?;
        }
    }

    #[test]
    fn freeing_and_releasing_returns_everything(calls in program(sizes())) {
        for kind in KINDS {
            let mut observed = run(build(kind, GIB), &calls)?;
            for address in observed.live.keys() {
                observed.policy.free(Address(*address));
            }
            observed.policy.release_cached();
            let state = observed.policy.state();
            prop_assert_eq!((state.allocated_bytes, state.reserved_bytes, state.free_blocks), (0, 0, 0));
            prop_assert_eq!((state.segments, state.unreleasable_bytes), (0, 0));
        }
    }

    #[test]
    fn every_policy_counts_the_same_bytes_as_allocated(calls in program((1..2048_u64).prop_map(|n| n * 512))) {
        let states = KINDS.map(|kind| run(build(kind, u64::MAX), &calls).map(|done| done.policy.state()));
        for state in states {
            let state = state?;
            prop_assert_eq!(state.allocated_bytes, state.requested_bytes);
        }
    }

    #[test]
    fn figures_kept_at_every_change_equal_figures_walked(calls in program(sizes()), limit in 0..GIB) {
        for settings in variants() {
            let mut policy = Native::with_settings(settings, limit);
            let mut live = Vec::new();
            for call in &calls {
                match *call {
                    Call::Allocate { bytes, stream } => live.extend(policy.allocate(bytes, Stream(stream))),
                    Call::Free(rank) if !live.is_empty() => policy.free(live.swap_remove(rank % live.len())),
                    Call::Free(_) | Call::ResetPeaks => policy.reset_peaks(),
                    Call::Release => policy.release_cached(),
                }
                prop_assert_eq!(policy.heap.walk(&policy.settings), policy.heap.figures);
            }
        }
    }

    #[test]
    fn the_largest_satisfiable_request_fits_and_a_larger_one_does_not(calls in program(sizes()), limit in 0..GIB) {
        // No stream but one here: L is the best that any stream can have.
        let calls: Vec<Call> = calls.into_iter().map(|call| match call {
            Call::Allocate { bytes, .. } => Call::Allocate { bytes, stream: 0 },
            other => other,
        }).collect();
        for settings in variants() {
            let again = || run(Box::new(Native::with_settings(settings, limit)), &calls);
            let largest = again()?.policy.state().largest_satisfiable_bytes;
            if largest > 0 {
                prop_assert!(again()?.policy.allocate(largest, Stream(0)).is_ok(), "{} fails", largest);
            }
            // Under expandable segments it is up to one page less than what would fit.
            let slack = if settings.expandable_segments { settings.large_segment_bytes } else { 0 };
            let more = largest + slack + 1;
            prop_assert!(again()?.policy.allocate(more, Stream(0)).is_err(), "{} fits", more);
        }
    }
}

//! Golden traces (allocators.md §1.9, from pytorch/devlogs and vllm#41268) and single rules.

use super::*;

const STREAM: Stream = Stream(0);

fn unlimited() -> Native {
    Native::new(u64::MAX)
}

fn take(policy: &mut Native, count: usize, bytes: u64) -> Vec<Address> {
    (0..count).map(|_| policy.allocate(bytes, STREAM).unwrap()).collect()
}

fn give(policy: &mut Native, addresses: Vec<Address>) {
    for address in addresses {
        policy.free(address);
    }
}

fn reserved_mib(policy: &Native) -> u64 {
    policy.state().reserved_bytes / MIB
}

#[test]
fn small_segments_cannot_serve_larger_requests_later() {
    let mut policy = unlimited();
    let first = take(&mut policy, 8, 16 * MIB);
    assert_eq!(reserved_mib(&policy), 128);
    give(&mut policy, first);
    take(&mut policy, 4, 32 * MIB);
    assert_eq!(reserved_mib(&policy), 256);
}

#[test]
fn large_segments_serve_smaller_requests_later() {
    let mut policy = unlimited();
    let first = take(&mut policy, 4, 32 * MIB);
    assert_eq!(reserved_mib(&policy), 128);
    give(&mut policy, first);
    take(&mut policy, 8, 16 * MIB);
    assert_eq!(reserved_mib(&policy), 128);
}

#[test]
fn a_small_request_does_not_use_the_large_pool() {
    let mut policy = unlimited();
    let first = take(&mut policy, 1, 2 * MIB);
    give(&mut policy, first);
    take(&mut policy, 1, MIB / 2);
    assert_eq!(reserved_mib(&policy), 22);
}

/// vllm#41268: a temporary of 530 MiB is freed and a weight of 270 MiB is pinned in its segment.
fn pairs(settings: Settings, count: usize) -> PoolState {
    let mut policy = Native::with_settings(settings, u64::MAX);
    for _ in 0..count {
        let temporary = take(&mut policy, 1, 530 * MIB);
        give(&mut policy, temporary);
        take(&mut policy, 1, 270 * MIB);
    }
    policy.state()
}

#[test]
fn a_weight_pinned_in_a_freed_temporary_strands_the_rest_of_its_segment() {
    let state = pairs(Settings::default(), 40);
    assert_eq!(state.unreleasable_bytes, 40 * 260 * MIB);
    assert_eq!(state.reserved_bytes, 40 * 530 * MIB);
}

#[test]
fn max_split_size_keeps_temporaries_whole() {
    let state = pairs(Settings { max_split_bytes: Some(20 * MIB), ..Settings::default() }, 40);
    assert_eq!(state.unreleasable_bytes, 0);
    assert_eq!(state.reserved_bytes, (530 + 40 * 270) * MIB);
}

#[test]
fn ties_go_to_the_lowest_address_and_the_smallest_block_wins() {
    let mut policy = unlimited();
    let blocks = take(&mut policy, 3, 12 * MIB);
    let larger = policy.allocate(13 * MIB, STREAM).unwrap();
    policy.free(larger);
    policy.free(blocks[2]);
    policy.free(blocks[0]);
    assert_eq!(policy.allocate(12 * MIB, STREAM), Ok(blocks[0]));
    assert_eq!(policy.allocate(11 * MIB + 512, STREAM), Ok(blocks[2]));
    assert_eq!(policy.allocate(12 * MIB, STREAM), Ok(larger));
}

#[test]
fn streams_do_not_share_blocks() {
    let mut policy = unlimited();
    let first = policy.allocate(12 * MIB, Stream(1)).unwrap();
    policy.free(first);
    assert_ne!(policy.allocate(12 * MIB, Stream(2)), Ok(first));
    assert_eq!(policy.allocate(12 * MIB, Stream(1)), Ok(first));
}

#[test]
fn a_tail_of_up_to_one_mebibyte_is_not_split_off_and_counts_as_allocated() {
    let mut policy = unlimited();
    let block = policy.allocate(12 * MIB, STREAM).unwrap();
    policy.free(block);
    policy.allocate(11 * MIB, STREAM).unwrap();
    let state = policy.state();
    assert_eq!((state.allocated_bytes, state.requested_bytes), (12 * MIB, 11 * MIB));
    assert_eq!(state.free_blocks, 0);
}

#[test]
fn freed_neighbours_join() {
    let mut policy = unlimited();
    let parts = take(&mut policy, 4, 5 * MIB);
    assert_eq!(reserved_mib(&policy), 20);
    policy.free(parts[0]);
    policy.free(parts[2]);
    assert_eq!(policy.state().free_blocks, 2);
    policy.free(parts[1]);
    let state = policy.state();
    assert_eq!((state.free_blocks, state.largest_free_bytes, state.unreleasable_bytes), (1, 15 * MIB, 15 * MIB));
    policy.free(parts[3]);
    let state = policy.state();
    assert_eq!((state.largest_free_bytes, state.unreleasable_bytes), (20 * MIB, 0));
}

#[test]
fn the_cache_is_released_before_a_request_fails() {
    let mut policy = Native::new(64 * MIB);
    let first = take(&mut policy, 4, 16 * MIB);
    give(&mut policy, first);
    policy.allocate(50 * MIB, STREAM).unwrap();
    assert_eq!(reserved_mib(&policy), 50);
    assert_eq!(policy.counts(), Counts { segments_allocated: 5, segments_freed: 4, retries: 1, out_of_memory: 0 });
    let error = policy.allocate(15 * MIB, STREAM).unwrap_err();
    assert_eq!(error.requested_bytes, 15 * MIB);
    assert_eq!((error.allocated_bytes, error.reserved_bytes, error.limit_bytes), (50 * MIB, 50 * MIB, 64 * MIB));
}

#[test]
fn half_freed_segments_fail_a_request_that_the_free_bytes_would_meet() {
    // The figures of fixtures/pytorch/oom_fragmented, which PyTorch 2.11 reported under a limit of 2 GiB.
    let mut policy = Native::new(2 << 30);
    let mut freed = Vec::new();
    for _ in 0..30 {
        let whole = take(&mut policy, 1, 64 * MIB);
        give(&mut policy, whole);
        take(&mut policy, 1, 34 * MIB);
        freed.extend(take(&mut policy, 1, 30 * MIB));
    }
    give(&mut policy, freed);
    assert!(policy.allocate(600 * MIB, STREAM).is_err());
    let state = policy.state();
    assert_eq!((state.allocated_bytes, state.reserved_bytes), (1_069_547_520, 2_013_265_920));
    assert_eq!((state.unreleasable_bytes, state.largest_free_bytes), (943_718_400, 31_457_280));
    assert_eq!(state.largest_satisfiable_bytes, 128 * MIB);
    assert_eq!(policy.counts().retries, 1);
}

#[test]
fn garbage_is_collected_above_the_threshold_oldest_first() {
    let settings = Settings { garbage_collection_threshold: Some(0.5), ..Settings::default() };
    let mut policy = Native::with_settings(settings, 200 * MIB);
    let old = take(&mut policy, 2, 30 * MIB);
    give(&mut policy, old);
    for _ in 0..5 {
        let passing = take(&mut policy, 1, 50 * MIB);
        give(&mut policy, passing);
    }
    assert_eq!(reserved_mib(&policy), 110);
    // 110 of 200 MiB is above half: the next growth releases the two old blocks first.
    policy.allocate(60 * MIB, STREAM).unwrap();
    assert_eq!(reserved_mib(&policy), 110);
    assert_eq!(policy.counts().segments_freed, 2);
    assert_eq!(policy.counts().retries, 0);
}

#[test]
fn a_pending_block_is_not_allocated_and_serves_nobody() {
    let mut policy = unlimited();
    let block = policy.allocate(12 * MIB, STREAM).unwrap();
    policy.free_requested(block);
    assert_eq!((policy.state().allocated_bytes, policy.state().allocated_blocks), (0, 0));
    assert_ne!(policy.allocate(12 * MIB, STREAM), Ok(block));
    policy.free(block);
    assert_eq!(policy.state().largest_free_bytes, 12 * MIB);
    policy.free(block);
    assert_eq!(policy.state().free_blocks, 1);
}

#[test]
fn hostile_sizes_are_out_of_memory_and_nothing_worse() {
    let mut policy = unlimited();
    for bytes in [u64::MAX, u64::MAX - 511, u64::MAX / 2 + 1, u64::MAX - (1 << 40)] {
        assert!(policy.allocate(bytes, STREAM).is_err() || bytes <= u64::MAX / 2 + 1, "{bytes}");
    }
    let zero = policy.allocate(0, STREAM).unwrap();
    policy.free(zero);
    policy.free(Address(1));
    policy.free(Address(u64::MAX));
    assert!(Native::new(0).allocate(1, STREAM).is_err());
    assert_eq!(Native::new(0).state().largest_satisfiable_bytes, 0);
}

#[test]
fn expected_segments_are_placed_where_a_trace_has_them() {
    let mut policy = unlimited();
    let segment = PlacedSegment { address: Address(0x7000), bytes: 20 * MIB, stream: STREAM };
    policy.expect_segment(segment);
    assert_eq!(policy.allocate(3 * MIB, STREAM), Ok(Address(0x7000)));
    assert!(!policy.release_segment(segment));
    policy.free(Address(0x7000));
    assert!(policy.release_segment(segment));
    assert_eq!(reserved_mib(&policy), 0);
}

#[test]
fn the_drivers_pool_keeps_or_returns_its_cache_at_a_synchronisation() {
    for (threshold, left_mib) in [(ReleaseThreshold::Max, 128), (ReleaseThreshold::Zero, 64)] {
        let mut policy = Native::with_settings(Settings::driver_pool(threshold), u64::MAX);
        // 40 MiB take two pages of 32; small requests share them.
        let (small, large) = (take(&mut policy, 4, 512), take(&mut policy, 2, 40 * MIB));
        assert_eq!(reserved_mib(&policy), 96);
        let more = take(&mut policy, 1, 30 * MIB);
        assert_eq!(reserved_mib(&policy), 128);
        give(&mut policy, more);
        give(&mut policy, vec![large[1]]);
        policy.synchronised();
        assert_eq!(reserved_mib(&policy), left_mib, "{threshold:?}");
        give(&mut policy, small);
        give(&mut policy, vec![large[0]]);
    }
}

#[test]
fn a_state_repeats_whatever_the_ages_unless_a_collection_compared_them_since() {
    let settings = Settings { garbage_collection_threshold: Some(0.5), ..Settings::default() };
    let mut native = Native::with_settings(settings, 100 * MIB);
    let stream = Stream(0);
    // A segment that nobody asks for again grows older.
    let held = [30, 12, 14].map(|mib| native.allocate(mib * MIB, stream).unwrap());
    held[..2].iter().for_each(|address| native.free(*address));
    let small = |native: &mut Native| {
        let address = native.allocate(12 * MIB, stream).unwrap();
        native.free(address);
    };
    small(&mut native);
    let before = native.fingerprint().unwrap();
    (0..3).for_each(|_| small(&mut native));
    let after = native.fingerprint().unwrap();
    assert!(after.blocks == before.blocks && after.ages != before.ages, "{before:?} {after:?}");
    assert!(after.repeats(before));
    // Over half of the limit is held: what is passed over longest goes.
    native.allocate(40 * MIB, stream).unwrap();
    let collected = native.fingerprint().unwrap();
    assert_eq!(collected.collections, before.collections + 1);
    let same_blocks = super::super::Fingerprint { collections: collected.collections, ..after };
    assert!(!same_blocks.repeats(before), "the ages decided");
    assert!(super::super::Fingerprint { ages: before.ages, ..same_blocks }.repeats(before));
}

//! Every constant and option of PyTorch's caching allocator, and its size arithmetic.
//!
//! The names and defaults are those of `c10/cuda/CUDACachingAllocator.cpp` and `c10/core/AllocatorConfig.h`; the
//! PyTorch name stands behind each field. All arithmetic is checked: a trace may ask for `u64::MAX` bytes.

use serde::{Deserialize, Serialize};

use crate::units::MIB;

/// Size classes that `roundup_power2_divisions` can be set for: 1 MiB, 2 MiB, … 32 GiB.
pub const ROUNDUP_CLASSES: usize = 16;

/// The step in which the driver's pool takes memory from the device.
const DRIVER_PAGE_BYTES: u64 = 32 * MIB;

/// What a caching allocator does where it has a choice.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The rounding quantum and the smallest block (`kMinBlockSize`).
    pub min_block_bytes: u64,
    /// The largest rounded request that the small pool serves (`kSmallSize`).
    pub small_request_bytes: u64,
    /// A segment of the small pool, and its page under expandable segments (`kSmallBuffer`).
    pub small_segment_bytes: u64,
    /// Rounded requests from here on get a segment of their own size (`kMinLargeAlloc`).
    pub min_large_bytes: u64,
    /// The segment of the requests between, and the large pool's page under expandable segments (`kLargeBuffer`,
    /// `large_segment_size_mb`).
    pub large_segment_bytes: u64,
    /// What segments of their own size are rounded up to (`kRoundLarge`).
    pub round_large_bytes: u64,
    /// Blocks of at least this size are never split (`max_split_size_mb`).
    pub max_split_bytes: Option<u64>,
    /// How much larger than the request a block may be that must not be split (`max_non_split_rounding_mb`).
    pub max_non_split_rounding_bytes: u64,
    /// The share of the limit from which unused segments are collected (`garbage_collection_threshold`).
    pub garbage_collection_threshold: Option<f64>,
    /// Steps between two powers of two that a size of each class is rounded to; 0 and 1 mean none
    /// (`roundup_power2_divisions`).
    pub roundup_divisions: [u32; ROUNDUP_CLASSES],
    /// The share of the device's memory that one process may hold (`per_process_memory_fraction`).
    pub per_process_memory_fraction: Option<f64>,
    /// Segments that grow page by page (`expandable_segments`).
    pub expandable_segments: bool,
    /// Whether the pool is searched a second time after the cache is released. PyTorch does not (pytorch#189504), so
    /// a block whose cross-stream use has just ended is missed and the same request succeeds when it is repeated.
    pub search_after_release: bool,
    /// When the cache goes back to the device by itself.
    pub release_threshold: ReleaseThreshold,
}

/// The driver pool's `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`: how much unused memory survives a synchronisation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReleaseThreshold {
    /// All of it, as PyTorch's allocator keeps it too.
    #[default]
    Max,
    /// None: the driver's default. What is free goes back whenever the host waits for the device.
    Zero,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            min_block_bytes: 512,
            small_request_bytes: MIB,
            small_segment_bytes: 2 * MIB,
            min_large_bytes: 10 * MIB,
            large_segment_bytes: 20 * MIB,
            round_large_bytes: 2 * MIB,
            max_split_bytes: None,
            max_non_split_rounding_bytes: 20 * MIB,
            garbage_collection_threshold: None,
            roundup_divisions: [0; ROUNDUP_CLASSES],
            per_process_memory_fraction: None,
            expandable_segments: false,
            search_after_release: false,
            release_threshold: ReleaseThreshold::Max,
        }
    }
}

/// Which of a stream's two pools serves a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// Requests of at most [`Settings::small_request_bytes`].
    Small,
    /// All others.
    Large,
}

/// A request as the allocator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The size after rounding.
    pub(super) rounded_bytes: u64,
    /// The pool that serves it.
    pub(super) pool: PoolKind,
    /// The segment that would be taken from the device for it.
    pub(super) segment_bytes: u64,
}

impl Settings {
    /// PyTorch's defaults with `expandable_segments:True`.
    pub fn expandable() -> Self {
        Self { expandable_segments: true, ..Self::default() }
    }

    /// The CUDA driver's stream-ordered pool (`cuMemAllocAsync`), as far as it can be seen from outside.
    ///
    /// Its rules are not published; only its counters are observable. On an H200 (driver 580.159) its reserved bytes
    /// grow in steps of 32 MiB whatever the request, so the model is one pool a stream that maps pages of that size and
    /// serves requests of all sizes by best fit. It is **approximate**. GPT-2 medium under candle (T=512, bf16),
    /// recorded at B=2 and replayed, against the pool's own `RESERVED_MEM_HIGH`:
    ///
    /// | B | reserved, GiB | model, GiB | error |
    /// |---|---|---|---|
    /// | 2 | 13.063 | 13.031 | −0.2 % |
    /// | 3 | 17.500 | 17.406 | −0.5 % |
    /// | 4 | 21.813 | 21.594 | −1.0 % |
    /// | 8 | 39.563 | 39.938 | +0.9 % |
    ///
    /// (`tests/gpu/search.sh` records such runs.) The pool did a little worse than best fit at small batches and better
    /// at a large one, where the driver seems to move free pages under a request that needs them together.
    pub fn driver_pool(release_threshold: ReleaseThreshold) -> Self {
        Self {
            small_request_bytes: 0,
            small_segment_bytes: DRIVER_PAGE_BYTES,
            large_segment_bytes: DRIVER_PAGE_BYTES,
            expandable_segments: true,
            release_threshold,
            ..Self::default()
        }
    }

    /// The same number of divisions for every size class.
    pub fn with_roundup_divisions(self, divisions: u32) -> Self {
        Self { roundup_divisions: [divisions; ROUNDUP_CLASSES], ..self }
    }

    /// The request of `bytes`; `None` where rounding would overflow, so that nothing can serve it.
    pub(super) fn request(&self, bytes: u64) -> Option<Request> {
        let rounded_bytes = self.round(bytes)?;
        let pool = self.pool(rounded_bytes);
        Some(Request { rounded_bytes, pool, segment_bytes: self.segment(rounded_bytes)? })
    }

    /// The size of the block that `bytes` get.
    pub fn round(&self, bytes: u64) -> Option<u64> {
        if bytes < self.min_block_bytes {
            return Some(self.min_block_bytes);
        }
        match self.division_step(bytes) {
            Some(step) => round_up(bytes, step),
            None => round_up(bytes, self.min_block_bytes),
        }
    }

    /// The largest request that a block of `bytes` can serve: the greatest size that rounds to at most `bytes`.
    pub(super) fn round_down(&self, bytes: u64) -> u64 {
        if bytes < self.min_block_bytes {
            return 0;
        }
        let step = self.division_step(bytes).unwrap_or(self.min_block_bytes).max(1);
        bytes - bytes % step
    }

    /// The distance between two allowed sizes around `bytes`, where `roundup_power2_divisions` applies.
    fn division_step(&self, bytes: u64) -> Option<u64> {
        let log = bytes.checked_ilog2()?;
        let class = (log.saturating_sub(MIB.ilog2()) as usize).min(ROUNDUP_CLASSES - 1);
        let divisions = u64::from(*self.roundup_divisions.get(class)?);
        if divisions <= 1 || bytes <= self.min_block_bytes.saturating_mul(divisions) {
            return None;
        }
        // Where the step would be zero the next power of two is meant.
        let step = (1 << log) >> divisions.ilog2();
        Some(if step == 0 { 1 << log } else { step })
    }

    /// The pool of a rounded size.
    pub(super) fn pool(&self, rounded_bytes: u64) -> PoolKind {
        if rounded_bytes <= self.small_request_bytes { PoolKind::Small } else { PoolKind::Large }
    }

    /// The segment taken from the device for a rounded size. This is also what PyTorch prints as "tried to allocate".
    pub fn segment(&self, rounded_bytes: u64) -> Option<u64> {
        if rounded_bytes <= self.small_request_bytes {
            Some(self.small_segment_bytes)
        } else if rounded_bytes < self.min_large_bytes {
            Some(self.large_segment_bytes)
        } else {
            round_up(rounded_bytes, self.round_large_bytes)
        }
    }

    /// The largest request that a new segment can serve when the device has `budget_bytes` left.
    pub fn largest_in_new_segment(&self, budget_bytes: u64) -> u64 {
        let own = budget_bytes - budget_bytes % self.round_large_bytes.max(1);
        if own >= self.min_large_bytes && own > self.small_request_bytes {
            return self.round_down(own);
        }
        if budget_bytes >= self.large_segment_bytes && self.min_large_bytes > self.small_request_bytes {
            return self.round_down(self.min_large_bytes.saturating_sub(1));
        }
        if budget_bytes >= self.small_segment_bytes { self.round_down(self.small_request_bytes) } else { 0 }
    }

    /// Whether the tail of a block is split off when it serves a request.
    pub(super) fn splits(&self, pool: PoolKind, block_bytes: u64, rounded_bytes: u64) -> bool {
        let rest = block_bytes.saturating_sub(rounded_bytes);
        match pool {
            PoolKind::Small => rest >= self.min_block_bytes,
            PoolKind::Large if self.expandable_segments => rest >= self.min_block_bytes,
            PoolKind::Large => {
                self.max_split_bytes.is_none_or(|max| rounded_bytes < max) && rest > self.small_request_bytes
            }
        }
    }

    /// Whether a block that is large enough may serve a request. Large blocks are kept for large requests.
    pub(super) fn may_serve(&self, block_bytes: u64, rounded_bytes: u64) -> bool {
        let Some(max_split) = self.max_split_bytes else { return true };
        if rounded_bytes < max_split {
            return block_bytes < max_split;
        }
        block_bytes < rounded_bytes.saturating_add(self.max_non_split_rounding_bytes)
    }

    /// The page of a pool under expandable segments.
    pub(super) fn page_bytes(&self, pool: PoolKind) -> u64 {
        match pool {
            PoolKind::Small => self.small_segment_bytes.max(1),
            PoolKind::Large => self.large_segment_bytes.max(1),
        }
    }
}

/// Up to the next multiple; `None` on overflow.
pub(super) fn round_up(bytes: u64, quantum: u64) -> Option<u64> {
    if quantum.is_power_of_two() {
        // The usual case, and much faster than a division.
        return Some(bytes.checked_add(quantum - 1)? & !(quantum - 1));
    }
    bytes.checked_next_multiple_of(quantum.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::GIB;

    #[test]
    fn segments_change_at_the_borders_that_pytorch_has() {
        let settings = Settings::default();
        let segment = |bytes| settings.request(bytes).map(|request| request.segment_bytes / MIB);
        assert_eq!(segment(MIB), Some(2));
        assert_eq!(segment(MIB + 1), Some(20));
        // Rounding comes first, so 10 MiB − 1 already has its own segment.
        assert_eq!(segment(10 * MIB - 1), Some(10));
        assert_eq!(segment(10 * MIB - 512), Some(20));
        assert_eq!(segment(10 * MIB + 1), Some(12));
        assert_eq!(segment(0), Some(2));
        assert_eq!(segment(u64::MAX), None);
    }

    #[test]
    fn roundup_divides_the_space_between_powers_of_two() {
        let settings = Settings::default().with_roundup_divisions(4);
        assert_eq!(settings.round(1200), Some(1536));
        assert_eq!(settings.round(5 * MIB + 1), Some(6 * MIB));
        assert_eq!(settings.round(8 * MIB), Some(8 * MIB));
        let finest = Settings { min_block_bytes: 128, ..settings };
        assert_eq!(finest.round(1200), Some(1280));
        let by_class = |class: usize| {
            let mut settings = Settings::default();
            settings.roundup_divisions[class] = 2;
            settings.round(2 * GIB + 1)
        };
        assert_eq!(by_class(11), Some(3 * GIB));
        assert_eq!(by_class(10), Some(2 * GIB + 512));
    }

    #[test]
    fn the_largest_request_of_a_block_rounds_to_no_more_than_the_block() {
        for settings in [Settings::default(), Settings::default().with_roundup_divisions(8)] {
            for bytes in [512, 1000, 4096, 5000, MIB, 3 * MIB + 512, 21 * MIB + 1536, GIB + 512] {
                let largest = settings.round_down(bytes);
                assert!(settings.round(largest).unwrap() <= bytes, "{bytes}");
                assert!(settings.round(largest + 1).unwrap() > bytes, "{bytes}");
            }
        }
    }

    #[test]
    fn hostile_constants_do_not_divide_by_zero() {
        let settings = Settings { min_block_bytes: 0, round_large_bytes: 0, ..Settings::default() };
        assert_eq!(settings.round(700), Some(700));
        assert_eq!(settings.segment(20 * MIB + 1), Some(20 * MIB + 1));
        assert_eq!(settings.round_down(700), 700);
    }
}

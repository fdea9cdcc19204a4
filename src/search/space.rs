//! The search space: micro-batch sizes, the accumulation that meets the target, and the loader's axes.

use crate::config::Plan;
use crate::config::plan::{BatchSizePlan, PinMemory, TargetPlan};
use crate::config::resolve::USUAL_CONFS;
use crate::memory::Trim;
use crate::train::GradientCheckpointing;
use crate::trial::Point;
use crate::trial::spec::SHAPE_PROBE_ACCUMULATION;

use super::knowledge::Kind;
use super::shape_probes::{self, ProbeShape};

/// A micro-batch size with the accumulation steps that bring it to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    /// Samples per forward and backward pass on one device.
    pub batch_size: usize,
    /// Micro-batches per optimizer step.
    pub accumulation_steps: usize,
}

/// A setting of the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoaderSetting {
    /// Loader threads.
    pub workers: usize,
    /// Batches a thread keeps ready; 0 where there is no thread.
    pub prefetch_depth: usize,
    /// Batches staged on the device.
    pub device_prefetch: usize,
    /// Whether host batches are page-locked.
    pub pin_memory: bool,
}

/// Which settings of PyTorch's allocator a search may try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfChoice<'a> {
    /// Any.
    Any,
    /// These, and none where there are none.
    Listed(&'a [String]),
}

/// The search space of a plan.
#[derive(Clone, Debug)]
pub struct Space {
    target: TargetPlan,
    batch: BatchSizePlan,
    pairs: Vec<Pair>,
    workers: Vec<usize>,
    prefetch: Vec<usize>,
    device_prefetch: Vec<usize>,
    pins: Vec<bool>,
    modes: Vec<GradientCheckpointing>,
    trim: Trim,
    alloc_confs: Vec<String>,
    may_tune_allocator: bool,
    cpus: Option<usize>,
    has_loader: bool,
    probe_shapes: Vec<ProbeShape>,
}

impl Space {
    /// The space of a plan.
    pub fn new(plan: &Plan) -> Self {
        let search = &plan.search;
        Self {
            target: plan.target,
            batch: search.batch_size,
            pairs: pairs(&plan.target, search.batch_size.max, search.accumulation_steps.as_deref()),
            workers: search.loader_workers.clone(),
            prefetch: search.prefetch_depth.clone(),
            device_prefetch: search.device_prefetch.clone(),
            pins: match plan.pin_memory {
                PinMemory::Always => vec![true],
                PinMemory::Never => vec![false],
                PinMemory::Auto => vec![true, false],
            },
            modes: match plan.train.gradient_checkpointing {
                GradientCheckpointing::Auto => vec![GradientCheckpointing::None, GradientCheckpointing::Blocks],
                only => vec![only],
            },
            trim: plan.memory.trim,
            alloc_confs: search.alloc_conf.clone(),
            may_tune_allocator: search.alloc_conf == USUAL_CONFS,
            cpus: None,
            has_loader: plan.command().is_none(),
            // Where there cannot be enough, whoever plays a run says so.
            probe_shapes: shape_probes::shapes(&plan.data).unwrap_or_default(),
        }
    }

    /// The space on so many processors.
    #[must_use]
    pub fn on(self, cpus: usize) -> Self {
        Self { cpus: Some(cpus), ..self }
    }

    /// Every pair that meets the target, the largest micro-batch first.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// The rungs of the ladder, ascending. They look for the largest safe size and need not meet the target.
    pub fn rungs(&self) -> Vec<usize> {
        let step = self.batch.step.max(1);
        let mut rungs: Vec<usize> = (self.batch.start..=self.batch.max).step_by(step).collect();
        // The highest size is worth a look even where the steps jump over it.
        if rungs.last().is_some_and(|last| *last < self.batch.max) {
            rungs.push(self.batch.max);
        }
        rungs
    }

    /// A size with the accumulation that meets the target, or with none where no accumulation does.
    pub fn pair_of(&self, batch_size: usize) -> Pair {
        let unmatched = Pair { batch_size, accumulation_steps: 1 };
        self.pairs.iter().copied().find(|pair| pair.batch_size == batch_size).unwrap_or(unmatched)
    }

    /// Whether a point meets the target within its tolerance.
    pub fn meets_target(&self, point: &Point) -> bool {
        self.pairs.contains(&Pair { batch_size: point.batch_size, accumulation_steps: point.accumulation_steps })
    }

    /// Samples per optimizer step over all replicas.
    pub fn effective_batch_size(&self, point: &Point) -> usize {
        point.batch_size.saturating_mul(point.accumulation_steps).saturating_mul(self.target.replicas)
    }

    /// The data path that batch sizes are measured with: the fewest workers with the smallest prefetch, everything else
    /// as preferred.
    pub fn first_loader(&self) -> LoaderSetting {
        let workers = self.workers.iter().copied().min().unwrap_or(0);
        let depths = self.prefetch_depths();
        LoaderSetting {
            workers,
            prefetch_depth: if workers == 0 { 0 } else { depths.first().copied().unwrap_or(0) },
            device_prefetch: self.device_prefetch.first().copied().unwrap_or(0),
            pin_memory: self.pins.first().copied().unwrap_or(false),
        }
    }

    /// Ways to keep activations, the fastest first.
    pub fn modes(&self) -> &[GradientCheckpointing] {
        &self.modes
    }

    /// Numbers of batches to stage on the device, in the order in which they are preferred.
    pub fn device_prefetches(&self) -> &[usize] {
        &self.device_prefetch
    }

    /// Whether to page-lock host batches, in the order in which it is preferred.
    pub fn pins(&self) -> &[bool] {
        &self.pins
    }

    /// The point that a probe of a kind runs. It stages as many batches on the device as any point may, so that what is
    /// forecast from it holds for all of them.
    pub fn probe_point(&self, kind: Kind, batch_size: usize) -> Point {
        let samples = (batch_size * self.target.replicas).max(1);
        let accumulation_steps = if kind.accumulation == 1 { 1 } else { (self.target.batch_size / samples).max(2) };
        let device_prefetch = self.device_prefetch.iter().copied().max().unwrap_or(0);
        let loader = LoaderSetting { device_prefetch, ..self.first_loader() };
        let point = self.point(Pair { batch_size, accumulation_steps }, loader);
        Point { gradient_checkpointing: kind.gradient_checkpointing, ..point }
    }

    /// The shapes at which probes show how memory follows the size of samples; none where all have the same.
    pub fn probe_shapes(&self) -> &[ProbeShape] {
        &self.probe_shapes
    }

    /// Whether the batches of a run have shapes of their own.
    pub fn has_varying_shapes(&self) -> bool {
        !self.probe_shapes.is_empty()
    }

    /// The point that a probe at a shape of its own runs for a point: the same in all that memory depends on, with more
    /// accumulation than shows anything new left out.
    pub fn shape_probe_point(&self, point: &Point, batch_size: usize) -> Point {
        let LoaderSetting { workers, prefetch_depth, .. } = self.first_loader();
        Point {
            batch_size,
            accumulation_steps: point.accumulation_steps.clamp(1, SHAPE_PROBE_ACCUMULATION),
            loader_workers: workers,
            prefetch_depth,
            alloc_conf: None,
            ..point.clone()
        }
    }

    /// Settings of PyTorch's allocator to try.
    pub fn alloc_confs(&self) -> &[String] {
        &self.alloc_confs
    }

    /// Which settings of PyTorch's allocator a search may try.
    pub fn conf_choice(&self) -> ConfChoice<'_> {
        if self.may_tune_allocator { ConfChoice::Any } else { ConfChoice::Listed(&self.alloc_confs) }
    }

    /// Loader threads to try, ascending.
    pub fn workers(&self) -> Vec<usize> {
        let mut workers = self.workers.clone();
        workers.sort_unstable();
        workers.dedup();
        workers
    }

    /// The processors that this process may run on, where they are known.
    pub fn cpus(&self) -> Option<usize> {
        self.cpus
    }

    /// Whether the loader is ours, so that it can be run alone. A program of the user's own has its own.
    pub fn has_loader(&self) -> bool {
        self.has_loader
    }

    /// Prefetch depths to try, ascending. Loading on demand leaves workers nothing to do between two steps, so 0 comes last,
    /// and only where it is listed.
    pub fn prefetch_depths(&self) -> Vec<usize> {
        let mut depths = self.prefetch.clone();
        depths.sort_unstable_by_key(|depth| (*depth == 0, *depth));
        depths.dedup();
        depths
    }

    /// Every setting of the data path. Without a worker there is nothing to prefetch, so depths do not multiply it.
    pub fn loaders(&self) -> Vec<LoaderSetting> {
        let mut settings = Vec::new();
        for pin_memory in self.pins.iter().copied() {
            for device_prefetch in self.device_prefetch.iter().copied() {
                for workers in self.workers() {
                    let depths: &[usize] = if workers == 0 { &[0] } else { &self.prefetch };
                    settings.extend(depths.iter().map(|depth| LoaderSetting {
                        workers,
                        prefetch_depth: *depth,
                        device_prefetch,
                        pin_memory,
                    }));
                }
            }
        }
        settings
    }

    /// The point of a pair under a setting of the data path, in the first of the [`modes`](Self::modes).
    pub fn point(&self, pair: Pair, loader: LoaderSetting) -> Point {
        Point {
            batch_size: pair.batch_size,
            accumulation_steps: pair.accumulation_steps,
            loader_workers: loader.workers,
            prefetch_depth: loader.prefetch_depth,
            device_prefetch: loader.device_prefetch,
            pin_memory: loader.pin_memory,
            gradient_checkpointing: self.modes.first().copied().unwrap_or(GradientCheckpointing::None),
            trim: self.trim,
            alloc_conf: None,
        }
    }
}

/// The pairs that meet the target within its tolerance, the largest micro-batch first.
///
/// Of the accumulation steps that would do for a size, the ones nearest to the target are taken.
fn pairs(target: &TargetPlan, max: usize, allowed: Option<&[usize]>) -> Vec<Pair> {
    let replicas = target.replicas.max(1);
    let missed = |pair: &Pair| (pair.batch_size * pair.accumulation_steps * replicas).abs_diff(target.batch_size);
    let slack = target.tolerance.of(target.batch_size as u64) as usize;
    (1..=max)
        .rev()
        .filter_map(|batch_size| {
            let samples = batch_size * replicas;
            let below = target.batch_size / samples;
            let near = [below, below + 1];
            let candidates: &[usize] = allowed.unwrap_or(&near);
            candidates
                .iter()
                .filter(|steps| **steps > 0)
                .map(|steps| Pair { batch_size, accumulation_steps: *steps })
                .filter(|pair| missed(pair) <= slack)
                .min_by_key(missed)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Fraction;

    fn target(batch_size: usize, tolerance: f64) -> TargetPlan {
        TargetPlan { batch_size, replicas: 1, tolerance: Fraction(tolerance) }
    }

    fn sizes(pairs: &[Pair]) -> Vec<(usize, usize)> {
        pairs.iter().map(|pair| (pair.batch_size, pair.accumulation_steps)).collect()
    }

    #[test]
    fn pairs_meet_the_target_exactly_without_tolerance() {
        let found = pairs(&target(12, 0.0), 12, None);
        assert_eq!(sizes(&found), [(12, 1), (6, 2), (4, 3), (3, 4), (2, 6), (1, 12)]);
    }

    #[test]
    fn tolerance_admits_near_pairs_and_takes_the_nearest() {
        let found = pairs(&target(10, 0.1), 10, None);
        assert_eq!(sizes(&found), [(10, 1), (9, 1), (5, 2), (3, 3), (2, 5), (1, 10)]);
    }

    #[test]
    fn listed_accumulation_steps_are_the_only_ones() {
        assert_eq!(sizes(&pairs(&target(8, 0.0), 8, Some(&[2, 4]))), [(4, 2), (2, 4)]);
    }

    #[test]
    fn replicas_share_the_target() {
        let target = TargetPlan { batch_size: 16, replicas: 4, tolerance: Fraction(0.0) };
        assert_eq!(sizes(&pairs(&target, 4, None)), [(4, 1), (2, 2), (1, 4)]);
    }
}

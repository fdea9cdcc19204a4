//! The staged strategy: each stage settles one question with as few trials as it can.
//!
//! 1. **Smallest**: the smallest micro-batch shows that the workload runs at all. A failure that is not about
//!    memory ends the search: no batch size cures a typo.
//! 2. **Ladder**: from half of the target upward, rung by rung, until a rule breaks; that rung is rolled back.
//! 3. **Bisection**: where even the start breaks, between the smallest and the start, over the sizes that can meet
//!    the target.
//! 4. **Accumulation**: the largest pairs of micro-batch and accumulation under the largest safe size, measured as
//!    they would run.
//! 5. **Loader**: workers upward until the step no longer waits; on a breach the prefetch depth goes first.
//! 6. **Soak**: the best point is proved by a long run; on a breach the next best is.
//!
//! The strategy keeps no state between calls. It derives where it stands from the history each time, which makes a
//! resumed study and an uninterrupted one the same.

use super::recommend::{best_of, compute_rate, ranked};
use super::space::{LoaderSetting, Pair};
use super::{Ask, Conclusion, History, JudgedTrial, Skip, Space, Strategy};
use crate::trial::{Outcome, Point, Purpose};

/// Pairs that the accumulation stage measures below the largest safe size. More would cost trials and win nothing:
/// throughput hardly ever rises as the micro-batch shrinks.
const ACCUMULATION_CANDIDATES: usize = 3;

/// Data wait up to this share of the time does not count as starving.
pub const DATA_WAIT_ALLOWED: f64 = 0.02;

/// The staged strategy.
#[derive(Debug)]
pub struct Staged {
    space: Space,
    skipped: Vec<Skip>,
    reported: Vec<Point>,
}

impl Staged {
    /// Searches `space`.
    pub fn new(space: Space) -> Self {
        Self { space, skipped: Vec::new(), reported: Vec::new() }
    }

    fn base_point(&self, pair: Pair) -> Point {
        self.space.point(pair, self.space.first_loader())
    }

    fn skip(&mut self, point: Point, reason: String) {
        if !self.reported.contains(&point) {
            self.reported.push(point.clone());
            self.skipped.push(Skip { point, reason });
        }
    }

    /// Stages 2 and 3: the largest safe size, or the next trial that finds it.
    fn largest_safe(&mut self, history: &History, smallest: Pair) -> Result<Option<usize>, Ask> {
        let mut largest = history
            .measured(&self.base_point(smallest))
            .is_some_and(JudgedTrial::is_safe)
            .then_some(smallest.batch_size);
        let mut broken: Option<(usize, String)> = None;
        let rungs = self.space.rungs();
        let start = rungs.first().copied();
        for rung in rungs {
            let point = self.base_point(self.space.pair_of(rung));
            if let Some((size, reason)) = &broken {
                let reason = format!("batch size {size} already broke a rule: {reason}");
                self.skip(point, reason);
                continue;
            }
            match history.measured(&point) {
                None => return Err(Ask::Run { point, purpose: Purpose::Ladder }),
                Some(trial) if trial.is_safe() => largest = largest.max(Some(rung)),
                Some(trial) => broken = Some((rung, breach_reason(trial))),
            }
        }
        match broken {
            Some((size, _)) if Some(size) == start => self.bisect(history, largest, size),
            _ => Ok(largest),
        }
    }

    /// Stage 3: bisection over the sizes that can meet the target and lie between a safe and a broken one.
    fn bisect(&self, history: &History, safe: Option<usize>, broken: usize) -> Result<Option<usize>, Ask> {
        let mut sizes: Vec<usize> = self.space.pairs().iter().map(|pair| pair.batch_size).collect();
        sizes.retain(|size| *size < broken && safe.is_none_or(|safe| *size > safe));
        sizes.sort_unstable();
        let (mut low, mut high, mut largest) = (0, sizes.len(), safe);
        while low < high {
            let middle = usize::midpoint(low, high);
            let point = self.base_point(self.space.pair_of(sizes[middle]));
            match history.measured(&point) {
                None => return Err(Ask::Run { point, purpose: Purpose::Bisection }),
                Some(trial) if trial.is_safe() => {
                    largest = Some(sizes[middle]);
                    low = middle + 1;
                }
                Some(_) => high = middle,
            }
        }
        Ok(largest)
    }

    /// Stage 4: the best pair that meets the target, or the next trial that tells.
    fn best_pair(&self, history: &History, largest: usize) -> Result<Option<Pair>, Ask> {
        let mut measured: Vec<(Pair, &JudgedTrial)> = Vec::new();
        for pair in self.space.pairs().iter().filter(|pair| pair.batch_size <= largest) {
            let point = self.base_point(*pair);
            match history.measured(&point) {
                Some(trial) if trial.is_safe() => measured.push((*pair, trial)),
                None if worth_measuring(&measured) => return Err(Ask::Run { point, purpose: Purpose::Accumulation }),
                Some(_) | None => {}
            }
        }
        Ok(best_of(&measured, compute_rate).copied())
    }

    /// Stage 5: the data path of the best pair, or the next trial that tells.
    fn best_loader(&self, history: &History, pair: Pair) -> Result<LoaderSetting, Ask> {
        let first = self.space.first_loader();
        let mut tried: Vec<(LoaderSetting, &JudgedTrial)> = Vec::new();
        for workers in self.space.workers() {
            let depths: &[usize] = if workers == 0 { &[0] } else { self.space.prefetch_depths() };
            for depth in depths {
                let setting = LoaderSetting { workers, prefetch_depth: *depth, ..first };
                let point = self.space.point(pair, setting);
                let Some(trial) = history.measured(&point) else {
                    return Err(Ask::Run { point, purpose: Purpose::Loader });
                };
                if !trial.is_safe() {
                    // Prefetched batches are the first suspects: try a lower depth before giving the workers up.
                    continue;
                }
                tried.push((setting, trial));
                if data_wait(trial) <= DATA_WAIT_ALLOWED {
                    return Ok(setting);
                }
                break;
            }
        }
        Ok(best_of(&tried, JudgedTrial::samples_per_second).copied().unwrap_or(first))
    }

    /// Stage 6: the first candidate whose soak passes, or the next soak.
    fn soak(&self, history: &History, best: &Point) -> Ask {
        let others = ranked(history, &self.space).into_iter().map(|trial| trial.record.spec.point.clone());
        let candidates = std::iter::once(best.clone()).chain(others.filter(|point| point != best));
        for point in candidates {
            match history.soaked(&point) {
                None => return Ask::Run { point, purpose: Purpose::Soak },
                Some(trial) if trial.is_safe() => return Ask::Finished(Conclusion::Safe(point)),
                Some(_) => {}
            }
        }
        Ask::Finished(Conclusion::NoSafePoint)
    }

    fn decide(&mut self, history: &History) -> Result<Ask, Ask> {
        let Some(smallest) = self.space.pairs().last().copied() else {
            return Ok(Ask::Finished(Conclusion::NoSafePoint));
        };
        let first = self.base_point(smallest);
        match history.measured(&first) {
            None => return Ok(Ask::Run { point: first, purpose: Purpose::Smallest }),
            Some(trial) => {
                if let Some(end) = end_of_smallest(trial) {
                    return Ok(Ask::Finished(end));
                }
            }
        }
        let Some(largest) = self.largest_safe(history, smallest)? else {
            return Ok(Ask::Finished(Conclusion::NoSafePoint));
        };
        let Some(pair) = self.best_pair(history, largest)? else {
            return Ok(Ask::Finished(Conclusion::NoSafePoint));
        };
        let loader = self.best_loader(history, pair)?;
        Ok(self.soak(history, &self.space.point(pair, loader)))
    }
}

impl Strategy for Staged {
    fn ask(&mut self, history: &History) -> Ask {
        // A stage that needs a trial leaves with it; one that is settled hands its answer to the next.
        self.decide(history).unwrap_or_else(|needed| needed)
    }

    fn skipped(&mut self) -> Vec<Skip> {
        std::mem::take(&mut self.skipped)
    }
}

/// A smaller pair is worth a trial while there are few safe ones and shrinking the last one did not make it slower.
fn worth_measuring(larger: &[(Pair, &JudgedTrial)]) -> bool {
    match larger {
        [] | [_] => true,
        [.., (_, last), (_, smaller)] => {
            larger.len() < ACCUMULATION_CANDIDATES && compute_rate(smaller) > compute_rate(last)
        }
    }
}

/// How the search ends if the smallest trial failed in a way that ends it.
pub(super) fn end_of_smallest(trial: &JudgedTrial) -> Option<Conclusion> {
    match &trial.record.outcome {
        Outcome::Completed | Outcome::Cancelled => None,
        outcome if outcome.is_memory() => Some(Conclusion::NoSafePoint),
        _ => Some(Conclusion::WorkloadFails),
    }
}

fn data_wait(trial: &JudgedTrial) -> f64 {
    trial.record.measurement.as_ref().map_or(0.0, |measurement| measurement.data_wait_fraction)
}

/// Why a trial counts as broken, in one sentence.
pub fn breach_reason(trial: &JudgedTrial) -> String {
    trial.verdict.breach().map_or_else(|| trial.record.outcome.to_string(), |check| check.reason.clone())
}

#[cfg(test)]
mod tests {
    use super::super::scripted::{Script, plan, play};
    use super::*;
    use crate::trial::TrialSpec;
    use Purpose::{Accumulation, Bisection, Ladder, Loader, Smallest, Soak};

    fn staged(plan: &crate::config::Plan) -> Staged {
        Staged::new(Space::new(plan))
    }

    fn healthy(spec: &TrialSpec) -> Script {
        Script::healthy(&spec.point)
    }

    #[test]
    fn a_machine_with_room_gets_the_whole_target_in_one_micro_batch() {
        let plan = plan(64);
        let played = play(&mut staged(&plan), &plan, healthy);
        assert_eq!(
            played.sizes(),
            [
                (Smallest, 1, 64),
                (Ladder, 32, 2),
                (Ladder, 40, 1),
                (Ladder, 48, 1),
                (Ladder, 56, 1),
                (Ladder, 64, 1),
                (Soak, 64, 1),
            ]
        );
        assert!(matches!(played.conclusion, Conclusion::Safe(point) if point.batch_size == 64));
    }

    #[test]
    fn out_of_memory_above_96_rolls_back_and_accumulates() {
        let plan = plan(192);
        let played = play(&mut staged(&plan), &plan, |spec| {
            if spec.point.batch_size > 96 { Script::out_of_memory() } else { healthy(spec) }
        });
        assert_eq!(
            played.sizes(),
            [(Smallest, 1, 192), (Ladder, 96, 2), (Ladder, 120, 1), (Accumulation, 64, 3), (Soak, 96, 2)]
        );
        let skipped: Vec<usize> = played.skipped.iter().map(|skip| skip.point.batch_size).collect();
        assert_eq!(skipped, [144, 168, 192]);
        assert!(played.skipped[0].reason.contains("batch size 120 already broke a rule: out of memory"));
    }

    #[test]
    fn a_rate_of_0_41_rolls_back_like_out_of_memory() {
        let plan = plan(64);
        let played = play(&mut staged(&plan), &plan, |spec| match spec.point.batch_size {
            48.. => Script::Completes { samples_per_second: 2000.0, peak_rate: 0.41, data_wait: 0.0 },
            _ => healthy(spec),
        });
        assert!(matches!(&played.conclusion, Conclusion::Safe(point) if point.batch_size == 32));
        assert!(played.skipped.iter().all(|skip| skip.reason.contains("41% of memory fragmented")));
    }

    #[test]
    fn bisection_below_the_start_finds_the_largest_size_that_meets_the_target() {
        let plan = plan(64);
        let played = play(&mut staged(&plan), &plan, |spec| {
            if spec.point.batch_size > 9 { Script::out_of_memory() } else { healthy(spec) }
        });
        assert_eq!(
            played.sizes(),
            [
                (Smallest, 1, 64),
                (Ladder, 32, 2),
                (Bisection, 8, 8),
                (Bisection, 16, 4),
                (Accumulation, 4, 16),
                (Soak, 8, 8),
            ]
        );
    }

    #[test]
    fn a_workload_that_fails_at_the_smallest_size_ends_the_search_at_once() {
        let plan = plan(64);
        let failed = Script::Ends(Outcome::Failed { message: "no such file".to_owned() });
        let played = play(&mut staged(&plan), &plan, |_| failed.clone());
        assert_eq!(played.conclusion, Conclusion::WorkloadFails);
        assert_eq!(played.trials.len(), 1);
    }

    #[test]
    fn a_machine_too_small_for_one_sample_has_no_safe_point() {
        let plan = plan(64);
        let played = play(&mut staged(&plan), &plan, |_| Script::out_of_memory());
        assert_eq!(played.conclusion, Conclusion::NoSafePoint);
        assert_eq!(played.trials.len(), 1);
    }

    #[test]
    fn a_soak_that_breaks_a_rule_hands_over_to_the_next_best() {
        let plan = plan(8);
        let played = play(&mut staged(&plan), &plan, |spec| match (spec.purpose, spec.point.batch_size) {
            (Soak, 8) => Script::Completes { samples_per_second: 600.0, peak_rate: 0.5, data_wait: 0.0 },
            _ => healthy(spec),
        });
        assert_eq!(played.sizes().last(), Some(&(Soak, 4, 2)));
        assert!(matches!(played.conclusion, Conclusion::Safe(point) if point.batch_size == 4));
    }

    #[test]
    fn workers_rise_until_the_step_no_longer_waits() {
        let mut plan = plan(8);
        plan.search.loader_workers = vec![0, 1, 2, 4];
        let played = play(&mut staged(&plan), &plan, |spec| match spec.point.loader_workers {
            0 => Script::Completes { samples_per_second: 100.0, peak_rate: 0.0, data_wait: 0.5 },
            1 => Script::Completes { samples_per_second: 150.0, peak_rate: 0.0, data_wait: 0.2 },
            _ => Script::Completes { samples_per_second: 200.0, peak_rate: 0.0, data_wait: 0.01 },
        });
        let loader: Vec<(usize, usize)> = played
            .trials
            .iter()
            .filter(|(purpose, _)| *purpose == Loader)
            .map(|(_, point)| (point.loader_workers, point.prefetch_depth))
            .collect();
        assert_eq!(loader, [(1, 2), (2, 2)]);
        assert!(matches!(played.conclusion, Conclusion::Safe(point) if point.loader_workers == 2));
    }

    #[test]
    fn on_trouble_the_prefetch_depth_is_lowered_before_the_workers() {
        let mut plan = plan(8);
        plan.search.loader_workers = vec![0, 1];
        let played = play(&mut staged(&plan), &plan, |spec| match spec.point.prefetch_depth {
            2 => Script::out_of_memory(),
            1 => Script::Completes { samples_per_second: 200.0, peak_rate: 0.0, data_wait: 0.01 },
            _ => Script::Completes { samples_per_second: 100.0, peak_rate: 0.0, data_wait: 0.5 },
        });
        assert!(
            matches!(played.conclusion, Conclusion::Safe(point) if (point.loader_workers, point.prefetch_depth) == (1, 1))
        );
    }

    #[test]
    fn of_two_sizes_of_equal_speed_the_one_with_less_memory_wins() {
        let plan = plan(8);
        let played = play(&mut staged(&plan), &plan, |spec| Script::Completes {
            samples_per_second: if spec.point.batch_size == 8 { 100.3 } else { 100.0 },
            peak_rate: 0.0,
            data_wait: 0.0,
        });
        assert!(matches!(played.conclusion, Conclusion::Safe(point) if point.batch_size < 8));
    }
}

//! Memory does not creep up to the limit.
//!
//! "The size it found ran out of memory later" is what users of other finders report most: a few steps cannot show a
//! leak, or a cache that grows by a segment now and then. A soak can. The rule puts lines through V and through A over the
//! second half of the soak's samples ([`theil_sen`](crate::trial::statistics::theil_sen)), where the cache has filled and the
//! evaluation pass and the checkpoint are behind, and asks when the line would reach C.
//!
//! - It **fails** where the growth is certain (the lower end of the slope's 95 % interval is above 0) and the line
//!   crosses C within 10,000 steps of the last sample.
//! - It **warns** where the growth is certain and C is further away: a long run may still get there.
//!
//! A leak shows in A, the live bytes between steps, before it shows in V, which grows by whole segments and may stand still
//! over a soak. What leaks must be held, so the line through A too must not reach C; the more serious finding counts.
//!
//! Lengths that vary make A uneven; they do not change how many allocations are live between steps. Where that number grows
//! for certain too, over two updates or more, something is allocated and never freed. Such a leak fails however far away C
//! is, unless 10,000 steps of it are under 1 % of what is held.
//!
//! Both lines compare slopes in bytes a step: the value is the line's, the limit the one that would just reach C.
//!
//! It reads nothing but soaks with at least 20 samples in all, so that 10 or more are left in the half that counts, from
//! where on the interval's normal approximation holds. The default soak has 26 (52 steps, a sample every second).

use super::{Finding, Level, Rule};
use crate::config::plan::SafetyPlan;
use crate::memory::MemorySample;
use crate::trial::TrialRecord;
use crate::trial::statistics::theil_sen::Trend;
use crate::units::Bytes;

/// The fewest samples of a soak, the first half included.
const FEWEST_SAMPLES: usize = 20;
/// What a leak has to come to, as a divisor of V.
const NEGLIGIBLE_DIVISOR: f64 = 100.0;
/// How many steps ahead the line is believed.
const HORIZON_STEPS: f64 = 10_000.0;

/// V does not grow towards C.
#[derive(Debug)]
pub struct Growth;

impl Rule for Growth {
    fn name(&self) -> &'static str {
        "growth"
    }

    fn check(&self, trial: &TrialRecord, _safety: &SafetyPlan) -> Finding {
        if !trial.spec.is_soak() {
            return Finding::none(None, "only a soak is long enough to show growth");
        }
        let count = trial.samples.len();
        if count < FEWEST_SAMPLES {
            let reason = format!(
                "{FEWEST_SAMPLES} samples are needed and the soak has {count} (hint: more `soak_steps`, or a smaller `sample_every`)"
            );
            return Finding::none(None, &reason);
        }
        let second_half = trial.samples.get(count / 2..).unwrap_or_default();
        let reserved = Line::through(second_half, "reserved memory", |sample| sample.reserved_bytes);
        let live = Line::through(second_half, "live memory", |sample| sample.allocated_bytes);
        let live = live.map(|line| match line.judge() {
            found if found.level == Level::Warning && line.is_large() && leaves_more_live(trial, second_half) => {
                let reason = format!("{}; allocations are made that are never freed", found.reason);
                Finding { level: Level::Failed, reason, ..found }
            }
            found => found,
        });
        match (reserved.map(|line| line.judge()), live) {
            (Some(reserved), Some(live)) if live.level > reserved.level => live,
            (Some(reserved), _) => reserved,
            (None, _) => Finding::none(None, "all samples of the soak's second half are of one step"),
        }
    }
}

/// Whether the number of live allocations grows for certain. Within an update gradients may come to those before.
fn leaves_more_live(trial: &TrialRecord, samples: &[MemorySample]) -> bool {
    let [first, .., last] = samples else { return false };
    let updates = (last.step - first.step) as usize / trial.spec.point.accumulation_steps.max(1);
    let count = |sample: &MemorySample| (f64::from(sample.step), sample.allocated_blocks as f64);
    let trend = Trend::of(&samples.iter().map(count).collect::<Vec<_>>());
    updates >= 2 && trend.and_then(|trend| trend.slope_interval).is_some_and(|(low, _)| low > 0.0)
}

/// The line through V or A, with what it is held against.
#[derive(Clone, Copy, Debug)]
struct Line {
    what: &'static str,
    trend: Trend,
    last_step: f64,
    limit_bytes: u64,
    held_bytes: u64,
}

impl Line {
    fn through(samples: &[MemorySample], what: &'static str, bytes: fn(&MemorySample) -> u64) -> Option<Self> {
        let points: Vec<(f64, f64)> =
            samples.iter().map(|sample| (f64::from(sample.step), bytes(sample) as f64)).collect();
        let last = samples.last()?;
        Some(Self {
            what,
            trend: Trend::of(&points)?,
            last_step: f64::from(last.step),
            limit_bytes: last.limit_bytes,
            held_bytes: last.reserved_bytes,
        })
    }

    /// Whether it comes to anything within the horizon.
    fn is_large(&self) -> bool {
        self.trend.slope * HORIZON_STEPS > self.held_bytes as f64 / NEGLIGIBLE_DIVISOR
    }

    fn judge(&self) -> Finding {
        let slope = self.trend.slope;
        let left_bytes = self.limit_bytes as f64 - self.trend.at(self.last_step);
        let allowed = left_bytes.max(0.0) / HORIZON_STEPS;
        let at_least = self.trend.slope_interval.map_or(0.0, |(low, _)| low);
        let (level, reason) = if at_least > 0.0 {
            let growth = format!("{} grows by {} a step", self.what, bytes_a_step(slope));
            let when = self.when_it_reaches_the_limit();
            let level = if slope > allowed { Level::Failed } else { Level::Warning };
            (level, format!("{growth} (at least {} with 95% confidence) and {when}", bytes_a_step(at_least)))
        } else if slope > 0.0 {
            let growth = bytes_a_step(slope);
            (Level::Passed, format!("{} seems to grow by {growth} a step, which may be chance", self.what))
        } else {
            (Level::Passed, format!("{} did not grow over the second half of the soak", self.what))
        };
        Finding { value: Some(slope), limit: Some(allowed), level, reason }
    }

    fn when_it_reaches_the_limit(&self) -> String {
        let limit = Bytes(self.limit_bytes);
        match self.trend.reaches(self.limit_bytes as f64) {
            Some(step) if step > self.last_step => {
                format!("would reach the limit of {limit} at step {:.0}", step.ceil())
            }
            _ => format!("has reached the limit of {limit}"),
        }
    }
}

/// A slope for people; less than a byte a step is said as a fraction of one.
fn bytes_a_step(slope: f64) -> String {
    if slope < 10.0 { format!("{slope:.2} B") } else { Bytes(slope as u64).to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{completed, point, safety, sample, soak};
    use super::*;
    use crate::units::MIB;

    const KIB: u64 = 1 << 10;

    /// A sample every second step with these bytes reserved, of a limit of 1000 MiB.
    fn samples(reserved: impl IntoIterator<Item = u64>) -> Vec<MemorySample> {
        let at = |(index, reserved_bytes)| MemorySample { reserved_bytes, ..sample(2 * (index as u32 + 1)) };
        reserved.into_iter().enumerate().map(at).collect()
    }

    fn found(reserved: impl IntoIterator<Item = u64>) -> Finding {
        Growth.check(&soak(samples(reserved)), &safety())
    }

    #[test]
    fn a_leak_that_ends_the_run_within_10_000_steps_fails_and_names_the_step() {
        let finding = found((0..26).map(|index| 500 * MIB + index * 2 * MIB));
        assert_eq!((finding.value, finding.level), (Some(MIB as f64), Level::Failed));
        // 500 MiB at step 2, 1 MiB a step: 1000 MiB at step 502.
        assert_eq!(
            finding.reason,
            "reserved memory grows by 1.0 MiB a step (at least 1.0 MiB with 95% confidence) and would reach the limit of \
             1000.0 MiB at step 502"
        );
    }

    #[test]
    fn the_limit_is_the_slope_that_reaches_c_in_exactly_10_000_steps() {
        // After 26 samples V is 1000 MiB − 10,000 × 2 KiB: a slope of 2 KiB a step just gets there.
        let end = 1000 * MIB - 20_000 * KIB;
        let line = |slope: u64| found((0..26).map(|index| end - (25 - index) * 2 * slope));
        let exactly = line(2 * KIB);
        assert_eq!((exactly.value, exactly.limit), (Some(2048.0), Some(2048.0)));
        assert_eq!(exactly.level, Level::Warning);
        assert!(exactly.reason.ends_with("would reach the limit of 1000.0 MiB at step 10052"), "{}", exactly.reason);
        assert_eq!(line(2 * KIB + 1).level, Level::Failed);
        assert_eq!(line(2 * KIB - 1).level, Level::Warning);
    }

    #[test]
    fn a_cache_that_fills_in_the_first_half_has_not_grown() {
        let finding = found((0..26_u64).map(|index| index.min(12) * 40 * MIB));
        assert_eq!((finding.value, finding.level), (Some(0.0), Level::Passed));
        assert_eq!(finding.reason, "reserved memory did not grow over the second half of the soak");
    }

    #[test]
    fn one_more_segment_is_no_growth_wherever_it_comes() {
        for jump in 0..26 {
            let finding = found((0..26).map(|index| if index < jump { 500 * MIB } else { 520 * MIB }));
            assert_eq!(finding.level, Level::Passed, "a jump at sample {jump}: {}", finding.reason);
        }
    }

    #[test]
    fn three_segments_one_after_the_other_are_growth() {
        let finding = found((0..26).map(|index| 500 * MIB + index / 4 * 20 * MIB));
        assert_eq!(finding.level, Level::Failed, "{}", finding.reason);
    }

    #[test]
    fn memory_that_is_given_back_is_no_growth() {
        let finding = found((0..26).map(|index| 900 * MIB - index * 10 * MIB));
        assert!(finding.value.unwrap() < 0.0);
        assert_eq!(finding.level, Level::Passed);
    }

    #[test]
    fn a_line_beyond_the_limit_says_so() {
        let finding = found((0..26).map(|index| 1000 * MIB + index * MIB));
        assert_eq!((finding.limit, finding.level), (Some(0.0), Level::Failed));
        assert!(finding.reason.ends_with("has reached the limit of 1000.0 MiB"), "{}", finding.reason);
    }

    #[test]
    fn nineteen_samples_are_too_few_and_twenty_are_not() {
        let leak = |count| found((0..count).map(|index| 500 * MIB + index * 4 * MIB));
        let few = leak(19);
        assert_eq!((few.value, few.level), (None, Level::Passed));
        assert!(
            few.reason.starts_with("not judged: 20 samples are needed and the soak has 19 (hint"),
            "{}",
            few.reason
        );
        assert_eq!(leak(20).level, Level::Failed);
        for count in [0, 1] {
            assert_eq!(leak(count).value, None);
        }
    }

    /// A soak that leaves so many more bytes and allocations live after each step, far from its limit.
    fn leaking(bytes: u64, blocks: u64, accumulation_steps: usize) -> Finding {
        let grown = |sample: MemorySample| MemorySample {
            allocated_bytes: 100 * MIB + u64::from(sample.step) * bytes + u64::from(sample.step % 7) * bytes / 9,
            allocated_blocks: 60 + u64::from(sample.step) * blocks,
            limit_bytes: 1 << 40,
            ..sample
        };
        let mut trial = soak(samples((0..26).map(|_| 500 * MIB)).into_iter().map(grown).collect());
        trial.spec.point.accumulation_steps = accumulation_steps;
        Growth.check(&trial, &safety())
    }

    #[test]
    fn allocations_that_are_never_freed_fail_however_far_away_the_limit_is() {
        let finding = leaking(20 * KIB, 1, 8);
        assert_eq!(finding.level, Level::Failed, "{}", finding.reason);
        assert!(finding.reason.ends_with("; allocations are made that are never freed"), "{}", finding.reason);
        let others = [(20 * KIB, 0, 8), (512, 1, 8), (20 * KIB, 1, 32)];
        for (bytes, blocks, accumulation_steps) in others {
            assert_eq!(leaking(bytes, blocks, accumulation_steps).level, Level::Warning, "{bytes} {blocks}");
        }
    }

    #[test]
    fn only_a_soak_is_judged() {
        let leaking = samples((0..26).map(|index| 500 * MIB + index * 4 * MIB));
        let finding = Growth.check(&completed(point(8), leaking), &safety());
        assert_eq!((finding.value, finding.level), (None, Level::Passed));
    }

    #[test]
    fn samples_that_are_all_of_one_step_have_no_line() {
        let frozen = vec![sample(7); 30];
        assert_eq!(Growth.check(&soak(frozen), &safety()).value, None);
    }
}

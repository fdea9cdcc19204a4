//! What may run beside a trial that has not ended: that which its outcome cannot change.
//!
//! The stages ask for one trial at a time, and most of what they ask next follows from how the last one ended. What does
//! not follow is found by imagining: the search is asked what it would want next if every trial under way came out safe,
//! and if every one broke. Where both want the same, that trial is needed (nearly) whatever happens, and may run now.
//!
//! - Probes are independent of one another and of the smallest trial, which fails before them only where the study does.
//!   How they end is imagined well alone: one that fails ends the study of its kind, and costs the others, which are tiny.
//! - Of two pairs of full size the second is needed if the first breaks; if it is safe, only where the second could be
//!   faster, which the model of the step time tells as far as it knows the first. A rung of the ladder decides whether
//!   the next one runs or a smaller one, so rungs do not run side by side.
//! - Past a probe nothing is known before it was read, so nothing of full size runs beside one.
//! - Trials that need the host to themselves run alone ([`Purpose::shares_host`]).
//!
//! So a search by forecast gains its probes and seldom more: it has few trials of full size, which follow from one another.

use super::forecast::step_time;
use super::{Staged, View};
use crate::memory::{MemorySample, Rates};
use crate::search::{Ask, History, JudgedTrial, Verdict};
use crate::trial::{Measurement, Outcome, Point, Purpose, TrialId, TrialRecord, TrialSpec};

/// How a trial under way may come out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Safe,
    Broken,
}

impl Staged {
    /// A trial that is wanted however those under way end.
    pub(super) fn ahead(&self, view: View<'_>, under_way: &[Ask]) -> Option<Ask> {
        let purposes = || under_way.iter().filter_map(purpose);
        if !purposes().all(Purpose::shares_host) {
            return None;
        }
        // Whether a program of the user's own can be probed is known when its smallest trial has reported, or not.
        let is_opaque = !self.space.has_loader() && purposes().any(|purpose| purpose == Purpose::Smallest);
        let wanted = self.wanted(view, under_way, Fate::Safe)?;
        let next = purpose(&wanted)?;
        if is_opaque || !next.shares_host() || under_way.contains(&wanted) {
            return None;
        }
        if purposes().any(|purpose| matches!(purpose, Purpose::Smallest | Purpose::Probe)) {
            return (next == Purpose::Probe).then_some(wanted);
        }
        (self.wanted(view, under_way, Fate::Broken)? == wanted).then_some(wanted)
    }

    /// What would be asked for if all of these came out so. `None` where that cannot be imagined.
    fn wanted(&self, view: View<'_>, under_way: &[Ask], fate: Fate) -> Option<Ask> {
        let mut imagined: History = view.history.clone();
        for ask in under_way {
            imagined.tell(imagine(view, ask, fate)?);
        }
        let view = View { history: &imagined, ..view };
        // A search of its own, so that nothing is ruled out by what did not happen.
        Some(Self::new(self.space.clone()).decide(view).unwrap_or_else(|needed| needed))
    }
}

fn purpose(ask: &Ask) -> Option<Purpose> {
    match ask {
        Ask::Run { purpose, .. } => Some(*purpose),
        Ask::ProbeShape { .. } => Some(Purpose::Probe),
        Ask::Play { .. } | Ask::TuneAllocator { .. } | Ask::Finished(_) => None,
    }
}

/// A trial as if it had ended, as fast as such a one can be expected to be: the less seems worth trying beside it.
fn imagine(view: View<'_>, ask: &Ask, fate: Fate) -> Option<JudgedTrial> {
    let (point, purpose, sample_size) = match ask {
        Ask::Run { point, purpose } => (point, *purpose, None),
        Ask::ProbeShape { point, sample_size } => (point, Purpose::Probe, Some(*sample_size)),
        Ask::Play { .. } | Ask::TuneAllocator { .. } | Ask::Finished(_) => return None,
    };
    let (id, point) = (TrialId(0), point.clone());
    let spec = TrialSpec { id, purpose, point, warmup_steps: 0, steps: 1, sample_every: 1, sample_size };
    let is_full_size = !matches!(purpose, Purpose::Smallest | Purpose::Probe);
    let rate = is_full_size.then(|| rate(view, &spec.point));
    let begun = TrialRecord::begun(&spec);
    let record = match (fate, rate) {
        (Fate::Broken, _) => TrialRecord { outcome: NO_MEMORY, ..begun },
        (Fate::Safe, Some(None)) => return None,
        (Fate::Safe, rate) => {
            let samples_per_second = rate.flatten().unwrap_or(0.0);
            let measurement = Measurement { steps: 1, samples_per_second, ..Measurement::default() };
            // Its memory was seen: what is not could not be probed.
            let seen = MemorySample { rates: Rates { peak: Some(0.0), ..Rates::default() }, ..MemorySample::default() };
            TrialRecord { outcome: Outcome::Completed, measurement: Some(measurement), samples: vec![seen], ..begun }
        }
    };
    Some(JudgedTrial { record, verdict: Verdict::default() })
}

const NO_MEMORY: Outcome = Outcome::OutOfMemory {
    requested_bytes: None,
    allocated_bytes: None,
    reserved_bytes: None,
    limit_bytes: None,
    step: None,
    phase: None,
};

/// Samples a second that a point can be expected to reach at most.
fn rate(view: View<'_>, point: &Point) -> Option<f64> {
    Some(step_time(view, point.gradient_checkpointing)?.highest_rate(point.batch_size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::knowledge::Nothing;
    use crate::search::rules::testing::{completed, sample};
    use crate::search::scripted::plan;
    use crate::search::{Space, strategy};

    /// What runs at once with so many devices when nothing has ended yet but these.
    fn at_once(target: usize, ended: &[(Purpose, usize, usize, f64)], devices: usize) -> Vec<(Purpose, usize)> {
        let plan = plan(target);
        let space = Space::new(&plan);
        let mut history = History::default();
        for (purpose, batch_size, accumulation_steps, samples_per_second) in ended {
            let pair = crate::search::space::Pair { batch_size: *batch_size, accumulation_steps: *accumulation_steps };
            let record = completed(space.point(pair, space.first_loader()), vec![sample(4)]);
            let spec = TrialSpec { purpose: *purpose, ..record.spec };
            let measurement =
                record.measurement.map(|found| Measurement { samples_per_second: *samples_per_second, ..found });
            let record = TrialRecord { spec, measurement, ..record };
            history.tell(JudgedTrial { record, verdict: Verdict::default() });
        }
        let mut strategy = strategy(&plan, 64);
        let mut under_way = vec![strategy.ask(&history, &Nothing)];
        while under_way.len() < devices
            && let Some(ask) = strategy.ask_while(&history, &Nothing, &under_way)
        {
            under_way.push(ask);
        }
        assert!(strategy.skipped().is_empty(), "what is imagined rules nothing out");
        let size = |ask: &Ask| match ask {
            Ask::Run { point, purpose } => (*purpose, point.batch_size),
            other => panic!("{other:?}"),
        };
        under_way.iter().map(size).collect()
    }

    #[test]
    fn both_probes_run_beside_the_smallest_trial_and_nothing_of_full_size_does() {
        let expected = [(Purpose::Smallest, 1), (Purpose::Probe, 2), (Purpose::Probe, 3)];
        assert_eq!(at_once(16, &[], 8), expected);
        assert_eq!(at_once(16, &[(Purpose::Smallest, 1, 16, 10.0)], 8), expected[1..]);
    }

    #[test]
    fn a_workload_too_small_to_be_probed_runs_nothing_beside_its_smallest_trial() {
        assert_eq!(at_once(3, &[], 8), [(Purpose::Smallest, 1)]);
    }

    #[test]
    fn rungs_wait_for_one_another() {
        let probed = [(Purpose::Smallest, 1, 16, 10.0), (Purpose::Probe, 2, 8, 20.0), (Purpose::Probe, 3, 5, 30.0)];
        assert_eq!(at_once(16, &probed, 8), [(Purpose::Ladder, 8)]);
    }

    #[test]
    fn pairs_run_side_by_side_where_the_smaller_one_may_be_as_fast() {
        // The ladder has ended, and every size is as fast as any.
        let probes = [(Purpose::Smallest, 1, 16, 10.0), (Purpose::Probe, 2, 8, 10.0), (Purpose::Probe, 3, 5, 10.0)];
        let rungs = [8, 10, 12, 14].map(|rung| (Purpose::Ladder, rung, if rung == 8 { 2 } else { 1 }, 10.0));
        let ended = [&probes[..], &rungs[..]].concat();
        assert_eq!(at_once(16, &ended, 8)[0], (Purpose::Ladder, 16));
        let ended = [&ended[..], &[(Purpose::Ladder, 16, 1, 10.0)]].concat();
        // 16 × 1 and 8 × 2 are known; the pair after is worth a trial only if the last was faster.
        assert!(at_once(16, &ended, 8).len() == 1);
    }
}

//! Hill climbing over the rates of the loader alone, from the fewest workers up.
//!
//! A loader's rate grows with its workers, each adding no more than the one before (they share processors, memory
//! bandwidth and a disk), until it grows no more. So what one worker makes is the most that every further one can add:
//! the first trial goes to the fewest workers that could be enough by that, and each later one is as far up as the last
//! rate says, or down where fewer could still do. A trial is spent only on a number of workers that could be the answer.

use std::collections::BTreeMap;

/// A rate must be so much above the demand: the step takes its batches unevenly, and both figures are measured.
const MARGIN: f64 = 0.1;
/// More workers that add less than this share add nothing.
const SATURATED: f64 = 0.02;
/// What two measured rates may differ by though they are the same.
const NOISE: f64 = 0.05;

/// Where the climb stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Climb {
    /// Numbers of workers to choose from, ascending, all of them at least 1.
    pub(super) candidates: Vec<usize>,
    /// Batches a second that the step takes if it never waits.
    pub(super) demand: f64,
    /// What the loader gave while it kept the step waiting, and with how many workers; the training thread counts as one.
    pub(super) behind: (usize, f64),
    /// Batches a second that so many workers make.
    pub(super) rates: BTreeMap<usize, f64>,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Run so many workers alone.
    Measure(usize),
    /// So many workers are the fewest that are enough, or that are as fast as any.
    Settled(usize),
}

impl Climb {
    /// The next trial, or the answer; the answer so far where no trial is left. `None` without any rate.
    pub(super) fn next(&self, is_trial_left: bool) -> Option<Next> {
        if is_trial_left && let Some(higher) = self.higher() {
            return Some(Next::Measure(higher));
        }
        let fastest = self.rates.values().copied().reduce(f64::max)?;
        let wanted = self.needed().min(fastest * (1.0 - SATURATED));
        let (enough, _) = self.rates.iter().find(|(_, rate)| **rate >= wanted)?;
        match self.lower(*enough, wanted) {
            Some(fewer) if is_trial_left => Some(Next::Measure(fewer)),
            _ => Some(Next::Settled(*enough)),
        }
    }

    /// Whether so many workers alone were measured and do not keep up with the step.
    pub(super) fn is_short(&self, workers: usize) -> bool {
        self.rates.get(&workers).is_some_and(|rate| *rate < self.needed())
    }

    fn needed(&self) -> f64 {
        self.demand * (1.0 + MARGIN)
    }

    /// More workers than any measured so far, while none are enough and the last ones were worth it.
    fn higher(&self) -> Option<usize> {
        let (start, begun) = self.behind;
        let last = self.rates.last_key_value().map(|(workers, rate)| (*workers, *rate));
        let (workers, rate) = last.unwrap_or(self.behind);
        if last.is_some() {
            let before = self.rates.range(..workers).next_back().map_or((start, begun), |(at, rate)| (*at, *rate));
            let adds_nothing = workers > before.0 && rate <= before.1 * (1.0 + SATURATED);
            if adds_nothing || self.rates.values().any(|rate| *rate >= self.needed()) {
                return None;
            }
        }
        let enough = |candidate: &usize| *candidate as f64 * rate / workers.max(1) as f64 >= self.needed();
        let mut more = self.candidates.iter().copied().filter(|candidate| last.is_none() || *candidate > workers);
        more.clone().find(enough).or_else(|| more.next_back())
    }

    /// The fewest unmeasured workers below `enough` that could do: a worker makes no more in company than by itself.
    fn lower(&self, enough: usize, wanted: f64) -> Option<usize> {
        let (start, begun) = self.behind;
        let of_one = |(workers, rate): (usize, f64)| rate / workers.max(1) as f64;
        let alone =
            self.rates.iter().map(|(workers, rate)| of_one((*workers, *rate))).fold(of_one((start, begun)), f64::max);
        let short = self.rates.range(..enough).next_back().map_or(0, |(workers, _)| *workers);
        let between = self.candidates.iter().copied().filter(|workers| *workers > short && *workers < enough);
        between.into_iter().find(|workers| *workers as f64 * alone * (1.0 + NOISE) >= wanted)
    }
}

/// The most that so many workers make by what is known of others: no more than in proportion to fewer, no more than more
/// of them do, and no more than fewer where the last of those added nothing.
pub(super) fn estimate(known: &BTreeMap<usize, f64>, workers: usize) -> f64 {
    let alone = known.iter().map(|(workers, rate)| rate / (*workers).max(1) as f64).fold(0.0, f64::max);
    let mut fewer = known.range(..=workers).rev().map(|(workers, rate)| (*workers, *rate));
    let by_fewer = match (fewer.next(), fewer.next()) {
        (Some((at, rate)), _) if at == workers => return rate,
        (Some((_, rate)), Some((_, before))) if rate <= before * (1.0 + SATURATED) => rate,
        (Some((at, rate)), _) => rate / at.max(1) as f64 * workers as f64,
        (None, _) => alone * workers as f64,
    };
    known.range(workers..).next().map_or(by_fewer, |(_, rate)| by_fewer.min(*rate))
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the expected values are exact")]
mod tests {
    use super::*;

    fn climb(demand: f64, behind: (usize, f64)) -> Climb {
        Climb { candidates: vec![1, 2, 4, 8, 16], demand, behind, rates: BTreeMap::new() }
    }

    /// The numbers of workers that were measured on a loader, and the answer.
    fn climbed(mut climb: Climb, rate: impl Fn(usize) -> f64, trials: usize) -> (Vec<usize>, Option<usize>) {
        let mut measured = Vec::new();
        loop {
            match climb.next(measured.len() < trials) {
                Some(Next::Measure(workers)) => {
                    assert!(
                        climb.candidates.contains(&workers) && !measured.contains(&workers),
                        "{workers} {measured:?}"
                    );
                    measured.push(workers);
                    climb.rates.insert(workers, rate(workers));
                }
                Some(Next::Settled(workers)) => return (measured, Some(workers)),
                None => return (measured, None),
            }
        }
    }

    #[test]
    fn workers_that_add_up_take_one_trial() {
        // One makes 10 a second, and the step takes 35: 3.85 workers with the margin.
        assert_eq!(climbed(climb(35.0, (1, 10.0)), |workers| 10.0 * workers as f64, 3), (vec![4], Some(4)));
    }

    #[test]
    fn fewer_that_could_do_are_tried_too() {
        // The training thread made 7 a second, held up by the step; a worker makes 12.
        let found = climbed(climb(20.0, (1, 7.0)), |workers| 12.0 * workers as f64, 3);
        assert_eq!(found, (vec![4, 2], Some(2)));
    }

    #[test]
    fn workers_that_hinder_one_another_take_another_look_further_up() {
        let found = climbed(climb(30.0, (1, 10.0)), |workers| 10.0 * (workers as f64).powf(0.8), 3);
        assert_eq!(found, (vec![4, 8], Some(8)), "four make 30.3 a second, which leaves no margin");
    }

    #[test]
    fn a_loader_that_is_never_enough_gets_the_fewest_workers_that_are_as_fast_as_any() {
        let found = climbed(climb(1000.0, (1, 10.0)), |workers| 10.0 * (workers as f64).min(3.5), 3);
        assert_eq!(found, (vec![16, 4], Some(4)));
    }

    #[test]
    fn a_loader_whose_workers_add_nothing_gets_one() {
        let found = climbed(climb(1000.0, (1, 10.0)), |_| 10.0, 3);
        assert_eq!(found, (vec![16, 1], Some(1)));
    }

    #[test]
    fn without_a_trial_left_the_best_rate_so_far_decides_or_nothing_does() {
        assert_eq!(climbed(climb(1000.0, (1, 10.0)), |workers| workers as f64, 0), (vec![], None));
        assert_eq!(climbed(climb(30.0, (1, 10.0)), |_| 20.0, 1), (vec![4], Some(4)));
    }

    #[test]
    fn rates_that_were_not_measured_are_bounded_by_those_that_were() {
        let known = BTreeMap::from([(1, 10.0), (4, 30.0), (8, 30.3)]);
        let found = [1, 2, 4, 6, 8, 16].map(|workers| estimate(&known, workers));
        assert_eq!(found, [10.0, 20.0, 30.0, 30.3, 30.3, 30.3]);
        assert_eq!([1, 8].map(|workers| estimate(&BTreeMap::from([(4, 30.0)]), workers)), [7.5, 60.0]);
        assert_eq!(estimate(&BTreeMap::new(), 3), 0.0);
    }

    #[test]
    fn a_loader_is_short_only_where_it_was_measured_to_be() {
        let climb = Climb { rates: BTreeMap::from([(2, 20.0), (8, 80.0)]), ..climb(50.0, (1, 10.0)) };
        assert_eq!([1, 2, 8].map(|workers| climb.is_short(workers)), [false, true, false]);
    }
}

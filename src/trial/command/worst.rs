//! What the ranks of a command measured, warn of, and recorded, brought together by the [worst](worst_rank) of them.

use std::collections::BTreeMap;

use super::rank::Told;
use crate::memory::MemorySample;
use crate::memory::fragmentation::against_need;
use crate::trial::measure::Series;
use crate::trial::outcome::Measurement;
use crate::trial::spec::TrialSpec;
use crate::trial::worst_rank;

/// What all ranks measured, as far as they report.
pub(super) fn measurement(ranks: &[Told], trial: &TrialSpec) -> Option<Measurement> {
    let heard = ranks.iter().filter(|told| told.hello.is_some());
    let of_ranks: Vec<Measurement> = heard.map(|told| told.series.measure(trial)).collect();
    if ranks.len() == 1 {
        return of_ranks.into_iter().next();
    }
    worst_rank::measurement(&of_ranks.iter().collect::<Vec<_>>(), ranks.len())
}

/// The samples of a run: at each step the worst of every figure.
///
/// A rate is held against its own rank's need before ranks are compared ([`against_need`]): the batches of another rank
/// may be longer or shorter. So that nobody holds it against a need once more, `peak_allocated_bytes` is the highest need
/// of any rank so far.
pub(super) fn samples(ranks: &[Told]) -> Vec<MemorySample> {
    if let [alone] = ranks {
        return alone.series.samples.clone();
    }
    let mut by_step: BTreeMap<u32, Vec<MemorySample>> = BTreeMap::new();
    for sample in ranks.iter().flat_map(|told| against_need(&told.series.samples)) {
        by_step.entry(sample.step).or_default().push(sample);
    }
    let mut need_bytes = 0_u64;
    let mut worst = |of_ranks: Vec<MemorySample>| {
        let sample = worst_rank::sample(&of_ranks.iter().collect::<Vec<_>>())?;
        need_bytes = need_bytes.max(sample.peak_allocated_bytes);
        Some(MemorySample { peak_allocated_bytes: need_bytes, ..sample })
    };
    by_step.into_values().filter_map(&mut worst).collect()
}

/// What the ranks warn of: once where all that report say the same, else with the rank.
pub(super) fn warnings(ranks: &mut [Told]) -> Vec<String> {
    let heard = ranks.iter().filter(|told| told.hello.is_some()).count();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for warning in ranks.iter().flat_map(|told| &told.warnings) {
        *counts.entry(warning.clone()).or_default() += 1;
    }
    let mut all = Vec::new();
    for (rank, told) in (0_usize..).zip(ranks) {
        for warning in told.warnings.drain(..) {
            let is_everybodys = counts.get(&warning).is_none_or(|count| *count >= heard);
            let said = if is_everybodys { warning } else { format!("rank {rank}: {warning}") };
            if !all.contains(&said) {
                all.push(said);
            }
        }
    }
    all
}

/// The rank whose peak is the highest; of equal ones the first.
pub(super) fn fullest(ranks: &[Told]) -> Option<usize> {
    let peak = |series: &Series| series.samples.iter().map(|sample| sample.peak_allocated_bytes).max();
    let peaks = (0..).zip(ranks).filter(|(_, told)| told.has_trace).map(|(rank, told)| (rank, peak(&told.series)));
    // The last of equal ones is the greatest, so they are walked from their end.
    let peaks: Vec<(usize, Option<u64>)> = peaks.collect();
    peaks.into_iter().rev().max_by_key(|(_, peak)| *peak).map(|(rank, _)| rank)
}

#[cfg(test)]
mod tests {
    use super::super::report::Hello;
    use super::super::testing::trial;
    use super::*;
    use crate::memory::PoolState;
    use crate::trial::outcome::StepTimes;

    fn told(step_ms: f64, wait_ms: f64, samples: Vec<MemorySample>) -> Told {
        let times = vec![StepTimes { total_ms: step_ms, data_wait_ms: wait_ms, ..StepTimes::default() }; 12];
        let series = Series { times, losses: vec![step_ms; 12], samples, ..Series::default() };
        Told { hello: Some(Hello { protocol: 1, ..Hello::default() }), series, ..Told::default() }
    }

    fn sample(step: u32, allocated: u64, reserved: u64) -> MemorySample {
        let state = PoolState {
            peak_allocated_bytes: allocated,
            peak_reserved_bytes: reserved,
            limit_bytes: 10_000,
            largest_satisfiable_bytes: 10_000 - allocated,
            ..PoolState::default()
        };
        MemorySample::of(step, &state)
    }

    #[test]
    fn the_slowest_rank_times_the_world_is_the_speed_and_the_hungriest_waits_for_all() {
        let ranks = [told(10.0, 1.0, Vec::new()), told(20.0, 0.0, Vec::new()), Told::default()];
        let measured = measurement(&ranks, &trial(8)).unwrap();
        // Rank 2 says nothing, and trains all the same.
        assert_eq!((measured.samples_per_second, measured.step_ms.p50), (3.0 * 8.0 / 0.02, 20.0));
        assert_eq!((measured.data_wait_fraction, measured.first_loss), (0.1, Some(15.0)));
        assert_eq!(measurement(&ranks[..1], &trial(8)), Some(ranks[0].series.measure(&trial(8))));
        assert_eq!(measurement(&ranks[2..], &trial(8)), None);
    }

    #[test]
    fn each_figure_is_the_worst_of_its_step() {
        let ranks = [
            told(1.0, 0.0, vec![sample(2, 900, 1000), sample(4, 900, 1000)]),
            told(1.0, 0.0, vec![sample(2, 400, 800), sample(4, 1200, 1200), sample(6, 100, 1200)]),
        ];
        let worst = samples(&ranks);
        let figures = |sample: &MemorySample| {
            (sample.step, sample.peak_allocated_bytes, sample.peak_reserved_bytes, sample.largest_satisfiable_bytes)
        };
        assert_eq!(
            worst.iter().map(figures).collect::<Vec<_>>(),
            [(2, 900, 1000, 9100), (4, 1200, 1200, 8800), (6, 1200, 1200, 9900)]
        );
        // Rank 1 has half of what it reserved in use, whatever rank 0 has; at step 6 it keeps what a longer batch needed.
        assert_eq!(worst[0].rates.peak, Some(0.5));
        assert_eq!(worst[2].rates.peak, Some(0.0));
        let again: Vec<MemorySample> = against_need(&worst).collect();
        assert_eq!(again, worst, "the rules change nothing of it");
        assert_eq!(samples(&ranks[..1]), ranks[0].series.samples);
    }

    #[test]
    fn a_warning_of_all_ranks_is_said_once_and_one_of_a_single_rank_with_its_number() {
        let mut ranks = [told(1.0, 0.0, Vec::new()), told(1.0, 0.0, Vec::new()), Told::default()];
        ranks[0].warnings = vec!["all".to_owned()];
        ranks[1].warnings = vec!["own".to_owned(), "all".to_owned()];
        assert_eq!(warnings(&mut ranks), ["all", "rank 1: own"]);
    }

    #[test]
    fn of_equal_peaks_the_first_rank_s_trace_is_taken() {
        let traced = |peak: u64| Told { has_trace: true, ..told(1.0, 0.0, vec![sample(2, peak, peak)]) };
        assert_eq!(fullest(&[traced(5), traced(5)]), Some(0));
        assert_eq!(fullest(&[traced(5), traced(6), traced(6)]), Some(1));
        assert_eq!(fullest(&[told(1.0, 0.0, Vec::new()), traced(1)]), Some(1));
        assert_eq!(fullest(&[Told::default()]), None);
    }
}

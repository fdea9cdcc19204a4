//! Laws that every strategy obeys, whatever the machine does.

use proptest::prelude::*;

use super::knowledge::Nothing;
use super::machine::{Machine, before_soak};
use super::recommend::standing;
use super::scripted::{Played, Script, plan, play};
use super::{Ask, Conclusion, History, JudgedTrial, Space, StrategyKind, staged, strategy};
use crate::config::resolve::USUAL_CONFS;
use crate::data::{DataSpec, LengthDistribution, LengthSpec};
use crate::train::GradientCheckpointing;
use crate::trial::{Outcome, Point, Purpose};
use crate::units::MIB;

const KINDS: [StrategyKind; 2] = [StrategyKind::Staged, StrategyKind::Grid];

/// A machine that runs out of memory above one size and fragments above another, in a way drawn at random.
fn machine(
    out_of_memory_above: usize,
    fragments_above: usize,
    crashes_at: usize,
) -> impl Fn(&crate::trial::TrialSpec) -> Script {
    move |spec| {
        let batch = spec.point.batch_size;
        if batch > out_of_memory_above {
            Script::out_of_memory()
        } else if batch == crashes_at {
            Script::Ends(Outcome::Crashed { signal: Some(9), status: None, log: String::new() })
        } else if batch > fragments_above {
            Script::Completes { samples_per_second: 500.0, peak_rate: 0.4, data_wait: 0.0 }
        } else {
            Script::healthy(&spec.point)
        }
    }
}

proptest! {
    #[test]
    fn every_search_ends_and_recommends_only_what_a_soak_proved(
        target in 1usize..70, oom in 0usize..80, fragments in 0usize..80, crash in 2usize..80, kind in 0usize..2,
    ) {
        let mut plan = plan(target);
        plan.search.strategy = KINDS[kind];
        let played = play(&mut *strategy(&plan, usize::MAX), &plan, machine(oom, fragments, crash));
        let safe_size = |size: usize| size <= oom && size <= fragments && size != crash;
        match &played.conclusion {
            Conclusion::Safe(point) => {
                prop_assert!(safe_size(point.batch_size));
                prop_assert!(Space::new(&plan).meets_target(point));
                let last = played.trials.last();
                prop_assert_eq!(last.map(|(purpose, point)| (*purpose, point.clone())), Some((Purpose::Soak, point.clone())));
            }
            Conclusion::NoSafePoint => {
                // The smallest size is always tried, so "none" means that even it is not safe.
                prop_assert!(!safe_size(1));
            }
            Conclusion::WorkloadFails => prop_assert!(crash == 1),
        }
    }

    #[test]
    fn no_point_is_measured_twice(target in 1usize..70, oom in 0usize..80, kind in 0usize..2) {
        let mut plan = plan(target);
        plan.search.strategy = KINDS[kind];
        plan.search.loader_workers = vec![0, 1, 2];
        let played = play(&mut *strategy(&plan, usize::MAX), &plan, machine(oom, 1000, 1000));
        let kind = |purpose: Purpose| match purpose {
            Purpose::Soak => 0,
            Purpose::Probe => 1,
            Purpose::Throughput => 2,
            _ => 3,
        };
        let mut seen: Vec<_> = played.trials.iter().map(|(purpose, point)| (kind(*purpose), point)).collect();
        let all = seen.len();
        seen.sort();
        seen.dedup();
        prop_assert_eq!(seen.len(), all);
    }
}

/// A machine drawn at random whose memory is simulated.
fn simulated() -> impl proptest::strategy::Strategy<Value = Machine> {
    let layers = proptest::collection::vec((1u64..60_000, 1u64..12_000), 1..6);
    (layers, 20u64..2000, 0.0..0.1_f64, 0.0..0.05_f64, 0.0..0.9_f64).prop_map(
        |(layers, limit, fixed_seconds, sample_seconds, data_wait)| Machine {
            // No multiples of anything, so that blocks split and leave pieces.
            weights: layers.iter().map(|(weight, _)| weight * 1021).collect(),
            activations: layers.iter().map(|(_, activation)| activation * 1019).collect(),
            limit_bytes: limit * MIB,
            fixed_seconds,
            sample_seconds: sample_seconds + 1e-4,
            data_wait,
            ..Machine::new()
        },
    )
}

proptest! {
    #[test]
    fn an_exact_forecast_never_runs_out_of_memory_and_takes_eight_trials_at_most(
        machine in simulated(), target in 4usize..200, workers in 0usize..3, is_auto: bool,
    ) {
        let mut plan = plan(target);
        if is_auto {
            plan.train.gradient_checkpointing = GradientCheckpointing::Auto;
        }
        plan.search.loader_workers = [vec![0], vec![0, 1], vec![0, 1, 2, 4]][workers].clone();
        let (played, history) = machine.play(&mut *strategy(&plan, usize::MAX), &plan);
        let trials = history.trials();
        let out_of_memory = |trial: &&JudgedTrial| matches!(trial.record.outcome, Outcome::OutOfMemory { .. });
        // The smallest is measured, not forecast.
        let later = || trials.iter().filter(|trial| trial.record.spec.purpose != Purpose::Smallest);
        prop_assert_eq!(later().filter(out_of_memory).count(), 0);
        let breaches = later().filter(|trial| !trial.is_safe()).count();
        if breaches == 0 {
            let recomputes = |point: &Point| point.gradient_checkpointing == GradientCheckpointing::Blocks;
            let probes = played.trials.iter().filter(|(purpose, point)| *purpose == Purpose::Probe && recomputes(point));
            let (probes, sizes) = (probes.count(), usize::from(is_auto));
            // With recomputation: its probes, a trial, and its own smallest where no other mode runs.
            prop_assert!(before_soak(&played) <= staged::TRIALS_BEFORE_SOAK + probes + sizes, "{:?}", played.sizes());
            let is_other = |purpose: &Purpose| {
                matches!(purpose, Purpose::Smallest | Purpose::Probe | Purpose::Throughput | Purpose::Soak)
            };
            let full_size = |purpose: &Purpose| !is_other(purpose);
            let full_size = played.trials.iter().filter(|(purpose, _)| full_size(purpose)).count();
            prop_assert!(full_size <= staged::FULL_SIZE_TRIALS + sizes, "{:?}", played.sizes());
        }
    }

    #[test]
    fn the_staged_search_is_as_fast_as_the_grid(
        machine in simulated(), target in 4usize..65, recomputation in proptest::option::of(0.0..0.6_f64),
    ) {
        let mut plan = plan(target);
        if recomputation.is_some() {
            plan.train.gradient_checkpointing = GradientCheckpointing::Auto;
        }
        let machine = Machine { recomputation: recomputation.unwrap_or_default(), ..machine };
        let (found, staged) = machine.play(&mut *strategy(&plan, usize::MAX), &plan);
        let mut thorough = plan.clone();
        thorough.search.strategy = StrategyKind::Grid;
        let (best, grid) = machine.play(&mut *strategy(&thorough, usize::MAX), &thorough);
        let rate = |played: &Played, history: &History| match &played.conclusion {
            Conclusion::Safe(point) => history.soaked(point).and_then(JudgedTrial::samples_per_second),
            _ => None,
        };
        match (rate(&found, &staged), rate(&best, &grid)) {
            (Some(found), Some(best)) => prop_assert!(found >= 0.985 * best, "{found} against {best}"),
            (found, best) => prop_assert_eq!(found, best),
        }
    }
}

proptest! {
    // A search over a run plays it up to 32 times.
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn settings_of_the_allocator_cost_a_trial_and_a_soak_and_the_answer_is_one_that_passed_its_own(
        machine in simulated(), target in 4usize..40, breaks: bool, cost in 0.0..0.01_f64,
    ) {
        let mut plan = plan(target);
        plan.search.alloc_conf = USUAL_CONFS.map(str::to_owned).to_vec();
        let length = LengthSpec::Range { min: 8, max: 64, distribution: LengthDistribution::Uniform };
        plan.data = DataSpec { sequence_length: Some(length), ..DataSpec::default() };
        plan.safety.horizon_steps = 60;
        let machine = Machine { tokens: 64, breaks_from: breaks.then_some(2), settings_cost: cost, ..machine };
        let (played, history) = machine.play(&mut *strategy(&plan, usize::MAX), &plan);
        let count = |purpose| played.trials.iter().filter(|(of, _)| *of == purpose).count();
        let soaks = played.trials.iter().filter(|(purpose, _)| *purpose == Purpose::Soak);
        let broken = soaks.clone().filter(|(_, point)| !history.soaked(point).is_some_and(JudgedTrial::is_safe));
        let is_own = |point: &Point| point.alloc_conf.is_none();
        // Soaks that break are those of points that were tried in vain, and that under the program's own settings.
        let passed = soaks.clone().count() - broken.clone().count();
        prop_assert!(passed <= 2 && passed + broken.filter(|(_, point)| is_own(point)).count() <= 3, "{:?}", played.trials);
        if !breaks {
            prop_assert!(count(Purpose::Allocator) <= 1, "{:?}", played.sizes());
            let shape_probes = history.trials().iter().filter(|trial| trial.record.spec.is_shape_probe()).count();
            // The settings' own trial comes on top.
            prop_assert!(before_soak(&played) <= staged::TRIALS_BEFORE_SOAK + shape_probes + 1, "{:?}", played.sizes());
        }
        if let Conclusion::Safe(point) = &played.conclusion {
            prop_assert!(history.soaked(point).is_some_and(JudgedTrial::is_safe));
            prop_assert_eq!(standing(&history, &Space::new(&plan)).point(), Some(point));
        }
    }
}

#[test]
fn a_grid_runs_both_ways_to_keep_activations_and_goes_on_where_one_does_not_run() {
    let mut plan = plan(8);
    plan.search.strategy = StrategyKind::Grid;
    plan.train.gradient_checkpointing = GradientCheckpointing::Auto;
    let is_plain = |point: &Point| point.gradient_checkpointing == GradientCheckpointing::None;
    let played = play(&mut *strategy(&plan, usize::MAX), &plan, |spec| Script::healthy(&spec.point));
    assert_eq!(played.trials.iter().filter(|(_, point)| is_plain(point)).count(), 4 + 1);
    assert_eq!(played.trials.len(), 2 * 4 + 1);
    let fails = Script::Ends(Outcome::Failed { message: "of one piece".to_owned() });
    for ends in [Script::out_of_memory(), fails] {
        for plain_ends in [true, false] {
            let played = play(&mut *strategy(&plan, usize::MAX), &plan, |spec| {
                if is_plain(&spec.point) == plain_ends { ends.clone() } else { Script::healthy(&spec.point) }
            });
            let Conclusion::Safe(point) = &played.conclusion else { panic!("{:?}", played.conclusion) };
            assert_eq!((is_plain(point), played.trials.len()), (!plain_ends, 1 + 4 + 1));
        }
    }
}

#[test]
fn the_same_history_gets_the_same_answer_from_a_fresh_strategy() {
    let plan = plan(32);
    for kind in KINDS {
        let mut plan = plan.clone();
        plan.search.strategy = kind;
        let first = strategy(&plan, usize::MAX).ask(&History::default(), &Nothing);
        assert_eq!(first, strategy(&plan, usize::MAX).ask(&History::default(), &Nothing));
        assert!(matches!(first, Ask::Run { purpose: Purpose::Smallest, .. }));
    }
}

//! The strategy as sentences, over a scripted machine.

use super::*;
use crate::memory::Trim;
use crate::search::knowledge::probed::Probed;
use crate::search::machine::{Machine, chosen};
use crate::search::scripted::Played;
use crate::search::scripted::{Script, plan, play};
use crate::trial::TrialSpec;
use crate::units::MIB;
use Purpose::{Accumulation, Bisection, Ladder, Probe, Remedy, Smallest, Soak};

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
            (Probe, 2, 32),
            (Probe, 3, 21),
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
        [
            (Smallest, 1, 192),
            (Probe, 2, 96),
            (Probe, 3, 64),
            (Ladder, 96, 2),
            (Ladder, 120, 1),
            (Accumulation, 64, 3),
            (Soak, 96, 2)
        ]
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
            (Probe, 2, 32),
            (Probe, 3, 21),
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
fn of_two_sizes_of_equal_speed_the_one_with_less_memory_wins() {
    let plan = plan(8);
    let played = play(&mut staged(&plan), &plan, |spec| Script::Completes {
        samples_per_second: if spec.point.batch_size == 8 { 100.3 } else { 100.0 },
        peak_rate: 0.0,
        data_wait: 0.0,
    });
    assert!(matches!(played.conclusion, Conclusion::Safe(point) if point.batch_size < 8));
}

/// What the machine of [`Machine::new`] does with a plan.
fn played(machine: &Machine, plan: &crate::config::Plan) -> Played {
    machine.play(&mut staged(plan), plan).0
}

#[test]
fn an_exact_forecast_leaves_out_what_does_not_fit_and_measures_what_could_win() {
    // At a batch of 128 the peak is 2 MiB above the limit.
    let plan = plan(256);
    let played = played(&Machine::new(), &plan);
    assert_eq!(chosen(&played), 64);
    assert_eq!(
        played.sizes(),
        [(Smallest, 1, 256), (Probe, 2, 128), (Probe, 3, 85), (Accumulation, 64, 4), (Soak, 64, 4)]
    );
    let reasons: Vec<_> = played.skipped.iter().map(|skip| (skip.point.batch_size, skip.reason.as_str())).collect();
    assert!(reasons[0].0 == 256 && reasons[0].1.starts_with("does not fit by forecast"), "{reasons:?}");
    assert!(reasons.iter().any(|(size, reason)| *size == 32 && reason.starts_with("cannot win")), "{reasons:?}");
    assert!(reasons[1].0 == 128 && reasons[1].1.starts_with("does not fit by forecast"), "{reasons:?}");
}

#[test]
fn a_pair_without_accumulation_is_probed_where_only_that_can_tell() {
    // With the sum of gradients, 300 MiB, 16 samples do not fit; without it they do.
    let machine = Machine {
        weights: vec![30 * MIB; 10],
        activations: vec![MIB / 2; 10],
        limit_bytes: 1060 * MIB,
        ..Machine::new()
    };
    let plan = plan(16);
    let played = played(&machine, &plan);
    let probes: Vec<_> = played.sizes().into_iter().filter(|(purpose, ..)| *purpose == Probe).collect();
    assert_eq!(probes, [(Probe, 2, 8), (Probe, 3, 5), (Probe, 2, 1), (Probe, 3, 1)]);
    assert_eq!(chosen(&played), 16, "{:?} {:?}", played.sizes(), played.skipped);
}

#[test]
fn a_rate_that_is_not_about_capacity_gets_less_in_flight_before_a_smaller_batch() {
    let mut plan = plan(8);
    plan.search.device_prefetch = vec![1, 0];
    let played = play(&mut staged(&plan), &plan, |spec| match spec.point.device_prefetch {
        1 if spec.point.batch_size == 8 => {
            Script::Completes { samples_per_second: 900.0, peak_rate: 0.4, data_wait: 0.0 }
        }
        _ => healthy(spec),
    });
    assert!(played.trials.iter().any(|(purpose, point)| *purpose == Remedy && point.device_prefetch == 0));
    assert!(
        matches!(&played.conclusion, Conclusion::Safe(point) if (point.batch_size, point.device_prefetch) == (8, 0)),
        "{:?}",
        played.conclusion
    );
}

#[test]
fn the_cache_is_handed_back_where_nothing_else_helps() {
    let plan = plan(8);
    let played = play(&mut staged(&plan), &plan, |spec| match spec.point.trim {
        Trim::Never if spec.point.batch_size == 8 => {
            Script::Completes { samples_per_second: 900.0, peak_rate: 0.4, data_wait: 0.0 }
        }
        _ => healthy(spec),
    });
    assert!(
        matches!(&played.conclusion, Conclusion::Safe(point) if (point.batch_size, point.trim) == (8, Trim::AfterUpdate))
    );
}

#[test]
fn recomputation_is_searched_only_where_the_target_does_not_fit_without() {
    let mut plan = plan(16);
    plan.train.gradient_checkpointing = GradientCheckpointing::Auto;
    let uses = |played: &Played| {
        played.trials.iter().any(|(_, point)| point.gradient_checkpointing == GradientCheckpointing::Blocks)
    };
    assert!(!uses(&play(&mut staged(&plan), &plan, healthy)));
    let tight = play(&mut staged(&plan), &plan, |spec| {
        let recomputes = spec.point.gradient_checkpointing == GradientCheckpointing::Blocks;
        if spec.point.batch_size > 4 && !recomputes { Script::out_of_memory() } else { healthy(spec) }
    });
    assert!(uses(&tight));
    assert!(tight.trials.iter().all(|(_, point)| point.gradient_checkpointing != GradientCheckpointing::Auto));
    assert!(matches!(&tight.conclusion, Conclusion::Safe(point) if point.batch_size == 16), "{:?}", tight.conclusion);
}

/// The trials of a search with `gradient_checkpointing: auto`: purpose, micro-batch, and whether blocks are recomputed.
fn auto(machine: &Machine, target: usize) -> (Played, Vec<(Purpose, usize, bool)>) {
    let mut plan = plan(target);
    plan.train.gradient_checkpointing = GradientCheckpointing::Auto;
    let played = played(machine, &plan);
    let recomputes = |point: &Point| point.gradient_checkpointing == GradientCheckpointing::Blocks;
    let trials = played.trials.iter().map(|(purpose, point)| (*purpose, point.batch_size, recomputes(point))).collect();
    (played, trials)
}

fn recommends_blocks(played: &Played) -> bool {
    matches!(&played.conclusion, Conclusion::Safe(point) if point.gradient_checkpointing == GradientCheckpointing::Blocks)
}

/// Eight layers, so that one at a time is little.
fn deep() -> Machine {
    Machine { weights: vec![5 * MIB; 8], activations: vec![MIB / 2; 8], limit_bytes: 700 * MIB, ..Machine::new() }
}

#[test]
fn larger_micro_batches_are_probed_with_recomputation_and_win_only_if_they_are_faster() {
    // Half of a plain step at 64 samples does not depend on their number; 256 fit with recomputation.
    let machine = Machine { fixed_seconds: 0.64, ..deep() };
    let expected = [
        (Smallest, 1, false),
        (Probe, 2, false),
        (Probe, 3, false),
        (Accumulation, 64, false),
        (Probe, 2, true),
        (Probe, 3, true),
        (Ladder, 256, true),
    ];
    for (recomputation, size) in [(0.3, 256), (0.7, 64)] {
        let (played, trials) = auto(&Machine { recomputation, ..machine.clone() }, 256);
        assert_eq!(trials[..7], expected, "{:?}", played.skipped);
        assert_eq!((chosen(&played), recommends_blocks(&played)), (size, size == 256), "{trials:?}");
        assert_eq!(trials.len(), 8, "{trials:?}");
    }
}

#[test]
fn recomputation_is_left_alone_where_no_larger_batch_is_fast_enough_to_pay_for_it() {
    let (played, trials) = auto(&deep(), 256);
    assert!(trials.iter().all(|(.., recomputes)| !recomputes), "{trials:?}");
    let is_told = |skip: &Skip| {
        skip.point.gradient_checkpointing == GradientCheckpointing::Blocks && skip.reason.starts_with("cannot win")
    };
    assert!(played.skipped.iter().any(is_told), "{:?}", played.skipped);
}

#[test]
fn a_machine_too_small_for_one_plain_sample_recomputes() {
    // 500 MiB of activations a sample, of which recomputation keeps an eighth.
    let machine =
        Machine { activations: vec![100 * MIB; 5], weights: vec![MIB; 5], limit_bytes: 450 * MIB, ..Machine::new() };
    let (played, trials) = auto(&machine, 4);
    assert_eq!(trials[..2], [(Smallest, 1, false), (Smallest, 1, true)]);
    assert!(recommends_blocks(&played), "{trials:?} {:?}", played.conclusion);
}

#[test]
fn a_model_of_one_piece_is_searched_without_recomputation() {
    let mut plan = plan(64);
    plan.train.gradient_checkpointing = GradientCheckpointing::Auto;
    let played = play(&mut staged(&plan), &plan, |spec| match spec.point.gradient_checkpointing {
        GradientCheckpointing::Blocks => {
            Script::Ends(Outcome::Failed { message: "the model is of one piece".to_owned() })
        }
        _ if spec.point.batch_size > 16 => Script::out_of_memory(),
        _ => healthy(spec),
    });
    let recomputing =
        played.trials.iter().filter(|(_, point)| point.gradient_checkpointing == GradientCheckpointing::Blocks);
    assert_eq!(recomputing.count(), 1);
    assert_eq!((chosen(&played), recommends_blocks(&played)), (16, false));
    assert!(
        played.skipped.iter().any(|skip| skip.reason == "failed: the model is of one piece"),
        "{:?}",
        played.skipped
    );
}

#[test]
fn after_a_failed_soak_the_pairs_that_could_not_win_come_before_the_smallest() {
    let plan = plan(256);
    let machine = Machine::new();
    let mut strategy = staged(&plan);
    let (played, history) = machine.play(&mut strategy, &plan);
    let mut failed = crate::search::History::default();
    for trial in history.trials() {
        let mut trial = trial.clone();
        if trial.record.spec.is_soak() {
            trial.record.outcome = Outcome::TimedOut { seconds: 1.0 };
        }
        failed.tell(trial);
    }
    assert_eq!(chosen(&played), 64);
    let mut knowledge = Probed::new(machine.terms(&plan));
    for trial in history.trials().iter().filter(|trial| trial.record.spec.is_probe()) {
        let point = &trial.record.spec.point;
        knowledge.add(point, machine.events(point.batch_size, point.trial_accumulation(), 4));
    }
    let ask = staged(&plan).ask(&failed, &knowledge);
    assert!(matches!(&ask, Ask::Run { point, purpose: Accumulation } if point.batch_size == 32), "{ask:?}");
}

#[test]
fn the_smallest_size_is_measured_as_such_in_each_way_to_keep_activations() {
    let mut plan = plan(4);
    plan.train.gradient_checkpointing = GradientCheckpointing::Auto;
    // A batch of 1 completes without recomputation and leaves too little room; with it one runs out of memory.
    let machine = Machine {
        weights: vec![25_777_187, 35_652_299, 23_069_495, 52_429_371, 10_486_691],
        activations: vec![1019, 1019, 1019, 2_097_102, 10_485_510],
        limit_bytes: 530_579_456,
        ..Machine::new()
    };
    let (_, history) = machine.play(&mut staged(&plan), &plan);
    let ran_out = history.trials().iter().filter(|trial| trial.record.outcome.is_memory());
    let ran_out: Vec<_> = ran_out.map(|trial| &trial.record.spec).collect();
    let [spec] = ran_out.as_slice() else { panic!("{ran_out:?}") };
    assert_eq!((spec.purpose, spec.point.batch_size), (Smallest, 1));
    assert_eq!(spec.point.gradient_checkpointing, GradientCheckpointing::Blocks);
    let modes: Vec<_> = history.trials().iter().filter(|trial| trial.record.spec.purpose == Smallest).collect();
    assert_eq!(modes.len(), 2, "{modes:?}");
}

//! The strategy as sentences, over a scripted machine.

use super::*;
use crate::search::scripted::{Script, plan, play};
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

//! Searches on a machine whose memory is simulated, with settings of the allocator to choose from.

use crate::config::Plan;
use crate::memory::forecast::Method;
use crate::search::machine::{Machine, Shown};
use crate::search::recommend::standing;
use crate::search::scripted::{Played, varying_plan};
use crate::search::{Conclusion, History, JudgedTrial, Space, strategy};
use crate::trial::{Point, Purpose};
use crate::units::{Fraction, MIB};

fn varying() -> Plan {
    varying_plan(200)
}

fn search(machine: &Machine) -> (Played, History) {
    search_for(machine, &varying())
}

fn search_for(machine: &Machine, plan: &Plan) -> (Played, History) {
    machine.play(&mut *strategy(plan, usize::MAX), plan)
}

/// The same with these settings listed.
fn listed<const N: usize>(confs: [&str; N]) -> Plan {
    let mut plan = varying();
    plan.search.alloc_conf = confs.map(str::to_owned).to_vec();
    plan
}

/// The last trials of a search: what for, at which micro-batch, and whether under settings that were found.
fn last(played: &Played, count: usize) -> Vec<(Purpose, usize, bool)> {
    let trials = played.trials.iter().map(|(purpose, point)| (*purpose, point.batch_size, point.alloc_conf.is_some()));
    let trials: Vec<_> = trials.collect();
    trials[trials.len() - count..].to_vec()
}

fn answer(played: &Played) -> &Point {
    match &played.conclusion {
        Conclusion::Safe(point) => point,
        other => panic!("{other:?}"),
    }
}

#[test]
fn settings_found_over_the_coming_run_are_confirmed_soaked_and_held_against_the_program_s_own() {
    let (played, history) = search(&Machine::wasteful());
    let expected = [(Purpose::Allocator, 16, true), (Purpose::Soak, 16, true), (Purpose::Soak, 16, false)];
    assert_eq!(last(&played, 3), expected, "{:?}", played.sizes());
    let found = answer(&played);
    assert_eq!(found.alloc_conf.as_deref(), Some("expandable_segments:True"));
    let own = Point { alloc_conf: None, ..found.clone() };
    let tuned = history.tuned(&own).unwrap();
    assert_eq!((tuned.steps, tuned.horizon_steps, &tuned.conf), (200, 200, &found.alloc_conf), "{}", tuned.reason);
    // The search over the run needs the probes at shapes of their own, and the answer's soak its play.
    let trials = history.trials();
    let first = |is_it: fn(&JudgedTrial) -> bool| trials.iter().position(is_it).unwrap();
    let probe = first(|trial| trial.record.spec.is_shape_probe());
    assert!(probe < first(|trial| trial.record.spec.purpose == Purpose::Allocator));
    assert_eq!(trials.iter().filter(|trial| trial.record.spec.is_shape_probe()).count(), 7);
    assert!(history.soaked(found).unwrap().record.outlook.is_some());
    assert_eq!(standing(&history, &Space::new(&varying())).point(), Some(found));
}

#[test]
fn listed_settings_are_compared_over_the_coming_run_like_any_and_no_others_are_tried() {
    // Not in the order in which they are printed.
    let best = "roundup_power2_divisions:8,expandable_segments:True";
    let plan = listed(["max_split_size_mb:64", best]);
    let (played, history) = search_for(&Machine::wasteful(), &plan);
    let expected = [(Purpose::Allocator, 16, true), (Purpose::Soak, 16, true), (Purpose::Soak, 16, false)];
    assert_eq!(last(&played, 3), expected, "{:?}", played.sizes());
    let found = answer(&played);
    assert_eq!(found.alloc_conf.as_deref(), Some(best));
    let tuned = history.tuned(&Point { alloc_conf: None, ..found.clone() }).unwrap();
    assert_eq!((tuned.steps, &tuned.conf), (200, &found.alloc_conf), "{}", tuned.reason);
    assert_eq!(standing(&history, &Space::new(&plan)).point(), Some(found));
    // What is listed and no better leaves the program its own, whatever else would do.
    let (played, history) = search_for(&Machine::wasteful(), &listed(["max_split_size_mb:64"]));
    let own = answer(&played);
    assert_eq!((own.alloc_conf.as_ref(), &history.tuned(own).unwrap().conf), (None, &None));
    assert!(played.trials.iter().all(|(purpose, _)| *purpose != Purpose::Allocator));
    // Nor is a run played where nothing is listed.
    let (played, history) = search_for(&Machine::wasteful(), &listed([]));
    assert_eq!(history.tuned(answer(&played)), None);
}

#[test]
fn a_run_that_is_not_forecast_exactly_is_searched_too_and_says_so() {
    // An activation that is rounded, so that it follows no polynomial.
    let machine = Machine::wasteful();
    let activations = machine.activations.iter().copied().chain([1001]).collect();
    let weights = machine.weights.iter().copied().chain([512]).collect();
    let (played, history) = search(&Machine { weights, activations, ..machine });
    let expected = [(Purpose::Allocator, 16, true), (Purpose::Soak, 16, true), (Purpose::Soak, 16, false)];
    assert_eq!(last(&played, 3), expected, "{:?}", played.sizes());
    let own = Point { alloc_conf: None, ..answer(&played).clone() };
    let tuned = history.tuned(&own).unwrap();
    assert_eq!((tuned.method, tuned.conf.is_some()), (Method::Affine, true), "{}", tuned.reason);
    assert!(tuned.reason.contains(" (affine: by a forecast that may err"), "{}", tuned.reason);
    let soak = history.soaked(answer(&played)).unwrap();
    assert_eq!(soak.record.outlook.as_ref().unwrap().method, Method::Affine);
}

#[test]
fn a_listed_setting_under_which_a_run_lasts_keeps_its_size() {
    let machine = Machine { breaks_from: Some(2), ..Machine::wasteful() };
    let (played, _) = search_for(&machine, &listed(["expandable_segments:True"]));
    assert_eq!(answer(&played).batch_size, 16, "{:?}", played.sizes());
    let (played, _) = search_for(&machine, &listed(["max_split_size_mb:64"]));
    assert_eq!(answer(&played).batch_size, 1, "the run of a batch of one is not forecast");
}

#[test]
fn settings_that_save_nothing_in_the_soak_give_way_to_the_program_s_own() {
    // Every size a multiple of 20 MiB at full length, and of nothing at others.
    let machine = Machine {
        weights: vec![20 * MIB; 4],
        activations: vec![5 * MIB / 2, 5 * MIB / 4, 15 * MIB / 4],
        tokens: 64,
        ..Machine::new()
    };
    let (played, history) = search(&machine);
    assert_eq!(last(&played, 2), [(Purpose::Soak, 16, true), (Purpose::Soak, 16, false)], "{:?}", played.sizes());
    assert_eq!(answer(&played).alloc_conf, None);
    assert_eq!(standing(&history, &Space::new(&varying())).point(), Some(answer(&played)));
}

#[test]
fn settings_that_cost_speed_are_left_before_any_soak() {
    let (played, _) = search(&Machine { settings_cost: 0.01, ..Machine::wasteful() });
    assert_eq!(last(&played, 2), [(Purpose::Allocator, 16, true), (Purpose::Soak, 16, false)]);
    let (played, _) = search(&Machine { settings_cost: 0.004, ..Machine::wasteful() });
    assert!(answer(&played).alloc_conf.is_some());
}

#[test]
fn a_run_that_breaks_under_the_program_s_own_settings_alone_keeps_its_size() {
    // Whatever they cost.
    let (played, history) = search(&Machine { breaks_from: Some(2), settings_cost: 0.2, ..Machine::wasteful() });
    let found = answer(&played);
    assert_eq!((found.batch_size, found.alloc_conf.is_some()), (16, true), "{:?}", played.sizes());
    let own = history.soaked(&Point { alloc_conf: None, ..found.clone() }).unwrap();
    assert!(own.record.completed() && !own.is_safe(), "its run breaks later than its soak ends");
    assert_eq!(standing(&history, &Space::new(&varying())).point(), Some(found));
}

#[test]
fn a_size_whose_trial_is_short_of_memory_under_the_program_s_own_settings_keeps_under_others() {
    let mut plan = varying();
    plan.safety.fragmentation_threshold = Fraction(0.9);
    for (shown, is_soaked) in [(fragmented as fn(&Point) -> Shown, true), (out_of_memory, false)] {
        let machine = Machine { trial_shows: shown, ..Machine::wasteful() };
        // Where 16 is one of several sizes, and where it is the only one.
        for accumulation_steps in [None, Some(vec![1])] {
            plan.search.accumulation_steps = accumulation_steps;
            let (played, history) = search_for(&machine, &plan);
            let found = answer(&played);
            assert_eq!((found.batch_size, found.alloc_conf.is_some()), (16, true), "{:?}", played.sizes());
            let own = Point { alloc_conf: None, ..found.clone() };
            assert!(!history.measured(&own).unwrap().is_safe() && history.tuned(&own).is_some());
            // It is held against the program's own where it can be.
            assert_eq!(history.soaked(&own).is_some(), is_soaked, "{:?}", played.sizes());
            assert_eq!(standing(&history, &Space::new(&plan)).point(), Some(found));
        }
    }
}

#[test]
fn on_a_ladder_settings_that_one_rung_needs_are_those_of_the_rungs_above() {
    // Nothing is forecast of sizes, and of the run everything.
    let machine = Machine { trial_shows: out_of_memory, probes_differ: true, ..Machine::wasteful() };
    let (played, history) = search(&machine);
    let found = answer(&played);
    assert_eq!((found.batch_size, found.alloc_conf.is_some()), (16, true), "{:?}", played.sizes());
    let measured: Vec<(Purpose, usize, bool)> = last(&played, played.trials.len())
        .into_iter()
        .filter(|(purpose, ..)| !matches!(purpose, Purpose::Probe | Purpose::Soak))
        .collect();
    let under_own = measured.iter().filter(|(_, size, is_found)| !is_found && *size > 1).count();
    assert_eq!(under_own, 1, "the first rung alone: {measured:?}");
    assert_eq!(history.tuned(&Point { alloc_conf: None, ..found.clone() }).map(|found| found.steps), Some(200));
}

#[test]
fn rungs_below_the_only_pair_are_not_run() {
    let mut plan = varying();
    plan.search.accumulation_steps = Some(vec![1]);
    let machine = Machine { trial_shows: out_of_memory, probes_differ: true, ..Machine::wasteful() };
    let (played, _) = search_for(&machine, &plan);
    assert_eq!((answer(&played).batch_size, answer(&played).alloc_conf.is_some()), (16, true));
    let sizes =
        played.trials.iter().filter(|(purpose, _)| *purpose != Purpose::Probe).map(|(_, point)| point.batch_size);
    assert!(sizes.into_iter().all(|size| size == 16), "{:?}", played.sizes());
}

fn fragmented(point: &Point) -> Shown {
    if point.alloc_conf.is_none() && point.batch_size > 1 { Shown::Fragmented } else { Shown::AsForecast }
}

fn out_of_memory(point: &Point) -> Shown {
    if point.alloc_conf.is_none() && point.batch_size > 1 { Shown::OutOfMemory } else { Shown::AsForecast }
}

#[test]
fn where_a_trial_refutes_the_settings_that_were_found_the_next_that_last_are_tried() {
    let only_others = |point: &Point| match point.alloc_conf.as_deref() {
        None | Some("expandable_segments:True") if point.batch_size > 1 => Shown::OutOfMemory,
        _ => Shown::AsForecast,
    };
    let (played, history) = search(&Machine { trial_shows: only_others, ..Machine::wasteful() });
    let found = answer(&played);
    assert_eq!(found.batch_size, 16, "{:?}", played.sizes());
    let tuned = history.tuned(&Point { alloc_conf: None, ..found.clone() }).unwrap();
    assert_eq!(tuned.conf.as_deref(), Some("expandable_segments:True"));
    assert!(found.alloc_conf.as_ref().is_some_and(|conf| tuned.next.contains(conf)), "{tuned:?}");
}

#[test]
fn a_search_is_spent_on_two_sizes_that_break_at_most() {
    let all = |point: &Point| if point.batch_size > 1 { Shown::OutOfMemory } else { Shown::AsForecast };
    let (played, history) = search(&Machine { trial_shows: all, ..Machine::wasteful() });
    assert_eq!(answer(&played).batch_size, 1, "{:?}", played.sizes());
    let searched = played.trials.iter().filter(|(_, point)| point.alloc_conf.is_none() && point.batch_size > 1);
    let searched: std::collections::BTreeSet<&Point> =
        searched.map(|(_, point)| point).filter(|point| history.tuned(point).is_some()).collect();
    assert_eq!(searched.len(), 2, "{:?}", played.sizes());
}

#[test]
fn a_soak_that_breaks_under_the_program_s_own_settings_says_so_and_changes_nothing() {
    let (played, history) = search(&Machine { soak_breaks: |point| point.alloc_conf.is_none(), ..Machine::wasteful() });
    assert_eq!(last(&played, 2), [(Purpose::Soak, 16, true), (Purpose::Soak, 16, false)]);
    assert!(answer(&played).alloc_conf.is_some());
    assert!(!history.trials().last().unwrap().record.completed());
}

#[test]
fn a_smaller_batch_whose_run_breaks_gets_settings_of_its_own_where_those_of_a_larger_one_do_not_hold() {
    let machine = Machine { breaks_from: Some(2), soak_breaks: |point| point.batch_size == 16, ..Machine::wasteful() };
    let (played, history) = search(&machine);
    let found = answer(&played);
    assert_eq!((found.batch_size, found.alloc_conf.is_some()), (8, true), "{:?} {:?}", played.sizes(), played.skipped);
    for batch_size in [16, 8] {
        let own = played.trials.iter().map(|(_, point)| point).find(|point| point.batch_size == batch_size).unwrap();
        assert!(history.tuned(own).is_some(), "{batch_size}");
    }
}

#[test]
fn the_same_history_gets_the_same_answer_from_a_fresh_strategy_at_every_step() {
    let machine = Machine::wasteful();
    let (whole, _) = machine.play(&mut *strategy(&varying(), usize::MAX), &varying());
    let (afresh, _) = machine.play(&mut Forgetful, &varying());
    assert_eq!((whole.trials, whole.conclusion), (afresh.trials, afresh.conclusion));
}

/// A strategy that remembers nothing from one question to the next.
struct Forgetful;

impl crate::search::Strategy for Forgetful {
    fn ask(&mut self, history: &History, knowledge: &dyn crate::search::Knowledge) -> crate::search::Ask {
        strategy(&varying(), usize::MAX).ask(history, knowledge)
    }
}

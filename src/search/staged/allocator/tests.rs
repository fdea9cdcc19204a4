//! Searches on a machine whose memory is simulated, with settings of the allocator to choose from.

use crate::config::Plan;
use crate::config::resolve::USUAL_CONFS;
use crate::data::{DataSpec, LengthDistribution, LengthSpec};
use crate::search::machine::Machine;
use crate::search::recommend::standing;
use crate::search::scripted::{Played, plan};
use crate::search::{Conclusion, History, JudgedTrial, Space, strategy};
use crate::trial::{Point, Purpose};
use crate::units::{Fraction, MIB};

/// Samples of varying lengths, and any settings that may be found.
fn varying() -> Plan {
    let length = LengthSpec::Range { min: 8, max: 64, distribution: LengthDistribution::Uniform };
    let mut plan = plan(16);
    plan.data = DataSpec { sequence_length: Some(length), ..DataSpec::default() };
    plan.search.alloc_conf = USUAL_CONFS.map(str::to_owned).to_vec();
    plan.safety.horizon_steps = 200;
    // The rate is another matter.
    plan.safety.fragmentation_threshold = Fraction(1.0);
    plan
}

/// Weights that the native allocator puts into segments a seventh larger than they are, at every batch size.
fn wasteful() -> Machine {
    Machine { weights: vec![10 * MIB + 500_000; 10], activations: vec![MIB / 8; 10], tokens: 64, ..Machine::new() }
}

fn search(machine: &Machine) -> (Played, History) {
    machine.play(&mut *strategy(&varying(), usize::MAX), &varying())
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
    let (played, history) = search(&wasteful());
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
    let (played, _) = search(&Machine { settings_cost: 0.01, ..wasteful() });
    assert_eq!(last(&played, 2), [(Purpose::Allocator, 16, true), (Purpose::Soak, 16, false)]);
    let (played, _) = search(&Machine { settings_cost: 0.004, ..wasteful() });
    assert!(answer(&played).alloc_conf.is_some());
}

#[test]
fn a_run_that_breaks_under_the_program_s_own_settings_alone_keeps_its_size() {
    // Whatever they cost.
    let (played, history) = search(&Machine { breaks_from: Some(2), settings_cost: 0.2, ..wasteful() });
    let found = answer(&played);
    assert_eq!((found.batch_size, found.alloc_conf.is_some()), (16, true), "{:?}", played.sizes());
    let own = history.soaked(&Point { alloc_conf: None, ..found.clone() }).unwrap();
    assert!(own.record.completed() && !own.is_safe(), "its run breaks later than its soak ends");
    assert_eq!(standing(&history, &Space::new(&varying())).point(), Some(found));
}

#[test]
fn a_soak_that_breaks_under_the_program_s_own_settings_says_so_and_changes_nothing() {
    let (played, history) = search(&Machine { soak_breaks: |point| point.alloc_conf.is_none(), ..wasteful() });
    assert_eq!(last(&played, 2), [(Purpose::Soak, 16, true), (Purpose::Soak, 16, false)]);
    assert!(answer(&played).alloc_conf.is_some());
    assert!(!history.trials().last().unwrap().record.completed());
}

#[test]
fn a_smaller_batch_whose_run_breaks_gets_settings_of_its_own_where_those_of_a_larger_one_do_not_hold() {
    let machine = Machine { breaks_from: Some(2), soak_breaks: |point| point.batch_size == 16, ..wasteful() };
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
    let machine = wasteful();
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

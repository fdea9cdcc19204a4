//! What a worker says, and what it must not say.

use std::time::Duration;

use batchtune::trial::{Executor, Observation, Outcome, Purpose, TrialSpec};

use crate::stage::{REPEATS, Stage, crashed_by, impatient, protocol_error};
use crate::toy::spec;

pub(crate) fn a_worker_that_floods_its_log_is_neither_blocked_nor_believed() {
    let outcomes = Stage::new("floods_its_log").fault_then_good();
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Completed), "{outcomes:?}");
    let outcomes = Stage::with("floods_its_log_for_ever", impatient).fault_then_good();
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::TimedOut { seconds: 0.3 }), "{outcomes:?}");
}

pub(crate) fn a_workload_that_prints_does_not_break_the_protocol() {
    let mut stage = Stage::new("prints_after_claiming");
    for round in 0..REPEATS {
        assert!(stage.run(4 * round + 1).completed());
        // A log is read to the end where it matters: this trial's worker is killed after it printed the same.
        let outcome = stage.run(4 * round + 3).outcome;
        let Outcome::Crashed { signal: Some(9), log, .. } = outcome else { panic!("{outcome:?}") };
        let printed = "epoch 1: loss 4.2\nfrom a child";
        assert_eq!(log, format!("{printed}\n{printed}"));
    }
    stage.close();
}

pub(crate) fn lines_that_are_no_messages_are_protocol_errors() {
    for part in ["prints_on_stdout", "prints_garbage"] {
        let outcomes = Stage::new(part).fault_then_good();
        assert!(
            outcomes.iter().all(|outcome| protocol_error(outcome, "is no message of the protocol")),
            "{outcomes:?}"
        );
    }
    let outcomes = Stage::with("prints_a_line_without_end", |config| config.patience.leave = Duration::ZERO);
    let outcomes = outcomes.fault_then_good();
    assert!(outcomes.iter().all(|outcome| protocol_error(outcome, "longer than")), "{outcomes:?}");
}

pub(crate) fn half_a_line_is_a_protocol_error_unless_a_signal_explains_it() {
    let outcomes = Stage::new("prints_half_a_line_and_leaves").fault_then_good();
    assert!(outcomes.iter().all(|outcome| protocol_error(outcome, "within a line")), "{outcomes:?}");
    let outcomes = Stage::new("prints_half_a_line_and_is_killed").fault_then_good();
    assert!(outcomes.iter().all(|outcome| crashed_by(outcome, 9)), "{outcomes:?}");
}

pub(crate) fn messages_out_of_turn_are_protocol_errors() {
    type Words = fn(u32) -> String;
    let parts: [(&str, Words); 5] = [
        ("speaks_of_another_trial", |trial| format!("of trial {} in trial {trial}", trial + 7)),
        ("skips_a_step", |_| "step 2 after step 0".to_owned()),
        ("takes_samples_for_ever", |_| "samples".to_owned()),
        ("says_hello_again", |_| "said `hello`".to_owned()),
        ("completes_without_a_measurement", |_| "without a measurement".to_owned()),
    ];
    for (part, words) in parts {
        let outcomes = Stage::with(part, |config| config.patience.leave = Duration::ZERO).fault_then_good();
        assert!(
            (0..).zip(&outcomes).all(|(round, outcome)| protocol_error(outcome, &words(2 * round + 1))),
            "{part}: {outcomes:?}"
        );
    }
}

pub(crate) fn a_trial_may_go_on_up_to_its_bound_and_no_further() {
    let six = TrialSpec { steps: 6, ..spec(1, Purpose::Ladder) };
    let run = |part: &str, spec: &TrialSpec| {
        let mut stage = Stage::with(part, |config| config.patience.leave = Duration::ZERO);
        let mut totals = Vec::new();
        let record = stage.executor().run(spec, &mut |observation| {
            if let Observation::Extended { total } = observation {
                totals.push(total);
            }
        });
        stage.close();
        (record.unwrap().outcome, totals)
    };
    assert_eq!(run("goes_on", &six), (Outcome::Completed, (7..=18).collect()));
    let (outcome, totals) = run("goes_on_too_far", &six);
    assert!(protocol_error(&outcome, "went on to 19 steps after step 6") && totals.is_empty(), "{outcome:?}");
    let (outcome, _) = run("goes_on_before_its_end", &six);
    assert!(protocol_error(&outcome, "went on to 7 steps after step 0"), "{outcome:?}");
    let (outcome, _) = run("goes_on_too_far", &TrialSpec { purpose: Purpose::Soak, ..six });
    assert!(protocol_error(&outcome, "went on to 7 steps after step 6"), "{outcome:?}");
}

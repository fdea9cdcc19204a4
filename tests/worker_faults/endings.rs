//! Every way in which a worker can end or hang has an outcome of its own.

use std::time::Duration;

use batchtune::trial::spec::checkpoint_path;
use batchtune::trial::{Executor, Outcome, Purpose, TrialSpec};

use crate::stage::{REPEATS, Stage, crashed_by, faults_then_good, impatient, protocol_error};
use crate::toy::spec;

pub(crate) fn a_worker_that_is_killed_has_crashed() {
    let outcomes = Stage::new("is_killed").fault_then_good();
    assert!(outcomes.iter().all(|outcome| crashed_by(outcome, 9)), "{outcomes:?}");
}

pub(crate) fn a_worker_that_segfaults_has_crashed() {
    let outcomes = Stage::new("segfaults").fault_then_good();
    assert!(outcomes.iter().all(|outcome| crashed_by(outcome, 11)), "{outcomes:?}");
}

pub(crate) fn a_worker_that_aborts_has_crashed() {
    let outcomes = Stage::new("aborts").fault_then_good();
    assert!(outcomes.iter().all(|outcome| crashed_by(outcome, 6)), "{outcomes:?}");
}

pub(crate) fn a_worker_that_hangs_is_timed_out() {
    let parts = ["hangs", "ignores_sigterm_and_hangs", "closes_its_output_and_hangs"];
    let outcomes = faults_then_good(&parts, impatient);
    for outcomes in &outcomes[..2] {
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::TimedOut { seconds: 0.3 }), "{outcomes:?}");
    }
    // Its silence says enough.
    assert!(outcomes[2].iter().all(|outcome| protocol_error(outcome, "closed its output")), "{:?}", outcomes[2]);
}

pub(crate) fn a_worker_that_hangs_before_its_first_step_has_more_time() {
    // The model is built before the first step.
    let parts = ["hangs_before_its_first_step", "prints_half_a_line_and_hangs"];
    let outcomes = faults_then_good(&parts, |config| {
        impatient(config);
        config.patience.build = Duration::from_millis(200);
    });
    for outcomes in outcomes {
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::TimedOut { seconds: 0.5 }), "{outcomes:?}");
    }
}

pub(crate) fn a_soak_that_hangs_has_more_time_for_its_evaluation_alone() {
    let hangs = |steps: u32| {
        let mut stage = Stage::with("hangs", |config| {
            impatient(config);
            config.patience.build = Duration::from_millis(200);
        });
        let soak = TrialSpec { steps, ..spec(1, Purpose::Soak) };
        let outcome = stage.executor().run(&soak, &mut |_| {}).unwrap().outcome;
        stage.close();
        outcome
    };
    // After the first of two steps the evaluation pass is due, and of eight it is not.
    assert_eq!(hangs(2), Outcome::TimedOut { seconds: 0.5 });
    assert_eq!(hangs(8), Outcome::TimedOut { seconds: 0.3 });
}

pub(crate) fn errors_that_a_worker_tells_are_outcomes_of_their_own() {
    let outcomes = Stage::new("has_a_device_error").fault_then_good();
    let expected = Outcome::DeviceError { message: "an illegal memory access\\u{1b}".to_owned() };
    assert!(outcomes.iter().all(|outcome| *outcome == expected), "{outcomes:?}");
    let outcomes = Stage::new("diverges").fault_then_good();
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Diverged { step: 0 }), "{outcomes:?}");
    let outcomes = Stage::new("fails").fault_then_good();
    let expected = Outcome::Failed { message: "shape mismatch".to_owned() };
    assert!(outcomes.iter().all(|outcome| *outcome == expected), "{outcomes:?}");
}

pub(crate) fn leaving_without_an_answer_is_a_crash_even_with_status_0() {
    let outcomes = Stage::new("leaves_without_an_answer").fault_then_good();
    for outcome in outcomes {
        assert!(matches!(outcome, Outcome::Crashed { signal: None, status: Some(0), .. }), "{outcome:?}");
    }
    let outcomes = Stage::new("leaves_with_status_9").fault_then_good();
    for outcome in outcomes {
        let Outcome::Crashed { signal: None, status: Some(9), log } = outcome else { panic!("{outcome:?}") };
        assert_eq!(log, "the last words\\u{7}");
    }
}

pub(crate) fn the_status_for_far_over_the_limit_is_out_of_memory() {
    for outcome in Stage::new("goes_far_over_the_limit").fault_then_good() {
        let Outcome::OutOfMemory { limit_bytes, requested_bytes: None, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(limit_bytes, Some(1 << 29));
    }
}

pub(crate) fn a_kill_counted_by_the_cgroup_is_host_out_of_memory() {
    let outcomes = Stage::new("is_killed_for_host_memory").fault_then_good();
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::HostOutOfMemory), "{outcomes:?}");
}

pub(crate) fn a_worker_that_is_refused_memory_is_host_out_of_memory() {
    for outcome in Stage::new("is_refused_memory").fault_then_good() {
        assert_eq!(outcome, Outcome::HostOutOfMemory);
    }
}

pub(crate) fn grandchildren_go_with_their_worker() {
    let outcomes = Stage::new("leaves_grandchildren_and_is_killed").fault_then_good();
    assert!(outcomes.iter().all(|outcome| crashed_by(outcome, 9)), "{outcomes:?}");
    for outcome in Stage::new("leaves_grandchildren_and_answers_nothing").fault_then_good() {
        assert!(matches!(outcome, Outcome::Crashed { signal: None, status: Some(0), .. }), "{outcome:?}");
    }
}

pub(crate) fn a_soak_whose_worker_is_killed_leaves_no_checkpoint() {
    let mut stage = Stage::new("is_killed_in_its_checkpoint");
    for round in 0..REPEATS {
        let soak = spec(2 * round + 1, Purpose::Soak);
        let path = checkpoint_path(stage.directory.path(), soak.id);
        let mut written = false;
        // The worker says a step once the file is there.
        let record = stage.executor().run(&soak, &mut |_| written = path.exists()).unwrap();
        assert!(written && crashed_by(&record.outcome, 9), "{:?}", record.outcome);
        assert!(!path.exists());
    }
    stage.close();
}

pub(crate) fn a_worker_that_leaves_after_its_answer_has_answered() {
    // The process is gone when the next trial begins, which is not that trial's fault.
    let outcomes = Stage::new("answers_and_leaves").fault_then_good();
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Completed), "{outcomes:?}");
}

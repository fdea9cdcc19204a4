//! What happens to a trial when its worker goes wrong: every fault ends in its named outcome, the next trial works, the
//! worker's whole process group is gone, and nobody else was signalled.
//!
//! The program has its own main because it plays the workers too (`../workers/scripted.rs`): started with a part in its
//! environment it is a worker, otherwise it runs the tests like the standard harness, one after the other.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod course;
mod endings;
mod launched;
mod real;
#[path = "../workers/scripted.rs"]
mod scripted;
mod stage;
#[path = "../workers/toy.rs"]
mod toy;
mod words;

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Duration;

use batchtune::model::Registry;

/// No test takes longer, however busy the machine is: it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// The tests, by name.
type Test = (&'static str, fn());

macro_rules! tests {
    ($($room:ident::$name:ident),* $(,)?) => { &[$((stringify!($name), $room::$name as fn())),*] };
}

const TESTS: &[Test] = tests![
    course::a_leak_would_be_seen,
    course::a_good_worker_is_used_again,
    words::a_trial_may_go_on_up_to_its_bound_and_no_further,
    course::a_worker_that_is_not_clean_is_replaced,
    endings::a_worker_that_is_killed_has_crashed,
    endings::a_worker_that_segfaults_has_crashed,
    endings::a_worker_that_aborts_has_crashed,
    endings::a_worker_that_hangs_is_timed_out,
    endings::a_worker_that_hangs_before_its_first_step_has_more_time,
    endings::a_soak_that_hangs_has_more_time_for_its_evaluation_alone,
    words::a_worker_that_floods_its_log_is_neither_blocked_nor_believed,
    endings::errors_that_a_worker_tells_are_outcomes_of_their_own,
    words::a_workload_that_prints_does_not_break_the_protocol,
    words::lines_that_are_no_messages_are_protocol_errors,
    words::half_a_line_is_a_protocol_error_unless_a_signal_explains_it,
    endings::leaving_without_an_answer_is_a_crash_even_with_status_0,
    words::messages_out_of_turn_are_protocol_errors,
    endings::the_status_for_far_over_the_limit_is_out_of_memory,
    endings::a_kill_counted_by_the_cgroup_is_host_out_of_memory,
    endings::a_worker_that_is_refused_memory_is_host_out_of_memory,
    endings::grandchildren_go_with_their_worker,
    endings::a_soak_whose_worker_is_killed_leaves_no_checkpoint,
    endings::a_worker_that_leaves_after_its_answer_has_answered,
    course::a_worker_that_cannot_start_is_an_error_that_says_why,
    course::an_automatic_limit_is_pinned_for_the_workers_after_the_first,
    course::the_first_interrupt_waits_for_the_step_and_the_second_for_nothing,
    course::an_interrupt_before_the_first_step_waits_for_no_build,
    course::the_end_of_the_budget_ends_a_trial,
    real::a_real_worker_refuses_a_workload_that_it_does_not_know,
    real::a_real_worker_leaves_at_the_end_of_its_input_whatever_it_is_doing,
    real::a_real_worker_ends_with_its_parent_though_its_input_stays_open,
    launched::launched_workers_run_trials_in_a_session_of_their_own,
    launched::a_launcher_s_status_is_its_worker_s_and_never_an_answer,
    launched::a_worker_out_of_reach_of_signals_is_cancelled,
    launched::a_worker_whose_launcher_is_killed_is_cancelled,
    launched::every_launched_worker_is_cancelled_whatever_its_end,
    launched::a_launcher_that_starts_nothing_is_told_from_a_worker_that_fails,
    launched::a_worker_that_never_starts_is_an_outcome_of_its_own,
    launched::a_trial_whose_worker_lost_us_is_run_again,
    launched::replicas_on_two_machines_hear_each_other_and_who_is_gone,
    launched::a_trial_whose_group_lost_us_is_run_again,
    launched::a_real_worker_leaves_when_it_hears_nothing_for_its_lease,
    launched::an_idle_worker_is_pinged_for_as_long_as_the_driver_lives,
];

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(launched::LAUNCH) {
        let command: Vec<std::ffi::OsString> = std::env::args_os().skip(2).collect();
        let error = batchtune::trial::launcher::session::become_launcher(&command);
        let _ = writeln!(io::stderr(), "{error}");
        return ExitCode::from(batchtune::trial::launcher::session::NOT_FOUND);
    }
    match std::env::var(scripted::PART).as_deref() {
        Ok(real::REAL_WORKER) => return batchtune::trial::worker::main(&Registry::default().with(toy::Stuck)),
        Ok(real::PARENT) => return real::parent_of_a_worker(),
        Ok(part) => return scripted::play(part),
        Err(_) => {}
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |name: &str| {
        filters.is_empty()
            || filters.iter().any(|f| if has("--exact") { name == *f } else { name.contains(f.as_str()) })
    };
    let mut out = io::stdout();
    let mut failed = Vec::new();
    // The standard harness's `--ignored` runs ignored tests only, and none is.
    for (name, test) in TESTS.iter().filter(|(name, _)| wanted(name) && !has("--ignored")) {
        if has("--list") {
            let _ = writeln!(out, "{name}: test");
            continue;
        }
        let passed = not_hanging(name, || catch_unwind(AssertUnwindSafe(test)).is_ok());
        let _ = writeln!(out, "test {name} ... {}", if passed { "ok" } else { "FAILED" });
        if !passed {
            failed.push(*name);
        }
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    let _ = writeln!(out, "failed: {}", failed.join(", "));
    ExitCode::FAILURE
}

/// Runs a test; ends the program where that does not end.
fn not_hanging<T>(name: &str, test: impl FnOnce() -> T) -> T {
    let (done, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if ended.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let _ = writeln!(io::stderr(), "test {name} hangs");
                std::process::abort();
            }
        });
        let result = test();
        drop(done);
        result
    })
}

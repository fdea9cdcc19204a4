//! Trials through a real Slurm, of one machine with two stand-in GPUs: the whole program, and every row of the failure
//! table that a test can bring about in seconds. After each, no job is left, and no process of its workers.
//!
//! The program has its own main: it brings the cluster up, runs itself again inside of it, and takes the cluster down
//! whatever happened. It plays the workers too (`../workers/scripted.rs`). Without Slurm on the machine the tests are
//! skipped, and say so; with `BATCHTUNE_TEST_SLURM=1`, as in `.ci/run`, that is a failure.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

mod cluster;
mod faults;
mod replicas;
#[path = "../workers/scripted.rs"]
mod scripted;
mod side_by_side;
mod stage;
mod studies;
#[path = "../workers/toy.rs"]
mod toy;

/// The tests, by name.
type Test = (&'static str, fn());

macro_rules! tests {
    ($($room:ident::$name:ident),* $(,)?) => { &[$((stringify!($name), $room::$name as fn())),*] };
}

const TESTS: &[Test] = tests![
    faults::a_worker_that_is_killed_has_crashed,
    faults::a_worker_whose_srun_is_killed_is_cancelled,
    faults::a_job_that_is_cancelled_has_crashed_and_says_why,
    faults::half_a_line_is_a_protocol_error_though_srun_ends_with_0,
    faults::leaving_without_an_answer_is_a_crash_though_srun_ends_with_0,
    faults::a_worker_that_hangs_is_timed_out,
    faults::an_impossible_request_says_so_at_once,
    faults::a_program_that_is_not_there_says_so_at_once,
    faults::a_job_that_stays_in_the_queue_never_started_and_is_taken_back,
    faults::an_interrupt_takes_a_pending_job_back,
    faults::a_worker_without_a_driver_and_an_srun_leaves_by_its_lease,
    studies::a_study_runs_through_srun_and_records_where,
    studies::a_study_inside_an_allocation_runs_as_its_steps,
    studies::a_tuner_that_is_killed_leaves_no_job,
    side_by_side::two_workers_run_in_two_jobs_at_once_and_try_what_one_tries,
    side_by_side::a_job_that_is_cancelled_ends_its_trial_and_no_other,
    replicas::a_study_of_two_replicas_runs_each_trial_in_two_jobs,
    replicas::a_rank_whose_job_is_cancelled_ends_the_trial_of_all,
    replicas::a_rank_that_never_begins_takes_the_others_jobs_back,
    replicas::of_two_groups_on_the_cards_of_one_the_first_has_them_all,
    replicas::a_group_inside_an_allocation_is_two_steps_of_it,
];

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(stage::LAUNCH) {
        let command: Vec<std::ffi::OsString> = std::env::args_os().skip(2).collect();
        let error = batchtune::trial::launcher::session::become_launcher(&command);
        cluster::print(&error.to_string());
        return ExitCode::from(batchtune::trial::launcher::session::NOT_FOUND);
    }
    match std::env::var(scripted::PART).as_deref() {
        Ok(stage::REAL_WORKER) => return stage::real_worker(),
        Ok(part) => return scripted::play(part),
        Err(_) => {}
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    if has("--list") {
        for (name, _) in TESTS {
            cluster::print(&format!("{name}: test"));
        }
        return ExitCode::SUCCESS;
    }
    if has("--ignored") {
        return ExitCode::SUCCESS;
    }
    if !cluster::is_inside() {
        return cluster::run_inside();
    }
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let mut failed = Vec::new();
    for (name, test) in TESTS.iter().filter(|(name, _)| wanted(name)) {
        let started = Instant::now();
        let passed = catch_unwind(AssertUnwindSafe(test)).is_ok();
        let seconds = started.elapsed().as_secs_f64();
        cluster::print(&format!("test {name} ... {} ({seconds:.1} s)", if passed { "ok" } else { "FAILED" }));
        if !passed {
            failed.push(*name);
        }
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    cluster::print(&format!("failed: {}", failed.join(", ")));
    ExitCode::FAILURE
}

//! What happens to a trial when its worker goes wrong: every fault ends in its named outcome, the next trial works, the
//! worker's whole process group is gone, and nobody else was signalled.
//!
//! The program has its own main because it plays the workers too (`workers/scripted.rs`): started with a part in its
//! environment it is a worker, otherwise it runs the tests like the standard harness, one after the other.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use batchtune::data::InputSpec;
use batchtune::memory::LimitSpec;
use batchtune::model::{BuildContext, Family, ModelError, ModelSpec, Registry, Workload};
use batchtune::trial::process::{OomKills, Patience, ProcessConfig, ProcessExecutor, WorkerCommand};
use batchtune::trial::spec::checkpoint_path;
use batchtune::trial::{
    Executor, ExecutorError, Interrupt, Observation, Outcome, Purpose, TrialRecord, TrialSpec, WorkloadSpec,
};
use batchtune::units::Fraction;
use nix::errno::Errno;
use nix::sys::signal::{kill, killpg};
use nix::unistd::Pid;

#[path = "workers/launched.rs"]
mod launched;
#[path = "workers/scripted.rs"]
mod scripted;
#[path = "workers/toy.rs"]
mod toy;

use launched::{
    a_launcher_s_status_is_its_worker_s_and_never_an_answer,
    a_launcher_that_starts_nothing_is_told_from_a_worker_that_fails,
    a_real_worker_leaves_when_it_hears_nothing_for_its_lease, a_trial_whose_group_lost_us_is_run_again,
    a_trial_whose_worker_lost_us_is_run_again, a_worker_out_of_reach_of_signals_is_cancelled,
    a_worker_that_never_starts_is_an_outcome_of_its_own, a_worker_whose_launcher_is_killed_is_cancelled,
    an_idle_worker_is_pinged_for_as_long_as_the_driver_lives, every_launched_worker_is_cancelled_whatever_its_end,
    launched_workers_run_trials_in_a_session_of_their_own, replicas_on_two_machines_hear_each_other_and_who_is_gone,
};
use toy::{spec, workload};

/// How often every fault is repeated: a leak of one thing a fault shows long before a study has as many.
const REPEATS: u32 = 20;
/// No test takes longer, however busy the machine is: it hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// The tests, by name.
type Test = (&'static str, fn());

macro_rules! tests {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name as fn())),*] };
}

const TESTS: &[Test] = tests![
    a_leak_would_be_seen,
    a_good_worker_is_used_again,
    a_trial_may_go_on_up_to_its_bound_and_no_further,
    a_worker_that_is_not_clean_is_replaced,
    a_worker_that_is_killed_has_crashed,
    a_worker_that_segfaults_has_crashed,
    a_worker_that_aborts_has_crashed,
    a_worker_that_hangs_is_timed_out,
    a_worker_that_hangs_before_its_first_step_has_more_time,
    a_soak_that_hangs_has_more_time_for_its_evaluation_alone,
    a_worker_that_floods_its_log_is_neither_blocked_nor_believed,
    errors_that_a_worker_tells_are_outcomes_of_their_own,
    a_workload_that_prints_does_not_break_the_protocol,
    lines_that_are_no_messages_are_protocol_errors,
    half_a_line_is_a_protocol_error_unless_a_signal_explains_it,
    leaving_without_an_answer_is_a_crash_even_with_status_0,
    messages_out_of_turn_are_protocol_errors,
    the_status_for_far_over_the_limit_is_out_of_memory,
    a_kill_counted_by_the_cgroup_is_host_out_of_memory,
    a_worker_that_is_refused_memory_is_host_out_of_memory,
    grandchildren_go_with_their_worker,
    a_soak_whose_worker_is_killed_leaves_no_checkpoint,
    a_worker_that_leaves_after_its_answer_has_answered,
    a_worker_that_cannot_start_is_an_error_that_says_why,
    an_automatic_limit_is_pinned_for_the_workers_after_the_first,
    the_first_interrupt_waits_for_the_step_and_the_second_for_nothing,
    an_interrupt_before_the_first_step_waits_for_no_build,
    the_end_of_the_budget_ends_a_trial,
    a_real_worker_refuses_a_workload_that_it_does_not_know,
    a_real_worker_leaves_at_the_end_of_its_input_whatever_it_is_doing,
    a_real_worker_ends_with_its_parent_though_its_input_stays_open,
    launched_workers_run_trials_in_a_session_of_their_own,
    a_launcher_s_status_is_its_worker_s_and_never_an_answer,
    a_worker_out_of_reach_of_signals_is_cancelled,
    a_worker_whose_launcher_is_killed_is_cancelled,
    every_launched_worker_is_cancelled_whatever_its_end,
    a_launcher_that_starts_nothing_is_told_from_a_worker_that_fails,
    a_worker_that_never_starts_is_an_outcome_of_its_own,
    a_trial_whose_worker_lost_us_is_run_again,
    replicas_on_two_machines_hear_each_other_and_who_is_gone,
    a_trial_whose_group_lost_us_is_run_again,
    a_real_worker_leaves_when_it_hears_nothing_for_its_lease,
    an_idle_worker_is_pinged_for_as_long_as_the_driver_lives,
];

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(launched::LAUNCH) {
        let command: Vec<std::ffi::OsString> = std::env::args_os().skip(2).collect();
        let error = batchtune::trial::launcher::session::become_launcher(&command);
        let _ = writeln!(io::stderr(), "{error}");
        return ExitCode::from(batchtune::trial::launcher::session::NOT_FOUND);
    }
    match std::env::var(scripted::PART).as_deref() {
        Ok(REAL_WORKER) => return batchtune::trial::worker::main(&Registry::default().with(Stuck)),
        Ok(PARENT) => return parent_of_a_worker(),
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

/// What a driver holds of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: usize,
    threads: usize,
    /// Processes that it started, zombies among them.
    children: usize,
}

impl Holdings {
    fn now() -> Self {
        let own = std::process::id().to_string();
        Self {
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
            threads: fs::read_dir("/proc/self/task").unwrap().count(),
            children: stats().iter().filter(|stat| fields_of(stat)[1] == own).count(),
        }
    }

    /// Whether nothing is held that was not held before.
    fn is_within(self, before: Self) -> bool {
        self.descriptors <= before.descriptors && self.threads <= before.threads && self.children <= before.children
    }

    /// Fails unless what is held falls to what was held before.
    fn assert_back_at(before: Self) {
        // Threads that tend pipes close them in their own time.
        let until = Instant::now() + Duration::from_secs(30);
        while !Self::now().is_within(before) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(Self::now().is_within(before), "{:?} are left of {before:?}", Self::now());
    }
}

/// A study whose workers play a part.
struct Stage {
    executor: Option<ProcessExecutor>,
    interrupt: Interrupt,
    directory: tempfile::TempDir,
    /// Started before any worker, in a group of its own: it must live to the end.
    bystander: Child,
}

impl Stage {
    fn new(part: &str) -> Self {
        Self::with(part, |_| {})
    }

    fn with(part: &str, adjust: impl FnOnce(&mut ProcessConfig)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let counter = directory.path().join("memory.events");
        fs::write(&counter, "oom_kill 3\n").unwrap();
        let environment = [
            (scripted::PART, part.into()),
            (scripted::PIDS, directory.path().join("pids").into_os_string()),
            (scripted::OOM_COUNTER, counter.clone().into_os_string()),
        ];
        let interrupt = Interrupt::default();
        let mut config = ProcessConfig {
            command: WorkerCommand {
                program: std::env::current_exe().unwrap(),
                arguments: Vec::new(),
                environment: environment.map(|(name, value)| (name.into(), value)).to_vec(),
            },
            launcher: None,
            workload: workload("toy"),
            scratch: directory.path().to_owned(),
            patience: patient(),
            interrupt: interrupt.clone(),
            deadline: None,
            oom_kills: OomKills::in_file(counter),
        };
        adjust(&mut config);
        let bystander = Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().unwrap();
        Self { executor: Some(ProcessExecutor::new(config)), interrupt, directory, bystander }
    }

    fn executor(&mut self) -> &mut ProcessExecutor {
        self.executor.as_mut().unwrap()
    }

    fn run(&mut self, id: u32) -> TrialRecord {
        self.executor().run(&spec(id, Purpose::Ladder), &mut |_| {}).unwrap()
    }

    /// Process numbers of all workers and their children so far.
    fn pids(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.pids_file()).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    fn pids_file(&self) -> PathBuf {
        self.directory.path().join("pids")
    }

    /// A fault, then a good trial, many times over; then nothing may be left. Gives the faults' outcomes.
    fn fault_then_good(self) -> Vec<Outcome> {
        let before = Holdings::now();
        let outcomes = self.play();
        Holdings::assert_back_at(before);
        outcomes
    }

    fn play(mut self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for round in 0..REPEATS {
            outcomes.push(self.run(2 * round + 1).outcome);
            let good = self.run(2 * round + 2);
            assert_eq!(good.outcome, Outcome::Completed, "the trial after {:?}", outcomes.last());
        }
        self.close();
        outcomes
    }

    /// Ends the executor; every group must be gone, and the bystander alive.
    fn close(mut self) {
        drop(self.executor.take());
        assert!(!self.pids().is_empty(), "no worker was ever started");
        for pid in self.pids() {
            assert_eq!(living_members(pid), Vec::<String>::new(), "nothing of group {pid} is left");
            assert!(!is_alive(pid), "process {pid} is gone");
        }
        assert_eq!(self.bystander.try_wait().unwrap(), None, "the bystander lives");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.bystander.kill();
        let _ = self.bystander.wait();
    }
}

/// [`Stage::fault_then_good`] of several parts at the same time: workers that hang have to be waited for.
fn faults_then_good(parts: &[&str], adjust: fn(&mut ProcessConfig)) -> Vec<Vec<Outcome>> {
    let before = Holdings::now();
    let outcomes = std::thread::scope(|scope| {
        let play = |part: &&str| {
            let stage = Stage::with(part, adjust);
            scope.spawn(move || stage.play())
        };
        let playing: Vec<_> = parts.iter().map(play).collect();
        playing.into_iter().map(|part| part.join().unwrap()).collect()
    });
    Holdings::assert_back_at(before);
    outcomes
}

/// Whether a process runs. A zombie that init has not reaped yet does not.
fn is_alive(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH)
        && fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| fields_of(&stat)[0] != "Z")
}

/// The `stat` lines of all members of a group that run.
fn living_members(group: i32) -> Vec<String> {
    if killpg(Pid::from_raw(group), None) == Err(Errno::ESRCH) {
        return Vec::new();
    }
    let is_member = |stat: &String| fields_of(stat)[2] == group.to_string() && fields_of(stat)[0] != "Z";
    stats().into_iter().filter(is_member).collect()
}

/// The `stat` lines of all processes.
fn stats() -> Vec<String> {
    fs::read_dir("/proc").unwrap().filter_map(|p| fs::read_to_string(p.ok()?.path().join("stat")).ok()).collect()
}

/// State, parent, and group of a `stat` line. A name in it may hold anything but ends with the last bracket.
fn fields_of(stat: &str) -> [&str; 3] {
    let mut fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    [(); 3].map(|()| fields.next().unwrap())
}

/// Waits that a loaded machine does not run into.
fn patient() -> Patience {
    Patience {
        start: Duration::from_secs(60),
        build: Duration::from_secs(60),
        step: Duration::from_secs(60),
        stop: Duration::from_secs(60),
        leave: Duration::from_secs(10),
        kill: Duration::from_secs(10),
        baseline: Duration::ZERO,
        lease: Duration::from_secs(60),
    }
}

/// Waits for workers that are known to hang. A good trial has one step, which `build` covers.
fn impatient(config: &mut ProcessConfig) {
    config.patience.step = Duration::from_millis(300);
    config.patience.leave = Duration::from_millis(20);
    config.patience.kill = Duration::from_millis(100);
}

fn crashed_by(outcome: &Outcome, expected: i32) -> bool {
    matches!(outcome, Outcome::Crashed { signal: Some(signal), status: None, .. } if *signal == expected)
}

fn protocol_error(outcome: &Outcome, words: &str) -> bool {
    matches!(outcome, Outcome::ProtocolError { message } if message.contains(words))
}

fn a_leak_would_be_seen() {
    let before = Holdings::now();
    assert!(Holdings::now().is_within(before));

    let file = fs::File::open("/proc/self/stat").unwrap();
    assert!(!Holdings::now().is_within(before), "a descriptor");
    drop(file);

    let (release, parked) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || parked.recv());
    assert!(!Holdings::now().is_within(before), "a thread");
    drop(release);
    let _ = thread.join().unwrap();

    let mut child = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
    let group = i32::try_from(child.id()).unwrap();
    assert!(!Holdings::now().is_within(before), "a process");
    assert_eq!(living_members(group).len(), 1, "a member of a group");
    child.kill().unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while !living_members(group).is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(living_members(group), Vec::<String>::new());
    assert!(!Holdings::now().is_within(before), "a zombie");
    child.wait().unwrap();
    Holdings::assert_back_at(before);
}

fn a_good_worker_is_used_again() {
    let mut stage = Stage::new("good");
    let facts = stage.executor().start().unwrap();
    let mut seen = Vec::new();
    let three = TrialSpec { steps: 3, ..spec(1, Purpose::Ladder) };
    let record = stage.executor().run(&three, &mut |observation| seen.push(observation)).unwrap();
    assert_eq!(record.outcome, Outcome::Completed);
    assert_eq!((record.samples.len(), record.samples[2].step), (3, 3));
    assert_eq!(record.warnings, ["mind\\u{7} this"], "what a terminal would obey is escaped");
    assert_eq!(seen.iter().filter(|o| matches!(o, Observation::Step { .. })).count(), 3);
    assert_eq!(facts.limit_bytes, 1 << 29);
    // What is read back from a journal is what was measured, to the last bit.
    let line = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<TrialRecord>(&line).unwrap(), record);
    assert!(stage.run(2).completed() && stage.run(3).completed());
    assert_eq!(stage.pids().len(), 1, "one process ran them all");
    stage.close();
}

fn a_trial_may_go_on_up_to_its_bound_and_no_further() {
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

fn a_worker_that_is_not_clean_is_replaced() {
    let mut stage = Stage::new("answers_uncleanly");
    assert!(stage.run(1).completed() && stage.run(2).completed());
    assert_eq!(stage.pids().len(), 2);
    stage.close();
}

fn a_worker_that_is_killed_has_crashed() {
    let outcomes = Stage::new("is_killed").fault_then_good();
    assert!(outcomes.iter().all(|outcome| crashed_by(outcome, 9)), "{outcomes:?}");
}

fn a_worker_that_segfaults_has_crashed() {
    let outcomes = Stage::new("segfaults").fault_then_good();
    assert!(outcomes.iter().all(|outcome| crashed_by(outcome, 11)), "{outcomes:?}");
}

fn a_worker_that_aborts_has_crashed() {
    let outcomes = Stage::new("aborts").fault_then_good();
    assert!(outcomes.iter().all(|outcome| crashed_by(outcome, 6)), "{outcomes:?}");
}

fn a_worker_that_hangs_is_timed_out() {
    let parts = ["hangs", "ignores_sigterm_and_hangs", "closes_its_output_and_hangs"];
    let outcomes = faults_then_good(&parts, impatient);
    for outcomes in &outcomes[..2] {
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::TimedOut { seconds: 0.3 }), "{outcomes:?}");
    }
    // Its silence says enough.
    assert!(outcomes[2].iter().all(|outcome| protocol_error(outcome, "closed its output")), "{:?}", outcomes[2]);
}

fn a_worker_that_hangs_before_its_first_step_has_more_time() {
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

fn a_soak_that_hangs_has_more_time_for_its_evaluation_alone() {
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

fn a_worker_that_floods_its_log_is_neither_blocked_nor_believed() {
    let outcomes = Stage::new("floods_its_log").fault_then_good();
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Completed), "{outcomes:?}");
    let outcomes = Stage::with("floods_its_log_for_ever", impatient).fault_then_good();
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::TimedOut { seconds: 0.3 }), "{outcomes:?}");
}

fn errors_that_a_worker_tells_are_outcomes_of_their_own() {
    let outcomes = Stage::new("has_a_device_error").fault_then_good();
    let expected = Outcome::DeviceError { message: "an illegal memory access\\u{1b}".to_owned() };
    assert!(outcomes.iter().all(|outcome| *outcome == expected), "{outcomes:?}");
    let outcomes = Stage::new("diverges").fault_then_good();
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Diverged { step: 0 }), "{outcomes:?}");
    let outcomes = Stage::new("fails").fault_then_good();
    let expected = Outcome::Failed { message: "shape mismatch".to_owned() };
    assert!(outcomes.iter().all(|outcome| *outcome == expected), "{outcomes:?}");
}

fn a_workload_that_prints_does_not_break_the_protocol() {
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

fn lines_that_are_no_messages_are_protocol_errors() {
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

fn half_a_line_is_a_protocol_error_unless_a_signal_explains_it() {
    let outcomes = Stage::new("prints_half_a_line_and_leaves").fault_then_good();
    assert!(outcomes.iter().all(|outcome| protocol_error(outcome, "within a line")), "{outcomes:?}");
    let outcomes = Stage::new("prints_half_a_line_and_is_killed").fault_then_good();
    assert!(outcomes.iter().all(|outcome| crashed_by(outcome, 9)), "{outcomes:?}");
}

fn leaving_without_an_answer_is_a_crash_even_with_status_0() {
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

fn messages_out_of_turn_are_protocol_errors() {
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

fn the_status_for_far_over_the_limit_is_out_of_memory() {
    for outcome in Stage::new("goes_far_over_the_limit").fault_then_good() {
        let Outcome::OutOfMemory { limit_bytes, requested_bytes: None, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(limit_bytes, Some(1 << 29));
    }
}

fn a_kill_counted_by_the_cgroup_is_host_out_of_memory() {
    let outcomes = Stage::new("is_killed_for_host_memory").fault_then_good();
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::HostOutOfMemory), "{outcomes:?}");
}

fn a_worker_that_is_refused_memory_is_host_out_of_memory() {
    for outcome in Stage::new("is_refused_memory").fault_then_good() {
        assert_eq!(outcome, Outcome::HostOutOfMemory);
    }
}

fn grandchildren_go_with_their_worker() {
    let outcomes = Stage::new("leaves_grandchildren_and_is_killed").fault_then_good();
    assert!(outcomes.iter().all(|outcome| crashed_by(outcome, 9)), "{outcomes:?}");
    for outcome in Stage::new("leaves_grandchildren_and_answers_nothing").fault_then_good() {
        assert!(matches!(outcome, Outcome::Crashed { signal: None, status: Some(0), .. }), "{outcome:?}");
    }
}

fn a_soak_whose_worker_is_killed_leaves_no_checkpoint() {
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

fn a_worker_that_leaves_after_its_answer_has_answered() {
    // The process is gone when the next trial begins, which is not that trial's fault.
    let outcomes = Stage::new("answers_and_leaves").fault_then_good();
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Completed), "{outcomes:?}");
}

fn a_worker_that_cannot_start_is_an_error_that_says_why() {
    let start = |part: &str| {
        let mut stage = Stage::with(part, |config| {
            impatient(config);
            if part == "never_says_hello" {
                config.patience.start = Duration::from_millis(200);
            }
        });
        let error = stage.executor().start().unwrap_err();
        if part != "never_says_hello" {
            stage.close();
        }
        error.to_string()
    };
    let version = start("speaks_another_version");
    assert!(version.contains("protocol 99") && version.contains("expected 4"), "{version}");
    assert!(!version.contains('\u{1b}'), "{version:?}");
    assert!(start("never_says_hello").contains("said nothing for 0 s"));
    let died = start("dies_at_the_start");
    assert!(died.contains("exit status: 3") && died.contains("missing library"), "{died}");
    assert!(start("says_nonsense_at_the_start").contains("`Welcome!`"));
    assert_eq!(start("refuses_the_device"), "no such card");
    assert_eq!(start("refuses_the_workload"), "no such model");

    let mut stage = Stage::with("good", |config| config.command.program = "/nonexistent/tune".into());
    assert!(matches!(stage.executor().start(), Err(ExecutorError::Spawn { program, .. }) if program.contains("tune")));
}

fn an_automatic_limit_is_pinned_for_the_workers_after_the_first() {
    let mut stage = Stage::new("tells_its_limit");
    assert_eq!(stage.run(1).warnings[1], "\"auto\"");
    assert_eq!(stage.run(2).warnings[1], format!("{{\"bytes\":{}}}", 1 << 29));
    assert_eq!(stage.pids().len(), 2);
    stage.close();
    let mut stage = Stage::with("tells_its_limit", |config| config.workload.limit = LimitSpec::Fraction(Fraction(0.5)));
    assert_eq!(
        (stage.run(1).warnings[1].as_str(), stage.run(2).warnings[1].as_str()),
        (r#"{"fraction":0.5}"#, r#"{"fraction":0.5}"#)
    );
    stage.close();
}

fn the_first_interrupt_waits_for_the_step_and_the_second_for_nothing() {
    let mut stage = Stage::with("ignores_a_stop", |config| config.patience.leave = Duration::ZERO);
    let interrupt = stage.interrupt.clone();
    let long = TrialSpec { steps: u32::MAX, ..spec(1, Purpose::Ladder) };
    let mut steps_after_first = 0;
    let record = stage.executor().run(&long, &mut |seen| {
        if let Observation::Step { step, .. } = seen {
            match step {
                5 => interrupt.request(),
                6.. => steps_after_first += 1,
                _ => {}
            }
            if step == 20 {
                interrupt.request();
            }
        }
    });
    assert_eq!(record.unwrap().outcome, Outcome::Cancelled);
    assert!(steps_after_first >= 15, "the first request let the worker go on");
    // Nothing more is started.
    let pids = stage.pids().len();
    assert_eq!(stage.run(2).outcome, Outcome::Cancelled);
    assert_eq!(stage.pids().len(), pids);
    stage.close();
}

fn an_interrupt_before_the_first_step_waits_for_no_build() {
    let mut stage = Stage::with("hangs_before_its_first_step", |config| {
        config.patience.stop = Duration::from_millis(100);
        // The test would hang.
        config.patience.build = PATIENCE * 2;
    });
    let interrupt = stage.interrupt.clone();
    let record = stage.executor().run(&spec(1, Purpose::Ladder), &mut |seen| {
        // It says that it builds.
        if matches!(seen, Observation::Log(_)) {
            interrupt.request();
        }
    });
    assert_eq!(record.unwrap().outcome, Outcome::Cancelled);
    stage.close();
}

fn the_end_of_the_budget_ends_a_trial() {
    let mut stage = Stage::with("ignores_a_stop", |config| {
        config.deadline = Some(Instant::now() + Duration::from_secs(2));
        config.patience.stop = Duration::from_millis(100);
    });
    let long = TrialSpec { steps: u32::MAX, ..spec(1, Purpose::Ladder) };
    assert_eq!(stage.executor().run(&long, &mut |_| {}).unwrap().outcome, Outcome::Cancelled);
    assert_eq!(stage.run(2).outcome, Outcome::Cancelled);
    drop(stage.executor.take());
}

/// The part of the worker that ships.
const REAL_WORKER: &str = "the_real_worker";
/// The part of a process that starts a worker and waits.
const PARENT: &str = "a_parent";

/// A family that never gets ready, so that a worker's main thread is as busy as in a long step.
struct Stuck;

impl Family for Stuck {
    fn name(&self) -> &'static str {
        "stuck"
    }
    fn input(&self, _spec: &ModelSpec) -> Result<InputSpec, ModelError> {
        loop {
            std::thread::sleep(Duration::from_secs(600));
        }
    }
    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn Workload>, ModelError> {
        Err(ModelError::Invalid { field: "family", reason: "it is stuck".to_owned() })
    }
}

fn parent_of_a_worker() -> ExitCode {
    let mut worker = Command::new(std::env::current_exe().unwrap()).env(scripted::PART, REAL_WORKER).spawn().unwrap();
    let _ = worker.wait();
    ExitCode::SUCCESS
}

/// Starts this program in a part; gives it, its output, and the process number that the worker in it says.
fn start(part: &str) -> (Child, BufReader<std::process::ChildStdout>, i32) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = command.env(scripted::PART, part).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut hello = String::new();
    output.read_line(&mut hello).unwrap();
    let hello: serde_json::Value = serde_json::from_str(&hello).unwrap();
    assert_eq!(hello["message"], "hello");
    (child, output, hello["pid"].as_i64().unwrap().try_into().unwrap())
}

fn a_real_worker_refuses_a_workload_that_it_does_not_know() {
    let mut stage = Stage::new(REAL_WORKER);
    let error = stage.executor().start().unwrap_err();
    assert!(matches!(&error, ExecutorError::Workload(reason) if reason.contains("`toy`")), "{error}");
}

fn a_real_worker_leaves_at_the_end_of_its_input_whatever_it_is_doing() {
    let (mut child, mut output, pid) = start(REAL_WORKER);
    let model = ModelSpec { family: "stuck".to_owned(), ..ModelSpec::default() };
    let open = serde_json::json!({"message": "open", "workload": WorkloadSpec { model, ..workload("toy") }, "scratch": "/tmp"});
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "{open}").unwrap();
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap(), "1000\n");
    drop(input);
    assert_eq!(child.wait().unwrap().code(), Some(batchtune::trial::exit_status::ORPHANED));
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "it said no more");
}

fn a_real_worker_ends_with_its_parent_though_its_input_stays_open() {
    let (mut parent, mut output, worker) = start(PARENT);
    let _input_stays_open = parent.stdin.take().unwrap();
    assert!(is_alive(worker));
    parent.kill().unwrap();
    parent.wait().unwrap();
    // Its output ends when it does.
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while is_alive(worker) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(!is_alive(worker));
}

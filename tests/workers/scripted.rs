//! A worker that plays a part: it speaks the protocol well until the moment at which its part goes wrong.
//!
//! Trials with an odd number get the fault, those with an even one are run well, so that a test can see that the trial
//! after a fault works. The worker writes its process number, and those of what it starts, to the file in `PIDS`.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use batchtune::device::DeviceFacts;
use batchtune::memory::MemorySample;
use batchtune::trial::exit_status::{FAR_OVER_LIMIT, HOST_OUT_OF_MEMORY, LEASE_EXPIRED};
use batchtune::trial::launcher::Place;
use batchtune::trial::outcome::{Measurement, StepTimes};
use batchtune::trial::protocol::{FromWorker, MAX_LINE_BYTES, PROTOCOL, Refusal, ToWorker};
use batchtune::trial::spec::checkpoint_path;
use batchtune::trial::{Outcome, TrialId, TrialSpec, worker};
use nix::sys::signal::{Signal, raise};

/// Names the part.
pub(crate) const PART: &str = "BATCHTUNE_TEST_PART";
/// Names the file for process numbers.
pub(crate) const PIDS: &str = "BATCHTUNE_TEST_PIDS";
/// Names the file that stands for the cgroup's counter.
pub(crate) const OOM_COUNTER: &str = "BATCHTUNE_TEST_OOM_COUNTER";

/// Plays the part named in the environment, to the end of the input.
pub(crate) fn play(part: &str) -> ExitCode {
    note_pid(std::process::id());
    let mut stage: Box<dyn Write> = match part {
        "prints_after_claiming" => Box::new(worker::claim_stdout().expect("standard output can be duplicated")),
        _ => Box::new(io::stdout()),
    };
    if let Some(code) = opening(part, &mut stage) {
        return code;
    }
    let mut limit = String::new();
    let mut talk = Talk::default();
    for line in io::stdin().lock().lines() {
        let Ok(message) = serde_json::from_str(&line.expect("input is readable")) else { return ExitCode::from(99) };
        match message {
            ToWorker::Open { workload, replica, .. } => {
                talk.own = replica.map(|replica| replica.rank);
                limit = serde_json::to_string(&workload.limit).expect("a limit has a JSON form");
                let facts = facts();
                say(
                    &mut stage,
                    &match part {
                        "refuses_the_device" => refused(Refusal::Device, "no such card"),
                        "refuses_the_workload" => refused(Refusal::Workload, "no such model"),
                        _ => FromWorker::Ready { facts },
                    },
                );
            }
            ToWorker::Run { trial } if part == "talks_to_the_other_replica" => talk.begin(trial, &mut stage),
            ToWorker::Relay { rank, bytes } => talk.hear(rank, &bytes, &mut stage),
            ToWorker::Run { trial } => {
                if trial.id.0 % 2 == 1
                    && let Some(code) = misbehave(part, &trial, &mut stage)
                {
                    return code;
                }
                run_well(part, &trial, &limit, &mut stage);
            }
            ToWorker::Ping if part == "counts_pings" => note("pings", "ping"),
            ToWorker::Stop | ToWorker::Ping => {}
            ToWorker::Exit => return ExitCode::SUCCESS,
        }
    }
    ExitCode::SUCCESS
}

/// What two replicas on two machines have for each other: each trial is run once a word of the other has come. In odd
/// ones rank 0 is killed by it.
#[derive(Default)]
struct Talk {
    own: Option<usize>,
    trial: Option<TrialSpec>,
    has_heard: bool,
}

impl Talk {
    fn begin(&mut self, trial: TrialSpec, stage: &mut dyn Write) {
        let own = self.own.expect("it is one of two replicas");
        self.trial = Some(trial);
        say(stage, &FromWorker::Relay { rank: 1 - own, bytes: vec![7, own as u8] });
        self.go_on(stage);
    }

    fn hear(&mut self, rank: usize, bytes: &[u8], stage: &mut dyn Write) {
        note("heard", &format!("{rank}: {bytes:?}"));
        if let ([], Some(trial)) = (bytes, &self.trial) {
            say(stage, &FromWorker::PeerLost { trial: trial.id, rank, seconds: None });
            say(stage, &failed(trial.id, Outcome::Cancelled));
        } else {
            self.has_heard |= !bytes.is_empty();
            self.go_on(stage);
        }
    }

    fn go_on(&mut self, stage: &mut dyn Write) {
        match self.trial.as_ref().filter(|_| self.has_heard) {
            Some(trial) if trial.id.0 % 2 == 0 => {
                run_well("", trial, "", stage);
                *self = Self { own: self.own, ..Self::default() };
            }
            Some(_) if self.own == Some(0) => drop(raise(Signal::SIGKILL)),
            _ => {}
        }
    }
}

fn opening(part: &str, stage: &mut dyn Write) -> Option<ExitCode> {
    let protocol = if part == "speaks_another_version" { 99 } else { PROTOCOL };
    match part {
        "never_says_hello" => sleep_for_ever(),
        "dies_at_the_start" => {
            let _ = writeln!(io::stderr(), "missing library");
            return Some(ExitCode::from(3));
        }
        "says_nonsense_at_the_start" => {
            let _ = stage.write_all(b"Welcome!\n").and_then(|()| stage.flush());
        }
        _ => {}
    }
    say(
        stage,
        &FromWorker::Hello {
            protocol,
            version: "0.0.1\u{1b}[2J".to_owned(),
            pid: std::process::id(),
            place: match part {
                "talks_to_the_other_replica" => {
                    let number = std::process::id().to_string();
                    Place { machine: Some(number.clone()), node: Some(format!("n{number}")), ..Place::here() }
                }
                _ => Place::here(),
            },
        },
    );
    None
}

/// Does what the part is about. `None` if the trial goes on well after it.
fn misbehave(part: &str, trial: &TrialSpec, stage: &mut dyn Write) -> Option<ExitCode> {
    let step = line_of(&step(trial.id, 1));
    let mut raw = |bytes: &[u8]| {
        let _ = stage.write_all(bytes).and_then(|()| stage.flush());
    };
    match part {
        "is_killed" => {
            raw(&step);
            let _ = raise(Signal::SIGKILL);
        }
        "segfaults" => {
            raw(&step);
            // The first is caught by the runtime's handler for stack overflows, which then steps aside.
            loop {
                let _ = raise(Signal::SIGSEGV);
            }
        }
        "aborts" => std::process::abort(),
        "hangs" => {
            raw(&step);
            sleep_for_ever();
        }
        "hangs_before_its_first_step" => {
            let _ = writeln!(io::stderr(), "building");
            sleep_for_ever();
        }
        "ignores_sigterm_and_hangs" => {
            signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::new(AtomicBool::new(false)))
                .expect("a handler can be set");
            raw(&step);
            sleep_for_ever();
        }
        "floods_its_log" => flood(Some(8 << 20)),
        "floods_its_log_for_ever" => {
            raw(&step);
            flood(None);
        }
        "prints_on_stdout" => raw(b"epoch 1: loss 4.2\n"),
        "prints_after_claiming" => {
            let _ = io::stdout().write_all(b"epoch 1: loss 4.2\n").and_then(|()| io::stdout().flush());
            // So does what it starts.
            let _ = Command::new("echo").arg("from a child").status();
            if trial.id.0 % 4 == 3 {
                let _ = raise(Signal::SIGKILL);
            }
        }
        "prints_half_a_line_and_leaves" => {
            raw(&step[..step.len() / 2]);
            return Some(ExitCode::SUCCESS);
        }
        "prints_half_a_line_and_is_killed" => {
            raw(&step[..step.len() / 2]);
            let _ = raise(Signal::SIGKILL);
        }
        "prints_half_a_line_and_hangs" => {
            raw(&step[..step.len() / 2]);
            sleep_for_ever();
        }
        "prints_garbage" => raw(b"\x00\xff\x1b[31m{]\n"),
        "prints_a_line_without_end" => {
            let piece = vec![b'x'; 1 << 20];
            for _ in 0..=MAX_LINE_BYTES / piece.len() {
                raw(&piece);
            }
            sleep_for_ever();
        }
        "leaves_without_an_answer" => {
            raw(&step);
            return Some(ExitCode::SUCCESS);
        }
        "leaves_with_status_9" => {
            let _ = writeln!(io::stderr(), "the last words\u{7}");
            return Some(ExitCode::from(9));
        }
        "loses_its_lease" => {
            raw(&step);
            return Some(ExitCode::from(LEASE_EXPIRED as u8));
        }
        "loses_its_lease_once" if !beside_pids("lost").exists() => {
            fs::write(beside_pids("lost"), "").expect("the file can be written");
            raw(&step);
            say(stage, &FromWorker::Sample { trial: trial.id, sample: MemorySample::default() });
            return Some(ExitCode::from(LEASE_EXPIRED as u8));
        }
        "is_refused_memory" => return Some(ExitCode::from(HOST_OUT_OF_MEMORY as u8)),
        "goes_far_over_the_limit" => return Some(ExitCode::from(FAR_OVER_LIMIT as u8)),
        "is_killed_for_host_memory" => {
            let counter = std::env::var(OOM_COUNTER).expect("the counter is set");
            let count = 1 + counted(&fs::read_to_string(&counter).expect("the counter is readable"));
            fs::write(counter, format!("oom 0\noom_kill {count}\n")).expect("the counter is writable");
            let _ = raise(Signal::SIGKILL);
        }
        "speaks_of_another_trial" => say(stage, &self::step(TrialId(trial.id.0 + 7), 1)),
        "skips_a_step" => say(stage, &self::step(trial.id, 2)),
        "goes_on_before_its_end" => say(stage, &FromWorker::Extended { trial: trial.id, total: 7 }),
        "goes_on_too_far" => {
            for number in 1..=trial.total_steps() {
                say(stage, &self::step(trial.id, number));
            }
            say(stage, &FromWorker::Extended { trial: trial.id, total: trial.longest_steps() + 1 });
        }
        "goes_on" => {
            for number in 1..=trial.longest_steps() {
                say(stage, &self::step(trial.id, number));
                if number >= trial.total_steps() && number < trial.longest_steps() {
                    say(stage, &FromWorker::Extended { trial: trial.id, total: number + 1 });
                }
            }
            let measurement = Measurement { steps: trial.longest_steps(), ..Default::default() };
            say(stage, &ended(trial.id, Some(measurement)));
            return Some(ExitCode::SUCCESS);
        }
        "takes_samples_for_ever" => loop {
            say(stage, &FromWorker::Sample { trial: trial.id, sample: MemorySample::default() });
        },
        "says_hello_again" => {
            say(
                stage,
                &FromWorker::Hello { protocol: PROTOCOL, version: String::new(), pid: 1, place: Place::default() },
            );
        }
        "has_a_device_error" => {
            let message = "an illegal memory access\u{1b}".to_owned();
            say(stage, &failed(trial.id, Outcome::DeviceError { message }));
            return Some(ExitCode::SUCCESS);
        }
        "diverges" => {
            say(stage, &failed(trial.id, Outcome::Diverged { step: 0 }));
            return Some(ExitCode::SUCCESS);
        }
        "fails" => {
            say(stage, &failed(trial.id, Outcome::Failed { message: "shape mismatch".to_owned() }));
            return Some(ExitCode::SUCCESS);
        }
        "is_killed_in_its_checkpoint" => {
            let pids = PathBuf::from(std::env::var_os(PIDS).expect("the file for process numbers is set"));
            let scratch = pids.parent().expect("it is in the study");
            fs::write(checkpoint_path(scratch, trial.id), "half of it").expect("the file can be written");
            raw(&step);
            let _ = raise(Signal::SIGKILL);
        }
        "completes_without_a_measurement" => say(stage, &ended(trial.id, None)),
        "closes_its_output_and_hangs" => {
            worker::claim_stdout().map(drop).expect("standard output can be duplicated");
            sleep_for_ever();
        }
        "leaves_grandchildren_and_is_killed" => {
            start_grandchild();
            start_grandchild();
            raw(&step);
            let _ = raise(Signal::SIGKILL);
        }
        "leaves_grandchildren_and_answers_nothing" => {
            // They hold the worker's standard output open, so that its end cannot be told by end-of-file.
            start_grandchild();
            return Some(ExitCode::SUCCESS);
        }
        "answers_and_leaves" => {
            run_well(part, trial, "", stage);
            return Some(ExitCode::SUCCESS);
        }
        "ignores_a_stop" => {
            for number in 1.. {
                say(stage, &self::step(trial.id, number));
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        _ => {}
    }
    None
}

/// Runs a trial as a good worker does.
fn run_well(part: &str, trial: &TrialSpec, limit: &str, stage: &mut dyn Write) {
    for number in 1..=trial.total_steps() {
        say(stage, &step(trial.id, number));
        say(
            stage,
            &FromWorker::Sample { trial: trial.id, sample: MemorySample { step: number, ..Default::default() } },
        );
    }
    say(stage, &FromWorker::Warning { trial: trial.id, text: "mind\u{7} this".to_owned() });
    if part == "tells_its_limit" {
        say(stage, &FromWorker::Warning { trial: trial.id, text: limit.to_owned() });
    }
    let measurement = Measurement { steps: trial.total_steps(), samples_per_second: 1.0 / 3.0, ..Default::default() };
    let FromWorker::Ended { trial, outcome, measurement, .. } = ended(trial.id, Some(measurement)) else { return };
    say(
        stage,
        &FromWorker::Ended {
            trial,
            outcome,
            measurement,
            clean: !matches!(part, "answers_uncleanly" | "tells_its_limit"),
        },
    );
}

fn step(trial: TrialId, step: u32) -> FromWorker {
    FromWorker::Step { trial, step, loss: 2.5, times: StepTimes::default() }
}

fn ended(trial: TrialId, measurement: Option<Measurement>) -> FromWorker {
    FromWorker::Ended { trial, outcome: Outcome::Completed, measurement, clean: true }
}

fn failed(trial: TrialId, outcome: Outcome) -> FromWorker {
    FromWorker::Ended { trial, outcome, measurement: None, clean: false }
}

fn refused(cause: Refusal, reason: &str) -> FromWorker {
    FromWorker::Refused { cause, reason: reason.to_owned() }
}

fn facts() -> DeviceFacts {
    DeviceFacts {
        device: "cpu".to_owned(),
        name: "a stand-in".to_owned(),
        uuid: None,
        driver: None,
        total_bytes: 1 << 30,
        free_bytes: 1 << 30,
        external_bytes: 0,
        limit_bytes: 1 << 29,
        allocator: "native".to_owned(),
        alloc_conf: None,
        cpus: 2,
        hostname: "here".to_owned(),
    }
}

fn line_of(message: &FromWorker) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("a message has a JSON form");
    line.push(b'\n');
    line
}

/// A driver that went away is no reason to panic: tests end workers in the middle of a word.
fn say(stage: &mut dyn Write, message: &FromWorker) {
    let _ = stage.write_all(&line_of(message)).and_then(|()| stage.flush());
}

fn flood(bytes: Option<usize>) {
    let line = [b'f'; 1023];
    let mut log = io::stderr().lock();
    let mut written = 0;
    while bytes.is_none_or(|bytes| written < bytes) {
        if log.write_all(&line).and_then(|()| log.write_all(b"\n")).is_err() {
            return;
        }
        written += line.len() + 1;
    }
}

#[expect(clippy::zombie_processes, reason = "to be left behind is its part")]
fn start_grandchild() {
    let child = Command::new("sleep").arg("600").spawn().expect("sleep can be started");
    note_pid(child.id());
}

pub(crate) fn note_pid(pid: u32) {
    note("pids", &pid.to_string());
}

/// A file in the study's directory, where that for process numbers is.
fn beside_pids(name: &str) -> PathBuf {
    let pids = PathBuf::from(std::env::var_os(PIDS).expect("the file for process numbers is set"));
    pids.with_file_name(name)
}

fn note(name: &str, line: &str) {
    let mut file =
        OpenOptions::new().append(true).create(true).open(beside_pids(name)).expect("the file can be opened");
    file.write_all(format!("{line}\n").as_bytes()).expect("the file can be written");
}

/// The count in the stand-in for the cgroup's file.
pub(crate) fn counted(text: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or(0)
}

fn sleep_for_ever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(600));
    }
}

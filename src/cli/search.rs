//! `tune --config`: the main job.
//!
//! What a second run on a study directory does:
//!
//! | the directory holds | `tune` | `--resume` | `--fresh` |
//! |---|---|---|---|
//! | a safe answer for this configuration and device | offers it again | the same, from the journal | searches |
//! | an unfinished study, or one without a safe answer | starts over, and says so | goes on | starts over |
//! | a study of another configuration | offers the answer of the one before, if that is of this one, or starts over, and says so | refuses | starts over |
//! | an answer for a script that has changed since | starts over, and says so | goes on, with a warning | starts over |
//!
//! Whoever starts over keeps the old journal beside the new one, once a device is open: a run that starts nothing changes
//! nothing. A job that is preempted and started again with the same
//! command should say `--resume`: it also starts a study where there is none.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::signal::Signal;

use super::known_answer::{self, Answer, Found};
use super::{SearchArgs, check, print_result, report, slots};
use crate::config::Plan;
use crate::device::DeviceFacts;
use crate::device::facts::{HostLimits, limits};
use crate::error::Error;
use crate::exit_code;
use crate::model::Registry;
use crate::progress::{self, Event, ProgressMode, Reporter, say};
use crate::report::recommendation::ReportError;
use crate::report::table;
use crate::search::driver::{DriverError, End, Slots, Study};
use crate::search::knowledge::Nothing;
use crate::search::{Ask, History, strategy};
use crate::text::{harmless, with_causes};
use crate::trial::journal::{self, Header, Journal, StudyLock};
use crate::trial::remedies::RunRemedies;
use crate::trial::{Interrupt, Outlook, Point, TrialRecord, TunedRun, UnfinishedPlay};
use crate::units::Bytes;

pub(super) fn run(args: &SearchArgs, registry: &Registry) -> Result<u8, Error> {
    let loaded = check::load(&args.plan, registry)?;
    for note in loaded.notes(registry) {
        say(&format!("note: {note}"));
    }
    let plan = &loaded.plan;
    if args.dry_run {
        print_result(&dry_run(plan))?;
        return Ok(exit_code::SAFE);
    }
    refuse_config_as_output(args)?;
    if plan.launcher.is_none() {
        warn_of_address_space(&limits(Path::new("/")));
    }
    let folder = args.study.clone().unwrap_or_else(|| default_study(&plan.name));
    let lock = StudyLock::acquire(&folder).map_err(|error| Error::Driver(DriverError::Journal(error)))?;
    let interrupt = Interrupt::default();
    watch_for_signals(&interrupt)?;
    let mut slots = slots::slots(plan, &folder, &interrupt)?;
    let mode = match (args.json, args.quiet) {
        (true, _) => ProgressMode::Json,
        (_, true) => ProgressMode::Quiet,
        _ => ProgressMode::Auto,
    };
    let mut reporter = progress::choose(mode);
    let found = if args.resume || args.fresh { Found::Nothing } else { known_answer::find(plan, &folder) };
    let note = match found {
        Found::Answer(answer) => match weakest(&mut slots) {
            Some(facts) if answer.holds_on(&facts, plan) => {
                return offer(args, (&mut *reporter, mode), &answer);
            }
            Some(_) => {
                Some(format!("the answer in {} was proved on another device, or with more memory", folder.display()))
            }
            // A device that cannot be opened is reported by the study, as always.
            None => None,
        },
        found => found.why_searched_again(&folder),
    };
    if let Some(note) = note.filter(|_| mode != ProgressMode::Quiet) {
        say(&format!("note: {note}, so the search is started over"));
    }
    if args.resume
        && let Ok(contents) = journal::read(&folder.join(journal::FILE_NAME))
        && let Some(file) = known_answer::changed_file(plan, &contents.header.started)
    {
        let file = harmless(&file);
        say(&format!(
            "warning: `{file}` has changed since the trials that are resumed (hint: `--fresh` runs all again)"
        ));
    }
    let mut opened = OpenedStudy::open(plan, lock, if args.resume { Start::Resume } else { Start::Fresh })?;
    let result = Study {
        plan,
        slots,
        journal: &mut opened.journal,
        reporter: &mut *reporter,
        output: args.output.clone(),
        interrupt,
        finished: opened.finished,
        foretold: opened.foretold,
        remedied: opened.remedied,
        tuned: opened.tuned,
        unfinished: opened.unfinished,
        started: opened.started,
    }
    .run()
    .map_err(Error::Driver)?;
    drop(reporter);
    if mode != ProgressMode::Json {
        print_result(&table::summary(&result.history, &result.recommendation))?;
    }
    write_page(&folder, mode);
    match result.unwritten {
        Some(error) => Err(error.into()),
        None => Ok(exit_code_of(&result.end)),
    }
}

/// Under `ulimit -v` programs are refused memory that the host has, which nobody looks for there.
fn warn_of_address_space(limits: &HostLimits) {
    let (Some(addresses), Some(host)) = (limits.address_space_bytes, limits.memory) else { return };
    if addresses < host.total_bytes {
        say(&format!(
            "warning: each process may map {} and not the host's {} (hint: `ulimit -v unlimited`)",
            Bytes(addresses),
            Bytes(host.total_bytes)
        ));
    }
}

/// A recommendation in place of the configuration that it is of would lose the latter.
fn refuse_config_as_output(args: &SearchArgs) -> Result<(), ReportError> {
    match (args.plan.path().canonicalize(), args.output.canonicalize()) {
        (Ok(config), Ok(output)) if config == output => {
            let source = std::io::Error::other("it is the configuration");
            Err(ReportError::Write { path: args.output.clone(), source })
        }
        _ => Ok(()),
    }
}

/// The device that an answer has to hold for, where all of them can be opened. They stay open for the study.
fn weakest(slots: &mut Slots<'_>) -> Option<DeviceFacts> {
    let opened: Option<Vec<DeviceFacts>> = slots.slots.iter_mut().map(|slot| slot.executor.start().ok()).collect();
    opened?.into_iter().min_by_key(|facts| facts.limit_bytes)
}

/// Writes and prints an answer that is known already.
fn offer(args: &SearchArgs, (reporter, mode): (&mut dyn Reporter, ProgressMode), answer: &Answer) -> Result<u8, Error> {
    let Answer { journal, recommendation, history, started } = answer;
    recommendation.write(&args.output)?;
    let status = recommendation.status.name().to_owned();
    // A study directory has one journal, and another where that was set aside.
    let is_usual = journal.file_name().is_some_and(|name| name == journal::FILE_NAME);
    let study = journal.parent().filter(|_| is_usual).unwrap_or(journal).display().to_string();
    reporter.report(&Event::AnswerKnown { study, started: started.clone() });
    reporter.report(&Event::StudyEnded { status, trials: history.trials().len(), seconds: 0.0 });
    if mode != ProgressMode::Json {
        print_result(&table::summary(history, recommendation))?;
    }
    write_page(journal, mode);
    Ok(exit_code::SAFE)
}

/// Writes the page of a study directory, or of a journal in one, beside the journal. It is for people: what goes wrong with it
/// is said, and costs no result.
fn write_page(study: &Path, mode: ProgressMode) {
    match report::write_beside_journal(study) {
        Ok(path) if matches!(mode, ProgressMode::Auto) => say(&format!("report: {}", path.display())),
        Ok(_) => {}
        Err(error) => say(&format!("warning: the report page is not written: {}", with_causes(&error))),
    }
}

/// Whether a study directory is emptied or gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Fresh,
    Resume,
}

/// A study directory that this process owns.
struct OpenedStudy {
    journal: Journal,
    finished: Vec<TrialRecord>,
    foretold: Vec<(Point, Outlook)>,
    remedied: Vec<(Point, RunRemedies)>,
    tuned: Vec<(Point, TunedRun)>,
    unfinished: Vec<UnfinishedPlay>,
    started: String,
}

impl OpenedStudy {
    fn open(plan: &Plan, lock: StudyLock, start: Start) -> Result<Self, Error> {
        let failed = |error| Error::Driver(DriverError::Journal(error));
        if start == Start::Resume && Journal::exists(lock.study()) {
            let (journal, contents) = Journal::resume(lock).map_err(failed)?;
            contents.header.expect_plan(&plan.sha256()).map_err(failed)?;
            let finished = contents.finished().map(|(record, _)| record.clone()).collect();
            let foretold = contents.foretold().map(|(point, outlook)| (point.clone(), outlook.clone())).collect();
            let remedied = contents.remedied().map(|(point, found)| (point.clone(), found.clone())).collect();
            let tuned = contents.tuned().map(|(point, found)| (point.clone(), found.clone())).collect();
            let unfinished = contents.unfinished_plays().into_iter().cloned().collect();
            let started = contents.header.started;
            return Ok(Self { journal, finished, foretold, remedied, tuned, unfinished, started });
        }
        let plan_value = serde_json::to_value(plan).unwrap_or_default();
        let header = Header::new(&plan.sha256(), plan_value);
        let journal = Journal::draft(lock, &header).map_err(failed)?;
        Ok(Self {
            journal,
            finished: Vec::new(),
            foretold: Vec::new(),
            remedied: Vec::new(),
            tuned: Vec::new(),
            unfinished: Vec::new(),
            started: header.started,
        })
    }
}

/// `.tune/<name>`, with whatever a file name should not hold replaced.
fn default_study(name: &str) -> PathBuf {
    let safe = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = name.chars().map(safe).take(80).collect();
    let name = name.trim_start_matches('.');
    Path::new(".tune").join(if name.is_empty() { "study" } else { name })
}

/// The first Ctrl-C (or TERM, or HUP when the terminal is closed) finishes the step (a trial without any is given up) and
/// saves, the second stops at once, and the third ends the process by the signal itself: this one may hang in a file system that does not answer.
///
/// A file that reaches its limit (`ulimit -f`) is an error of the write, not this process's end.
pub(super) fn watch_for_signals(interrupt: &Interrupt) -> Result<(), Error> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let failed = |source| Error::Io { action: "cannot set up the handling of signals", source };
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    if !ignores(SIGHUP) {
        signals.add_signal(SIGHUP).map_err(failed)?;
    }
    // Handled and not ignored: the trials' programs would inherit the latter.
    signal_hook::flag::register(Signal::SIGXFSZ as i32, Arc::default()).map_err(failed)?;
    let interrupt = interrupt.clone();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                if interrupt.at_once() {
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
                interrupt.request();
            }
        })
        .map_err(failed)?;
    Ok(())
}

/// Whether a signal is ignored, as `nohup` starts a program that is to outlive its terminal.
fn ignores(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// What a search would do first, without doing it: later trials depend on how these end.
fn dry_run(plan: &Plan) -> String {
    let space = crate::search::Space::new(plan);
    let pairs = space.pairs().iter().map(|pair| format!("{} × {}", pair.batch_size, pair.accumulation_steps));
    let rungs = space.rungs();
    let first = match strategy(plan, crate::device::facts::cpus(Path::new("/"))).ask(&History::default(), &Nothing) {
        Ask::Run { point, purpose } => format!("{purpose}: {point}"),
        // None of these comes first.
        Ask::ProbeShape { point, sample_size } => format!("probe: {point}, {sample_size}"),
        Ask::Play { point } | Ask::TuneAllocator { point } => format!("whole run: {point}"),
        Ask::Finished(_) => "none: no size meets the target".to_owned(),
    };
    format!(
        "first trial          {first}\nladder               {}\nmeeting the target   {}\nloader settings      {}\nsteps of a trial     {} + {} of warm-up, soak {}\nbudget               {}, {}\n",
        listed(rungs.iter().map(ToString::to_string)),
        listed(pairs),
        space.loaders().len(),
        plan.trial.steps,
        plan.trial.warmup_steps,
        plan.trial.soak_steps,
        crate::units::format_duration(plan.budget.time),
        crate::units::plural(plan.budget.trials as usize, "trial"),
    )
}

/// The first items of a list, and how many more there are.
fn listed(items: impl ExactSizeIterator<Item = String>) -> String {
    const SHOWN: usize = 16;
    let more = items.len().saturating_sub(SHOWN);
    let shown: Vec<String> = items.take(SHOWN).collect();
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

fn exit_code_of(end: &End) -> u8 {
    match end {
        End::Safe => exit_code::SAFE,
        End::NoSafePoint => {
            say(
                "error: no safe configuration (hint: see the rejected points above; a smaller model, a higher `memory.limit` or another target may help)",
            );
            exit_code::NO_SAFE_CONFIGURATION
        }
        End::WorkloadFails(reason) => {
            say(&format!("error: the workload fails at the smallest batch size already: {}", harmless(reason)));
            exit_code::WORKLOAD_FAILS
        }
        End::NotStarted(reason) => {
            say(&format!(
                "error: {} (hint: `--resume` goes on; a longer `launcher.start_timeout` waits for longer)",
                harmless(reason)
            ));
            exit_code::DEVICE_UNAVAILABLE
        }
        End::BudgetEnded => {
            say(
                "error: the budget ended before a configuration was verified (hint: `--resume` with a larger `--budget`)",
            );
            exit_code::BUDGET_ENDED
        }
        End::RanksUnseen(count) => {
            say(&format!(
                "error: the answer is not shown for {}, of which nobody saw what it needs (hint: see the warnings above; \
                 every rank has to report)",
                crate::units::plural(*count, "rank")
            ));
            exit_code::BUDGET_ENDED
        }
        End::BatchSizeUnseen => {
            say(
                "error: the answer is not shown, since nothing shows that the program takes the batch size it is given (hint: \
                 name `{batch_size}` in `command.run` or `command.env`, or have the program report)",
            );
            exit_code::BUDGET_ENDED
        }
        End::Interrupted => {
            say("interrupted; what was found so far is written (hint: `--resume` goes on)");
            exit_code::INTERRUPTED
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_ignored_are_known() {
        // Rust's runtime ignores this one.
        assert!(ignores(Signal::SIGPIPE as i32));
        assert!(!ignores(Signal::SIGTERM as i32));
    }
}

//! `tune watch`: a card's memory from outside, and what it says of the program that uses it.
//!
//! The card is looked at ten times a second and a line is printed each interval; what is concluded is said once when it
//! holds, and all of it at the end. The watch ends with the process, with Ctrl-C (130), when nobody reads it any more, or
//! when the card no longer answers (4).

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use super::output::{Page, PageArg, beside, keep_apart};
use super::{Form, input, print_result};
use crate::device::DeviceChoice;
use crate::device::nvml::process_name;
use crate::error::Error;
use crate::exit_code;
use crate::progress::say;
use crate::report::html;
use crate::text::with_causes;
use crate::trial::Interrupt;
use crate::units::{format_duration, parse_duration};
use crate::watch::{
    Card, Collector, Ending, Holder, Kept, Kind, Line, Observations, Recorded, Recorder, SCHEMA, Sample, State,
    Subject, WatchError, Watched, Whose,
};

mod words;

/// Between two looks at the card.
const LOOK: Duration = Duration::from_millis(100);
/// Between two looks at the process: how it ended is shown until its parent asks.
const GLANCE: Duration = Duration::from_millis(20);
/// The longest interval.
const LONGEST_INTERVAL: Duration = Duration::from_secs(3600);
/// Intervals without an answer after which the card is given up.
const MOST_MISSED: u32 = 10;
/// Conclusions are drawn at most once in this time.
const JUDGE_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct WatchArgs {
    /// Watch this process until it ends [default: the whole card, until Ctrl-C]
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// The card: cuda, or cuda:1 for the second that CUDA_VISIBLE_DEVICES shows
    #[arg(long, value_name = "DEVICE", default_value = "cuda")]
    device: DeviceChoice,
    /// The time between two lines, at least 100ms; the card is looked at ten times a second
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
    /// Keep what is seen as JSON lines in a file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Judge what --record kept, and look at no card
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pid", "device", "interval", "record"])]
    replay: Option<PathBuf>,
    /// Write a page of what was recorded, with its chart [default path: FILE with `.html` added]; - is standard output
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "", requires = "replay")]
    html: Option<PageArg>,
}

pub(super) fn run(args: &WatchArgs) -> Result<u8, Error> {
    match &args.replay {
        Some(path) => replay(path, args.html.as_ref(), Form::of(args.json)),
        None => live(args),
    }
}

/// Judges a recorded watch.
fn replay(path: &Path, page: Option<&PageArg>, form: Form) -> Result<u8, Error> {
    let page = Page::asked(page, form, || beside(path))?;
    if let Some(page) = page.as_ref().and_then(Page::path) {
        keep_apart(page, &[path.to_owned()])?;
    }
    let text = input::watch(path)?;
    let read = Recorded::read(&text).map_err(|problem| WatchError::Recording { path: path.to_owned(), problem })?;
    let summary = read.observations.summary(read.ending);
    match form {
        Form::Json => print_result(&format!("{}\n", super::to_json(&summary)))?,
        Form::Table if page == Some(Page::Printed) => {}
        Form::Table => print_result(&words::summary(&read.subject, &summary, &read.observations))?,
    }
    if let Some(page) = page {
        page.write(&html::watch(&read.subject, &read.observations, &summary))?;
    }
    Ok(exit_code::SAFE)
}

fn live(args: &WatchArgs) -> Result<u8, Error> {
    if args.interval < LOOK || args.interval > LONGEST_INTERVAL {
        return Err(WatchError::Interval { found: format_duration(args.interval) }.into());
    }
    let (card, mut subject) = Card::open(args.device)?;
    let process = match args.pid {
        Some(pid) => Some(Watched::find(pid).ok_or(WatchError::NoProcess { pid })?),
        None => None,
    };
    subject.pid = args.pid;
    subject.process = process.as_ref().and_then(|process| process.name().map(str::to_owned));
    subject.interval_seconds = args.interval.as_secs_f64();
    let recorder = match &args.record {
        Some(path) => Some(Recorder::create(path).map_err(|source| Error::Output { path: path.clone(), source })?),
        None => None,
    };
    let interrupt = Interrupt::default();
    super::search::watch_for_signals(&interrupt)?;
    let form = Form::of(args.json);
    let spark = if form == Form::Table && std::io::stdout().is_terminal() { Spark::Shown } else { Spark::Hidden };
    let output = Output { form, spark, recorder, is_full: false, is_read: true };
    let observations = Observations::of(&subject);
    let watch = Watch { card, process, interrupt, subject, interval: args.interval, observations, output };
    Ok(match watch.run() {
        Ending::Interrupted => exit_code::INTERRUPTED,
        Ending::CardLost => exit_code::DEVICE_UNAVAILABLE,
        Ending::ProcessEnded { .. } | Ending::Unread | Ending::CutOff => exit_code::SAFE,
    })
}

/// Whether a line ends with a small chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spark {
    Shown,
    Hidden,
}

/// Where lines go.
struct Output {
    form: Form,
    spark: Spark,
    recorder: Option<Recorder>,
    /// Whether the recording takes no more samples.
    is_full: bool,
    /// Until nobody does (`| head`).
    is_read: bool,
}

impl Output {
    /// Puts a line into the recording, and on standard output as JSON or as `words`.
    fn put(&mut self, line: &Line<'_>, words: &str) {
        if let Some(recorder) = &mut self.recorder {
            match recorder.write(line) {
                Ok(Kept::Yes) => {}
                Ok(Kept::No) if self.is_full => {}
                Ok(Kept::No) => {
                    self.is_full = true;
                    say("warning: the recording is full; only what is concluded is still added");
                }
                // A full disk must not end the watch.
                Err(error) => {
                    say(&format!("warning: the recording ends here: {}", with_causes(&error)));
                    self.recorder = None;
                }
            }
        }
        match self.form {
            Form::Json => self.print(&line.to_json()),
            Form::Table => self.print(words),
        }
    }

    fn print(&mut self, text: &str) {
        use std::io::Write;
        let mut out = std::io::stdout().lock();
        if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            if error.kind() != std::io::ErrorKind::BrokenPipe {
                say(&format!("warning: cannot write to standard output: {}", with_causes(&error)));
            }
            self.is_read = false;
        }
    }
}

/// A watch under way.
struct Watch {
    card: Card,
    process: Option<Watched>,
    interrupt: Interrupt,
    subject: Subject,
    interval: Duration,
    observations: Observations,
    output: Output,
}

impl Watch {
    fn run(mut self) -> Ending {
        let begin = Instant::now();
        self.output.put(&Line::Begin { schema: SCHEMA, subject: &self.subject }, &words::begin(&self.subject));
        let mut said = Said::default();
        let mut missed = 0;
        let mut judged = begin;
        let mut due = begin + self.interval;
        let ending = loop {
            let (looks, ending) = self.interval(due);
            let at_seconds = begin.elapsed().as_secs_f64();
            if let Some((collector, used_bytes)) = looks {
                missed = 0;
                self.sample(collector, at_seconds, used_bytes);
            } else if ending.is_none() {
                missed += 1;
                self.observations.miss();
                self.output.put(&Line::Missed { at_seconds }, &words::missed(at_seconds));
            }
            if let Some(ending) = ending {
                break ending;
            }
            if missed >= MOST_MISSED {
                break Ending::CardLost;
            }
            if !self.output.is_read {
                break Ending::Unread;
            }
            if judged.elapsed() >= JUDGE_EVERY {
                judged = Instant::now();
                self.conclude(at_seconds, &mut said);
            }
            // A machine that slept does not catch up.
            due = (due + self.interval).max(Instant::now());
        };
        let summary = self.observations.summary(ending);
        self.output.put(&Line::End(&summary), &words::summary(&self.subject, &summary, &self.observations));
        ending
    }

    /// Looks at the card until `due` or until the watch ends: what was seen, the last of it too, and how it ended.
    fn interval(&self, due: Instant) -> (Option<(Collector, u64)>, Option<Ending>) {
        let mut collector = Collector::default();
        let mut last = None;
        loop {
            let next = (Instant::now() + LOOK).min(due);
            if let Some(ending) = self.wait(next) {
                return (last.map(|used_bytes| (collector, used_bytes)), Some(ending));
            }
            if let Some(used_bytes) = self.card.used_bytes() {
                collector.look(used_bytes);
                last = Some(used_bytes);
            }
            if next >= due {
                return (last.map(|used_bytes| (collector, used_bytes)), None);
            }
        }
    }

    /// Waits; the ending, if the watch ends meanwhile.
    fn wait(&self, until: Instant) -> Option<Ending> {
        loop {
            if let Some(State::Ended(exit)) = self.process.as_ref().map(Watched::state) {
                return Some(Ending::ProcessEnded { exit });
            }
            if self.interrupt.requested() {
                return Some(Ending::Interrupted);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            std::thread::sleep(left.min(GLANCE));
        }
    }

    fn sample(&mut self, mut collector: Collector, at_seconds: f64, used_bytes: u64) {
        let processes = self.holders();
        let sample: Sample = collector.end(at_seconds, used_bytes, self.card.utilisation_percent(), processes);
        self.observations.add(&sample);
        let spark = match self.output.spark {
            Spark::Shown => words::spark(&self.observations.latest(words::SPARK_COLUMNS), self.subject.total_bytes),
            Spark::Hidden => String::new(),
        };
        self.output.put(&Line::Sample(&sample), &words::sample(&sample, self.subject.total_bytes, &spark));
    }

    fn holders(&mut self) -> Vec<Holder> {
        let holder = |(pid, bytes)| Holder { pid, name: process_name(pid), bytes, whose: Whose::Unknown };
        let mut holders: Vec<Holder> = self.card.holders().into_iter().map(holder).collect();
        if let Some(process) = &mut self.process {
            process.assign(&mut holders);
        }
        holders
    }

    /// Says what holds now and was not said before, and what was said and no longer holds.
    fn conclude(&mut self, at_seconds: f64, said: &mut Said) {
        let findings = self.observations.findings(None);
        for finding in &findings {
            if said.kinds.insert(finding.kind) {
                self.output.put(&Line::Finding { at_seconds, finding }, &words::finding(finding));
            }
        }
        let leaks = findings.iter().any(|finding| finding.kind == Kind::Leak);
        if said.kinds.contains(&Kind::Leak) && !leaks && !said.withdrew_leak {
            said.withdrew_leak = true;
            self.output.put(&Line::Withdrawn { at_seconds, finding: Kind::Leak }, words::NO_LEAK);
        }
    }
}

/// What was said: each kind once.
#[derive(Debug, Default)]
struct Said {
    kinds: BTreeSet<Kind>,
    withdrew_leak: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_that_cannot_be_written_ends_and_the_watch_does_not() {
        let recorder = Some(Recorder::create(Path::new("/dev/full")).unwrap());
        let mut output = Output { form: Form::Table, spark: Spark::Hidden, recorder, is_full: false, is_read: true };
        output.put(&Line::Missed { at_seconds: 1.0 }, "");
        assert!(output.recorder.is_none() && output.is_read);
    }
}

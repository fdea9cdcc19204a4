//! One rank of a run: its report heard line by line, and how it ended.
//!
//! A program on one device is one rank. One that `torchrun` or another launcher starts several times has a report for
//! each of them ([`report`](super::report)), and each is heard by itself: what one says spoils nothing of another's.

use std::time::{Duration, Instant};

use super::figures;
use super::process::{RankProcess, Sight};
use super::report::{Chunk, EndLine, EndOutcome, Hello, Line, MarkLine, PROTOCOL, Reader, StepLine};
use super::run::Terms;
use crate::text::harmless;
use crate::trial::executor::Observation;
use crate::trial::measure::Series;
use crate::trial::spawn::{Exit, Kin};

/// After the last step, for the evaluation, the checkpoint and the `end` line.
pub(super) const AFTER_LAST_STEP: Duration = Duration::from_secs(30);
/// Warnings of a rank that are kept.
const WARNINGS: usize = 32;
/// A forked program runs before its start is known here, on a busy machine for a while.
const STARTED_BEFORE: Duration = Duration::from_secs(2);
/// A program's clock and ours may differ by this factor.
const CLOCK_TOLERANCE: f64 = 1.05;
/// Samples beyond one a step, and marks beyond one a step, that are kept.
const SPARE: usize = 16;
/// The longest text of a warning or an error, in characters.
const TEXT_CHARS: usize = 4_000;

/// What a rank said.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) hello: Option<Hello>,
    pub(super) series: Series,
    pub(super) marks: Vec<MarkLine>,
    pub(super) has_trace: bool,
    pub(super) warnings: Vec<String>,
    pub(super) has_evaluated: bool,
    pub(super) has_checkpoint: bool,
    /// Steps with another number of samples than the batch size.
    pub(super) other_samples: u32,
    /// The last of those numbers.
    pub(super) last_other: u64,
    /// The last step whose end it has come to, its device's work perhaps not done.
    pub(super) reached: u32,
}

impl Told {
    /// Steps that are finished.
    pub(super) fn steps(&self) -> usize {
        self.series.times.len()
    }

    /// How far it came: finished steps, then the step whose end it reached.
    pub(super) fn progress(&self) -> (usize, u32) {
        (self.steps(), self.reached)
    }
}

/// How a rank is over.
#[derive(Debug)]
pub(super) enum Over {
    /// It said so.
    Said(EndLine),
    /// All steps are done, and it goes on or says no more.
    WentOn,
    /// Its report is no report.
    Spoiled(String),
    /// Its process ended without a word, and so.
    Died(Exit),
}

/// When something happened, as far as looks from time to time tell: not before the one instant, not after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) first: Instant,
    pub(super) last: Instant,
}

impl Span {
    /// Whether it was over when the other began, whenever in their spans the two happened.
    pub(super) fn precedes(self, other: Self) -> bool {
        self.last <= other.first && self.first < other.last
    }
}

/// A rank's end.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) over: Over,
    /// When others may have lost it.
    pub(super) when: Span,
    /// The same, if it went with its process. A program may take its connections down long before that.
    pub(super) likely: Span,
}

impl Ended {
    fn of(over: Over, when: Span) -> Self {
        Self { over, when, likely: when }
    }

    /// Of one that ended without a word, its process within `likely`, and wrote its last line after `spoke`.
    fn died(exit: Exit, spoke: Instant, likely: Span) -> Self {
        // A signal comes from outside, and nothing of the program's runs after it.
        let first = if exit.signal.is_some() { likely.first } else { spoke.min(likely.first) };
        Self { over: Over::Died(exit), when: Span { first, ..likely }, likely }
    }
}

/// A rank while it is followed.
#[derive(Debug)]
pub(super) struct Rank<'a> {
    pub(super) terms: &'a Terms<'a>,
    reader: Reader,
    pub(super) told: Told,
    /// The first word for its end, which is the last that counts.
    pub(super) ended: Option<Ended>,
    begun: Instant,
    heard: Instant,
    /// What its report holds and was not read was written after this.
    read_up: Instant,
    /// It wrote its last line after this.
    spoke: Instant,
    /// The times of all steps together.
    told_ms: f64,
    process: Option<RankProcess>,
    /// How that ended, and when.
    exit: Option<(Exit, Span)>,
    /// When it was last known to run.
    alive: Instant,
}

impl<'a> Rank<'a> {
    pub(super) fn new(terms: &'a Terms<'a>, reader: Reader, begun: Instant) -> Self {
        let told = Told::default();
        Self {
            terms,
            reader,
            told,
            ended: None,
            begun,
            heard: begun,
            read_up: begun,
            spoke: begun,
            told_ms: 0.0,
            process: None,
            exit: None,
            alive: begun,
        }
    }

    /// Looks at its process at the moment `now`. That comes before its report is looked at, so that the last words of one
    /// that has ended are read.
    pub(super) fn look_at_process(&mut self, now: Instant) {
        let Some(process) = self.process.as_ref().filter(|_| self.exit.is_none() && self.ended.is_none()) else {
            return;
        };
        match process.look() {
            Sight::Runs => self.alive = now,
            Sight::Leaves => {}
            Sight::Ended(exit) => self.exit = Some((exit, Span { first: self.alive, last: Instant::now() })),
        }
    }

    /// Looks at its report, and gives whether all there is to know by now is known. One look takes in so much and no more: a
    /// report without end must not keep anybody waiting.
    pub(super) fn look(&mut self, kin: &mut Kin, observe: &mut dyn FnMut(Observation)) -> bool {
        if self.ended.is_some() {
            return true;
        }
        let was_known = self.process.is_some();
        let now = Instant::now();
        let read = self.reader.read();
        let when = Span { first: self.read_up, last: Instant::now() };
        let Chunk { lines, is_last } = match read {
            Ok(chunk) => chunk,
            Err(error) => {
                self.ended = Some(Ended::of(Over::Spoiled(error.to_string()), when));
                return true;
            }
        };
        if !lines.is_empty() {
            self.spoke = when.first;
        }
        for line in lines {
            if let Err(over) = self.hear(line, kin, observe) {
                self.ended = Some(Ended::of(over, when));
                return true;
            }
        }
        if is_last {
            self.read_up = now;
        }
        if self.is_through() && self.silence() >= AFTER_LAST_STEP {
            self.ended = Some(Ended::of(Over::WentOn, Span { first: now, last: Instant::now() }));
        } else if let Some((exit, likely)) = self.exit.filter(|_| is_last) {
            self.ended = Some(Ended::died(exit, self.spoke, likely));
        }
        // A process that is known as of now was not looked at yet.
        is_last && was_known == self.process.is_some()
    }

    /// Whether it said anything.
    pub(super) fn is_heard(&self) -> bool {
        self.told.hello.is_some() || self.ended.is_some()
    }

    /// How long it has said nothing.
    pub(super) fn silence(&self) -> Duration {
        self.heard.elapsed()
    }

    /// Whether all steps are done.
    pub(super) fn is_through(&self) -> bool {
        self.told.steps() >= self.terms.trial.total_steps() as usize
    }

    /// The longest silence that is allowed now; `None` where it may never say anything.
    pub(super) fn allowance(&self) -> Option<Duration> {
        let patience = &self.terms.patience;
        if self.told.hello.is_none() {
            return self.terms.is_known_to_report.then_some(patience.start + patience.build);
        }
        if self.is_through() {
            // Its end is not waited for as long as this, and is none of a step.
            return Some(AFTER_LAST_STEP + patience.step);
        }
        let (steps, trial) = (self.told.steps(), self.terms.trial);
        let building = trial.is_probe() || trial.has_more_than_a_step_ahead(u32::try_from(steps).unwrap_or(u32::MAX));
        // Ranks say hello before they wait for one another and build anything.
        let meeting = if self.terms.replicas > 1 && steps == 0 { patience.start } else { Duration::ZERO };
        Some(meeting + if building { patience.build + patience.step } else { patience.step })
    }

    fn hear(&mut self, line: Line, kin: &mut Kin, observe: &mut dyn FnMut(Observation)) -> Result<(), Over> {
        if !matches!(line, Line::Warning { .. } | Line::Other) {
            self.heard = Instant::now();
        }
        let kept = self.terms.trial.total_steps() as usize + SPARE;
        match line {
            Line::Hello(hello) => self.greet(hello, kin)?,
            Line::Reached { step } => self.told.reached = step,
            Line::Step(step) => self.step(&step)?,
            Line::Sample(sample) if sample.step > self.terms.trial.total_steps() => {
                return Err(Over::Spoiled(format!("the report has a sample after step {}", sample.step)));
            }
            Line::Sample(sample) if self.told.series.samples.len() < kept => {
                let own_bytes = self.told.hello.as_ref().and_then(|hello| hello.limit_bytes).unwrap_or(u64::MAX);
                let sample = figures::sample(&sample, self.terms.limit_bytes.min(own_bytes));
                self.told.series.samples.push(sample);
                observe(Observation::Sample(sample));
            }
            Line::Mark(mark) if self.told.marks.len() < kept => self.told.marks.push(mark),
            Line::Trace {} => self.told.has_trace = true,
            Line::Evaluation { loss } => {
                self.told.has_evaluated = true;
                self.told.series.evaluation_loss = loss;
            }
            Line::Checkpoint { bytes } => {
                self.told.has_checkpoint = true;
                self.told.series.checkpoint_bytes = bytes;
            }
            Line::Warning { text } if self.told.warnings.len() < WARNINGS => {
                self.told.warnings.push(shortened(&text));
            }
            Line::End(end) => return Err(Over::Said(end)),
            Line::Sample(_) | Line::Mark(_) | Line::Warning { .. } | Line::Other => {}
        }
        Ok(())
    }

    /// It speaks the protocol, and there are as many ranks as it was told to run.
    fn greet(&mut self, hello: Hello, kin: &mut Kin) -> Result<(), Over> {
        if hello.protocol != PROTOCOL {
            return Err(Over::Spoiled(format!(
                "the program speaks protocol {}, expected {PROTOCOL} (hint: `tune_report.py` must be of this version)",
                hello.protocol
            )));
        }
        let (replicas, ranks) = (self.terms.replicas, hello.world_size);
        let told = ranks.filter(|ranks| *ranks as usize != replicas).map(|ranks| {
            format!(
                "the program runs {}, and `target.replicas` is {replicas} (hint: `--nproc-per-node={{replicas}}`)",
                crate::units::plural(ranks as usize, "rank")
            )
        });
        if let Some(text) = told {
            if replicas > 1 {
                let failed = EndOutcome::Failed;
                let end = EndLine { outcome: failed, message: Some(text), requested_bytes: None, step: None };
                self.told.hello = Some(hello);
                return Err(Over::Said(end));
            }
            // It worked before there was a key for it: one rank reports, and counts for all.
            self.told.warnings.push(text);
        }
        if replicas > 1 {
            self.process = hello.pid.and_then(|pid| RankProcess::of(pid, kin));
            // It wrote this after what was read before.
            self.alive = self.read_up;
        }
        self.told.hello = Some(hello);
        Ok(())
    }

    fn step(&mut self, line: &StepLine) -> Result<(), Over> {
        let expected = u32::try_from(self.told.steps()).unwrap_or(u32::MAX).saturating_add(1);
        if expected > self.terms.trial.total_steps() {
            return Err(Over::WentOn);
        }
        if line.step != expected {
            return Err(Over::Spoiled(format!("the report has step {} where step {expected} was due", line.step)));
        }
        let times = figures::times(line);
        if figures::cannot_be(&times) {
            let (total_ms, wait_ms) = (times.total_ms, times.data_wait_ms);
            return Err(Over::Spoiled(format!(
                "step {expected} of the report has a time that cannot be (`total_ms` {total_ms}, `data_wait_ms` {wait_ms})"
            )));
        }
        self.told_ms += times.total_ms;
        let passed_ms = (self.begun.elapsed() + STARTED_BEFORE).as_secs_f64() * 1e3;
        if self.told_ms > passed_ms * CLOCK_TOLERANCE {
            let (told, passed) = (self.told_ms / 1e3, passed_ms / 1e3);
            let what = format!("the report's steps took {told:.3} s, and no more than {passed:.3} s can have passed");
            return Err(Over::Spoiled(what));
        }
        if line.samples != self.terms.trial.point.batch_size as u64 {
            self.told.other_samples += 1;
            self.told.last_other = line.samples;
        }
        if line.loss.is_some_and(|loss| !loss.is_finite()) {
            let outcome = EndOutcome::Diverged;
            return Err(Over::Said(EndLine {
                outcome,
                message: None,
                requested_bytes: None,
                step: Some(expected - 1),
            }));
        }
        self.told.series.times.push(times);
        self.told.series.losses.extend(line.loss);
        Ok(())
    }
}

pub(super) fn shortened(text: &str) -> String {
    harmless(text).chars().take(TEXT_CHARS).collect()
}

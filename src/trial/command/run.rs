//! One run of the program: its report followed to the end, and what it comes to.
//!
//! | seen | outcome |
//! |---|---|
//! | an `end` line | what it says, whatever the exit status is afterwards |
//! | all steps done, and another one or silence where `end` was due | completed: the program goes on, and is ended |
//! | status 0 after all steps, or without a report | completed |
//! | status 0 after fewer steps | failed |
//! | SIGKILL that was not ours, and the cgroup's `oom_kill` counter rose | host out of memory |
//! | any other signal | crashed |
//! | any other status, and the last lines are an out-of-memory error | out of memory |
//! | any other status | failed, with the last lines |
//! | a line that is no message | protocol error |
//! | no line for too long | timed out |
//! | no report, and still running at the command's timeout | completed if it held memory of the card by then, else timed out |
//! | the user or the budget said stop | cancelled |
//!
//! A program that says nothing typed is the one case in which text is searched, with the same reader as `tune
//! explain-oom`; see [`crate::memory::oom`].

use std::time::{Duration, Instant};

use super::ending::{left, ran, said};
use super::report::{Chunk, EndLine, EndOutcome, Hello, Line, MarkLine, PROTOCOL, Reader, SampleLine, StepLine};
use crate::memory::{MemorySample, PoolState};
use crate::text::harmless;
use crate::trial::executor::{Interrupt, Observation};
use crate::trial::measure::Series;
use crate::trial::outcome::{Outcome, StepTimes};
use crate::trial::process::{Manner, OomKills, Patience};
use crate::trial::spawn::{Exit, Running};
use crate::trial::spec::TrialSpec;

/// How often the report is looked at.
const TICK: Duration = Duration::from_millis(10);
/// After the last step, for the evaluation, the checkpoint and the `end` line.
const AFTER_LAST_STEP: Duration = Duration::from_secs(30);
/// Lines of output that are passed on between two looks at the report.
const LOG_LINES: usize = 256;
/// Warnings of a trial that are kept.
const WARNINGS: usize = 32;
/// How a line of `tune_report.py` begins that is not for the report.
const REPORTER: &str = "tune_report: ";
/// Times of a report may be rounded by this much.
const ROUNDING_MS: f64 = 1.0;
/// A forked program runs before its start is known here, on a busy machine for a while.
const STARTED_BEFORE: Duration = Duration::from_secs(2);
/// A program's clock and ours may differ by this factor.
const CLOCK_TOLERANCE: f64 = 1.05;
/// Samples beyond one a step, and marks beyond one a step, that are kept.
const SPARE: usize = 16;
/// The longest text of a warning or an error, in characters.
const TEXT_CHARS: usize = 4_000;

/// What following a run needs.
#[derive(Clone, Debug)]
pub(super) struct Terms<'a> {
    pub(super) trial: &'a TrialSpec,
    /// C, where the program did not say another.
    pub(super) limit_bytes: u64,
    pub(super) patience: Patience,
    /// The longest that the run may take.
    pub(super) timeout: Duration,
    pub(super) interrupt: &'a Interrupt,
    pub(super) deadline: Option<Instant>,
    pub(super) oom_kills: &'a OomKills,
    /// Whether an earlier run reported, so that this one will.
    pub(super) is_known_to_report: bool,
}

/// What a run said and how it ended.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) hello: Option<Hello>,
    pub(super) series: Series,
    pub(super) marks: Vec<MarkLine>,
    pub(super) has_trace: bool,
    pub(super) warnings: Vec<String>,
    /// Whether it had said nothing when the command's timeout came. It fits if it held memory of the card by then.
    pub(super) was_stopped_unheard: bool,
    pub(super) has_evaluated: bool,
    pub(super) has_checkpoint: bool,
    /// Steps with another number of samples than the batch size.
    pub(super) other_samples: u32,
    /// The last of those numbers.
    pub(super) last_other: u64,
    /// What the reporter itself complained of on the program's output.
    pub(super) complaint: Option<String>,
}

/// Why following ends.
#[derive(Debug)]
enum Ending {
    Said(EndLine),
    /// Its process ended.
    Left,
    /// All steps are done, and it goes on or says no more.
    WentOn,
    Spoiled(String),
    Silent(Duration),
    /// The command's own timeout.
    Overdue,
    Cancelled,
}

/// Follows a run to its end and ends what is left of it.
pub(super) fn follow(
    terms: &Terms<'_>,
    reader: &mut Reader,
    mut running: Running,
    observe: &mut dyn FnMut(Observation),
) -> (Told, Outcome) {
    let oom_kills = terms.oom_kills.count();
    let now = Instant::now();
    let mut following = Following { terms, told: Told::default(), begun: now, heard: now, told_ms: 0.0, end: None };
    let ending = following.until_it_ends(reader, &mut running, observe);
    let patience = &terms.patience;
    let end = match &ending {
        // It has said its last word and leaves by itself.
        Ending::Said(_) => {
            let _ = running.has_ended_within(patience.leave);
            running.end(Manner::Gently, patience)
        }
        Ending::Cancelled if terms.interrupt.at_once() => running.end(Manner::AtOnce, patience),
        _ => running.end(Manner::Gently, patience),
    };
    let mut told = following.told;
    told.complaint = end.log.lines().rfind(|line| line.starts_with(REPORTER)).map(str::to_owned);
    told.was_stopped_unheard = matches!(ending, Ending::Overdue) && told.hello.is_none() && !terms.is_known_to_report;
    let rose = || terms.oom_kills.count() > oom_kills;
    let outcome = match ending {
        Ending::Said(line) => {
            if let Some(Exit { status: Some(status @ 1..), .. }) = end.exit
                && line.outcome == EndOutcome::Completed
            {
                told.warnings.push(format!("the program left with status {status} after its end"));
            }
            said(terms.trial, line, &told)
        }
        Ending::WentOn => ran(terms.trial, &told),
        Ending::Left => left(terms.trial, &told, &end, &rose),
        Ending::Spoiled(message) => Outcome::ProtocolError { message },
        Ending::Silent(waited) => Outcome::TimedOut { seconds: waited.as_secs_f64() },
        Ending::Overdue => Outcome::TimedOut { seconds: terms.timeout.as_secs_f64() },
        Ending::Cancelled => Outcome::Cancelled,
    };
    (told, outcome)
}

struct Following<'a> {
    terms: &'a Terms<'a>,
    told: Told,
    begun: Instant,
    heard: Instant,
    /// The times of all steps together.
    told_ms: f64,
    end: Option<EndLine>,
}

impl Following<'_> {
    fn until_it_ends(
        &mut self,
        reader: &mut Reader,
        running: &mut Running,
        observe: &mut dyn FnMut(Observation),
    ) -> Ending {
        loop {
            let has_left = running.has_ended_within(TICK);
            // A flood of output must not keep the report waiting.
            for line in std::iter::from_fn(|| running.log_line()).take(LOG_LINES) {
                observe(Observation::Log(line));
            }
            // One look takes in so much and no more: a report without end must not keep anybody waiting.
            let is_read_up = match reader.read() {
                Ok(Chunk { lines, is_last }) => {
                    for line in lines {
                        if let Err(ending) = self.hear(line, observe) {
                            return ending;
                        }
                        // The first word for the end is the last that counts.
                        if let Some(end) = self.end.take() {
                            return Ending::Said(end);
                        }
                    }
                    is_last
                }
                Err(error) => return Ending::Spoiled(error.to_string()),
            };
            if has_left && is_read_up {
                return Ending::Left;
            }
            if let Some(ending) = self.overdue() {
                return ending;
            }
        }
    }

    fn overdue(&self) -> Option<Ending> {
        let (terms, now) = (self.terms, Instant::now());
        if terms.interrupt.requested() || terms.deadline.is_some_and(|deadline| now >= deadline) {
            return Some(Ending::Cancelled);
        }
        let silence = now.duration_since(self.heard);
        if self.is_through() && silence >= AFTER_LAST_STEP {
            return Some(Ending::WentOn);
        }
        if now.duration_since(self.begun) >= terms.timeout {
            return Some(Ending::Overdue);
        }
        let allowance = self.allowance()?;
        (silence >= allowance).then_some(Ending::Silent(allowance))
    }

    /// The longest silence that is allowed now; `None` where the program may never say anything.
    fn allowance(&self) -> Option<Duration> {
        let patience = &self.terms.patience;
        if self.told.hello.is_none() {
            return self.terms.is_known_to_report.then_some(patience.start + patience.build);
        }
        let building = self.told.series.times.is_empty() || self.terms.trial.is_soak() || self.terms.trial.is_probe();
        Some(if building { patience.build + patience.step } else { patience.step })
    }

    fn is_through(&self) -> bool {
        self.told.series.times.len() >= self.terms.trial.total_steps() as usize
    }

    fn hear(&mut self, line: Line, observe: &mut dyn FnMut(Observation)) -> Result<(), Ending> {
        if !matches!(line, Line::Warning { .. } | Line::Other) {
            self.heard = Instant::now();
        }
        let kept = self.terms.trial.total_steps() as usize + SPARE;
        match line {
            Line::Hello(hello) if hello.protocol != PROTOCOL => {
                return Err(Ending::Spoiled(format!(
                    "the program speaks protocol {}, expected {PROTOCOL} (hint: `tune_report.py` must be of this version)",
                    hello.protocol
                )));
            }
            Line::Hello(hello) => self.told.hello = Some(hello),
            Line::Step(step) => self.step(&step, observe)?,
            Line::Sample(sample) if sample.step > self.terms.trial.total_steps() => {
                return Err(Ending::Spoiled(format!("the report has a sample after step {}", sample.step)));
            }
            Line::Sample(sample) if self.told.series.samples.len() < kept => {
                let sample = self.sample(&sample);
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
                let text = shortened(&text);
                self.told.warnings.push(text.clone());
                observe(Observation::Warning(text));
            }
            Line::End(end) => self.end = Some(end),
            Line::Sample(_) | Line::Mark(_) | Line::Warning { .. } | Line::Other => {}
        }
        Ok(())
    }

    fn step(&mut self, line: &StepLine, observe: &mut dyn FnMut(Observation)) -> Result<(), Ending> {
        let expected = u32::try_from(self.told.series.times.len()).unwrap_or(u32::MAX).saturating_add(1);
        if expected > self.terms.trial.total_steps() {
            return Err(Ending::WentOn);
        }
        if line.step != expected {
            return Err(Ending::Spoiled(format!("the report has step {} where step {expected} was due", line.step)));
        }
        let times = StepTimes {
            // Both are rounded, and one may be by the other's digit.
            data_wait_ms: if line.data_wait_ms <= line.total_ms + ROUNDING_MS {
                line.data_wait_ms.min(line.total_ms)
            } else {
                line.data_wait_ms
            },
            load_ms: line.load_ms,
            forward_ms: line.forward_ms,
            backward_ms: line.backward_ms,
            optimizer_ms: line.optimizer_ms,
            total_ms: line.total_ms,
        };
        let figures = [
            times.data_wait_ms,
            times.load_ms,
            times.forward_ms,
            times.backward_ms,
            times.optimizer_ms,
            times.total_ms,
        ];
        let cannot_be = |milliseconds: &f64| !milliseconds.is_finite() || *milliseconds < 0.0;
        if figures.iter().any(cannot_be) || times.total_ms <= 0.0 || times.data_wait_ms > times.total_ms {
            let (total_ms, wait_ms) = (times.total_ms, times.data_wait_ms);
            return Err(Ending::Spoiled(format!(
                "step {expected} of the report has a time that cannot be (`total_ms` {total_ms}, `data_wait_ms` {wait_ms})"
            )));
        }
        self.told_ms += times.total_ms;
        let passed_ms = (self.begun.elapsed() + STARTED_BEFORE).as_secs_f64() * 1e3;
        if self.told_ms > passed_ms * CLOCK_TOLERANCE {
            let (told, passed) = (self.told_ms / 1e3, passed_ms / 1e3);
            let what = format!("the report's steps took {told:.3} s, and no more than {passed:.3} s can have passed");
            return Err(Ending::Spoiled(what));
        }
        if line.samples != self.terms.trial.point.batch_size as u64 {
            self.told.other_samples += 1;
            self.told.last_other = line.samples;
        }
        if line.loss.is_some_and(|loss| !loss.is_finite()) {
            let end = EndLine {
                outcome: EndOutcome::Diverged,
                message: None,
                requested_bytes: None,
                step: Some(expected - 1),
            };
            return Err(Ending::Said(end));
        }
        self.told.series.times.push(times);
        self.told.series.losses.extend(line.loss);
        observe(Observation::Step { step: expected, loss: line.loss.unwrap_or(f64::NAN), times });
        Ok(())
    }

    /// A sample in our terms, under C whatever higher limit the program holds itself to. L is the larger of the largest free block and what could be had after a release.
    fn sample(&self, line: &SampleLine) -> MemorySample {
        let own_bytes = self.told.hello.as_ref().and_then(|hello| hello.limit_bytes).unwrap_or(u64::MAX);
        let limit_bytes = self.terms.limit_bytes.min(own_bytes);
        let allocated_bytes = line.allocated_bytes;
        let reserved_bytes = line.reserved_bytes.max(allocated_bytes);
        let unreleasable_bytes = line.unreleasable_bytes.unwrap_or(0);
        let after_release = limit_bytes.saturating_sub(allocated_bytes).saturating_sub(unreleasable_bytes);
        let largest_free_bytes = line.largest_free_bytes.unwrap_or(0);
        let state = PoolState {
            allocated_bytes,
            requested_bytes: line.requested_bytes.unwrap_or(allocated_bytes),
            reserved_bytes,
            limit_bytes,
            peak_allocated_bytes: line.peak_allocated_bytes.unwrap_or(allocated_bytes).max(allocated_bytes),
            peak_reserved_bytes: line
                .peak_reserved_bytes
                .unwrap_or(reserved_bytes)
                .max(reserved_bytes)
                .max(line.peak_allocated_bytes.unwrap_or(0)),
            largest_free_bytes,
            largest_satisfiable_bytes: largest_free_bytes.max(after_release),
            unreleasable_bytes,
            allocated_blocks: line.allocated_blocks.unwrap_or(0),
            ..PoolState::default()
        };
        MemorySample {
            largest_satisfiable_estimated: line.unreleasable_bytes.is_none(),
            largest_request_bytes: line.largest_request_bytes.unwrap_or(0),
            host_bytes: line.host_bytes,
            ..MemorySample::of(line.step, &state)
        }
    }
}

pub(super) fn shortened(text: &str) -> String {
    harmless(text).chars().take(TEXT_CHARS).collect()
}

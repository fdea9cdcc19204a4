//! What the end of a run comes to: the program's own word, or what is left when it said none.

use nix::sys::signal::Signal;

use super::rank::{Told, shortened};
use super::report::{EndLine, EndOutcome};
use crate::memory::oom::{self, OomClass};
use crate::trial::outcome::Outcome;
use crate::trial::spawn::{End, Exit};
use crate::trial::spec::TrialSpec;

/// What a program's own word for its end means.
pub(super) fn said(trial: &TrialSpec, line: &EndLine, told: &Told) -> Outcome {
    let done = told.series.times.len();
    let step = u32::try_from(done).ok();
    match line.outcome {
        EndOutcome::Completed if done < trial.total_steps() as usize => {
            Outcome::Failed { message: format!("ended its report after {done} of {} steps", trial.total_steps()) }
        }
        EndOutcome::Completed => ran(trial, told),
        EndOutcome::Diverged => Outcome::Diverged { step: line.step.or(step).unwrap_or(0) },
        EndOutcome::Failed => {
            Outcome::Failed { message: shortened(line.message.as_deref().unwrap_or("it did not say why")) }
        }
        EndOutcome::OutOfMemory => {
            let explained = line.message.as_deref().map(|message| oom::explain(message, None));
            let sampled = told.series.samples.last();
            let figure = |of: fn(&oom::OomExplanation) -> Option<u64>| explained.as_ref().and_then(of);
            Outcome::OutOfMemory {
                requested_bytes: line.requested_bytes.or_else(|| figure(|explained| explained.requested_bytes)),
                allocated_bytes: figure(|explained| explained.allocated_bytes),
                reserved_bytes: figure(|explained| explained.reserved_bytes),
                limit_bytes: figure(|explained| explained.limit_bytes).or(sampled.map(|sample| sample.limit_bytes)),
                step,
                phase: None,
            }
        }
    }
}

/// What all steps mean: a program that runs another batch size in every one of them was not told, or did not listen.
pub(super) fn ran(trial: &TrialSpec, told: &Told) -> Outcome {
    if told.other_samples < trial.total_steps() {
        return Outcome::Completed;
    }
    Outcome::Failed {
        message: format!(
            "no step had {} samples, the batch size that was asked for; the last had {} (hint: put `{{batch_size}}` into \
             `command.run` or read TUNE_BATCH_SIZE, and report each micro-batch with its own samples)",
            trial.point.batch_size, told.last_other
        ),
    }
}

/// What the end of a process means that said nothing of its end.
pub(super) fn left(trial: &TrialSpec, told: &Told, end: &End, oom_kills_rose: &dyn Fn() -> bool) -> Outcome {
    let Exit { status, signal } = end.exit.unwrap_or(Exit { status: None, signal: None });
    if signal == Some(Signal::SIGKILL as i32) && oom_kills_rose() {
        return Outcome::HostOutOfMemory;
    }
    let done = told.series.times.len();
    let total = trial.total_steps() as usize;
    match status {
        Some(0) if told.hello.is_none() => Outcome::Completed,
        Some(0) if done >= total => ran(trial, told),
        Some(0) => Outcome::Failed { message: format!("left with status 0 after {done} of {total} steps") },
        Some(status) => {
            let explained = oom::explain(&end.log, None);
            if is_out_of_memory(&explained) {
                return Outcome::OutOfMemory {
                    requested_bytes: explained.requested_bytes,
                    allocated_bytes: explained.allocated_bytes,
                    reserved_bytes: explained.reserved_bytes,
                    limit_bytes: explained.limit_bytes,
                    step: told.hello.is_some().then(|| u32::try_from(done).unwrap_or(u32::MAX)),
                    phase: None,
                };
            }
            // The first line stands alone in tables, and an error mostly ends with what matters.
            let message = match end.log.lines().rfind(|line| !line.trim().is_empty()) {
                Some(last) => format!("left with status {status}: {last}\nits last lines were:\n{}", end.log),
                None => format!("left with status {status} and printed nothing"),
            };
            Outcome::Failed { message }
        }
        None => Outcome::Crashed { signal, status, log: end.log.clone() },
    }
}

/// Whether a text is an allocator's refusal: somebody known wrote it, with a figure.
fn is_out_of_memory(explained: &oom::OomExplanation) -> bool {
    explained.class != OomClass::Unknown || (explained.source != oom::OomSource::Unknown)
}

//! Whose end is the run's, where several ranks train together.
//!
//! One rank runs out of memory, and the others lose their connection to it and say so; one is killed, and the launcher
//! ends the rest. What is wanted is the first cause, and clocks do not tell it: all of this comes within milliseconds. So
//! the ends are weighed, and of equal ones the earlier counts:
//!
//! | end | since |
//! |---|---|
//! | it says that it is out of memory | nothing else makes it say so |
//! | its loss is not finite | likewise |
//! | its process was ended by a signal other than SIGTERM | launchers end the rest by SIGTERM first |
//! | its report is no report | |
//! | it left with a status and without a word, or too early | those that lose a connection do say so |
//! | it is gone, and nobody saw how; or an error of its own | the error may be such a lost connection, so of one moment the former comes first |
//! | SIGTERM or SIGINT | somebody's answer to another end, no cause |
//!
//! A rank that hangs says nothing, and those that wait for it neither. It is known where it is behind all others: by the
//! steps that are done, and by the last step whose end it reached.

use std::cmp::Reverse;
use std::time::Instant;

use nix::sys::signal::Signal;

use super::ending::{left, ran, said};
use super::rank::{Over, Rank};
use super::report::EndOutcome;
use super::run::{Ending, Terms};
use crate::trial::outcome::Outcome;
use crate::trial::spawn::{End, Exit};

/// A run's outcome, and the rank that it is of.
#[derive(Debug)]
pub(super) struct Blame {
    pub(super) outcome: Outcome,
    pub(super) rank: Option<usize>,
}

/// What is known once the program is gone.
pub(super) struct After<'a> {
    pub(super) terms: &'a Terms<'a>,
    pub(super) end: &'a End,
    /// Whether the kernel ended a process for want of host memory meanwhile.
    pub(super) rose: &'a dyn Fn() -> bool,
}

/// What the end of a run comes to.
pub(super) fn judge(ranks: &[Rank<'_>], ending: &Ending, after: &After<'_>) -> Blame {
    let timed_out = |seconds| Blame { outcome: Outcome::TimedOut { seconds }, rank: behind(ranks) };
    match ending {
        Ending::Silent(waited) => timed_out(waited.as_secs_f64()),
        Ending::Overdue => timed_out(after.terms.timeout.as_secs_f64()),
        Ending::Cancelled => Blame { outcome: Outcome::Cancelled, rank: None },
        Ending::Over => over(ranks, after),
    }
}

/// Whether a rank has ended, and not because somebody ended it, and not well.
pub(super) fn is_trouble(rank: &Rank<'_>) -> bool {
    weight(rank).is_some_and(|weight| weight > ENDED)
}

/// Whether it is known of an end that another process brought it about.
pub(super) fn was_ended(over: &Over) -> bool {
    let Over::Died(Exit { signal: Some(signal), .. }) = over else { return false };
    [Signal::SIGTERM as i32, Signal::SIGINT as i32].contains(signal)
}

/// Of an end that is no cause.
const ENDED: u8 = 1;

/// How much an end says of why the run ended; 0 of a good one, `None` of a rank that goes on.
fn weight(rank: &Rank<'_>) -> Option<u8> {
    let told = &rank.told;
    let is_good = || rank.is_through() && ran(rank.terms.trial, told) == Outcome::Completed;
    let (over, _) = rank.over.as_ref()?;
    Some(match over {
        Over::Said(end) => match end.outcome {
            EndOutcome::Completed if is_good() => 0,
            EndOutcome::Completed => 3,
            EndOutcome::Failed => 2,
            EndOutcome::Diverged => 6,
            EndOutcome::OutOfMemory => 7,
        },
        Over::WentOn | Over::Died(Exit { status: Some(0), .. }) if is_good() => 0,
        over if was_ended(over) => ENDED,
        Over::Died(Exit { signal: Some(_), .. }) => 5,
        Over::Died(Exit { status: None, signal: None }) => 2,
        Over::Spoiled(_) => 4,
        Over::Died(_) | Over::WentOn => 3,
    })
}

fn over(ranks: &[Rank<'_>], after: &After<'_>) -> Blame {
    let ends = (0..).zip(ranks).filter_map(|(index, rank)| Some((index, rank, weight(rank)?, rank.over.as_ref()?)));
    let troubles = ends.filter(|(_, _, weight, _)| *weight > ENDED);
    let place = |(index, _, weight, (over, at)): &(usize, &Rank<'_>, u8, &(Over, Instant))| {
        (*weight, Reverse(*at), matches!(over, Over::Died(_)), Reverse(*index))
    };
    let worst = troubles.max_by_key(place);
    if let Some((index, rank, _, (over, _))) = worst {
        return Blame { outcome: outcome_of(rank, over, after), rank: Some(index) };
    }
    let mut heard = ranks.iter().filter(|rank| rank.is_heard()).peekable();
    if heard.peek().is_some() && heard.all(|rank| weight(rank) == Some(0)) {
        return Blame { outcome: Outcome::Completed, rank: None };
    }
    let named = behind(ranks);
    let Some(told) = named.and_then(|index| ranks.get(index)).or(ranks.first()).map(|rank| &rank.told) else {
        return Blame { outcome: Outcome::Cancelled, rank: None };
    };
    Blame { outcome: left(after.terms.trial, told, after.end, after.rose), rank: named }
}

/// What the end of one rank means.
fn outcome_of(rank: &Rank<'_>, over: &Over, after: &After<'_>) -> Outcome {
    let (trial, told) = (after.terms.trial, &rank.told);
    match over {
        Over::Said(line) => said(trial, line, told),
        Over::WentOn => ran(trial, told),
        Over::Spoiled(message) => Outcome::ProtocolError { message: message.clone() },
        Over::Died(exit) => left(trial, told, &End { exit: Some(*exit), log: after.end.log.clone() }, after.rose),
    }
}

/// The rank that is behind all others, where there is one. One that was never heard is behind those that were.
fn behind(ranks: &[Rank<'_>]) -> Option<usize> {
    let place = |rank: &Rank<'_>| (rank.over.is_some(), rank.is_heard(), rank.told.progress());
    let (last, rank) = (0..).zip(ranks).min_by_key(|(_, rank)| place(rank))?;
    let is_alone = ranks.iter().filter(|other| place(other) == place(rank)).count() == 1;
    (is_alone && rank.over.is_none()).then_some(last)
}

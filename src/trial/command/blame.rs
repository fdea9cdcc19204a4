//! Whose end is the run's, where several ranks train together.
//!
//! One rank runs out of memory, and the others lose their connection to it and say so; one is killed, and the launcher
//! ends the rest. What is wanted is the first cause. All of this comes within milliseconds, and is seen by looks that may
//! be late: of an end it is known that it came after one look and before another ([`Span`]), and no
//! more. So ends are weighed:
//!
//! | end | since |
//! |---|---|
//! | it says that it is out of memory | nothing else makes it say so |
//! | its loss is not finite | likewise |
//! | its process was ended by a signal other than those below | launchers end the rest by SIGTERM first |
//! | its report is no report | |
//! | it left with a status and without a word, or too early | those that lose a connection do say so |
//! | it is gone, and nobody saw how; an error of its own; SIGABRT | it may have lost a connection (PyTorch's watchdog of NCCL aborts then) |
//! | SIGTERM or SIGINT | somebody's answer to another end, no cause |
//!
//! The first two are causes whatever else is seen. Of all others none counts that another certainly preceded, and of those
//! left the ones that weigh most. Of those it is the one that had come least far, and did not end after another: whoever
//! loses another in an exchange has come to that exchange, and the other has not. Where there is no such one, or where it
//! may have lost another that is not known to have ended, and was behind it, no rank is named: a wrong one would be
//! believed.
//!
//! A rank that hangs says nothing, and those that wait for it neither. It is known where it is behind all others: by the
//! steps that are done, and by the last step whose end it reached.

use nix::sys::signal::Signal;

use super::ending::{left, ran, said};
use super::rank::{Ended, Over, Rank, Span};
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
/// Of an end that the loss of another rank may have brought about.
const BEREFT: u8 = 2;
/// From here on an end is nobody else's.
const OWN: u8 = 6;

/// How much an end says of why the run ended; 0 of a good one, `None` of a rank that goes on.
fn weight(rank: &Rank<'_>) -> Option<u8> {
    let told = &rank.told;
    let is_good = || rank.is_through() && ran(rank.terms.trial, told) == Outcome::Completed;
    let Ended { over, .. } = rank.ended.as_ref()?;
    Some(match over {
        Over::Said(end) => match end.outcome {
            EndOutcome::Completed if is_good() => 0,
            EndOutcome::Completed => 3,
            EndOutcome::Failed => BEREFT,
            EndOutcome::Diverged => OWN,
            EndOutcome::OutOfMemory => OWN + 1,
        },
        Over::WentOn | Over::Died(Exit { status: Some(0), .. }) if is_good() => 0,
        over if was_ended(over) => ENDED,
        Over::Died(Exit { signal: Some(signal), .. }) if *signal != Signal::SIGABRT as i32 => 5,
        Over::Died(Exit { status: None, .. } | Exit { signal: Some(_), .. }) => BEREFT,
        Over::Spoiled(_) => 4,
        Over::Died(_) | Over::WentOn => 3,
    })
}

/// An end that is not good.
#[derive(Clone)]
struct Trouble<'a> {
    index: usize,
    rank: &'a Rank<'a>,
    ended: &'a Ended,
    weight: u8,
}

impl Trouble<'_> {
    /// Whether it came before another, and may thus be why that came. One that had come further than another was not lost
    /// by that in an exchange, whichever of the two was the first to say what was wrong.
    fn precedes(&self, other: &Self, when: fn(&Ended) -> Span) -> bool {
        let is_wordless = matches!(other.ended.over, Over::Died(_));
        when(self.ended).precedes(when(other.ended))
            && (is_wordless || self.rank.told.progress() <= other.rank.told.progress())
    }
}

fn over(ranks: &[Rank<'_>], after: &After<'_>) -> Blame {
    if let Some((cause, named)) = cause(ranks) {
        return Blame { outcome: outcome_of(cause.rank, &cause.ended.over, after), rank: named };
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

/// What ended the run, and whose that certainly is.
fn cause<'a>(ranks: &'a [Rank<'a>]) -> Option<(Trouble<'a>, Option<usize>)> {
    let trouble = |(index, rank): (usize, &'a Rank<'a>)| {
        let (ended, weight) = (rank.ended.as_ref()?, weight(rank)?);
        (weight > ENDED).then_some(Trouble { index, rank, ended, weight })
    };
    let mut troubles: Vec<Trouble<'_>> = (0..).zip(ranks).filter_map(trouble).collect();
    if troubles.iter().any(|trouble| trouble.weight >= OWN) {
        keep_heaviest(&mut troubles);
        keep_first(&mut troubles, |ended| ended.when);
        let cause = troubles.into_iter().next()?;
        let named = Some(cause.index);
        return Some((cause, named));
    }
    keep_first(&mut troubles, |ended| ended.when);
    keep_heaviest(&mut troubles);
    let least = troubles.iter().map(|trouble| trouble.rank.told.progress()).min();
    let mut first = troubles.clone();
    keep_first(&mut first, |ended| ended.likely);
    first.retain(|trouble| Some(trouble.rank.told.progress()) == least);
    let certain = if let [alone] = &first[..] { Some(alone.clone()) } else { None };
    let named = certain.as_ref().filter(|cause| !ranks.iter().any(|other| may_be_lost_to(cause, other)));
    let named = named.map(|cause| cause.index);
    Some((certain.or_else(|| troubles.into_iter().next())?, named))
}

fn keep_heaviest(troubles: &mut Vec<Trouble<'_>>) {
    let most = troubles.iter().map(|trouble| trouble.weight).max();
    troubles.retain(|trouble| Some(trouble.weight) == most);
}

/// Drops those that another one preceded.
fn keep_first(troubles: &mut Vec<Trouble<'_>>, when: fn(&Ended) -> Span) {
    let all = troubles.clone();
    troubles.retain(|trouble| !all.iter().any(|other| other.precedes(trouble, when)));
}

/// Whether the loss of another rank, whose own end is not known or none of its own, may be what this trouble is.
fn may_be_lost_to(trouble: &Trouble<'_>, other: &Rank<'_>) -> bool {
    trouble.weight == BEREFT
        && match &other.ended {
            None => other.is_heard() && other.told.progress() < trouble.rank.told.progress(),
            Some(ended) => was_ended(&ended.over) && ended.when.precedes(trouble.ended.when),
        }
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
    let place = |rank: &Rank<'_>| (rank.ended.is_some(), rank.is_heard(), rank.told.progress());
    let (last, rank) = (0..).zip(ranks).min_by_key(|(_, rank)| place(rank))?;
    let is_alone = ranks.iter().filter(|other| place(other) == place(rank)).count() == 1;
    (is_alone && rank.ended.is_none()).then_some(last)
}

#[cfg(test)]
mod tests;

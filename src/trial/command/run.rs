//! One run of the program: the reports of its ranks followed to the end, and what it comes to.
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
//!
//! # Several ranks
//! The run has completed when every rank that reports has. The first other end of any of them ends the run: the others
//! wait for it in a collective operation, and would for as long as that may take. They are heard for a moment longer
//! ([`AFTERMATH`]), since what one rank died of shows in another as a lost connection; [`blame`] says whose
//! end is the run's.

use std::time::{Duration, Instant};

use super::blame::{self, Blame};
use super::rank::{Ended, Over, Rank, Told};
use super::report::{EndOutcome, Reader};
use crate::trial::executor::{Interrupt, Observation};
use crate::trial::outcome::Outcome;
use crate::trial::process::{Manner, OomKills, Patience};
use crate::trial::spawn::{Exit, Kin, Running};
use crate::trial::spec::TrialSpec;

/// How often the reports are looked at.
const TICK: Duration = Duration::from_millis(10);
/// Lines of output that are passed on between two looks at the reports.
const LOG_LINES: usize = 256;
/// How a line of `tune_report.py` begins that is not for the report.
const REPORTER: &str = "tune_report: ";
/// For the other ranks to say their last words when one has ended otherwise than well.
const AFTERMATH: Duration = Duration::from_secs(1);
/// For a launcher whose ranks have all ended well: it meets those of other machines first.
const LAUNCHER_LEAVES: Duration = Duration::from_secs(5);
/// For a launcher that has ended its ranks to say why, by its own status.
const LAUNCHER: Duration = Duration::from_secs(10);

/// What following a run needs.
#[derive(Clone, Debug)]
pub(super) struct Terms<'a> {
    pub(super) trial: &'a TrialSpec,
    /// Ranks that train together.
    pub(super) replicas: usize,
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
#[derive(Debug)]
pub(super) struct Heard {
    /// What each rank said, in their order.
    pub(super) ranks: Vec<Told>,
    pub(super) outcome: Outcome,
    /// The rank that ended it otherwise than well, where that is known and there are several.
    pub(super) rank: Option<usize>,
    /// What there is to say of the run as a whole.
    pub(super) warnings: Vec<String>,
    /// Whether it had said nothing when the command's timeout came. It fits if it held memory of the card by then.
    pub(super) was_stopped_unheard: bool,
    /// What the reporter itself complained of on the program's output.
    pub(super) complaint: Option<String>,
}

impl Heard {
    /// Whether any rank reports.
    pub(super) fn reports(&self) -> bool {
        self.ranks.iter().any(|told| told.hello.is_some())
    }
}

/// Why following ends.
#[derive(Debug)]
pub(super) enum Ending {
    /// Its ranks have ended it, or its process has left.
    Over,
    Silent(Duration),
    /// The command's own timeout.
    Overdue,
    Cancelled,
}

/// Follows a run to its end and ends what is left of it. A rank for each reader.
pub(super) fn follow(
    terms: &Terms<'_>,
    readers: Vec<Reader>,
    mut running: Running,
    observe: &mut dyn FnMut(Observation),
) -> Heard {
    let oom_kills = terms.oom_kills.count();
    let begun = Instant::now();
    let mut following = Following {
        terms,
        ranks: readers.into_iter().map(|reader| Rank::new(terms, reader, begun)).collect(),
        kin: Kin::of(running.pid()),
        begun,
        shown: Shown::default(),
    };
    let ending = following.until_it_ends(&mut running, observe);
    let patience = &terms.patience;
    let mut leaves_by_itself = false;
    let end = match &ending {
        // It has said its last words and leaves by itself.
        Ending::Over if following.has_said_its_last() => {
            leaves_by_itself = running.has_ended_within(following.leave());
            running.end(Manner::Gently, patience)
        }
        Ending::Cancelled if terms.interrupt.at_once() => running.end(Manner::AtOnce, patience),
        _ => running.end(Manner::Gently, patience),
    };
    let rose = || terms.oom_kills.count() > oom_kills;
    let Blame { outcome, rank } =
        blame::judge(&following.ranks, &ending, &blame::After { terms, end: &end, rose: &rose });
    let is_heard = following.ranks.iter().any(Rank::is_heard);
    let mut warnings = Vec::new();
    if let Some(Exit { status: Some(status @ 1..), .. }) = end.exit
        && outcome == Outcome::Completed
        && leaves_by_itself
    {
        warnings.push(format!("the program left with status {status} after its end"));
    }
    Heard {
        outcome,
        rank: rank.filter(|_| terms.replicas > 1),
        warnings,
        was_stopped_unheard: matches!(ending, Ending::Overdue) && !is_heard && !terms.is_known_to_report,
        complaint: end.log.lines().rfind(|line| line.starts_with(REPORTER)).map(str::to_owned),
        ranks: following.ranks.into_iter().map(|rank| rank.told).collect(),
    }
}

struct Following<'a> {
    terms: &'a Terms<'a>,
    ranks: Vec<Rank<'a>>,
    /// The command's processes, among which those of its ranks are.
    kin: Kin,
    begun: Instant,
    shown: Shown,
}

impl Following<'_> {
    fn until_it_ends(&mut self, running: &mut Running, observe: &mut dyn FnMut(Observation)) -> Ending {
        loop {
            let has_left = running.has_ended_within(TICK);
            // A flood of output must not keep the reports waiting.
            for line in std::iter::from_fn(|| running.log_line()).take(LOG_LINES) {
                observe(Observation::Log(line));
            }
            // Of what is seen in one round nobody knows what came first.
            let began = Instant::now();
            self.ranks.iter_mut().for_each(|rank| rank.look_at_process(began));
            let mut is_read_up = true;
            for rank in &mut self.ranks {
                is_read_up &= rank.look(&mut self.kin, observe);
            }
            self.shown.show(&self.ranks, observe);
            if (has_left && is_read_up) || self.is_decided(began) {
                return Ending::Over;
            }
            if let Some(ending) = self.overdue() {
                return ending;
            }
        }
    }

    /// Whether the ranks have said all that there is to hear, by a round of looks that began at `now`.
    fn is_decided(&self, now: Instant) -> bool {
        let ended: Vec<&Ended> = self.ranks.iter().filter_map(|rank| rank.ended.as_ref()).collect();
        let Some(last) = ended.iter().map(|ended| ended.when.last).max() else { return false };
        let is_out_of_memory =
            |ended: &&Ended| matches!(&ended.over, Over::Said(end) if end.outcome == EndOutcome::OutOfMemory);
        if self.ranks.len() == 1 || ended.iter().any(is_out_of_memory) {
            return true;
        }
        let troubles = self.ranks.iter().filter(|rank| blame::is_trouble(rank)).filter_map(|rank| rank.ended.as_ref());
        let trouble = troubles.map(|ended| ended.when.last).min();
        // However long this process stood still, every rank was looked at once more after the moment was over.
        if trouble.is_some_and(|since| now.saturating_duration_since(since) >= AFTERMATH) {
            return true;
        }
        if self.ranks.iter().any(|rank| rank.is_heard() && rank.ended.is_none()) {
            return false;
        }
        let wait = if trouble.is_none() && ended.iter().any(|ended| blame::was_ended(&ended.over)) {
            LAUNCHER
        } else if ended.len() < self.ranks.len() {
            // One that has said nothing so far may never.
            self.terms.patience.leave
        } else {
            Duration::ZERO
        };
        last.elapsed() >= wait
    }

    /// Whether every rank that was heard ended with a word of its own.
    fn has_said_its_last(&self) -> bool {
        let mut ended = self.ranks.iter().filter_map(|rank| rank.ended.as_ref());
        ended.clone().next().is_some() && ended.all(|ended| matches!(ended.over, Over::Said(_)))
    }

    /// For the program to leave by itself.
    fn leave(&self) -> Duration {
        let is_launcher = self.ranks.len() > 1 && !self.ranks.iter().any(blame::is_trouble);
        if is_launcher { self.terms.patience.leave.max(LAUNCHER_LEAVES) } else { self.terms.patience.leave }
    }

    fn overdue(&self) -> Option<Ending> {
        let (terms, now) = (self.terms, Instant::now());
        if terms.interrupt.requested() || terms.deadline.is_some_and(|deadline| now >= deadline) {
            return Some(Ending::Cancelled);
        }
        if now.duration_since(self.begun) >= terms.timeout {
            return Some(Ending::Overdue);
        }
        // Where some ranks report the others are not waited for: what they do shows in those.
        let is_any_heard = self.ranks.iter().any(Rank::is_heard);
        let waited_for = self.ranks.iter().filter(|rank| rank.ended.is_none() && (rank.is_heard() || !is_any_heard));
        let too_silent = |rank: &Rank<'_>| rank.allowance().filter(|allowance| rank.silence() >= *allowance);
        waited_for.filter_map(too_silent).max().map(Ending::Silent)
    }
}

/// The steps that were passed on: one is done when the last rank that reports has done it.
#[derive(Debug, Default)]
struct Shown {
    steps: usize,
    warnings: Vec<String>,
}

impl Shown {
    fn show(&mut self, ranks: &[Rank<'_>], observe: &mut dyn FnMut(Observation)) {
        let heard = || ranks.iter().filter(|rank| rank.is_heard()).map(|rank| &rank.told);
        let done = heard().map(Told::steps).min().unwrap_or(0);
        for index in self.steps..done {
            let of_ranks = heard().filter_map(|told| told.series.times.get(index));
            let Some(times) = of_ranks.max_by(|a, b| a.total_ms.total_cmp(&b.total_ms)) else { break };
            let losses = heard().map(|told| &told.series).find(|series| series.losses.len() == series.times.len());
            let loss = losses.and_then(|series| series.losses.get(index)).copied().unwrap_or(f64::NAN);
            observe(Observation::Step { step: u32::try_from(index + 1).unwrap_or(u32::MAX), loss, times: *times });
        }
        self.steps = self.steps.max(done);
        for warning in heard().flat_map(|told| &told.warnings) {
            if !self.warnings.contains(warning) {
                self.warnings.push(warning.clone());
                observe(Observation::Warning(warning.clone()));
            }
        }
    }
}

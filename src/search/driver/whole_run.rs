//! Playing the whole run of a point: with progress, and until the user or the budget ends it.
//!
//! The figures go to the journal, for the report and for a resumed study, which need not play the run again. Of a play that
//! is left in the middle the journal says so: the resumed study begins it again, and does not do that silently.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::{End, Running};
use crate::progress::{Event, Reporter};
use crate::search::knowledge::probed::{PlayedSteps, Reach};
use crate::trial::journal::Entry;
use crate::trial::remedies::Padder;
use crate::trial::{Interrupt, Outlook, PlayKind, Point, TrialRecord, UnfinishedPlay};

/// How often progress is told.
pub(super) const TICK: Duration = Duration::from_millis(100);

impl Running<'_> {
    /// Plays the whole run of a point and tells the history. Gives the study's end if it was cut short.
    pub(super) fn play(&mut self, point: Point) -> Option<End> {
        self.tell_of_earlier(&point, PlayKind::WholeRun);
        let playing =
            |point: &Point, PlayedSteps { step, total }| Event::RunPlaying { point: point.clone(), step, total };
        self.study.reporter.report(&playing(&point, PlayedSteps { step: 0, total: 0 }));
        let (until, mut reached) = (self.clock.checked_add(self.study.plan.budget.time), None);
        let played = {
            let (reporter, interrupt) = (&mut *self.study.reporter, &self.study.interrupt);
            let mut follow = watching(reporter, interrupt, until, |steps| playing(&point, steps));
            let mut watch = |steps| {
                reached = Some(steps);
                follow(steps)
            };
            self.knowledge.play(&point, &self.history, &mut watch)
        };
        let Some(played) = played else {
            let (step, total) = reached.map_or((0, 0), |PlayedSteps { step, total }| (step.into(), total.into()));
            return Some(self.leave(UnfinishedPlay { point, play: PlayKind::WholeRun, step, total }));
        };
        let mut outlook = played.outlook;
        if let Some(breach) = &mut outlook.breach {
            // Whoever ends this is heard when the next trial is asked for.
            let remedies = self.remedy(&point, Reach::ShapesAndReleases);
            let padder = if self.study.plan.command().is_some() { Padder::Program } else { Padder::Loader };
            if let Some(hint) = remedies.and_then(|remedies| remedies.hint(padder)) {
                breach.reason = format!("{} (hint: {hint})", breach.reason);
            }
        }
        self.study.reporter.report(&Event::RunPlayed { point: point.clone(), outlook: outlook.clone() });
        self.note(&Entry::WholeRun { point: point.clone(), outlook: outlook.clone(), runs: played.runs });
        self.foretold(point, outlook);
        None
    }

    /// Says that a play begins again which an earlier run of this study left.
    pub(super) fn tell_of_earlier(&mut self, point: &Point, play: PlayKind) {
        let is_it = |left: &&UnfinishedPlay| left.point == *point && left.play == play;
        let Some(left) = self.study.unfinished.iter().find(is_it) else { return };
        let text = format!("this study ended before in {left}, of which nothing is kept: it begins again");
        self.study.reporter.report(&Event::Warning { text });
    }

    /// Notes that a play was left, and gives the study's end. Nothing of it is kept, so the next one may end the same way.
    pub(super) fn leave(&mut self, left: UnfinishedPlay) -> End {
        let text = format!(
            "the budget ended {left}; `--resume` plays it from its beginning (hint: a larger `budget.time`, or a smaller \
             `safety.horizon_steps`)"
        );
        self.note(&Entry::PlayUnfinished(left));
        if self.study.interrupt.requested() {
            return End::Interrupted;
        }
        self.study.reporter.report(&Event::Warning { text });
        End::BudgetEnded
    }

    /// Takes in what is known of a point's whole run, now or from a resumed journal.
    pub(super) fn foretold(&mut self, point: Point, outlook: Outlook) {
        self.history.foretell(point, outlook);
    }

    /// A record with what is forecast of its point's whole run, where it is the soak that is judged by it.
    pub(super) fn with_outlook(&self, record: TrialRecord) -> TrialRecord {
        if !record.spec.is_soak() {
            return record;
        }
        let outlook = self.history.outlook(&record.spec.point).cloned();
        TrialRecord { outlook, ..record }
    }
}

/// Follows plays: tells how far they are, and leaves them at a time or when the user asks to stop.
pub(super) fn watching<'w>(
    reporter: &'w mut dyn Reporter,
    interrupt: &'w Interrupt,
    until: Option<Instant>,
    event: impl Fn(PlayedSteps) -> Event + 'w,
) -> impl FnMut(PlayedSteps) -> ControlFlow<()> + 'w {
    let mut told = Instant::now();
    move |steps| {
        if told.elapsed() >= TICK {
            told = Instant::now();
            reporter.report(&event(steps));
        }
        if interrupt.requested() || until.is_some_and(|until| Instant::now() >= until) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

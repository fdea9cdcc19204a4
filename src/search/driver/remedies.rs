//! What other shapes would do to a run, found out for the points that somebody will look at: those whose run breaks, when
//! that is known, and the answer, when it is proved.
//!
//! Nothing in the search depends on it, so it may take a while and no longer. What was found is in the journal: a resumed
//! study offers it again and plays nothing twice.

use std::time::{Duration, Instant};

use super::whole_run::watching;
use super::{End, Running};
use crate::progress::Event;
use crate::search::knowledge::probed::{PlayedSteps, Reach};
use crate::search::recommend::standing;
use crate::trial::Point;
use crate::trial::journal::Entry;
use crate::trial::remedies::RunRemedies;

/// How long the other ways of one point may be played for. A play takes seconds, and there are nine.
const TIME_FOR_REMEDIES: Duration = Duration::from_secs(60);

impl Running<'_> {
    /// Other ways to make the run of a point, journaled and told to the history. `None` where none could be played.
    pub(super) fn remedy(&mut self, point: &Point, reach: Reach) -> Option<RunRemedies> {
        let budget = self.clock.checked_add(self.study.plan.budget.time);
        let until = budget.into_iter().chain([Instant::now() + TIME_FOR_REMEDIES]).min();
        let playing = |PlayedSteps { step, total }| Event::RemediesPlaying { point: point.clone(), step, total };
        self.study.reporter.report(&playing(PlayedSteps { step: 0, total: 0 }));
        let (reporter, interrupt) = (&mut *self.study.reporter, &self.study.interrupt);
        let mut watch = watching(reporter, interrupt, until, playing);
        let found = self.knowledge.remedies(point, &self.history, reach, &mut watch);
        drop(watch);
        let found = found?;
        self.study.reporter.report(&Event::RemediesPlayed { point: point.clone(), remedies: found.clone() });
        self.note(&Entry::Remedies { point: point.clone(), remedies: found.clone() });
        self.remedied(point.clone(), found.clone());
        Some(found)
    }

    /// Takes in what is known of other ways, now or from a resumed journal.
    pub(super) fn remedied(&mut self, point: Point, found: RunRemedies) {
        self.history.remedy(point, found);
    }

    /// Looks for what is to be offered beside an answer that is proved.
    pub(super) fn remedy_answer(&mut self, end: &End) {
        if *end != End::Safe {
            return;
        }
        let Some(point) = standing(&self.history, &self.space).point().cloned() else { return };
        let lasts = self.history.outlook(&point).is_some_and(|outlook| outlook.breach.is_none());
        if lasts && self.history.remedies(&point).is_none() && self.knowledge.varies_in_length() {
            self.remedy(&point, Reach::Shapes);
        }
    }
}

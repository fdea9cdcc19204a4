//! Searching for settings of the allocator over the whole run of a point: with progress, and until the user or the budget
//! ends it.
//!
//! What is found goes to the journal, so that a resumed study does not search again; and where a search was left, that.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::whole_run::TICK;
use super::{End, Running};
use crate::memory::forecast::tuning::Observer;
use crate::progress::{Event, Reporter};
use crate::trial::journal::Entry;
use crate::trial::{Interrupt, PlayKind, Point, UnfinishedPlay};

impl Running<'_> {
    /// Searches for settings and tells the history. Gives the study's end if it was cut short.
    pub(super) fn tune(&mut self, point: Point) -> Option<End> {
        self.tell_of_earlier(&point, PlayKind::Allocator);
        let followed = Followed {
            point: &point,
            interrupt: &self.study.interrupt,
            until: self.clock.checked_add(self.study.plan.budget.time),
            progress: Mutex::new(Progress {
                reporter: &mut *self.study.reporter,
                what: "",
                step: 0,
                total: 0,
                told: Instant::now(),
            }),
        };
        followed.tell_at_once();
        let choice = self.space.conf_choice();
        let found = self.knowledge.tune_run(&point, &self.history, choice, &followed);
        let (step, total) = followed.change(|progress| (progress.step, progress.total));
        let Some((found, tried)) = found else {
            return Some(self.leave(UnfinishedPlay { point, play: PlayKind::Allocator, step, total }));
        };
        self.study.reporter.report(&Event::AllocatorTuned { point: point.clone(), found: found.clone() });
        self.note(&Entry::AllocatorTuned { point: point.clone(), found: found.clone(), tried });
        self.history.tell_tuned(point, found);
        None
    }
}

/// Who follows the plays, which run side by side.
struct Followed<'a> {
    point: &'a Point,
    interrupt: &'a Interrupt,
    /// When the budget ends.
    until: Option<Instant>,
    progress: Mutex<Progress<'a>>,
}

struct Progress<'a> {
    reporter: &'a mut dyn Reporter,
    what: &'static str,
    step: u64,
    total: u64,
    told: Instant,
}

impl Followed<'_> {
    fn tell_at_once(&self) {
        self.change(|progress| {
            let Progress { what, step, total, .. } = *progress;
            let (point, what) = (self.point.clone(), what.to_owned());
            progress.told = Instant::now();
            progress.reporter.report(&Event::AllocatorTuning { point, what, step, total });
        });
    }

    fn change<R>(&self, change: impl FnOnce(&mut Progress<'_>) -> R) -> R {
        change(&mut self.progress.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for Followed<'_> {
    fn begin(&self, what: &'static str, steps: u64) {
        self.change(|progress| {
            progress.what = what;
            progress.total = progress.total.saturating_add(steps);
        });
    }

    fn steps(&self, count: u32) {
        let is_due = self.change(|progress| {
            progress.step = progress.step.saturating_add(u64::from(count));
            progress.told.elapsed() >= TICK
        });
        if is_due {
            self.tell_at_once();
        }
    }

    fn wants_to_leave(&self) -> bool {
        self.interrupt.requested() || self.until.is_some_and(|until| Instant::now() >= until)
    }
}

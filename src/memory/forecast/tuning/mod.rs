//! Settings of the allocator, found by playing the whole run under them.
//!
//! A run that dies at step 8,000 dies there under one setting and not under another, and which one depends on the sizes
//! that come. So the run that a [`ShapeForecaster`](super::shape::ShapeForecaster) foretells is played under one setting after
//! another, each play exact, none of them run.
//!
//! # What is tried
//! The full product of the axes has hundreds of settings, a play takes seconds, and most settings do nothing for one
//! another. So the search has [stages](Stage), of at most [`MAX_PLAYS`] plays in all:
//!
//! 1. **The baseline**: what the program runs with today. If it survives and holds hardly more than is live at its worst
//!    moment, nothing can be won, and if the live bytes alone outgrow the limit, nothing can be saved; both end the search
//!    here.
//! 2. **One thing at a time**: every value of every axis, all else as in the baseline.
//! 3. **Together**: what helped alone, in twos and all three. The two best ways to cut segments are carried on, since they
//!    exclude each other and the best alone need not be the best in company.
//! 4. **Releases**: the best so far, and the baseline, with their cache handed back every 1000, 100, 10 steps or every
//!    step. That takes a line in the training loop and calls to the device, so it comes last.
//!
//! Whoever [lists](Reach::Listed) settings has those compared, however many they are, and nothing else is made up.
//!
//! # What a forecast that may err is good for
//! Sizes that follow no polynomial are played larger than they were seen to be. That bounds them and no more: it is not the
//! run, and larger blocks may by chance lie better than the real ones. So where the run is not forecast exactly, other
//! settings than the baseline are played under so much less memory [as the forecast may be
//! off](Method::error_of_a_play), and differences in V up to as much are none. The baseline has all of C, so that it runs
//! out is likely and no more. The reason says `affine`.
//!
//! # What is best
//! What survives the limit and keeps the [terms](Task::terms) comes first, then what holds the least (V at its highest), then what calls the device least,
//! then what changes least. Differences in V under 1 % of the limit are none, and the baseline wins every tie. The model of
//! the driver's pool may err; it has to be better than the exact ones by more than that. What goes to
//! the device [in every step](MANY_CALLS) buys its memory with time, each call being a wait of 0.1-1 ms: it wins only where
//! nothing else does.
//!
//! Plays of a stage run side by side. Each ends at its first request that fails, or as soon as it holds more than the
//! stages before have shown to be needed; what plays beside it has no say in that, so the answer and the table are the
//! same on every machine.

mod candidate;
mod choice;
mod live;
mod played;
mod reason;
mod search;

#[cfg(test)]
mod tests;

use serde::Serialize;

pub use candidate::{Allocator, Candidate};
pub use choice::MANY_CALLS;
pub(super) use played::play_under;
pub use played::{Bounds, play_all};
pub use search::tune;

use super::long_run::{Breach, LongRunFigures, Terms};
use super::{ForecastError, Method};
use crate::memory::policy::Policy;
use crate::units::Bytes;

/// The most plays of a search, unless more settings are listed.
pub const MAX_PLAYS: usize = 32;

/// Plays the run to a policy; hears of every step that begins.
pub type Play<'a> = &'a (dyn Fn(Box<dyn Policy>, &mut dyn FnMut(u32)) -> Result<LongRunFigures, ForecastError> + Sync);

/// What is to be tuned.
#[derive(Clone)]
pub struct Task<'a> {
    /// The run.
    pub play: Play<'a>,
    /// How sure it is forecast.
    pub method: Method,
    /// What the program runs with today.
    pub baseline: Candidate,
    /// C; `u64::MAX` is none.
    pub limit_bytes: u64,
    /// Steps of the run.
    pub steps: u32,
    /// What the run is held to beside the limit: a setting under which it breaks these is taken only where none keeps them.
    pub terms: Option<Terms>,
    /// What may be tried.
    pub reach: Reach<'a>,
}

/// What a search may try.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Reach<'a> {
    /// These settings.
    Listed(&'a [Candidate]),
    /// Settings alone, which a launch can bring with it.
    Settings,
    /// The training loop too, which has to release the cache.
    #[default]
    SettingsAndReleases,
}

/// A part of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// What the program runs with today.
    Baseline,
    /// What somebody listed.
    Listed,
    /// One thing changed.
    Single,
    /// What helped alone, together.
    Together,
    /// The cache handed back every so many steps.
    Releases,
}

impl Stage {
    /// What is tried in it, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Baseline => "as it is",
            Self::Listed => "as listed",
            Self::Single => "one setting changed",
            Self::Together => "settings together",
            Self::Releases => "releases of the cache",
        }
    }
}

/// How a play ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It reached the end of the run.
    Survived,
    /// A request failed; the figures say in which step.
    OutOfMemory,
    /// It held more than could win, and was not played on.
    Outdone,
}

/// One play.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// When it was tried.
    pub stage: Stage,
    /// What was tried.
    #[serde(rename = "setting")]
    pub candidate: Candidate,
    /// How it ended.
    pub ending: Ending,
    /// Whether its model may err where the baseline's does not.
    #[serde(rename = "approximate")]
    pub errs: bool,
    /// What it had to leave free, for errors of its model and of the forecast.
    #[serde(skip_serializing_if = "is_nothing")]
    pub spare_bytes: u64,
    /// What it breaks of the terms, though it may come to its end.
    pub breach: Option<Breach>,
    /// Its figures. Only the baseline and the choice keep their series.
    pub figures: LongRunFigures,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
fn is_nothing(bytes: &u64) -> bool {
    *bytes == 0
}

impl Tried {
    /// V at its highest, for people: of a play that was cut short it is known to be that much at least.
    pub fn peak_reserved(&self) -> String {
        let peak = Bytes(self.figures.peak_reserved_bytes);
        if self.ending == Ending::Outdone { format!("≥ {peak}") } else { peak.to_string() }
    }

    /// What came in the way of its play, for people; `None` where it came to its end and broke nothing.
    pub fn trouble(&self) -> Option<String> {
        match (self.ending, &self.breach, self.figures.out_of_memory) {
            (Ending::OutOfMemory, _, Some(end)) if self.spare_bytes > 0 => {
                Some(format!("out of memory at step {} with {} left free", end.step, Bytes(self.spare_bytes)))
            }
            (Ending::OutOfMemory, _, Some(end)) => Some(format!("out of memory at step {}", end.step)),
            (Ending::OutOfMemory, _, None) => Some("out of memory".to_owned()),
            (Ending::Outdone, ..) => Some(format!("cut short at step {}: it cannot win any more", self.figures.steps)),
            (Ending::Survived, breach, _) => breach.as_ref().map(ToString::to_string),
        }
    }
}

/// What the search came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tuning {
    /// The place of the best setting in the table; `None` where none survives.
    pub chosen: Option<usize>,
    /// Why, in a sentence.
    pub reason: String,
    /// Everything that was tried, in its order; the first is the baseline.
    pub tried: Vec<Tried>,
}

impl Tuning {
    /// The best setting.
    pub fn choice(&self) -> Option<&Tried> {
        self.tried.get(self.chosen?)
    }

    /// The best setting where it is another than the program has today.
    pub fn change(&self) -> Option<&Tried> {
        self.choice().filter(|choice| choice.stage != Stage::Baseline)
    }

    /// Settings other than the program's own under which nothing is to be said against the run, the best first.
    pub fn lasting(&self) -> impl Iterator<Item = &Tried> {
        let lasts = |one: &&Tried| one.ending == Ending::Survived && one.breach.is_none();
        let mut lasting: Vec<&Tried> =
            self.tried.iter().filter(|one| one.stage != Stage::Baseline).filter(lasts).collect();
        lasting.sort_by_key(|one| choice::standing(one));
        lasting.into_iter()
    }

    /// What the program has today.
    pub fn baseline(&self) -> Option<&Tried> {
        self.tried.first()
    }
}

/// Who looks on.
pub trait Observer: Sync {
    /// Something is begun that takes so many steps at most.
    fn begin(&self, what: &'static str, steps: u64);

    /// Steps that were played, or need not be.
    fn steps(&self, count: u32);

    /// Whether the search is to be left.
    fn wants_to_leave(&self) -> bool;
}

/// Nobody looks on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn begin(&self, _what: &'static str, _steps: u64) {}

    fn steps(&self, _count: u32) {}

    fn wants_to_leave(&self) -> bool {
        false
    }
}

/// Why nothing was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TuneError {
    /// Somebody wanted to leave.
    #[error("the search for settings was interrupted")]
    Interrupted,
    /// The run cannot be put together.
    #[error(transparent)]
    Forecast(#[from] ForecastError),
}

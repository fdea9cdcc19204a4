//! One play of the run, under supervision.

use super::candidate::Candidate;
use super::{Ending, Observer, Play, TuneError};
use crate::memory::forecast::long_run::LongRunFigures;
use crate::memory::parallel::in_parallel;
use crate::memory::policy::Policy;
use crate::memory::policy::native::Native;
use crate::memory::policy::supervised::{Stop, Supervised};

/// What a play is held to.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// C; `u64::MAX` is none.
    pub limit_bytes: u64,
    /// V above which it cannot win; `u64::MAX` is none.
    pub bound_bytes: u64,
    /// Steps of the run.
    pub steps: u32,
}

/// Who looks on, and how to tell the play that they leave.
pub(super) struct Watched<'a> {
    pub(super) observer: &'a dyn Observer,
    pub(super) stop: Stop,
}

/// Plays the run under a setting.
pub(in crate::memory::forecast) fn play_under(
    play: Play<'_>,
    candidate: &Candidate,
    bounds: Bounds,
    observer: &dyn Observer,
) -> Result<(Ending, LongRunFigures), TuneError> {
    let watched = Watched { observer, stop: Stop::default() };
    let native = Native::with_settings(candidate.settings(), bounds.limit_bytes);
    let policy = Supervised::new(Box::new(native), watched.stop.clone())
        .with_trim(candidate.trim_every)
        .with_bound(bounds.bound_bytes);
    let figures = play_to(play, Box::new(policy), bounds.steps, &watched)?;
    let (ending, out_of_memory) = match figures.out_of_memory {
        _ if watched.stop.is_outdone() => (Ending::Outdone, None),
        Some(end) => (Ending::OutOfMemory, Some(end)),
        None => (Ending::Survived, None),
    };
    Ok((ending, LongRunFigures { out_of_memory, ..figures }))
}

/// Plays the run under several settings side by side, each to its end.
pub fn play_all(
    play: Play<'_>,
    candidates: &[Candidate],
    bounds: Bounds,
    observer: &dyn Observer,
) -> Result<Vec<LongRunFigures>, TuneError> {
    observer.begin("as asked for", u64::from(bounds.steps) * candidates.len() as u64);
    in_parallel(candidates, |candidate| Ok(play_under(play, candidate, bounds, observer)?.1))
}

/// Plays the run of so many steps to a policy, unless somebody wants to leave.
pub(super) fn play_to(
    play: Play<'_>,
    policy: Box<dyn Policy>,
    steps: u32,
    watched: &Watched<'_>,
) -> Result<LongRunFigures, TuneError> {
    let mut heard = 0;
    let figures = play(policy, &mut |_| {
        heard += 1;
        watched.observer.steps(1);
        if watched.observer.wants_to_leave() {
            watched.stop.want();
        }
    })?;
    if watched.stop.is_wanted() {
        return Err(TuneError::Interrupted);
    }
    watched.observer.steps(steps.saturating_sub(heard));
    Ok(figures)
}

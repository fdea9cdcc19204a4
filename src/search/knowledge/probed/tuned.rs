//! Settings of PyTorch's allocator for a point, searched for by playing its steps under them: [`tuning`] tells how.
//!
//! What a launch can bring with it is searched for, not what the training loop would have to do. What is found is confirmed
//! by real trials. There are two searches:
//!
//! - Where all batches are alike ([`Probed::tuned`]), what is played is a run of full batches: as many as it takes for the
//!   cache to settle. That is done in no time.
//! - Where their shapes vary ([`Probed::tune_run`]), it is the coming run itself, as far as it is played in a minute
//!   ([`EVENTS_OF_A_PLAY`]). What wins over that far is played to the horizon before it is soaked, like any point.

use super::Probed;
use crate::memory::forecast::Method;
use crate::memory::forecast::long_run::{Terms, play};
use crate::memory::forecast::shape::{LongRun, Shape};
use crate::memory::forecast::tuning::{
    self, Allocator, Candidate, Observer, Reach, Task, TuneError, Tuning, Unobserved, tune,
};
use crate::memory::policy::{AllocConf, Policy};
use crate::search::History;
use crate::search::knowledge::TunedConf;
use crate::trial::tuned_run::TriedSetting;
use crate::trial::{Point, TunedRun};

/// Steps that are played where all have one shape: the cache settles within a few.
const STEPS: u32 = 50;

/// Events that are played under each setting, about. A search has 32 settings and what is live, of which some end early; at
/// 0.07 µs an event (`tests/bench/long_run_rate.rs`, one core of an AMD EPYC) all of them take 40 s on one processor, and
/// less on more. It is a number of events and not a time, so that the answer does not depend on the machine: of a step with
/// 8,000 events it is a run of 2,000 steps.
const EVENTS_OF_A_PLAY: usize = 16_000_000;

impl Probed {
    /// The best settings for a point; `None` where its steps cannot be forecast exactly.
    pub(super) fn tuned(&self, point: &Point) -> Option<TunedConf> {
        let key = Point { alloc_conf: None, ..point.clone() };
        if let Some(known) = self.tuned.borrow().get(&key) {
            return known.clone();
        }
        let found = self.search_settings(&key);
        self.tuned.borrow_mut().insert(key, found.clone());
        found
    }

    fn search_settings(&self, point: &Point) -> Option<TunedConf> {
        let basis = self.basis_of_batches(point).ok().filter(|basis| basis.method == Method::Exact)?;
        let shapes = vec![Shape::of([point.batch_size as u64]); STEPS as usize];
        let forecaster = basis.forecaster.as_ref();
        let play = |policy: Box<dyn Policy>, on_step: &mut dyn FnMut(u32)| {
            Ok(play(forecaster.events(LongRun::of(&shapes))?, policy, on_step))
        };
        let tuning = tune(&self.task(&play, STEPS)?, &Unobserved).ok()?;
        tuning.choice()?;
        let conf = tuning.change().and_then(|change| change.candidate.conf());
        Some(TunedConf { conf, reason: tuning.reason })
    }

    /// Searches for the best settings for a point, which has the program's own, over its coming run. `None` where
    /// `observer` wanted to leave.
    pub fn tune_run(
        &self,
        point: &Point,
        history: &History,
        observer: &dyn Observer,
    ) -> Option<(TunedRun, Vec<TriedSetting>)> {
        let unknown = |reason: String| Some((TunedRun::unknown(format!("not searched for: {reason}")), Vec::new()));
        let (Some(run), Some(samples)) = (&self.terms.run, self.runs.samples) else {
            return unknown("no run is to be forecast".to_owned());
        };
        let basis = match self.basis(point, history) {
            Ok(basis) => basis,
            Err(reason) => return unknown(reason),
        };
        let coming = self.coming(point, (run, samples), &basis);
        if coming.method() != Method::Exact {
            return unknown(basis.reason.clone());
        }
        let steps = steps_of_a_play(run.horizon_steps, basis.forecaster.events_of_a_step());
        let play = |policy: Box<dyn Policy>, on_step: &mut dyn FnMut(u32)| coming.play_steps(steps, policy, on_step);
        let Some(task) = self.task(&play, steps) else {
            return unknown("the program's own settings are none that can be read".to_owned());
        };
        match tune(&task, observer) {
            Ok(tuning) => Some((found(&tuning, steps, run.horizon_steps), TriedSetting::all(&tuning))),
            Err(TuneError::Interrupted) => None,
            Err(TuneError::Forecast(error)) => unknown(error.to_string()),
        }
    }

    /// What is searched for. `None` where the program's own settings cannot be read.
    fn task<'a>(&self, play: tuning::Play<'a>, steps: u32) -> Option<Task<'a>> {
        let own: AllocConf = self.terms.alloc_conf.as_deref().unwrap_or_default().parse().ok()?;
        let terms = Terms {
            metric: self.terms.safety.fragmentation_metric,
            threshold: self.terms.safety.fragmentation_threshold.0,
            horizon_steps: steps,
        };
        Some(Task {
            play,
            baseline: Candidate::of(Allocator::Pytorch(own)),
            limit_bytes: self.terms.limit_bytes,
            steps,
            terms: Some(terms),
            reach: Reach::Settings,
        })
    }
}

/// As many steps of a run as there is time for under each setting, and never fewer than show anything.
fn steps_of_a_play(horizon_steps: u32, events_of_a_step: usize) -> u32 {
    let affordable = EVENTS_OF_A_PLAY / events_of_a_step.max(1);
    horizon_steps.min(u32::try_from(affordable).unwrap_or(u32::MAX).max(STEPS))
}

fn found(tuning: &Tuning, steps: u32, horizon_steps: u32) -> TunedRun {
    // What breaks the rules of a run is no remedy, though it may be the best of all.
    let change = tuning.change().filter(|change| change.breach.is_none());
    let conf = change.and_then(|change| change.candidate.conf());
    let reason = if steps < horizon_steps {
        format!("{} (over the first {steps} of {horizon_steps} steps)", tuning.reason)
    } else {
        tuning.reason.clone()
    };
    TunedRun { steps, horizon_steps, conf, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_play_has_as_many_steps_as_there_is_time_for_and_no_more_than_the_run() {
        assert_eq!(steps_of_a_play(10_000, 8_000), 2_000);
        assert_eq!(steps_of_a_play(300, 8_000), 300);
        assert_eq!(steps_of_a_play(10_000, 0), 10_000);
        // Fewer show nothing, whatever they cost.
        assert_eq!(steps_of_a_play(10_000, usize::MAX), STEPS);
        assert_eq!(steps_of_a_play(20, usize::MAX), 20);
    }

    #[test]
    fn settings_that_were_compared_over_the_beginning_of_a_run_say_so() {
        let tuning = Tuning { chosen: None, reason: "none survives".to_owned(), tried: Vec::new() };
        assert_eq!(found(&tuning, 300, 300).reason, "none survives");
        assert_eq!(found(&tuning, 300, 1000).reason, "none survives (over the first 300 of 1000 steps)");
    }
}

//! Settings of PyTorch's allocator for a point, searched for by playing its steps under them: [`tuning`] tells how.
//!
//! What a launch can bring with it is searched for, not what the training loop would have to do. Settings that somebody
//! listed are compared with the program's own, and no others. What is found is confirmed by real trials. There are two
//! searches:
//!
//! - Where all batches are alike ([`Probed::tuned`]), what is played is a run of full batches: as many as it takes for the
//!   cache to settle. That is done in no time.
//! - Where their shapes vary ([`Probed::tune_run`]), it is the coming run itself, as far as it is played in a minute
//!   ([`EVENTS_OF_A_PLAY`]). What wins over that far is played to the horizon before it is soaked, like any point.
//!
//! Neither has to be forecast exactly. What may err, since sizes are bounded and not known or since the probes accumulate and
//! the run does not, is searched with [more to spare](tuning#what-a-forecast-that-may-err-is-good-for).

use super::Probed;
use super::coming::terms_of_a_play;
use crate::memory::forecast::Method;
use crate::memory::forecast::long_run::play;
use crate::memory::forecast::shape::{LongRun, Shape};
use crate::memory::forecast::tuning::{
    self, Allocator, Candidate, Observer, Reach, Task, TuneError, Tuning, Unobserved, tune,
};
use crate::memory::policy::{AllocConf, Policy};
use crate::search::History;
use crate::search::knowledge::TunedConf;
use crate::search::space::ConfChoice;
use crate::trial::tuned_run::TriedSetting;
use crate::trial::{Point, TunedRun};

/// Steps that are played where all have one shape: the cache settles within a few.
const STEPS: u32 = 50;

/// Events that are played under each setting, about. A search has 32 settings and what is live, of which some end early; at
/// 0.07 µs an event (`tests/bench/long_run_rate.rs`, one core of an AMD EPYC) all of them take 40 s on one processor, and
/// less on more. It is a number of events and not a time, so that the answer does not depend on the machine: of a step with
/// 8,000 events it is a run of 2,000 steps.
const EVENTS_OF_A_PLAY: usize = 16_000_000;

/// Settings that are kept beside the best.
const NEXT_SETTINGS: usize = 2;

impl Probed {
    /// The best settings for a point; `None` where its steps cannot be played.
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
        let basis = self.basis_of_batches(point).ok()?;
        let shapes = vec![Shape::of([point.batch_size as u64]); STEPS as usize];
        let forecaster = basis.forecaster.as_ref();
        let play = |policy: Box<dyn Policy>, on_step: &mut dyn FnMut(u32)| {
            Ok(play(forecaster.events(LongRun::of(&shapes))?, policy, on_step))
        };
        let tuning = tune(&self.task(&play, basis.method, STEPS)?, &Unobserved).ok()?;
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
        choice: ConfChoice<'_>,
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
        let steps = steps_of_a_play(run.horizon_steps, basis.forecaster.events_of_a_step());
        let play = |policy: Box<dyn Policy>, on_step: &mut dyn FnMut(u32)| coming.play_steps(steps, policy, on_step);
        let Some(task) = self.task(&play, coming.method(), steps) else {
            return unknown("the program's own settings are none that can be read".to_owned());
        };
        let listed = Listed::of(choice);
        let reach = listed.as_ref().map_or(Reach::Settings, |listed| Reach::Listed(&listed.candidates));
        match tune(&Task { reach, ..task }, observer) {
            Ok(tuning) => {
                let mut found = found(&tuning, coming.method(), (steps, run.horizon_steps));
                if let Some(listed) = listed {
                    found.conf = found.conf.map(|conf| listed.as_written(conf));
                }
                Some((found, TriedSetting::all(&tuning)))
            }
            Err(TuneError::Interrupted) => None,
            Err(TuneError::Forecast(error)) => unknown(error.to_string()),
        }
    }

    /// What is searched for. `None` where the program's own settings cannot be read.
    fn task<'a>(&self, play: tuning::Play<'a>, method: Method, steps: u32) -> Option<Task<'a>> {
        let own: AllocConf = self.terms.alloc_conf.as_deref().unwrap_or_default().parse().ok()?;
        Some(Task {
            play,
            method,
            baseline: Candidate::of(Allocator::Pytorch(own)),
            limit_bytes: self.terms.limit_bytes,
            steps,
            terms: Some(terms_of_a_play(&self.terms.safety, method, steps)),
            reach: Reach::Settings,
        })
    }
}

/// Settings that somebody listed.
struct Listed<'a> {
    written: &'a [String],
    candidates: Vec<Candidate>,
}

impl<'a> Listed<'a> {
    /// `None` where any may be tried.
    fn of(choice: ConfChoice<'a>) -> Option<Self> {
        let ConfChoice::Listed(written) = choice else { return None };
        let read = |conf: &String| Some(Candidate::of(Allocator::Pytorch(conf.parse().ok()?)));
        Some(Self { written, candidates: written.iter().filter_map(read).collect() })
    }

    /// Settings in the words of the list: a point is known by them.
    fn as_written(&self, conf: String) -> String {
        let is_meant = |written: &&String| written.parse::<AllocConf>().is_ok_and(|read| read.to_string() == conf);
        self.written.iter().find(is_meant).cloned().unwrap_or(conf)
    }
}

/// As many steps of a run as there is time for under each setting, and never fewer than show anything.
fn steps_of_a_play(horizon_steps: u32, events_of_a_step: usize) -> u32 {
    let affordable = EVENTS_OF_A_PLAY / events_of_a_step.max(1);
    horizon_steps.min(u32::try_from(affordable).unwrap_or(u32::MAX).max(STEPS))
}

fn found(tuning: &Tuning, method: Method, (steps, horizon_steps): (u32, u32)) -> TunedRun {
    // What breaks the rules of a run is no remedy, though it may be the best of all.
    let change = tuning.change().filter(|change| change.breach.is_none());
    let conf = change.and_then(|change| change.candidate.conf());
    let reason = if steps < horizon_steps {
        format!("{} (over the first {steps} of {horizon_steps} steps)", tuning.reason)
    } else {
        tuning.reason.clone()
    };
    let others = tuning.lasting().filter_map(|one| one.candidate.conf()).filter(|other| Some(other) != conf.as_ref());
    let next = others.take(NEXT_SETTINGS).collect();
    TunedRun { method, steps, horizon_steps, conf, next, reason }
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
        let reason = |of: (u32, u32)| found(&tuning, Method::Exact, of).reason;
        assert_eq!(reason((300, 300)), "none survives");
        assert_eq!(reason((300, 1000)), "none survives (over the first 300 of 1000 steps)");
    }
}

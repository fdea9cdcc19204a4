//! Settings of PyTorch's allocator for a point, searched for by playing its steps under them.
//!
//! The steps of a program of the user's own are known at its batch size and at no other length, so what is played is a run
//! of full batches: as many as it takes for the cache to settle. The search is that of
//! [`tuning`](crate::memory::forecast::tuning); what it finds is confirmed by real trials.

use super::Probed;
use crate::memory::forecast::Method;
use crate::memory::forecast::long_run::{Terms, play};
use crate::memory::forecast::shape::{LongRun, Shape};
use crate::memory::forecast::tuning::{Allocator, Candidate, Reach, Task, Unobserved, tune};
use crate::memory::policy::{AllocConf, Policy};
use crate::search::knowledge::TunedConf;
use crate::trial::Point;

/// Steps that are played. All have one shape, so the cache settles within a few.
const STEPS: u32 = 50;

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
        let own: AllocConf = self.terms.alloc_conf.as_deref().unwrap_or_default().parse().ok()?;
        let shapes = vec![Shape::of([point.batch_size as u64]); STEPS as usize];
        let forecaster = basis.forecaster.as_ref();
        let play = |policy: Box<dyn Policy>, on_step: &mut dyn FnMut(u32)| {
            Ok(play(forecaster.events(LongRun::of(&shapes))?, policy, on_step))
        };
        let terms = Terms {
            metric: self.terms.safety.fragmentation_metric,
            threshold: self.terms.safety.fragmentation_threshold.0,
            horizon_steps: STEPS,
        };
        let task = Task {
            play: &play,
            baseline: Candidate::of(Allocator::Pytorch(own)),
            limit_bytes: self.terms.limit_bytes,
            steps: STEPS,
            terms: Some(terms),
            reach: Reach::Settings,
        };
        let tuning = tune(&task, &Unobserved).ok()?;
        tuning.choice()?;
        let conf = tuning.change().and_then(|change| change.candidate.conf());
        Some(TunedConf { conf, reason: tuning.reason })
    }
}

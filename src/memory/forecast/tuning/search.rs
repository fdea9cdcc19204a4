//! The stages, one after another.

use super::candidate::{
    APPROXIMATE_DIVISOR, Allocator, Axis, Candidate, TRIM_EVERY_STEPS, combinations, distinct, neighbours,
};
use super::choice::{best, bound_bytes, margin_bytes, standing};
use super::live::Live;
use super::played::{Bounds, Watched, play_to, play_under};
use super::reason::Told;
use super::{Ending, MAX_PLAYS, Observer, Reach, Stage, Task, Tried, TuneError, Tuning, reason};
use crate::memory::forecast::long_run::{Breach, LongRunEnd, judge};
use crate::memory::parallel::in_parallel;
use crate::memory::policy::supervised::Stop;
use crate::memory::policy::{AllocConf, Backend};

/// Ways to cut segments that are tried in company.
const BEST_CUTS: usize = 2;

/// Finds the best settings for a run.
pub fn tune(task: &Task<'_>, observer: &dyn Observer) -> Result<Tuning, TuneError> {
    let mut search = Search { task, observer, tried: Vec::new(), margin_bytes: 0, hopeless: None };
    search.run(Stage::Baseline, std::slice::from_ref(&task.baseline))?;
    let Some(baseline) = search.tried.first() else { return Err(TuneError::Interrupted) };
    search.margin_bytes = margin_bytes(task, baseline);
    if baseline.ending == Ending::OutOfMemory {
        observer.begin("what is live", u64::from(task.steps));
        let live = Box::new(Live::new(task.limit_bytes));
        search.hopeless =
            play_to(task.play, live, task.steps, &Watched { observer, stop: Stop::default() })?.out_of_memory;
    }
    if !search.is_settled() {
        match task.reach {
            Reach::Listed(listed) => {
                search.run(Stage::Listed, &distinct(listed.iter().cloned(), &[&task.baseline]))?;
            }
            Reach::Settings | Reach::SettingsAndReleases => search.run_made_up()?,
        }
    }
    if task.reach == Reach::SettingsAndReleases && !search.is_settled() {
        let trimmed = search.trimmed();
        search.run_some(Stage::Releases, trimmed)?;
    }
    Ok(search.finish())
}

struct Search<'a> {
    task: &'a Task<'a>,
    observer: &'a dyn Observer,
    tried: Vec<Tried>,
    margin_bytes: u64,
    /// Where the live bytes alone run out.
    hopeless: Option<LongRunEnd>,
}

impl Search<'_> {
    /// One thing at a time, and then what helped together.
    fn run_made_up(&mut self) -> Result<(), TuneError> {
        let has_limit = self.task.limit_bytes < u64::MAX;
        self.run_some(Stage::Single, neighbours(&self.task.baseline, has_limit))?;
        let together = self.together(has_limit);
        self.run_some(Stage::Together, together)
    }

    /// As many of the candidates of a stage as there is room for.
    fn run_some(&mut self, stage: Stage, mut candidates: Vec<Candidate>) -> Result<(), TuneError> {
        candidates.truncate(MAX_PLAYS.saturating_sub(self.tried.len()));
        self.run(stage, &candidates)
    }

    /// Plays the candidates of a stage side by side.
    fn run(&mut self, stage: Stage, candidates: &[Candidate]) -> Result<(), TuneError> {
        self.observer.begin(stage.name(), u64::from(self.task.steps) * candidates.len() as u64);
        let bound_bytes = bound_bytes(&self.tried, self.margin_bytes);
        let tried = in_parallel(candidates, |candidate| self.play(stage, candidate, bound_bytes))?;
        self.tried.extend(tried);
        Ok(())
    }

    fn play(&self, stage: Stage, candidate: &Candidate, bound_bytes: u64) -> Result<Tried, TuneError> {
        let errs = stage != Stage::Baseline && candidate.is_approximate() && !self.task.baseline.is_approximate();
        let spare_bytes = self.spare_bytes(stage, errs);
        let limit_bytes = self.task.limit_bytes.saturating_sub(spare_bytes);
        let (ending, figures) = play_under(
            self.task.play,
            candidate,
            Bounds { limit_bytes, bound_bytes, steps: self.task.steps },
            self.observer,
        )?;
        let breach = self.task.terms.and_then(|terms| judge(&figures, &terms));
        // What was cut short broke nothing yet, and running out is an ending.
        let breach = breach.filter(|breach| ending == Ending::Survived && !matches!(breach, Breach::OutOfMemory(_)));
        Ok(Tried { stage, candidate: candidate.clone(), ending, errs, spare_bytes, breach, figures })
    }

    /// What a play has to leave free: what a model that errs could be off by, and the forecast.
    fn spare_bytes(&self, stage: Stage, errs: bool) -> u64 {
        let limit_bytes = self.task.limit_bytes;
        if stage == Stage::Baseline || limit_bytes == u64::MAX {
            return 0;
        }
        let of_model = if errs { limit_bytes / APPROXIMATE_DIVISOR } else { 0 };
        of_model + self.task.method.error_of_a_play().of(limit_bytes)
    }

    /// Whether no further setting can be better.
    fn is_settled(&self) -> bool {
        if self.hopeless.is_some() {
            return true;
        }
        // Whatever is live has to be held, under every setting.
        let needed_bytes = self.tried.iter().filter(|one| one.ending == Ending::Survived);
        let needed_bytes = needed_bytes.map(|one| one.figures.peak_allocated_bytes).min();
        needed_bytes.is_some_and(|needed| needed >= bound_bytes(&self.tried, self.margin_bytes))
    }

    /// What helped alone, in company.
    fn together(&self, has_limit: bool) -> Vec<Candidate> {
        let Some(baseline) = self.tried.first() else { return Vec::new() };
        let mut singles: Vec<&Tried> = self
            .tried
            .iter()
            .filter(|one| one.stage == Stage::Single && standing(one) < standing(baseline))
            .filter(|one| one.ending != Ending::Outdone)
            .collect();
        singles.sort_by_key(|one| standing(one));
        let mut better: Vec<(Axis, &AllocConf)> = Vec::new();
        for one in singles {
            let Some((axis, conf)) = changed(one, baseline) else { continue };
            let kept = if axis == Axis::Segments { BEST_CUTS } else { 1 };
            if better.iter().filter(|(other, _)| *other == axis).count() < kept {
                better.push((axis, conf));
            }
        }
        combinations(&baseline.candidate, &better, has_limit)
    }

    /// The best so far and the baseline, with releases of their cache that come before their end.
    fn trimmed(&self) -> Vec<Candidate> {
        let best = best(&self.tried, self.margin_bytes).and_then(|place| self.tried.get(place));
        let best = best.or_else(|| self.tried.iter().min_by_key(|one| standing(one)));
        let mut candidates: Vec<Candidate> = Vec::new();
        for one in best.into_iter().chain(self.tried.first()) {
            for every in TRIM_EVERY_STEPS {
                let trimmed = one.candidate.trimmed(every);
                let comes_to_it = every < one.figures.steps.max(2);
                if comes_to_it && one.candidate.trim_every.is_none() && !candidates.contains(&trimmed) {
                    candidates.push(trimmed);
                }
            }
        }
        candidates
    }

    fn finish(mut self) -> Tuning {
        let chosen = best(&self.tried, self.margin_bytes);
        let reason = reason::of(&self.tried, chosen, &Told { task: self.task, hopeless: self.hopeless });
        for (place, one) in self.tried.iter_mut().enumerate() {
            if place > 0 && Some(place) != chosen {
                one.figures.points = Vec::new();
            }
        }
        Tuning { chosen, reason, tried: self.tried }
    }
}

/// On which axis a setting differs from the baseline, and how.
fn changed<'a>(one: &'a Tried, baseline: &Tried) -> Option<(Axis, &'a AllocConf)> {
    let (Allocator::Pytorch(conf), Allocator::Pytorch(own)) = (&one.candidate.allocator, &baseline.candidate.allocator)
    else {
        return None;
    };
    let defaults = AllocConf::default();
    let base = if own.backend == Backend::Native { own } else { &defaults };
    let axis = Axis::ALL.into_iter().find(|axis| axis.of(conf) != axis.of(base))?;
    (conf.backend == Backend::Native).then_some((axis, conf))
}

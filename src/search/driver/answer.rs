//! The answer so far: made of the history, written to the recommendation file, and noted in the journal.

use std::time::{Duration, Instant};

use super::{DriverError, End, Running, StudyResult};
use crate::memory::forecast::MIN_BATCH_SIZE;
use crate::memory::forecast::curve::batch_sizes;
use crate::progress::Event;
use crate::report::Recommendation;
use crate::report::recommendation::Source;
use crate::search::JudgedTrial;
use crate::search::allocator_reason::allocator_reason;
use crate::search::recommend::standing;
use crate::trial::journal::Entry;
use crate::trial::{Outcome, TrialRecord, TrialSpec};

/// How long what the report draws may be computed for. A replay takes milliseconds to seconds.
const TIME_FOR_DRAWINGS: Duration = Duration::from_secs(2);

impl Running<'_> {
    /// What the report draws and no trial told: the forecast's curve, and the block map of the point that the study is
    /// about, which is the answer or else the smallest that did not fit. A report is made of the journal alone.
    fn note_drawings(&mut self) {
        let too_large = |trial: &&JudgedTrial| {
            trial.record.spec.is_judged() && matches!(trial.record.outcome, Outcome::OutOfMemory { .. })
        };
        let answer = standing(&self.history, &self.space).point().cloned();
        let point = answer.or_else(|| {
            let trials = self.history.trials().iter().filter(too_large).map(|trial| &trial.record.spec.point);
            trials.min_by_key(|point| point.batch_size).cloned()
        });
        let Some(point) = point else { return };
        let run = self.history.trials().iter().map(|trial| trial.record.spec.point.batch_size);
        let skipped = self.skipped.iter().map(|skip| skip.point.batch_size);
        let meant = self.space.pairs().iter().map(|pair| pair.batch_size).max();
        let largest = run.chain(skipped).chain(meant).max().unwrap_or(MIN_BATCH_SIZE);
        let until = Instant::now() + TIME_FOR_DRAWINGS;
        let sizes = batch_sizes(MIN_BATCH_SIZE, largest);
        if let Some(curve) = self.knowledge.curve(&point, &sizes, &|| Instant::now() < until) {
            self.note(&Entry::Forecast { curve });
        }
        if Instant::now() < until
            && let Some(map) = self.knowledge.block_map(&point)
        {
            self.note(&Entry::BlockMap { point, map });
        }
    }

    fn recommendation(&self) -> Recommendation {
        let standing = standing(&self.history, &self.space);
        Recommendation::new(&Source {
            plan: self.study.plan,
            history: &self.history,
            skipped: &self.skipped,
            forecast: self.knowledge.summary(standing.point(), &self.history),
            native_peak_rate: standing.point().and_then(|point| self.knowledge.native_peak_rate(point)),
            allocator_reason: standing
                .point()
                .and_then(|point| allocator_reason(point, &self.history, &self.knowledge, &self.space)),
            recomputation: standing.point().and_then(|point| self.knowledge.recomputation(point)),
            facts: &self.facts,
            device_notes: &self.device_notes,
            started: &self.study.started,
            seconds: self.clock.elapsed().as_secs_f64(),
        })
    }

    pub(super) fn write(&mut self) -> Result<Recommendation, DriverError> {
        let recommendation = self.recommendation();
        recommendation.write(&self.study.output)?;
        let standing = standing(&self.history, &self.space);
        let point = standing.point().cloned();
        self.written = Some((recommendation.status, point.clone()));
        let value = serde_json::to_value(&recommendation).unwrap_or_default();
        self.note(&Entry::Recommended { recommendation: value });
        if let Some(point) = point {
            self.study.reporter.report(&Event::Recommended {
                point,
                status: recommendation.status.name().to_owned(),
                path: self.study.output.display().to_string(),
            });
        }
        Ok(recommendation)
    }

    /// A note of each trial that ran ahead of its turn and never had one. It is no candidate, however fast: the answer is
    /// the one that a single device gives, which would not have run it.
    fn note_what_was_not_needed(&mut self) {
        let note = |record: &TrialRecord| {
            let TrialSpec { id, point, .. } = &record.spec;
            let rate = record.measurement.as_ref().map_or(0.0, |measurement| measurement.samples_per_second);
            format!(
                "trial {id} (batch {} × {}, {rate:.1} samples/s) ran ahead on an idle device and was not needed: one device \
                 alone would not have run it, so it is no candidate",
                point.batch_size, point.accumulation_steps
            )
        };
        self.device_notes.extend(self.waiting.measured().map(note));
    }

    pub(super) fn finish(mut self, end: End) -> StudyResult {
        // In a study that was cut short its turn may still come.
        if matches!(end, End::Safe | End::NoSafePoint | End::RanksUnseen(_) | End::BatchSizeUnseen) {
            self.note_what_was_not_needed();
        }
        let recommendation = self.recommendation();
        // A study that was cut short before it found anything has nothing to say, least of all over an answer that an
        // earlier one left in the same file.
        let cut_short = matches!(end, End::Interrupted | End::BudgetEnded | End::NotStarted(_));
        let has_nothing_to_say = cut_short && recommendation.recommended.is_none() && self.study.output.exists();
        let unwritten = if has_nothing_to_say { None } else { recommendation.write(&self.study.output).err() };
        let status = recommendation.status.name().to_owned();
        // What is in the file in the end, or should be, is in the journal too: it is what a finished study offers again.
        self.note(&Entry::Recommended { recommendation: serde_json::to_value(&recommendation).unwrap_or_default() });
        self.note_drawings();
        self.note(&Entry::Concluded { status: status.clone() });
        self.study.reporter.report(&Event::StudyEnded {
            status,
            trials: self.history.trials().len(),
            seconds: self.clock.elapsed().as_secs_f64(),
        });
        StudyResult { end, recommendation, unwritten, history: self.history }
    }
}

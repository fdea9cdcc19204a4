//! The answer so far: made of the history, written to the recommendation file, and noted in the journal.

use super::{DriverError, End, Running, StudyResult};
use crate::progress::Event;
use crate::report::Recommendation;
use crate::report::recommendation::Source;
use crate::search::recommend::standing;
use crate::trial::journal::Entry;

impl Running<'_> {
    fn recommendation(&self) -> Recommendation {
        let standing = standing(&self.history, &self.space);
        Recommendation::new(&Source {
            plan: self.study.plan,
            history: &self.history,
            skipped: &self.skipped,
            forecast: self.knowledge.summary(standing.point(), &self.history),
            native_peak_rate: standing.point().and_then(|point| self.knowledge.native_peak_rate(point)),
            recomputation: standing.point().and_then(|point| self.knowledge.recomputation(point)),
            facts: &self.facts,
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

    pub(super) fn finish(mut self, end: End) -> StudyResult {
        let recommendation = self.recommendation();
        // A study that was cut short before it found anything has nothing to say, least of all over an answer that an
        // earlier one left in the same file.
        let cut_short = matches!(end, End::Interrupted | End::BudgetEnded);
        let has_nothing_to_say = cut_short && recommendation.recommended.is_none() && self.study.output.exists();
        let unwritten = if has_nothing_to_say { None } else { recommendation.write(&self.study.output).err() };
        let status = recommendation.status.name().to_owned();
        // What is in the file in the end, or should be, is in the journal too: it is what a finished study offers again.
        self.note(&Entry::Recommended { recommendation: serde_json::to_value(&recommendation).unwrap_or_default() });
        self.note(&Entry::Concluded { status: status.clone() });
        self.study.reporter.report(&Event::StudyEnded {
            status,
            trials: self.history.trials().len(),
            seconds: self.clock.elapsed().as_secs_f64(),
        });
        StudyResult { end, recommendation, unwritten, history: self.history }
    }
}

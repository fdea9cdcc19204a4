//! From a run that has ended to the record of its trial: what it said put together with what was seen of it.

use std::time::Duration;

use super::device::Placement;
use super::remarks::{incomplete_soak, silent_ranks, unreported, unsampled, unseen_ranks};
use super::run::Heard;
use super::spec::TrialFiles;
use super::trace::{self, Beside, Content};
use super::{CommandExecutor, Placeholder, worst};
use crate::data::SampleSize;
use crate::memory::MemorySample;
use crate::text::with_causes;
use crate::trial::outcome::{Measurement, Outcome, TrialRecord};
use crate::trial::spawn::GpuUse;
use crate::trial::spec::{TrialSpec, recording_path};

/// A run as seen from outside.
pub(super) struct Seen<'a> {
    pub(super) files: &'a TrialFiles,
    pub(super) placement: &'a Placement,
    pub(super) used: GpuUse,
    pub(super) took: Duration,
}

impl CommandExecutor {
    /// What a run comes to, by what it said and by what was seen of it.
    pub(super) fn settle(&mut self, spec: &TrialSpec, mut heard: Heard, seen: &Seen<'_>, record: &mut TrialRecord) {
        let Seen { used, .. } = seen;
        let is_on_a_card = seen.placement.facts.uuid.is_some();
        if heard.was_stopped_unheard && is_on_a_card && used.peak_bytes.is_some_and(|peak| peak > 0) {
            heard.outcome = Outcome::Completed;
        }
        self.reports |= heard.reports();
        record.warnings.append(&mut worst::warnings(&mut heard.ranks));
        record.warnings.append(&mut heard.warnings);
        if spec.is_probe() && heard.outcome == Outcome::Completed {
            heard.outcome = self.keep_trace(spec, seen.files, &heard, &mut record.warnings);
        }
        record.samples = worst::samples(&heard.ranks);
        if heard.outcome == Outcome::Completed {
            let unseen_ranks = unseen_ranks(&heard.ranks);
            record.warnings.extend(silent_ranks(&unseen_ranks, heard.ranks.len()));
            let is_batch_size_unseen = !heard.reports() && !self.config.command.holds(Placeholder::BatchSize);
            let measured = self.measure(spec, &heard, seen);
            record.measurement = Some(Measurement { unseen_ranks, is_batch_size_unseen, ..measured });
        }
        if record.samples.is_empty() && heard.outcome == Outcome::Completed {
            record.warnings.push(if heard.reports() {
                unsampled(used)
            } else {
                unreported(used, &self.config.command, heard.complaint.as_deref())
            });
            record.samples.extend(used.peak_bytes.map(|peak| MemorySample {
                step: spec.total_steps(),
                reserved_bytes: peak,
                peak_reserved_bytes: peak,
                limit_bytes: seen.placement.facts.limit_bytes,
                ..MemorySample::default()
            }));
        }
        if spec.is_soak() && heard.reports() && heard.outcome == Outcome::Completed {
            record.warnings.extend(incomplete_soak(&heard.ranks));
        }
        record.rank = heard.rank;
        record.outcome = heard.outcome;
    }

    /// Turns the snapshot of a probe into the trace that the forecast reads. Without one the probe was for nothing.
    fn keep_trace(
        &mut self,
        spec: &TrialSpec,
        files: &TrialFiles,
        heard: &Heard,
        warnings: &mut Vec<String>,
    ) -> Outcome {
        let failed = |message: String| Outcome::Failed { message };
        let Some(fullest) = worst::fullest(&heard.ranks) else {
            return failed("the program recorded no allocations, so nothing can be forecast from it".to_owned());
        };
        // Probes are compared allocation by allocation, and ranks may differ in what they do.
        let rank = *self.traced_rank.get_or_insert(fullest);
        if rank != fullest {
            warnings.push(format!(
                "the forecast is made from what rank {rank} records, and in this probe rank {fullest} needs more"
            ));
        }
        let Some(told) = heard.ranks.get(rank).filter(|told| told.has_trace) else {
            return failed(format!("rank {rank} recorded no allocations, as it did in an earlier probe"));
        };
        let path = recording_path(&self.config.scratch, spec);
        let sampled = told.series.samples.iter().map(|sample| sample.peak_allocated_bytes);
        let beside = Beside { accumulation: spec.accumulation(), sampled_peak_bytes: sampled.max().unwrap_or(0) };
        match trace::convert(&files.snapshot_of(rank), &told.marks, beside, &path) {
            Ok(content) => {
                tracing::debug!("{} events recorded", content.events);
                self.heeded(spec, content).map_or(Outcome::Completed, failed)
            }
            Err(error) => failed(format!("the recorded allocations are of no use: {}", with_causes(&error))),
        }
    }

    /// What is to be said of a program that allocates the same at two sizes of its samples. Taken for what sizes do, its
    /// recordings would make a forecast that is wrong and looks exact.
    fn heeded(&mut self, spec: &TrialSpec, content: Content) -> Option<String> {
        let size = spec.sample_size?;
        let (before, sizes) = *self.sample_sizes.entry(spec.point.batch_size).or_insert((size, content.sizes));
        (before != size && sizes == content.sizes).then(|| {
            let name = Placeholder::of_sample_size(size).name();
            let use_it = match size {
                SampleSize::Tokens(_) => "pad every batch to",
                SampleSize::Side(_) => "give the images of every batch the side",
            };
            format!(
                "the program allocates the same at {before} and at {size} (hint: {use_it} `{{{name}}}` where it is not 0)"
            )
        })
    }

    fn measure(&mut self, spec: &TrialSpec, heard: &Heard, seen: &Seen<'_>) -> Measurement {
        let held_bytes = seen.used.peak_bytes.unwrap_or(0);
        if let Some(mut measurement) = worst::measurement(&heard.ranks, spec) {
            if heard.ranks.iter().all(|told| told.series.samples.is_empty()) {
                measurement.peak_reserved_bytes = held_bytes;
            }
            self.peak_allocated_bytes = self.peak_allocated_bytes.max(measurement.peak_allocated_bytes);
            return measurement;
        }
        // Of a program that was told how many steps to run the time of a step is known, its start included.
        let is_told = self.config.command.holds(Placeholder::Steps);
        let steps = if is_told { spec.total_steps() } else { 0 };
        let seconds = seen.took.as_secs_f64().max(f64::MIN_POSITIVE);
        let samples = spec.point.batch_size.saturating_mul(self.config.replicas);
        Measurement {
            steps,
            samples_per_second: f64::from(steps) * samples as f64 / seconds,
            peak_reserved_bytes: held_bytes,
            ..Measurement::default()
        }
    }
}

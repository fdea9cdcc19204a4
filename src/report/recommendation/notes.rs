//! What an answer is to be read with: what recomputation did, and what its batches mean for batch normalisation.

use super::made::Source;
use crate::search::knowledge::probed::Recomputation;
use crate::search::recommend::ranked;
use crate::search::{JudgedTrial, Space};
use crate::train::{BatchNorm, GradientCheckpointing};
use crate::trial::Measurement;
use crate::units::{Bytes, plural};

const MODES: [GradientCheckpointing; 2] = [GradientCheckpointing::None, GradientCheckpointing::Blocks];

/// What recomputation does to memory and speed, where it was part of the search and ran.
pub(super) fn recomputation(source: &Source<'_>, space: &Space) -> Vec<String> {
    if space.modes().len() < 2 {
        return Vec::new();
    }
    let mut notes = Vec::new();
    let ranked = ranked(source.history, space);
    let best = |mode| {
        let of_mode = |trial: &&&JudgedTrial| trial.record.spec.point.gradient_checkpointing == mode;
        ranked.iter().find(of_mode).map(|trial| reached(trial, mode))
    };
    if let [Some(kept), Some(recomputed)] = MODES.map(best) {
        notes.push(format!("gradient checkpointing: {kept}; {recomputed}"));
    }
    if let Some(Recomputation { batch_size, kept_bytes, recomputed_bytes }) = source.recomputation {
        notes.push(format!(
            "gradient checkpointing: at batch size {batch_size} tensors take {} at the peak with `blocks` and {} with `none` \
             (by forecast)",
            Bytes(recomputed_bytes),
            Bytes(kept_bytes)
        ));
    }
    notes
}

fn reached(trial: &JudgedTrial, mode: GradientCheckpointing) -> String {
    let point = &trial.record.spec.point;
    let measured = trial.record.measurement.as_ref();
    let rate = measured.map_or(0.0, |measurement| measurement.samples_per_second);
    let peak = Bytes(measured.map_or(0, |measurement| measurement.peak_reserved_bytes));
    let (batch_size, steps) = (point.batch_size, point.accumulation_steps);
    format!("`{mode}` reached {rate:.1} samples/s with {batch_size} × {steps}, {peak} reserved at the peak")
}

/// The field's warning of batch normalisation under accumulation: its statistics are over each micro-batch.
pub(super) fn batch_statistics(source: &Source<'_>, trial: &JudgedTrial) -> Option<String> {
    let point = &trial.record.spec.point;
    let has_batch_norm =
        trial.record.measurement.as_ref().is_some_and(|Measurement { has_batch_norm, .. }| *has_batch_norm);
    let is_per_micro_batch = source.plan.train.batch_norm == BatchNorm::Train && point.accumulation_steps > 1;
    (has_batch_norm && is_per_micro_batch).then(|| {
        format!(
            "batch normalisation takes its statistics over micro-batches of {}, and {} of them make an update: that trains \
             another model than one batch of {} (hint: `train.batch_norm: frozen` uses the running statistics, and `sync` \
             takes them over all of several replicas)",
            plural(point.batch_size, "sample"),
            point.accumulation_steps,
            point.batch_size.saturating_mul(point.accumulation_steps)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::rules::testing::{completed, sample};
    use crate::search::scripted::{facts, plan};
    use crate::search::{History, Verdict};
    use crate::trial::{Point, TrialRecord};
    use crate::units::MIB;

    fn trial(space: &Space, batch_size: usize, change: impl Fn(Point) -> Point, has_batch_norm: bool) -> JudgedTrial {
        let point = change(space.point(space.pair_of(batch_size), space.first_loader()));
        let record = completed(point, vec![sample(4)]);
        let measurement = record.measurement.map(|measurement| Measurement { has_batch_norm, ..measurement });
        JudgedTrial { record: TrialRecord { measurement, ..record }, verdict: Verdict::default() }
    }

    fn blocks(point: Point) -> Point {
        Point { gradient_checkpointing: GradientCheckpointing::Blocks, ..point }
    }

    #[test]
    fn both_ways_to_keep_activations_are_compared_where_both_ran() {
        let mut plan = plan(8);
        plan.train.gradient_checkpointing = GradientCheckpointing::Auto;
        let space = Space::new(&plan);
        let mut history = History::default();
        history.tell(trial(&space, 4, |point| point, false));
        let recomputation = Recomputation { batch_size: 8, kept_bytes: 20 * MIB, recomputed_bytes: 10 * MIB };
        let notes = |history: &History, recomputation| {
            let (facts, started, skipped) = (facts(), "2026-01-01T00:00:00Z", []);
            let source = Source {
                plan: &plan,
                history,
                skipped: &skipped,
                forecast: None,
                native_peak_rate: None,
                allocator_reason: None,
                recomputation,
                facts: &facts,
                device_notes: &[],
                started,
                seconds: 1.0,
            };
            super::recomputation(&source, &space)
        };
        assert!(notes(&history, None).is_empty());
        history.tell(trial(&space, 8, blocks, false));
        let [speed, memory] = &notes(&history, Some(recomputation))[..] else { panic!("not two notes") };
        assert!(speed.contains("`none` reached 100.0 samples/s with 4 × 2, "), "{speed}");
        assert!(speed.contains("; `blocks` reached 100.0 samples/s with 8 × 1, "), "{speed}");
        assert!(
            memory.contains("at batch size 8 tensors take 10.0 MiB at the peak with `blocks` and 20.0 MiB"),
            "{memory}"
        );
    }

    #[test]
    fn statistics_of_micro_batches_are_warned_of_only_where_there_are_some_and_they_are_updated() {
        let warning = |batch_size, batch_norm, has_batch_norm| {
            let mut plan = plan(8);
            plan.train.batch_norm = batch_norm;
            let (facts, history, space) = (facts(), History::default(), Space::new(&plan));
            let source = Source {
                plan: &plan,
                history: &history,
                skipped: &[],
                forecast: None,
                native_peak_rate: None,
                allocator_reason: None,
                recomputation: None,
                facts: &facts,
                device_notes: &[],
                started: "2026-01-01T00:00:00Z",
                seconds: 1.0,
            };
            batch_statistics(&source, &trial(&space, batch_size, |point| point, has_batch_norm))
        };
        let told = warning(2, BatchNorm::Train, true).unwrap();
        assert!(told.contains("micro-batches of 2 samples, and 4 of them make an update"), "{told}");
        assert!(told.contains("`train.batch_norm: frozen`") && told.contains("`sync`"), "{told}");
        assert_eq!(warning(8, BatchNorm::Train, true), None, "there is no accumulation");
        assert_eq!(warning(2, BatchNorm::Frozen, true), None);
        assert_eq!(warning(2, BatchNorm::Train, false), None, "nothing is normalised over the batch");
    }
}

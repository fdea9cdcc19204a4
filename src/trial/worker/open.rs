//! The opened workload: device, model family and data, which all trials of a worker share.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::Refused;
use super::group::Place;
use super::part::Part;
use crate::data::lengths::{Lengths, Longest};
use crate::data::loader::{Batches, Loader, LoaderConfig};
use crate::data::rules::BatchRules;
use crate::data::sides::Sides;
use crate::data::{self, Batch, Dataset, SampleSize};
use crate::device::collective::{Cards, Relay, Replica};
use crate::device::{self, DeviceChoice, DeviceSession, StepError};
use crate::model::{BuildContext, Family, ModelError, Registry};
use crate::text::with_causes;
use crate::train::TrainSpec;
use crate::train::trainer::{MicroBatch, Trainer};
use crate::trial::protocol::Refusal;
use crate::trial::spec::{Point, TrialSpec, WorkloadSpec};

/// What a trial needs made: a trainer and batches. The trial's own loop knows neither models nor datasets, and its
/// tests run it on stand-ins.
pub(super) trait Supplies {
    /// Builds the model and the optimizer state.
    fn build(&self, point: &Point, session: &dyn DeviceSession) -> Result<Box<dyn Training>, StepError>;

    /// Starts a loader over the data to train on.
    fn training_batches(&self, point: &Point) -> Box<dyn Batches>;

    /// Starts a loader over the held-out data.
    fn evaluation_batches(&self, point: &Point) -> Box<dyn Batches>;

    /// Samples in the data to train on.
    fn training_samples(&self) -> usize;

    /// Whether the run will write checkpoints.
    fn has_checkpoints(&self) -> bool;

    /// The place among the replicas; `None` where there is one alone.
    fn place(&self) -> Option<&Place> {
        None
    }
}

/// What a trial does with a trainer.
pub(super) trait Training {
    /// See [`Trainer::step`].
    fn step(&mut self, batch: &Batch, session: &mut dyn DeviceSession) -> Result<MicroBatch, StepError>;

    /// See [`Trainer::last_step`].
    fn last_step(&mut self, batch: &Batch, session: &mut dyn DeviceSession) -> Result<MicroBatch, StepError>;

    /// See [`Trainer::update`].
    fn update(&mut self, session: &mut dyn DeviceSession) -> Result<Duration, StepError>;

    /// See [`Trainer::evaluate`].
    fn evaluate(&self, batch: &Batch, session: &mut dyn DeviceSession) -> Result<f64, StepError>;

    /// See [`Trainer::unreached`].
    fn unreached(&self) -> &[String];

    /// See [`Trainer::checkpoint`].
    fn checkpoint(&self, path: &Path, session: &mut dyn DeviceSession) -> Result<u64, StepError>;

    /// See [`Trainer::rehearse_checkpoint`].
    fn rehearse_checkpoint(&self, session: &mut dyn DeviceSession) -> Result<u64, StepError>;

    /// See [`Trainer::has_diverged`].
    fn has_diverged(&self) -> bool {
        false
    }

    /// Whether the model keeps running statistics.
    fn has_batch_norm(&self) -> bool {
        false
    }
}

impl Training for Trainer {
    fn step(&mut self, batch: &Batch, session: &mut dyn DeviceSession) -> Result<MicroBatch, StepError> {
        Trainer::step(self, batch, session)
    }

    fn last_step(&mut self, batch: &Batch, session: &mut dyn DeviceSession) -> Result<MicroBatch, StepError> {
        Trainer::last_step(self, batch, session)
    }

    fn update(&mut self, session: &mut dyn DeviceSession) -> Result<Duration, StepError> {
        Trainer::update(self, session)
    }

    fn evaluate(&self, batch: &Batch, session: &mut dyn DeviceSession) -> Result<f64, StepError> {
        Trainer::evaluate(self, batch, session)
    }

    fn unreached(&self) -> &[String] {
        Trainer::unreached(self)
    }

    fn checkpoint(&self, path: &Path, session: &mut dyn DeviceSession) -> Result<u64, StepError> {
        Trainer::checkpoint(self, path, session)
    }

    fn rehearse_checkpoint(&self, session: &mut dyn DeviceSession) -> Result<u64, StepError> {
        Trainer::rehearse_checkpoint(self, session)
    }

    fn has_diverged(&self) -> bool {
        Trainer::has_diverged(self)
    }

    fn has_batch_norm(&self) -> bool {
        self.workload().buffers().is_some()
    }
}

/// An open device with a workload for it.
pub(super) struct Opened<'a> {
    pub(super) session: Box<dyn DeviceSession>,
    family: &'a dyn Family,
    workload: WorkloadSpec,
    training: Arc<dyn Dataset>,
    evaluation: Arc<dyn Dataset>,
    place: Option<Place>,
}

impl<'a> Opened<'a> {
    /// Opens the device and the data, the cheap checks first; a replica meets the others once all of that is well.
    pub(super) fn open(
        registry: &'a Registry,
        workload: WorkloadSpec,
        replica: Option<(Replica, &Relay)>,
    ) -> Result<Self, Refused> {
        let of_workload = |error: &dyn std::error::Error| (Refusal::Workload, with_causes(error));
        let family = registry.get(&workload.model.family).map_err(|error| of_workload(&error))?;
        let input = family.input(&workload.model).map_err(|error| of_workload(&error))?;
        let sides = registry.check_sides(&workload.model, &input, workload.data.image_size);
        sides.map_err(|error| of_workload(&error))?;
        let choice = device_of(workload.device, replica.as_ref().map(|(replica, _)| replica));
        let mut session = choice
            .and_then(|choice| device::open(choice, workload.limit, workload.allocator))
            .map_err(|error| (Refusal::Device, with_causes(&error)))?;
        let dataset = data::open(&workload.data, &input, workload.seed).map_err(|error| of_workload(&error))?;
        let (training, evaluation) = Part::split(&dataset);
        let place =
            replica.map(|replica| Place::take((&replica.0, replica.1), session.as_mut(), workload.limit)).transpose();
        let place = place.map_err(|error| (Refusal::Device, with_causes(&error)))?;
        Ok(Self { session, family, workload, training, evaluation, place })
    }

    /// The session, and what is made for a trial.
    pub(super) fn parts(&mut self, trial: &TrialSpec) -> (&mut dyn DeviceSession, impl Supplies) {
        let supplies = Stock {
            longest: longest(trial),
            sample_size: trial.sample_size,
            family: self.family,
            workload: &self.workload,
            training: &self.training,
            evaluation: &self.evaluation,
            place: self.place.as_ref(),
        };
        (self.session.as_mut(), supplies)
    }
}

/// Which batches of a trial are as long as any can be, where lengths vary (see [`lengths`](crate::data::lengths)), or have
/// images as large as any can be, where sides do.
///
/// A forecast needs traces that are alike, so those of a probe all are. Every other trial measures batches as they come;
/// the first large one is put in once there is optimizer state, so that even a short trial has it.
fn longest(trial: &TrialSpec) -> Longest {
    if trial.is_shape_probe() {
        // All are of one size already, and it is not the largest.
        return Longest::ByChance;
    }
    if trial.is_probe() {
        return Longest::Always;
    }
    let last = u64::from(trial.total_steps()).saturating_sub(1);
    Longest::Every { first: (trial.accumulation() as u64).min(last), period: LONGEST_EVERY }
}

/// Steps from one longest batch to the next: three of a default soak, one of them after its evaluation pass, and one of
/// a default trial's measured steps, where the median passes over it.
const LONGEST_EVERY: u64 = 16;

/// The device of a replica: the one it was given, or the [card of its rank](Replica::card) where the choice is left to it.
fn device_of(choice: DeviceChoice, replica: Option<&Replica>) -> Result<DeviceChoice, device::DeviceError> {
    let Some(replica) = replica else { return Ok(choice) };
    let first = match (choice, replica.cards) {
        (DeviceChoice::Auto, _) if device::cuda::is_present()? => 0,
        (DeviceChoice::Cuda(first), Cards::Assigned) => first,
        (choice, _) => return Ok(choice),
    };
    let seen = device::visible::count().saturating_sub(first);
    Ok(DeviceChoice::Cuda(first.saturating_add(replica.card(seen))))
}

struct Stock<'a> {
    longest: Longest,
    /// The size of all samples, in place of what the data says.
    sample_size: Option<SampleSize>,
    family: &'a dyn Family,
    workload: &'a WorkloadSpec,
    training: &'a Arc<dyn Dataset>,
    evaluation: &'a Arc<dyn Dataset>,
    place: Option<&'a Place>,
}

impl Stock<'_> {
    fn rules(&self, longest: Longest) -> BatchRules {
        let shard = self.place.map(Place::shard).unwrap_or_default();
        let rules = BatchRules { shard, ..BatchRules::of(&self.workload.data, self.workload.seed) };
        let fixed = BatchRules { longest: Longest::ByChance, ..rules };
        match self.sample_size {
            Some(SampleSize::Tokens(length)) => BatchRules { lengths: Some(Lengths::all(length)), ..fixed },
            Some(SampleSize::Side(side)) => BatchRules { sides: Some(Sides::all(side)), ..fixed },
            None => BatchRules { longest, ..rules },
        }
    }
}

impl Supplies for Stock<'_> {
    fn build(&self, point: &Point, session: &dyn DeviceSession) -> Result<Box<dyn Training>, StepError> {
        let train = TrainSpec { gradient_checkpointing: point.gradient_checkpointing, ..self.workload.train };
        let context = BuildContext {
            spec: &self.workload.model,
            device: session.candle(),
            precision: train.precision,
            batch_norm: train.batch_norm,
            seed: self.workload.seed,
            replicas: self.place.map(|place| &place.group),
        };
        let model = self.family.build(&context).map_err(|error| match error {
            ModelError::Candle(error) => session.classify(&error),
            other => StepError::Workload(with_causes(&other)),
        })?;
        let trainer = Trainer::new(model, &train).map_err(|error| session.classify(&error))?;
        let Some(place) = self.place else { return Ok(Box::new(trainer)) };
        let trainer = trainer.in_group(Arc::clone(&place.group));
        Ok(Box::new(trainer.map_err(|error| place.blame(session.classify(&error)))?))
    }

    fn training_batches(&self, point: &Point) -> Box<dyn Batches> {
        let config = LoaderConfig {
            batch_size: point.batch_size,
            workers: point.loader_workers,
            prefetch_depth: point.prefetch_depth,
            seed: self.workload.seed,
        };
        Box::new(Loader::with_rules(Arc::clone(self.training), config, self.rules(self.longest)))
    }

    fn evaluation_batches(&self, point: &Point) -> Box<dyn Batches> {
        let config =
            LoaderConfig { batch_size: point.batch_size, workers: 0, prefetch_depth: 0, seed: self.workload.seed };
        // A pass is a few batches, so each of them is the worst.
        Box::new(Loader::with_rules(Arc::clone(self.evaluation), config, self.rules(Longest::Always)))
    }

    fn training_samples(&self) -> usize {
        self.training.len()
    }

    fn has_checkpoints(&self) -> bool {
        self.workload.train.checkpoint_every.is_some()
    }

    fn place(&self) -> Option<&Place> {
        self.place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::spec::{Purpose, TrialId};

    fn trial(purpose: Purpose, accumulation_steps: usize, steps: u32) -> TrialSpec {
        let point = Point { accumulation_steps, ..Point::plain(4) };
        TrialSpec { id: TrialId(1), purpose, point, warmup_steps: 0, steps, sample_every: 2, sample_size: None }
    }

    #[test]
    fn every_trial_has_a_longest_batch_with_optimizer_state_and_a_probe_nothing_else() {
        assert_eq!(longest(&trial(Purpose::Probe, 4, 8)), Longest::Always);
        for (purpose, accumulation, steps, first) in [
            (Purpose::Ladder, 1, 12, 1),
            (Purpose::Ladder, 8, 12, 2),
            (Purpose::Ladder, 4, 1, 0),
            (Purpose::Soak, 8, 5, 8),
        ] {
            let trial = trial(purpose, accumulation, steps);
            let longest = longest(&trial);
            assert_eq!(longest, Longest::Every { first, period: LONGEST_EVERY });
            assert!((0..u64::from(trial.total_steps())).any(|batch| longest.includes(batch)));
        }
    }
}

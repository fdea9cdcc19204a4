use std::thread;

use candle_core::{DType, Device};

use super::*;
use crate::data::Batch;
use crate::device::StepError;
use crate::device::collective::UnixGroup;
use crate::model::parameters::Init;
use crate::model::{BuildContext, ModelSpec, Parameters, Registry};
use crate::train::testing::PlainCpu;
use crate::train::{BatchNorm, OptimizerKind, Precision, TrainSpec, Trainer};

mod overlap;

const SAMPLES: usize = 8;
const SEED: u64 = 3;

/// What every rank of a group of threads makes of its place.
fn with_ranks<T: Send>(world: usize, work: impl Fn(Arc<dyn Collective>) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let ranks = UnixGroup::within_process(world).into_iter().map(|group| scope.spawn(|| work(Arc::new(group))));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A model and a batch for all replicas.
struct Case {
    model: ModelSpec,
    batch_norm: BatchNorm,
    precision: Precision,
}

impl Case {
    fn of(family: &str) -> Self {
        let model = crate::model::contract::small(family);
        Self { model, batch_norm: BatchNorm::Frozen, precision: Precision::F32 }
    }

    fn workload(&self, seed: u64, group: Option<&Arc<dyn Collective>>) -> Box<dyn Workload> {
        let context = BuildContext {
            spec: &self.model,
            device: &Device::Cpu,
            precision: self.precision,
            batch_norm: self.batch_norm,
            seed,
            replicas: group,
        };
        Registry::builtin().get(&self.model.family).unwrap().build(&context).unwrap()
    }

    fn batch(&self) -> Batch {
        use crate::data::loader::{Loader, LoaderConfig};
        let input = Registry::builtin().input(&self.model).unwrap();
        let dataset = crate::data::open(&crate::data::DataSpec::default(), &input, SEED).unwrap();
        let config = LoaderConfig { batch_size: SAMPLES, workers: 0, prefetch_depth: 0, seed: SEED };
        Loader::start(dataset, config).next_batch().unwrap().to_device(&Device::Cpu).unwrap()
    }
}

fn part(batch: &Batch, first: usize, samples: usize) -> Batch {
    let cut = |tensor: &Tensor| tensor.narrow(0, first, samples).unwrap().contiguous().unwrap();
    Batch { input: cut(&batch.input), target: cut(&batch.target), samples }
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn all<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Vec<Vec<f32>> {
    tensors.map(values).collect()
}

/// The largest difference, against the largest value of all.
fn difference(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    let largest = expected.iter().flatten().fold(f32::MIN_POSITIVE, |largest, value| largest.max(value.abs()));
    assert_eq!(found.len(), expected.len());
    let differences = found.iter().flatten().zip(expected.iter().flatten()).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, f32::max) / largest
}

fn spec() -> TrainSpec {
    TrainSpec { optimizer: OptimizerKind::Sgd, learning_rate: 0.1, ..TrainSpec::default() }
}

/// Losses, parameters and buffers after two updates of `accumulation` steps over the group's share of the batch.
fn train(case: &Case, group: Option<Arc<dyn Collective>>, accumulation: usize) -> (Vec<f64>, Vec<Vec<f32>>) {
    let (rank, world) = group.as_ref().map_or((0, 1), |group| (group.rank(), group.world()));
    // Every rank would start from parameters of its own.
    let workload = case.workload(SEED + rank as u64, group.as_ref());
    let mut trainer = Trainer::new(workload, &spec()).unwrap();
    if let Some(group) = group {
        trainer = trainer.in_group(group).unwrap();
    }
    let (whole, samples) = (case.batch(), SAMPLES / world / accumulation);
    let mut session = PlainCpu::default();
    let mut losses = Vec::new();
    for _ in 0..2 {
        for step in 0..accumulation {
            let batch = part(&whole, (step * world + rank) * samples, samples);
            losses.push(trainer.step(&batch, &mut session).unwrap().loss);
        }
        trainer.update(&mut session).unwrap();
    }
    let workload = trainer.workload();
    let buffers = workload.buffers().into_iter().flat_map(Buffers::iter);
    let kept = workload.parameters().iter().chain(buffers).map(|(_, variable)| variable.as_tensor());
    (losses, all(kept))
}

#[test]
fn the_mean_gradient_of_1_2_and_4_ranks_is_that_of_the_whole_batch() {
    let case = Case::of("gpt");
    let gradients = |group: Option<Arc<dyn Collective>>| {
        let (rank, world) = group.as_ref().map_or((0, 1), |group| (group.rank(), group.world()));
        let mut trainer = Trainer::new(case.workload(SEED, None), &spec()).unwrap();
        let samples = SAMPLES / world;
        trainer.step(&part(&case.batch(), rank * samples, samples), &mut PlainCpu::default()).unwrap();
        let mut gradients = std::mem::take(trainer.gradients_mut());
        if let Some(group) = group {
            Replicas { group, micro_batches: 0, overlap: Overlap::default() }.average(&mut gradients).unwrap();
        }
        all(gradients.sums_mut().values())
    };
    let expected = gradients(None);
    for world in [1, 2, 4] {
        let found = with_ranks(world, |group| gradients(Some(group)));
        assert!(found.iter().all(|of_rank| *of_rank == found[0]), "all ranks have the same bits");
        let off = difference(&found[0], &expected);
        assert!(off < 1e-5, "{world} ranks: {off}");
    }
}

#[test]
fn replicas_that_start_apart_train_as_one_device_with_the_whole_batch() {
    for family in ["gpt", "resnet"] {
        let case = Case::of(family);
        for (world, accumulation) in [(2, 1), (2, 2), (4, 1)] {
            let (losses, expected) = train(&case, None, 1);
            let found = with_ranks(world, |group| train(&case, Some(group), accumulation));
            assert!(found.iter().all(|(_, of_rank)| *of_rank == found[0].1), "all ranks have the same bits");
            let off = difference(&found[0].1, &expected);
            assert!(off < 1e-5, "{family}, {world} ranks, {accumulation} steps: {off}");
            for (update, loss) in losses.iter().enumerate() {
                let steps = update * accumulation..(update + 1) * accumulation;
                let of_all: f64 = found.iter().flat_map(|(losses, _)| &losses[steps.clone()]).sum();
                let mean = of_all / (world * accumulation) as f64;
                assert!((mean - loss).abs() < 1e-5 * loss.abs(), "{family}: {mean} against {loss}");
            }
        }
    }
}

#[test]
fn statistics_over_two_replicas_are_those_of_the_whole_batch() {
    let synchronised = Case { batch_norm: BatchNorm::Sync, ..Case::of("resnet") };
    let alone = Case { batch_norm: BatchNorm::Train, ..Case::of("resnet") };
    let (losses, expected) = train(&alone, None, 1);
    let found = with_ranks(2, |group| train(&synchronised, Some(group), 1));
    assert!(found.iter().all(|(_, of_rank)| *of_rank == found[0].1), "all ranks have the same bits");
    let off = difference(&found[0].1, &expected);
    assert!(off < 1e-5, "parameters and running statistics: {off}");
    for (update, loss) in losses.iter().enumerate() {
        let mean = found.iter().map(|(losses, _)| losses[update]).sum::<f64>() / 2.0;
        assert!((mean - loss).abs() < 1e-5 * loss.abs(), "{mean} against {loss}");
    }
    let (_, apart) = &with_ranks(2, |group| train(&alone, Some(group), 1))[0];
    assert!(difference(apart, &expected) > 1e-3, "statistics of each replica's own would be others");
}

#[test]
fn losses_that_are_scaled_stay_in_step() {
    let case = Case { precision: Precision::MixedF16, ..Case::of("gpt") };
    let found = with_ranks(2, |group| train(&case, Some(group), 1));
    assert_eq!(found[0].1, found[1].1);
}

/// A model of two parameters, of which rank 1 may reach one alone.
struct Drifting {
    parameters: Parameters,
    reaches_both: bool,
}

impl Drifting {
    fn new(reaches_both: bool) -> Self {
        let mut parameters = Parameters::new(&Device::Cpu, DType::F32, 1);
        for name in ["a", "b"] {
            parameters.create(name, &[4], Init::Normal(1.0)).unwrap();
        }
        Self { parameters, reaches_both }
    }
}

impl Workload for Drifting {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn loss(&self, _batch: &Batch) -> candle_core::Result<Tensor> {
        let reached = if self.reaches_both { 2 } else { 1 };
        let mut loss = Tensor::zeros((), DType::F32, &Device::Cpu)?;
        for (_, variable) in self.parameters.iter().take(reached) {
            loss = (loss + variable.sqr()?.sum_all()?)?;
        }
        Ok(loss)
    }
}

fn drifting_batch() -> Batch {
    let nothing = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
    Batch { input: nothing.clone(), target: nothing, samples: 1 }
}

#[test]
fn gradients_that_one_rank_alone_has_are_an_error_and_no_wait() {
    let errors = with_ranks(2, |group| {
        let workload = Box::new(Drifting::new(group.rank() == 0));
        let mut trainer = Trainer::new(workload, &spec()).unwrap().in_group(group).unwrap();
        let mut session = PlainCpu::default();
        trainer.step(&drifting_batch(), &mut session).unwrap();
        trainer.update(&mut session).unwrap_err()
    });
    for error in errors {
        let StepError::Replica(CollectiveError::Unequal { what: "gradients", rank: 1 }) = error else {
            panic!("{error:?}")
        };
    }
}

#[test]
fn parameters_that_drift_apart_are_found_in_the_first_updates() {
    let errors = with_ranks(2, |group| {
        let rank = group.rank();
        let mut trainer = Trainer::new(Box::new(Drifting::new(true)), &spec()).unwrap().in_group(group).unwrap();
        let mut session = PlainCpu::default();
        trainer.step(&drifting_batch(), &mut session).unwrap();
        if rank == 1 {
            // A program that changes its parameters by itself: the last bit of one value.
            let variable = trainer.workload().parameters().get("a").unwrap();
            let mut changed = values(variable);
            changed[3] = f32::from_bits(changed[3].to_bits() ^ 1);
            variable.set(&Tensor::new(changed, &Device::Cpu).unwrap()).unwrap();
        }
        trainer.update(&mut session).unwrap_err()
    });
    for error in errors {
        let StepError::Replica(CollectiveError::Unequal { what: "parameters", rank: 1 }) = error else {
            panic!("{error:?}")
        };
    }
}

#[test]
fn a_rank_that_is_lost_is_what_the_others_tell() {
    let errors = with_ranks(2, |group| {
        let (rank, place) = (group.rank(), Arc::clone(&group));
        let mut trainer = Trainer::new(Box::new(Drifting::new(true)), &spec()).unwrap().in_group(group).unwrap();
        let mut session = PlainCpu::default();
        trainer.step(&drifting_batch(), &mut session).unwrap();
        if rank == 1 {
            place.leave();
            return None;
        }
        trainer.update(&mut session).err()
    });
    assert!(matches!(errors[0], Some(StepError::Replica(CollectiveError::PeerLost { rank: 1 }))), "{errors:?}");
}

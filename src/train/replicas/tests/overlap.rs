//! Gradients that are exchanged while the backward pass goes on.

use std::result::Result;
use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::data::Batch;
use crate::device::DeviceSession;
use crate::device::collective::Work;
use crate::device::cpu::VirtualDevice;
use crate::memory::forecast::{Forecaster, Method, Probe, Recording};
use crate::memory::policy::native::Native;
use crate::memory::{AllocatorKind, Event, LimitSpec, Phase};
use crate::model::{Pass, Segmented, Segments};
use crate::train::GradientCheckpointing;
use crate::units::{Bytes, GIB};

/// Some of the small models' parameters fit, the larger ones go alone.
const BUCKET_BYTES: usize = 2 << 10;

fn recomputing() -> TrainSpec {
    // Parameters that stay give every update the same gradients.
    TrainSpec { gradient_checkpointing: GradientCheckpointing::Blocks, learning_rate: 0.0, ..spec() }
}

fn in_group(workload: Box<dyn Workload>, group: Arc<dyn Collective>) -> Trainer {
    let mut trainer = Trainer::new(workload, &recomputing()).unwrap().in_group(group).unwrap();
    trainer.replicas_mut().unwrap().overlap.set_bucket_bytes(BUCKET_BYTES);
    trainer
}

/// The steps of an update.
fn steps(trainer: &mut Trainer, parts: &[Batch]) {
    let (last, others) = parts.split_last().unwrap();
    for batch in others {
        trainer.step(batch, &mut PlainCpu::default()).unwrap();
    }
    trainer.last_step(last, &mut PlainCpu::default()).unwrap();
}

/// The mean gradients before the update, and how many buckets were sent by then.
fn averaged(trainer: &mut Trainer) -> candle_core::Result<(Vec<Vec<f32>>, usize)> {
    let mut gradients = std::mem::take(trainer.gradients_mut());
    let replicas = trainer.replicas_mut().unwrap();
    let sent = replicas.overlap.sent_so_far();
    replicas.average(&mut gradients)?;
    let names: Vec<String> = gradients.sums_mut().keys().cloned().collect();
    let means: Vec<Tensor> = names.iter().map(|name| gradients.mean(name).unwrap().unwrap()).collect();
    Ok((all(means.iter()), sent))
}

#[test]
fn gradients_that_are_exchanged_beside_the_backward_pass_are_those_of_the_whole_batch() {
    for family in ["gpt", "llama", "resnet"] {
        let case = Case::of(family);
        let mut alone = Trainer::new(case.workload(SEED, None), &spec()).unwrap();
        alone.step(&case.batch(), &mut PlainCpu::default()).unwrap();
        let expected = all(alone.gradients_mut().sums_mut().values());
        for (world, accumulation) in [(1, 1), (2, 1), (2, 2), (4, 2)] {
            let found = with_ranks(world, |group| {
                let (rank, samples) = (group.rank(), SAMPLES / world / accumulation);
                let mut trainer = in_group(case.workload(SEED, None), group);
                let whole = case.batch();
                let part = |step: usize| part(&whole, (step * world + rank) * samples, samples);
                let parts: Vec<Batch> = (0..accumulation).map(part).collect();
                // With one step an update the first of them is what is learned from.
                steps(&mut trainer, &parts);
                trainer.update(&mut PlainCpu::default()).unwrap();
                steps(&mut trainer, &parts);
                averaged(&mut trainer).unwrap()
            });
            assert!(found.iter().all(|of_rank| *of_rank == found[0]), "all ranks have the same bits");
            let (means, sent) = &found[0];
            assert!(*sent > 5, "{family}: {sent} buckets");
            let off = difference(means, &expected);
            assert!(off < 1e-5, "{family}, {world} ranks, {accumulation} steps: {off}");
        }
    }
}

#[test]
fn statistics_over_replicas_come_in_order_between_the_buckets_that_are_on_their_way() {
    let alone = Case { batch_norm: BatchNorm::Train, ..Case::of("resnet") };
    let mut whole = Trainer::new(alone.workload(SEED, None), &spec()).unwrap();
    whole.step(&alone.batch(), &mut PlainCpu::default()).unwrap();
    let expected = all(whole.gradients_mut().sums_mut().values());
    let case = Case { batch_norm: BatchNorm::Sync, ..Case::of("resnet") };
    let found = with_ranks(2, |group| {
        let batch = part(&case.batch(), group.rank() * SAMPLES / 2, SAMPLES / 2);
        let mut trainer = in_group(case.workload(SEED, Some(&group)), group);
        for _ in 0..2 {
            steps(&mut trainer, std::slice::from_ref(&batch));
            trainer.update(&mut PlainCpu::default()).unwrap();
        }
        steps(&mut trainer, std::slice::from_ref(&batch));
        averaged(&mut trainer).unwrap()
    });
    assert!(found[0].1 > 5 && found[0] == found[1]);
    let off = difference(&found[0].0, &expected);
    assert!(off < 1e-5, "{off}");
}

/// Three segments, each a weight times its input.
struct Chain {
    parameters: Parameters,
    notes: Arc<Notes>,
    /// What a pass over an odd batch does differently.
    odd: fn(&mut Chained<'_>),
}

/// What happened, in order.
type Notes = Mutex<Vec<String>>;

struct Chained<'a> {
    /// `None` where a segment does without.
    weights: [Option<Tensor>; 3],
    /// What the first segment uses beside its own.
    also_first: Option<Tensor>,
    pass: Pass,
    notes: &'a Notes,
}

/// A batch of so many samples is an odd one.
const ODD: usize = 2;

impl Segmented for Chain {
    type OnePass<'a> = Chained<'a>;

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn pass<'a>(&'a self, batch: &'a Batch, pass: Pass) -> candle_core::Result<Chained<'a>> {
        let weight = |name| self.parameters.get(name).map(|variable| variable.as_tensor().clone());
        let weights = ["a", "b", "c"].map(weight);
        let mut chained = Chained { weights, also_first: None, pass, notes: &self.notes };
        if batch.samples == ODD {
            (self.odd)(&mut chained);
        }
        Ok(chained)
    }
}

impl Segments for Chained<'_> {
    fn count(&self) -> usize {
        3
    }

    fn forward(&self, index: usize, x: &Tensor) -> candle_core::Result<Tensor> {
        if self.pass == Pass::Recompute {
            self.notes.lock().unwrap().push(format!("segment {index}"));
        }
        let mut x = match &self.weights[index] {
            Some(weight) => (x * weight)?, // [4]
            None => x.affine(2.0, 0.0)?,   // [4]
        };
        if let (0, Some(weight)) = (index, &self.also_first) {
            x = (x * weight)?; // [4]
        }
        if index == 2 { x.sum_all() } else { Ok(x) }
    }
}

fn chain(rank: usize, notes: &Arc<Notes>, odd: fn(&mut Chained<'_>)) -> Box<dyn Workload> {
    let mut parameters = Parameters::new(&Device::Cpu, DType::F32, SEED + rank as u64);
    for name in ["a", "b", "c"] {
        parameters.create(name, &[4], Init::Normal(1.0)).unwrap();
    }
    Box::new(Chain { parameters, notes: Arc::clone(notes), odd })
}

fn chain_batch(samples: usize, value: f32) -> Batch {
    let input = Tensor::full(value, 4, &Device::Cpu).unwrap();
    Batch { target: input.clone(), input, samples }
}

/// The means of an update of an odd step after one of a plain step, on each of two ranks.
fn after_an_odd_step(odd: [fn(&mut Chained<'_>); 2], overlapped: bool) -> Vec<Result<Vec<Vec<f32>>, String>> {
    with_ranks(2, |group| {
        let rank = group.rank();
        let mut trainer = in_group(chain(rank, &Arc::default(), odd[rank]), Arc::clone(&group));
        trainer.replicas_mut().unwrap().overlap.set_bucket_bytes(1);
        steps(&mut trainer, &[chain_batch(1, 1.0)]);
        trainer.update(&mut PlainCpu::default()).unwrap();
        let batch = chain_batch(ODD, 1.0 + rank as f32);
        if overlapped {
            trainer.last_step(&batch, &mut PlainCpu::default()).unwrap();
        } else {
            trainer.step(&batch, &mut PlainCpu::default()).unwrap();
        }
        let found = averaged(&mut trainer);
        assert_eq!(group.failure().is_some(), found.is_err());
        found.map(|(means, _)| means).map_err(|_| format!("{:?}", group.failure()))
    })
}

#[test]
fn a_gradient_that_comes_after_its_bucket_has_gone_is_in_the_mean() {
    let also_first = |pass: &mut Chained<'_>| pass.also_first = pass.weights[2].clone();
    let found = after_an_odd_step([also_first; 2], true);
    let expected = after_an_odd_step([also_first; 2], false);
    assert_eq!(found[0], found[1]);
    let off = difference(found[0].as_ref().unwrap(), expected[0].as_ref().unwrap());
    assert!(off < 1e-6, "{off}");
}

#[test]
fn a_gradient_that_a_pass_did_not_reach_is_none_on_all_ranks_and_an_error_on_one() {
    let without: fn(&mut Chained<'_>) = |pass| pass.weights[1] = None;
    let found = after_an_odd_step([without; 2], true);
    let expected = after_an_odd_step([without; 2], false);
    assert_eq!(found[0].as_ref().map(Vec::len), Ok(2), "the third has none, and no zeros");
    assert!(difference(found[0].as_ref().unwrap(), expected[0].as_ref().unwrap()) < 1e-6);
    let failures = after_an_odd_step([|_| {}, without], true);
    let unequal = "Some(Unequal { what: \"gradients\", rank: 1 })".to_owned();
    assert_eq!(failures, [Err(unequal.clone()), Err(unequal)]);
}

/// A group that notes what is begun.
#[derive(Debug)]
struct Noted {
    inner: Arc<dyn Collective>,
    notes: Arc<Notes>,
}

impl Collective for Noted {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn world(&self) -> usize {
        self.inner.world()
    }
    fn gather(&self, word: u64) -> Result<Vec<u64>, CollectiveError> {
        self.inner.gather(word)
    }
    fn all_reduce(&self, tensors: &[&Tensor], reduction: Reduction) -> Result<(), CollectiveError> {
        self.notes.lock().unwrap().push("reduce".to_owned());
        self.inner.all_reduce(tensors, reduction)
    }
    fn begin_all_reduce(&self, tensor: &Tensor, reduction: Reduction) -> Result<Box<dyn Work>, CollectiveError> {
        self.notes.lock().unwrap().push("begin".to_owned());
        self.inner.begin_all_reduce(tensor, reduction)
    }
    fn broadcast(&self, tensors: &[&Tensor]) -> Result<(), CollectiveError> {
        self.inner.broadcast(tensors)
    }
    fn entered(&self) -> u64 {
        self.inner.entered()
    }
    fn set_patience(&self, patience: Duration) {
        self.inner.set_patience(patience);
    }
    fn give_up(&self, error: CollectiveError) {
        self.inner.give_up(error);
    }
    fn failure(&self) -> Option<CollectiveError> {
        self.inner.failure()
    }
}

#[test]
fn a_bucket_is_on_its_way_before_the_segments_before_are_computed_again() {
    let notes = with_ranks(2, |group| {
        let notes: Arc<Notes> = Arc::default();
        let workload = chain(group.rank(), &notes, |_| {});
        let mut trainer = in_group(workload, Arc::new(Noted { inner: group, notes: Arc::clone(&notes) }));
        trainer.replicas_mut().unwrap().overlap.set_bucket_bytes(1);
        let batch = chain_batch(1, 1.0);
        steps(&mut trainer, std::slice::from_ref(&batch));
        trainer.update(&mut PlainCpu::default()).unwrap();
        let first = std::mem::take(&mut *notes.lock().unwrap());
        steps(&mut trainer, &[batch.clone(), batch]);
        trainer.update(&mut PlainCpu::default()).unwrap();
        (first, std::mem::take(&mut *notes.lock().unwrap()))
    });
    let (first, second) = &notes[0];
    // What is learned from is exchanged after it, and earlier micro-batches are not exchanged at all.
    assert_eq!(*first, ["segment 1", "segment 0", "reduce"]);
    assert_eq!(*second, ["segment 1", "segment 0", "begin", "segment 1", "begin", "segment 0", "begin"]);
}

/// The events of rank 0 at a batch size, over a few updates of two steps.
fn recorded(case: &Case, samples: usize) -> Vec<Event> {
    let recorded: Arc<Mutex<Vec<Event>>> = Arc::default();
    let left_bytes = with_ranks(2, |group| {
        let is_recorded = group.rank() == 0;
        let mut session: Box<dyn DeviceSession> = if is_recorded {
            Box::new(VirtualDevice::open(LimitSpec::Bytes(Bytes(GIB)), AllocatorKind::Auto).unwrap())
        } else {
            Box::new(PlainCpu::default())
        };
        let batch = part(&case.batch(), 0, samples);
        let sink = Arc::clone(&recorded);
        if is_recorded {
            session.set_event_sink(Some(Box::new(move |events| sink.lock().unwrap().extend_from_slice(events))));
        }
        session.begin_trial().unwrap();
        session.begin_phase(Phase::Build);
        let mut trainer = in_group(case.workload(SEED, None), group);
        session.end_phase().unwrap();
        for update in 0..4 {
            session.begin_step(2 * update);
            trainer.step(&batch, session.as_mut()).unwrap();
            session.begin_step(2 * update + 1);
            trainer.last_step(&batch, session.as_mut()).unwrap();
            trainer.update(session.as_mut()).unwrap();
        }
        drop(trainer);
        session.end_trial()
    });
    assert_eq!(left_bytes[0], 0, "nothing is left");
    std::mem::take(&mut *recorded.lock().unwrap())
}

#[test]
fn a_forecast_of_a_replica_that_overlaps_is_exact() {
    let case = Case::of("gpt");
    let [two, three, again, seven] = [2, 3, 3, 7].map(|samples| recorded(&case, samples));
    assert_eq!(Recording::of(&three), Recording::of(&again), "whichever thread was faster");
    let probe = |batch_size, events| Probe { batch_size, events };
    let forecaster = Forecaster::new(&[probe(2, &two), probe(3, &three), probe(7, &seven)]);
    assert_eq!(forecaster.method(), Method::Exact, "{}", forecaster.reason());
    assert_eq!(forecaster.error_percent(&|limit| Box::new(Native::new(limit))), Some(0.0));
}

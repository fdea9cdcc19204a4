//! The trial's loop on stand-ins: a device whose memory is arithmetic, and a trainer that follows a script.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use candle_core::Device;

use self::staging::FakeStager;
use super::open::{Supplies, Training};
use super::*;
use crate::data::loader::Batches;
use crate::data::rules::Skipped;
use crate::data::{Batch, DataError, DataSpec, HostBatch, HostValues};
use crate::device::staging::Stager;
use crate::device::{DeviceChoice, DeviceFacts, DeviceSession, LargestRequest, StepError};
use crate::memory::{AllocatorKind, LimitSpec, MemorySample, OutOfMemory, Phase, PoolState, Trim};
use crate::model::ModelSpec;
use crate::text::with_causes;
use crate::train::TrainSpec;
use crate::train::trainer::MicroBatch;
use crate::trial::protocol::ToWorker;
use crate::trial::spec::{Point, Purpose, TrialId, TrialSpec, WorkloadSpec, trace_path};
use crate::trial::statistics::Trust;
use crate::trial::{Measurement, Outcome};

/// What the trainer and the device were asked to do, in order.
mod staging;

type Calls = Rc<RefCell<Vec<String>>>;

/// A script: what goes wrong, and what there is to see.
#[derive(Clone, Debug, Default)]
struct Script {
    /// An out-of-memory error at the end of this phase, counted over the trial.
    out_of_memory: Option<(Phase, usize)>,
    /// A loss that is no number in this step.
    no_number: Option<u32>,
    /// The update after which no scale of the loss helps.
    lost_update: Option<u32>,
    /// A model with running statistics.
    batch_norm: bool,
    /// The workload's own error in this step.
    error: Option<u32>,
    /// A panic in this step.
    panic: Option<u32>,
    /// A sticky device error in this step.
    device_error: Option<u32>,
    /// Parameters without a gradient.
    unreached: Vec<String>,
    /// Bytes that stay after the trial.
    left_bytes: u64,
    /// Live bytes between steps.
    live_bytes: u64,
    /// A checkpoint that cannot be written.
    checkpoint_fails: bool,
    /// Every other update takes this long, so that its times never settle.
    uneven: Duration,
    /// What the source of the batches takes for each.
    slow_source: Duration,
    /// Samples that could not be read.
    skipped: u64,
    /// The device copies batches beside the steps.
    has_stager: bool,
    /// The run will write checkpoints.
    has_checkpoints: bool,
}

struct FakeSession {
    script: Script,
    facts: DeviceFacts,
    calls: Calls,
    phase: Option<Phase>,
    phases_ended: Vec<Phase>,
}

impl FakeSession {
    fn note(&self, call: impl Into<String>) {
        self.calls.borrow_mut().push(call.into());
    }
}

impl DeviceSession for FakeSession {
    fn candle(&self) -> &Device {
        &Device::Cpu
    }
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }
    fn begin_trial(&mut self) -> Result<(), StepError> {
        self.phases_ended.clear();
        Ok(())
    }
    fn begin_probe(&mut self) -> Result<(), StepError> {
        self.note("begin without C");
        self.begin_trial()
    }
    fn begin_step(&mut self, step: u32) {
        self.note(format!("step {step}"));
    }
    fn begin_phase(&mut self, phase: Phase) {
        assert_eq!(self.phase, None, "a phase within a phase");
        self.phase = Some(phase);
    }
    fn end_phase(&mut self) -> Result<(), StepError> {
        let phase = self.phase.take().expect("a phase is open");
        self.note(format!("{phase:?}").to_lowercase());
        self.phases_ended.push(phase);
        let count = self.phases_ended.iter().filter(|ended| **ended == phase).count();
        if self.script.out_of_memory == Some((phase, count)) {
            return Err(StepError::OutOfMemory(OutOfMemory {
                requested_bytes: 5,
                allocated_bytes: 7,
                reserved_bytes: 8,
                limit_bytes: 10,
            }));
        }
        Ok(())
    }
    fn sample(&mut self, step: u32, largest: LargestRequest) -> MemorySample {
        self.note(format!("sample {step} {largest:?}"));
        MemorySample { step, peak_allocated_bytes: u64::from(step) + 1, ..MemorySample::default() }
    }
    fn state(&mut self) -> PoolState {
        PoolState { allocated_bytes: self.script.live_bytes, ..PoolState::default() }
    }
    fn trim(&mut self) {
        self.note("trim");
    }
    fn end_trial(&mut self) -> u64 {
        assert_eq!(self.phase, None, "the trial ended within a phase");
        self.note("end");
        self.script.left_bytes
    }
    fn set_event_sink(&mut self, sink: Option<crate::device::EventSink>) {
        self.note(if sink.is_some() { "sink" } else { "no sink" });
    }
    fn stager(&mut self) -> Result<Option<Box<dyn Stager>>, StepError> {
        let stager = || Box::new(FakeStager::new(Rc::clone(&self.calls))) as Box<dyn Stager>;
        Ok(self.script.has_stager.then(stager))
    }
    fn classify(&self, error: &candle_core::Error) -> StepError {
        StepError::Workload(error.to_string())
    }
}

struct FakeTrainer {
    script: Script,
    steps: u32,
    updates: u32,
    calls: Calls,
    unreached: Vec<String>,
}

impl Drop for FakeTrainer {
    fn drop(&mut self) {
        self.calls.borrow_mut().push("dropped".to_owned());
    }
}

fn phase(session: &mut dyn DeviceSession, phase: Phase) -> Result<Duration, StepError> {
    session.begin_phase(phase);
    session.end_phase().map(|()| Duration::from_millis(1))
}

impl Training for FakeTrainer {
    fn step(&mut self, batch: &Batch, session: &mut dyn DeviceSession) -> Result<MicroBatch, StepError> {
        let step = Some(self.steps);
        self.steps += 1;
        assert_eq!(batch.samples, 4);
        let forward = phase(session, Phase::Forward)?;
        if self.script.panic == step {
            session.begin_phase(Phase::Backward);
            panic!("index {} out of range", 9);
        }
        if self.script.error == step {
            // As a model that fails half-way: the phase stays open.
            session.begin_phase(Phase::Backward);
            return Err(StepError::Workload("shape mismatch in matmul".to_owned()));
        }
        if self.script.device_error == step {
            return Err(StepError::Device("an illegal memory access".to_owned()));
        }
        let backward = phase(session, Phase::Backward)?;
        self.unreached.clone_from(&self.script.unreached);
        let loss = if self.script.no_number == step { f64::NAN } else { 1.0 / f64::from(self.steps) };
        Ok(MicroBatch { loss, forward, backward })
    }
    fn last_step(&mut self, batch: &Batch, session: &mut dyn DeviceSession) -> Result<MicroBatch, StepError> {
        self.step(batch, session)
    }
    fn update(&mut self, session: &mut dyn DeviceSession) -> Result<Duration, StepError> {
        self.updates += 1;
        std::thread::sleep(self.script.uneven * (self.updates % 2));
        phase(session, Phase::Optimizer)
    }
    fn evaluate(&self, _batch: &Batch, session: &mut dyn DeviceSession) -> Result<f64, StepError> {
        phase(session, Phase::Evaluation).map(|_| 0.25)
    }
    fn has_diverged(&self) -> bool {
        self.script.lost_update == Some(self.updates)
    }
    fn has_batch_norm(&self) -> bool {
        self.script.batch_norm
    }
    fn unreached(&self) -> &[String] {
        &self.unreached
    }
    fn rehearse_checkpoint(&self, session: &mut dyn DeviceSession) -> Result<u64, StepError> {
        phase(session, Phase::Checkpoint).map(|_| 64)
    }
    fn checkpoint(&self, path: &Path, session: &mut dyn DeviceSession) -> Result<u64, StepError> {
        fs::write(path, [0; 64]).map_err(|error| StepError::Workload(error.to_string()))?;
        if self.script.checkpoint_fails {
            return Err(StepError::Workload("No space left on device".to_owned()));
        }
        phase(session, Phase::Checkpoint).map(|_| 64)
    }
}

struct FakeBatches {
    samples: usize,
    skipped: u64,
    slow_source: Duration,
}

impl Batches for FakeBatches {
    fn next_batch(&mut self) -> Result<HostBatch, DataError> {
        std::thread::sleep(self.slow_source);
        Ok(HostBatch {
            input: HostValues::U32(vec![1; self.samples]),
            input_shape: vec![self.samples, 1],
            target: HostValues::U32(vec![2; self.samples]),
            target_shape: vec![self.samples, 1],
            samples: self.samples,
            ballast: Vec::new(),
        })
    }

    fn skipped(&self) -> Skipped {
        Skipped { samples: self.skipped, first: (self.skipped > 0).then(|| "`7.jpg` is empty".to_owned()) }
    }
}

struct FakeSupplies {
    script: Script,
    calls: Calls,
}

impl Supplies for FakeSupplies {
    fn build(&self, _point: &Point, _session: &dyn DeviceSession) -> Result<Box<dyn Training>, StepError> {
        let (script, calls) = (self.script.clone(), Rc::clone(&self.calls));
        Ok(Box::new(FakeTrainer { script, steps: 0, updates: 0, calls, unreached: Vec::new() }))
    }
    fn training_batches(&self, point: &Point) -> Box<dyn Batches> {
        Box::new(FakeBatches {
            samples: point.batch_size,
            skipped: self.script.skipped,
            slow_source: self.script.slow_source,
        })
    }
    fn training_samples(&self) -> usize {
        100
    }
    fn has_checkpoints(&self) -> bool {
        self.script.has_checkpoints
    }
    fn evaluation_batches(&self, point: &Point) -> Box<dyn Batches> {
        Box::new(FakeBatches {
            samples: point.batch_size,
            skipped: self.script.skipped,
            slow_source: self.script.slow_source,
        })
    }
}

/// What a trial said and did.
struct Told {
    messages: Vec<FromWorker>,
    calls: Vec<String>,
    outcome: Outcome,
    measurement: Option<Measurement>,
    clean: bool,
    scratch: tempfile::TempDir,
}

impl Told {
    fn steps(&self) -> usize {
        self.messages.iter().filter(|message| matches!(message, FromWorker::Step { .. })).count()
    }

    fn samples(&self) -> Vec<u32> {
        let of = |message: &FromWorker| match message {
            FromWorker::Sample { sample, .. } => Some(sample.step),
            _ => None,
        };
        self.messages.iter().filter_map(of).collect()
    }

    fn warnings(&self) -> Vec<&str> {
        fn text_of(message: &FromWorker) -> Option<&str> {
            match message {
                FromWorker::Warning { text, .. } => Some(text),
                _ => None,
            }
        }
        self.messages.iter().filter_map(text_of).collect()
    }

    fn count(&self, call: &str) -> usize {
        self.calls.iter().filter(|made| *made == call).count()
    }
}

fn spec(purpose: Purpose, steps: u32) -> TrialSpec {
    TrialSpec {
        id: TrialId(3),
        purpose,
        point: Point { accumulation_steps: 4, ..Point::plain(4) },
        warmup_steps: 1,
        steps,
        sample_every: 3,
        sample_size: None,
    }
}

fn run(spec: &TrialSpec, script: &Script) -> Told {
    let (_keep_open, input) = std::io::pipe().map(|(reader, writer)| (writer, BufReader::new(reader))).unwrap();
    run_with(spec, script, &Inbox::listen(input, |_| {}), |_| {})
}

fn run_with(spec: &TrialSpec, script: &Script, inbox: &Inbox, mut heard: impl FnMut(&FromWorker)) -> Told {
    let calls = Calls::default();
    let scratch = tempfile::tempdir().unwrap();
    let mut session = FakeSession {
        script: script.clone(),
        facts: facts(),
        calls: Rc::clone(&calls),
        phase: None,
        phases_ended: Vec::new(),
    };
    let supplies = FakeSupplies { script: script.clone(), calls: Rc::clone(&calls) };
    let mut messages = Vec::new();
    let stage = trial::Stage { session: &mut session, supplies: &supplies, inbox, scratch: scratch.path() };
    let ended = trial::run(spec, stage, &mut |message| {
        heard(message);
        messages.push(message.clone());
        Ok(())
    });
    let FromWorker::Ended { trial: TrialId(3), outcome, measurement, clean } = ended.unwrap() else {
        panic!("not the end of the trial")
    };
    let calls = calls.borrow().clone();
    Told { messages, calls, outcome, measurement, clean, scratch }
}

fn facts() -> DeviceFacts {
    DeviceFacts {
        device: "cpu".to_owned(),
        name: "a stand-in".to_owned(),
        uuid: None,
        driver: None,
        total_bytes: 10,
        free_bytes: 10,
        external_bytes: 0,
        limit_bytes: 10,
        allocator: "native".to_owned(),
        alloc_conf: None,
        cpus: 1,
        hostname: "here".to_owned(),
    }
}

#[test]
fn a_trial_steps_updates_and_samples_in_order() {
    let told = run(&spec(Purpose::Ladder, 4), &Script::default());
    assert_eq!(told.outcome, Outcome::Completed);
    assert_eq!(told.samples(), [3, 5], "every third step and the last one");
    let expected = "build, step 0, load, forward, backward, step 1, load, forward, backward, optimizer, \
                    step 2, load, forward, backward, sample 3 Estimate, step 3, load, forward, backward, optimizer, \
                    step 4, load, forward, backward, sample 5 Estimate, dropped, end, trim";
    assert_eq!(told.calls.join(", "), expected, "tensors are dropped before the trial ends on the device");
    let measurement = told.measurement.unwrap();
    assert_eq!((measurement.steps, measurement.peak_allocated_bytes), (4, 6));
    assert_eq!((measurement.first_loss, measurement.last_loss), (Some(1.0), Some(0.2)));
    assert!(told.clean && measurement.samples_per_second > 0.0);
}

/// A probe of five updates of two steps.
fn probe() -> TrialSpec {
    TrialSpec { warmup_steps: 2, steps: 8, ..spec(Purpose::Probe, 8) }
}

#[test]
fn a_probe_is_evaluated_after_its_fourth_update_and_leaves_a_whole_recording() {
    let told = run(&probe(), &Script::default());
    assert_eq!(told.outcome, Outcome::Completed);
    assert_eq!((told.steps(), told.count("optimizer")), (10, 5));
    let calls = told.calls.join(", ");
    assert!(calls.starts_with("sink, begin without C, build"), "{calls}");
    assert!(calls.contains("step 7, load, forward, backward, optimizer, load, evaluation"), "{calls}");
    assert!(calls.contains("evaluation, step 8"), "{calls}");
    let written = std::fs::read(trace_path(told.scratch.path(), &probe().point)).unwrap();
    assert!(crate::memory::trace::file::read(&written).is_ok());
    assert_eq!(std::fs::read_dir(told.scratch.path()).unwrap().count(), 1, "no draft stays");
}

#[test]
fn a_probe_of_a_run_with_checkpoints_rehearses_one_and_writes_none() {
    let told = run(&probe(), &Script { has_checkpoints: true, ..Script::default() });
    let calls = told.calls.join(", ");
    assert!(calls.contains("evaluation, checkpoint, step 8"), "{calls}");
    assert_eq!(told.measurement.unwrap().training_samples, Some(100));
    assert_eq!(std::fs::read_dir(told.scratch.path()).unwrap().count(), 1, "the recording");
}

#[test]
fn a_probe_that_does_not_fit_leaves_no_recording() {
    let script = Script { out_of_memory: Some((Phase::Forward, 3)), ..Script::default() };
    let told = run(&probe(), &script);
    assert!(matches!(told.outcome, Outcome::OutOfMemory { .. }));
    assert_eq!(std::fs::read_dir(told.scratch.path()).unwrap().count(), 0);
    assert!(told.calls.join(", ").contains("no sink"), "{:?}", told.calls);
}

#[test]
fn every_sample_says_what_the_worker_holds_of_the_host_and_what_is_left() {
    let told = run(&spec(Purpose::Ladder, 4), &Script::default());
    let host = |message: &FromWorker| match message {
        FromWorker::Sample { sample, .. } => Some(sample.host_bytes.zip(sample.host_available_bytes)),
        _ => None,
    };
    let samples: Vec<_> = told.messages.iter().filter_map(host).collect();
    assert_eq!(samples.len(), 2);
    assert!(samples.iter().all(|host| host.is_some_and(|(held, available)| held > 0 && available > 0)));
}

#[test]
fn batches_staged_on_the_device_are_copied_ahead() {
    let mut staged = spec(Purpose::Loader, 2);
    staged.point.device_prefetch = 2;
    let told = run(&staged, &Script::default());
    assert!(told.calls.join(", ").starts_with("build, step 0, load, load, load, forward"), "{:?}", told.calls);
    assert_eq!(told.count("load"), 5, "three steps and two batches ahead");
}

#[test]
fn a_device_that_copies_beside_the_steps_takes_a_batch_before_the_next_one_is_staged_over_it() {
    let script = Script { has_stager: true, ..Script::default() };
    for (pin_memory, workers) in [(false, 0), (true, 0), (true, 1)] {
        for (device_prefetch, first, copies) in
            [(0, "stage 0, take 0, load", 3), (1, "stage 0, load, stage 1, take 0, load", 4)]
        {
            let mut staged = spec(Purpose::Loader, 2);
            staged.point = Point { pin_memory, device_prefetch, loader_workers: workers, ..staged.point };
            let told = run(&staged, &script);
            assert_eq!(told.outcome, Outcome::Completed);
            let calls = told.calls.join(", ");
            assert!(calls.starts_with(&format!("build, step 0, {first}, forward")), "{calls}");
            assert_eq!(told.calls.iter().filter(|call| call.starts_with("stage")).count(), copies);
            assert_eq!((told.count("take 0"), told.count("take 1"), told.count("take 2")), (1, 1, 1));
            assert!(told.clean && told.warnings().is_empty());
        }
    }
}

#[test]
fn a_slow_source_is_in_the_samples_per_second_and_beside_them() {
    let slow = Script { slow_source: Duration::from_millis(5), ..Script::default() };
    let measurement = run(&spec(Purpose::Ladder, 8), &slow).measurement.unwrap();
    let rate = measurement.samples_per_second;
    assert!(rate <= 4.0 / 0.005, "four samples take at least 5 ms: {rate}");
    let (low, high) = measurement.samples_per_second_interval;
    assert!(low <= rate && rate <= high, "{low} {rate} {high}");
    assert!(measurement.phases.data_wait_ms >= 5.0 && measurement.data_wait_fraction > 0.0);
    // Every step is in the fraction, and so is every wait.
    let waited = measurement.data_wait_fraction * f64::from(measurement.steps) * measurement.step_ms.p95;
    assert!(waited >= 5.0, "{measurement:?}");
}

#[test]
fn training_batches_are_weighed() {
    let supplies = FakeSupplies { script: Script::default(), calls: Calls::default() };
    let weighed = Weighed::new(&supplies);
    let ended = |measurement| FromWorker::Ended {
        trial: TrialId(3),
        outcome: Outcome::Completed,
        measurement: Some(measurement),
        clean: true,
    };
    let bytes = |ended| match ended {
        FromWorker::Ended { measurement, .. } => measurement.and_then(|measurement| measurement.batch_bytes),
        other => panic!("{other:?}"),
    };
    assert_eq!(bytes(weighed.enter_into(ended(Measurement::default()))), None, "nothing was loaded");
    let mut point = spec(Purpose::Ladder, 1).point;
    for batch_size in [4, 8, 2] {
        point.batch_size = batch_size;
        weighed.training_batches(&point).next_batch().unwrap();
    }
    weighed.evaluation_batches(&Point { batch_size: 100, ..point }).next_batch().unwrap();
    assert_eq!(bytes(weighed.enter_into(ended(Measurement::default()))), Some(64), "of eight samples and targets");
}

/// What a trial of the loader alone says.
fn load(spec: &TrialSpec, script: &Script, inbox: &Inbox) -> (Outcome, Option<Measurement>, Vec<String>) {
    let calls = Calls::default();
    let supplies = FakeSupplies { script: script.clone(), calls: Rc::clone(&calls) };
    let FromWorker::Ended { outcome, measurement, clean: true, .. } = throughput::run(spec, &supplies, inbox).unwrap()
    else {
        panic!("not the end of a clean trial")
    };
    let calls = calls.borrow().clone();
    (outcome, measurement, calls)
}

#[test]
fn the_loader_alone_is_timed_by_whole_rounds_and_nothing_is_built() {
    let (_keep_open, input) = std::io::pipe().map(|(reader, writer)| (writer, BufReader::new(reader))).unwrap();
    let inbox = Inbox::listen(input, |_| {});
    let slow = Script { slow_source: Duration::from_millis(2), ..Script::default() };
    let mut alone = spec(Purpose::Throughput, 5);
    alone.point.loader_workers = 4;
    let (outcome, measurement, calls) = load(&alone, &slow, &inbox);
    let measurement = measurement.unwrap();
    assert_eq!((outcome, measurement.steps), (Outcome::Completed, 8), "two rounds of four");
    let rate = measurement.batches_per_second.unwrap();
    assert!(rate > 0.0 && rate <= 500.0, "{rate}");
    assert!((measurement.samples_per_second - 4.0 * rate).abs() < 1e-6);
    assert!(calls.is_empty(), "{calls:?}");
}

#[test]
fn a_stop_ends_the_loader_alone_between_two_batches() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let inbox = Inbox::listen(BufReader::new(reader), |_| {});
    writer.write_all(b"{\"message\":\"stop\"}\n").unwrap();
    while !inbox.stop_requested() {
        std::thread::yield_now();
    }
    let (outcome, measurement, _) = load(&spec(Purpose::Throughput, 1_000_000), &Script::default(), &inbox);
    assert_eq!((outcome, measurement), (Outcome::Cancelled, None));
}

/// A trial of two micro-batches an update whose times never settle, with room for six updates and more.
fn restless() -> (TrialSpec, Script) {
    (spec(Purpose::Ladder, 6), Script { uneven: Duration::from_millis(4), ..Script::default() })
}

fn extensions(told: &Told) -> Vec<u32> {
    let of = |message: &FromWorker| match message {
        FromWorker::Extended { total, .. } => Some(*total),
        _ => None,
    };
    told.messages.iter().filter_map(of).collect()
}

#[test]
fn a_trial_whose_times_do_not_settle_goes_on_by_whole_updates_and_ends_at_its_bound() {
    let (spec, script) = restless();
    let told = run(&spec, &script);
    assert_eq!(told.outcome, Outcome::Completed);
    // One of warm-up and six, then an update at a time up to 1 + 18 steps, of which the last would begin an update.
    assert_eq!(extensions(&told), [8, 10, 12, 14, 16, 18]);
    assert_eq!((told.steps(), told.count("optimizer")), (18, 9));
    assert_eq!(told.samples(), [3, 6, 9, 12, 15, 18], "the cadence is kept where it goes on");
    let measurement = told.measurement.unwrap();
    assert_eq!((measurement.steps, measurement.trust), (17, Some(Trust::Wide)));
    assert_eq!(measurement.peak_allocated_bytes, 19, "figures are over all steps");
}

#[test]
fn a_fault_in_an_extension_is_the_trial_s_outcome() {
    let (spec, script) = restless();
    let told = run(&spec, &Script { out_of_memory: Some((Phase::Forward, 10)), ..script });
    assert!(matches!(told.outcome, Outcome::OutOfMemory { step: Some(9), .. }), "{:?}", told.outcome);
}

#[test]
fn a_stop_in_an_extension_ends_it_with_the_figures_that_are_there() {
    let (spec, script) = restless();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let inbox = Inbox::listen(BufReader::new(reader), |_| {});
    let told = run_with(&spec, &script, &inbox, |message| {
        if matches!(message, FromWorker::Step { step: 9, .. }) {
            writer.write_all(b"{\"message\":\"stop\"}\n").unwrap();
            while !inbox.stop_requested() {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!((told.outcome.clone(), told.steps()), (Outcome::Completed, 9));
    assert_eq!(told.samples(), [3, 6, 9]);
    assert_eq!(told.measurement.unwrap().steps, 8);
}

#[test]
fn probes_and_soaks_are_as_long_as_they_are_asked_to_be() {
    let (_, script) = restless();
    for spec in [probe(), spec(Purpose::Soak, 11)] {
        let told = run(&spec, &script);
        assert_eq!((told.steps() as u32, extensions(&told)), (spec.total_steps(), vec![]), "{}", spec.purpose);
    }
}

#[test]
fn a_soak_runs_the_planned_accumulation_an_evaluation_and_a_checkpoint() {
    let told = run(&spec(Purpose::Soak, 2), &Script::default());
    assert_eq!(told.outcome, Outcome::Completed);
    assert_eq!((told.steps(), told.count("optimizer")), (8, 2), "two updates of four steps");
    let calls = told.calls.join(", ");
    let middle = "step 3, load, forward, backward, optimizer, load, evaluation, load, evaluation, load, evaluation, \
                  load, evaluation, checkpoint, step 4";
    assert!(calls.contains(middle), "{calls}");
    let measurement = told.measurement.unwrap();
    assert_eq!((measurement.evaluation_loss, measurement.checkpoint_bytes), (Some(0.25), Some(64)));
    assert_eq!(fs::read_dir(told.scratch.path()).unwrap().count(), 0, "the checkpoint is removed");
}

#[test]
fn a_disk_too_full_for_a_checkpoint_is_a_warning() {
    let told = run(&spec(Purpose::Soak, 2), &Script { live_bytes: u64::MAX / 4, ..Script::default() });
    assert_eq!(told.outcome, Outcome::Completed);
    assert!(told.warnings()[0].contains("less than twice its size"), "{:?}", told.warnings());
    assert_eq!(told.measurement.unwrap().checkpoint_bytes, None);

    let told = run(&spec(Purpose::Soak, 2), &Script { checkpoint_fails: true, ..Script::default() });
    assert_eq!(told.outcome, Outcome::Completed);
    assert!(told.warnings()[0].contains("No space left"), "{:?}", told.warnings());
    assert_eq!(fs::read_dir(told.scratch.path()).unwrap().count(), 0, "half a checkpoint is removed too");
}

#[test]
fn trims_come_when_the_point_says() {
    for (trim, times) in [(Trim::Never, 1), (Trim::AfterUpdate, 8), (Trim::EveryK, 3), (Trim::AfterEval, 2)] {
        let mut soak = spec(Purpose::Soak, 27);
        soak.point.trim = trim;
        // The last one is the end of the trial.
        assert_eq!(run(&soak, &Script::default()).count("trim"), times, "{trim:?}");
    }
}

#[test]
fn out_of_memory_is_told_with_its_figures_step_and_phase() {
    let at = |phase, count| {
        let script = Script { out_of_memory: Some((phase, count)), ..Script::default() };
        let told = run(&spec(Purpose::Ladder, 4), &script);
        assert!(!told.clean, "the device is not trusted after it");
        let figures = (Some(5), Some(7), Some(8), Some(10));
        match told.outcome {
            Outcome::OutOfMemory { requested_bytes, allocated_bytes, reserved_bytes, limit_bytes, step, phase } => {
                assert_eq!((requested_bytes, allocated_bytes, reserved_bytes, limit_bytes), figures);
                (step, phase)
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(at(Phase::Build, 1), (None, Some(Phase::Build)));
    assert_eq!(at(Phase::Load, 1), (Some(0), Some(Phase::Load)));
    assert_eq!(at(Phase::Backward, 3), (Some(2), Some(Phase::Backward)));
    assert_eq!(at(Phase::Optimizer, 2), (Some(3), Some(Phase::Optimizer)));
}

#[test]
fn failures_of_the_workload_end_in_their_own_outcomes() {
    let outcome = |script: Script| {
        let told = run(&spec(Purpose::Ladder, 4), &script);
        assert_eq!(told.measurement, None);
        (told.outcome, told.clean)
    };
    let (failed, clean) = outcome(Script { error: Some(2), ..Script::default() });
    assert_eq!((failed, clean), (Outcome::Failed { message: "shape mismatch in matmul".to_owned() }, false));
    let (failed, clean) = outcome(Script { panic: Some(1), ..Script::default() });
    assert_eq!((failed, clean), (Outcome::Failed { message: "it panicked: index 9 out of range".to_owned() }, false));
    let (failed, clean) = outcome(Script { device_error: Some(1), ..Script::default() });
    assert_eq!((failed, clean), (Outcome::DeviceError { message: "an illegal memory access".to_owned() }, false));
    let (diverged, clean) = outcome(Script { no_number: Some(3), ..Script::default() });
    assert_eq!((diverged, clean), (Outcome::Diverged { step: 3 }, true));
    // Two steps an update.
    let (diverged, clean) = outcome(Script { lost_update: Some(2), ..Script::default() });
    assert_eq!((diverged, clean), (Outcome::Diverged { step: 3 }, true));
}

#[test]
fn a_model_with_running_statistics_is_told_of() {
    let told = |batch_norm| {
        let told = run(&spec(Purpose::Ladder, 4), &Script { batch_norm, ..Script::default() });
        told.measurement.unwrap().has_batch_norm
    };
    assert!(told(true) && !told(false));
}

#[test]
fn a_worker_with_memory_left_is_not_clean() {
    let left = |left_bytes| run(&spec(Purpose::Ladder, 1), &Script { left_bytes, ..Script::default() }).clean;
    assert!(left(8 << 20));
    assert!(!left((8 << 20) + 1));
}

#[test]
fn parameters_without_a_gradient_are_named_once() {
    let names = |count: usize| (0..count).map(|i| format!("block.{i}.norm")).collect::<Vec<_>>();
    let warnings = |count| {
        let told = run(&spec(Purpose::Ladder, 4), &Script { unreached: names(count), ..Script::default() });
        told.warnings().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(warnings(0).is_empty());
    let [one] = &warnings(1)[..] else { panic!("not one warning") };
    assert!(one.starts_with("1 parameter got no gradient in the first step: `block.0.norm`. "), "{one}");
    let long = Script { unreached: vec!["é".repeat(1 << 20)], ..Script::default() };
    assert!(run(&spec(Purpose::Ladder, 4), &long).warnings()[0].chars().count() < 5_000, "names are anybody's");
    let [many] = &warnings(11)[..] else { panic!("not one warning") };
    assert!(many.contains("`block.7.norm` and 3 more. "), "{many}");
    assert!(many.contains("candle_nn::LayerNorm"));
}

#[test]
fn a_stop_ends_the_trial_after_the_step() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let inbox = Inbox::listen(BufReader::new(reader), |_| {});
    let told = run_with(&spec(Purpose::Ladder, 1_000_000), &Script::default(), &inbox, |message| {
        if matches!(message, FromWorker::Step { step: 2, .. }) {
            writer.write_all(b"{\"message\":\"stop\"}\n").unwrap();
            while !inbox.stop_requested() {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!((told.outcome.clone(), told.steps(), told.clean), (Outcome::Cancelled, 2, true));
}

#[test]
fn samples_that_were_skipped_are_a_warning() {
    let told = run(&spec(Purpose::Ladder, 2), &Script { skipped: 2, ..Script::default() });
    assert_eq!(told.outcome, Outcome::Completed);
    assert_eq!(told.warnings(), ["2 bad samples skipped, the first of them: `7.jpg` is empty"]);
    assert!(run(&spec(Purpose::Ladder, 2), &Script::default()).warnings().is_empty());
}

/// What the worker's input ends in, and what it asked before.
fn listen(input: &str) -> (i32, Vec<String>, bool) {
    let (sender, left) = mpsc::channel();
    let inbox = Inbox::listen(std::io::Cursor::new(input.to_owned()), move |status| sender.send(status).unwrap());
    let status = left.recv().unwrap();
    let requests = std::iter::from_fn(|| inbox.next()).map(|request| format!("{request:.10?}")).collect();
    (status, requests, inbox.stop_requested())
}

#[test]
fn the_input_says_how_to_leave() {
    assert_eq!(listen(""), (ORPHANED, vec![], false));
    assert_eq!(listen("{\"message\":\"exit\"}\n{\"message\":\"stop\"}\n"), (DONE, vec![], false));
    assert_eq!(listen("{\"message\":\"stop\"}\n"), (ORPHANED, vec![], true));
    assert_eq!(listen("{\"message\":\"exit\"}"), (ORPHANED, vec![], false), "half a line is no message");
    let run = serde_json::to_string(&ToWorker::Run { trial: spec(Purpose::Ladder, 1) }).unwrap();
    let (status, requests, stop) = listen(&format!("{{\"message\":\"stop\"}}\n{run}\n"));
    assert_eq!((status, requests.len(), stop), (ORPHANED, 1, false), "a late stop is not for the next trial");
}

/// What a served worker says to these lines.
fn served(input: &str) -> (Result<(), ServeError>, Vec<FromWorker>) {
    let mut output = Vec::new();
    let inbox = Inbox::listen(std::io::Cursor::new(input.to_owned()), |_| {});
    let result = serve(&Registry::default(), &inbox, &mut output);
    let lines = output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    (result, lines.map(|line| serde_json::from_slice(line).unwrap()).collect())
}

#[test]
fn a_worker_says_hello_and_refuses_what_it_cannot_set_up() {
    let workload = WorkloadSpec {
        model: ModelSpec { family: "poem".to_owned(), ..ModelSpec::default() },
        train: TrainSpec::default(),
        data: DataSpec::default(),
        device: DeviceChoice::Cpu,
        limit: LimitSpec::Auto,
        allocator: AllocatorKind::Auto,
        seed: 0,
    };
    let open = ToWorker::Open {
        workload: Box::new(workload),
        scratch: std::env::temp_dir(),
        replica: None,
        lease: crate::trial::protocol::LEASE,
    };
    let (result, said) = served(&format!("{}\n", serde_json::to_string(&open).unwrap()));
    result.unwrap();
    assert!(matches!(said[0], FromWorker::Hello { protocol: PROTOCOL, .. }));
    let FromWorker::Refused { cause: Refusal::Workload, reason } = &said[1] else { panic!("{said:?}") };
    assert!(reason.contains("unknown model family `poem`"), "{reason}");
}

#[test]
fn a_driver_that_breaks_the_protocol_is_left() {
    for input in ["nonsense\n", "{\"message\":\"open\"}\n", "{\"message\":\"sing\"}\n"] {
        assert!(matches!(served(input).0, Err(ServeError::Input(_))), "{input}");
    }
    let (result, said) = served("");
    result.unwrap();
    assert_eq!(said.len(), 1, "only the hello");
}

#[test]
fn causes_are_told_once() {
    let error = DataError::Read {
        path: "missing.txt".into(),
        source: std::io::Error::new(std::io::ErrorKind::NotFound, "no such file"),
    };
    assert_eq!(with_causes(&error), "cannot read `missing.txt`: no such file");
}

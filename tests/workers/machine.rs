//! A machine that does the same whenever it is asked: what a trial measures is computed from its point, and takes a
//! moment. A study on it ends the same however often its driver was killed, unless the study itself loses something.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use batchtune::device::DeviceFacts;
use batchtune::memory::policy::native::Native;
use batchtune::memory::trace::{TraceHeader, TraceWriter};
use batchtune::memory::{Event, Mark, MemorySample, Ordinal, Phase, Player, Rates, Stream};
use batchtune::trial::outcome::StepTimes;
use batchtune::trial::spec::{ProbeSchedule, trace_path};
use batchtune::trial::{Executor, ExecutorError, Measurement, Observation, Outcome, TrialRecord, TrialSpec};

const MIB: u64 = 1 << 20;
/// C.
const LIMIT_BYTES: u64 = 300 * MIB;
const WEIGHT_BYTES: u64 = 20 * MIB;
/// Activations of a sample.
const SAMPLE_BYTES: u64 = 4 * MIB;
/// What a step takes.
const STEP: Duration = Duration::from_micros(300);
/// The share of its time that a step without a loader worker waits.
const DATA_WAIT: f64 = 0.4;

/// The machine, whose probes leave their recordings in a study.
pub(crate) struct Machine {
    /// The study.
    pub(crate) study: PathBuf,
}

impl Executor for Machine {
    fn start(&mut self) -> Result<DeviceFacts, ExecutorError> {
        Ok(DeviceFacts {
            device: "cpu".to_owned(),
            name: "a machine on paper".to_owned(),
            uuid: None,
            driver: None,
            total_bytes: 2 * LIMIT_BYTES,
            free_bytes: 2 * LIMIT_BYTES,
            external_bytes: 0,
            limit_bytes: LIMIT_BYTES,
            allocator: "native".to_owned(),
            alloc_conf: None,
            cpus: 2,
            hostname: "here".to_owned(),
        })
    }

    fn run(&mut self, spec: &TrialSpec, observe: &mut dyn FnMut(Observation)) -> Result<TrialRecord, ExecutorError> {
        if spec.is_probe() {
            record_trace(&trace_path(&self.study, &spec.point), spec);
        }
        for step in 1..=spec.total_steps() {
            std::thread::sleep(STEP);
            observe(Observation::Step { step, loss: 1.0, times: StepTimes::default() });
        }
        Ok(measured(spec).canonical())
    }
}

/// Writes a probe's recording in two pieces, so that a driver can be killed between them.
fn record_trace(path: &Path, spec: &TrialSpec) {
    let events = events(spec);
    let mut writer = TraceWriter::new(File::create(path).unwrap(), &TraceHeader::default()).unwrap();
    let (first, second) = events.split_at(events.len() / 2);
    writer.write(first).unwrap();
    std::thread::sleep(STEP);
    writer.write(second).unwrap();
    writer.finish().unwrap();
}

fn measured(spec: &TrialSpec) -> TrialRecord {
    let limit_bytes = if spec.is_probe() { u64::MAX } else { LIMIT_BYTES };
    let mut player = Player::new(Box::new(Native::new(limit_bytes)));
    player.play_all(&events(spec));
    let unfinished = TrialRecord {
        spec: spec.clone(),
        outcome: Outcome::Completed,
        rank: None,
        measurement: None,
        samples: Vec::new(),
        warnings: Vec::new(),
        outlook: None,
        seconds: 1.0,
        worker: None,
        ranks: Vec::new(),
    };
    if let Some(overrun) = player.take_overrun() {
        let outcome = Outcome::OutOfMemory {
            requested_bytes: Some(overrun.error.requested_bytes),
            allocated_bytes: None,
            reserved_bytes: None,
            limit_bytes: Some(limit_bytes),
            step: Some(0),
            phase: None,
        };
        return TrialRecord { outcome, ..unfinished };
    }
    let state = player.state();
    let sample = |step| MemorySample {
        step,
        allocated_bytes: state.allocated_bytes,
        reserved_bytes: state.reserved_bytes,
        limit_bytes,
        peak_allocated_bytes: state.peak_allocated_bytes,
        peak_reserved_bytes: state.peak_reserved_bytes,
        largest_request_bytes: player.largest_request_bytes(),
        largest_satisfiable_bytes: state.largest_satisfiable_bytes,
        rates: Rates::of(&state),
        ..MemorySample::default()
    };
    let batch = spec.point.batch_size as f64;
    let wait = if spec.point.loader_workers == 0 { DATA_WAIT } else { 0.0 };
    let samples_per_second = batch / (0.05 + 0.01 * batch) * (1.0 - wait);
    let measurement = Measurement {
        steps: spec.steps,
        samples_per_second,
        samples_per_second_interval: (samples_per_second, samples_per_second),
        data_wait_fraction: wait,
        peak_allocated_bytes: state.peak_allocated_bytes,
        peak_reserved_bytes: state.peak_reserved_bytes,
        largest_request_bytes: player.largest_request_bytes(),
        batches_per_second: spec.is_throughput().then_some(spec.point.loader_workers as f64 * 100.0),
        ..Measurement::default()
    };
    let steps = (1..=spec.total_steps()).filter(|step| step.is_multiple_of(spec.sample_every));
    TrialRecord { measurement: Some(measurement), samples: steps.map(sample).collect(), ..unfinished }
}

/// What a trial allocates and frees: weights, activations, a gradient, and the optimizer's state in the first update.
fn events(spec: &TrialSpec) -> Vec<Event> {
    let batch_size = spec.point.batch_size as u64;
    let mut tape = Tape::default();
    tape.mark(Mark::Phase(Phase::Build));
    tape.alloc(WEIGHT_BYTES);
    let mut step = 0;
    for update in 1..=ProbeSchedule::PLAIN.updates {
        let mut sum = None;
        for _ in 0..spec.point.trial_accumulation() {
            tape.mark(Mark::Step(step));
            step += 1;
            tape.mark(Mark::Phase(Phase::Forward));
            let activations = tape.alloc(SAMPLE_BYTES * batch_size);
            tape.mark(Mark::Phase(Phase::Backward));
            let gradient = tape.alloc(WEIGHT_BYTES);
            tape.free(activations);
            if sum.is_some() { tape.free(gradient) } else { sum = Some(gradient) }
        }
        tape.mark(Mark::Phase(Phase::Optimizer));
        if update == 1 {
            tape.alloc(2 * WEIGHT_BYTES);
        }
        if let Some(gradient) = sum {
            tape.free(gradient);
        }
        if update == ProbeSchedule::PLAIN.evaluation_after {
            tape.mark(Mark::Phase(Phase::Evaluation));
            let output = tape.alloc(SAMPLE_BYTES * batch_size);
            tape.free(output);
        }
    }
    tape.events
}

#[derive(Default)]
struct Tape {
    events: Vec<Event>,
    allocations: u64,
}

impl Tape {
    fn alloc(&mut self, bytes: u64) -> Ordinal {
        let ordinal = Ordinal(self.allocations);
        self.allocations += 1;
        self.events.push(Event::Alloc { ordinal, bytes, stream: Stream(0) });
        ordinal
    }

    fn free(&mut self, ordinal: Ordinal) {
        self.events.push(Event::Free { ordinal });
    }

    fn mark(&mut self, mark: Mark) {
        self.events.push(Event::Mark(mark));
    }
}

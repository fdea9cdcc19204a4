//! Test double: a machine whose memory is simulated, so that what the probes foretell is what happens.
//!
//! Every trial plays the events of a small network to a real allocator policy under C. Probes write them, so that
//! forecasts are made of them as of any recording.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::driver::probes::run_terms;
use super::knowledge::probed::{Probed, Terms};
use super::rules::testing::{completed, sample};
use super::scripted::{Played, facts, loaded};
use super::{Ask, Conclusion, History, JudgedTrial, Skip, Space, Strategy, Verdict, rules};
use crate::config::Plan;
use crate::device::DeviceFacts;
use crate::memory::forecast::testing::Recorder;
use crate::memory::forecast::tuning::Unobserved;
use crate::memory::policy::native::Native;
use crate::memory::policy::{AllocConf, Settings};
use crate::memory::trace::{TraceHeader, TraceWriter};
use crate::memory::{AllocatorKind, Event, Mark, MemorySample, Ordinal, Phase, Player, Rates, Stream};
use crate::train::GradientCheckpointing;
use crate::trial::outcome::StepTimes;
use crate::trial::outlook::RunBreach;
use crate::trial::spec::{ProbeSchedule, recording_path};
use crate::trial::{
    Executor, ExecutorError, Measurement, Observation, Outcome, Outlook, Point, Purpose, TrialId, TrialRecord,
    TrialSpec,
};
use crate::units::MIB;

/// Samples in its data to train on.
const TRAINING_SAMPLES: usize = 5000;

/// What a machine runs.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// Bytes of each layer's weights.
    pub(crate) weights: Vec<u64>,
    /// Bytes of each layer's activations, per sample.
    pub(crate) activations: Vec<u64>,
    /// C.
    pub(crate) limit_bytes: u64,
    /// Seconds of a step that no sample adds to.
    pub(crate) fixed_seconds: f64,
    /// Seconds that a sample adds.
    pub(crate) sample_seconds: f64,
    /// The share of the time that a step without a loader worker waits. Workers share what it takes to make a batch.
    pub(crate) data_wait: f64,
    /// What recomputing activations adds to the time of a step, as a share of it: a forward pass.
    pub(crate) recomputation: f64,
    /// The tokens of a sample as its activations are given. A probe at a shape of its own has that share of them.
    pub(crate) tokens: u64,
    /// The micro-batch from which on whole runs break under the program's own settings of the allocator, whatever their
    /// forecast says.
    pub(crate) breaks_from: Option<usize>,
    /// What other settings of the allocator add to the time of a step, as a share of it.
    pub(crate) settings_cost: f64,
    /// Whether the soak of a point runs out of memory, whatever its trial said.
    pub(crate) soak_breaks: fn(&Point) -> bool,
    /// What the measuring trial of a point shows, whatever its steps are forecast to take.
    pub(crate) trial_shows: fn(&Point) -> Shown,
    /// Whether probes of odd batches allocate once more than others, so that nothing aligns.
    pub(crate) probes_differ: bool,
    /// Where probes leave their recordings.
    pub(crate) study: Option<PathBuf>,
    /// What it was asked to run, in order.
    pub(crate) ran: Vec<TrialSpec>,
}

/// What a trial shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    AsForecast,
    Fragmented,
    OutOfMemory,
}

impl Machine {
    /// Two layers of 20 MiB each, 4 MiB of activations a sample, and 1000 MiB.
    pub(crate) fn new() -> Self {
        Self {
            weights: vec![20 * MIB, 20 * MIB],
            activations: vec![3 * MIB, MIB],
            limit_bytes: 1000 * MIB,
            fixed_seconds: 0.05,
            sample_seconds: 0.01,
            data_wait: 0.0,
            recomputation: 0.3,
            tokens: 1,
            breaks_from: None,
            settings_cost: 0.0,
            soak_breaks: |_| false,
            trial_shows: |_| Shown::AsForecast,
            probes_differ: false,
            study: None,
            ran: Vec::new(),
        }
    }

    /// Weights that the native allocator puts into segments a seventh larger than they are, at every batch size.
    pub(crate) fn wasteful() -> Self {
        Self { weights: vec![10 * MIB + 500_000; 10], activations: vec![MIB / 8; 10], tokens: 64, ..Self::new() }
    }

    /// What a trial of this shape allocates and frees.
    pub(crate) fn events(&self, batch_size: usize, accumulation: usize, updates: u32) -> Vec<Event> {
        self.tape(batch_size, accumulation, updates, Self::step)
    }

    /// What so many updates at a point allocate and free.
    pub(crate) fn events_at(&self, point: &Point, updates: u32) -> Vec<Event> {
        self.accumulated(point, point.trial_accumulation(), updates)
    }

    fn accumulated(&self, point: &Point, accumulation: usize, updates: u32) -> Vec<Event> {
        let step = match point.gradient_checkpointing {
            GradientCheckpointing::Blocks => Self::recomputing_step,
            GradientCheckpointing::None | GradientCheckpointing::Auto => Self::step,
        };
        self.tape(point.batch_size, accumulation, updates, step)
    }

    fn tape(
        &self,
        batch_size: usize,
        accumulation: usize,
        updates: u32,
        one_step: fn(&Self, u64, &mut Vec<Ordinal>, &mut Recorder),
    ) -> Vec<Event> {
        let mut tape = Recorder::default();
        tape.mark(Mark::Phase(Phase::Build));
        let weights: Vec<Ordinal> = self.weights.iter().map(|bytes| tape.alloc(*bytes)).collect();
        let mut step = 0;
        for update in 0..updates {
            let mut gradients: Vec<Ordinal> = Vec::new();
            for _ in 0..accumulation {
                tape.mark(Mark::Step(step));
                step += 1;
                one_step(self, batch_size as u64, &mut gradients, &mut tape);
            }
            tape.mark(Mark::Phase(Phase::Optimizer));
            if update == 0 {
                self.weights.iter().for_each(|bytes| _ = tape.alloc(*bytes));
            }
            gradients.drain(..).for_each(|gradient| tape.free(gradient));
            if update + 1 == ProbeSchedule::PLAIN.evaluation_after {
                tape.mark(Mark::Phase(Phase::Evaluation));
                let largest = self.activations.iter().max().copied().unwrap_or(0);
                let output = tape.alloc(largest * batch_size as u64);
                tape.free(output);
            }
        }
        drop(weights);
        tape.events
    }

    fn step(&self, batch_size: u64, gradients: &mut Vec<Ordinal>, tape: &mut Recorder) {
        tape.mark(Mark::Phase(Phase::Load));
        let input = tape.alloc(1000 * batch_size);
        tape.mark(Mark::Phase(Phase::Forward));
        let kept: Vec<Ordinal> = self
            .activations
            .iter()
            .map(|bytes| {
                let scratch = tape.alloc(bytes / 2 * batch_size);
                let kept = tape.alloc(bytes * batch_size);
                tape.free(scratch);
                kept
            })
            .collect();
        tape.mark(Mark::Phase(Phase::Backward));
        let has_sum = !gradients.is_empty();
        for (activation, weight) in kept.into_iter().zip(&self.weights).rev() {
            let gradient = tape.alloc(*weight);
            tape.free(activation);
            if has_sum { tape.free(gradient) } else { gradients.push(gradient) }
        }
        tape.free(input);
    }

    /// A step that keeps an eighth of the activations and makes the others of one layer again when they are needed.
    fn recomputing_step(&self, batch_size: u64, gradients: &mut Vec<Ordinal>, tape: &mut Recorder) {
        tape.mark(Mark::Phase(Phase::Load));
        let input = tape.alloc(1000 * batch_size);
        tape.mark(Mark::Phase(Phase::Forward));
        let kept: Vec<Ordinal> = self
            .activations
            .iter()
            .map(|bytes| {
                let all = tape.alloc(bytes * batch_size);
                let kept = tape.alloc(bytes / 8 * batch_size);
                tape.free(all);
                kept
            })
            .collect();
        tape.mark(Mark::Phase(Phase::Backward));
        let has_sum = !gradients.is_empty();
        for (layer, kept) in kept.into_iter().enumerate().rev() {
            let again = tape.alloc(self.activations[layer] * batch_size);
            let gradient = tape.alloc(self.weights[layer]);
            tape.free(again);
            tape.free(kept);
            if has_sum { tape.free(gradient) } else { gradients.push(gradient) }
        }
        tape.free(input);
    }

    /// Runs a trial.
    pub(crate) fn record(&self, spec: &TrialSpec) -> TrialRecord {
        if spec.is_throughput() {
            let (rate, wait) = (self.rate(&spec.point), self.data_wait.max(f64::EPSILON));
            let made = spec.point.loader_workers.max(1) as f64 * (1.0 - wait) / wait;
            return loaded(spec, made * rate / spec.point.batch_size as f64).canonical();
        }
        let template = completed(spec.point.clone(), Vec::new());
        let shown = if spec.is_measuring() { (self.trial_shows)(&spec.point) } else { Shown::AsForecast };
        let limit = match spec.is_probe() {
            true => u64::MAX,
            false if spec.is_soak() && (self.soak_breaks)(&spec.point) => 0,
            false if shown == Shown::OutOfMemory => 0,
            false => self.limit_bytes,
        };
        let mut player = Player::new(Box::new(Native::with_settings(settings(&spec.point), limit)));
        let events = self.events_of(spec);
        player.play_all(&events);
        let state = player.state();
        if let Some(overrun) = player.take_overrun() {
            let outcome = Outcome::OutOfMemory {
                requested_bytes: Some(overrun.error.requested_bytes),
                allocated_bytes: None,
                reserved_bytes: None,
                limit_bytes: Some(limit),
                step: Some(0),
                phase: None,
            };
            return TrialRecord { spec: spec.clone(), outcome, measurement: None, ..template };
        }
        let found = MemorySample {
            limit_bytes: limit,
            peak_allocated_bytes: state.peak_allocated_bytes,
            peak_reserved_bytes: state.peak_reserved_bytes,
            largest_request_bytes: player.largest_request_bytes(),
            largest_satisfiable_bytes: state.largest_satisfiable_bytes,
            rates: if shown == Shown::Fragmented {
                Rates { peak: Some(0.99), ..Rates::of(&state) }
            } else {
                Rates::of(&state)
            },
            ..sample(spec.total_steps())
        };
        let wait = self.wait(&spec.point);
        let rate = self.rate(&spec.point) * (1.0 - wait);
        let base = completed(spec.point.clone(), vec![found]);
        let measurement = base.measurement.map(|measurement| Measurement {
            samples_per_second: rate,
            data_wait_fraction: wait,
            training_samples: Some(TRAINING_SAMPLES),
            phases: StepTimes { forward_ms: 100.0 * self.recomputation, total_ms: 100.0, ..measurement.phases },
            ..measurement
        });
        TrialRecord { spec: spec.clone(), measurement, ..base }.canonical()
    }

    /// Samples a second of steps that never wait.
    fn rate(&self, point: &Point) -> f64 {
        let batch = point.batch_size as f64;
        let more = match point.gradient_checkpointing {
            GradientCheckpointing::Blocks => 1.0 + self.recomputation,
            GradientCheckpointing::None | GradientCheckpointing::Auto => 1.0,
        };
        let more = more * if point.alloc_conf.is_some() { 1.0 + self.settings_cost } else { 1.0 };
        batch / (more * (self.fixed_seconds + self.sample_seconds * batch))
    }

    /// The share of the time that a step waits.
    fn wait(&self, point: &Point) -> f64 {
        let step_of_worker = self.data_wait / (1.0 - self.data_wait);
        match point.loader_workers {
            0 => self.data_wait,
            workers => (1.0 - workers as f64 / step_of_worker.max(f64::EPSILON)).max(0.0),
        }
    }

    /// What it will have been asked to know with.
    pub(crate) fn terms(&self, plan: &Plan) -> Terms {
        Terms {
            limit_bytes: self.limit_bytes,
            allocator: AllocatorKind::Native,
            alloc_conf: None,
            planned: AllocatorKind::Auto,
            safety: plan.safety,
            run: (self.tokens > 1).then(|| run_terms(plan)).flatten(),
        }
    }

    /// What a trial allocates and frees.
    fn events_of(&self, spec: &TrialSpec) -> Vec<Event> {
        let updates = if spec.is_probe() { ProbeSchedule::of(spec).updates } else { 4 };
        let Some(size) = spec.sample_size else {
            let mut events = self.events_at(&spec.point, updates);
            if self.probes_differ && spec.is_probe() && spec.point.batch_size % 2 == 1 {
                allocate_once_more(&mut events);
            }
            return events;
        };
        let activations = self.activations.iter().map(|bytes| bytes * size.value() as u64 / self.tokens).collect();
        Self { activations, ..self.clone() }.accumulated(&spec.point, spec.accumulation(), updates)
    }

    /// Plays a strategy on this machine to its conclusion.
    pub(crate) fn play(&self, strategy: &mut dyn Strategy, plan: &Plan) -> (Played, History) {
        let mut knowledge = Probed::new(self.terms(plan));
        let mut history = History::default();
        let mut skipped: Vec<Skip> = Vec::new();
        for number in 1..=1000 {
            let ask = strategy.ask(&history, &knowledge);
            skipped.extend(strategy.skipped());
            let (point, purpose, sample_size) = match ask {
                Ask::Run { point, purpose } => (point, purpose, None),
                Ask::ProbeShape { point, sample_size } => (point, Purpose::Probe, Some(sample_size)),
                Ask::Play { point } => {
                    let played = knowledge.play(&point, &history, &mut |_| ControlFlow::Continue(()));
                    let breaks = self.breaks_from.is_some_and(|size| point.batch_size >= size);
                    let breaks = breaks && point.alloc_conf.is_none();
                    let breach = RunBreach { step: 150, reason: "out of memory at step 150".to_owned() };
                    let outlook = played.unwrap().outlook;
                    let breach = breaks.then_some(breach).or_else(|| outlook.breach.clone());
                    history.foretell(point, Outlook { breach, ..outlook });
                    continue;
                }
                Ask::TuneAllocator { point } => {
                    let found = knowledge.tune_run(&point, &history, Space::new(plan).conf_choice(), &Unobserved);
                    history.tell_tuned(point, found.unwrap().0);
                    continue;
                }
                Ask::Finished(conclusion) => {
                    let trials = history.trials().iter().map(|trial| &trial.record.spec);
                    let trials = trials.map(|spec| (spec.purpose, spec.point.clone())).collect();
                    return (Played { trials, conclusion, skipped }, history);
                }
            };
            let (id, warmup_steps, steps, sample_every) = (TrialId(number), 2, 10, 2);
            let spec = TrialSpec { id, purpose, point, warmup_steps, steps, sample_every, sample_size };
            let outlook = history.outlook(&spec.point).filter(|_| spec.is_soak()).cloned();
            let record = TrialRecord { outlook, ..self.record(&spec) };
            let verdict = if spec.is_judged() { rules::judge(&record, &plan.safety) } else { Verdict::default() };
            if spec.is_probe() && record.completed() {
                let events = self.events_of(&spec);
                knowledge.count_samples(TRAINING_SAMPLES);
                match sample_size {
                    Some(size) => knowledge.add_shape_probe(&spec.point, size, events),
                    None => _ = knowledge.add(&spec.point, events),
                }
            }
            history.tell(JudgedTrial { record, verdict });
        }
        panic!("the strategy never finished: {history:#?}");
    }

    fn write_trace(&self, study: &Path, spec: &TrialSpec) {
        let file = File::create(recording_path(study, spec)).unwrap();
        let mut writer = TraceWriter::new(file, &TraceHeader::default()).unwrap();
        let events = self.events_of(spec);
        writer.write(&events).unwrap();
        writer.finish().unwrap();
    }
}

impl Executor for Machine {
    fn start(&mut self) -> Result<DeviceFacts, ExecutorError> {
        Ok(DeviceFacts { limit_bytes: self.limit_bytes, ..facts() })
    }

    fn run(&mut self, spec: &TrialSpec, _observe: &mut dyn FnMut(Observation)) -> Result<TrialRecord, ExecutorError> {
        self.ran.push(spec.clone());
        if let Some(study) = self.study.as_ref().filter(|_| spec.is_probe()) {
            self.write_trace(study, spec);
        }
        Ok(self.record(spec))
    }
}

/// Puts an allocation more into a recording.
pub(crate) fn allocate_once_more(events: &mut Vec<Event>) {
    let ordinal = Ordinal(1 << 40);
    let at = events.iter().position(|event| *event == Event::Mark(Mark::Phase(Phase::Backward))).unwrap();
    events.insert(at, Event::Free { ordinal });
    events.insert(at, Event::Alloc { ordinal, bytes: 512, stream: Stream(0) });
}

/// The settings of the allocator that a point runs with.
fn settings(point: &Point) -> Settings {
    point.alloc_conf.as_ref().map_or_else(Settings::default, |conf| conf.parse::<AllocConf>().unwrap().settings)
}

/// Trials with a model before the soak.
pub(crate) fn before_soak(played: &Played) -> usize {
    played.trials.iter().filter(|(purpose, _)| !matches!(purpose, Purpose::Soak | Purpose::Throughput)).count()
}

/// The recommended micro-batch; 0 without one.
pub(crate) fn chosen(played: &Played) -> usize {
    match &played.conclusion {
        Conclusion::Safe(point) => point.batch_size,
        _ => 0,
    }
}

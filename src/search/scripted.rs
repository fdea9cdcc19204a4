//! Test double: a machine whose trials end as a script says, without running anything.

use super::knowledge::Nothing;
use super::rules::testing::{completed, sample};
use super::staged::DATA_WAIT_ALLOWED;
use super::{Ask, Conclusion, History, JudgedTrial, Knowledge, Skip, Strategy, Verdict, rules};
use crate::config::Plan;
use crate::config::plan::{
    BatchSizePlan, BudgetPlan, DevicesPlan, MemoryPlan, PinMemory, SearchPlan, Subject, TargetPlan, TrialPlan,
};
use crate::config::resolve::USUAL_CONFS;
use crate::data::{DataSpec, LengthDistribution, LengthSpec};
use crate::device::{DeviceChoice, DeviceFacts};
use crate::memory::{AllocatorKind, LimitSpec, MemorySample, Rates, Trim};
use crate::model::ModelSpec;
use crate::train::TrainSpec;
use crate::trial::{
    Executor, ExecutorError, Measurement, Observation, Outcome, Point, Purpose, TrialId, TrialRecord, TrialSpec,
};
use crate::units::{Fraction, MIB};

/// A plan for `target` samples with one loader setting, so that tests state what they change.
pub(crate) fn plan(target: usize) -> Plan {
    Plan {
        version: 1,
        name: "scripted".to_owned(),
        device: DeviceChoice::Cpu,
        devices: DevicesPlan::One,
        subject: Subject::Model(ModelSpec { family: "gpt".to_owned(), ..ModelSpec::default() }),
        train: TrainSpec::default(),
        data: DataSpec::default(),
        pin_memory: PinMemory::Never,
        target: TargetPlan { batch_size: target, replicas: 1, tolerance: Fraction(0.0) },
        search: SearchPlan {
            strategy: super::StrategyKind::Staged,
            batch_size: BatchSizePlan { start: target.div_ceil(2), max: target, step: (target / 8).max(1) },
            accumulation_steps: None,
            loader_workers: vec![0],
            prefetch_depth: vec![2, 1],
            device_prefetch: vec![0],
            alloc_conf: Vec::new(),
        },
        memory: MemoryPlan { limit: LimitSpec::Auto, allocator: AllocatorKind::Auto, trim: Trim::Never },
        safety: rules::testing::safety(),
        trial: TrialPlan { warmup_steps: 2, steps: 10, soak_steps: 50, timeout: std::time::Duration::from_secs(120) },
        budget: BudgetPlan { time: std::time::Duration::from_secs(600), trials: 100 },
        seed: 0,
        launcher: None,
    }
}

/// The same for 16 samples of varying lengths, any settings of the allocator to choose from, and a run of so many steps.
pub(crate) fn varying_plan(horizon_steps: u32) -> Plan {
    let length = LengthSpec::Range { min: 8, max: 64, distribution: LengthDistribution::Uniform };
    let mut plan = plan(16);
    plan.data = DataSpec { sequence_length: Some(length), ..DataSpec::default() };
    plan.search.alloc_conf = USUAL_CONFS.map(str::to_owned).to_vec();
    plan.safety.horizon_steps = horizon_steps;
    // The rate is another matter.
    plan.safety.fragmentation_threshold = Fraction(1.0);
    plan
}

/// How a scripted trial ends.
#[derive(Clone, Debug)]
pub(crate) enum Script {
    /// It completes at this speed, with this highest fragmentation rate and this data wait.
    Completes { samples_per_second: f64, peak_rate: f64, data_wait: f64 },
    /// The loader alone makes so many batches a second.
    Loads { batches_per_second: f64 },
    /// It ends like this.
    Ends(Outcome),
}

impl Script {
    /// A healthy trial at a speed that grows with the batch and levels off.
    pub(crate) fn healthy(point: &Point) -> Self {
        let batch = point.batch_size as f64;
        Self::Completes { samples_per_second: 1000.0 * batch / (batch + 4.0), peak_rate: 0.02, data_wait: 0.0 }
    }

    /// Out of memory without figures.
    pub(crate) fn out_of_memory() -> Self {
        Self::Ends(Outcome::OutOfMemory {
            requested_bytes: None,
            allocated_bytes: None,
            reserved_bytes: None,
            limit_bytes: None,
            step: Some(0),
            phase: None,
        })
    }
}

/// The record of a trial that went as scripted: 100 MiB of parameters and 4 MiB a sample.
pub(crate) fn record(spec: &TrialSpec, script: &Script) -> TrialRecord {
    let template = completed(spec.point.clone(), Vec::new());
    match script {
        Script::Ends(outcome) => {
            TrialRecord { spec: spec.clone(), outcome: outcome.clone(), measurement: None, ..template }
        }
        Script::Loads { batches_per_second } => loaded(spec, *batches_per_second),
        // What a script says of steps tells what their loader makes: as much as it gave where they wait, else plenty.
        Script::Completes { samples_per_second, data_wait, .. } if spec.is_throughput() => {
            let plenty = if *data_wait > DATA_WAIT_ALLOWED { 1.0 } else { 2.0 };
            loaded(spec, plenty * samples_per_second / spec.point.batch_size as f64)
        }
        Script::Completes { samples_per_second, peak_rate, data_wait } => {
            let used = (100 + 4 * spec.point.batch_size as u64) * MIB;
            let at = |step| MemorySample {
                peak_allocated_bytes: used,
                peak_reserved_bytes: used,
                rates: Rates { peak: Some(*peak_rate), ..Rates::default() },
                ..sample(step)
            };
            let samples = (1..=spec.total_steps() / spec.sample_every).map(|index| at(index * spec.sample_every));
            let base = completed(spec.point.clone(), samples.collect());
            let measurement = base.measurement.map(|measurement| Measurement {
                samples_per_second: *samples_per_second,
                data_wait_fraction: *data_wait,
                ..measurement
            });
            TrialRecord { spec: spec.clone(), measurement, ..base }
        }
    }
}

/// A trial of the loader alone.
pub(crate) fn loaded(spec: &TrialSpec, batches_per_second: f64) -> TrialRecord {
    let measurement = Measurement {
        samples_per_second: batches_per_second * spec.point.batch_size as f64,
        batches_per_second: Some(batches_per_second),
        ..Measurement::default()
    };
    TrialRecord { spec: spec.clone(), measurement: Some(measurement), ..completed(spec.point.clone(), Vec::new()) }
}

/// An executor that answers from a script.
pub(crate) struct ScriptedExecutor<F> {
    script: F,
    /// What it was asked to run, in order.
    pub(crate) ran: Vec<TrialSpec>,
}

impl<F: FnMut(&TrialSpec) -> Script> ScriptedExecutor<F> {
    /// Answers by `script`.
    pub(crate) fn new(script: F) -> Self {
        Self { script, ran: Vec::new() }
    }
}

impl<F: FnMut(&TrialSpec) -> Script> Executor for ScriptedExecutor<F> {
    fn start(&mut self) -> Result<DeviceFacts, ExecutorError> {
        Ok(facts())
    }

    fn run(&mut self, spec: &TrialSpec, _observe: &mut dyn FnMut(Observation)) -> Result<TrialRecord, ExecutorError> {
        self.ran.push(spec.clone());
        Ok(record(spec, &(self.script)(spec)))
    }
}

/// A device for tests.
pub(crate) fn facts() -> DeviceFacts {
    DeviceFacts {
        device: "cpu".to_owned(),
        name: "scripted".to_owned(),
        uuid: None,
        driver: None,
        total_bytes: 2000 * MIB,
        free_bytes: 2000 * MIB,
        external_bytes: 0,
        limit_bytes: 1000 * MIB,
        allocator: "native".to_owned(),
        alloc_conf: None,
        cpus: 2,
        hostname: "test".to_owned(),
    }
}

/// What a strategy did, from the first trial to its conclusion.
#[derive(Debug)]
pub(crate) struct Played {
    /// Purpose, micro-batch, accumulation, workers, and prefetch depth of each trial.
    pub(crate) trials: Vec<(Purpose, Point)>,
    /// How it ended.
    pub(crate) conclusion: Conclusion,
    /// What it ruled out unseen.
    pub(crate) skipped: Vec<Skip>,
}

impl Played {
    /// Purpose, micro-batch and accumulation of each trial.
    pub(crate) fn sizes(&self) -> Vec<(Purpose, usize, usize)> {
        self.trials.iter().map(|(purpose, point)| (*purpose, point.batch_size, point.accumulation_steps)).collect()
    }
}

/// Plays a strategy against a script to its conclusion.
pub(crate) fn play(strategy: &mut dyn Strategy, plan: &Plan, script: impl Fn(&TrialSpec) -> Script) -> Played {
    play_knowing(strategy, plan, &Nothing, script)
}

/// The same with something known.
pub(crate) fn play_knowing(
    strategy: &mut dyn Strategy,
    plan: &Plan,
    knowledge: &dyn Knowledge,
    script: impl Fn(&TrialSpec) -> Script,
) -> Played {
    let mut history = History::default();
    let mut trials = Vec::new();
    let mut skipped = Vec::new();
    for number in 1..=1000 {
        let ask = strategy.ask(&history, knowledge);
        skipped.extend(strategy.skipped());
        match ask {
            Ask::Finished(conclusion) => return Played { trials, conclusion, skipped },
            Ask::ProbeShape { .. } | Ask::Play { .. } | Ask::TuneAllocator { .. } => {
                panic!("nothing here can play a run: {ask:?}")
            }
            Ask::Run { point, purpose } => {
                trials.push((purpose, point.clone()));
                let spec = TrialSpec {
                    id: TrialId(number),
                    purpose,
                    point,
                    warmup_steps: 2,
                    steps: 10,
                    sample_every: 2,
                    sample_size: None,
                };
                let record = record(&spec, &script(&spec));
                let verdict = if spec.is_judged() { rules::judge(&record, &plan.safety) } else { Verdict::default() };
                history.tell(JudgedTrial { record, verdict });
            }
        }
    }
    panic!("the strategy never finished: {trials:#?}");
}

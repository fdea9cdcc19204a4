//! The whole run of a configuration with varying lengths: foretold by a search, then trained for real on the virtual
//! device with the loader's own batches. Every step holds what was foretold, and where memory runs out it does so in the
//! step that was named.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on must panic")]

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use batchtune::config::plan::Subject;
use batchtune::config::{self, Plan};
use batchtune::data::loader::{Loader, LoaderConfig};
use batchtune::data::rules::BatchRules;
use batchtune::data::{self, Batch, DataError, Dataset, Sample};
use batchtune::device::{self, DeviceChoice, DeviceSession, LargestRequest, StepError};
use batchtune::memory::forecast::Method;
use batchtune::memory::forecast::long_run::LongRunFigures;
use batchtune::memory::trace::file;
use batchtune::memory::{AllocatorKind, LimitSpec, Phase};
use batchtune::model::{BuildContext, ModelSpec, Registry};
use batchtune::search::History;
use batchtune::search::knowledge::probed::{Probed, RunTerms, Terms};
use batchtune::train::trainer::Trainer;
use batchtune::trial::journal::{self, Contents, Entry};
use batchtune::trial::spec::recording_path;
use batchtune::trial::{Point, TrialRecord};
use batchtune::units::Bytes;

batchtune::declare_allocator!();

const STEPS: u32 = 40;
const SOAK_STEPS: u32 = 6;
const STAGED: usize = 1;

fn study(folder: &Path) -> (Plan, Contents) {
    let path = folder.join("model.yaml");
    let text = format!(
        "version: 1\ndevice: cpu\nseed: 3\nmodel: {{family: gpt, preset: nano, layers: 1, heads: 2, hidden_size: 192, \
         vocabulary_size: 101, sequence_length: 64}}\n\
         data: {{source: synthetic, sequence_length: {{min: 8, max: 64}}, pin_memory: false}}\n\
         target: {{batch_size: 2}}\n\
         search: {{loader_workers: [0], device_prefetch: [{STAGED}], accumulation_steps: [1]}}\n\
         trial: {{warmup_steps: 1, steps: 3, soak_steps: {SOAK_STEPS}}}\nmemory: {{limit: 2GiB}}\n\
         safety: {{horizon_steps: {STEPS}}}\n"
    );
    std::fs::write(&path, text).unwrap();
    let mut tune = assert_cmd::Command::cargo_bin("tune").unwrap();
    tune.current_dir(folder).args(["--config", "model.yaml", "--output", "found.yaml", "--study", "study"]);
    tune.timeout(std::time::Duration::from_secs(240)).assert().success();
    (config::load(&path, &[]).unwrap().plan, journal::read(&folder.join("study/journal.jsonl")).unwrap())
}

/// As many samples as the search trained on; what is in them does not matter to memory.
struct Part {
    whole: Arc<dyn Dataset>,
    samples: usize,
}

impl Dataset for Part {
    fn len(&self) -> usize {
        self.samples
    }
    fn sample(&self, index: usize) -> Result<Sample, DataError> {
        self.whole.sample(index)
    }
    fn input_shape(&self) -> Vec<usize> {
        self.whole.input_shape()
    }
    fn target_shape(&self) -> Vec<usize> {
        self.whole.target_shape()
    }
}

/// A real run.
struct Run<'a> {
    plan: &'a Plan,
    model: &'a ModelSpec,
    point: &'a Point,
    samples: usize,
    limit_bytes: u64,
}

impl Run<'_> {
    /// V at its highest in every step, and the step that memory ran out in.
    fn train(&self) -> (Vec<u64>, Option<u32>) {
        let limit = LimitSpec::Bytes(Bytes(self.limit_bytes));
        let mut session = device::open(DeviceChoice::Cpu, limit, AllocatorKind::Native).unwrap();
        session.begin_trial().unwrap();
        let mut reserved = Vec::new();
        let end = match self.steps(session.as_mut(), &mut reserved) {
            Ok(()) => None,
            Err(StepError::OutOfMemory(_)) => Some(u32::try_from(reserved.len()).unwrap()),
            Err(other) => panic!("{other}"),
        };
        session.end_trial();
        (reserved, end)
    }

    fn steps(&self, session: &mut dyn DeviceSession, reserved: &mut Vec<u64>) -> Result<(), StepError> {
        let device = session.candle().clone();
        let family = Registry::builtin();
        let family = family.get(&self.model.family).unwrap();
        let train = self.plan.train;
        session.begin_phase(Phase::Build);
        let (precision, batch_norm) = (train.precision, train.batch_norm);
        let (spec, seed) = (self.model, self.plan.seed);
        let context = BuildContext { spec, device: &device, precision, batch_norm, seed, replicas: None };
        let workload = family.build(&context).unwrap();
        let mut trainer = Trainer::new(workload, &train).unwrap();
        session.end_phase()?;
        let input = family.input(self.model).unwrap();
        let whole = data::open(&self.plan.data, &input, self.plan.seed).unwrap();
        let part = Arc::new(Part { whole, samples: self.samples });
        let (batch_size, seed) = (self.point.batch_size, self.plan.seed);
        let config = LoaderConfig { batch_size, workers: 0, prefetch_depth: 0, seed };
        let mut loader = Loader::with_rules(part, config, BatchRules::of(&self.plan.data, seed));
        let mut staged: VecDeque<Batch> = VecDeque::new();
        for step in 0..STEPS {
            session.begin_step(step);
            while staged.len() <= STAGED {
                let host = loader.next_batch().unwrap();
                session.begin_phase(Phase::Load);
                staged.push_back(host.to_device(&device).unwrap());
                session.end_phase()?;
            }
            let batch = staged.pop_front().unwrap();
            trainer.step(&batch, session)?;
            trainer.update(session)?;
            drop(batch);
            reserved.push(session.sample(step + 1, LargestRequest::Estimate).peak_reserved_bytes);
        }
        Ok(())
    }
}

/// The run played again under a limit, from the recordings that the search left.
fn foretold(plan: &Plan, records: &[&TrialRecord], folder: &Path, limit_bytes: u64) -> LongRunFigures {
    let run = RunTerms {
        horizon_steps: STEPS,
        data: plan.data.clone(),
        seed: plan.seed,
        evaluate_every: None,
        checkpoint_every: None,
    };
    let (allocator, planned) = (AllocatorKind::Native, AllocatorKind::Auto);
    let terms = Terms { limit_bytes, allocator, alloc_conf: None, planned, safety: plan.safety, run: Some(run) };
    let mut probed = Probed::new(terms);
    for record in records.iter().filter(|record| record.spec.is_length_probe()) {
        let trace = std::fs::read(recording_path(&folder.join("study"), &record.spec)).unwrap();
        let (_, trace) = file::read(&trace).unwrap();
        probed.count_samples(record.measurement.as_ref().unwrap().training_samples.unwrap());
        probed.add_length_probe(&record.spec.point, record.spec.length.unwrap(), trace.events);
    }
    let point = &records.last().unwrap().spec.point;
    let mut found = probed.play(point, &History::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(found.outlook.method, Method::Exact, "{}", found.outlook.reason);
    found.runs.remove(0).figures
}

#[test]
fn a_search_foretells_every_step_of_the_run_that_comes_and_the_step_that_memory_runs_out_in() {
    let folder = tempfile::tempdir().unwrap();
    let (plan, contents) = study(folder.path());
    let records: Vec<&TrialRecord> = contents.finished().map(|(record, _)| record).collect();
    let soak = records.last().unwrap();
    assert!(soak.spec.is_soak());
    let outlook = soak.outlook.as_ref().unwrap();
    assert_eq!((outlook.method, outlook.steps, &outlook.breach), (Method::Exact, STEPS, &None), "{}", outlook.reason);
    let runs = contents.entries.iter().find_map(|entry| match entry {
        Entry::WholeRun { runs, .. } => Some(runs),
        _ => None,
    });
    let figures = &runs.unwrap().first().unwrap().figures;
    let found: serde_json::Value =
        serde_yaml::from_str(&std::fs::read_to_string(folder.path().join("found.yaml")).unwrap()).unwrap();
    assert_eq!(found["status"], "safe");
    let check = found["checks"].as_array().unwrap().iter().find(|check| check["rule"] == "whole_run").unwrap();
    assert_eq!((&check["passed"], &check["warning"]), (&true.into(), &false.into()), "{check}");
    assert!(check["reason"].as_str().unwrap().starts_with("40 steps forecast"), "{check}");

    let Subject::Model(model) = &plan.subject else { panic!("a model is tuned") };
    let samples = soak.measurement.as_ref().unwrap().training_samples.unwrap();
    let run = Run { plan: &plan, model, point: &soak.spec.point, samples, limit_bytes: outlook.limit_bytes };
    let (reserved, end) = run.train();
    assert_eq!(end, None);
    let forecast: Vec<u64> = figures.points.iter().map(|point| point.peak_reserved_bytes).collect();
    assert_eq!(reserved, forecast);

    // Under less than it came to hold, it ends in the step that is foretold.
    let mut ends = Vec::new();
    for percent in [85, 91, 97] {
        let limit_bytes = outlook.peak_reserved_bytes * percent / 100;
        let foretold = foretold(&plan, &records, folder.path(), limit_bytes).out_of_memory.map(|end| end.step);
        let (_, real) = Run { limit_bytes, ..run }.train();
        assert_eq!(real, foretold, "under {} of memory", Bytes(limit_bytes));
        ends.extend(real);
    }
    assert!(ends.iter().any(|step| *step > SOAK_STEPS), "later than any step of the soak: {ends:?}");
}

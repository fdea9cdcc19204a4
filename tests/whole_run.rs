//! The whole run of a configuration whose samples vary in length, or whose images in their side: foretold by a search, then
//! trained for real on the virtual device with the loader's own batches. Every step holds what was foretold, and where memory runs out it does so in the
//! step that was named.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on must panic")]

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use batchtune::config::plan::Subject;
use batchtune::config::{self, Plan};
use batchtune::data::loader::{Loader, LoaderConfig};
use batchtune::data::rules::BatchRules;
use batchtune::data::{self, Batch, DataError, Dataset, Place, Sample};
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
use batchtune::trial::{Outlook, Point, TrialRecord};
use batchtune::units::Bytes;

batchtune::declare_allocator!();

const STEPS: u32 = 40;
const SOAK_STEPS: u32 = 6;
const STAGED: usize = 1;

/// The virtual device is one at a time in a process.
static DEVICE: Mutex<()> = Mutex::new(());

/// A file and what is set beside it.
struct Configuration {
    path: PathBuf,
    set: Vec<String>,
}

/// A small GPT on samples of varying length.
fn texts(folder: &Path, batch_size: usize, terms: &str) -> Configuration {
    let path = folder.join("model.yaml");
    let text = format!(
        "version: 1\ndevice: cpu\nmodel: {{family: gpt, preset: nano, layers: 1, heads: 2, hidden_size: 192, \
         vocabulary_size: 101, sequence_length: 64}}\n\
         data: {{source: synthetic, sequence_length: {{min: 8, max: 64}}, pin_memory: false}}\n\
         target: {{batch_size: {batch_size}}}\n\
         search: {{loader_workers: [0], device_prefetch: [{STAGED}], accumulation_steps: [1]}}\n\
         trial: {{warmup_steps: 1, steps: 3, soak_steps: {SOAK_STEPS}}}\n{terms}"
    );
    std::fs::write(&path, text).unwrap();
    Configuration { path, set: Vec::new() }
}

/// The example of images of varying side, made smaller.
fn images() -> Configuration {
    let set = [
        "model.hidden_size=8".to_owned(),
        "data.image_size.every=2".to_owned(),
        "data.pin_memory=false".to_owned(),
        "target.batch_size=2".to_owned(),
        format!("search={{loader_workers: [0], device_prefetch: [{STAGED}], accumulation_steps: [1]}}"),
        format!("trial={{warmup_steps: 1, steps: 3, soak_steps: {SOAK_STEPS}}}"),
        "memory.limit=2GiB".to_owned(),
        format!("safety={{horizon_steps: {STEPS}, fragmentation_threshold: 90%}}"),
        "seed=3".to_owned(),
    ];
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/multi-scale.yaml");
    Configuration { path, set: set.into() }
}

/// A study of one batch size, which ends with a status.
fn study(folder: &Path, configuration: &Configuration, status: i32) -> (Plan, Contents) {
    tune(folder, configuration, &[], status);
    (config::load(&configuration.path, &configuration.set).unwrap().plan, journal_of(folder))
}

fn tune(folder: &Path, configuration: &Configuration, options: &[&str], status: i32) {
    let mut tune = assert_cmd::Command::cargo_bin("tune").unwrap();
    tune.current_dir(folder).arg("--config").arg(&configuration.path);
    tune.args(["--output", "found.yaml", "--study", "study"]);
    tune.args(configuration.set.iter().flat_map(|set| ["--set", set])).args(options);
    tune.timeout(std::time::Duration::from_secs(240)).assert().code(status);
}

fn journal_of(folder: &Path) -> Contents {
    journal::read(&folder.join("study").join(journal::FILE_NAME)).unwrap()
}

fn found(folder: &Path) -> serde_json::Value {
    serde_yaml::from_str(&std::fs::read_to_string(folder.join("found.yaml")).unwrap()).unwrap()
}

/// The whole run that a study played, the only one.
fn played(contents: &Contents) -> (&Outlook, &LongRunFigures) {
    let played = contents.entries.iter().find_map(|entry| match entry {
        Entry::WholeRun { outlook, runs, .. } => Some((outlook, &runs.first()?.figures)),
        _ => None,
    });
    played.unwrap()
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
    fn sample_of_side(&self, place: Place, side: usize) -> Result<Sample, DataError> {
        self.whole.sample_of_side(place, side)
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
        let _alone = DEVICE.lock();
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
        replicas: 1,
    };
    let (allocator, planned) = (AllocatorKind::Native, AllocatorKind::Auto);
    let terms = Terms { limit_bytes, allocator, alloc_conf: None, planned, safety: plan.safety, run: Some(run) };
    let mut probed = Probed::new(terms);
    for record in records.iter().filter(|record| record.spec.is_shape_probe()) {
        let trace = std::fs::read(recording_path(&folder.join("study"), &record.spec)).unwrap();
        let (_, trace) = file::read(&trace).unwrap();
        probed.count_samples(record.measurement.as_ref().unwrap().training_samples.unwrap());
        probed.add_shape_probe(&record.spec.point, record.spec.sample_size.unwrap(), trace.events);
    }
    let point = &records.last().unwrap().spec.point;
    let mut found = probed.play(point, &History::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(found.outlook.method, Method::Exact, "{}", found.outlook.reason);
    found.runs.remove(0).figures
}

/// Searches, then trains, under what there is and under less. Gives the steps that memory ran out in, each as foretold.
fn steps_that_are_foretold(folder: &Path, configuration: &Configuration) -> Vec<u32> {
    let (plan, contents) = study(folder, configuration, 0);
    let records: Vec<&TrialRecord> = contents.finished().map(|(record, _)| record).collect();
    let soak = records.last().unwrap();
    assert!(soak.spec.is_soak());
    let outlook = soak.outlook.as_ref().unwrap();
    assert_eq!((outlook.method, outlook.steps, &outlook.breach), (Method::Exact, STEPS, &None), "{}", outlook.reason);
    let (_, figures) = played(&contents);
    let found = found(folder);
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
        let foretold = foretold(&plan, &records, folder, limit_bytes).out_of_memory.map(|end| end.step);
        let (_, real) = Run { limit_bytes, ..run }.train();
        assert_eq!(real, foretold, "under {} of memory", Bytes(limit_bytes));
        ends.extend(real);
    }
    ends
}

#[test]
fn a_search_foretells_every_step_of_the_run_that_comes_and_the_step_that_memory_runs_out_in() {
    let folder = tempfile::tempdir().unwrap();
    let terms = format!("seed: 3\nmemory: {{limit: 2GiB}}\nsafety: {{horizon_steps: {STEPS}}}\n");
    let ends = steps_that_are_foretold(folder.path(), &texts(folder.path(), 2, &terms));
    assert!(ends.iter().any(|step| *step > SOAK_STEPS), "later than any step of the soak: {ends:?}");
}

#[test]
fn a_search_foretells_every_step_of_a_run_whose_images_vary_in_their_side() {
    let folder = tempfile::tempdir().unwrap();
    let ends = steps_that_are_foretold(folder.path(), &images());
    assert!(!ends.is_empty(), "some limit is too low");
}

#[test]
fn a_size_whose_run_breaks_is_refused_with_the_step_in_which_it_does_and_with_what_would_make_it_last() {
    let folder = tempfile::tempdir().unwrap();
    // All that a trial or a soak sees is 20 % fragmented; the order of lengths that this seed gives makes it more.
    let terms = format!(
        "seed: 9\nmemory: {{limit: 200MiB}}\nsafety: {{horizon_steps: {STEPS}, fragmentation_threshold: 25%}}\n"
    );
    let (plan, contents) = study(folder.path(), &texts(folder.path(), 8, &terms), 3);
    let records: Vec<&TrialRecord> = contents.finished().map(|(record, _)| record).collect();
    assert!(records.iter().all(|record| record.completed() && !record.spec.is_soak()), "it is never soaked");
    let (outlook, figures) = played(&contents);
    let breach = outlook.breach.as_ref().unwrap();
    assert!(breach.step > SOAK_STEPS, "{}", breach.reason);

    let found = found(folder.path());
    assert_eq!((&found["status"], &found["recommended"]), (&"none".into(), &serde_json::Value::Null));
    let reason = found["rejected"].as_array().unwrap().iter().find_map(|rejected| {
        let reason = rejected["reason"].as_str()?;
        (rejected["batch_size"] == 8).then_some(reason)
    });
    let reason = reason.unwrap();
    assert!(reason.starts_with("its whole run breaks by forecast: "), "{reason}");
    assert!(reason.contains(&format!(" of memory fragmented at step {}, above the threshold of 25%", breach.step)));
    // Another shape would help, and nobody has proved it.
    let others = found["alternatives"].as_array().unwrap();
    assert!(!others.is_empty() && others.iter().all(|other| other["basis"] == "forecast"), "{found}");
    for other in others {
        let remedy = &other["remedy"];
        assert_eq!((&other["batch_size"], &other["samples_per_second"]), (&8.into(), &serde_json::Value::Null));
        assert_eq!(remedy["as_it_is"]["breach"]["step"], breach.step);
        assert!(remedy["run"]["breach"].is_null() && !remedy["changes"].as_object().unwrap().is_empty(), "{remedy}");
        assert_eq!(remedy["run"]["peak_reserved_bytes"], other["peak_reserved_bytes"]);
    }

    // The run itself holds what was foretold, and so it would have come to that.
    let Subject::Model(model) = &plan.subject else { panic!("a model is tuned") };
    let measured = records.iter().find(|record| record.spec.point.batch_size == 8).unwrap();
    let samples = measured.measurement.as_ref().unwrap().training_samples.unwrap();
    let run = Run { plan: &plan, model, point: &measured.spec.point, samples, limit_bytes: outlook.limit_bytes };
    let forecast: Vec<u64> = figures.points.iter().map(|point| point.peak_reserved_bytes).collect();
    assert_eq!(run.train(), (forecast, None));
}

/// Gives every trial in a journal the speed that it would have if a step took the same time at every size: how fast this
/// machine is, and what else it does, is not for a test to say.
fn with_speeds_by_size(folder: &Path) {
    let path = folder.join("study").join(journal::FILE_NAME);
    let text = std::fs::read_to_string(&path).unwrap();
    let lines = text.lines().map(|line| {
        let mut entry: serde_json::Value = serde_json::from_str(line).unwrap();
        let batch_size = entry.pointer("/record/spec/point/batch_size").and_then(serde_json::Value::as_f64);
        if let (Some(batch_size), Some(rate)) =
            (batch_size, entry.pointer_mut("/record/measurement/samples_per_second"))
        {
            *rate = (10.0 * batch_size).into();
        }
        format!("{entry}\n")
    });
    let text: String = lines.collect();
    std::fs::write(&path, text).unwrap();
}

#[test]
fn the_fastest_size_is_refused_for_its_run_and_a_smaller_one_that_lasts_is_recommended() {
    let folder = tempfile::tempdir().unwrap();
    let terms = format!(
        "seed: 9\nmemory: {{limit: 200MiB}}\nsafety: {{horizon_steps: {STEPS}, fragmentation_threshold: 25%}}\n"
    );
    let two_sizes = vec!["search.accumulation_steps=[1, 2]".to_owned()];
    let configuration = Configuration { set: two_sizes, ..texts(folder.path(), 8, &terms) };
    // Until both sizes are measured: 4 as the smallest, two probes, and 8.
    tune(folder.path(), &configuration, &["--set", "budget.trials=4"], 5);
    with_speeds_by_size(folder.path());
    let measured = journal_of(folder.path());
    let measured = measured.finished().map(|(record, _)| record).filter(|record| record.spec.is_measuring());
    let rates: Vec<(usize, f64)> = measured
        .map(|record| (record.spec.point.batch_size, record.measurement.as_ref().unwrap().samples_per_second))
        .collect();
    assert_eq!(rates, [(4, 40.0), (8, 80.0)]);
    tune(folder.path(), &configuration, &["--resume"], 0);

    let contents = journal_of(folder.path());
    let outlooks: Vec<(usize, &Outlook)> =
        contents.foretold().map(|(point, outlook)| (point.batch_size, outlook)).collect();
    let [(8, refused), (4, lasting)] = outlooks.as_slice() else { panic!("{outlooks:?}") };
    let breach = refused.breach.as_ref().unwrap();
    assert!(breach.step > SOAK_STEPS, "{}", breach.reason);
    assert_eq!((lasting.method, &lasting.breach, &lasting.doubt), (Method::Exact, &None, &None));
    let soaks = contents.finished().filter(|(record, _)| record.spec.is_soak());
    assert_eq!(soaks.map(|(record, _)| record.spec.point.batch_size).collect::<Vec<_>>(), [4]);

    let found = found(folder.path());
    assert_eq!((&found["status"], &found["recommended"]["batch_size"]), (&"safe".into(), &4.into()));
    let check = found["checks"].as_array().unwrap().iter().find(|check| check["rule"] == "whole_run").unwrap();
    assert_eq!((&check["passed"], &check["warning"]), (&true.into(), &false.into()), "{check}");
    let [rejected] = found["rejected"].as_array().unwrap().as_slice() else { panic!("{found}") };
    assert_eq!((&rejected["batch_size"], &rejected["outcome"]), (&8.into(), &"skipped".into()));
    assert_eq!(rejected["reason"], format!("its whole run breaks by forecast: {}", breach.reason));
    assert!(breach.reason.contains(&format!(" of memory fragmented at step {}", breach.step)), "{}", breach.reason);
    assert!(found["alternatives"].as_array().unwrap().iter().all(|other| other["basis"] == "forecast"), "{found}");
}

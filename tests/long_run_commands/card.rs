//! The same with PyTorch on a card, as tables. `tests/gpu/long_run.sh` runs it; what it reads of the environment:
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `LONG_RUN_OUT` | where tables and series go | the current folder |
//! | `LONG_RUN_PROGRAM` | the program and its options | `python3 tests/gpu/long_run.py` |
//! | `LONG_RUN_PRELOAD` | modules to import once | `torch` |
//! | `LONG_RUN_DEVICE` | `cuda` or `cpu` | `cuda` |
//! | `LONG_RUN_LIMIT_GIB` | the limit of the runs that are to survive | 100 |
//! | `LONG_RUN_STEPS` | steps of each run | 300 |
//! | `LONG_RUN_SECONDS` | begin nothing after so many | 240 |
//!
//! `LONG_RUN_PROGRAM="python3 tests/gpu/long_run_pretend.py"` on the CPU rehearses it without a card. What fails is printed
//! with the word FAILED, and the rest goes on; the test fails at the end.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Instant;

use batchtune::data::SampleSize;
use batchtune::device::DeviceChoice;
use batchtune::memory::forecast::long_run::LongRunFigures;
use batchtune::memory::forecast::shape::ShapeForecaster;
use batchtune::trial::{Outcome, TrialRecord};
use batchtune::units::{GIB, MIB};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::rig::{Program, Rig, Run, aligned_steps, forecast, forecaster, least_limit, settings, steps_done};

/// Batches and lengths of the probes.
const PROBES: [[u64; 2]; 7] = [[2, 64], [3, 64], [2, 96], [3, 96], [2, 160], [4, 128], [3, 200]];
/// Lengths of the run.
const SHORTEST: u64 = 64;
const LONGEST: u64 = 1024;
/// A backward pass through an embedding of more than 3,072 tokens sorts them (`embedding_dense_backward_cuda`), and a sum over
/// more than 4,096 rows is split: allocations that no tiny probe has. 3 × 1024 tokens are none too many, 8 × 1024 are.
const BATCH_SIZES: [u64; 2] = [3, 8];
/// Three settings to hold the forecast against.
const CONFS: [&str; 3] = ["", "expandable_segments:True", "roundup_power2_divisions:8"];
/// Two more where time is left. The first takes a great deal of memory for few bytes, and releases it as the limit comes.
const MORE_CONFS: [&str; 2] = ["max_split_size_mb:128", "garbage_collection_threshold:0.6"];
/// Steps of the run that are recorded event by event.
const WITNESSED_STEPS: usize = 60;
/// Settings to look for a survivor among.
const CANDIDATES: [&str; 7] = [
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:16",
    "garbage_collection_threshold:0.8",
    "garbage_collection_threshold:0.8,max_split_size_mb:128",
];
/// Two settings differ enough for a limit between them if their least limits do by this share.
const LEAST_GAP: f64 = 0.004;

/// What the environment says, and what has been found so far.
struct Card {
    program: Program,
    out: PathBuf,
    steps: usize,
    seconds: f64,
    begun: Instant,
    table: String,
    failures: Vec<String>,
}

fn variable(name: &str, default: &str) -> String {
    std::env::var(name).ok().filter(|value| !value.is_empty()).unwrap_or_else(|| default.to_owned())
}

impl Card {
    fn new() -> Self {
        let words = |text: String| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let program = Program {
            run: words(variable("LONG_RUN_PROGRAM", "python3 tests/gpu/long_run.py")),
            preload: words(variable("LONG_RUN_PRELOAD", "torch")),
            device: if variable("LONG_RUN_DEVICE", "cuda") == "cpu" {
                DeviceChoice::Cpu
            } else {
                DeviceChoice::Cuda(0)
            },
            limit_bytes: variable("LONG_RUN_LIMIT_GIB", "100").parse::<u64>().unwrap() * GIB,
        };
        Self {
            program,
            out: PathBuf::from(variable("LONG_RUN_OUT", ".")),
            steps: variable("LONG_RUN_STEPS", "300").parse().unwrap(),
            seconds: variable("LONG_RUN_SECONDS", "240").parse().unwrap(),
            begun: Instant::now(),
            table: String::new(),
            failures: Vec::new(),
        }
    }

    fn say(&mut self, line: &str) {
        let line = format!("[{:5.1} s] {line}", self.begun.elapsed().as_secs_f64());
        println!("{line}");
        let _ = writeln!(self.table, "{line}");
        // Whatever comes later, this much is on the disk.
        let _ = std::fs::write(self.out.join("commands.txt"), &self.table);
    }

    fn fail(&mut self, what: String) {
        self.say(&format!("FAILED {what}"));
        self.failures.push(what);
    }

    fn has_time(&mut self, what: &str) -> bool {
        let has = self.begun.elapsed().as_secs_f64() < self.seconds;
        if !has {
            self.fail(format!("no time left for {what}"));
        }
        has
    }

    fn uniform(&self) -> Vec<u64> {
        let mut rng = StdRng::seed_from_u64(10);
        (0..self.steps).map(|_| rng.random_range(SHORTEST..=LONGEST)).collect()
    }

    /// Longer and longer at most, as a curriculum is, so that what runs out does so late.
    fn growing(&self) -> Vec<u64> {
        let mut rng = StdRng::seed_from_u64(11);
        let most = |step: usize| LONGEST / 2 + LONGEST / 2 * (step as u64 + 1) / self.steps as u64;
        (0..self.steps).map(|step| rng.random_range(SHORTEST..=most(step))).collect()
    }

    /// The first steps of the run with every event, held against those of the forecast.
    fn witness(&mut self, rig: &mut Rig, forecaster: Option<&ShapeForecaster>, run: &Run) {
        let name = format!("B={}, every event", run.batch_size);
        let steps = run.lengths.len().min(WITNESSED_STEPS);
        let run = Run { lengths: run.lengths[..steps].to_vec(), ..run.clone() };
        match rig.witness(&run) {
            Err(error) => self.fail(format!("{name}: {error}")),
            Ok(events) => {
                let of_step = forecaster.map(|forecaster| aligned_steps(forecaster, &run, &events));
                let (alike, equal) = of_step.unwrap_or_default();
                self.say(&format!(
                    "{name}: of {steps} steps {alike} have as many allocations as forecast, {equal} the same sizes"
                ));
            }
        }
    }

    /// A run held against its forecast.
    fn hold(&mut self, rig: &mut Rig, forecaster: Option<&ShapeForecaster>, run: &Run, conf: &str) {
        let name = format!("B={} `{conf}`", run.batch_size);
        if !self.has_time(&name) {
            return;
        }
        let limit_bytes = self.program.limit_bytes;
        let figures = forecaster.map(|forecaster| forecast(forecaster, run, &settings(conf), limit_bytes));
        let figures = figures.unwrap_or_default();
        let begun = Instant::now();
        let record = rig.train(run, conf);
        let seconds = begun.elapsed().as_secs_f64();
        self.keep(
            &format!("run-{}-{}", run.batch_size, if conf.is_empty() { "default" } else { conf }),
            run,
            &figures,
            &record,
        );
        if record.outcome != Outcome::Completed {
            return self.fail(format!("{name}: {} (after {} steps)", record.outcome, steps_done(&record)));
        }
        let compared = Compared::of(&figures, &record);
        self.say(&format!("{name}: {compared} ({seconds:.1} s)"));
        for line in compared.first_differences(run) {
            self.say(&format!("    {line}"));
        }
        if compared.reserved_off().abs() > 1.0 {
            self.fail(format!("{name}: reserved peak {:+.3} % off", compared.reserved_off()));
        }
    }

    /// The series of a run beside its forecast, for whoever looks into it later.
    fn keep(&self, name: &str, run: &Run, figures: &LongRunFigures, record: &TrialRecord) {
        let mut text = "step,length,forecast_allocated,allocated,forecast_reserved,reserved\n".to_owned();
        let mut samples = record.samples.iter();
        let mut points = figures.points.iter();
        for (step, length) in run.lengths.iter().enumerate() {
            let (point, sample) = (points.next(), samples.next());
            let cells = [
                point.map(|point| point.peak_allocated_bytes),
                sample.map(|sample| sample.peak_allocated_bytes),
                point.map(|point| point.peak_reserved_bytes),
                sample.map(|sample| sample.peak_reserved_bytes),
            ];
            let cells = cells.map(|bytes| bytes.map_or_else(String::new, |bytes| bytes.to_string()));
            let _ = writeln!(text, "{step},{length},{}", cells.join(","));
        }
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
        let _ = std::fs::write(self.out.join(format!("{name}.csv")), text);
    }

    /// A limit under which the defaults are forecast to run out and another setting is not; both are tried.
    fn made_case(&mut self, forecaster: &ShapeForecaster, run: &Run) {
        let default = least_limit(forecaster, run, &settings(""));
        self.say(&format!("B={} growing lengths: the defaults need {:.1} MiB", run.batch_size, mib(default)));
        let mut found: Vec<(u64, &str)> = Vec::new();
        for conf in CANDIDATES {
            let least = least_limit(forecaster, run, &settings(conf));
            self.say(&format!("    {conf} needs {:.1} MiB", mib(least)));
            found.push((least, conf));
        }
        found.sort_unstable();
        let (best, survivor) = found[0];
        if (best as f64) > default as f64 * (1.0 - LEAST_GAP) {
            return self.fail("no setting needs clearly less than the defaults".to_owned());
        }
        let limit_bytes = between(forecaster, run, best, default);
        let figures = forecast(forecaster, run, &settings(""), limit_bytes);
        let Some(end) = figures.out_of_memory else {
            return self.fail("the defaults survive below their least limit".to_owned());
        };
        let (limit, step) = (mib(limit_bytes), end.step);
        self.say(&format!("under {limit:.1} MiB: defaults forecast to run out in step {step}, {survivor} not"));
        let mut limited = Rig::new(&Program { limit_bytes, ..self.program.clone() });
        self.dies(&mut limited, run, &figures, step);
        if !self.has_time("the survivor") {
            return;
        }
        let record = limited.train(run, survivor);
        self.keep("made-survivor", run, &forecast(forecaster, run, &settings(survivor), limit_bytes), &record);
        if record.outcome == Outcome::Completed {
            self.say(&format!("    {survivor} survived all {} steps under {limit:.1} MiB", self.steps));
        } else {
            self.fail(format!("{survivor} did not survive: {} (after {} steps)", record.outcome, steps_done(&record)));
        }
    }

    fn dies(&mut self, rig: &mut Rig, run: &Run, figures: &LongRunFigures, forecast_step: u32) {
        if !self.has_time("the run that is to die") {
            return;
        }
        let record = rig.train(run, "");
        self.keep("made-defaults", run, figures, &record);
        let done = steps_done(&record);
        self.say(&format!("    defaults: {} in step {done}, forecast in step {forecast_step}", record.outcome.name()));
        let is_near = done.abs_diff(forecast_step) * 10 <= forecast_step.max(1);
        if record.outcome.name() != "out_of_memory" || !is_near {
            self.fail(format!("the defaults were to run out in step {forecast_step}: {} after {done}", record.outcome));
        }
    }
}

/// Of the limits between two, the one nearest to the middle under which the defaults run out late: after a tenth of the
/// run at least, or as late as they do under any.
fn between(forecaster: &ShapeForecaster, run: &Run, low: u64, high: u64) -> u64 {
    let tried = [8, 7, 9, 6, 10, 5, 11, 4, 12, 13, 14].map(|sixteenth| low + (high - low) / 16 * sixteenth);
    let dies = |limit: &u64| forecast(forecaster, run, &settings(""), *limit).out_of_memory.map_or(0, |end| end.step);
    let late = u32::try_from(run.lengths.len() / 10).unwrap();
    let late_enough = tried.into_iter().find(|limit| dies(limit) >= late);
    late_enough.or_else(|| tried.into_iter().max_by_key(dies)).unwrap()
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

/// A run beside its forecast.
struct Compared {
    /// Forecast and measured.
    reserved: (u64, u64),
    /// Of each step: forecast and measured A, then V. The first window has the build as well, so its A is left out.
    steps: Vec<[(u64, u64); 2]>,
}

impl Compared {
    fn of(figures: &LongRunFigures, record: &TrialRecord) -> Self {
        let pair = figures.points.iter().zip(&record.samples);
        let steps = pair.map(|(point, sample)| {
            let allocated = (point.peak_allocated_bytes, sample.peak_allocated_bytes);
            [allocated, (point.peak_reserved_bytes, sample.peak_reserved_bytes)]
        });
        let highest = record.samples.iter().map(|sample| sample.peak_reserved_bytes).max().unwrap_or(0);
        Self { reserved: (figures.peak_reserved_bytes, highest), steps: steps.skip(1).collect() }
    }

    fn reserved_off(&self) -> f64 {
        off(self.reserved)
    }

    fn equal(&self, which: usize) -> usize {
        self.steps.iter().filter(|step| step[which].0 == step[which].1).count()
    }

    fn worst(&self, which: usize) -> f64 {
        self.steps.iter().map(|step| off(step[which]).abs()).fold(0.0, f64::max)
    }

    fn first_differences(&self, run: &Run) -> Vec<String> {
        let of_step = self
            .steps
            .iter()
            .enumerate()
            .filter(|(_, [allocated, reserved])| allocated.0 != allocated.1 || reserved.0 != reserved.1);
        let line = |(place, [allocated, reserved]): (usize, &[(u64, u64); 2])| {
            let step = place + 1;
            format!(
                "step {step} (T={}): allocated {} forecast, {} measured; reserved {} forecast, {} measured",
                run.lengths[step], allocated.0, allocated.1, reserved.0, reserved.1
            )
        };
        of_step.take(3).map(line).collect()
    }
}

impl std::fmt::Display for Compared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (expected, measured) = self.reserved;
        let steps = self.steps.len();
        write!(
            f,
            "reserved peak {expected} forecast, {measured} measured, {:+.3} %; steps equal of {steps}: allocated {}, reserved \
             {}; at worst off by {:.3} % and {:.3} %",
            self.reserved_off(),
            self.equal(0),
            self.equal(1),
            self.worst(0),
            self.worst(1)
        )
    }
}

fn off((expected, measured): (u64, u64)) -> f64 {
    (expected as f64 / measured.max(1) as f64 - 1.0) * 100.0
}

#[test]
#[ignore = "needs a card and PyTorch, and takes minutes; prints tables"]
fn a_run_of_pytorch_is_forecast_from_seven_tiny_probes() {
    let mut card = Card::new();
    std::fs::create_dir_all(&card.out).unwrap();
    let mut rig = Rig::new(&card.program).keeping_traces(&card.out);
    let forecaster = rig.probes(&PROBES, SampleSize::Tokens).and_then(|probes| forecaster(&probes));
    match &forecaster {
        Ok(forecaster) => card.say(&format!("{}: {}", forecaster.method(), forecaster.reason())),
        Err(error) => card.fail(format!("no forecast: {error}")),
    }
    // Without one the runs are worth their while all the same: they are on the disk, beside the traces.
    let forecaster = forecaster.ok();
    for batch_size in BATCH_SIZES {
        let run = Run { batch_size, lengths: card.uniform() };
        card.witness(&mut rig, forecaster.as_ref(), &run);
        for conf in CONFS {
            card.hold(&mut rig, forecaster.as_ref(), &run, conf);
        }
    }
    if let Some(forecaster) = &forecaster {
        let run = Run { batch_size: BATCH_SIZES[0], lengths: card.growing() };
        card.made_case(forecaster, &run);
    }
    let run = Run { batch_size: BATCH_SIZES[0], lengths: card.uniform() };
    for conf in MORE_CONFS {
        card.hold(&mut rig, forecaster.as_ref(), &run, conf);
    }
    assert!(card.failures.is_empty(), "{:#?}", card.failures);
}

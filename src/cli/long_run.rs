//! `tune forecast --steps N`: what a run of thousands of steps of varying length takes, under one allocator setting or
//! several.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use indicatif::ProgressBar;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use super::forecast::ForecastInputError;
use super::input::{self, InputError};
use super::{ForecastArgs, Form, print_result, rate};
use crate::error::Error;
use crate::exit_code;
use crate::memory::Event;
use crate::memory::forecast::long_run::{LongRunFigures, play};
use crate::memory::forecast::shape::{LongRun, Shape, ShapeError, ShapeForecaster, ShapeProbe};
use crate::memory::forecast::{ForecastError, Method};
use crate::memory::policy::native::Native;
use crate::memory::policy::{AllocConf, Backend, Settings};
use crate::units::{Bytes, plural};

/// The most steps of a run.
const MAX_STEPS: usize = 1_000_000;
/// Longer samples fit no device.
const MAX_LENGTH: u64 = 1 << 24;
/// How often the bar is drawn.
const TICK: Duration = Duration::from_millis(100);

/// Why a long run is not forecast.
#[derive(Debug, thiserror::Error)]
pub enum LongRunError {
    /// The recordings' lengths are not known.
    #[error("`--steps` needs the length of each recording (hint: `--lengths 64,64,96,…`, one for each file)")]
    LengthsMissing,
    /// A length for every recording.
    #[error("{files} recordings and {lengths} lengths (hint: `--lengths` has one for each file, in their order)")]
    Unpaired {
        /// Files.
        files: usize,
        /// Lengths.
        lengths: usize,
    },
    /// How long the run's samples are is not known.
    #[error("`--steps` needs the lengths of the run's samples (hint: `--run-lengths 64:512`, or a file of them)")]
    RunLengthsMissing,
    /// A run without an end.
    #[error("`--steps`: `{steps}` is over {MAX_STEPS} (hint: memory repeats itself long before)")]
    TooManySteps {
        /// How many were asked for.
        steps: usize,
    },
    /// A line of the file of lengths.
    #[error("{}:{line}: expected the length of a sample, from 1 to {MAX_LENGTH}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// A file without lengths.
    #[error("`{}` has no lengths", path.display())]
    NoLengths {
        /// The file.
        path: PathBuf,
    },
    /// The file of lengths cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The recordings say too little.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The run cannot be put together.
    #[error(transparent)]
    Forecast(#[from] ForecastError),
}

/// How long the samples of a run are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RunLengths {
    /// Drawn evenly between two bounds.
    Uniform { min: u64, max: u64 },
    /// One a line, in the order of the run.
    File(PathBuf),
}

impl FromStr for RunLengths {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bounds = text.split_once(':').and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
        Ok(match bounds {
            Some((min, max)) if 0 < min && min <= max && max <= MAX_LENGTH => Self::Uniform { min, max },
            _ => Self::File(PathBuf::from(text)),
        })
    }
}

impl RunLengths {
    /// The longest sample of each batch, and of all.
    fn batches(&self, batch_size: usize, steps: usize) -> Result<(Vec<u64>, u64), LongRunError> {
        let longest_of = |mut sample: Box<dyn FnMut() -> u64>| -> Vec<u64> {
            (0..steps).map(|_| (0..batch_size).map(|_| sample()).max().unwrap_or(1)).collect()
        };
        match self {
            Self::Uniform { min, max } => {
                let (min, max) = (*min, *max);
                let mut rng = StdRng::seed_from_u64(0);
                Ok((longest_of(Box::new(move || rng.random_range(min..=max))), max))
            }
            Self::File(path) => {
                let lengths = read(path)?;
                let max = lengths.iter().copied().max().unwrap_or(1);
                // A run that is longer than the file begins it again, as an epoch does.
                let mut endless = lengths.into_iter().cycle();
                Ok((longest_of(Box::new(move || endless.next().unwrap_or(1))), max))
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<u64>, LongRunError> {
    let text = input::text(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let length = |(index, line): (usize, &str)| {
        let length = line.trim().parse().ok().filter(|length| (1..=MAX_LENGTH).contains(length));
        length.ok_or_else(|| LongRunError::Length { path: path.to_owned(), line: index + 1 })
    };
    let lengths: Vec<u64> = lines.map(length).collect::<Result<_, _>>()?;
    if lengths.is_empty() { Err(LongRunError::NoLengths { path: path.to_owned() }) } else { Ok(lengths) }
}

/// The forecast of a long run, as JSON has it.
#[derive(Serialize)]
struct LongRunReport {
    method: Method,
    reason: String,
    runs: Vec<LongRunRow>,
}

/// One batch size under one setting.
#[derive(Serialize)]
struct LongRunRow {
    batch_size: usize,
    /// As `PYTORCH_CUDA_ALLOC_CONF` has it; empty for the defaults.
    conf: String,
    figures: LongRunFigures,
}

/// A run that is to be played.
struct Job {
    batch_size: usize,
    conf: String,
    settings: Settings,
    shapes: Vec<Shape>,
    evaluation: Shape,
}

/// Forecasts a run of so many steps from recordings at these batch sizes, under settings with their texts.
pub(super) fn run(
    args: &ForecastArgs,
    steps: usize,
    recordings: &[(usize, Vec<Event>)],
    confs: &[(String, AllocConf)],
) -> Result<u8, Error> {
    let forecaster = forecaster(args, recordings).map_err(failed)?;
    if steps > MAX_STEPS {
        return Err(failed(LongRunError::TooManySteps { steps }));
    }
    let lengths = args.run_lengths.as_ref().ok_or(LongRunError::RunLengthsMissing).map_err(failed)?;
    let mut jobs = Vec::new();
    for batch_size in &args.to {
        let (longest, max) = lengths.batches(*batch_size, steps).map_err(failed)?;
        let shape = |length: u64| Shape::of([*batch_size as u64, length]);
        for (text, conf) in confs {
            if conf.backend != Backend::Native {
                return Err(ForecastInputError::Backend(conf.backend.name()).into());
            }
            let shapes = longest.iter().copied().map(shape).collect();
            let (conf, settings) = (text.clone(), conf.settings);
            jobs.push(Job { batch_size: *batch_size, conf, settings, shapes, evaluation: shape(max) });
        }
    }
    let limit_bytes = args.limit.map_or(u64::MAX, |limit| limit.0);
    let figures =
        play_all(&forecaster, &jobs, limit_bytes, args.evaluate_every).map_err(|error| failed(error.into()))?;
    let row =
        |(job, figures): (Job, LongRunFigures)| LongRunRow { batch_size: job.batch_size, conf: job.conf, figures };
    let runs = jobs.into_iter().zip(figures).map(row).collect();
    let report = LongRunReport { method: forecaster.method(), reason: forecaster.reason(), runs };
    match Form::of(args.json) {
        Form::Json => print_result(&format!("{}\n", super::to_json(&report)))?,
        Form::Table => print_result(&table(&report))?,
    }
    Ok(exit_code::SAFE)
}

fn failed(error: LongRunError) -> Error {
    ForecastInputError::from(error).into()
}

fn forecaster(args: &ForecastArgs, recordings: &[(usize, Vec<Event>)]) -> Result<ShapeForecaster, LongRunError> {
    let (files, lengths) = (args.files.len(), args.lengths.len());
    match lengths {
        0 => return Err(LongRunError::LengthsMissing),
        _ if lengths != files => return Err(LongRunError::Unpaired { files, lengths }),
        _ => {}
    }
    let probes: Vec<ShapeProbe<'_>> = recordings
        .iter()
        .zip(&args.lengths)
        .map(|((batch_size, events), length)| ShapeProbe { shape: Shape::of([*batch_size as u64, *length]), events })
        .collect();
    Ok(ShapeForecaster::new(&probes)?)
}

/// Plays the runs side by side, as many as there are processors.
fn play_all(
    forecaster: &ShapeForecaster,
    jobs: &[Job],
    limit_bytes: u64,
    evaluate_every: Option<usize>,
) -> Result<Vec<LongRunFigures>, ForecastError> {
    let steps: usize = jobs.iter().map(|job| job.shapes.len()).sum();
    // Draws on a terminal's standard error only.
    let bar = ProgressBar::new(steps as u64).with_message("steps");
    bar.enable_steady_tick(TICK);
    let next = AtomicU64::new(0);
    let work = || -> Result<Vec<(usize, LongRunFigures)>, ForecastError> {
        let mut played = Vec::new();
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed) as usize;
            let Some(job) = jobs.get(place) else { return Ok(played) };
            let run = LongRun { evaluation: job.evaluation, evaluate_every, ..LongRun::of(&job.shapes) };
            let policy = Box::new(Native::with_settings(job.settings, limit_bytes));
            played.push((place, play(forecaster.events(run)?, policy, &mut |_| bar.inc(1))));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    let mut played = thread::scope(|scope| -> Result<_, ForecastError> {
        let others: Vec<_> =
            (1..threads).filter_map(|_| thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
        let mut played = work()?;
        for other in others {
            // A thread that panicked has printed why; what it took is missing below.
            played.extend(other.join().unwrap_or(Ok(Vec::new()))?);
        }
        Ok(played)
    })?;
    bar.finish_and_clear();
    played.sort_by_key(|(place, _)| *place);
    Ok(played.into_iter().map(|(_, figures)| figures).collect())
}

fn table(report: &LongRunReport) -> String {
    // Writing to a String cannot fail.
    let mut text = format!("{}: {}\n\n", report.method, report.reason);
    let named = |conf: &str| if conf.is_empty() { "defaults".to_owned() } else { conf.to_owned() };
    let confs = report.runs.iter().map(|run| named(&run.conf).chars().count());
    let width = confs.max().unwrap_or(0).max("setting".len());
    let _ = writeln!(
        text,
        "{:>6}  {:<width$}  {:>14}  {:>14}  {:>10}  {:>11}  {:>12}  result",
        "batch", "setting", "peak allocated", "peak reserved", "fragmented", "last growth", "device calls"
    );
    for run in &report.runs {
        let figures = &run.figures;
        let result = match &figures.out_of_memory {
            Some(end) => format!(
                "out of memory at step {}: {} more with {} allocated and {} reserved",
                end.step,
                Bytes(end.requested_bytes),
                Bytes(end.allocated_bytes),
                Bytes(end.reserved_bytes)
            ),
            None if figures.retries > 0 => {
                format!("{} steps, releasing its cache {}", figures.steps, plural(figures.retries as usize, "time"))
            }
            None => format!("{} steps", figures.steps),
        };
        let _ = writeln!(
            text,
            "{:>6}  {:<width$}  {:>14}  {:>14}  {:>10}  {:>11}  {:>12}  {result}",
            run.batch_size,
            named(&run.conf),
            Bytes(figures.peak_allocated_bytes).to_string(),
            Bytes(figures.peak_reserved_bytes).to_string(),
            rate(figures.fragmentation),
            format!("step {}", figures.last_growth_step),
            figures.device_calls,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_bounds_or_a_file() {
        let parsed = |text: &str| text.parse::<RunLengths>().unwrap_or_else(|never| match never {});
        assert_eq!(parsed("64:512"), RunLengths::Uniform { min: 64, max: 512 });
        for text in ["512:64", "0:4", "lengths.txt", "1:99999999999"] {
            assert_eq!(parsed(text), RunLengths::File(PathBuf::from(text)));
        }
    }

    #[test]
    fn a_batch_is_as_long_as_its_longest_sample() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lengths.txt");
        std::fs::write(&path, "5\n7\n\n3\n4\n").unwrap();
        let lengths = RunLengths::File(path.clone());
        assert_eq!(lengths.batches(2, 3).unwrap(), (vec![7, 4, 7], 7));
        std::fs::write(&path, "5\nx\n").unwrap();
        assert!(matches!(lengths.batches(2, 3), Err(LongRunError::Length { line: 2, .. })));
        std::fs::write(&path, "\n").unwrap();
        assert!(matches!(lengths.batches(2, 3), Err(LongRunError::NoLengths { .. })));
        let (longest, max) = RunLengths::Uniform { min: 10, max: 20 }.batches(4, 50).unwrap();
        assert!(max == 20 && longest.iter().all(|length| (10..=20).contains(length)));
    }
}

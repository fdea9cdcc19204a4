//! `tune forecast --run`: what a run of thousands of steps of varying length takes, under one allocator setting or several;
//! and with `--tune`, which settings and which batches would do better.

use std::path::PathBuf;

use serde::Serialize;

use super::forecast::ForecastInputError;
use super::output::{Page, keep_apart};
use super::search::watch_for_signals;
use super::{BackendArg, ForecastArgs, Form, print_result};
use crate::error::Error;
use crate::exit_code;
use crate::memory::forecast::batching::{Batching, Order, Outline, Remedies, RemedyTask, Samples, remedies, standard};
use crate::memory::forecast::long_run::{Breach, LongRunFigures, Terms, judge, play};
use crate::memory::forecast::shape::{Axes, LENGTH, LongRun, Shape, ShapeError, ShapeForecaster, ShapeProbe};
use crate::memory::forecast::tuning::{
    Allocator, Bounds, Candidate, Observer, Reach, Task, TuneError, Tuning, play_all, tune,
};
use crate::memory::forecast::{ForecastError, Method};
use crate::memory::policy::{AllocConf, Backend, Policy, ReleaseThreshold};
use crate::memory::{Event, FragmentationMetric};
use crate::report::html;
use crate::trial::Interrupt;

mod axes;
mod bounds;
mod error;
mod lengths;
mod samples;
mod strides;
mod watched;
mod words;

pub(super) use axes::{ProbeAxis, RunAxis};
pub(super) use error::LongRunError;
pub(super) use lengths::RunLengths;
use samples::RunSamples;
use watched::Watched;

/// Where the page goes if nobody says.
const USUAL_PAGE: &str = "forecast.html";
/// The most steps of a run.
const MAX_STEPS: usize = 1_000_000;
/// Steps of a run where nobody says.
pub(super) const USUAL_STEPS: usize = 10_000;
/// The rate of fragmentation that a run should keep below: the default of `safety.fragmentation_threshold`.
const THRESHOLD: f64 = 0.3;

/// The forecast of a long run, as JSON has it.
#[derive(Serialize)]
struct LongRunReport {
    method: Method,
    reason: String,
    /// Of its shapes, the batch first.
    axes: Vec<String>,
    /// What is to be known of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    limit_bytes: Option<u64>,
    runs: Vec<LongRunRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tuned: Vec<Tuned>,
}

/// One batch size under one setting.
#[derive(Serialize)]
struct LongRunRow {
    batch_size: usize,
    /// As `PYTORCH_CUDA_ALLOC_CONF` has it; empty for the defaults.
    conf: String,
    batches: Outline,
    /// What the run does that it should not.
    breach: Option<Breach>,
    figures: LongRunFigures,
}

impl LongRunRow {
    fn setting(&self) -> String {
        if self.conf.is_empty() { "defaults".to_owned() } else { self.conf.clone() }
    }
}

/// What would do better.
#[derive(Serialize)]
struct Tuned {
    batch_size: usize,
    tuning: Tuning,
    /// The setting under which the other ways to batch were played.
    remedies_under: Candidate,
    remedies: Remedies,
}

/// What a run is made of.
struct Source<'a> {
    args: &'a ForecastArgs,
    steps: u64,
    forecaster: ShapeForecaster,
    samples: RunSamples,
    notes: Vec<String>,
    limit_bytes: u64,
}

/// Forecasts a run of so many steps from recordings at these batch sizes, under settings with their texts.
pub(super) fn run(
    args: &ForecastArgs,
    recordings: &[(usize, Vec<Event>)],
    confs: &[(String, AllocConf)],
) -> Result<u8, Error> {
    let form = Form::of(args.json);
    let page = Page::asked(args.html.as_ref(), form, || PathBuf::from(USUAL_PAGE))?;
    let source = source(args, recordings).map_err(failed)?;
    if let Some(page) = page.as_ref().and_then(Page::path) {
        let mut sources = args.files.clone();
        sources.extend(args.run_lengths.as_ref().and_then(RunLengths::file).map(PathBuf::from));
        sources.extend(args.run_shapes.clone());
        keep_apart(page, &sources)?;
    }
    let interrupt = Interrupt::default();
    watch_for_signals(&interrupt)?;
    let report = match source.report(confs, &Watched::new(interrupt)) {
        Ok(report) => report,
        // Whoever wants to leave knows why.
        Err(TuneError::Interrupted) => return Ok(exit_code::INTERRUPTED),
        Err(TuneError::Forecast(error)) => return Err(failed(error.into())),
    };
    match form {
        Form::Json => print_result(&format!("{}\n", super::to_json(&report)))?,
        Form::Table if page == Some(Page::Printed) => {}
        Form::Table => print_result(&words::report(&report, &source))?,
    }
    // Last, so that a page that cannot be written costs no minutes of computing.
    if let Some(page) = &page {
        page.write(&html::long_run(&source.page(&report)))?;
    }
    Ok(exit_code::SAFE)
}

fn failed(error: LongRunError) -> Error {
    ForecastInputError::from(error).into()
}

fn source<'a>(args: &'a ForecastArgs, recordings: &[(usize, Vec<Event>)]) -> Result<Source<'a>, LongRunError> {
    if args.backend == Some(BackendArg::CudaMallocAsync) && !args.conf.is_empty() {
        return Err(LongRunError::ConfOfDriverPool);
    }
    let (axes, shapes) = axes::of_probes(args)?;
    let forecaster = forecaster(axes.clone(), &shapes, recordings)?;
    let steps = args.steps.unwrap_or(USUAL_STEPS);
    if steps > MAX_STEPS {
        return Err(LongRunError::TooManySteps { steps });
    }
    let samples = RunSamples::of(args, &axes)?;
    let notes = strides::notes(&axes, &shapes, samples.columns(), args.pad_to.unwrap_or(1));
    let limit_bytes = args.limit.map_or(u64::MAX, |limit| limit.0);
    let source = Source { args, steps: steps as u64, forecaster, samples, notes, limit_bytes };
    for batch_size in &args.to {
        source.batching(*batch_size).check(&source.samples)?;
    }
    Ok(source)
}

fn forecaster(
    axes: Axes,
    shapes: &[Shape],
    recordings: &[(usize, Vec<Event>)],
) -> Result<ShapeForecaster, LongRunError> {
    let probes = shapes.iter().zip(recordings);
    let probes: Vec<ShapeProbe<'_>> = probes.map(|(shape, (_, events))| ShapeProbe { shape: *shape, events }).collect();
    let is_of_lengths = is_of_lengths(&axes);
    ShapeForecaster::new(axes, &probes).map_err(|error| match error {
        ShapeError::Misaligned(_) | ShapeError::Misfits { .. } if !is_of_lengths => LongRunError::Strides(error),
        other => other.into(),
    })
}

/// Whether lengths are all that varies beside the batch: then nobody has to be told the axes.
fn is_of_lengths(axes: &Axes) -> bool {
    axes.names().skip(1).eq([LENGTH])
}

impl Source<'_> {
    fn batching(&self, batch_size: usize) -> Batching {
        Batching {
            samples: batch_size as u64,
            pad_to: self.args.pad_to.unwrap_or(1),
            order: if self.args.group_by_length { Order::ByLength } else { Order::AsTheyCome },
            token_budget: self.args.token_budget,
        }
    }

    fn is_of_lengths(&self) -> bool {
        is_of_lengths(self.forecaster.axes())
    }

    fn terms(&self) -> Terms {
        let horizon_steps = u32::try_from(self.steps).unwrap_or(u32::MAX);
        Terms { metric: FragmentationMetric::Peak, threshold: THRESHOLD, horizon_steps }
    }

    /// Plays batches to a policy.
    fn play(
        &self,
        outline: &Outline,
        policy: Box<dyn Policy>,
        on_step: &mut dyn FnMut(u32),
    ) -> Result<LongRunFigures, ForecastError> {
        let evaluation = outline.layout.shape(outline.largest_batch.max(1), &self.samples.largest());
        let (evaluate_every, checkpoint_every) = (self.args.evaluate_every, self.args.checkpoint_every);
        let run = LongRun { evaluation, evaluate_every, checkpoint_every, ..LongRun::of(outline) };
        Ok(play(self.forecaster.events(run)?, policy, on_step))
    }

    fn page<'r>(&self, report: &'r LongRunReport) -> html::LongRunPage<'r> {
        let several = self.args.to.len() > 1;
        let run = |row: &'r LongRunRow| html::ForetoldRun {
            name: if several { format!("batch {}, {}", row.batch_size, row.setting()) } else { row.setting() },
            figures: &row.figures,
            breach: row.breach.as_ref().map(|breach| (breach.step(), breach.to_string())),
        };
        let chosen = report.tuned.iter().filter_map(|tuned| {
            let change = tuned.tuning.change()?;
            let breach = change.breach.as_ref().map(|breach| (breach.step(), breach.to_string()));
            let found = format!("{} (found)", change.candidate);
            let name = if several { format!("batch {}, {found}", tuned.batch_size) } else { found };
            Some(html::ForetoldRun { name, figures: &change.figures, breach })
        });
        let better = report.tuned.iter().map(|tuned| html::FoundBetter {
            batch_size: tuned.batch_size,
            tuning: &tuned.tuning,
            remedies: &tuned.remedies,
        });
        html::LongRunPage {
            method: format!("{}: {}", report.method, report.reason),
            axes: if self.is_of_lengths() { Vec::new() } else { words::axes(self.samples.columns()) },
            notes: report.notes.clone(),
            runs: report.runs.iter().map(run).chain(chosen).collect(),
            held: html::Held { limit_bytes: report.limit_bytes, threshold: Some(THRESHOLD) },
            better: better.collect(),
        }
    }

    fn report(&self, confs: &[(String, AllocConf)], observer: &dyn Observer) -> Result<LongRunReport, TuneError> {
        let (mut runs, mut tuned) = (Vec::new(), Vec::new());
        for batch_size in &self.args.to {
            let outline = Outline::of_steps(self.batching(*batch_size), &self.samples, self.steps);
            runs.extend(self.runs(*batch_size, &outline, confs, observer)?);
            if let Some((_, own)) = confs.first().filter(|_| self.args.tune) {
                tuned.push(self.tuned(*batch_size, &outline, self.candidate(own), observer)?);
            }
        }
        let limit_bytes = self.args.limit.map(|limit| limit.0);
        Ok(LongRunReport {
            method: self.forecaster.method(),
            reason: self.forecaster.reason(),
            axes: self.forecaster.axes().names().map(str::to_owned).collect(),
            notes: self.notes.clone(),
            limit_bytes,
            runs,
            tuned,
        })
    }

    /// The allocator that a configuration means: PyTorch's, unless it is the pool of a program that has no such variable.
    fn candidate(&self, conf: &AllocConf) -> Candidate {
        Candidate::of(match self.args.backend {
            Some(BackendArg::CudaMallocAsync) => Allocator::DriverPool(ReleaseThreshold::Max),
            Some(BackendArg::Native) => Allocator::Pytorch(AllocConf { backend: Backend::Native, ..conf.clone() }),
            None => Allocator::Pytorch(conf.clone()),
        })
    }

    /// The run under each setting that was asked for.
    fn runs(
        &self,
        batch_size: usize,
        outline: &Outline,
        confs: &[(String, AllocConf)],
        observer: &dyn Observer,
    ) -> Result<Vec<LongRunRow>, TuneError> {
        let play = |policy: Box<dyn Policy>, on_step: &mut dyn FnMut(u32)| self.play(outline, policy, on_step);
        let candidates: Vec<Candidate> = confs.iter().map(|(_, conf)| self.candidate(conf)).collect();
        let steps = u32::try_from(outline.steps).unwrap_or(u32::MAX);
        let bounds = Bounds { limit_bytes: self.limit_bytes, bound_bytes: u64::MAX, steps };
        let played = play_all(&play, &candidates, bounds, observer)?;
        let batches = Outline { batches: Vec::new(), ..outline.clone() };
        let rows = confs.iter().zip(played).map(|((conf, _), figures)| LongRunRow {
            batch_size,
            conf: conf.clone(),
            batches: batches.clone(),
            breach: judge(&figures, &self.terms()),
            figures,
        });
        Ok(rows.collect())
    }

    /// Settings and batches that would do better than these.
    fn tuned(
        &self,
        batch_size: usize,
        outline: &Outline,
        baseline: Candidate,
        observer: &dyn Observer,
    ) -> Result<Tuned, TuneError> {
        let play = |policy: Box<dyn Policy>, on_step: &mut dyn FnMut(u32)| self.play(outline, policy, on_step);
        let steps = u32::try_from(outline.steps).unwrap_or(u32::MAX);
        let (limit_bytes, terms) = (self.limit_bytes, Some(self.terms()));
        let tuning = tune(
            &Task { play: &play, baseline: baseline.clone(), limit_bytes, steps, terms, reach: Reach::default() },
            observer,
        )?;
        let remedies_under = tuning.choice().map_or(baseline, |choice| choice.candidate.clone());
        let play = |outline: &Outline, policy: Box<dyn Policy>, on_step: &mut dyn FnMut(u32)| {
            self.play(outline, policy, on_step)
        };
        let batching = self.batching(batch_size);
        let task = RemedyTask {
            play: &play,
            samples: &self.samples,
            batching,
            steps: self.steps,
            epoch_samples: self.samples.epoch(),
            candidate: &remedies_under,
            limit_bytes,
        };
        let remedies = remedies(&task, &standard(batching, &self.samples, outline), observer)?;
        Ok(Tuned { batch_size, tuning, remedies_under, remedies })
    }
}

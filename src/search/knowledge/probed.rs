//! Knowledge from recordings: a forecaster for every kind of point that was probed, and its answers judged.
//!
//! Forecasts are made under the allocator that the device itself has. The model of the CUDA driver's pool is approximate
//! (1 % measured, see [`crate::memory::policy::Settings::driver_pool`]), which the headroom that every point needs covers. Rates are also computed under the planned allocator where that is
//! another one, as the measured ones are.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::{Expectation, Kind, Knowledge, TunedConf};
use crate::config::plan::SafetyPlan;
use crate::memory::blocks::{BlockMap, worst_moment};
use crate::memory::forecast::curve::{Curve, CurvePoint};
use crate::memory::forecast::{
    Conditions, ForecastPoint, Forecaster, MIN_BATCH_SIZE, Method, Probe, Request, RunShape,
};
use crate::memory::policy::{self, AllocConf, Backend, Policy, Settings};
use crate::memory::{AllocatorKind, Event, MemorySample, Rates};
use crate::search::rules::fragmentation::FragmentationRate;
use crate::search::rules::headroom::Headroom;
use crate::search::rules::{Level, Rule, WARM_UP_STEPS};
use crate::search::{History, JudgedTrial};
use crate::trial::statistics::round_for_json;
use crate::trial::{Measurement, Outcome, Point, Purpose, TrialId, TrialRecord, TrialSpec};
use crate::units::Bytes;
use whole_run::Runs;

mod coming;
mod drawn;
mod plays;
mod recomputation;
mod remedies;
mod tuned;
mod whole_run;

pub use recomputation::Recomputation;
pub use remedies::Reach;
pub use whole_run::{Play, PlayedSteps, RunTerms, Watch};

/// How far an affine forecast may be off where no third probe told: lines through transformers' peaks were 8-14 % off.
const UNKNOWN_ERROR_PERCENT: f64 = 15.0;
/// An affine forecast's error at a third tiny probe is no bound of the error at a large batch.
const ERROR_FACTOR: f64 = 2.0;

/// Under which circumstances forecasts are made.
#[derive(Clone, Debug)]
pub struct Terms {
    /// C.
    pub limit_bytes: u64,
    /// The device's own allocator, by the name in its facts.
    pub allocator: AllocatorKind,
    /// Its settings, where they are PyTorch's.
    pub alloc_conf: Option<String>,
    /// The allocator of the planned run.
    pub planned: AllocatorKind,
    /// What counts as safe.
    pub safety: SafetyPlan,
    /// The run that is coming; `None` where it is not to be forecast.
    pub run: Option<RunTerms>,
}

/// A forecast as the recommendation states it.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// How it was made.
    pub method: Method,
    /// Why so.
    pub reason: String,
    /// The largest batch size that fits under C.
    pub largest_batch_size: Option<usize>,
    /// How far it was off: at the measured points, else at a third probe.
    pub error_percent: Option<f64>,
}

/// What was asked before: a kind, a batch size, and the allocator's settings.
type Question = (Kind, usize, Option<String>);

/// Recordings and what follows from them.
#[derive(Debug)]
pub struct Probed {
    terms: Terms,
    recordings: BTreeMap<Kind, BTreeMap<usize, Vec<Event>>>,
    forecasters: BTreeMap<Kind, Forecaster>,
    /// Replays take milliseconds to seconds, and strategies ask again and again.
    expected: RefCell<BTreeMap<Question, Option<Expectation>>>,
    largest: RefCell<BTreeMap<Kind, Option<usize>>>,
    tuned: RefCell<BTreeMap<Point, Option<TunedConf>>>,
    /// For whole runs.
    runs: Runs,
}

impl Probed {
    /// No recording yet.
    pub fn new(terms: Terms) -> Self {
        Self {
            terms,
            recordings: BTreeMap::new(),
            forecasters: BTreeMap::new(),
            expected: RefCell::default(),
            largest: RefCell::default(),
            tuned: RefCell::default(),
            runs: Runs::default(),
        }
    }

    /// Adds a probe's recording. Gives the forecast's method once there are two of its kind.
    pub fn add(&mut self, point: &Point, events: Vec<Event>) -> Option<Method> {
        let kind = Kind::of(point);
        let recordings = self.recordings.entry(kind).or_default();
        recordings.insert(point.batch_size, events);
        if recordings.len() < 2 {
            return None;
        }
        let probes: Vec<Probe<'_>> =
            recordings.iter().map(|(batch_size, events)| Probe { batch_size: *batch_size, events }).collect();
        let forecaster = Forecaster::new(&probes);
        let method = forecaster.method();
        self.forecasters.insert(kind, forecaster);
        self.expected.borrow_mut().retain(|(known, ..), _| *known != kind);
        self.largest.borrow_mut().remove(&kind);
        self.tuned.borrow_mut().clear();
        Some(method)
    }

    /// The forecast that speaks for a point, or for any where there is none; `None` before the probes have run.
    pub fn summary(&self, point: Option<&Point>, history: &History) -> Option<Summary> {
        let own = point.map(Kind::of).filter(|kind| self.forecasters.contains_key(kind));
        let Some(kind) = own.or_else(|| self.forecasters.keys().next_back().copied()) else {
            return Self::no_forecast(history);
        };
        let forecaster = self.forecasters.get(&kind)?;
        let device = self.device(point.and_then(|point| point.alloc_conf.as_deref()));
        let largest_batch_size = *self.largest.borrow_mut().entry(kind).or_insert_with(|| {
            let conditions = Conditions { limit_bytes: self.terms.limit_bytes, make_policy: &device };
            forecaster.largest_batch_size(&Request::default(), &conditions).ok().flatten()
        });
        let error_percent = self.measured_error(history).or_else(|| forecaster.error_percent(&device));
        Some(Summary {
            method: forecaster.method(),
            reason: forecaster.reason().to_string(),
            largest_batch_size,
            error_percent: error_percent.map(round_for_json),
        })
    }

    /// What is to be said where probes ran and gave nothing.
    fn no_forecast(history: &History) -> Option<Summary> {
        let mut probes = history.trials().iter().filter(|trial| trial.record.spec.is_probe());
        let (method, largest_batch_size, error_percent) = (Method::None, None, None);
        let failed = probes.clone().find(|trial| !trial.record.completed());
        let reason = match failed {
            Some(trial) => {
                format!("the probe at batch size {}: {}", trial.record.spec.point.batch_size, trial.record.ending())
            }
            None if probes.nth(1).is_some() => "the probes' recordings cannot be read".to_owned(),
            None => return None,
        };
        Some(Summary { method, reason, largest_batch_size, error_percent })
    }

    /// The largest difference between forecast and measured peaks, in percent of the measured.
    fn measured_error(&self, history: &History) -> Option<f64> {
        let off = |trial: &JudgedTrial| {
            let measurement = trial.record.measurement.as_ref().filter(|_| trial.record.spec.is_measuring())?;
            let point = &trial.record.spec.point;
            let expected = self.look_up(Kind::of(point), point.batch_size, point.alloc_conf.as_deref())?;
            let difference = |forecast: u64, measured: u64| {
                if measured == 0 { 0.0 } else { forecast.abs_diff(measured) as f64 / measured as f64 * 100.0 }
            };
            let allocated = difference(expected.peak_allocated_bytes, measurement.peak_allocated_bytes);
            Some(allocated.max(difference(expected.peak_reserved_bytes, measurement.peak_reserved_bytes)))
        };
        history.trials().iter().filter_map(off).reduce(f64::max)
    }

    /// How far the forecast of a kind may be off, as a share.
    fn margin(&self, forecaster: &Forecaster) -> f64 {
        if forecaster.method() == Method::Exact {
            return 0.0;
        }
        let percent = forecaster.error_percent(&self.device(None));
        let percent = percent.map_or(UNKNOWN_ERROR_PERCENT, |error| error * ERROR_FACTOR);
        (percent / 100.0).clamp(forecaster.method().error_of_a_play().0, 1.0)
    }

    /// The device's own allocator, with these settings in place of its own.
    fn device(&self, alloc_conf: Option<&str>) -> impl Fn(u64) -> Box<dyn Policy> + Sync + use<> {
        let settings = self.settings(alloc_conf);
        move |limit_bytes| policy::with_settings(settings, limit_bytes)
    }

    fn settings(&self, alloc_conf: Option<&str>) -> Settings {
        let conf = alloc_conf.or(self.terms.alloc_conf.as_deref()).and_then(|conf| conf.parse::<AllocConf>().ok());
        match conf {
            Some(conf) if conf.backend == Backend::Native => conf.settings,
            Some(_) => policy::settings_of(AllocatorKind::CudaMallocAsync),
            None => policy::settings_of(self.terms.allocator),
        }
    }

    /// The forecast of these batch sizes for points like this one, for the report: as many of them as `may_go_on` lets
    /// it compute. `None` without a forecast.
    pub fn curve(&self, point: &Point, sizes: &[usize], may_go_on: &dyn Fn() -> bool) -> Option<Curve> {
        let kind = Kind::of(point);
        let forecaster = self.forecasters.get(&kind).filter(|forecaster| forecaster.method() != Method::None)?;
        let (limit_bytes, device) = (self.terms.limit_bytes, self.device(point.alloc_conf.as_deref()));
        let conditions = Conditions { limit_bytes, make_policy: &device };
        let points = sizes.iter().take_while(|_| may_go_on()).filter_map(|batch_size| {
            let found = forecaster.point(RunShape::recorded(*batch_size), &conditions).ok().flatten()?;
            Some(CurvePoint {
                batch_size: *batch_size,
                peak_allocated_bytes: found.peak_allocated_bytes,
                peak_reserved_bytes: found.peak_reserved_bytes,
                fits: found.fits,
            })
        });
        Some(Curve {
            method: forecaster.method(),
            reason: forecaster.reason().to_string(),
            limit_bytes,
            accumulation_steps: kind.accumulation,
            points: points.collect(),
        })
    }

    /// Where the blocks of a point lie at its worst moment under C, for the report. `None` where its events are not known.
    pub fn block_map(&self, point: &Point) -> Option<BlockMap> {
        let forecaster = self.forecasters.get(&Kind::of(point))?;
        let events = forecaster.events(RunShape::recorded(point.batch_size)).ok().flatten()?;
        worst_moment(events, self.settings(point.alloc_conf.as_deref()), self.terms.limit_bytes)
    }

    fn look_up(&self, kind: Kind, batch_size: usize, alloc_conf: Option<&str>) -> Option<Expectation> {
        if batch_size < MIN_BATCH_SIZE {
            return None;
        }
        let key = (kind, batch_size, alloc_conf.map(str::to_owned));
        if let Some(known) = self.expected.borrow().get(&key) {
            return known.clone();
        }
        let computed = self.compute(kind, batch_size, alloc_conf);
        self.expected.borrow_mut().insert(key, computed.clone());
        computed
    }

    fn compute(&self, kind: Kind, batch_size: usize, alloc_conf: Option<&str>) -> Option<Expectation> {
        let forecaster = self.forecasters.get(&kind)?;
        let limit_bytes = self.terms.limit_bytes;
        let device = self.device(alloc_conf);
        let shape = RunShape::recorded(batch_size);
        let point = forecaster.point(shape, &Conditions { limit_bytes, make_policy: &device }).ok().flatten()?;
        let shadow = self.shadow_rates(forecaster, shape);
        let margin = self.margin(forecaster);
        Some(Expectation {
            peak_allocated_bytes: point.peak_allocated_bytes,
            peak_reserved_bytes: point.peak_reserved_bytes,
            limit_bytes,
            fits: point.fits,
            breach: self.breach(&point, shadow, margin),
        })
    }

    /// The rates under the planned allocator, where it is another one than the device's.
    fn shadow_rates(&self, forecaster: &Forecaster, shape: RunShape) -> Option<Rates> {
        let planned = self.terms.planned;
        let is_another = planned != AllocatorKind::Auto && planned != self.terms.allocator;
        is_another.then(|| rates_under(planned, forecaster, shape)).flatten()
    }

    /// The peak rate that a point would have under PyTorch's native allocator, for the report alone: what is measured on
    /// a pool that hardly fragments says nothing of a PyTorch program. `None` where the device's own allocator is that
    /// one, or the events of the point are not known exactly.
    pub fn native_peak_rate(&self, point: &Point) -> Option<f64> {
        let forecaster = self.forecasters.get(&Kind::of(point))?;
        let is_forecast = point.batch_size >= MIN_BATCH_SIZE && forecaster.method() == Method::Exact;
        if !is_forecast || self.terms.allocator == AllocatorKind::Native {
            return None;
        }
        let rates = rates_under(AllocatorKind::Native, forecaster, RunShape::recorded(point.batch_size))?;
        rates.peak.map(round_for_json)
    }

    /// The first rule that the forecast breaks, even if it is too high by `margin`.
    fn breach(&self, point: &ForecastPoint, shadow: Option<Rates>, margin: f64) -> Option<String> {
        let least = |bytes: u64| (bytes as f64 * (1.0 - margin)) as u64;
        let reserved = least(point.peak_reserved_bytes);
        let limit_bytes = self.terms.limit_bytes;
        let at_least = if margin > 0.0 { "at least " } else { "" };
        let does_not_fit = if margin > 0.0 { reserved > limit_bytes } else { !point.fits };
        if does_not_fit {
            return Some(format!(
                "does not fit by forecast: {at_least}{} at the peak, the limit is {}",
                Bytes(reserved),
                Bytes(limit_bytes)
            ));
        }
        let sample = MemorySample {
            step: WARM_UP_STEPS + 1,
            limit_bytes,
            peak_allocated_bytes: least(point.peak_allocated_bytes),
            peak_reserved_bytes: reserved,
            largest_request_bytes: least(point.largest_request_bytes),
            rates: point.rates,
            shadow,
            ..MemorySample::default()
        };
        let record = as_if_measured(point.batch_size, sample);
        // The rate of a forecast that may err says nothing yet; how much would stay free does, with the margin.
        let rules: &[&dyn Rule] = if margin > 0.0 { &[&Headroom] } else { &[&FragmentationRate, &Headroom] };
        let broken = rules
            .iter()
            .map(|rule| rule.check(&record, &self.terms.safety))
            .find(|finding| finding.level == Level::Failed);
        broken.map(|finding| format!("breaks a rule by forecast: {}", finding.reason))
    }
}

impl Knowledge for Probed {
    fn method(&self, kind: Kind) -> Option<Method> {
        self.forecasters.get(&kind).map(Forecaster::method)
    }

    fn wants_a_third_probe(&self, kind: Kind) -> bool {
        let probes = self.recordings.get(&kind).map_or(0, BTreeMap::len);
        let forecaster = self.forecasters.get(&kind).filter(|_| probes == 2);
        forecaster
            .is_some_and(|forecaster| forecaster.method() == Method::Affine || forecaster.doubtful_allocations() > 0)
    }

    fn expect(&self, kind: Kind, batch_size: usize) -> Option<Expectation> {
        self.look_up(kind, batch_size, None)
    }

    fn tuned_alloc_conf(&self, point: &Point) -> Option<TunedConf> {
        self.tuned(point)
    }

    fn can_play(&self, point: &Point) -> bool {
        self.is_playable(point)
    }

    fn expect_under(&self, kind: Kind, batch_size: usize, alloc_conf: &str) -> Option<Expectation> {
        self.look_up(kind, batch_size, Some(alloc_conf))
    }
}

/// The rates of a run under an allocator that has all the memory it wants.
fn rates_under(allocator: AllocatorKind, forecaster: &Forecaster, shape: RunShape) -> Option<Rates> {
    let conditions = Conditions { limit_bytes: u64::MAX, make_policy: &policies(allocator) };
    forecaster.point(shape, &conditions).ok().flatten().map(|point| point.rates)
}

/// Policies of a kind.
fn policies(kind: AllocatorKind) -> impl Fn(u64) -> Box<dyn Policy> + Sync {
    move |limit_bytes| policy::build(kind, limit_bytes)
}

/// A forecast in the form that the safety rules read.
fn as_if_measured(batch_size: usize, sample: MemorySample) -> TrialRecord {
    let point = Point::plain(batch_size);
    let (warmup_steps, steps, sample_every) = (WARM_UP_STEPS, 1, 1);
    let measurement = Measurement {
        peak_allocated_bytes: sample.peak_allocated_bytes,
        peak_reserved_bytes: sample.peak_reserved_bytes,
        largest_request_bytes: sample.largest_request_bytes,
        ..Measurement::default()
    };
    TrialRecord {
        spec: TrialSpec {
            id: TrialId(0),
            purpose: Purpose::Probe,
            point,
            warmup_steps,
            steps,
            sample_every,
            sample_size: None,
        },
        outcome: Outcome::Completed,
        rank: None,
        measurement: Some(measurement),
        samples: vec![sample],
        warnings: Vec::new(),
        outlook: None,
        seconds: 0.0,
        worker: None,
        ranks: Vec::new(),
    }
}

#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod tests;

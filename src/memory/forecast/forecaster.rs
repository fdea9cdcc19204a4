//! Probes in, forecasts out: which method holds, and each figure by it.

use super::basis::{Basis, Reason, basis, with_equal_updates};
use super::largest::{Sizes, largest_batch_size};
use super::peaks::{PeakLines, Peaks, measured};
use super::recording::Recording;
use super::replay::{Replay, first_overrun, peak_requested_bytes, replay};
use super::report::{ForecastPoint, Method, Report};
use super::run::{MIN_BATCH_SIZE, RunEvents, RunShape, script};
use super::{Conditions, ForecastError, MakePolicy, Probe, Probed, Request};
use crate::memory::fragmentation::Rates;

/// Forecasts runs from probes.
#[derive(Clone, Debug)]
pub struct Forecaster {
    /// In ascending order of batch size, each of another one.
    probes: Vec<Probed>,
    basis: Basis,
    reason: Reason,
}

impl Forecaster {
    /// Aligns and fits probes, in any order. It always succeeds; [`method`](Self::method) says how far.
    ///
    /// Probes of a batch below 2 are left out, and all but the first of one batch size. If the probes hold different
    /// numbers of updates, the longer ones are cut to the shortest.
    pub fn new(probes: &[Probe<'_>]) -> Self {
        let mut probes: Vec<&Probe<'_>> = probes.iter().filter(|probe| probe.batch_size >= MIN_BATCH_SIZE).collect();
        probes.sort_by_key(|probe| probe.batch_size);
        probes.dedup_by_key(|probe| probe.batch_size);
        let canonical =
            |probe: &&Probe<'_>| Probed { batch_size: probe.batch_size, recording: Recording::of(probe.events) };
        let probes = with_equal_updates(probes.iter().map(canonical).collect());
        let (basis, reason) = basis(&probes);
        Self { probes, basis, reason }
    }

    /// How forecasts are made.
    pub fn method(&self) -> Method {
        match (&self.basis, self.reason) {
            (Basis::Sizes { .. }, Reason::Aligned { .. }) => Method::Exact,
            (Basis::Sizes { .. } | Basis::Peaks, _) => Method::Affine,
            (Basis::Nothing, _) => Method::None,
        }
    }

    /// Why they are made so.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Allocations whose fit a third probe would confirm or refute.
    pub fn doubtful_allocations(&self) -> usize {
        match self.reason {
            Reason::Aligned { doubtful, .. } => doubtful,
            _ => 0,
        }
    }

    /// The events of a run, made one at a time. `None` where the method knows peaks only.
    pub fn events(&self, shape: RunShape) -> Result<Option<RunEvents<'_>>, ForecastError> {
        let (Basis::Sizes { sizes, .. }, Some(probe)) = (&self.basis, self.probes.first()) else {
            return Ok(None);
        };
        let script = script(&probe.recording, shape)?;
        Ok(Some(RunEvents::new(&probe.recording, Some(sizes), script)))
    }

    /// Everything `tune forecast` says.
    pub fn report(&self, request: &Request, conditions: &Conditions<'_>) -> Result<Report, ForecastError> {
        if let Some(&batch_size) = request.batch_sizes.iter().find(|batch_size| **batch_size < MIN_BATCH_SIZE) {
            return Err(ForecastError::BatchTooSmall { batch_size });
        }
        let lines = self.peak_lines(conditions.make_policy);
        let lines = lines.as_ref();
        let point = |batch_size: &usize| self.point_by(lines, request.shape(*batch_size), conditions).transpose();
        Ok(Report {
            method: self.method(),
            error_percent: self.error_percent_by(lines, conditions.make_policy),
            reason: self.reason_by(lines),
            doubtful_allocations: self.doubtful_allocations(),
            points: request.batch_sizes.iter().filter_map(point).collect::<Result<_, _>>()?,
            largest_batch_size: self.largest_by(lines, request, conditions)?,
        })
    }

    /// The run at one batch size. `None` where the method is `none`.
    pub fn point(&self, shape: RunShape, conditions: &Conditions<'_>) -> Result<Option<ForecastPoint>, ForecastError> {
        self.point_by(self.peak_lines(conditions.make_policy).as_ref(), shape, conditions)
    }

    /// The largest batch size that fits under the limit (see [`MAX_BATCH_SIZE`](super::MAX_BATCH_SIZE)), for runs as
    /// the request asks; its batch sizes do not matter. `None` without a limit, or where not even 2 samples fit.
    pub fn largest_batch_size(
        &self,
        request: &Request,
        conditions: &Conditions<'_>,
    ) -> Result<Option<usize>, ForecastError> {
        self.largest_by(self.peak_lines(conditions.make_policy).as_ref(), request, conditions)
    }

    /// How far the method was off at the largest probe when fitted to the others; the worse of peak allocated and peak
    /// reserved. `None` with fewer than three probes.
    pub fn error_percent(&self, make_policy: MakePolicy<'_>) -> Option<f64> {
        self.error_percent_by(self.peak_lines(make_policy).as_ref(), make_policy)
    }

    fn peak_lines(&self, make_policy: MakePolicy<'_>) -> Option<PeakLines> {
        matches!(self.basis, Basis::Peaks).then(|| PeakLines::of(&self.probes, make_policy))
    }

    fn error_percent_by(&self, lines: Option<&PeakLines>, make_policy: MakePolicy<'_>) -> Option<f64> {
        let Basis::Sizes { judged, .. } = &self.basis else { return lines?.error_percent() };
        let [first, _, .., last] = self.probes.as_slice() else { return None };
        let Some(judged) = judged else {
            // Every size of every probe is on its line: the replays are the same, event by event.
            return Some(0.0);
        };
        let script = script(&first.recording, RunShape::recorded(last.batch_size)).ok()?;
        let forecast = replay(RunEvents::new(&first.recording, Some(judged), script), make_policy(u64::MAX));
        let actual = measured(last.batch_size, &last.recording, make_policy);
        Some(Peaks::of(&forecast).error_percent(&actual))
    }

    /// The reason, with what the peaks say of recordings that cannot be compared otherwise.
    fn reason_by(&self, lines: Option<&PeakLines>) -> String {
        let says_nothing_of_it = matches!(self.reason, Reason::Misaligned(_));
        if says_nothing_of_it && lines.is_some_and(|lines| !lines.grow()) {
            return format!("{}, which do not grow with the batch: the recordings may be swapped", self.reason);
        }
        self.reason.to_string()
    }

    fn point_by(
        &self,
        lines: Option<&PeakLines>,
        shape: RunShape,
        conditions: &Conditions<'_>,
    ) -> Result<Option<ForecastPoint>, ForecastError> {
        if let Some(run) = self.events(shape)? {
            return Ok(Some(replayed(shape.batch_size, &run, conditions)));
        }
        if shape.batch_size < MIN_BATCH_SIZE {
            return Err(ForecastError::BatchTooSmall { batch_size: shape.batch_size });
        }
        let peaks = lines.map(|lines| lines.at(shape.batch_size));
        Ok(peaks.map(|peaks| ForecastPoint {
            batch_size: shape.batch_size,
            peak_allocated_bytes: peaks.allocated,
            peak_reserved_bytes: peaks.reserved,
            largest_request_bytes: peaks.largest_request,
            rates: peaks.rates(),
            // A real allocator could release cache to fit; nothing here can tell whether it would.
            fits: peaks.reserved <= conditions.limit_bytes && peaks.reserved < u64::MAX,
            retries: None,
            windows: Vec::new(),
        }))
    }

    fn largest_by(
        &self,
        lines: Option<&PeakLines>,
        request: &Request,
        conditions: &Conditions<'_>,
    ) -> Result<Option<usize>, ForecastError> {
        // What cannot be forecast at one size cannot be at another.
        self.events(RunShape { batch_size: MIN_BATCH_SIZE, ..request.shape(usize::MAX) })?;
        let unanswerable = matches!(self.basis, Basis::Nothing) || lines.is_some_and(|lines| !lines.grow());
        if conditions.limit_bytes == u64::MAX || unanswerable {
            return Ok(None);
        }
        Ok(largest_batch_size(&Question { forecaster: self, lines, request, conditions }))
    }
}

/// A run under the limit, and without one where it does not fit.
fn replayed(batch_size: usize, run: &RunEvents<'_>, conditions: &Conditions<'_>) -> ForecastPoint {
    let limited = replay(run.clone(), (conditions.make_policy)(conditions.limit_bytes));
    let (fits, retries) = (limited.overrun.is_none(), limited.counts.retries);
    let replay: Replay = if fits { limited } else { replay(run.clone(), (conditions.make_policy)(u64::MAX)) };
    if replay.overrun.is_some() {
        // Its figures are of what was left after the requests that no address space holds.
        return ForecastPoint {
            batch_size,
            peak_allocated_bytes: u64::MAX,
            peak_reserved_bytes: u64::MAX,
            largest_request_bytes: replay.largest_request_bytes,
            rates: Rates::default(),
            fits,
            retries: Some(retries),
            windows: Vec::new(),
        };
    }
    ForecastPoint {
        batch_size,
        peak_allocated_bytes: replay.peak_allocated_bytes,
        peak_reserved_bytes: replay.peak_reserved_bytes,
        largest_request_bytes: replay.largest_request_bytes,
        rates: replay.rates,
        fits,
        retries: Some(retries),
        windows: replay.windows,
    }
}

/// The search for the largest batch size, by the forecaster's method.
struct Question<'a> {
    forecaster: &'a Forecaster,
    lines: Option<&'a PeakLines>,
    request: &'a Request,
    conditions: &'a Conditions<'a>,
}

impl Question<'_> {
    fn run(&self, batch_size: usize) -> Option<RunEvents<'_>> {
        self.forecaster.events(self.request.shape(batch_size)).ok().flatten()
    }

    fn on_the_line(&self, batch_size: usize) -> bool {
        self.lines.is_some_and(|lines| lines.at(batch_size).reserved <= self.conditions.limit_bytes)
    }
}

impl Sizes for Question<'_> {
    fn may_fit(&self, batch_size: usize) -> bool {
        match self.run(batch_size) {
            Some(run) => peak_requested_bytes(run) <= self.conditions.limit_bytes,
            None => self.on_the_line(batch_size),
        }
    }

    fn fits(&self, batch_size: usize) -> bool {
        match self.run(batch_size) {
            Some(run) => {
                let policy = (self.conditions.make_policy)(self.conditions.limit_bytes);
                first_overrun(run, policy).is_none()
            }
            None => self.on_the_line(batch_size),
        }
    }
}

//! Replays in the form of `tune replay`: one under given settings, or a sensible set of settings side by side.

use serde::Serialize;

use super::fragmentation::{Rates, external_rate, peak_rate, reserved_rate};
use super::parallel::in_parallel;
use super::policy::{AllocConf, Backend, PoolState, ReleaseThreshold, Settings};
use super::replay::{self, ReplayError, Replayed, StepFigures};
use super::trace::Trace;
use crate::units::Fraction;

/// Settings that are worth a try, in the form of the environment variable. The recording's own come first.
const CANDIDATES: [&str; 11] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.8,max_split_size_mb:128",
    "backend:cudaMallocAsync",
];

/// What to replay under.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayOptions {
    /// The settings; the recording's own where there are none.
    pub conf: Option<AllocConf>,
    /// The limit; none where there is none.
    pub limit_bytes: Option<u64>,
}

/// What one replay came to. The names are those of the JSON that `tune replay --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayReport {
    /// The allocator.
    pub backend: &'static str,
    /// Its settings, as the environment variable writes them.
    pub conf: String,
    /// Events of the recording.
    pub events: u64,
    /// The limit.
    pub limit_bytes: Option<u64>,
    /// The highest A.
    pub peak_allocated_bytes: u64,
    /// The highest V.
    pub peak_reserved_bytes: u64,
    /// The largest single request.
    pub largest_request_bytes: u64,
    /// Segments (or groups of pages) taken from the device.
    pub segments_allocated: u64,
    /// Segments (or groups of pages) given back.
    pub segments_freed: u64,
    /// Requests that had to release the cache first.
    pub retries: u64,
    /// The event at which it runs out, where it does.
    pub oom_at_event: Option<u64>,
    /// The smallest limit on which the recording survives; `null` where there is none.
    pub minimum_limit_bytes: Option<u64>,
    /// The rates over the whole recording. Without a limit `external` takes V as one.
    pub rates: Rates,
    /// The figures of each step, where the recording marks steps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepFigures>,
}

/// Replays a recording once. Under its own settings and no limit its own releases are followed.
pub fn report(trace: &Trace, options: &ReplayOptions) -> Result<ReplayReport, ReplayError> {
    let conf = options.conf.as_ref().unwrap_or(&trace.conf);
    let settings = settings_of(conf);
    // A limit is the device's; the process may have a share of it.
    let share = conf.settings.per_process_memory_fraction.map_or(Fraction(1.0), Fraction);
    let limit_bytes = options.limit_bytes.map(|bytes| if share.0 < 1.0 { share.of(bytes) } else { bytes });
    let follows =
        limit_bytes.is_none() && options.conf.is_none() && trace.obstacle.is_none() && !trace.segments.is_empty();
    let replayed = if follows {
        replay::reproduce(trace)?.replayed
    } else {
        replay::replay(trace, settings, limit_bytes.unwrap_or(u64::MAX))?
    };
    let minimum_limit_bytes = replay::minimum_limit(trace, settings)?;
    Ok(ReplayReport {
        backend: conf.backend.name(),
        conf: conf.to_string(),
        events: trace.events.len() as u64,
        limit_bytes,
        peak_allocated_bytes: replayed.state.peak_allocated_bytes,
        peak_reserved_bytes: replayed.state.peak_reserved_bytes,
        largest_request_bytes: replayed.largest_request_bytes,
        segments_allocated: replayed.counts.segments_allocated,
        segments_freed: replayed.counts.segments_freed,
        retries: replayed.counts.retries,
        oom_at_event: replayed.out_of_memory.map(|(event, _)| event),
        minimum_limit_bytes,
        rates: rates(&replayed, limit_bytes, &settings),
        steps: replayed.steps,
    })
}

/// The model of the allocator that a configuration asks for. PyTorch keeps what the driver's pool holds.
fn settings_of(conf: &AllocConf) -> Settings {
    match conf.backend {
        Backend::Native => conf.settings,
        Backend::CudaMallocAsync => Settings {
            per_process_memory_fraction: conf.settings.per_process_memory_fraction,
            ..Settings::driver_pool(ReleaseThreshold::Max)
        },
    }
}

fn rates(replayed: &Replayed, limit_bytes: Option<u64>, settings: &Settings) -> Rates {
    let state: &PoolState = &replayed.state;
    let (largest, limit) = if let Some(limit) = limit_bytes {
        (state.largest_satisfiable_bytes, limit)
    } else {
        let free = state.reserved_bytes.saturating_sub(state.allocated_bytes);
        let releasable = free.saturating_sub(state.unreleasable_bytes);
        (state.largest_free_bytes.max(settings.largest_in_new_segment(releasable)), state.reserved_bytes)
    };
    Rates {
        peak: peak_rate(state.peak_allocated_bytes, state.peak_reserved_bytes),
        external: external_rate(largest, state.allocated_bytes, limit),
        reserved: reserved_rate(state.allocated_bytes, state.reserved_bytes),
    }
}

/// Replays a recording under its own settings and a set of others, in parallel, the best first: those that survive the
/// limit, then by the smallest limit they need, then by what they reserve, then by retries.
pub fn compare(trace: &Trace, limit_bytes: Option<u64>) -> Result<Vec<ReplayReport>, ReplayError> {
    let mut confs = vec![trace.conf.clone()];
    for candidate in CANDIDATES {
        // They parse; a test says so.
        if let Ok(conf) = candidate.parse::<AllocConf>()
            && !confs.contains(&conf)
        {
            confs.push(conf);
        }
    }
    let mut reports =
        in_parallel(&confs, |conf| report(trace, &ReplayOptions { conf: Some(conf.clone()), limit_bytes }))?;
    reports.sort_by_key(|report| {
        let failed = report.oom_at_event.is_some();
        (failed, report.minimum_limit_bytes.unwrap_or(u64::MAX), report.peak_reserved_bytes, report.retries)
    });
    Ok(reports)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::memory::snapshot::Snapshot;
    use crate::units::GIB;

    fn trace(name: &str) -> Trace {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        Snapshot::read(&std::fs::read(file).unwrap()).unwrap().trace(0)
    }

    #[test]
    fn every_candidate_parses() {
        for candidate in CANDIDATES {
            assert_eq!(candidate.parse::<AllocConf>().unwrap().to_string(), candidate);
        }
    }

    #[test]
    fn a_recording_replays_to_its_own_peaks() {
        let found = report(&trace("pytorch/varlen.pickle"), &ReplayOptions::default()).unwrap();
        assert_eq!((found.peak_allocated_bytes, found.peak_reserved_bytes), (1_098_010_112, 1_275_068_416));
        assert_eq!((found.segments_allocated, found.segments_freed, found.retries), (71, 0, 0));
        assert_eq!(found.oom_at_event, None);
        let minimum = found.minimum_limit_bytes.unwrap();
        assert!((1_098_010_112 - (200 << 20)..=1_275_068_416).contains(&minimum), "{minimum}");
    }

    #[test]
    fn the_recorded_failure_fails_again_under_its_limit_and_the_comparison_finds_a_way_out() {
        let trace = trace("pytorch/oom_fragmented.pickle");
        let limit_bytes = Some(2 * GIB);
        let own = report(&trace, &ReplayOptions { conf: None, limit_bytes }).unwrap();
        assert_eq!((own.oom_at_event, own.retries), (Some(240), 1));
        assert_eq!(own.minimum_limit_bytes, Some(2_013_265_920 + (600 << 20)));
        let conf = Some("expandable_segments:True".parse().unwrap());
        let expandable = report(&trace, &ReplayOptions { conf, limit_bytes }).unwrap();
        // Holes of 30 MiB hold one page of 20 MiB at most: 360 of 900 MiB can be released, as the reference model says.
        assert_eq!((expandable.oom_at_event, expandable.minimum_limit_bytes), (Some(240), Some(2160 << 20)));
        let ranked = compare(&trace, limit_bytes).unwrap();
        assert_eq!((ranked[0].conf.as_str(), ranked[0].oom_at_event), ("max_split_size_mb:32", None));
        assert!(ranked.len() >= 10 && ranked.iter().any(|report| report.oom_at_event == Some(240)));
    }

    #[test]
    fn the_truth_of_the_forecast_fixtures_is_reproduced_from_events_alone() {
        let found = report(&trace("forecast/gpt2_medium_b2.pickle"), &ReplayOptions::default()).unwrap();
        assert_eq!(found.peak_allocated_bytes, 6_558_793_216);
    }

    #[test]
    fn the_drivers_pool_takes_memory_in_its_own_steps() {
        let conf = Some("backend:cudaMallocAsync".parse().unwrap());
        let found = report(&trace("pytorch/gpt_fixed.pickle"), &ReplayOptions { conf, limit_bytes: None }).unwrap();
        assert_eq!(found.backend, "cudaMallocAsync");
        assert_eq!(found.peak_reserved_bytes % (32 << 20), 0);
        assert!(found.peak_reserved_bytes >= found.peak_allocated_bytes);
    }
}

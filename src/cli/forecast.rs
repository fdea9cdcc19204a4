//! `tune forecast`: what a run takes at any batch size, from recordings at two tiny ones.

use std::fmt::Write;

use super::long_run::LongRunError;
use super::{ForecastArgs, Form, input, long_run, print_result, rate};
use crate::error::Error;
use crate::exit_code;
use crate::memory::Event;
use crate::memory::forecast::{Conditions, Forecaster, MIN_BATCH_SIZE, Probe, Report, Request};
use crate::memory::policy::native::Native;
use crate::memory::policy::{AllocConf, Backend, Policy};
use crate::memory::trace::MAX_EVENTS;
use crate::units::Bytes;

/// Why recordings are not forecast from.
#[derive(Debug, thiserror::Error)]
pub enum ForecastInputError {
    /// Every recording has a batch size of its own.
    #[error("{files} recordings and {batches} batch sizes (hint: `--batches` has one for each file, in their order)")]
    Unpaired {
        /// Files.
        files: usize,
        /// Sizes.
        batches: usize,
    },
    /// A recording of a batch that is no probe.
    #[error(
        "`--batches`: a recording at a batch of `{batch_size}` says nothing of others (hint: record at {MIN_BATCH_SIZE} or more)"
    )]
    ProbeTooSmall {
        /// The size.
        batch_size: usize,
    },
    /// Two recordings at one size.
    #[error("`--batches`: `{batch_size}` is there twice (hint: a forecast needs two different sizes)")]
    Twice {
        /// The size.
        batch_size: usize,
    },
    /// The same recording was given for two sizes.
    #[error(
        "the recordings at batches of `{first}` and `{second}` are the same (hint: every file is of another batch size)"
    )]
    Same {
        /// The size that was given first.
        first: usize,
        /// The other.
        second: usize,
    },
    /// More than is held in memory.
    #[error("the recordings have more than {limit} events together (hint: record fewer steps; a handful tells all)")]
    TooLong {
        /// The most events.
        limit: usize,
    },
    /// There is no model of the allocator.
    #[error("there is no model of the allocator `{0}` (hint: leave `backend` out of `--conf`)")]
    Backend(&'static str),
    /// Settings are compared over long runs only.
    #[error("several settings are compared over a long run only (hint: one `--conf`, or `--run`)")]
    SeveralConfs,
    /// The long run cannot be forecast.
    #[error(transparent)]
    LongRun(#[from] LongRunError),
    /// The run cannot be forecast.
    #[error(transparent)]
    Forecast(#[from] crate::memory::forecast::ForecastError),
}

pub(super) fn run(args: &ForecastArgs) -> Result<u8, Error> {
    check_batches(args)?;
    if args.is_whole_run() {
        return long_run(args);
    }
    let (recordings, own) = read(args)?;
    recordings.check_distinct()?;
    let recordings = recordings.of_batches;
    let conf = match args.conf.as_slice() {
        [] => own,
        [text] => text.parse::<AllocConf>()?,
        [_, _, ..] => return Err(ForecastInputError::SeveralConfs.into()),
    };
    if conf.backend != Backend::Native {
        return Err(ForecastInputError::Backend(conf.backend.name()).into());
    }
    let probes: Vec<Probe<'_>> =
        recordings.iter().map(|(batch_size, events)| Probe { batch_size: *batch_size, events }).collect();
    let settings = conf.settings;
    let make_policy = move |limit| Box::new(Native::with_settings(settings, limit)) as Box<dyn Policy>;
    let limit_bytes = args.limit.map_or(u64::MAX, |limit| limit.0);
    let conditions = Conditions { limit_bytes, make_policy: &make_policy };
    let request = Request { batch_sizes: args.to.clone(), updates: args.updates, partial_batch_size: args.last_batch };
    let report = Forecaster::new(&probes).report(&request, &conditions).map_err(ForecastInputError::from)?;
    match Form::of(args.json) {
        Form::Json => print_result(&format!("{}\n", super::to_json(&report)))?,
        Form::Table => print_result(&table(&report, args.limit))?,
    }
    Ok(exit_code::SAFE)
}

/// The forecast of a long run, under the recordings' own setting or those that were asked for.
fn long_run(args: &ForecastArgs) -> Result<u8, Error> {
    let (recordings, own) = read(args)?;
    let asked = args.conf.iter().map(|text| Ok((text.clone(), text.parse::<AllocConf>()?)));
    let mut confs: Vec<(String, AllocConf)> = asked.collect::<Result<_, Error>>()?;
    if confs.is_empty() {
        confs.push((String::new(), own));
    }
    long_run::run(args, &recordings.of_batches, &confs)
}

/// The recordings, and the settings of the last one.
fn read(args: &ForecastArgs) -> Result<(Recordings, AllocConf), Error> {
    let mut recordings = Recordings::within(MAX_EVENTS);
    let mut own = AllocConf::default();
    for (file, batch_size) in args.files.iter().zip(&args.batches) {
        let trace = input::recording(file)?.into_trace();
        own = trace.conf;
        recordings.add(*batch_size, trace.events)?;
    }
    Ok((recordings, own))
}

/// The events of every recording, which are all in memory at once.
#[derive(Debug)]
struct Recordings {
    of_batches: Vec<(usize, Vec<Event>)>,
    /// Events that there is room for.
    left: usize,
    limit: usize,
}

impl Recordings {
    fn within(limit: usize) -> Self {
        Self { of_batches: Vec::new(), left: limit, limit }
    }

    fn add(&mut self, batch_size: usize, events: Vec<Event>) -> Result<(), ForecastInputError> {
        let left = self.left.checked_sub(events.len());
        self.left = left.ok_or(ForecastInputError::TooLong { limit: self.limit })?;
        self.of_batches.push((batch_size, events));
        Ok(())
    }

    /// Memory that no batch changes would be forecast as enough for every batch.
    fn check_distinct(&self) -> Result<(), ForecastInputError> {
        for (index, (batch_size, events)) in self.of_batches.iter().enumerate() {
            let mut before = self.of_batches.iter().take(index);
            if let Some((first, _)) = before.find(|(_, known)| known == events) {
                return Err(ForecastInputError::Same { first: *first, second: *batch_size });
            }
        }
        Ok(())
    }
}

fn check_batches(args: &ForecastArgs) -> Result<(), ForecastInputError> {
    let (files, batches) = (args.files.len(), args.batches.len());
    if files != batches {
        return Err(ForecastInputError::Unpaired { files, batches });
    }
    for (index, batch_size) in args.batches.iter().copied().enumerate() {
        if batch_size < MIN_BATCH_SIZE {
            return Err(ForecastInputError::ProbeTooSmall { batch_size });
        }
        // Recordings of one batch size may differ in their length.
        if !args.is_whole_run() && args.batches.iter().take(index).any(|before| *before == batch_size) {
            return Err(ForecastInputError::Twice { batch_size });
        }
    }
    Ok(())
}

fn table(report: &Report, limit: Option<Bytes>) -> String {
    let error = report.error_percent.map_or_else(|| "not checked".to_owned(), |error| format!("{error:.2}% off"));
    // Writing to a String cannot fail.
    let mut text = format!("{} ({error}): {}\n\n", report.method, report.reason);
    let digits = report.points.iter().map(|point| point.batch_size.to_string().len()).max().unwrap_or(0);
    let width = digits.max("batch".len());
    let _ = writeln!(
        text,
        "{:>width$}  {:>14}  {:>14}  {:>15}  {:>10}  result",
        "batch", "peak allocated", "peak reserved", "largest request", "fragmented"
    );
    for point in &report.points {
        let result = match (limit, point.fits, point.retries) {
            (None, true, _) => "-".to_owned(),
            // Without a limit too: there are sizes beyond every address space.
            (_, false, _) => "does not fit".to_owned(),
            (Some(_), true, Some(retries)) if retries > 0 => {
                format!("fits, releasing its cache {}", crate::units::plural(retries as usize, "time"))
            }
            (Some(_), true, _) => "fits".to_owned(),
        };
        let _ = writeln!(
            text,
            "{:>width$}  {:>14}  {:>14}  {:>15}  {:>10}  {result}",
            point.batch_size,
            size(point.peak_allocated_bytes),
            size(point.peak_reserved_bytes),
            size(point.largest_request_bytes),
            rate(point.rates.peak),
        );
    }
    if let Some(limit) = limit {
        let largest = match report.largest_batch_size {
            Some(size) => size.to_string(),
            // A line through peaks that do not grow meets no limit, and what lies on it says little.
            None if report.points.iter().any(|point| point.fits) => {
                "not known, since the larger recording took no more than the smaller one".to_owned()
            }
            None => "none".to_owned(),
        };
        let _ = writeln!(text, "\nlargest batch that fits under {limit}: {largest}");
    }
    text
}

/// A size for people; there are some beyond every count.
fn size(bytes: u64) -> String {
    if bytes == u64::MAX { "over 16 EiB".to_owned() } else { Bytes(bytes).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Ordinal, Stream};

    fn events(count: usize) -> Vec<Event> {
        (0..count as u64).map(|number| Event::Alloc { ordinal: Ordinal(number), bytes: 8, stream: Stream(0) }).collect()
    }

    #[test]
    fn recordings_are_held_up_to_a_bound_for_all_of_them() {
        let mut recordings = Recordings::within(5);
        recordings.add(2, events(2)).unwrap();
        recordings.add(3, events(3)).unwrap();
        assert!(matches!(recordings.add(4, events(1)), Err(ForecastInputError::TooLong { limit: 5 })));
        assert_eq!(recordings.of_batches.len(), 2);
    }

    #[test]
    fn a_recording_of_two_batches_is_none_of_either() {
        let mut recordings = Recordings::within(9);
        recordings.add(2, events(2)).unwrap();
        recordings.add(3, events(3)).unwrap();
        assert!(recordings.check_distinct().is_ok());
        recordings.add(4, events(2)).unwrap();
        assert!(matches!(recordings.check_distinct(), Err(ForecastInputError::Same { first: 2, second: 4 })));
    }
}

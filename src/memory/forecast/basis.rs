//! What forecasts are made from, and why from no more than that: the probes aligned and fitted.

use std::fmt;

use super::Probed;
use super::align::{Difference, align};
use super::run::{MIN_BATCH_SIZE, count_updates, with_updates};
use super::size::{Fit, Misfit, Sample, Size, fit};
use crate::units::plural;

/// Sizes that do not fit are continued by a line only while they are this share of all bytes; where more is off, the
/// probes did not really do the same.
const MAX_MISFIT_SHARE: f64 = 0.01;

/// Why a forecast has its method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The probes align and all sizes fit.
    Aligned {
        /// Allocations in the run.
        allocations: usize,
        /// Those that padding could have made to look affine.
        doubtful: usize,
        /// Probes beyond the first two, all of which agree.
        checks: usize,
    },
    /// The probes align, but some sizes fit no whole numbers.
    SizesOff {
        /// How many.
        count: usize,
        /// The first of them.
        first_ordinal: usize,
        /// Why that one does not fit.
        misfit: Misfit,
        /// Whether they are few enough to be continued by a line, so that the run is still replayed.
        are_continued: bool,
    },
    /// The probe at a larger batch asks for less, allocation by allocation: it is not what it was said to be.
    Shrinking {
        /// The two batch sizes, the smaller one first.
        batch_sizes: [usize; 2],
    },
    /// The probes do not align.
    Misaligned(Difference),
    /// There are no two probes at different batch sizes of 2 or more.
    TooFewProbes {
        /// How many there are.
        usable: usize,
    },
    /// The probes recorded nothing.
    NothingRecorded,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aligned { allocations, doubtful, checks } => {
                write!(f, "the probes align and all {} fit a + b·B", plural(*allocations, "allocation"))?;
                match (checks, doubtful) {
                    (0, 0) => Ok(()),
                    (0, doubtful) => {
                        write!(f, "; {doubtful} could be padded sizes, which a probe at a third batch size would tell")
                    }
                    (checks, _) => write!(f, ", as {} confirmed", plural(*checks, "further probe")),
                }
            }
            Self::SizesOff { count, first_ordinal, misfit, are_continued } => {
                write!(f, "{} of aligned probes fit no a + b·B, first number {first_ordinal}: {misfit}; ", {
                    plural(*count, "allocation")
                })?;
                f.write_str(if *are_continued {
                    "they are small and were continued by lines"
                } else {
                    "lines through the probes' peaks are used"
                })
            }
            Self::Shrinking { batch_sizes: [smaller, larger] } => write!(
                f,
                "the probe at a batch of {larger} asks for less memory than the one at {smaller}, so the two may be \
                 swapped; lines through the probes' peaks are used"
            ),
            Self::Misaligned(difference) => write!(f, "{difference}; lines through the probes' peaks are used"),
            Self::TooFewProbes { usable } => write!(
                f,
                "two probes at different batch sizes of at least {MIN_BATCH_SIZE} are needed, and there {} {usable}",
                if *usable == 1 { "is" } else { "are" }
            ),
            Self::NothingRecorded => f.write_str("the probes recorded no allocation"),
        }
    }
}

/// What the forecasts are made from.
#[derive(Clone, Debug)]
pub(super) enum Basis {
    /// Sizes by ordinal of the first probe.
    Sizes {
        sizes: Vec<Size>,
        /// The same fitted without the largest probe, where some are off and that one can judge them.
        judged: Option<Vec<Size>>,
    },
    Peaks,
    Nothing,
}

/// Cuts probes with more updates than the shortest has, where that can be done.
pub(super) fn with_equal_updates(mut probes: Vec<Probed>) -> Vec<Probed> {
    let counts: Vec<usize> = probes.iter().map(|probe| count_updates(&probe.recording)).collect();
    let (Some(&fewest), Some(&most)) = (counts.iter().min(), counts.iter().max()) else { return probes };
    if fewest == most || fewest == 0 {
        return probes;
    }
    for probe in &mut probes {
        if let Some(cut) = with_updates(&probe.recording, probe.batch_size, fewest) {
            probe.recording = cut;
        }
    }
    probes
}

/// What can be made of probes, and why not more.
pub(super) fn basis(probes: &[Probed]) -> (Basis, Reason) {
    let [first, others @ ..] = probes else {
        return (Basis::Nothing, Reason::TooFewProbes { usable: 0 });
    };
    if others.is_empty() {
        return (Basis::Nothing, Reason::TooFewProbes { usable: 1 });
    }
    if probes.iter().any(|probe| probe.recording.allocations() == 0) {
        return (Basis::Nothing, Reason::NothingRecorded);
    }
    if let Some(batch_sizes) = shrinking(probes) {
        return (Basis::Peaks, Reason::Shrinking { batch_sizes });
    }
    for other in others {
        let batch_sizes = [first.batch_size, other.batch_size];
        if let Err(difference) = align(batch_sizes, &first.recording, &other.recording) {
            return (Basis::Peaks, Reason::Misaligned(difference));
        }
    }
    fit_all(probes)
}

/// Two neighbours of which the larger batch asks for less in as many allocations.
fn shrinking(probes: &[Probed]) -> Option<[usize; 2]> {
    let asked = |probe: &Probed| probe.recording.sizes().map(u128::from).sum::<u128>();
    probes.windows(2).find_map(|pair| {
        let [low, high] = pair else { return None };
        let as_many = low.recording.allocations() == high.recording.allocations();
        (as_many && asked(high) < asked(low)).then_some([low.batch_size, high.batch_size])
    })
}

/// Fits every allocation of probes that align.
fn fit_all(probes: &[Probed]) -> (Basis, Reason) {
    let columns: Vec<Vec<u64>> = probes.iter().map(|probe| probe.recording.sizes().collect()).collect();
    let allocations = columns.first().map_or(0, Vec::len);
    let mut samples: Vec<Sample> =
        probes.iter().map(|probe| Sample { batch_size: probe.batch_size, bytes: 0 }).collect();
    let mut fits = Fits { sizes: Vec::with_capacity(allocations), ..Fits::default() };
    for ordinal in 0..allocations {
        for (sample, column) in samples.iter_mut().zip(&columns) {
            sample.bytes = column.get(ordinal).copied().unwrap_or(0);
        }
        fits.take(ordinal, &samples);
    }
    let Some((first_ordinal, misfit)) = fits.first_off else {
        let checks = probes.len().saturating_sub(2);
        let sizes = Basis::Sizes { sizes: fits.sizes, judged: None };
        return (sizes, Reason::Aligned { allocations, doubtful: fits.doubtful, checks });
    };
    let are_continued = fits.off_bytes as f64 <= MAX_MISFIT_SHARE * fits.bytes as f64;
    let reason = Reason::SizesOff { count: fits.off, first_ordinal, misfit, are_continued };
    if !are_continued {
        return (Basis::Peaks, reason);
    }
    let judged = (probes.len() > 2).then_some(fits.judged);
    (Basis::Sizes { sizes: fits.sizes, judged }, reason)
}

/// The fits of a run's allocations, and what is off about them.
#[derive(Default)]
struct Fits {
    sizes: Vec<Size>,
    /// Fitted without the last sample, where there are three or more.
    judged: Vec<Size>,
    doubtful: usize,
    off: usize,
    first_off: Option<(usize, Misfit)>,
    /// Sums over the largest sample of each, to weigh what is off.
    off_bytes: u128,
    bytes: u128,
}

impl Fits {
    fn take(&mut self, ordinal: usize, samples: &[Sample]) {
        let largest = u128::from(samples.iter().map(|sample| sample.bytes).max().unwrap_or(0));
        self.bytes += largest;
        let Some(found) = fit(samples) else { return };
        let size = match found {
            Fit::Sound(size) => size,
            Fit::Doubtful(size) => {
                self.doubtful += 1;
                size
            }
            Fit::Off(size, misfit) => {
                self.off += 1;
                self.off_bytes += largest;
                self.first_off.get_or_insert((ordinal, misfit));
                size
            }
        };
        self.sizes.push(size);
        if let Some((_, others)) = samples.split_last()
            && let Some(Fit::Sound(size) | Fit::Doubtful(size) | Fit::Off(size, _)) = fit(others)
        {
            self.judged.push(size);
        }
    }
}

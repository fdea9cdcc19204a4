//! Other ways to batch the same samples, forecast beside the one that a run has.

use serde::Serialize;

use super::compared::{BatchedRun, advised, new_budget};
use super::{Batching, Order, Outline, Samples, Unit};
use crate::memory::forecast::ForecastError;
use crate::memory::forecast::long_run::{Breach, LongRunFigures};
use crate::memory::forecast::tuning::{Bounds, Candidate, Ending, Observer, TuneError, play_under};
use crate::memory::parallel::in_parallel;
use crate::memory::policy::Policy;

/// Multiples of tokens that are worth a try.
const PAD_TO: [u64; 3] = [64, 128, 256];
/// Multiples of a side of an image, or of anything that is no length.
const PAD_SIDES_TO: [u64; 3] = [32, 64, 128];
/// Under a budget a batch may have so many times the samples of one without.
const MOST_TIMES_SAMPLES: u64 = 4;

/// Plays the batches of an outline to a policy; hears of every step that begins.
pub type PlayBatches<'a> =
    &'a (dyn Fn(&Outline, Box<dyn Policy>, &mut dyn FnMut(u32)) -> Result<LongRunFigures, ForecastError> + Sync);

/// What is to be remedied.
#[derive(Clone, Copy)]
pub struct RemedyTask<'a> {
    /// The run.
    pub play: PlayBatches<'a>,
    /// Its samples.
    pub samples: &'a dyn Samples,
    /// How they are batched today.
    pub batching: Batching,
    /// Steps of the run as it is. Other ways play as many as it takes for the same samples.
    pub steps: u64,
    /// Samples of an epoch, where they are known.
    pub epoch_samples: Option<u64>,
    /// The allocator.
    pub candidate: &'a Candidate,
    /// C; `u64::MAX` is none.
    pub limit_bytes: u64,
}

/// A way to batch, and what it does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remedy {
    /// For people.
    pub name: String,
    /// The way.
    pub batching: Batching,
    /// Its figures.
    pub figures: RemedyFigures,
    /// What it changes, in a sentence; what is to be known of the run as it is.
    pub reason: String,
    /// The play. Its series is kept.
    pub run: LongRunFigures,
}

/// What is compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RemedyFigures {
    /// The batches.
    pub outline: Outline,
    /// The share of all tokens that is padding.
    pub padding_share: Option<f64>,
    /// Steps of an epoch; of the samples of the run as it is, where an epoch's are not known.
    pub epoch_steps: u64,
    /// Whether it comes to the end of the run.
    pub survives: bool,
}

/// The ways side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remedies {
    /// The run as it is, and the others after it.
    pub ways: Vec<Remedy>,
    /// The place of the one that is worth taking, if any is.
    pub advised: Option<usize>,
}

/// Ways that are worth a forecast: rows padded to multiples, samples grouped by length, both, and a budget of tokens of the
/// size that a mean batch has today. Samples that are alike within every batch are not grouped.
pub fn standard(batching: Batching, samples: &dyn Samples, as_it_is: &Outline) -> Vec<Batching> {
    let (layout, largest) = (samples.layout(), samples.largest());
    let (multiples, longest) = (
        if layout.unit() == Unit::Tokens { PAD_TO } else { PAD_SIDES_TO },
        largest.values().iter().copied().max().unwrap_or(1),
    );
    let padded = multiples.into_iter().filter(|multiple| *multiple > batching.pad_to && *multiple < longest);
    let mut ways: Vec<Batching> = padded.map(|pad_to| Batching { pad_to, ..batching }).collect();
    let order = if layout.varies_by_sample() { Order::ByLength } else { batching.order };
    if batching.order != order {
        let grouped = Batching { order, ..batching };
        ways.push(grouped);
        ways.extend(
            ways.first().filter(|first| first.pad_to > batching.pad_to).map(|first| Batching { order, ..*first }),
        );
    }
    if batching.token_budget.is_none() && as_it_is.steps > 0 {
        let mean = as_it_is.padded_tokens.div_ceil(as_it_is.steps);
        let budget = mean.max(layout.positions(largest.values()).saturating_mul(2));
        ways.push(Batching {
            samples: batching.samples.saturating_mul(MOST_TIMES_SAMPLES).min(super::MAX_SAMPLES),
            order,
            token_budget: Some(budget),
            ..batching
        });
    }
    ways
}

/// Plays the run as it is and batched in other ways, side by side.
pub fn remedies(task: &RemedyTask<'_>, others: &[Batching], observer: &dyn Observer) -> Result<Remedies, TuneError> {
    let as_it_is = Outline::of_steps(task.batching, task.samples, task.steps);
    let samples = as_it_is.samples;
    let outlines = others.iter().map(|way| (*way, Outline::of_samples(*way, task.samples, samples)));
    let outlines: Vec<(Batching, Outline)> = [(task.batching, as_it_is)].into_iter().chain(outlines).collect();
    observer.begin("ways to batch", outlines.iter().map(|(_, outline)| outline.steps).sum());
    let played = in_parallel(&outlines, |(_, outline)| {
        let play = |policy: Box<dyn Policy>, on_step: &mut dyn FnMut(u32)| (task.play)(outline, policy, on_step);
        let steps = u32::try_from(outline.steps).unwrap_or(u32::MAX);
        let bounds = Bounds { limit_bytes: task.limit_bytes, bound_bytes: u64::MAX, steps };
        play_under(&play, task.candidate, bounds, observer)
    })?;
    let unit = task.samples.layout().unit();
    let mut ways: Vec<Remedy> = Vec::with_capacity(outlines.len());
    let mut compared: Vec<BatchedRun> = Vec::with_capacity(outlines.len());
    for ((batching, outline), (ending, run)) in outlines.into_iter().zip(played) {
        let figures = RemedyFigures {
            padding_share: outline.padding_share(),
            epoch_steps: outline.steps_of(task.epoch_samples.unwrap_or(samples)),
            survives: ending == Ending::Survived,
            outline: Outline { batches: Vec::new(), ..outline },
        };
        let batched = figures.compared(&run);
        let reason = compared.first().map_or_else(
            || batched.of_itself(),
            |as_it_is| batched.against(as_it_is, new_budget(task.batching, batching), unit),
        );
        compared.push(batched);
        ways.push(Remedy { name: batching.name(unit), batching, figures, reason, run });
    }
    Ok(Remedies { advised: advised(&compared), ways })
}

impl RemedyFigures {
    fn compared(&self, run: &LongRunFigures) -> BatchedRun {
        BatchedRun {
            breach: run.out_of_memory.map(Breach::OutOfMemory),
            peak_reserved_bytes: run.peak_reserved_bytes,
            fragmentation: run.fragmentation,
            padding_share: self.padding_share,
            epoch_steps: Some(self.epoch_steps),
            ..self.outline.counted()
        }
    }
}

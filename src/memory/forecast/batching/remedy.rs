//! Other ways to batch the same samples, forecast beside the one that a run has.

use serde::Serialize;

use super::{Batching, Lengths, Order, Outline};
use crate::memory::forecast::ForecastError;
use crate::memory::forecast::long_run::LongRunFigures;
use crate::memory::forecast::tuning::{Bounds, Candidate, Ending, Observer, TuneError, play_under};
use crate::memory::parallel::in_parallel;
use crate::memory::policy::Policy;
use crate::units::{Bytes, Fraction, plural};

/// Multiples that are worth a try.
const PAD_TO: [u64; 3] = [64, 128, 256];
/// Under a budget a batch may have so many times the samples of one without.
const MOST_TIMES_SAMPLES: u64 = 4;
/// What a difference in V has to exceed to be one: this share of what is held.
const NEGLIGIBLE_DIVISOR: u64 = 100;
/// Padding may cost so much more of all tokens before it is no remedy: compute goes with it.
const ALLOWED_PADDING: f64 = 0.05;

/// Plays the batches of an outline to a policy; hears of every step that begins.
pub type PlayBatches<'a> =
    &'a (dyn Fn(&Outline, Box<dyn Policy>, &mut dyn FnMut(u32)) -> Result<LongRunFigures, ForecastError> + Sync);

/// What is to be remedied.
#[derive(Clone, Copy)]
pub struct RemedyTask<'a> {
    /// The run.
    pub play: PlayBatches<'a>,
    /// Its samples.
    pub lengths: &'a dyn Lengths,
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
/// size that a mean batch has today.
pub fn standard(batching: Batching, lengths: &dyn Lengths, as_it_is: &Outline) -> Vec<Batching> {
    let longest = lengths.longest();
    let padded = PAD_TO.into_iter().filter(|multiple| *multiple > batching.pad_to && *multiple < longest);
    let mut ways: Vec<Batching> = padded.map(|pad_to| Batching { pad_to, ..batching }).collect();
    if batching.order == Order::AsTheyCome {
        let grouped = Batching { order: Order::ByLength, ..batching };
        ways.push(grouped);
        ways.extend(
            ways.first()
                .filter(|first| first.pad_to > batching.pad_to)
                .map(|first| Batching { order: Order::ByLength, ..*first }),
        );
    }
    if batching.token_budget.is_none() && as_it_is.steps > 0 {
        let mean = as_it_is.padded_tokens.div_ceil(as_it_is.steps);
        let budget = mean.max(longest.saturating_mul(2));
        ways.push(Batching {
            samples: batching.samples.saturating_mul(MOST_TIMES_SAMPLES).min(super::MAX_SAMPLES),
            order: Order::ByLength,
            token_budget: Some(budget),
            ..batching
        });
    }
    ways
}

/// Plays the run as it is and batched in other ways, side by side.
pub fn remedies(task: &RemedyTask<'_>, others: &[Batching], observer: &dyn Observer) -> Result<Remedies, TuneError> {
    let as_it_is = Outline::of_steps(task.batching, task.lengths, task.steps);
    let samples = as_it_is.samples;
    let outlines = others.iter().map(|way| (*way, Outline::of_samples(*way, task.lengths, samples)));
    let outlines: Vec<(Batching, Outline)> = [(task.batching, as_it_is)].into_iter().chain(outlines).collect();
    observer.begin("ways to batch", outlines.iter().map(|(_, outline)| outline.steps).sum());
    let played = in_parallel(&outlines, |(_, outline)| {
        let play = |policy: Box<dyn Policy>, on_step: &mut dyn FnMut(u32)| (task.play)(outline, policy, on_step);
        let steps = u32::try_from(outline.steps).unwrap_or(u32::MAX);
        let bounds = Bounds { limit_bytes: task.limit_bytes, bound_bytes: u64::MAX, steps };
        play_under(&play, task.candidate, bounds, observer)
    })?;
    let mut ways: Vec<Remedy> = Vec::with_capacity(outlines.len());
    for ((batching, outline), (ending, run)) in outlines.into_iter().zip(played) {
        let figures = RemedyFigures {
            padding_share: outline.padding_share(),
            epoch_steps: outline.steps_of(task.epoch_samples.unwrap_or(samples)),
            survives: ending == Ending::Survived,
            outline: Outline { batches: Vec::new(), ..outline },
        };
        let mut way = Remedy { name: batching.to_string(), batching, figures, reason: String::new(), run };
        way.reason = ways.first().map_or_else(|| of_the_run(&way), |as_it_is| against(as_it_is, &way));
        ways.push(way);
    }
    let advised = advised(&ways);
    Ok(Remedies { ways, advised })
}

/// The one that survives where the run as it is does not, or holds less, the least of those that hardly pad more.
fn advised(ways: &[Remedy]) -> Option<usize> {
    let (as_it_is, others) = ways.split_first()?;
    let padding = |way: &Remedy| way.figures.padding_share.unwrap_or(0.0);
    let is_dear = |way: &Remedy| padding(way) > padding(as_it_is) + ALLOWED_PADDING;
    let helps = |way: &Remedy| {
        let held = as_it_is.run.peak_reserved_bytes;
        let saved = held.saturating_sub(way.run.peak_reserved_bytes);
        !as_it_is.figures.survives || saved > held / NEGLIGIBLE_DIVISOR
    };
    let helping = others.iter().enumerate().filter(|(_, way)| way.figures.survives && helps(way));
    let helping: Vec<(usize, &Remedy)> = helping.collect();
    // What pads much more is taken only where nothing else comes to the end.
    let least = helping.iter().map(|(_, way)| (is_dear(way), way.run.peak_reserved_bytes)).min()?;
    let is_close = |way: &Remedy| {
        let more = way.run.peak_reserved_bytes.saturating_sub(least.1);
        is_dear(way) == least.0 && more <= least.1 / NEGLIGIBLE_DIVISOR
    };
    let close = helping.into_iter().filter(|(_, way)| is_close(way));
    let best = close.min_by(|(_, one), (_, other)| padding(one).total_cmp(&padding(other)));
    best.filter(|(_, way)| !is_dear(way) || !as_it_is.figures.survives).map(|(place, _)| place + 1)
}

fn of_the_run(way: &Remedy) -> String {
    let end = way.run.out_of_memory.map(|end| format!("runs out of memory at step {}", end.step));
    end.unwrap_or_else(|| "the run as it is".to_owned())
}

fn against(as_it_is: &Remedy, way: &Remedy) -> String {
    let mut parts = vec![memory(as_it_is, way)];
    let (before, after) = (&as_it_is.figures, &way.figures);
    if before.outline.shapes != after.outline.shapes {
        parts.push(format!("{} instead of {}", plural(after.outline.shapes as usize, "shape"), before.outline.shapes));
    }
    if let Some(budget) = way.batching.token_budget.filter(|_| as_it_is.batching.token_budget.is_none()) {
        let longest = before.outline.longest_row.saturating_mul(before.outline.largest_batch);
        parts.push(format!(
            "no batch over {budget} tokens instead of {longest}, with up to {} samples",
            after.outline.largest_batch
        ));
    }
    if let (Some(before), Some(after)) = (before.padding_share, after.padding_share) {
        let [before, after] = [before, after].map(|share| Fraction((share * 1000.0).round() / 1000.0).to_string());
        if before != after {
            parts.push(format!("{after} of the tokens are padding instead of {before}"));
        }
    }
    if before.epoch_steps != after.epoch_steps {
        parts.push(format!("{} steps for the same samples instead of {}", after.epoch_steps, before.epoch_steps));
    }
    parts.join("; ")
}

fn memory(as_it_is: &Remedy, way: &Remedy) -> String {
    let (before, after) = (as_it_is.run.peak_reserved_bytes, way.run.peak_reserved_bytes);
    match (as_it_is.run.out_of_memory, way.run.out_of_memory) {
        (Some(_), Some(end)) => format!("runs out of memory too, at step {}", end.step),
        (None, Some(end)) => format!("runs out of memory at step {}", end.step),
        (Some(end), None) => {
            format!("comes to the end, where the run as it is runs out of memory at step {}", end.step)
        }
        (None, None) if before.abs_diff(after) <= before / NEGLIGIBLE_DIVISOR => "holds as much".to_owned(),
        (None, None) if after < before => format!("holds {} less", Bytes(before - after)),
        (None, None) => format!("holds {} more", Bytes(after - before)),
    }
}

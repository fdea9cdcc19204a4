//! Two ways to batch the same samples, compared.

use serde::{Deserialize, Serialize};

use super::{Batching, Unit};
use crate::memory::forecast::long_run::Breach;
use crate::units::{Bytes, Fraction, plural};

/// What a difference in V has to exceed to be one, where nothing else is said: this share of what is held.
pub(super) const NEGLIGIBLE_DIVISOR: u64 = 100;
/// Padding may cost so much more of all tokens before it is no remedy: compute goes with it.
const ALLOWED_PADDING: f64 = 0.05;

/// What a run comes to under one way to batch its samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchedRun {
    /// What it does that it should not; the figures are of the steps before, where that ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breach: Option<Breach>,
    /// The highest V.
    pub peak_reserved_bytes: u64,
    /// The highest rate of fragmentation: V against the highest need.
    pub fragmentation: Option<f64>,
    /// The share of all tokens that is padding.
    pub padding_share: Option<f64>,
    /// Different shapes.
    pub shapes: u64,
    /// The most samples of a batch.
    pub largest_batch: u64,
    /// The most tokens of a batch, padding included.
    pub most_tokens: u64,
    /// Steps for the samples of the run as it is.
    pub steps: u64,
    /// Steps of an epoch, where it is known how many samples it has.
    pub epoch_steps: Option<u64>,
}

impl BatchedRun {
    /// Whether it comes to its end and keeps what it is held to.
    pub fn lasts(&self) -> bool {
        self.breach.is_none()
    }

    /// Whether it pads so much more than another that compute pays for it.
    pub fn is_dear(&self, as_it_is: &Self) -> bool {
        let padding = |run: &Self| run.padding_share.unwrap_or(0.0);
        padding(self) > padding(as_it_is) + ALLOWED_PADDING
    }

    /// What there is to be said of the run as it is.
    pub fn of_itself(&self) -> String {
        self.breach.as_ref().map_or_else(|| "the run as it is".to_owned(), ends)
    }

    /// What this way changes, in a sentence.
    pub fn against(&self, as_it_is: &Self, token_budget: Option<u64>, unit: Unit) -> String {
        let mut parts = vec![self.memory_against(as_it_is)];
        if as_it_is.shapes != self.shapes {
            parts.push(format!("{} instead of {}", plural(self.shapes as usize, "shape"), as_it_is.shapes));
        }
        if let Some(budget) = token_budget {
            parts.push(format!(
                "no batch over {budget} {unit} instead of {}, with up to {} samples",
                as_it_is.most_tokens, self.largest_batch
            ));
        }
        if let (Some(before), Some(after)) = (as_it_is.padding_share, self.padding_share) {
            let [before, after] = [before, after].map(|share| Fraction((share * 1000.0).round() / 1000.0).to_string());
            if before != after {
                parts.push(format!("{after} of the {unit} are padding instead of {before}"));
            }
        }
        let [before, after] = [as_it_is, self].map(|run| run.epoch_steps.unwrap_or(run.steps));
        if before != after {
            parts.push(format!("{after} steps for the same samples instead of {before}"));
        }
        parts.join("; ")
    }

    fn memory_against(&self, as_it_is: &Self) -> String {
        let (before, after) = (as_it_is.peak_reserved_bytes, self.peak_reserved_bytes);
        match (&as_it_is.breach, &self.breach) {
            (Some(Breach::OutOfMemory(_)), Some(Breach::OutOfMemory(end))) => {
                format!("runs out of memory too, at step {}", end.step)
            }
            (_, Some(breach)) => ends(breach),
            (Some(breach), None) => format!("comes to the end, where the run as it is {}", ends(breach)),
            (None, None) if before.abs_diff(after) <= before / NEGLIGIBLE_DIVISOR => "holds as much".to_owned(),
            (None, None) if after < before => format!("holds {} less", Bytes(before - after)),
            (None, None) => format!("holds {} more", Bytes(after - before)),
        }
    }
}

fn ends(breach: &Breach) -> String {
    let step = breach.step();
    match breach {
        Breach::OutOfMemory(_) => format!("runs out of memory at step {step}"),
        Breach::Rate { rate, .. } => format!("comes to be {} fragmented at step {step}", Fraction(*rate)),
        Breach::Growth { .. } => format!("grows without a plateau, to the limit at step {step}"),
    }
}

/// The budget of a way, where the run as it is has none.
pub(super) fn new_budget(as_it_is: Batching, way: Batching) -> Option<u64> {
    way.token_budget.filter(|_| as_it_is.token_budget.is_none())
}

/// The place of the way that is worth taking, if any is; the first is the run as it is. It lasts where that one does not, or
/// holds less, the least of those that hardly pad more.
pub fn advised(ways: &[BatchedRun]) -> Option<usize> {
    let (as_it_is, others) = ways.split_first()?;
    let padding = |way: &BatchedRun| way.padding_share.unwrap_or(0.0);
    let helps = |way: &BatchedRun| {
        let held = as_it_is.peak_reserved_bytes;
        let saved = held.saturating_sub(way.peak_reserved_bytes);
        !as_it_is.lasts() || saved > held / NEGLIGIBLE_DIVISOR
    };
    let helping = others.iter().enumerate().filter(|(_, way)| way.lasts() && helps(way));
    let helping: Vec<(usize, &BatchedRun)> = helping.collect();
    // What pads much more is taken only where nothing else comes to the end.
    let least = helping.iter().map(|(_, way)| (way.is_dear(as_it_is), way.peak_reserved_bytes)).min()?;
    let is_close = |way: &BatchedRun| {
        let more = way.peak_reserved_bytes.saturating_sub(least.1);
        way.is_dear(as_it_is) == least.0 && more <= least.1 / NEGLIGIBLE_DIVISOR
    };
    let close = helping.into_iter().filter(|(_, way)| is_close(way));
    let best = close.min_by(|(_, one), (_, other)| padding(one).total_cmp(&padding(other)));
    best.filter(|(_, way)| !way.is_dear(as_it_is) || !as_it_is.lasts()).map(|(place, _)| place + 1)
}

//! What other shapes, or releases of the cache, would do to a coming run.
//!
//! A run that dies at step 8,000 needs no smaller batch if it dies of what its cache has become, and one that lasts may hold
//! twice what it ever needs. So each way is played like the run itself: by every rank, to every allocator that counts, to the
//! same end. Padding is the loader's own and has its very batches. What a sampler of somebody's own would do is made of the
//! samples in the order of the run, windows of them sorted by length; an epoch's smaller last batch is left out there.

use super::Probed;
use super::coming::{Coming, Setting};
use super::drawn::Drawn;
use super::plays::{Steps, side_by_side};
use super::whole_run::Watch;
use crate::data::run_shapes::RunShapes;
use crate::data::{DataSpec, Padding};
use crate::memory::Trim;
use crate::memory::forecast::Method;
use crate::memory::forecast::batching::{BatchedRun, Batching, Lengths, Order, Outline, Unit, advised, standard};
use crate::memory::forecast::long_run::Breach;
use crate::memory::policy;
use crate::search::History;
use crate::search::recommend::NEGLIGIBLE_DIVISOR;
use crate::trial::Point;
use crate::trial::remedies::{Changes, RunRemedies, RunRemedy};

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Other shapes, for a run that lasts.
    Shapes,
    /// Releases of the cache too, which cost time: for a run that breaks.
    ShapesAndReleases,
}

impl Probed {
    /// What other ways would do to the run of a point. What `watch` leaves no time for is left out; `None` where that is
    /// everything, or where the run is not known exactly: what may err was played with more memory than there is before it
    /// broke, and a gain of 1 % is less than its error.
    pub fn remedies(
        &self,
        point: &Point,
        history: &History,
        reach: Reach,
        watch: &mut Watch<'_>,
    ) -> Option<RunRemedies> {
        let (run, samples) = (self.terms.run.as_ref()?, self.runs.samples?);
        let basis = self.basis(point, history).ok().filter(|basis| basis.method == Method::Exact)?;
        let own = self.coming(point, (run, samples), &basis);
        let drawn: Vec<Drawn> = (0..run.replicas.max(1))
            .filter_map(|rank| {
                Some(Drawn::of(own.of_rank(own.shapes, rank).samples()?, point.batch_size, run.horizon_steps))
            })
            .collect();
        let ways = ways(&own, drawn.first(), reach);
        let tried = Tried { settings: self.settings_of_run(point), drawn, is_counted: samples.is_counted() };
        let coming = |way: &Way| Coming {
            trim: way.trim,
            shapes: RunShapes::new(&way.data, samples.count(), point.batch_size, run.seed),
            ..self.coming(point, (run, samples), &basis)
        };
        let comings: Vec<Coming<'_>> = ways.iter().map(coming).collect();
        let ranks = 0..run.replicas.max(1);
        let parts: Vec<(&Way, &Coming<'_>, usize)> = ways
            .iter()
            .zip(&comings)
            .flat_map(|(way, coming)| ranks.clone().map(move |rank| (way, coming, rank)))
            .collect();
        let plays = parts.len().saturating_mul(tried.settings.len());
        let total = run.horizon_steps.saturating_mul(u32::try_from(plays).unwrap_or(u32::MAX));
        let played =
            side_by_side(&parts, total, watch, |(way, coming, rank), steps| tried.part(way, coming, *rank, steps));
        let of_way = played.chunks(ranks.len()).map(|parts| parts.iter().copied().reduce(joined).flatten());
        collect(&ways, of_way.collect(), self.terms.limit_bytes)
    }
}

/// A way to make the batches of a run.
struct Way {
    changes: Changes,
    /// What the loader is to do.
    data: DataSpec,
    /// The same, for whoever counts; and what a sampler is to do.
    batching: Batching,
    trim: Trim,
}

/// The run as it is, and other ways.
fn ways(own: &Coming<'_>, drawn: Option<&Drawn>, reach: Reach) -> Vec<Way> {
    let (point, data) = (own.point, &own.run.data);
    let known = data.pad_to_multiple_of.unwrap_or(1) as u64;
    let batching = Batching { pad_to: known, ..Batching::of(point.batch_size as u64) };
    let as_it_is = || Way { changes: Changes::default(), data: data.clone(), batching, trim: point.trim };
    let mut ways = vec![as_it_is()];
    if let Some(drawn) = drawn.filter(|_| own.basis.varies && data.padding == Padding::Longest) {
        let outline = Outline::of_steps(batching, drawn, u64::from(own.run.horizon_steps));
        // No batch has more tokens than the longest has today.
        let larger = Batching { order: Order::ByLength, ..batching }.under_budget(outline.most_tokens, drawn.longest());
        let mut others = standard(batching, drawn, &outline);
        if !others.contains(&larger) {
            others.push(larger);
        }
        ways.extend(others.into_iter().filter(|way| way.check(drawn).is_ok()).map(|batching| {
            let padded = (batching.pad_to > known).then_some(batching.pad_to);
            let pad_to_multiple_of = padded.map_or(data.pad_to_multiple_of, |multiple| usize::try_from(multiple).ok());
            Way {
                changes: Changes {
                    pad_to_multiple_of: padded,
                    group_by_length: batching.order == Order::ByLength,
                    token_budget: batching.token_budget,
                    trim: None,
                },
                data: DataSpec { pad_to_multiple_of, ..data.clone() },
                batching,
                trim: point.trim,
            }
        }));
    }
    if reach == Reach::ShapesAndReleases && point.trim == Trim::Never {
        ways.extend([Trim::EveryK, Trim::AfterUpdate].map(|trim| Way {
            changes: Changes { trim: Some(trim), ..Changes::default() },
            trim,
            ..as_it_is()
        }));
    }
    ways
}

/// What all ways are tried with.
struct Tried {
    settings: Vec<Setting>,
    /// The samples of each rank; none where all have one length.
    drawn: Vec<Drawn>,
    /// Whether it is known how many samples an epoch has.
    is_counted: bool,
}

/// What one rank does under a way.
#[derive(Clone, Copy)]
struct Part {
    run: BatchedRun,
    tokens: u64,
    padded_tokens: u64,
}

impl Tried {
    /// `None` where somebody left, or the run cannot be put together.
    fn part(&self, way: &Way, coming: &Coming<'_>, rank: usize, steps: &Steps) -> Option<Part> {
        let loader = coming.of_rank(coming.shapes, rank);
        let horizon = u64::from(coming.run.horizon_steps);
        let is_of_sampler = way.batching.order == Order::ByLength;
        let outline = self.drawn.get(rank).map(|drawn| {
            if is_of_sampler {
                Outline::of_samples(way.batching, drawn, horizon.saturating_mul(coming.point.batch_size as u64))
            } else {
                Outline::of_steps(way.batching, drawn, horizon)
            }
        });
        let (epoch_samples, epoch_steps) = {
            let steps = loader.steps_of_an_epoch();
            (steps.saturating_mul(coming.point.batch_size as u64), steps)
        };
        let epoch_steps =
            outline.as_ref().filter(|_| is_of_sampler).map_or(epoch_steps, |it| it.steps_of(epoch_samples));
        let counted = outline.as_ref().map_or_else(BatchedRun::default, Outline::counted);
        let mut run = BatchedRun { epoch_steps: self.is_counted.then_some(epoch_steps), ..counted };
        let sequence = coming.sequence(loader);
        for setting in &self.settings {
            let policy = policy::with_settings(setting.settings, coming.limit_bytes);
            let mut goes_on = || steps.goes_on();
            let figures = match outline.as_ref().filter(|_| is_of_sampler) {
                Some(outline) => coming.figures(outline, policy, &mut goes_on)?,
                None => coming.figures(&sequence, policy, &mut goes_on)?,
            };
            let figures = figures.ok()?;
            run = worse(
                run,
                BatchedRun {
                    breach: coming.breach(setting, &figures),
                    peak_reserved_bytes: figures.peak_reserved_bytes,
                    fragmentation: figures.fragmentation,
                    ..BatchedRun::default()
                },
            );
        }
        let (tokens, padded_tokens) = outline.map_or((0, 0), |outline| (outline.tokens, outline.padded_tokens));
        Some(Part { run, tokens, padded_tokens })
    }
}

/// Two ranks' parts together; nothing where one is missing.
fn joined(one: Option<Part>, other: Option<Part>) -> Option<Part> {
    let (one, other) = (one?, other?);
    let (tokens, padded_tokens) = (one.tokens + other.tokens, one.padded_tokens + other.padded_tokens);
    let padding_share = (padded_tokens > 0).then(|| 1.0 - tokens as f64 / padded_tokens as f64);
    Some(Part { run: BatchedRun { padding_share, ..worse(one.run, other.run) }, tokens, padded_tokens })
}

/// The worse of each figure: what breaks first, and the most of everything.
fn worse(one: BatchedRun, other: BatchedRun) -> BatchedRun {
    let first = |run: &BatchedRun| run.breach.map_or(u32::MAX, |breach| breach.step());
    BatchedRun {
        breach: if first(&other) < first(&one) { other.breach } else { one.breach },
        peak_reserved_bytes: one.peak_reserved_bytes.max(other.peak_reserved_bytes),
        fragmentation: [one.fragmentation, other.fragmentation].into_iter().flatten().reduce(f64::max),
        padding_share: one.padding_share.or(other.padding_share),
        shapes: one.shapes.max(other.shapes),
        largest_batch: one.largest_batch.max(other.largest_batch),
        most_tokens: one.most_tokens.max(other.most_tokens),
        steps: one.steps.max(other.steps),
        epoch_steps: one.epoch_steps.max(other.epoch_steps),
    }
}

/// The ways that were played to their end, the best first. `None` where the run as it is was not.
fn collect(ways: &[Way], played: Vec<Option<Part>>, limit_bytes: u64) -> Option<RunRemedies> {
    let unplayed = played.iter().filter(|part| part.is_none()).count();
    let mut known: Vec<(&Way, BatchedRun)> =
        ways.iter().zip(played).filter_map(|(way, part)| Some((way, rounded(part?.run)))).collect();
    let as_it_is = known.first().filter(|(way, _)| way.changes == Changes::default())?.1;
    let runs: Vec<BatchedRun> = known.iter().map(|(_, run)| *run).collect();
    let best = advised(&runs).and_then(|place| known.get(place)).map(|(way, _)| way.changes);
    known.remove(0);
    let mut ways: Vec<RunRemedy> = known
        .into_iter()
        .map(|(way, run)| RunRemedy {
            changes: way.changes,
            reason: run.against(&as_it_is, way.changes.token_budget, Unit::Tokens),
            offered: gains(&as_it_is, &run, limit_bytes),
            run,
        })
        .collect();
    ways.sort_by_key(|way| {
        let is_best = way.offered && Some(way.changes) == best;
        (!way.offered, !is_best, way.run.is_dear(&as_it_is), way.run.peak_reserved_bytes)
    });
    Some(RunRemedies { as_it_is, ways, unplayed })
}

/// Whether a way is worth an offer: it makes a run last that breaks; or holds less than one that lasts; or has larger
/// batches, so that an epoch has fewer steps, in as much memory.
fn gains(as_it_is: &BatchedRun, way: &BatchedRun, limit_bytes: u64) -> bool {
    let negligible = limit_bytes / NEGLIGIBLE_DIVISOR;
    let (before, after) = (as_it_is.peak_reserved_bytes, way.peak_reserved_bytes);
    let has_larger_batches = || {
        let steps = |run: &BatchedRun| run.epoch_steps.unwrap_or(run.steps);
        let is_larger = way.largest_batch > as_it_is.largest_batch && steps(way) < steps(as_it_is);
        is_larger && after <= before.saturating_add(negligible)
    };
    way.lasts() && (!as_it_is.lasts() || before.saturating_sub(after) > negligible || has_larger_batches())
}

/// Shares as the journal holds them.
fn rounded(run: BatchedRun) -> BatchedRun {
    let round = crate::trial::statistics::round_for_json;
    let breach = run.breach.map(|breach| match breach {
        Breach::Rate { step, rate, threshold } => Breach::Rate { step, rate: round(rate), threshold },
        other => other,
    });
    let [fragmentation, padding_share] = [run.fragmentation, run.padding_share].map(|share| share.map(round));
    BatchedRun { breach, fragmentation, padding_share, ..run }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MIB;

    fn way(changes: Changes) -> Way {
        Way { changes, data: DataSpec::default(), batching: Batching::of(8), trim: Trim::Never }
    }

    fn part(peak_reserved_bytes: u64, step: Option<u32>) -> Part {
        let breach = step.map(|step| Breach::Rate { step, rate: 0.4, threshold: 0.3 });
        let run = BatchedRun { breach, peak_reserved_bytes, steps: 300, ..BatchedRun::default() };
        Part { run, tokens: 60, padded_tokens: 100 }
    }

    fn padded(multiple: u64) -> Changes {
        Changes { pad_to_multiple_of: Some(multiple), ..Changes::default() }
    }

    #[test]
    fn what_there_was_no_time_for_is_left_out_and_counted() {
        let ways = [Changes::default(), padded(64), padded(128)].map(way);
        let played = || vec![Some(part(500 * MIB, None)), None, Some(part(300 * MIB, None))];
        let found = collect(&ways, played(), 1000 * MIB).unwrap();
        assert_eq!(found.ways.iter().map(|way| way.changes).collect::<Vec<_>>(), [padded(128)]);
        assert_eq!(found.unplayed, 1);
        let without_the_run = vec![None, Some(part(1, None)), Some(part(2, None))];
        assert_eq!(collect(&ways, without_the_run, 1000 * MIB), None, "there is nothing to compare with");
    }

    #[test]
    fn the_advised_way_comes_first_and_what_gains_nothing_last() {
        let ways = [Changes::default(), padded(64), padded(128), padded(256)].map(way);
        let played = vec![
            Some(part(500 * MIB, None)),
            Some(part(495 * MIB, None)),
            Some(part(400 * MIB, None)),
            Some(part(300 * MIB, Some(9))),
        ];
        let found = collect(&ways, played, 1000 * MIB).unwrap();
        let told: Vec<_> = found.ways.iter().map(|way| (way.changes, way.offered)).collect();
        assert_eq!(told, [(padded(128), true), (padded(256), false), (padded(64), false)]);
    }

    #[test]
    fn of_several_ranks_the_worst_counts_and_all_tokens_do() {
        let joined = joined(Some(part(5, Some(90))), Some(part(7, Some(40)))).unwrap();
        assert_eq!((joined.run.peak_reserved_bytes, joined.run.breach.unwrap().step()), (7, 40));
        assert_eq!((joined.tokens, joined.padded_tokens), (120, 200));
        assert!((joined.run.padding_share.unwrap() - 0.4).abs() < 1e-12);
        assert!(super::joined(Some(part(5, None)), None).is_none());
    }
}

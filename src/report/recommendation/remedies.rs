//! Alternatives that nobody has run: what other shapes would do to the whole run of a point, by forecast.
//!
//! They are of two kinds. The answer could take less memory, or fewer steps in as much; and a point that was refused since its
//! run breaks, which would be faster than the answer, could last. Each says that it is not proved (`basis: forecast`), and
//! none has a speed.

use super::{Alternative, Basis, Remedy};
use crate::search::History;
use crate::trial::Point;
use crate::trial::remedies::{RunRemedies, RunRemedy};

/// Those of the answer, then those of the points whose run breaks, in the order in which they were refused.
pub(super) fn alternatives<'a>(
    history: &'a History,
    answer: Option<&'a Point>,
) -> impl Iterator<Item = Alternative> + 'a {
    let of_answer = answer.and_then(|point| Some((point, history.remedies(point)?)));
    let refused = history.remedied().filter(move |(point, _)| Some(*point) != answer && history.is_ruled_out(point));
    let known = of_answer.into_iter().chain(refused);
    known.flat_map(|(point, found)| found.offered().map(move |way| alternative(point, found, way)))
}

fn alternative(point: &Point, found: &RunRemedies, way: &RunRemedy) -> Alternative {
    Alternative {
        remedy: Some(Remedy {
            changes: way.changes,
            reason: way.reason.clone(),
            run: way.run,
            as_it_is: found.as_it_is,
        }),
        ..Alternative::at(point, Basis::Forecast, way.run.peak_reserved_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::forecast::batching::BatchedRun;
    use crate::memory::forecast::long_run::Breach;
    use crate::search::rules::testing::point;
    use crate::trial::Outlook;
    use crate::trial::outlook::RunBreach;
    use crate::trial::remedies::Changes;
    use crate::units::MIB;

    fn found(breach: Option<Breach>) -> RunRemedies {
        let run = |peak_reserved_bytes| BatchedRun { peak_reserved_bytes, ..BatchedRun::default() };
        let way = |multiple, offered| RunRemedy {
            changes: Changes { pad_to_multiple_of: Some(multiple), ..Changes::default() },
            run: run(multiple * MIB),
            reason: "holds less".to_owned(),
            offered,
        };
        let as_it_is = BatchedRun { breach, ..run(500 * MIB) };
        RunRemedies { as_it_is, ways: vec![way(128, true), way(64, false)], unplayed: 0 }
    }

    #[test]
    fn what_is_offered_of_the_answer_and_of_refused_points_is_an_alternative_by_forecast() {
        let mut history = History::default();
        let breach = Breach::Rate { step: 812, rate: 0.4, threshold: 0.3 };
        history.remedy(point(16), found(Some(breach)));
        history.remedy(point(8), found(None));
        // Neither the answer any more, nor refused by its run.
        history.remedy(point(4), found(None));
        let breach = Some(RunBreach { step: 812, reason: "40% of memory fragmented at step 812".to_owned() });
        history.foretell(point(16), Outlook { breach, ..Outlook::unknown(String::new()) });
        let found: Vec<Alternative> = alternatives(&history, Some(&point(8))).collect();
        assert_eq!(found.iter().map(|other| other.point.batch_size).collect::<Vec<_>>(), [8, 16]);
        for other in found {
            assert_eq!((other.basis, other.samples_per_second), (Basis::Forecast, None));
            assert_eq!(other.peak_reserved_bytes, 128 * MIB);
            let remedy = other.remedy.unwrap();
            assert_eq!(remedy.changes.to_string(), "`data.pad_to_multiple_of: 128`");
            assert_eq!(remedy.as_it_is.lasts(), other.point.batch_size == 8);
        }
    }
}

//! Laws that every strategy obeys, whatever the machine does.

use proptest::prelude::*;

use super::knowledge::Nothing;
use super::scripted::{Script, plan, play};
use super::{Ask, Conclusion, History, Space, StrategyKind, strategy};
use crate::trial::{Outcome, Purpose};

const KINDS: [StrategyKind; 2] = [StrategyKind::Staged, StrategyKind::Grid];

/// A machine that runs out of memory above one size and fragments above another, in a way drawn at random.
fn machine(
    out_of_memory_above: usize,
    fragments_above: usize,
    crashes_at: usize,
) -> impl Fn(&crate::trial::TrialSpec) -> Script {
    move |spec| {
        let batch = spec.point.batch_size;
        if batch > out_of_memory_above {
            Script::out_of_memory()
        } else if batch == crashes_at {
            Script::Ends(Outcome::Crashed { signal: Some(9), status: None, log: String::new() })
        } else if batch > fragments_above {
            Script::Completes { samples_per_second: 500.0, peak_rate: 0.4, data_wait: 0.0 }
        } else {
            Script::healthy(&spec.point)
        }
    }
}

proptest! {
    #[test]
    fn every_search_ends_and_recommends_only_what_a_soak_proved(
        target in 1usize..70, oom in 0usize..80, fragments in 0usize..80, crash in 2usize..80, kind in 0usize..2,
    ) {
        let mut plan = plan(target);
        plan.search.strategy = KINDS[kind];
        let played = play(&mut *strategy(&plan), &plan, machine(oom, fragments, crash));
        let safe_size = |size: usize| size <= oom && size <= fragments && size != crash;
        match &played.conclusion {
            Conclusion::Safe(point) => {
                prop_assert!(safe_size(point.batch_size));
                prop_assert!(Space::new(&plan).meets_target(point));
                let last = played.trials.last();
                prop_assert_eq!(last.map(|(purpose, point)| (*purpose, point.clone())), Some((Purpose::Soak, point.clone())));
            }
            Conclusion::NoSafePoint => {
                // The smallest size is always tried, so "none" means that even it is not safe.
                prop_assert!(!safe_size(1));
            }
            Conclusion::WorkloadFails => prop_assert!(crash == 1),
        }
    }

    #[test]
    fn no_point_is_measured_twice(target in 1usize..70, oom in 0usize..80, kind in 0usize..2) {
        let mut plan = plan(target);
        plan.search.strategy = KINDS[kind];
        plan.search.loader_workers = vec![0, 1, 2];
        let played = play(&mut *strategy(&plan), &plan, machine(oom, 1000, 1000));
        let mut seen: Vec<_> = played.trials.iter().map(|(purpose, point)| (*purpose == Purpose::Soak, point)).collect();
        let all = seen.len();
        seen.sort();
        seen.dedup();
        prop_assert_eq!(seen.len(), all);
    }
}

#[test]
fn the_same_history_gets_the_same_answer_from_a_fresh_strategy() {
    let plan = plan(32);
    for kind in KINDS {
        let mut plan = plan.clone();
        plan.search.strategy = kind;
        let first = strategy(&plan).ask(&History::default(), &Nothing);
        assert_eq!(first, strategy(&plan).ask(&History::default(), &Nothing));
        assert!(matches!(first, Ask::Run { purpose: Purpose::Smallest, .. }));
    }
}

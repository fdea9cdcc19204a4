//! Remedies of a made program.

use super::*;
use crate::memory::forecast::long_run::play;
use crate::memory::forecast::shape::LongRun;
use crate::memory::forecast::testing::FRAGMENTING;
use crate::memory::forecast::tuning::{Allocator, Candidate, Unobserved};
use crate::memory::policy::Policy;
use crate::units::MIB;

/// Lengths of 40 to 500 in no order, mostly short.
fn lengths() -> Vec<u64> {
    (0..3000_u64).map(|sample| 40 + (sample * 7919 % 461) * (sample * 104_729 % 461) / 461).collect()
}

fn remedied(limit_bytes: u64, others: Option<&[Batching]>) -> Remedies {
    let (forecaster, lengths) = (FRAGMENTING.forecaster(), lengths());
    let play = |outline: &Outline, policy: Box<dyn Policy>, on_step: &mut dyn FnMut(u32)| {
        Ok(play(forecaster.events(LongRun::of(outline))?, policy, on_step))
    };
    let (batching, steps) = (Batching::of(8), 200);
    let usual = standard(batching, &lengths, &Outline::of_steps(batching, &lengths, steps));
    let candidate = Candidate::of(Allocator::Pytorch("".parse().unwrap()));
    let task = RemedyTask {
        play: &play,
        samples: &lengths,
        batching,
        steps,
        epoch_samples: Some(3000),
        candidate: &candidate,
        limit_bytes,
    };
    remedies(&task, others.unwrap_or(&usual), &Unobserved).unwrap()
}

fn named<'a>(found: &'a Remedies, name: &str) -> &'a Remedy {
    found.ways.iter().find(|way| way.name == name).unwrap()
}

#[test]
fn the_usual_ways_are_compared_with_the_run_as_it_is() {
    let found = remedied(u64::MAX, None);
    let names: Vec<&str> = found.ways.iter().map(|way| way.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "8 samples a batch",
            "8 samples a batch, padded to 64",
            "8 samples a batch, padded to 128",
            "8 samples a batch, padded to 256",
            "8 samples a batch, grouped by length",
            "8 samples a batch, padded to 64, grouped by length",
            "3509 tokens a batch, 32 samples at most, grouped by length",
        ]
    );
    let [as_it_is, padded, grouped] = [names[0], names[2], names[4]].map(|name| named(&found, name));
    assert_eq!(as_it_is.reason, "the run as it is");
    assert_eq!(as_it_is.figures.epoch_steps, 375, "3000 samples in batches of 8");
    // Fewer shapes: the cache finds its blocks again, for more padding.
    assert!(padded.run.peak_reserved_bytes < as_it_is.run.peak_reserved_bytes * 7 / 10, "{}", padded.reason);
    assert!(padded.figures.padding_share > as_it_is.figures.padding_share);
    assert_eq!(
        padded.reason,
        "holds 140.0 MiB less; 2 shapes instead of 82; 60.2% of the tokens are padding instead of 56.1%"
    );
    // Alike within: hardly any padding.
    assert!(grouped.figures.padding_share.unwrap() < 0.05, "{}", grouped.reason);
    let budget = found.ways.last().unwrap();
    assert!(budget.figures.epoch_steps < 200 && budget.figures.outline.largest_batch == 32, "{}", budget.reason);
    assert!(budget.reason.contains("no batch over 3509 tokens instead of 3992, with up to 32 samples"));
    assert_eq!(found.advised, Some(6));
}

#[test]
fn grouping_by_length_heals_a_run_that_fragments_to_death() {
    let grouped = Batching { order: Order::ByLength, ..Batching::of(8) };
    let found = remedied(316 * MIB, Some(&[grouped]));
    let [as_it_is, grouped] = found.ways.as_slice() else { panic!("two ways") };
    let end = as_it_is.run.out_of_memory.expect("the cache of odd sizes outgrows the limit");
    assert!(!as_it_is.figures.survives && grouped.figures.survives, "{}", grouped.reason);
    assert_eq!(as_it_is.reason, format!("runs out of memory at step {}", end.step));
    assert!(grouped.reason.starts_with("comes to the end, where the run as it is runs out of memory"));
    assert_eq!(found.advised, Some(1));
}

#[test]
fn what_pads_much_more_is_no_remedy_while_the_run_survives() {
    let padded = Batching { pad_to: 512, ..Batching::of(8) };
    let as_it_is = Batching { order: Order::ByLength, ..Batching::of(8) };
    let found = remedied(u64::MAX, Some(&[as_it_is, padded]));
    assert!(found.ways[2].figures.padding_share > Some(0.5));
    assert_eq!(found.advised, Some(1), "the one that pads less, of those that hold less");
}

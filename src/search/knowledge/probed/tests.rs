//! Knowledge from made recordings.

use super::*;
use crate::memory::policy::native::Native;
use crate::memory::{Mark, Player};
use crate::search::machine::{Machine, allocate_once_more};
use crate::search::scripted::plan;
use crate::train::GradientCheckpointing;
use crate::trial::spec::ProbeSchedule;
use crate::units::MIB;

const KIND: Kind = Kind { accumulation: 2, gradient_checkpointing: GradientCheckpointing::None };

fn point(batch_size: usize) -> Point {
    Point { accumulation_steps: 2, ..Point::plain(batch_size) }
}

fn known(machine: &Machine, sizes: &[usize]) -> Probed {
    let mut probed = Probed::new(machine.terms(&plan(64)));
    for size in sizes {
        probed.add(&point(*size), machine.events(*size, 2, ProbeSchedule::PLAIN.updates));
    }
    probed
}

/// The recordings of a workload that does not do the same at every size: an allocation more at odd ones.
fn misaligned(machine: &Machine, sizes: &[usize]) -> Probed {
    let mut probed = Probed::new(machine.terms(&plan(64)));
    for size in sizes {
        let mut events = machine.events(*size, 2, ProbeSchedule::PLAIN.updates);
        if size % 2 == 1 {
            allocate_once_more(&mut events);
        }
        probed.add(&point(*size), events);
    }
    probed
}

#[test]
fn two_aligned_probes_foretell_every_peak_to_the_byte() {
    let machine = Machine::new();
    let probed = known(&machine, &[2, 3]);
    assert_eq!(probed.method(KIND), Some(Method::Exact));
    assert!(!probed.wants_a_third_probe(KIND));
    for size in [4, 16, 50] {
        let mut player = Player::new(Box::new(Native::new(u64::MAX)));
        player.play_all(&machine.events(size, 2, ProbeSchedule::PLAIN.updates));
        let expected = probed.expect(KIND, size).unwrap();
        assert_eq!(expected.peak_reserved_bytes, player.state().peak_reserved_bytes);
        assert_eq!(expected.peak_allocated_bytes, player.state().peak_allocated_bytes);
    }
}

#[test]
fn a_forecast_names_the_rule_that_a_size_breaks() {
    let probed = known(&Machine::new(), &[2, 3]);
    let breach = |size| probed.expect(KIND, size).unwrap().breach;
    assert_eq!(breach(8), None);
    assert!(breach(125).unwrap().starts_with("breaks a rule by forecast"), "{:?}", breach(125));
    assert!(breach(2000).unwrap().starts_with("does not fit by forecast"), "{:?}", breach(2000));
    assert_eq!(probed.expect(KIND, 1), None);
    assert_eq!(probed.expect(Kind { accumulation: 1, ..KIND }, 8), None);
}

#[test]
fn an_affine_forecast_wants_a_third_probe_and_rules_out_only_what_is_beyond_its_error() {
    // Large enough that even the probes take segments of their own.
    let machine = Machine { activations: vec![30 * MIB, 10 * MIB], limit_bytes: 10_000 * MIB, ..Machine::new() };
    let two = misaligned(&machine, &[2, 3]);
    assert_eq!(two.method(KIND), Some(Method::Affine));
    assert!(two.wants_a_third_probe(KIND));
    let three = misaligned(&machine, &[2, 3, 4]);
    assert!(!three.wants_a_third_probe(KIND));
    let exact = known(&machine, &[2, 3]);
    let first_out = |probed: &Probed| (2..2000).find(|size| probed.expect(KIND, *size).unwrap().breach.is_some());
    assert!(first_out(&two) > first_out(&exact), "{:?} {:?}", first_out(&two), first_out(&exact));
    assert!(two.expect(KIND, 2000).unwrap().breach.unwrap().contains("at least"));
}

#[test]
fn the_planned_allocator_s_rate_counts_as_the_measured_one_does() {
    let machine = Machine { weights: vec![1021 * 1000; 30], ..Machine::new() };
    let mut terms = machine.terms(&plan(64));
    terms.safety.fragmentation_threshold = crate::units::Fraction(0.0);
    let rate_breach = |terms: Terms| {
        let mut probed = Probed::new(terms);
        for size in [2, 3] {
            probed.add(&point(size), machine.events(size, 2, ProbeSchedule::PLAIN.updates));
        }
        (4..100).map(|size| probed.expect(KIND, size).unwrap().breach.unwrap_or_default()).collect::<Vec<_>>()
    };
    let own = rate_breach(terms.clone());
    let planned = rate_breach(Terms { planned: AllocatorKind::Expandable, ..terms });
    // Pages of 20 MiB hold more than segments of a block's own size.
    let fragmented = |reasons: &[String]| reasons.iter().filter(|reason| reason.contains("fragmented")).count();
    assert!(fragmented(&planned) > fragmented(&own), "{} {}", fragmented(&planned), fragmented(&own));
}

#[test]
fn the_native_allocator_s_rate_is_computed_where_another_one_was_measured() {
    let machine = Machine { weights: vec![1021 * 1000; 30], ..Machine::new() };
    let probed = |allocator, of: fn(&Machine, &[usize]) -> Probed| {
        let mut probed = of(&machine, &[2, 3]);
        probed.terms.allocator = allocator;
        probed
    };
    let pool = probed(AllocatorKind::CudaMallocAsync, known);
    let rate = pool.native_peak_rate(&point(16)).unwrap();
    // The steady steps of the same events, played to that allocator.
    let events = machine.events(16, 2, ProbeSchedule::PLAIN.updates);
    let steady = events.iter().position(|event| *event == Event::Mark(Mark::Step(2))).unwrap();
    let mut player = Player::new(Box::new(Native::new(u64::MAX)));
    player.play_all(&events[..steady]);
    player.start_window();
    player.play_all(&events[steady..]);
    let expected = Rates::of(&player.state()).peak.unwrap();
    assert!((rate - expected).abs() < 1e-9, "{rate} {expected}");
    assert!(rate > 0.01, "{rate}");

    assert_eq!(pool.native_peak_rate(&point(1)), None, "nothing is forecast below 2");
    assert_eq!(pool.native_peak_rate(&Point { accumulation_steps: 1, ..point(16) }), None, "no probe is of its kind");
    let native = probed(AllocatorKind::Native, known);
    assert_eq!(native.native_peak_rate(&point(16)), None, "it was measured");
    let affine = probed(AllocatorKind::CudaMallocAsync, misaligned);
    assert_eq!(affine.native_peak_rate(&point(16)), None, "peaks alone have no events");
}

#[test]
fn settings_are_searched_for_where_the_steps_are_known_exactly_or_bounded() {
    // Odd sizes leave the native pool's segments half empty.
    let machine = Machine { weights: vec![1021 * 1000; 30], ..Machine::new() };
    let mut terms = machine.terms(&plan(64));
    terms.alloc_conf = Some("max_split_size_mb:32".to_owned());
    let mut probed = Probed::new(terms);
    assert_eq!(probed.tuned_alloc_conf(&point(16)), None, "nothing was probed");
    for size in [2, 3] {
        probed.add(&point(size), machine.events(size, 2, ProbeSchedule::PLAIN.updates));
    }
    let found = probed.tuned_alloc_conf(&point(16)).unwrap();
    assert!(found.reason.starts_with('`') && !found.reason.contains("released"), "{}", found.reason);
    assert_eq!(probed.tuned_alloc_conf(&Point { alloc_conf: Some("x".to_owned()), ..point(16) }), Some(found));
    // The probes accumulate, and this point does not.
    let bounded = probed.tuned_alloc_conf(&Point { accumulation_steps: 1, ..point(16) }).unwrap();
    assert!(bounded.reason.contains(" (affine: by a forecast that may err"), "{}", bounded.reason);
    let affine = misaligned(&machine, &[2, 3]);
    assert_eq!(affine.tuned_alloc_conf(&point(16)), None);
}

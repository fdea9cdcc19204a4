//! Laws that hold for every rule, whatever it is given.

use proptest::prelude::*;

use super::testing::{healthy, point, safety};
use super::*;
use crate::memory::{FragmentationMetric, FragmentationSource, Rates};
use crate::trial::{Measurement, Outcome, Point, Purpose, TrialSpec};
use crate::units::Fraction;

#[test]
fn a_healthy_trial_passes_every_rule_without_a_warning_and_every_rule_says_why() {
    let verdict = judge(&healthy(), &safety());
    assert!(verdict.passed(), "{verdict:#?}");
    assert!(verdict.checks.iter().all(|check| check.level() == Level::Passed && !check.reason.is_empty()));
}

#[test]
fn rule_names_are_unique() {
    let mut names: Vec<&str> = all().iter().map(|rule| rule.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all().len());
}

#[test]
fn a_warning_passes_and_a_breach_does_not() {
    let check = |level| {
        Check::new(&completion::Completion, Finding { value: None, limit: None, level, reason: "so".to_owned() })
    };
    for level in [Level::Passed, Level::Warning, Level::Failed] {
        assert_eq!(check(level).level(), level);
    }
    let warned = Verdict { checks: vec![check(Level::Passed), check(Level::Warning)] };
    assert!(warned.passed() && warned.breach().is_none());
    let failed = Verdict { checks: vec![check(Level::Warning), check(Level::Failed)] };
    assert_eq!(failed.breach().map(Check::level), Some(Level::Failed));
}

#[test]
fn a_check_has_the_names_of_the_schema_and_reads_files_from_before_there_were_warnings() {
    let check = judge(&healthy(), &safety()).checks.remove(0);
    let value = serde_json::to_value(&check).unwrap();
    let names: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    for name in ["rule", "value", "limit", "passed", "reason"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let old = r#"{"rule": "headroom", "value": 1.0, "limit": 2.0, "passed": false, "reason": "too little"}"#;
    let old: Check = serde_json::from_str(old).unwrap();
    assert_eq!(old.level(), Level::Failed);
}

#[test]
fn a_sample_from_before_the_host_was_measured_still_reads() {
    let sample = MemorySample { host_bytes: None, host_available_bytes: None, ..testing::sample(4) };
    let text = serde_json::to_string(&sample).unwrap();
    assert!(!text.contains("host"), "{text}");
    assert_eq!(serde_json::from_str::<MemorySample>(&text).unwrap(), sample);
}

/// Any number of bytes, the ends of the range often.
fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), Just(u64::MAX - 1), any::<u64>(), 0..1_u64 << 36]
}

fn rates() -> impl Strategy<Value = Rates> {
    let rate = || prop::option::of(any::<f64>());
    (rate(), rate(), rate()).prop_map(|(peak, external, reserved)| Rates { peak, external, reserved })
}

prop_compose! {
    fn sample()(
        step in prop_oneof![any::<u32>(), 0..60_u32], largest_satisfiable_estimated in any::<bool>(),
        figures in prop::array::uniform9(bytes()), rates in rates(), shadow in prop::option::of(rates()),
        host in (prop::option::of(bytes()), prop::option::of(bytes())),
    ) -> MemorySample {
        let [a, v, c, peak_a, peak_v, l, request, u, blocks] = figures;
        MemorySample {
            step,
            allocated_bytes: a,
            reserved_bytes: v,
            limit_bytes: c,
            peak_allocated_bytes: peak_a,
            peak_reserved_bytes: peak_v,
            largest_satisfiable_bytes: l,
            largest_satisfiable_estimated,
            largest_request_bytes: request,
            unreleasable_bytes: u,
            allocated_blocks: blocks,
            rates,
            shadow,
            host_bytes: host.0,
            host_available_bytes: host.1,
        }
    }
}

prop_compose! {
    fn measurement()(
        losses in (any::<f64>(), any::<f64>()), data_wait_fraction in any::<f64>(),
        figures in prop::array::uniform3(bytes()),
    ) -> Measurement {
        Measurement {
            first_loss: Some(losses.0),
            last_loss: Some(losses.1),
            data_wait_fraction,
            peak_allocated_bytes: figures[0],
            peak_reserved_bytes: figures[1],
            largest_request_bytes: figures[2],
            ..Measurement::default()
        }
    }
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        4 => Just(Outcome::Completed),
        1 => any::<u32>().prop_map(|step| Outcome::Diverged { step }),
        1 => any::<f64>().prop_map(|seconds| Outcome::TimedOut { seconds }),
        1 => bytes().prop_map(|bytes| Outcome::OutOfMemory {
            requested_bytes: Some(bytes),
            allocated_bytes: None,
            reserved_bytes: None,
            limit_bytes: Some(bytes),
            step: Some(u32::MAX),
            phase: None,
        }),
    ]
}

prop_compose! {
    fn trial()(
        samples in prop::collection::vec(sample(), 0..50), measurement in prop::option::of(measurement()),
        outcome in outcome(), purpose in prop_oneof![Just(Purpose::Soak), Just(Purpose::Ladder)],
        accumulation_steps in prop_oneof![0..5_usize, Just(usize::MAX)], steps in any::<u32>(),
    ) -> TrialRecord {
        let point = Point { accumulation_steps, ..point(8) };
        let spec = TrialSpec { purpose, point, steps, ..healthy().spec };
        TrialRecord { spec, outcome, measurement, samples, ..healthy() }
    }
}

prop_compose! {
    fn plan()(
        shares in (0.0..=1.0_f64, 0.0..=0.9_f64), largest_block_factor in 0.0..1e9_f64,
        metric in prop::sample::select(vec![
            FragmentationMetric::Peak, FragmentationMetric::External, FragmentationMetric::Reserved,
        ]),
        source in prop::sample::select(vec![
            FragmentationSource::Device, FragmentationSource::Shadow, FragmentationSource::Worst,
        ]),
    ) -> SafetyPlan {
        SafetyPlan {
            fragmentation_threshold: Fraction(shares.0),
            headroom: Fraction(shares.1),
            largest_block_factor,
            fragmentation_metric: metric,
            fragmentation_source: source,
            ..safety()
        }
    }
}

proptest! {
    #[test]
    fn whatever_was_recorded_no_rule_panics_and_every_figure_is_finite(trial in trial(), plan in plan()) {
        for rule in all() {
            let finding = rule.check(&trial, &plan);
            prop_assert!(!finding.reason.is_empty());
            let check = Check::new(rule, finding);
            prop_assert!(check.value.is_none_or(f64::is_finite) && check.limit.is_none_or(f64::is_finite));
            let sentence = check.reason.to_lowercase();
            prop_assert!(!sentence.contains("nan") || rule.name() == "completion", "{}", check.reason);
        }
    }

    #[test]
    fn a_rule_without_a_series_never_fails_a_completed_trial(plan in plan()) {
        let trial = TrialRecord { samples: Vec::new(), measurement: None, ..healthy() };
        prop_assert!(judge(&trial, &plan).checks.iter().all(|check| check.level() == Level::Passed));
    }

    #[test]
    fn judging_twice_gives_the_same_verdict(trial in trial(), plan in plan()) {
        prop_assert_eq!(judge(&trial, &plan), judge(&trial, &plan));
    }
}

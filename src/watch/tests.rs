//! Made series, each judged as a whole.

use super::*;
use crate::units::GIB;

/// A card of 100 GiB, so that gibibytes are percents.
fn subject(pid: Option<u32>) -> Subject {
    let process = pid.map(|_| "python".to_owned());
    Subject { total_bytes: 100 * GIB, pid, process, interval_seconds: 1.0, ..Subject::default() }
}

fn at(second: f64, gib: f64) -> Sample {
    let used_bytes = (gib * GIB as f64) as u64;
    Sample { at_seconds: second, used_bytes, low_bytes: used_bytes, high_bytes: used_bytes, ..Sample::default() }
}

/// A sample a second with these GiB in use.
fn seen(values: impl IntoIterator<Item = f64>) -> Observations {
    let mut observations = Observations::of(&subject(None));
    for (second, gib) in values.into_iter().enumerate() {
        observations.add(&at(second as f64, gib));
    }
    observations
}

fn kinds(observations: &Observations, ending: Option<Ending>) -> Vec<(Kind, Certainty)> {
    observations.findings(ending).iter().map(|finding| (finding.kind, finding.certainty)).collect()
}

const FAILED: Option<Ending> = Some(Ending::ProcessEnded { exit: Some(Exit::Code(1)) });
const SUCCEEDED: Option<Ending> = Some(Ending::ProcessEnded { exit: Some(Exit::Code(0)) });
const UNSEEN: Option<Ending> = Some(Ending::ProcessEnded { exit: None });
const INTERRUPTED: Option<Ending> = Some(Ending::Interrupted);

/// Grows to 74 %, then gives back and takes again.
fn jumping() -> Vec<f64> {
    let growth = (0..20).map(|second| 4.0 + 3.5 * f64::from(second));
    let jumps = (0..30).map(|second| if second % 5 == 4 { 61.0 } else { 74.0 });
    growth.chain(jumps).chain([74.0, 74.0]).collect()
}

#[test]
fn jumps_that_end_in_a_failure_with_memory_free_look_like_fragmentation() {
    let observations = seen(jumping());
    assert_eq!(kinds(&observations, None), [(Kind::Jumping, Certainty::Seen)]);
    let found = observations.findings(FAILED);
    assert_eq!((found[0].kind, found[0].certainty, found.len()), (Kind::FragmentationLike, Certainty::Likely, 1));
    assert!(found[0].text.contains("6 falls") && found[0].text.contains("74.0 GiB (74%)"), "{}", found[0].text);
    assert_eq!(kinds(&observations, UNSEEN), [(Kind::FragmentationLike, Certainty::IfOutOfMemory)]);
    assert_eq!(kinds(&observations, SUCCEEDED), [(Kind::Jumping, Certainty::Seen)]);
    let terminated = Some(Ending::ProcessEnded { exit: Some(Exit::Signal(15)) });
    assert_eq!(kinds(&observations, terminated), [(Kind::Jumping, Certainty::Seen)]);
}

#[test]
fn the_memory_that_the_end_itself_gives_back_changes_nothing() {
    let observations = seen(jumping().into_iter().chain([0.5]));
    let found = observations.findings(FAILED);
    assert_eq!(found[0].kind, Kind::FragmentationLike);
    assert!(found[0].text.contains("6 falls") && found[0].text.contains("(74%)"), "{}", found[0].text);
}

#[test]
fn memory_that_collapses_and_stays_down_is_an_end_too() {
    let collapsed = |seconds| seen(jumping().into_iter().chain(std::iter::repeat_n(3.0, seconds)));
    assert_eq!(kinds(&collapsed(3), INTERRUPTED), [(Kind::Jumping, Certainty::Seen)]);
    assert_eq!(kinds(&collapsed(12), None), [(Kind::FragmentationLike, Certainty::IfOutOfMemory)]);
}

#[test]
fn an_end_above_80_percent_or_without_jumps_is_no_fragmentation() {
    let high = seen(jumping().into_iter().map(|gib| gib * 1.15));
    assert_eq!(kinds(&high, FAILED), [(Kind::Jumping, Certainty::Seen)]);
    assert_eq!(kinds(&seen(std::iter::repeat_n(74.0, 60)), FAILED), []);
    let low = seen(jumping().into_iter().map(|gib| gib * 0.5));
    assert_eq!(kinds(&low, FAILED), []);
}

#[test]
fn a_steady_climb_is_a_leak_and_says_when_the_card_is_full() {
    let observations = seen((0..200).map(|second| 20.0 + 0.125 * f64::from(second)));
    let found = observations.findings(None);
    assert_eq!((found[0].kind, found.len()), (Kind::Leak, 1));
    assert!(found[0].text.contains("by 128.0 MiB a second over the last 1m 39s"), "{}", found[0].text);
    // 100 − 44.875 GiB at 0.125 GiB a second.
    assert!(found[0].text.contains("full 7m 21s later"), "{}", found[0].text);
    assert_eq!(kinds(&observations, INTERRUPTED), [(Kind::Leak, Certainty::Seen)]);
}

#[test]
fn a_leak_by_segments_under_noise_is_a_leak() {
    let steps = (0..200_u32).map(|second| 30.0 + f64::from(second / 10) + f64::from(second * 7 % 5) * 0.2);
    assert_eq!(kinds(&seen(steps), INTERRUPTED), [(Kind::Leak, Certainty::Seen)]);
}

#[test]
fn growth_that_ends_is_no_leak() {
    let warm_up = |seconds: u32| (0..seconds).map(|second| 5.0 + 45.0 * (f64::from(second) / 40.0).min(1.0));
    for seconds in [30, 60, 80, 120, 300] {
        assert_eq!(kinds(&seen(warm_up(seconds)), None), [], "after {seconds} s");
    }
    let settling = (0..300).map(|second| 60.0 * (1.0 - (-f64::from(second) / 12.0).exp()));
    assert_eq!(kinds(&seen(settling), INTERRUPTED), []);
    let one_more_segment = (0..200).map(|second| if second < 130 { 40.0 } else { 42.0 });
    assert_eq!(kinds(&seen(one_more_segment), INTERRUPTED), []);
}

#[test]
fn the_teeth_of_a_saw_are_neither_a_leak_nor_fragmentation() {
    for period in [10_u32, 37, 120, 250] {
        let saw = (0..400).map(|second| 10.0 + 60.0 * f64::from(second % period) / f64::from(period));
        assert_eq!(kinds(&seen(saw.clone()), None), [], "period {period}");
        assert_eq!(kinds(&seen(saw), UNSEEN), [], "period {period}");
    }
}

#[test]
fn a_full_card_at_the_end_is_named() {
    let observations = seen((0..60).map(|second| if second < 20 { 50.0 } else { 97.0 }));
    assert_eq!(kinds(&observations, FAILED), [(Kind::CardFull, Certainty::Likely)]);
    assert_eq!(kinds(&observations, UNSEEN), [(Kind::CardFull, Certainty::IfOutOfMemory)]);
    assert_eq!(kinds(&observations, SUCCEEDED), []);
}

fn holder(pid: u32, whose: Whose, gib: f64) -> Holder {
    Holder { pid, name: Some(format!("job{pid}")), bytes: Some((gib * GIB as f64) as u64), whose }
}

#[test]
fn another_process_is_named_and_its_climb_is_not_ours() {
    let mut observations = Observations::of(&subject(Some(7)));
    for second in 0..200_u32 {
        let climb = 0.125 * f64::from(second);
        let processes = vec![holder(7, Whose::Watched, 30.0), holder(9, Whose::Other, climb)];
        observations.add(&Sample { processes, ..at(f64::from(second), 30.0 + climb) });
    }
    let found = observations.findings(None);
    assert_eq!((found[0].kind, found.len()), (Kind::OtherProcesses, 1));
    assert!(found[0].text.contains("job9 (process 9) 24.9 GiB"), "{}", found[0].text);
}

#[test]
fn two_processes_share_a_card_that_is_watched_as_a_whole_and_one_has_it_alone() {
    let of = |holders: &[Holder]| {
        let mut observations = seen([]);
        observations.add(&Sample { processes: holders.to_vec(), ..at(1.0, 50.0) });
        kinds(&observations, None)
    };
    let two = [holder(7, Whose::Other, 30.0), holder(9, Whose::Other, 20.0)];
    assert_eq!(of(&two[..1]), []);
    assert_eq!(of(&two), [(Kind::OtherProcesses, Certainty::Seen)]);
}

#[test]
fn a_process_that_the_driver_does_not_list_is_said_to_be_hidden() {
    let mut observations = Observations::of(&subject(Some(7)));
    for second in 0..20_u32 {
        let processes = vec![holder(4242, Whose::Unknown, 30.0)];
        observations.add(&Sample { processes, ..at(f64::from(second), 30.0) });
    }
    assert_eq!(kinds(&observations, None), []);
    assert_eq!(kinds(&observations, SUCCEEDED), [(Kind::HiddenProcesses, Certainty::Seen)]);
}

#[test]
fn samples_that_are_missing_make_no_jumps() {
    let mut observations = seen([]);
    for second in 0..300_u32 {
        // Two minutes without an answer, and another level after each.
        match second / 60 {
            1 | 3 => observations.miss(),
            level => observations.add(&at(f64::from(second), if level == 2 { 62.0 } else { 76.0 })),
        }
    }
    assert_eq!(kinds(&observations, FAILED), []);
    assert_eq!(observations.summary(Ending::Interrupted).missed_samples, 120);
}

#[test]
fn a_clock_that_jumps_back_or_is_no_number_is_counted_and_left_out() {
    let mut observations = seen((0..100).map(|_| 40.0));
    for second in [50.0, -3.0, f64::NAN, f64::INFINITY, 99.0] {
        observations.add(&at(second, 90.0));
    }
    let summary = observations.summary(Ending::Interrupted);
    assert_eq!((summary.samples, summary.disordered_samples, summary.peak_bytes), (100, 5, 40 * GIB));
    observations.add(&at(1e9, 41.0));
    assert_eq!(kinds(&observations, INTERRUPTED), []);
}

#[test]
fn nothing_seen_concludes_nothing() {
    for ending in [None, FAILED, UNSEEN, INTERRUPTED] {
        assert_eq!(kinds(&seen([]), ending), []);
        assert_eq!(kinds(&seen([70.0]), ending), []);
    }
    let mut absurd = Observations::of(&Subject { total_bytes: u64::MAX, pid: Some(1), ..Subject::default() });
    absurd.add(&Sample { used_bytes: u64::MAX, low_bytes: u64::MAX, ..Sample::default() });
    absurd.add(&Sample { at_seconds: 1.0, ..Sample::default() });
    assert_eq!(absurd.summary(Ending::CutOff).peak_bytes, u64::MAX);
}

#[test]
fn hundreds_of_processes_are_bounded() {
    let mut observations = seen([]);
    let processes = (0..500).map(|pid| holder(pid, Whose::Other, 0.1)).collect();
    observations.add(&Sample { processes, ..at(1.0, 50.0) });
    assert_eq!(observations.summary(Ending::Interrupted).processes.len(), 64);
    assert!(observations.findings(None)[0].text.contains("56 more"));
}

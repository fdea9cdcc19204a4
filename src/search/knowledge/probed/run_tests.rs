//! Whole runs of a made program whose samples have 40 to 500 tokens.

use std::ops::ControlFlow;

use super::whole_run::RunTerms;
use super::*;
use crate::data::{DataSpec, ImageSizeSpec, LengthDistribution, LengthSpec, Padding};
use crate::memory::forecast::testing::{FRAGMENTING, Program, Recorder};
use crate::memory::forecast::tuning::{MAX_PLAYS, Observer, Unobserved};
use crate::memory::{Mark, Trim};
use crate::search::machine::Machine;
use crate::search::scripted::plan;
use crate::search::shape_probes;
use crate::search::space::ConfChoice;
use crate::trial::remedies::{Changes, Padder, RunRemedies};
use crate::units::MIB;

const SAMPLES: usize = 4000;

/// What is known of it under a limit, as one of so many replicas.
fn known(limit_bytes: u64, replicas: usize) -> (Probed, Point) {
    known_of(|shapes| FRAGMENTING.record(shapes), texts(), limit_bytes, replicas)
}

/// Samples of 40 to 500 tokens.
fn texts() -> DataSpec {
    let length = LengthSpec::Range { min: 40, max: 500, distribution: LengthDistribution::Uniform };
    DataSpec { sequence_length: Some(length), padding: Padding::Longest, ..DataSpec::default() }
}

/// The same of a program whose images have sides of 64 to 512 pixels.
fn known_images(limit_bytes: u64, replicas: usize) -> (Probed, Point) {
    let sides = ImageSizeSpec::Range { min: 64, max: 512, multiple_of: 32, every: 3 };
    let data = DataSpec { image_size: Some(sides), ..DataSpec::default() };
    known_of(|shapes| FRAGMENTING.record(shapes), data, limit_bytes, replicas)
}

/// The same with a small buffer in every step whose rows are padded, which follows no polynomial.
fn padded(shapes: &[(u64, u64)]) -> Vec<Event> {
    let mut recorder = Recorder::from_number(1 << 32);
    for event in FRAGMENTING.record(shapes) {
        let step = if let Event::Mark(Mark::Step(step)) = event { shapes.get(step as usize) } else { None };
        recorder.events.push(event);
        if let Some((b, t)) = step {
            let buffer = recorder.alloc(4 * b * t.next_multiple_of(48));
            recorder.free(buffer);
        }
    }
    recorder.events
}

/// A program that allocates.
type Record = fn(&[(u64, u64)]) -> Vec<Event>;

fn known_of(record: Record, data: DataSpec, limit_bytes: u64, replicas: usize) -> (Probed, Point) {
    let shapes = shape_probes::shapes(&data).unwrap();
    let mut terms = Terms { limit_bytes, ..Machine::new().terms(&plan(64)) };
    let run = RunTerms { horizon_steps: 300, data, seed: 1, evaluate_every: None, checkpoint_every: None, replicas };
    terms.run = Some(run);
    // The rate is another matter.
    terms.safety.fragmentation_threshold = crate::units::Fraction(1.0);
    let mut probed = Probed::new(terms);
    probed.count_samples(SAMPLES);
    let point = crate::search::rules::testing::point(8);
    for (batch_size, size) in shapes {
        let events = record(&[(batch_size as u64, size.value() as u64); 5]);
        probed.add_shape_probe(&Point { batch_size, ..point.clone() }, size, events);
    }
    (probed, point)
}

fn patient(_: PlayedSteps) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn remedies(limit_bytes: u64, reach: Reach) -> RunRemedies {
    let (probed, point) = known(limit_bytes, 1);
    probed.remedies(&point, &History::default(), reach, &mut patient).unwrap()
}

#[test]
fn a_play_that_somebody_leaves_has_no_result() {
    let (probed, point) = known(u64::MAX, 1);
    let mut leave = |_| ControlFlow::Break(());
    assert_eq!(probed.play(&point, &History::default(), &mut leave), None);
    assert_eq!(probed.remedies(&point, &History::default(), Reach::Shapes, &mut leave), None);
}

#[test]
fn the_worst_rank_s_run_is_the_run() {
    let (probed, point) = known(u64::MAX, 1);
    let alone = probed.play(&point, &History::default(), &mut patient).unwrap();
    assert_eq!(alone.runs[0].rank, None);
    let (probed, point) = known(u64::MAX, 4);
    let several = probed.play(&point, &History::default(), &mut patient).unwrap();
    let [worst] = several.runs.as_slice() else { panic!("one allocator") };
    assert!(worst.rank.is_some() && worst.figures.steps == 300);
    assert_eq!(several.outlook.peak_reserved_bytes, worst.figures.peak_reserved_bytes);
    assert_ne!(worst.figures.points, alone.runs[0].figures.points, "each rank has its own part of a batch");

    // A limit that the best rank keeps and the worst does not: the worst one's step is told, with its number.
    let (probed, point) = known(316 * MIB, 4);
    let tight = probed.play(&point, &History::default(), &mut patient).unwrap();
    let breach = tight.outlook.breach.unwrap();
    let rank = tight.runs[0].rank.unwrap();
    assert!(breach.reason.contains(&format!("(rank {rank}, allocator native, limit 316.0 MiB)")), "{}", breach.reason);
    assert_eq!(tight.runs[0].figures.out_of_memory.unwrap().step, breach.step);
}

#[test]
fn where_nobody_knows_the_order_of_the_samples_the_worst_of_several_counts() {
    let (mut probed, point) = known(u64::MAX, 1);
    let play = |probed: &Probed| probed.play(&point, &History::default(), &mut patient).unwrap().outlook;
    let mut peaks = Vec::new();
    for seed in [1, 2, 3] {
        probed.count_samples(1 << 40);
        probed.terms.run.as_mut().unwrap().seed = seed;
        let outlook = play(&probed);
        assert!(!outlook.reason.contains("orders"), "{}", outlook.reason);
        peaks.push(outlook.peak_reserved_bytes);
    }
    probed.leave_samples_uncounted();
    probed.terms.run.as_mut().unwrap().seed = 1;
    let worst = play(&probed);
    assert!(worst.reason.ends_with("; of 3 orders in which its samples may come, the worst"), "{}", worst.reason);
    peaks.sort_unstable();
    assert_eq!(worst.peak_reserved_bytes, peaks[2]);
    assert!(peaks[0] < peaks[2], "much depends on the order: {peaks:?}");
}

#[test]
fn what_makes_a_run_last_that_breaks_is_found_by_the_same_forecast() {
    let (probed, point) = known(316 * MIB, 1);
    let play = probed.play(&point, &History::default(), &mut patient).unwrap();
    assert_eq!(play.outlook.method, Method::Exact, "{}", play.outlook.reason);
    let breach = play.outlook.breach.unwrap();
    let found = remedies(316 * MIB, Reach::ShapesAndReleases);
    assert_eq!(found.as_it_is.breach.unwrap().step(), breach.step, "it is played as the run itself is");
    let hint = found.hint(Padder::Loader).unwrap();
    assert_eq!(
        hint, "with `data.pad_to_multiple_of: 256` the run lasts, by forecast with 310.0 MiB reserved",
        "no release of the cache helps"
    );
    let offered: Vec<Changes> = found.offered().map(|way| way.changes).collect();
    assert!(offered.iter().any(|changes| changes.group_by_length && changes.token_budget.is_some()), "{offered:?}");
    assert!(found.offered().all(|way| way.run.lasts()) && found.unplayed == 0);
    assert!(found.ways.iter().any(|way| way.changes.trim == Some(Trim::AfterUpdate) && !way.offered));
}

#[test]
fn a_run_that_lasts_is_offered_what_holds_less_and_larger_batches_in_as_much() {
    let found = remedies(1000 * MIB, Reach::Shapes);
    let as_it_is = &found.as_it_is;
    assert!(as_it_is.lasts() && found.hint(Padder::Loader).is_none());
    // 8 samples a batch of 4000, padded to the longest of 8.
    assert_eq!((as_it_is.epoch_steps, as_it_is.largest_batch, as_it_is.steps), (Some(500), 8, 300));
    assert!(as_it_is.padding_share > Some(0.3) && as_it_is.fragmentation > Some(0.1), "{as_it_is:?}");
    let way = |changes: Changes| found.ways.iter().find(|way| way.changes == changes).unwrap();
    let padded = way(Changes { pad_to_multiple_of: Some(128), ..Changes::default() });
    assert!(padded.offered && padded.run.shapes < as_it_is.shapes, "{}", padded.reason);
    assert_eq!(padded.run.epoch_steps, Some(500));
    let grouped = way(Changes { group_by_length: true, ..Changes::default() });
    assert!(grouped.run.padding_share < Some(0.05), "{}", grouped.reason);
    let larger = found.ways.iter().max_by_key(|way| way.changes.token_budget).unwrap();
    assert!(larger.offered && larger.run.epoch_steps < Some(500), "{}", larger.reason);
    assert_eq!(larger.changes.token_budget, Some(as_it_is.most_tokens));
    assert!(found.ways.iter().all(|way| way.changes.trim.is_none()));
    let order: Vec<bool> = found.ways.iter().map(|way| way.offered).collect();
    assert!(order.is_sorted_by(|one, other| one >= other), "what is offered comes first: {order:?}");
}

#[test]
fn a_run_of_images_is_the_same_on_all_ranks_and_one_that_breaks_is_offered_releases_alone() {
    let (probed, point) = known_images(u64::MAX, 1);
    let alone = probed.play(&point, &History::default(), &mut patient).unwrap();
    assert_eq!(alone.outlook.method, Method::Exact, "{}", alone.outlook.reason);
    let (several, _) = known_images(u64::MAX, 3);
    let several = several.play(&point, &History::default(), &mut patient).unwrap();
    assert_eq!(several.runs[0].figures, alone.runs[0].figures, "a side is that of all replicas");
    assert!(!probed.varies_in_length() && probed.is_playable(&point));

    let (tight, point) = known_images(alone.outlook.peak_reserved_bytes * 95 / 100, 1);
    let breach = tight.play(&point, &History::default(), &mut patient).unwrap().outlook.breach.unwrap();
    let found = tight.remedies(&point, &History::default(), Reach::ShapesAndReleases, &mut patient).unwrap();
    assert_eq!(found.as_it_is.breach.unwrap().step(), breach.step);
    let tried: Vec<Changes> = found.ways.iter().map(|way| way.changes).collect();
    let releases = |changes: &Changes| Changes { trim: changes.trim, ..Changes::default() } == *changes;
    assert!(tried.len() == 2 && tried.iter().all(releases), "{tried:?}");
    let (settings, _) = tight.tune_run(&point, &History::default(), ConfChoice::Any, &Unobserved).unwrap();
    assert_eq!((settings.steps, settings.horizon_steps), (300, 300), "{}", settings.reason);
}

#[test]
fn sides_at_which_a_net_does_other_things_are_told_with_what_may_help() {
    let (mut probed, point) = known_images(u64::MAX, 1);
    for (batch_size, size) in shape_probes::shapes(&probed.terms.run.clone().unwrap().data).unwrap() {
        let ahead = if size.value().is_multiple_of(64) { 2 } else { 1 };
        let events = Program { ahead, ..FRAGMENTING }.record(&[(batch_size as u64, size.value() as u64); 5]);
        probed.add_shape_probe(&Point { batch_size, ..point.clone() }, size, events);
    }
    let outlook = probed.play(&point, &History::default(), &mut patient).unwrap().outlook;
    assert_eq!(outlook.method, Method::None);
    assert!(
        outlook.reason.contains("`data.image_size.multiple_of` is to be a multiple of them all"),
        "{}",
        outlook.reason
    );
}

#[test]
fn a_point_that_hands_its_cache_back_is_played_so_at_its_own_pace() {
    let (probed, point) = known(u64::MAX, 1);
    let calls = |trim| {
        let point = Point { trim, ..point.clone() };
        // The probes of a point that releases are its own; these allocate the same.
        let mut probed = known(u64::MAX, 1).0;
        for (batch_size, size) in shape_probes::shapes(&probed.terms.run.clone().unwrap().data).unwrap() {
            let events = FRAGMENTING.record(&[(batch_size as u64, size.value() as u64); 5]);
            probed.add_shape_probe(&Point { batch_size, ..point.clone() }, size, events);
        }
        probed.play(&point, &History::default(), &mut patient).unwrap().runs[0].figures.device_calls
    };
    let never = probed.play(&point, &History::default(), &mut patient).unwrap().runs[0].figures.device_calls;
    let [every_k, after_update] = [Trim::EveryK, Trim::AfterUpdate].map(calls);
    assert_eq!(calls(Trim::Never), never);
    // 300 steps: thirty releases of a segment and more, or three hundred.
    assert!(never < 30 && every_k > 60 && after_update > 600, "{never}, {every_k}, {after_update}");
}

#[test]
fn without_lengths_or_an_exact_forecast_nothing_is_looked_for() {
    let machine = Machine::new();
    let mut probed = Probed::new(machine.terms(&plan(64)));
    let point = crate::search::rules::testing::point(8);
    assert_eq!(probed.remedies(&point, &History::default(), Reach::Shapes, &mut patient), None);
    probed.leave_samples_uncounted();
    assert_eq!(probed.remedies(&point, &History::default(), Reach::Shapes, &mut patient), None);
    assert!(!probed.varies_in_length());
}

#[test]
fn settings_under_which_a_run_lasts_that_breaks_are_found_by_playing_it_and_nothing_is_where_nothing_can_be_played() {
    let (history, (probed, point)) = (History::default(), known(320 * MIB, 1));
    let (found, tried) = probed.tune_run(&point, &history, ConfChoice::Any, &Unobserved).unwrap();
    assert_eq!((found.steps, found.horizon_steps), (300, 300));
    assert!(
        found.conf.is_some() && found.reason.contains("`defaults` runs out of memory at step "),
        "{}",
        found.reason
    );
    assert!(tried.iter().filter(|one| one.is_best).count() == 1 && tried.len() <= MAX_PLAYS, "{tried:#?}");
    assert!(tried[0].result.starts_with("out of memory at step "), "{tried:#?}");
    assert_eq!(
        probed.tune_run(&point, &history, ConfChoice::Any, &Unobserved).unwrap().0,
        found,
        "it is the same each time"
    );
    // Nothing can be saved where the live bytes are too many, and nothing is known of another kind.
    let (hopeless, point) = known(100 * MIB, 1);
    let (found, _) = hopeless.tune_run(&point, &history, ConfChoice::Any, &Unobserved).unwrap();
    assert!(found.conf.is_none() && found.reason.starts_with("no setting helps"), "{}", found.reason);
    let other = Point { device_prefetch: 1, ..point };
    let (found, tried) = hopeless.tune_run(&other, &history, ConfChoice::Any, &Unobserved).unwrap();
    assert!(found.reason.starts_with("not searched for: ") && tried.is_empty(), "{}", found.reason);
    assert_eq!((found.method, found.steps, found.conf), (Method::None, 0, None));
}

#[test]
fn a_run_that_is_not_forecast_exactly_is_searched_too_and_what_is_found_has_to_leave_more_free() {
    let history = History::default();
    let of_four = || crate::search::rules::testing::point(4);
    let search = |limit_mib: u64| {
        let (probed, point) = (known_of(padded, texts(), limit_mib * MIB, 1).0, of_four());
        let play = probed.play(&point, &history, &mut patient).unwrap();
        assert_eq!(play.outlook.method, Method::Affine, "{}", play.outlook.reason);
        let (found, _) = probed.tune_run(&point, &history, ConfChoice::Any, &Unobserved).unwrap();
        assert_eq!((found.method, found.steps), (Method::Affine, 300));
        assert!(found.reason.contains(" (affine: by a forecast that may err"), "{}", found.reason);
        let lasts = found.conf.as_ref().map(|conf| {
            let changed = Point { alloc_conf: Some(conf.clone()), ..point.clone() };
            probed.play(&changed, &history, &mut patient).unwrap().outlook.peak_reserved_bytes
        });
        (play.outlook.breach.or(play.outlook.doubt), lasts)
    };
    let (broken, held) = search(210);
    assert!(broken.is_some());
    // With the larger sizes it holds less than the limit by as much as the forecast may be off.
    assert!(held.unwrap() <= 210 * MIB - Method::Affine.error_of_a_play().of(210 * MIB));
    let (broken, held) = search(204);
    assert!(broken.is_some() && held.is_none());
    let (exact, point) = (known(204 * MIB, 1).0, of_four());
    assert!(exact.tune_run(&point, &history, ConfChoice::Any, &Unobserved).unwrap().0.conf.is_some());
}

/// Somebody who leaves at once.
struct Leaving;

impl Observer for Leaving {
    fn begin(&self, _what: &'static str, _steps: u64) {}
    fn steps(&self, _count: u32) {}
    fn wants_to_leave(&self) -> bool {
        true
    }
}

#[test]
fn a_search_for_settings_that_somebody_leaves_comes_to_nothing() {
    let (probed, point) = known(316 * MIB, 1);
    assert_eq!(probed.tune_run(&point, &History::default(), ConfChoice::Any, &Leaving), None);
}

//! The loader's stage as sentences, and against the best of the full grid over simulated loaders.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng};

use super::*;
use crate::config::Plan;
use crate::config::plan::Subject;
use crate::search::JudgedTrial;
use crate::search::machine::Machine;
use crate::search::recommend::best_of;
use crate::search::rules::testing::{completed, sample};
use crate::search::scripted::{Played, Script, loaded, plan, play, record};
use crate::search::staged::PERIPHERY_TRIALS;
use crate::search::{Conclusion, History, Knowledge, Space, Strategy, knowledge::Nothing};
use crate::trial::command::CommandSpec;
use crate::trial::{Measurement, TrialId, TrialRecord};
use crate::units::MIB;

const WORKERS: [usize; 6] = [0, 1, 2, 4, 8, 16];

/// A loader beside a step, in seconds.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// What a batch takes one worker.
    batch: f64,
    /// What a step takes that has the machine to itself.
    step: f64,
    /// More workers than this make no more.
    most: f64,
    /// What each worker adds to the step's time, as a share of it.
    contention: f64,
    /// How uneven batches are: with one batch ready for each worker, this share of the time is waited for them.
    unevenness: f64,
    /// The most that a measured figure is off.
    noise: f64,
}

const EVEN: Line = Line { batch: 0.1, step: 0.1, most: 1000.0, contention: 0.0, unevenness: 0.0, noise: 0.0 };

impl Line {
    /// Batches a second of the loader alone.
    fn made(&self, workers: usize) -> f64 {
        (workers as f64).clamp(1.0, self.most) / self.batch
    }

    /// Samples a second and data wait.
    fn trained(&self, point: &Point) -> (f64, f64) {
        let workers = point.loader_workers;
        let step = self.step * (1.0 + self.contention * workers as f64);
        // Workers that share processors with the step are slowed as it is.
        let batch = 1.0 / self.made(workers) * (1.0 + self.contention * workers as f64);
        let wait = match (workers, point.prefetch_depth) {
            (0, _) | (_, 0) => batch,
            (_, depth) => (batch - step).max(self.unevenness * step / depth as f64),
        };
        (point.batch_size as f64 / (step + wait), wait / (step + wait))
    }

    /// A factor that depends on the point alone, so that the same trial gives the same figures.
    fn noise(&self, point: &Point, salt: u64) -> f64 {
        let mut rng = StdRng::seed_from_u64(salt + (point.loader_workers * 31 + point.prefetch_depth) as u64);
        1.0 + self.noise * rng.random_range(-1.0..=1.0)
    }

    fn script(&self, spec: &TrialSpec) -> Script {
        let point = &spec.point;
        if spec.is_throughput() {
            return Script::Loads { batches_per_second: self.made(point.loader_workers) * self.noise(point, 1 << 40) };
        }
        let (samples_per_second, data_wait) = self.trained(point);
        Script::Completes {
            samples_per_second: samples_per_second * self.noise(point, 2 << 40),
            peak_rate: 0.0,
            data_wait,
        }
    }

    /// The highest rate that any setting of the space has.
    fn best(&self, plan: &Plan) -> f64 {
        let space = Space::new(plan);
        let rates = space.loaders().into_iter().map(|loader| self.trained(&space.point(space.pair_of(8), loader)).0);
        rates.fold(0.0, f64::max)
    }
}

fn plan_with(workers: &[usize], depths: &[usize]) -> Plan {
    let mut plan = plan(8);
    plan.search.loader_workers = workers.to_vec();
    plan.search.prefetch_depth = depths.to_vec();
    plan
}

/// What the strategy does on sixteen processors.
fn played(plan: &Plan, script: impl Fn(&TrialSpec) -> Script) -> Played {
    play(&mut Staged::new(Space::new(plan).on(16)), plan, script)
}

/// Purpose, workers and prefetch depth of the loader's trials.
fn of_loader(played: &Played) -> Vec<(Purpose, usize, usize)> {
    let of_loader = |(purpose, _): &&(Purpose, Point)| matches!(purpose, Purpose::Throughput | Purpose::Loader);
    let trials = played.trials.iter().filter(of_loader);
    trials.map(|(purpose, point)| (*purpose, point.loader_workers, point.prefetch_depth)).collect()
}

/// Workers and prefetch depth of the answer.
fn chosen(played: &Played) -> (usize, usize) {
    match &played.conclusion {
        Conclusion::Safe(point) => (point.loader_workers, point.prefetch_depth),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_choice_is_within_5_percent_of_the_best_of_the_grid_in_5_trials() {
    let cases = [
        ("processor-bound", Line { batch: 0.35, ..EVEN }),
        ("never starving", Line { batch: 0.001, ..EVEN }),
        ("barely starving", Line { batch: 0.004, ..EVEN }),
        ("as fast as the step", EVEN),
        ("never satisfied", Line { batch: 10.0, ..EVEN }),
        ("saturated", Line { batch: 0.9, most: 3.5, ..EVEN }),
        ("one at a time", Line { batch: 0.5, most: 1.0, ..EVEN }),
        ("contention", Line { batch: 0.25, contention: 0.02, ..EVEN }),
        ("heavy contention", Line { batch: 0.4, contention: 0.1, ..EVEN }),
        ("uneven", Line { batch: 0.15, unevenness: 0.09, ..EVEN }),
        ("uneven and saturated", Line { batch: 0.6, most: 4.0, unevenness: 0.05, ..EVEN }),
    ];
    for (name, line) in cases {
        for noise in [0.0, 0.05] {
            for workers in [&WORKERS[..], &WORKERS[1..], &[0, 1, 2, 4]] {
                let line = Line { noise, ..line };
                let plan = plan_with(workers, &[2, 1]);
                let played = played(&plan, |spec| line.script(spec));
                let Conclusion::Safe(point) = &played.conclusion else { panic!("{name}: {:?}", played.conclusion) };
                let (found, best) = (line.trained(point).0, line.best(&plan));
                let trials = of_loader(&played);
                let said = format!("{name}, noise {noise}, {workers:?}: {found} of {best} with {point} by {trials:?}");
                assert!(found >= 0.95 * best, "{said}");
                assert!(trials.len() <= LOADER_TRIALS, "{said}");
                let alone = trials.iter().filter(|(purpose, ..)| *purpose == Purpose::Throughput).count();
                assert!(alone <= THROUGHPUT_TRIALS, "{said}");
            }
        }
    }
}

proptest! {
    #[test]
    fn no_loader_is_left_far_below_the_best_of_the_grid(
        batch in 0.001..2.0_f64, most in 1.0..20.0_f64, contention in 0.0..0.12_f64, unevenness in 0.0..0.1_f64,
        is_noisy: bool,
    ) {
        let noise = if is_noisy { 0.05 } else { 0.0 };
        let line = Line { batch, most, contention, unevenness, noise, ..EVEN };
        let plan = plan_with(&WORKERS, &[2, 1]);
        let played = played(&plan, |spec| line.script(spec));
        let Conclusion::Safe(point) = &played.conclusion else { panic!("{:?}", played.conclusion) };
        let (found, best) = (line.trained(point).0, line.best(&plan));
        // Figures that are 5 % off may hide that much once more.
        let allowed = if is_noisy { 0.9 } else { 0.95 };
        prop_assert!(found >= allowed * best, "{found} of {best} with {point} by {:?}", of_loader(&played));
        prop_assert!(of_loader(&played).len() <= LOADER_TRIALS);
    }
}

#[test]
fn the_fewest_workers_that_keep_up_are_verified_with_the_smallest_prefetch() {
    // A batch takes two and a half steps.
    let line = Line { batch: 0.25, ..EVEN };
    let played = played(&plan_with(&WORKERS, &[2, 1]), |spec| line.script(spec));
    assert_eq!(of_loader(&played), [(Purpose::Throughput, 4, 1), (Purpose::Loader, 4, 1)]);
    assert_eq!(chosen(&played), (4, 1));
}

#[test]
fn a_step_that_does_not_wait_takes_no_trial() {
    let line = Line { batch: 0.001, ..EVEN };
    let played = played(&plan_with(&WORKERS, &[2, 1]), |spec| line.script(spec));
    assert_eq!((of_loader(&played), chosen(&played)), (vec![], (0, 0)));
    assert!(played.skipped.is_empty());
}

#[test]
fn uneven_batches_get_a_deeper_prefetch_before_more_workers() {
    let line = Line { batch: 0.15, unevenness: 0.03, ..EVEN };
    let played = played(&plan_with(&WORKERS, &[4, 2, 1]), |spec| line.script(spec));
    let trials = of_loader(&played);
    assert_eq!(trials, [(Purpose::Throughput, 2, 1), (Purpose::Loader, 2, 1), (Purpose::Loader, 2, 2)]);
    assert_eq!(chosen(&played), (2, 2));
}

#[test]
fn where_no_other_workers_are_to_be_had_a_deeper_prefetch_is_tried_whatever_the_wait() {
    let line = Line { unevenness: 0.3, ..EVEN };
    let played = played(&plan_with(&[4], &[2, 1]), |spec| line.script(spec));
    assert_eq!(of_loader(&played), [(Purpose::Loader, 4, 2)]);
    assert_eq!(chosen(&played), (4, 2));
}

#[test]
fn loading_on_demand_is_proposed_only_where_nothing_else_is_listed() {
    let line = Line { batch: 0.25, ..EVEN };
    let depths = |depths: &[usize]| {
        let played = played(&plan_with(&WORKERS, depths), |spec| line.script(spec));
        played
            .trials
            .iter()
            .filter(|(_, point)| point.loader_workers > 0)
            .map(|(_, point)| point.prefetch_depth)
            .collect()
    };
    let (listed, only): (Vec<usize>, Vec<usize>) = (depths(&[0, 1, 2]), depths(&[0]));
    assert!(!listed.is_empty() && listed.iter().all(|depth| *depth > 0), "{listed:?}");
    assert!(!only.is_empty() && only.iter().all(|depth| *depth == 0), "{only:?}");
}

#[test]
fn a_loader_that_cannot_be_run_alone_is_settled_by_real_steps() {
    let line = Line { batch: 0.25, ..EVEN };
    let failed = crate::trial::Outcome::Failed { message: "no such file".to_owned() };
    let played = played(&plan_with(&WORKERS, &[1]), |spec| match spec.purpose {
        Purpose::Throughput => Script::Ends(failed.clone()),
        _ => line.script(spec),
    });
    assert_eq!(of_loader(&played), [(Purpose::Throughput, 4, 1), (Purpose::Loader, 4, 1)]);
    assert_eq!(chosen(&played), (4, 1));
}

/// The same plan for a program in place of a model.
fn of_a_program(plan: Plan) -> Plan {
    let timeout = Duration::from_secs(60);
    let command = CommandSpec { run: Vec::new(), env: BTreeMap::new(), cwd: None, preload: Vec::new(), timeout };
    Plan { subject: Subject::Command(command), ..plan }
}

#[test]
fn a_program_s_loader_is_tried_once_whatever_the_search_has_taken() {
    let model = plan_with(&WORKERS, &[2]);
    let program = of_a_program(model.clone());
    let has_room = |plan: &Plan, history: &History| {
        Staged::new(Space::new(plan)).has_loader_room(View { history, knowledge: &Nothing })
    };
    let ended = |purpose: Purpose| {
        let record = completed(crate::search::rules::testing::point(8), vec![sample(4)]);
        let spec = crate::trial::TrialSpec { purpose, ..record.spec };
        JudgedTrial { record: TrialRecord { spec, ..record }, verdict: crate::search::Verdict::default() }
    };
    let mut history = History::default();
    assert!(has_room(&model, &history));
    (0..PERIPHERY_TRIALS).for_each(|_| history.tell(ended(Purpose::Remedy)));
    assert!(has_room(&program, &history) && !has_room(&model, &history));
    history.tell(ended(Purpose::Loader));
    assert!(!has_room(&program, &history));
}

#[test]
fn a_program_of_the_user_s_own_is_never_asked_for_its_loader_alone() {
    let plan = of_a_program(plan_with(&WORKERS, &[2, 1]));
    let line = Line { batch: 0.25, ..EVEN };
    let played = played(&plan, |spec| line.script(spec));
    assert_eq!(of_loader(&played), [(Purpose::Loader, 4, 1)]);
}

#[test]
fn on_trouble_the_prefetch_depth_is_lowered_before_the_workers() {
    let line = Line { batch: 0.35, unevenness: 0.09, ..EVEN };
    let out_of_memory = |script: Script, is_over: bool| if is_over { Script::out_of_memory() } else { script };
    let shallow =
        played(&plan_with(&WORKERS, &[2, 1]), |spec| out_of_memory(line.script(spec), spec.point.prefetch_depth > 1));
    assert_eq!(of_loader(&shallow)[1..], [(Purpose::Loader, 4, 1), (Purpose::Loader, 4, 2)]);
    assert_eq!(chosen(&shallow), (4, 1));
    let few = played(&plan_with(&WORKERS, &[2, 1]), |spec| {
        out_of_memory(line.script(spec), !spec.is_throughput() && spec.point.loader_workers > 2)
    });
    assert_eq!(of_loader(&few)[1..], [(Purpose::Loader, 4, 1), (Purpose::Loader, 2, 1)]);
    assert_eq!(chosen(&few), (2, 1));
}

#[test]
fn more_workers_than_processors_are_left_out_with_the_reason() {
    let line = Line { batch: 10.0, ..EVEN };
    let plan = plan_with(&WORKERS, &[2, 1]);
    let played = play(&mut Staged::new(Space::new(&plan).on(2)), &plan, |spec| line.script(spec));
    assert_eq!(chosen(&played), (2, 1));
    let reasons: Vec<_> = played.skipped.iter().filter(|skip| skip.point.loader_workers > 2).collect();
    assert_eq!(reasons.len(), 3);
    assert_eq!(reasons[0].reason, "4 loader workers on 2 processors that this process may run on");
    let only = plan_with(&[8], &[1]);
    assert_eq!(chosen(&play(&mut Staged::new(Space::new(&only).on(2)), &only, |spec| line.script(spec))), (8, 1));
}

/// The history of a strategy on a host that has so much memory left, with batches of 100 MiB.
fn history(plan: &Plan, line: Line, available_bytes: u64) -> (Vec<(Purpose, Point)>, Vec<String>, History) {
    let mut strategy = Staged::new(Space::new(plan).on(16));
    let (mut history, mut trials, mut skipped) = (History::default(), Vec::new(), Vec::new());
    for number in 1..100 {
        let ask = strategy.ask(&history, &Nothing as &dyn Knowledge);
        skipped.extend(strategy.skipped().into_iter().map(|skip| skip.reason));
        let Ask::Run { point, purpose } = ask else { break };
        trials.push((purpose, point.clone()));
        let spec = TrialSpec {
            id: TrialId(number),
            purpose,
            point,
            warmup_steps: 2,
            steps: 10,
            sample_every: 2,
            sample_size: None,
        };
        let mut record = record(&spec, &line.script(&spec));
        record.samples.iter_mut().for_each(|sample| sample.host_available_bytes = Some(available_bytes));
        let measurement = record.measurement.map(|found| Measurement { batch_bytes: Some(100 * MIB), ..found });
        let record = TrialRecord { measurement, ..record };
        let verdict = crate::search::Verdict::default();
        history.tell(JudgedTrial { record, verdict });
    }
    (trials, skipped, history)
}

#[test]
fn batches_that_would_fill_the_host_are_left_out_before_a_trial() {
    let line = Line { batch: 10.0, ..EVEN };
    let plan = plan_with(&WORKERS, &[2, 1]);
    // Eight workers would hold 900 MiB, 80 % of 1125.
    let (trials, skipped, _) = history(&plan, line, 1125 * MIB);
    assert_eq!(trials.iter().map(|(_, point)| point.loader_workers).max(), Some(8));
    assert_eq!(skipped.len(), 1, "{skipped:?}");
    assert_eq!(
        skipped[0],
        "the loader would hold 1.7 GiB: 100.0 MiB a batch × (16 workers × 1 + 1), over 80% of the 1.1 GiB that the host \
         has left (hint: fewer `loader_workers`, or a lower `prefetch_depth`)"
    );
    let (trials, skipped, _) = history(&plan, line, 1124 * MIB);
    assert_eq!((trials.iter().map(|(_, point)| point.loader_workers).max(), skipped.len()), (Some(4), 2));
}

#[test]
fn a_deeper_prefetch_that_would_fill_the_host_is_left_out() {
    let line = Line { batch: 0.35, unevenness: 0.09, ..EVEN };
    let (trials, skipped, _) = history(&plan_with(&[0, 4], &[2, 1]), line, 700 * MIB);
    assert!(trials.iter().all(|(_, point)| point.prefetch_depth < 2), "{trials:?}");
    assert!(skipped.iter().any(|reason| reason.contains("(4 workers × 2 + 1)")), "{skipped:?}");
}

#[test]
fn where_no_trial_with_steps_is_left_the_soak_verifies_what_the_rates_say() {
    let mut plan = plan_with(&[0, 1, 2, 4], &[1]);
    plan.target.batch_size = 64;
    let machine = Machine { data_wait: 0.6, ..Machine::new() };
    let (played, history) = machine.play(&mut Staged::new(Space::new(&plan).on(16)), &plan);
    let last = played.trials.last().unwrap();
    assert_eq!((last.0, last.1.loader_workers), (Purpose::Soak, 2));
    assert!(history.trials().iter().all(JudgedTrial::is_safe));
}

#[test]
fn every_prefix_of_a_history_leads_to_the_same_next_trial() {
    let plan = plan_with(&WORKERS, &[2, 1]);
    let line = Line { batch: 0.6, most: 4.0, unevenness: 0.05, noise: 0.05, ..EVEN };
    let (trials, _, whole) = history(&plan, line, 100 << 30);
    for (known, (purpose, point)) in trials.iter().enumerate() {
        let mut part = History::default();
        whole.trials().iter().take(known).for_each(|trial| part.tell(trial.clone()));
        let ask = Staged::new(Space::new(&plan).on(16)).ask(&part, &Nothing);
        assert_eq!(ask, Ask::Run { point: point.clone(), purpose: *purpose });
    }
}

#[test]
fn a_rate_is_no_measurement_of_its_point() {
    let plan = plan_with(&[0, 2], &[1]);
    let point = Space::new(&plan).point(Space::new(&plan).pair_of(8), Space::new(&plan).first_loader());
    let spec = TrialSpec {
        id: TrialId(1),
        purpose: Purpose::Throughput,
        point: point.clone(),
        warmup_steps: 2,
        steps: 10,
        sample_every: 2,
        sample_size: None,
    };
    let mut history = History::default();
    history.tell(JudgedTrial { record: loaded(&spec, 1000.0), verdict: crate::search::Verdict::default() });
    assert!(history.measured(&point).is_none() && history.throughput(&point).is_some());
    assert!(crate::search::recommend::ranked(&history, &Space::new(&plan)).is_empty());
    assert_eq!(best_of::<Point>(&[], JudgedTrial::samples_per_second), None);
}

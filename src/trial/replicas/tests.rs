use super::merge::{CancelledBy, Part, merge};
use super::*;
use crate::memory::Rates;
use crate::trial::outcome::{Measurement, Outcome};
use crate::trial::process::{LostPeer, Peers};
use crate::trial::spec::{Point, Purpose, TrialId};

fn spec() -> TrialSpec {
    let point = Point::plain(4);
    TrialSpec {
        id: TrialId(1),
        purpose: Purpose::Ladder,
        point,
        warmup_steps: 0,
        steps: 4,
        sample_every: 2,
        sample_size: None,
    }
}

fn part(outcome: Outcome) -> Part {
    Part { record: TrialRecord { outcome, ..TrialRecord::begun(&spec()) }, peers: Peers::default() }
}

/// One that lost another before it ended.
fn lost_to(rank: usize, seconds: Option<f64>, outcome: Outcome) -> Part {
    let lost = Some(LostPeer { rank, seconds });
    Part { peers: Peers { lost, ..Peers::default() }, ..part(outcome) }
}

/// One that ended because of another.
fn bereft(rank: usize, seconds: Option<f64>) -> Part {
    lost_to(rank, seconds, Outcome::Cancelled)
}

fn out_of_memory() -> Outcome {
    Outcome::OutOfMemory {
        requested_bytes: Some(7),
        allocated_bytes: None,
        reserved_bytes: None,
        limit_bytes: None,
        step: Some(1),
        phase: None,
    }
}

fn crashed() -> Outcome {
    Outcome::Crashed { signal: Some(9), status: None, log: String::new() }
}

fn ending(parts: Vec<Part>, by: CancelledBy) -> (Outcome, Option<usize>) {
    let record = merge(parts, by).unwrap();
    assert_eq!(record.measurement, None);
    (record.outcome, record.rank)
}

#[test]
fn the_outcome_is_that_of_the_rank_that_began_it() {
    let group = CancelledBy::Group;
    let ended = |parts| ending(parts, group);
    assert_eq!(ended(vec![bereft(1, None), part(out_of_memory())]), (out_of_memory(), Some(1)));
    assert_eq!(ended(vec![part(crashed()), part(out_of_memory()), bereft(0, None)]), (out_of_memory(), Some(1)));
    assert_eq!(ended(vec![bereft(2, None), bereft(2, None), part(crashed())]), (crashed(), Some(2)));
    let diverged = Outcome::Diverged { step: 3 };
    assert_eq!(ended(vec![part(diverged.clone()), bereft(0, None)]), (diverged, Some(0)));
    let failed = Outcome::Failed { message: "no such file".to_owned() };
    assert_eq!(ended(vec![part(failed.clone()), part(failed.clone())]), (failed, Some(0)));
}

#[test]
fn a_rank_that_lost_another_is_not_the_one_to_blame_whatever_became_of_it_then() {
    let ended = |parts| ending(parts, CancelledBy::Group);
    let lost = |rank, outcome| lost_to(rank, None, outcome);
    let failed = Outcome::Failed { message: "no such file".to_owned() };
    // It crashed on its way out, which weighs more than a failure.
    assert_eq!(ended(vec![lost(1, crashed()), part(failed.clone())]), (failed, Some(1)));
    // Rank 0 lost rank 2 and told rank 1, which had lost rank 0 by then. Nobody knows what became of rank 2.
    let parts = vec![lost(2, crashed()), bereft(0, None), part(Outcome::Cancelled)];
    assert!(matches!(ended(parts), (Outcome::Crashed { signal: None, .. }, Some(2))));
    let parts = vec![bereft(1, None), bereft(2, Some(4.0)), part(Outcome::Cancelled)];
    assert_eq!(ended(parts), (Outcome::TimedOut { seconds: 4.0 }, Some(2)));
    // A request that is not met is nobody else's doing.
    assert_eq!(ended(vec![part(crashed()), lost(0, out_of_memory())]), (out_of_memory(), Some(1)));
}

#[test]
fn a_rank_that_hangs_is_named_by_those_that_wait_for_it() {
    let timed_out = |seconds| Outcome::TimedOut { seconds };
    // Rank 1 was ended by the driver once the others had given it up.
    let parts = vec![bereft(1, Some(4.0)), part(Outcome::Cancelled), bereft(1, None)];
    assert_eq!(ending(parts, CancelledBy::Group), (timed_out(4.0), Some(1)));
    // Rank 1 ran into the driver's own patience at the same time.
    let parts = vec![bereft(1, Some(4.0)), part(timed_out(5.0))];
    assert_eq!(ending(parts, CancelledBy::Group), (timed_out(5.0), Some(1)));
    // All of them did, and nobody knows who hangs.
    let parts = vec![part(timed_out(5.0)), part(timed_out(5.0))];
    assert_eq!(ending(parts, CancelledBy::Group), (timed_out(5.0), None));
    // It has not come to the exchange that the others are in.
    let at = |entered, outcome| Part { peers: Peers { entered, lost: None }, ..part(outcome) };
    let all = |entered: [u64; 3]| entered.map(|entered| at(entered, timed_out(5.0))).to_vec();
    for (entered, named) in [([8, 7, 8], Some(1)), ([8, 7, 7], None), ([8, 8, 8], None), ([0, 7, 8], Some(0))] {
        assert_eq!(ending(all(entered), CancelledBy::Group), (timed_out(5.0), named), "{entered:?}");
    }
    // It went on when the one that waited for it had been given up, and found that one gone.
    let went_on = Part { peers: Peers { entered: 7, lost: bereft(0, None).peers.lost }, ..part(Outcome::Cancelled) };
    let parts = vec![at(8, timed_out(5.0)), went_on];
    assert_eq!(ending(parts, CancelledBy::Group), (timed_out(5.0), Some(1)));
}

#[test]
fn cancelled_is_what_the_user_did_and_nothing_else() {
    let parts = || vec![part(Outcome::Cancelled), part(Outcome::Cancelled)];
    assert_eq!(ending(parts(), CancelledBy::Driver), (Outcome::Cancelled, None));
    assert!(matches!(ending(parts(), CancelledBy::Group), (Outcome::Crashed { signal: None, .. }, None)));
    assert!(matches!(
        ending(vec![bereft(1, None), part(Outcome::Completed)], CancelledBy::Group),
        (Outcome::Crashed { .. }, Some(1))
    ));
    let parts = vec![part(Outcome::Cancelled), part(crashed())];
    assert_eq!(ending(parts, CancelledBy::Driver), (crashed(), Some(1)));
}

fn sample(step: u32, peak_allocated_bytes: u64, peak_reserved_bytes: u64) -> MemorySample {
    let peak = crate::memory::fragmentation::peak_rate(peak_allocated_bytes, peak_reserved_bytes);
    MemorySample {
        step,
        limit_bytes: 1000,
        peak_allocated_bytes,
        peak_reserved_bytes,
        rates: Rates { peak, ..Rates::default() },
        host_bytes: Some(10),
        host_available_bytes: Some(100 + u64::from(step)),
        largest_satisfiable_bytes: 1000 - peak_allocated_bytes,
        ..MemorySample::default()
    }
}

fn completed(samples_per_second: f64, samples: Vec<MemorySample>) -> Part {
    let measurement = Measurement {
        samples_per_second,
        samples_per_second_interval: (samples_per_second - 1.0, samples_per_second + 1.0),
        step_ms: crate::trial::outcome::StepQuantiles { p50: 1e3 / samples_per_second, p95: 0.0 },
        peak_reserved_bytes: samples.iter().map(|sample| sample.peak_reserved_bytes).max().unwrap(),
        data_wait_fraction: samples_per_second / 100.0,
        last_loss: Some(samples_per_second),
        batch_bytes: Some(5),
        ..Measurement::default()
    };
    let record = TrialRecord { measurement: Some(measurement), samples, ..part(Outcome::Completed).record };
    Part { record, peers: Peers::default() }
}

#[test]
fn speed_is_the_slowest_rank_s_times_all_and_memory_the_largest() {
    let parts = vec![
        completed(8.0, vec![sample(2, 50, 100), sample(4, 50, 100)]),
        completed(10.0, vec![sample(2, 80, 90), sample(4, 20, 90)]),
    ];
    let record = merge(parts, CancelledBy::Group).unwrap();
    let measured = record.measurement.unwrap();
    assert_eq!((record.outcome, record.rank), (Outcome::Completed, None));
    assert_eq!((measured.samples_per_second, measured.samples_per_second_interval), (16.0, (14.0, 18.0)));
    assert_eq!((measured.step_ms.p50, measured.data_wait_fraction), (125.0, 0.1));
    assert_eq!((measured.peak_reserved_bytes, measured.last_loss, measured.batch_bytes), (100, Some(9.0), Some(10)));
    let [first, second] = record.samples[..] else { panic!("{:?}", record.samples) };
    assert_eq!((first.peak_allocated_bytes, first.peak_reserved_bytes, first.rates.peak), (80, 100, Some(0.5)));
    assert_eq!(
        (first.largest_satisfiable_bytes, first.host_bytes, first.host_available_bytes),
        (920, Some(20), Some(102))
    );
    // Rank 1 needed 80 before, so it holds little beside its need; rank 0 is still half empty, though rank 1's need is
    // near to what it holds.
    assert_eq!(second.rates.peak, Some(0.5));
    let gating: Vec<_> = crate::memory::fragmentation::against_need(&record.samples).map(|s| s.rates.peak).collect();
    assert_eq!(gating, [Some(0.5), Some(0.5)], "the rules see the worst rank's");
}

#[test]
fn every_rank_s_place_is_kept_and_the_first_one_is_the_trial_s() {
    let on = |node: &str| {
        let worker = crate::trial::launcher::WorkerFacts {
            node: node.to_owned(),
            device: "cuda:0".to_owned(),
            name: "A card".to_owned(),
            uuid: None,
            driver: None,
            slurm_job_id: Some("7".to_owned()),
            slurm_step_id: None,
        };
        let record = TrialRecord { worker: Some(worker), ..part(Outcome::Completed).record };
        Part { record, peers: Peers::default() }
    };
    let record = merge(vec![on("n1"), on("n2")], CancelledBy::Group).unwrap();
    assert_eq!(record.ranks.iter().map(|rank| rank.node.as_str()).collect::<Vec<_>>(), ["n1", "n2"]);
    assert_eq!(record.worker.as_ref(), record.ranks.first());
    let written = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<TrialRecord>(&written).unwrap(), record);
    // An earlier version said nothing of it.
    let one_unknown = merge(vec![on("n1"), part(Outcome::Completed)], CancelledBy::Group).unwrap();
    assert_eq!(one_unknown.ranks, []);
    let written = serde_json::to_string(&one_unknown).unwrap();
    assert!(!written.contains("ranks"));
    assert_eq!(serde_json::from_str::<TrialRecord>(&written).unwrap(), one_unknown);
}

#[test]
fn a_trial_that_ended_early_keeps_the_samples_that_there_are() {
    let mut first = part(out_of_memory());
    first.record.samples = vec![sample(2, 5, 9)];
    let mut second = bereft(0, None);
    second.record.samples = vec![sample(2, 7, 8), sample(4, 7, 8)];
    second.record.warnings = vec!["a".to_owned(), "b".to_owned()];
    first.record.warnings = vec!["a".to_owned()];
    let record = merge(vec![first, second], CancelledBy::Group).unwrap();
    assert_eq!(
        record.samples.iter().map(|sample| (sample.step, sample.peak_reserved_bytes)).collect::<Vec<_>>(),
        [(2, 9), (4, 8)]
    );
    assert_eq!(record.warnings, ["a", "b"]);
    assert_eq!(record.ending(), "rank 0: out of memory at step 1");
    assert!(merge(Vec::new(), CancelledBy::Group).is_none());
}

#[test]
fn steps_are_passed_on_once_all_ranks_have_finished_them() {
    let config_free = Watch {
        config: &test_config(),
        spec: &spec(),
        ranks: vec![Seen::default(), Seen::default()],
        passed: (0, 0),
        total: 4,
        ended_by: None,
        stops: 0,
    };
    let mut watch = config_free;
    let mut seen = Vec::new();
    let step =
        |loss, total_ms| Observation::Step { step: 1, loss, times: StepTimes { total_ms, ..StepTimes::default() } };
    watch.see(0, step(2.0, 5.0), &mut |observation| seen.push(observation));
    watch.see(0, step(3.0, 5.0), &mut |observation| seen.push(observation));
    assert!(seen.is_empty());
    watch.see(1, step(4.0, 9.0), &mut |observation| seen.push(observation));
    let [Observation::Step { step: 1, loss, times }] = seen[..] else { panic!("{seen:?}") };
    assert!((loss - 3.0).abs() < 1e-12 && (times.total_ms - 9.0).abs() < 1e-12);
    for rank in [0, 1] {
        watch.see(rank, Observation::Extended { total: 6 }, &mut |observation| seen.push(observation));
    }
    assert_eq!(seen[1..], [Observation::Extended { total: 6 }]);
}

fn test_config() -> ProcessConfig {
    use crate::trial::process::{OomKills, Patience, WorkerCommand};
    let workload = crate::trial::spec::WorkloadSpec {
        model: crate::model::ModelSpec::default(),
        train: crate::train::TrainSpec::default(),
        data: crate::data::DataSpec::default(),
        device: crate::device::DeviceChoice::Cpu,
        limit: LimitSpec::Auto,
        allocator: crate::memory::AllocatorKind::Auto,
        seed: 0,
    };
    ProcessConfig {
        command: WorkerCommand { program: "/nonexistent".into(), arguments: Vec::new(), environment: Vec::new() },
        launcher: None,
        workload,
        scratch: "/nonexistent".into(),
        patience: Patience::with_step_timeout(Duration::from_secs(1)),
        interrupt: crate::trial::Interrupt::default(),
        deadline: None,
        oom_kills: OomKills::of_this_process(),
    }
}

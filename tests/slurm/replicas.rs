//! Trials of two replicas, each in a job of its own. The two nodes are on one machine, so the ranks meet.

use std::process::{Command, Stdio};

use batchtune::trial::Outcome;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cluster;
use crate::faults::await_that;
use crate::studies::{assert_safe, follow, in_an_allocation, records};

/// Whether an event is the end of the third step of a trial after the first.
fn is_in_a_later_trial(event: &serde_json::Value, ended: &mut usize) -> bool {
    *ended += usize::from(event["event"] == "trial_ended");
    *ended > 0 && event["event"] == "step" && event["step"] == 3
}

pub(crate) fn a_study_of_two_replicas_runs_each_trial_in_two_jobs() {
    let folder = tempfile::tempdir().unwrap();
    let (mut ended, mut jobs) = (0, Vec::new());
    let output = follow(folder.path(), &["--set", "target.replicas=2"], |event| {
        if jobs.is_empty() && is_in_a_later_trial(event, &mut ended) {
            jobs = cluster::jobs();
        }
    });
    assert_safe(folder.path(), &output);
    assert_eq!(jobs.len(), 2, "a job a rank");
    let answer = std::fs::read_to_string(folder.path().join("recommendation.yaml")).unwrap();
    let answer: serde_json::Value = serde_yaml::from_str(&answer).unwrap();
    let size = |name: &str| answer["recommended"][name].as_u64().unwrap();
    assert_eq!(size("batch_size") * size("accumulation_steps") * 2, 4);
    assert!(records(folder.path()).iter().all(|record| record.completed() && record.rank.is_none()));
    cluster::assert_no_worker_is_left();
}

pub(crate) fn a_rank_whose_job_is_cancelled_ends_the_trial_of_all() {
    let folder = tempfile::tempdir().unwrap();
    let (mut ended, mut cancelled) = (0, None);
    let settings = ["target.replicas=2", "target.batch_size=8", "trial.steps=40"];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let arguments: Vec<&str> = ["--strategy", "grid"].into_iter().chain(settings).collect();
    let output = follow(folder.path(), &arguments, |event| {
        if is_in_a_later_trial(event, &mut ended) && cancelled.is_none() {
            let jobs = cluster::jobs();
            assert_eq!(jobs.len(), 2, "{}", cluster::queue());
            cluster::cancel(&jobs[1]);
            cancelled = Some(jobs);
        }
    });
    assert_safe(folder.path(), &output);
    let jobs = cancelled.unwrap();
    let records = records(folder.path());
    let (lost, others): (Vec<_>, Vec<_>) = records.iter().partition(|record| !record.completed());
    let [lost] = &lost[..] else { panic!("{lost:?}") };
    assert!(matches!(lost.outcome, Outcome::Crashed { signal: Some(9 | 15), .. }), "{:?}", lost.outcome);
    assert!(records.iter().all(|record| record.ranks.len() == 2 && record.worker.as_ref() == record.ranks.first()));
    let jobs_of_ranks: Vec<_> = lost.ranks.iter().filter_map(|rank| rank.slurm_job_id.as_ref()).collect();
    assert!(jobs.iter().all(|job| jobs_of_ranks.contains(&job)), "{jobs_of_ranks:?}");
    // The record's worker is that of rank 0.
    let job_of = |record: &batchtune::trial::TrialRecord| record.worker.clone().unwrap().slurm_job_id.unwrap();
    assert_eq!(lost.rank, Some(usize::from(job_of(lost) != jobs[1])));
    let after: Vec<_> = others.iter().filter(|record| record.spec.id > lost.spec.id).collect();
    assert!(!after.is_empty() && after.iter().all(|record| !jobs.contains(&job_of(record))), "a new group goes on");
    cluster::assert_no_worker_is_left();
}

pub(crate) fn of_two_groups_on_the_cards_of_one_the_first_has_them_all() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ["target.replicas=2", "launcher.workers=4", "launcher.start_timeout=3s"];
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let mut warnings = Vec::new();
    let output = follow(folder.path(), &arguments, |event| {
        warnings.extend(event["text"].as_str().filter(|_| event["event"] == "warning").map(str::to_owned));
    });
    assert_safe(folder.path(), &output);
    let unused = |warning: &&String| warning.contains("is not used: `srun` started no worker within 3 s");
    assert_eq!(warnings.iter().filter(unused).count(), 1, "{warnings:?}");
    cluster::assert_no_worker_is_left();
}

pub(crate) fn a_group_inside_an_allocation_is_two_steps_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let output = in_an_allocation(folder.path(), &["--nodes=2"], &["--set", "target.replicas=2"]);
    assert_safe(folder.path(), &output);
    let places: Vec<_> = records(folder.path()).into_iter().map(|record| record.worker.unwrap()).collect();
    assert!(places.iter().all(|place| place.slurm_job_id == places[0].slurm_job_id), "{places:?}");
    cluster::assert_no_worker_is_left();
}

pub(crate) fn a_rank_that_never_begins_takes_the_others_jobs_back() {
    let hold = ["--gres=gpu:1", "--nodelist=n2", "sleep", "600"];
    let mut holder = Command::new("srun").args(hold).stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    await_that("a card is taken", || cluster::queue().contains("RUNNING"));
    let folder = tempfile::tempdir().unwrap();
    let settings = ["--set", "target.replicas=2", "--set", "launcher.start_timeout=2s"];
    let output = follow(folder.path(), &settings, |_| {});
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("started no worker within 2 s"), "{said}");
    assert_eq!(cluster::jobs().len(), 1, "only the other's job is there: {}", cluster::queue());
    kill(Pid::from_raw(i32::try_from(holder.id()).unwrap()), Signal::SIGTERM).unwrap();
    holder.wait().unwrap();
    cluster::assert_no_worker_is_left();
}

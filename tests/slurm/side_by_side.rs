//! Studies whose trials run in several jobs at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use batchtune::trial::{Outcome, TrialRecord};
use serde_json::Value;

use crate::cluster;
use crate::studies::{assert_safe, follow, records};

/// What is going on in a study, as its events tell.
#[derive(Default)]
struct Watched {
    /// The job of each worker's last trial that ended.
    jobs: BTreeMap<String, String>,
    /// The workers that are in a trial.
    busy: BTreeSet<String>,
    /// The most that were.
    most: usize,
}

impl Watched {
    /// Notes an event. Gives the worker that has finished the step with this number of its trial.
    fn see(&mut self, event: &Value, step: u64) -> Option<String> {
        let worker = event["device"].as_str()?.to_owned();
        match event["event"].as_str()? {
            "trial_started" => {
                self.busy.insert(worker);
                self.most = self.most.max(self.busy.len());
            }
            "trial_ended" => {
                self.busy.remove(&worker);
                let job = event["record"]["worker"]["slurm_job_id"].as_str().unwrap();
                self.jobs.insert(worker, job.to_owned());
            }
            "step" if event["step"] == step => return Some(worker),
            _ => {}
        }
        None
    }
}

/// Runs a grid in the folder, and looks at each of its events with what is known by then.
fn grid(folder: &Path, settings: &[&str], mut look: impl FnMut(&Value, &mut Watched)) -> Watched {
    let mut watched = Watched::default();
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let arguments: Vec<&str> = ["--strategy", "grid"].into_iter().chain(settings).collect();
    let output = follow(folder, &arguments, |event| look(event, &mut watched));
    assert_safe(folder, &output);
    watched
}

/// What was tried before the soak, in the order of the trials' numbers.
fn points(records: &[TrialRecord]) -> BTreeSet<String> {
    let tried = records.iter().filter(|record| !record.spec.is_soak());
    tried.map(|record| serde_json::to_string(&record.spec.point).unwrap()).collect()
}

/// Both nodes are on one machine here and take its processors from each other.
fn has_processors_for_two() -> bool {
    std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1)
}

pub(crate) fn two_workers_run_in_two_jobs_at_once_and_try_what_one_tries() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    grid(one.path(), &["launcher.workers=1"], |_, _| {});
    let watched = grid(two.path(), &["launcher.workers=2"], |event, watched| drop(watched.see(event, 1)));
    assert_eq!(points(&records(one.path())), points(&records(two.path())));
    if has_processors_for_two() {
        let of = |records: Vec<TrialRecord>| records.into_iter().map(|record| record.worker.unwrap().node);
        assert_eq!(of(records(two.path())).collect::<BTreeSet<_>>().len(), 2, "a card each");
        assert_eq!(watched.most, 2, "at once");
    }
    cluster::assert_no_worker_is_left();
}

pub(crate) fn a_job_that_is_cancelled_ends_its_trial_and_no_other() {
    if !has_processors_for_two() {
        return cluster::print("*** SKIPPED: two trials at a time need two processors ***");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut cancelled: Option<String> = None;
    let settings = ["launcher.workers=2", "target.batch_size=8", "trial.steps=40"];
    grid(folder.path(), &settings, |event, watched| {
        let Some(worker) = watched.see(event, 3) else { return };
        // In the middle of a trial that is not the worker's first, while the other is in one too.
        if let (None, Some(job), 2) = (&cancelled, watched.jobs.get(&worker), watched.busy.len()) {
            assert!(cluster::jobs().contains(job), "{}", cluster::queue());
            cluster::cancel(job);
            cancelled = Some(job.clone());
        }
    });
    let job = cancelled.unwrap();
    let records = records(folder.path());
    let (lost, others): (Vec<_>, Vec<_>) =
        records.iter().partition(|record| matches!(record.outcome, Outcome::Crashed { .. }));
    let [lost] = &lost[..] else { panic!("{lost:?}") };
    assert!(matches!(lost.outcome, Outcome::Crashed { signal: Some(9 | 15), .. }), "{:?}", lost.outcome);
    assert_eq!(lost.worker.as_ref().unwrap().slurm_job_id.as_ref(), Some(&job));
    assert!(others.iter().all(|record| record.completed()), "{others:?}");
    let after = others.iter().filter(|record| record.spec.id > lost.spec.id);
    assert!(after.clone().count() > 0, "the study went on");
    assert!(after.clone().all(|record| record.worker.as_ref().unwrap().slurm_job_id.as_ref() != Some(&job)));
    cluster::assert_no_worker_is_left();
}

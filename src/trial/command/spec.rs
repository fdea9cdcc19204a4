//! What a study runs when it tunes a user's own program: the command, and the environment of one trial of it.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::report::{PROTOCOL, of_rank};
use super::template::{Filling, Placeholder, Template};
use crate::trial::spec::{ProbeSchedule, TrialSpec};

/// The variable that PyTorch reads its allocator's settings from.
pub const ALLOC_CONF: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// A program of the user's own, with everything about how it is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandSpec {
    /// The program and its arguments. No shell reads them.
    pub run: Vec<Template>,
    /// Environment variables to set for it.
    pub env: BTreeMap<String, Template>,
    /// Where it runs; `None` is where the tuner does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
    /// Python modules to import once and for all trials; empty starts each trial afresh.
    pub preload: Vec<String>,
    /// The longest that one run may take.
    pub timeout: Duration,
}

impl CommandSpec {
    /// Whether the placeholder is in the command or its environment.
    pub fn holds(&self, placeholder: Placeholder) -> bool {
        self.run.iter().chain(self.env.values()).any(|template| template.holds(placeholder))
    }

    /// The first file that the command names and that was changed, or put in its place, after `since`, such as its
    /// script: what was measured before is not of it. What the script imports is not looked at.
    pub fn changed_since(&self, since: SystemTime) -> Option<&str> {
        let folder = self.cwd.as_deref().unwrap_or(Path::new(""));
        let is_newer = |name: &&str| {
            let metadata = std::fs::metadata(folder.join(name)).ok().filter(std::fs::Metadata::is_file);
            // The time of the last change of the file's entry: a copy may keep the other time of its original.
            metadata.is_some_and(|metadata| {
                let changed = u64::try_from(metadata.ctime()).unwrap_or(0);
                SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(changed)).is_some_and(|changed| changed > since)
            })
        };
        self.run.iter().map(Template::as_written).find(is_newer)
    }

    /// A name for a study of it: the script's, else the program's.
    pub fn name(&self) -> String {
        let names = self.run.iter().map(Template::as_written);
        let script = names.clone().find(|name| Path::new(name).extension().is_some_and(|extension| extension == "py"));
        let path = script.or_else(|| names.clone().next()).unwrap_or_default();
        let stem = Path::new(path).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        stem.filter(|stem| !stem.trim().is_empty()).unwrap_or_else(|| "command".to_owned())
    }
}

/// The files of one trial, all in the study directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TrialFiles {
    /// What the program reports to; of several ranks the first.
    pub(super) report: PathBuf,
    /// Where a probe puts its allocation trace; of several ranks the first.
    pub(super) snapshot: PathBuf,
    /// Ranks that have a report and a trace each.
    pub(super) ranks: usize,
    /// Where a soak puts its checkpoint; `None` where the disk has no room for one.
    pub(super) checkpoint: Option<PathBuf>,
}

impl TrialFiles {
    /// The names of a trial's files, the checkpoint's included.
    pub(super) fn of(scratch: &Path, trial: &TrialSpec) -> Self {
        let named = |kind: &str| scratch.join(format!("{kind}-of-trial-{}", trial.id));
        Self {
            report: named("report").with_extension("jsonl"),
            snapshot: named("snapshot").with_extension("pickle"),
            checkpoint: trial.is_soak().then(|| named("checkpoint")),
            ranks: 1,
        }
    }

    /// The same for a program of so many ranks.
    pub(super) fn of_ranks(self, ranks: usize) -> Self {
        Self { ranks, ..self }
    }

    /// The reports of all ranks.
    pub(super) fn reports(&self) -> impl Iterator<Item = PathBuf> {
        (0..self.ranks).map(|rank| of_rank(&self.report, rank))
    }

    /// The trace of a rank.
    pub(super) fn snapshot_of(&self, rank: usize) -> PathBuf {
        of_rank(&self.snapshot, rank)
    }
}

/// The limit and the allocator's settings that a trial is to hold itself to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds<'a> {
    /// C; `None` in a probe, which runs under what the device has free.
    pub(super) limit_bytes: Option<u64>,
    /// The value of [`ALLOC_CONF`], where the trial is to have one.
    pub(super) alloc_conf: Option<&'a str>,
}

/// The environment of a trial, on top of the tuner's own. What the trial decides wins over what `command.env` sets.
pub(super) fn environment(
    command: &CommandSpec,
    filling: &Filling<'_>,
    files: &TrialFiles,
    bounds: Bounds<'_>,
) -> Vec<(String, String)> {
    let trial = filling.trial;
    let mut variables: BTreeMap<String, String> =
        command.env.iter().map(|(name, value)| (name.clone(), value.fill(filling))).collect();
    let mut set = |name: &str, value: String| {
        variables.insert(name.to_owned(), value);
    };
    for placeholder in Placeholder::ALL {
        set(&format!("TUNE_{}", placeholder.name().to_ascii_uppercase()), filling.value(placeholder));
    }
    set("TUNE_PROTOCOL", PROTOCOL.to_string());
    set("TUNE_REPORT", path(&files.report));
    set("TUNE_TRIAL", trial.id.to_string());
    set("TUNE_SAMPLE_EVERY", trial.sample_every.to_string());
    set("TUNE_TRIM", trial.point.trim.to_string());
    let purpose = if trial.is_probe() {
        "probe"
    } else if trial.is_soak() {
        "soak"
    } else {
        "measure"
    };
    set("TUNE_PURPOSE", purpose.to_owned());
    if let Some(steps) = evaluation_after(trial) {
        set("TUNE_EVALUATE_AFTER", steps.to_string());
    }
    if trial.is_probe() {
        set("TUNE_TRACE", path(&files.snapshot));
    }
    if let Some(checkpoint) = &files.checkpoint {
        set("TUNE_CHECKPOINT", path(checkpoint));
    }
    if let Some(limit_bytes) = bounds.limit_bytes {
        set("TUNE_LIMIT_BYTES", limit_bytes.to_string());
    }
    if let Some(conf) = bounds.alloc_conf {
        set(ALLOC_CONF, conf.to_owned());
    }
    variables.into_iter().collect()
}

/// The finished steps that an evaluation pass comes after: in a probe as in one of our own, in a soak too.
fn evaluation_after(trial: &TrialSpec) -> Option<u32> {
    let update = u32::try_from(trial.accumulation()).unwrap_or(u32::MAX);
    let in_probe = || ProbeSchedule::of(trial).evaluation_after.saturating_mul(update);
    if trial.is_probe() { Some(in_probe()) } else { trial.soak_checks_after() }
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{command, trial};
    use super::*;
    use crate::trial::Purpose;

    fn environment_of(trial: &TrialSpec, bounds: Bounds<'_>) -> BTreeMap<String, String> {
        let filling = Filling { trial, precision: "bf16", seed: 7, replicas: 1 };
        let files = TrialFiles::of(Path::new("/study"), trial);
        environment(&command(&["train"]), &filling, &files, bounds).into_iter().collect()
    }

    #[test]
    fn a_trial_finds_what_it_is_to_do_in_its_environment() {
        let bounds = Bounds { limit_bytes: Some(4096), alloc_conf: Some("expandable_segments:True") };
        let found = environment_of(&trial(8), bounds);
        let expected = [
            ("TUNE_PROTOCOL", "1"),
            ("TUNE_REPORT", "/study/report-of-trial-3.jsonl"),
            ("TUNE_PURPOSE", "measure"),
            ("TUNE_BATCH_SIZE", "8"),
            ("TUNE_ACCUMULATION_STEPS", "2"),
            ("TUNE_STEPS", "12"),
            ("TUNE_WARMUP_STEPS", "2"),
            ("TUNE_SAMPLE_EVERY", "2"),
            ("TUNE_LIMIT_BYTES", "4096"),
            ("TUNE_PIN_MEMORY", "true"),
            ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ];
        for (name, value) in expected {
            assert_eq!(found.get(name).map(String::as_str), Some(value), "{name}");
        }
        for absent in ["TUNE_TRACE", "TUNE_CHECKPOINT", "TUNE_EVALUATE_AFTER"] {
            assert!(!found.contains_key(absent), "{absent}");
        }
    }

    #[test]
    fn probes_and_soaks_are_told_where_their_files_go() {
        let bounds = Bounds { limit_bytes: None, alloc_conf: None };
        let probe = environment_of(&TrialSpec { purpose: Purpose::Probe, ..trial(2) }, bounds);
        assert_eq!(probe["TUNE_TRACE"], "/study/snapshot-of-trial-3.pickle");
        assert_eq!(probe["TUNE_EVALUATE_AFTER"], "8");
        assert!(!probe.contains_key("TUNE_LIMIT_BYTES") && !probe.contains_key(ALLOC_CONF));
        let soak = environment_of(&TrialSpec { purpose: Purpose::Soak, steps: 50, ..trial(2) }, bounds);
        assert_eq!(soak["TUNE_CHECKPOINT"], "/study/checkpoint-of-trial-3");
        assert_eq!((soak["TUNE_STEPS"].as_str(), soak["TUNE_EVALUATE_AFTER"].as_str()), ("52", "28"));
    }

    #[test]
    fn what_the_trial_decides_wins_over_the_configuration() {
        let mut command = command(&["train"]);
        for name in ["TUNE_BATCH_SIZE", "MINE"] {
            command.env.insert(name.to_owned(), Template::parse("mine").unwrap());
        }
        let trial = trial(8);
        let filling = Filling { trial: &trial, precision: "f32", seed: 0, replicas: 2 };
        let files = TrialFiles::of(Path::new("/study"), &trial);
        let bounds = Bounds { limit_bytes: None, alloc_conf: None };
        let found: BTreeMap<_, _> = environment(&command, &filling, &files, bounds).into_iter().collect();
        assert_eq!((found["TUNE_BATCH_SIZE"].as_str(), found["MINE"].as_str()), ("8", "mine"));
        assert_eq!(found["TUNE_REPLICAS"], "2");
    }

    #[test]
    fn a_script_that_changed_is_found() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("train.py"), "").unwrap();
        let command = CommandSpec { cwd: Some(folder.path().to_owned()), ..command(&["python3", "train.py", "--x"]) };
        assert_eq!(command.changed_since(SystemTime::UNIX_EPOCH), Some("train.py"));
        assert_eq!(command.changed_since(SystemTime::now() + Duration::from_secs(60)), None);
    }

    #[test]
    fn a_study_is_named_after_the_script() {
        assert_eq!(command(&["python3", "-u", "examples/gpt2.py", "--x"]).name(), "gpt2");
        assert_eq!(command(&["/usr/bin/trainer", "--x"]).name(), "trainer");
        assert_eq!(command(&[]).name(), "command");
    }
}

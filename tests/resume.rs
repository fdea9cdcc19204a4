//! A driver that is killed: what it had found is not lost, whatever the moment.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on must panic")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use batchtune::progress::Quiet;
use batchtune::search::driver::{End, Slots, Study};
use batchtune::trial::Interrupt;
use batchtune::trial::journal::{self, Header, Journal, StudyLock};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

#[path = "workers/machine.rs"]
mod machine;

/// Nothing here takes longer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often a driver is killed.
const MOMENTS: usize = 20;
/// Another seed in this variable gives other moments.
const SEED: &str = "BATCHTUNE_TEST_SEED";
/// Names the folder of a study to the process that is to run it.
const FOLDER: &str = "BATCHTUNE_TEST_FOLDER";

/// When a driver is killed: so long after its journal holds so many lines. The lines come with the study's progress,
/// so that the moments are spread over it however fast the machine is; the time puts them between lines.
#[derive(Clone, Copy, Debug)]
struct Moment {
    lines: usize,
    later: Duration,
}

/// Moments all over a study that took so long, and the words to find them again by.
fn moments(whole: &Uninterrupted) -> (Vec<Moment>, String) {
    let seed = std::env::var(SEED).ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let mut random = StdRng::seed_from_u64(seed);
    let lines = whole.journal.lines().count();
    let apart = whole.took / u32::try_from(lines).unwrap();
    let moment =
        |_| Moment { lines: random.random_range(0..lines), later: apart.mul_f64(random.random_range(0.0..2.0)) };
    ((0..MOMENTS).map(moment).collect(), format!("{SEED}={seed}"))
}

/// A study that nobody disturbed.
struct Uninterrupted {
    journal: String,
    answer: serde_json::Value,
    took: Duration,
}

impl Uninterrupted {
    fn run(mut command: Command, folder: &Path) -> Self {
        let begun = Instant::now();
        assert!(command.status().unwrap().success());
        Self { journal: journal(folder), answer: answer(folder), took: begun.elapsed() }
    }
}

fn journal(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("study").join(journal::FILE_NAME)).unwrap_or_default()
}

/// The recommendation without the times of day.
fn answer(folder: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(folder.join("recommendation.yaml")).unwrap();
    let mut answer: serde_json::Value = serde_yaml::from_str(&text).unwrap();
    let provenance = answer["provenance"].as_object_mut().unwrap();
    assert!(provenance.remove("started").is_some() && provenance.remove("seconds").is_some());
    answer
}

/// Kills a driver at a moment; gives the whole lines of the journal then.
fn killed_at(mut driver: Command, folder: &Path, moment: Moment) -> String {
    let mut child = driver.spawn().unwrap();
    let begun = Instant::now();
    while journal(folder).lines().count() < moment.lines && child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < PATIENCE, "{}", journal(folder));
        std::thread::sleep(Duration::from_micros(500));
    }
    std::thread::sleep(moment.later);
    // It is not waited for before, so its number is still its own.
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    let text = journal(folder);
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    text[..whole].to_owned()
}

fn is_concluded(journal: &str) -> bool {
    journal.contains("\"entry\":\"concluded\"")
}

/// The numbers of the trials that a journal holds to their end.
fn finished(journal: &str) -> Vec<u64> {
    let entries = journal.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let ended = entries.filter(|entry| entry["entry"] == "trial_ended");
    ended.map(|entry| entry["record"]["spec"]["id"].as_u64().unwrap()).collect()
}

/// What a killed and resumed study must leave, whatever the moment was.
fn assert_nothing_was_lost(before: &str, folder: &Path, whole: &Uninterrupted, when: &str) {
    let after = journal(folder);
    assert!(after.starts_with(before), "{when}: the journal's beginning changed");
    let ids = finished(&after);
    let expected: Vec<u64> = (1..=ids.len() as u64).collect();
    assert_eq!(ids, expected, "{when}: no trial is lost and none is run twice");
    assert_eq!(answer(folder)["recommended"], whole.answer["recommended"], "{when}");
    assert_eq!(answer(folder)["status"], "safe", "{when}");
}

const SCRIPTED: &str = "version: 1\nname: scripted\ndevice: cpu\nmodel: {family: gpt, preset: nano}\n\
                        target: {batch_size: 64}\nsearch: {loader_workers: [0, 1]}\nmemory: {limit: 300MiB}\n";

/// Not a test of its own: the driver of [`a_scripted_study_ends_the_same_wherever_its_driver_was_killed`], which starts
/// this program once more and kills it.
#[test]
fn a_driver_to_be_killed() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let plan = batchtune::config::parse_text(Path::new("scripted.yaml"), SCRIPTED, &[]).unwrap().plan;
    let study = folder.join("study");
    let lock = StudyLock::acquire(&study).unwrap();
    let (mut journal, finished, started) = if Journal::exists(&study) {
        let (journal, contents) = Journal::resume(lock).unwrap();
        contents.header.expect_plan(&plan.sha256()).unwrap();
        (journal, contents.finished().map(|(record, _)| record.clone()).collect(), contents.header.started)
    } else {
        let header = Header::new(&plan.sha256(), serde_json::Value::Null);
        (Journal::create(lock, &header).unwrap(), Vec::new(), header.started)
    };
    let result = Study {
        plan: &plan,
        slots: Slots::one(machine::Machine { study }),
        journal: &mut journal,
        reporter: &mut Quiet,
        output: folder.join("recommendation.yaml"),
        interrupt: Interrupt::default(),
        finished,
        foretold: Vec::new(),
        remedied: Vec::new(),
        tuned: Vec::new(),
        unfinished: Vec::new(),
        started,
    };
    assert_eq!(result.run().unwrap().end, End::Safe);
}

fn scripted(folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_driver_to_be_killed"]).env(FOLDER, folder);
    command.stdout(Stdio::null());
    command
}

#[test]
fn a_scripted_study_ends_the_same_wherever_its_driver_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Uninterrupted::run(scripted(folder.path()), folder.path());
    assert_eq!(whole.answer["forecast"]["method"], "exact");
    let (moments, seed) = moments(&whole);
    let mut unfinished = 0;
    for moment in moments {
        let when = format!("killed at {moment:?} of {seed}");
        let folder = tempfile::tempdir().unwrap();
        let before = killed_at(scripted(folder.path()), folder.path(), moment);
        assert!(scripted(folder.path()).status().unwrap().success(), "{when}");
        assert_nothing_was_lost(&before, folder.path(), &whole, &when);
        unfinished += usize::from(!is_concluded(&before));
        assert_eq!(answer(folder.path()), whole.answer, "{when}");
        assert_eq!(finished(&journal(folder.path())), finished(&whole.journal), "{when}");
    }
    assert!(unfinished > MOMENTS / 2, "most of the moments of {seed} came after the end");
}

/// The same on a disk that has no room for a file of more than so many kilobytes.
fn scripted_on_a_full_disk(folder: &Path, kilobytes: u32) -> Command {
    let mut command = Command::new("sh");
    // Blocks of 512 bytes. Without the trap, the signal would end the process: on a disk that is full there is none.
    command.args(["-c", &format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", 2 * kilobytes), "sh"]);
    let driver = scripted(folder);
    command.arg(driver.get_program()).args(driver.get_args()).env(FOLDER, folder);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn a_study_whose_disk_fills_under_its_journal_goes_on_to_the_same_answer() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Uninterrupted::run(scripted(folder.path()), folder.path());
    // From room for the recommendation on, to where the journal has most of what it needs.
    let least = 1 + std::fs::metadata(folder.path().join("recommendation.yaml")).unwrap().len() as u32 / 1024;
    let most = whole.journal.len() as u32 / 1024 - 1;
    let mut found = 0;
    for round in 0..MOMENTS as u32 {
        let kilobytes = least + (most - least) * round / (MOMENTS as u32 - 1);
        let folder = tempfile::tempdir().unwrap();
        assert!(scripted_on_a_full_disk(folder.path(), kilobytes).status().unwrap().success(), "{kilobytes} kB");
        assert_eq!(answer(folder.path()), whole.answer, "{kilobytes} kB");
        let before = journal(folder.path());
        assert!(before.len() as u32 <= kilobytes * 1024 && before.ends_with('\n'), "{kilobytes} kB: no line is torn");
        found += finished(&before).len();
        // With room again, what the journal could not hold is run again.
        assert!(scripted(folder.path()).status().unwrap().success(), "{kilobytes} kB");
        assert_nothing_was_lost(&before, folder.path(), &whole, &format!("on {kilobytes} kB"));
    }
    assert!(found > MOMENTS, "some journals held trials: {found}");
}

fn tune(folder: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("tune"));
    command.current_dir(folder).args(["--config", "small.yaml", "--study", "study", "--quiet"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// A folder with a configuration in it.
fn folder_with(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("small.yaml"), text).unwrap();
    folder
}

fn is_alive(pid: &str) -> bool {
    // A zombie has ended.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// The processes whose working directory is this folder.
fn processes_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let numbers = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let is_here =
        |pid: &String| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder) && is_alive(pid);
    numbers.filter(is_here).collect()
}

#[test]
fn a_killed_driver_loses_the_running_trial_at_most_and_leaves_no_worker() {
    // One configuration alone meets the target: which one is best would depend on how busy the machine is.
    let text = "version: 1\nname: small\ndevice: cpu\ntarget: {batch_size: 8}\nmodel: {family: gpt, preset: nano, layers: 1, \
                hidden_size: 32, sequence_length: 16}\ndata: {source: synthetic}\ntrial: {warmup_steps: 1, steps: 4, \
                soak_steps: 6}\nsearch: {loader_workers: [0], accumulation_steps: [1]}\nmemory: {limit: 1GiB}\n";
    let folder = folder_with(text);
    let whole = Uninterrupted::run(tune(folder.path()), folder.path());
    let (moments, seed) = moments(&whole);
    let mut unfinished = 0;
    for moment in moments {
        let when = format!("killed at {moment:?} of {seed}");
        let folder = folder_with(text);
        let before = killed_at(tune(folder.path()), folder.path(), moment);
        let begun = Instant::now();
        while !processes_in(folder.path()).is_empty() {
            let left = processes_in(folder.path());
            assert!(begun.elapsed() < PATIENCE, "{when}: a worker outlived its driver: {left:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(tune(folder.path()).arg("--resume").status().unwrap().code(), Some(0), "{when}");
        assert_nothing_was_lost(&before, folder.path(), &whole, &when);
        unfinished += usize::from(!is_concluded(&before));
    }
    assert!(unfinished > MOMENTS / 2, "most of the moments of {seed} came after the end");
}

#[test]
fn a_journal_that_somebody_edited_gives_no_answer_that_misses_the_target() {
    let text = "version: 1\nname: small\ndevice: cpu\ntarget: {batch_size: 2}\nmodel: {family: gpt, preset: nano, layers: 1, \
                hidden_size: 32, sequence_length: 16}\ntrial: {warmup_steps: 1, steps: 4, soak_steps: 4}\n\
                search: {loader_workers: [0]}\nmemory: {limit: 1GiB}\n";
    let folder = folder_with(text);
    assert_eq!(tune(folder.path()).status().unwrap().code(), Some(0));
    let whole = journal(folder.path());
    for batch_size in ["0", "9223372036854775808"] {
        let edited: String = whole
            .lines()
            .map(|line| {
                let is_soak = line.contains("\"entry\":\"trial_ended\"") && line.contains("\"purpose\":\"soak\"");
                let [one, two] = ["1", "2"].map(|size| format!("\"batch_size\":{size},"));
                let other = format!("\"batch_size\":{batch_size},");
                if is_soak { line.replace(&one, &other).replace(&two, &other) + "\n" } else { format!("{line}\n") }
            })
            .collect();
        assert!(edited.contains(&format!("\"batch_size\":{batch_size},")));
        std::fs::write(folder.path().join("study/journal.jsonl"), edited).unwrap();
        assert_eq!(tune(folder.path()).arg("--resume").status().unwrap().code(), Some(0));
        let answer = std::fs::read_to_string(folder.path().join("recommendation.yaml")).unwrap();
        let answer: serde_json::Value = serde_yaml::from_str(&answer).unwrap();
        assert_eq!((&answer["status"], &answer["recommended"]["effective_batch_size"]), (&"safe".into(), &2.into()));
    }
}

//! A Slurm of one machine: brought up once, taken down whatever happens, and asked what is left in it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Where the daemons' configuration is, for every program of Slurm's.
pub(crate) const SLURM_CONF: &str = "SLURM_CONF";
/// Says that this process runs the tests inside of a cluster that its parent brought up.
const INSIDE: &str = "BATCHTUNE_TEST_INSIDE_SLURM";
/// Set to 1, a machine without Slurm fails these tests in place of skipping them.
const REQUIRED: &str = "BATCHTUNE_TEST_SLURM";
/// The daemons, and what must be there to talk to them.
const PROGRAMS: [&str; 6] = ["slurmctld", "slurmd", "munged", "srun", "scancel", "squeue"];
/// For a queue to empty: a job that is cancelled may take KillWait, 5 s here, and its nodes an epilog.
const EMPTY_WITHIN: Duration = Duration::from_secs(40);

/// Whether this is the process inside the cluster.
pub(crate) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Why there can be no cluster here.
fn missing() -> Option<String> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> =
        std::env::split_paths(&folders).chain(["/usr/sbin", "/sbin"].map(PathBuf::from)).collect();
    let is_there = |program: &&&str| folders.iter().any(|folder| folder.join(program).is_file());
    let absent: Vec<&str> = PROGRAMS.iter().filter(|program| !is_there(program)).copied().collect();
    if !absent.is_empty() {
        return Some(format!("{} not installed (Debian: slurmctld slurmd slurm-client munge)", absent.join(", ")));
    }
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    (!is_root).then(|| "its daemons need root".to_owned())
}

/// Brings a cluster up, runs this program again inside of it, and takes the cluster down.
pub(crate) fn run_inside() -> ExitCode {
    if let Some(why) = missing() {
        let required = std::env::var(REQUIRED).is_ok_and(|value| value == "1");
        print(&format!("\n*** SKIPPED: the tests with Slurm did not run: {why} ***\n"));
        return if required { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    // Short: the path of a socket has 107 characters at most.
    let root = tempfile::Builder::new().prefix("bt-slurm").tempdir_in("/tmp").unwrap();
    // Somebody else's test may run on the same machine.
    let port = 20_000 + std::process::id() % 9_000;
    if !script("up.sh", root.path(), port) {
        script("down.sh", root.path(), port);
        print("Slurm cannot be brought up");
        return ExitCode::FAILURE;
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(std::env::args_os().skip(1))
        .env(SLURM_CONF, root.path().join("slurm.conf"))
        .env(INSIDE, "1")
        // The tests may run in a job of a real cluster.
        .env_remove("SLURM_JOB_ID")
        .status();
    let is_down = script("down.sh", root.path(), port);
    match status {
        Ok(status) if status.success() && is_down => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn script(name: &str, root: &Path, port: u32) -> bool {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slurm").join(name);
    let paths = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("bash");
    command.arg(path).env("ROOT", root).env("PORT", port.to_string()).env("PATH", paths);
    // Daemons keep what they are given: the harness waits for the end of its pipes.
    command.stdin(Stdio::null()).stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// The jobs and steps in the queue, one a line.
pub(crate) fn queue() -> String {
    let ask = |arguments: &[&str]| {
        let output = Command::new("squeue").args(arguments).output().unwrap();
        assert!(output.status.success(), "squeue: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    ask(&["-h", "-o", "%i %T %j"]) + &ask(&["-h", "-s", "-o", "%i %j"])
}

/// Fails unless the queue empties.
pub(crate) fn assert_nothing_is_left() {
    let until = Instant::now() + EMPTY_WITHIN;
    while !queue().is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(queue(), "", "no job is left");
}

/// The command lines of all processes with the folders that tell more of them.
fn commands() -> impl Iterator<Item = (PathBuf, Vec<String>)> {
    std::fs::read_dir("/proc").unwrap().flatten().map(|process| {
        let command = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let arguments = command.split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned());
        (process.path(), arguments.collect())
    })
}

/// Fails unless the queue empties, and no worker of the program that ships is there, nor what would launch one.
pub(crate) fn assert_no_worker_is_left() {
    assert_nothing_is_left();
    let is_worker = |(_, arguments): &(PathBuf, Vec<String>)| {
        [env!("CARGO_BIN_EXE_tune"), "worker"].iter().all(|word| arguments.iter().any(|argument| argument == word))
    };
    let until = Instant::now() + EMPTY_WITHIN;
    let count = || commands().filter(is_worker).count();
    while count() > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(count(), 0, "no worker is left");
}

/// Cancels a job in the middle of what its worker does: that goes no further first.
pub(crate) fn cancel(job: &str) {
    let is_worker =
        |arguments: &[String]| arguments.iter().map(String::as_str).take(2).eq([env!("CARGO_BIN_EXE_tune"), "worker"]);
    for (process, _) in commands().filter(|(_, arguments)| is_worker(arguments)) {
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|variable| variable == format!("SLURM_JOB_ID={job}").as_bytes()) {
            let number = process.file_name().unwrap().to_str().unwrap().parse().unwrap();
            kill(Pid::from_raw(number), Signal::SIGSTOP).unwrap();
        }
    }
    assert!(Command::new("scancel").arg(job).status().unwrap().success());
}

/// The numbers of the jobs that run or wait.
pub(crate) fn jobs() -> Vec<String> {
    let output = Command::new("squeue").args(["-h", "-o", "%i"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

pub(crate) fn print(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{line}");
}

//! Commands leave nothing behind: counted over this whole process, so nothing else may run in it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must panic")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use batchtune::trial::process::{Manner, Patience};
use batchtune::trial::spawn::{Launch, Spawner};

/// Nothing here takes as long; it only ends a test that hangs.
const LONG: Duration = Duration::from_secs(60);
const REPEATS: usize = 20;
const MIB: u64 = 1 << 20;

/// What this process holds.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    threads: usize,
    children: Vec<String>,
}

fn held() -> Held {
    let threads: Vec<_> = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path()).collect();
    Held {
        descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
        threads: threads.len(),
        children: threads
            .iter()
            .flat_map(|task| {
                let children = fs::read_to_string(task.join("children")).unwrap_or_default();
                children.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
            })
            .collect(),
    }
}

/// What this process holds once its threads that are on their way out have left.
fn held_at_rest() -> Held {
    let (mut last, mut looks) = (held(), 0);
    while looks < 20 {
        std::thread::sleep(Duration::from_millis(10));
        let now = held();
        looks = if now == last { looks + 1 } else { 0 };
        last = now;
    }
    last
}

/// Whether this process holds what it held before, as soon as its threads have left.
fn comes_to(expected: &Held) -> bool {
    let deadline = Instant::now() + LONG;
    while held() != *expected {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn launch(folder: &Path, script: &str) -> Launch {
    Launch {
        arguments: vec!["python3".into(), script.into()],
        environment: Vec::new(),
        directory: folder.to_path_buf(),
    }
}

#[test]
fn commands_leave_no_process_no_descriptor_no_thread_and_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("ends.py", "print(1)"),
        ("fails.py", "import sys; sys.exit(3)"),
        ("hangs.py", "import os, time\nos.fork()\ntime.sleep(600)\n"),
        ("floods.py", "import os\nfor _ in range(100): os.write(1, b'x' * (1 << 20))\n"),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let patience = Patience::with_step_timeout(LONG);
    let before = held();
    for preload in [vec![], vec!["json".to_owned()]] {
        let is_warm = !preload.is_empty();
        let mut spawner = Spawner::new(preload);
        let mut first = None;
        for repeat in 0..REPEATS {
            for (script, ends) in [("ends.py", true), ("fails.py", true), ("hangs.py", false)] {
                let mut running = spawner.start(&launch(folder.path(), script)).unwrap();
                assert_eq!(running.was_warm(), is_warm);
                assert_eq!(running.has_ended_within(if ends { LONG } else { Duration::ZERO }), ends);
                if repeat % 2 == 0 {
                    running.end(Manner::AtOnce, &patience);
                }
            }
            // The server stays, once it is up.
            let expected = first.get_or_insert_with(held_at_rest);
            assert!(comes_to(expected), "after {repeat} repeats {:?}, expected {expected:?}", held());
        }
        let peak = peak_bytes();
        let mut running = spawner.start(&launch(folder.path(), "floods.py")).unwrap();
        assert!(running.has_ended_within(LONG));
        running.end(Manner::AtOnce, &patience);
        assert!(peak_bytes() < peak + 8 * MIB, "{} bytes, {peak} before", peak_bytes());
        drop(running);
        drop(spawner);
        assert!(comes_to(&before), "{:?}, expected {before:?}", held());
    }
}

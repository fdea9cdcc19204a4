//! Loading for long, with everything that goes wrong in a long run: slow samples, broken files, files that vanish and
//! come back, loaders that are dropped in the middle.
//!
//! The short form runs with every test run. The long one: `cargo test --release --test data_soak -- --ignored --nocapture`.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "these are tests, though some lines are outside `#[test]`"
)]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use batchtune::data::loader::{Loader, LoaderConfig};
use batchtune::data::rules::BatchRules;
use batchtune::data::{DataError, Dataset, OnBadSample, Place, Sample, SourceKind};

#[path = "data/fixtures.rs"]
#[expect(dead_code, reason = "the datasets that this file does not soak")]
mod fixtures;

use fixtures::{image_folder, image_input, noise, open};

const WORKERS: usize = 8;
/// Batches after which a loader is dropped in the middle of its work and another is started.
const BATCHES_PER_LOADER: usize = 200;
/// A batch takes some 30 ms; a minute without one is a deadlock.
const DEADLOCK: Duration = Duration::from_secs(60);
/// What an allocator's arenas, one a thread, may come and go by.
const FLAT_BYTES: u64 = 48 << 20;

/// Images that come when they like.
struct Sleepy(Arc<dyn Dataset>);

impl Dataset for Sleepy {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn sample(&self, index: usize) -> Result<Sample, DataError> {
        self.sample_at(Place { index, epoch: 0 })
    }
    fn sample_at(&self, place: Place) -> Result<Sample, DataError> {
        let chance = noise(place.epoch << 32 ^ place.index as u64);
        let pause = if chance.is_multiple_of(100) { 20_000 } else { chance % 2000 };
        thread::sleep(Duration::from_micros(pause));
        self.0.sample_at(place)
    }
    fn input_shape(&self) -> Vec<usize> {
        self.0.input_shape()
    }
    fn target_shape(&self) -> Vec<usize> {
        self.0.target_shape()
    }
}

fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn loader_threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("loader-")))
        .count()
}

/// Loads until the time is up and says how much.
fn load(dataset: &Arc<dyn Dataset>, until: Instant, said: &mpsc::Sender<u64>) -> (u64, u64, u64) {
    let (mut batches, mut skipped, mut loaders) = (0, 0, 0);
    let rules = BatchRules { on_bad_sample: OnBadSample::Skip, ..BatchRules::default() };
    while Instant::now() < until {
        let config = LoaderConfig { batch_size: 16, workers: WORKERS, prefetch_depth: 2, seed: loaders };
        let mut loader = Loader::with_rules(Arc::clone(dataset), config, rules);
        for _ in 0..BATCHES_PER_LOADER {
            if Instant::now() >= until {
                break;
            }
            let batch = loader.next_batch().expect("bad samples are skipped");
            assert_eq!((batch.samples, batch.input_shape), (16, vec![16, 3, 64, 64]));
            batches += 1;
            said.send(batches).expect("somebody listens");
        }
        skipped += loader.skipped().samples;
        loaders += 1;
    }
    (batches, skipped, loaders)
}

fn soak(time: Duration) {
    let root = tempfile::tempdir().unwrap();
    image_folder(root.path(), 10, 40);
    let victims: Vec<_> = (0..10).map(|class| root.path().join(format!("class-{class}/7.PNG"))).collect();
    for class in 0..10 {
        let path = root.path().join(format!("class-{class}/0.jpg"));
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / 3]).unwrap();
        fs::write(root.path().join(format!("class-{class}/3.PNG")), b"").unwrap();
    }
    let dataset: Arc<dyn Dataset> = Arc::new(Sleepy(open(SourceKind::ImageFolder, root.path(), &image_input(64))));
    let (said, heard) = mpsc::channel();
    let (begun, until) = (Instant::now(), Instant::now() + time);
    let loading = {
        let dataset = Arc::clone(&dataset);
        thread::spawn(move || load(&dataset, until, &said))
    };
    let (mut settled, mut highest) = (None, 0);
    loop {
        match heard.recv_timeout(DEADLOCK) {
            Ok(batches) => {
                turn_bad_and_good(&victims, batches);
                let resident = resident_bytes();
                if begun.elapsed() > time / 4 {
                    settled.get_or_insert(resident);
                    highest = highest.max(resident);
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("no batch for {DEADLOCK:?}: a deadlock"),
        }
    }
    let (batches, skipped, loaders) = loading.join().unwrap();
    let settled = settled.expect("batches after a quarter of the time");
    println!(
        "{batches} batches of 16 from {loaders} loaders in {:?}, {skipped} bad samples skipped; resident {} MiB after a \
         quarter, at most {} MiB later, {} MiB at the end",
        begun.elapsed(),
        settled >> 20,
        highest >> 20,
        resident_bytes() >> 20,
    );
    assert!(skipped > 0 && batches > 0);
    assert!(highest < settled + FLAT_BYTES, "{settled} bytes grew to {highest}");
    assert_eq!((loader_threads(), Arc::strong_count(&dataset)), (0, 1), "threads are left");
}

/// Files vanish for a hundred batches and come back.
fn turn_bad_and_good(victims: &[impl AsRef<Path>], batches: u64) {
    let hidden = |path: &Path| path.with_extension("away");
    for victim in victims.iter().map(AsRef::as_ref) {
        match batches % 200 {
            0 => drop(fs::rename(hidden(victim), victim)),
            100 => drop(fs::rename(victim, hidden(victim))),
            _ => {}
        }
    }
}

#[test]
fn loading_goes_on_in_the_same_memory() {
    soak(Duration::from_secs(20));
}

#[test]
#[ignore = "takes ten minutes"]
fn loading_goes_on_in_the_same_memory_for_ten_minutes() {
    soak(Duration::from_secs(600));
}

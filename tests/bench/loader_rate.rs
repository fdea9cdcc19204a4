//! The loader alone on a folder of images, for `pytorch_loader.py` and for anybody's own folder:
//!
//! ```sh
//! cargo run --release --example loader_rate -- photos DIR 2000          # writes photos of ImageNet's size
//! cargo run --release --example loader_rate -- rate DIR WORKERS SECONDS # images a second, of the clock and of processor time, as JSON
//! ```

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use batchtune::data::loader::{Loader, LoaderConfig};
use batchtune::data::{self, DataSpec, Extent, InputSpec, SourceKind};

mod photos;

const BATCH_SIZE: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["photos", folder, count] => Ok(photos::write(Path::new(folder), count.parse()?)?),
        ["rate", folder, workers, seconds] => rate(Path::new(folder), workers.parse()?, seconds.parse()?),
        _ => Err("usage: loader_rate photos DIR COUNT | rate DIR WORKERS SECONDS".into()),
    }
}

fn rate(folder: &Path, workers: usize, seconds: f64) -> Result<(), Box<dyn Error>> {
    let spec = DataSpec { source: SourceKind::ImageFolder, path: Some(folder.to_owned()), ..DataSpec::default() };
    let input = InputSpec::Features { shape: vec![3, 224, 224], classes: 100_000 };
    let dataset = data::open(&spec, &input, 0)?;
    let config = LoaderConfig { batch_size: BATCH_SIZE, workers, prefetch_depth: 2, seed: 0 };
    let mut loader = Loader::start(Arc::clone(&dataset), config);
    let begun = processor_time()?;
    let round = u32::try_from(workers.max(1))?;
    let time = Duration::try_from_secs_f64(seconds)?;
    let extent = Extent { round, warmup_rounds: 1, rounds: u32::MAX, time };
    let measured = data::throughput(&mut loader, extent, &|| false)?.ok_or("nobody stops it")?;
    let used = processor_time()?.saturating_sub(begun).as_secs_f64();
    let images = (measured.batches() + u64::from(round)) * BATCH_SIZE as u64;
    writeln!(
        std::io::stdout(),
        r#"{{"images_per_second": {:.2}, "images_per_processor_second": {:.2}, "batches": {}, "bytes_per_batch": {}}}"#,
        measured.samples_per_second(),
        images as f64 / used,
        measured.batches(),
        measured.batch_bytes
    )?;
    Ok(())
}

/// Processor time of all threads so far, the system's share included.
fn processor_time() -> Result<Duration, nix::Error> {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from)
}

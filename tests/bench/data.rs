//! `cargo bench --bench data`: what a core makes of JPEG files and of token files.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use batchtune::data::loader::{Loader, LoaderConfig};
use batchtune::data::{self, DataSpec, Dataset, InputSpec, SourceKind};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

mod photos;

const IMAGES: usize = 64;
const SIDE: usize = 224;
/// Tokens of the benched corpus: 64 MiB of 16-bit ones.
const TOKENS: usize = 32 << 20;
const SEQUENCE_LENGTH: usize = 1024;

fn open(source: SourceKind, path: &Path, input: &InputSpec) -> Arc<dyn Dataset> {
    let spec = DataSpec { source, path: Some(path.to_owned()), ..DataSpec::default() };
    data::open(&spec, input, 0).unwrap_or_else(|error| panic!("{error}"))
}

/// In the calling thread: a batch is what one core makes.
fn loader(dataset: Arc<dyn Dataset>, batch_size: usize) -> Loader {
    Loader::start(dataset, LoaderConfig { batch_size, workers: 0, prefetch_depth: 0, seed: 0 })
}

/// 500 × 375 JPEGs, decoded, cropped at random, resized to 224 × 224, mirrored, normalised, and joined.
fn jpeg(criterion: &mut Criterion) {
    let root = tempfile::tempdir().expect("a folder");
    photos::write(root.path(), IMAGES).expect("photos");
    let input = InputSpec::Features { shape: vec![3, SIDE, SIDE], classes: photos::CLASSES };
    let mut batches = loader(open(SourceKind::ImageFolder, root.path(), &input), 16);
    let mut group = criterion.benchmark_group("jpeg");
    group.throughput(Throughput::Elements(16));
    group.bench_function("images a core", |bencher| bencher.iter(|| black_box(batches.next_batch().ok())));
    group.finish();
}

/// Batches of 16 × 1024 tokens from a mapped file; bytes are those of the batch (input and target, four each).
fn tokens(criterion: &mut Criterion) {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().join("tokens.bin");
    let tokens: Vec<u8> = (0..TOKENS).flat_map(|token| ((token * 31 % 50_000) as u16).to_le_bytes()).collect();
    std::fs::write(&path, tokens).expect("a file");
    let input = InputSpec::Tokens { vocabulary_size: 50_257, sequence_length: SEQUENCE_LENGTH };
    let mut batches = loader(open(SourceKind::Tokens, &path, &input), 16);
    let mut group = criterion.benchmark_group("tokens");
    group.throughput(Throughput::Bytes(16 * 2 * 4 * SEQUENCE_LENGTH as u64));
    group.bench_function("bytes a core", |bencher| bencher.iter(|| black_box(batches.next_batch().ok())));
    group.finish();
}

criterion_group!(benches, jpeg, tokens);
criterion_main!(benches);

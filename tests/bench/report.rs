//! `cargo bench --bench report`: what the page of a long study costs.

use std::hint::black_box;
use std::path::Path;

use batchtune::report::html;
use batchtune::trial::TrialId;
use batchtune::trial::journal::{self, Contents, Entry};
use criterion::{Criterion, criterion_group, criterion_main};

/// A real study on an H200, its trials repeated until there are `trials` of them.
fn long(trials: u32) -> Option<Contents> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/journal/h200_gpt2_medium_killed.jsonl");
    let read = journal::read(Path::new(path)).ok()?;
    let ended: Vec<&Entry> = read.entries.iter().filter(|entry| matches!(entry, Entry::TrialEnded { .. })).collect();
    let rest = read.entries.iter().filter(|entry| !matches!(entry, Entry::TrialEnded { .. })).cloned();
    let many = ended.iter().cycle().zip(1..=trials).map(|(entry, id)| {
        let mut entry = (*entry).clone();
        if let Entry::TrialEnded { record, .. } = &mut entry {
            record.spec.id = TrialId(id);
        }
        entry
    });
    Some(Contents { entries: rest.chain(many).collect(), ..read.clone() })
}

fn report(criterion: &mut Criterion) {
    let Some(contents) = long(200) else { return };
    criterion.bench_function("page of 200 trials", |bencher| bencher.iter(|| html::page(black_box(&contents)).len()));
}

criterion_group!(benches, report);
criterion_main!(benches);

//! `tune inspect`: what a recording says about memory.

use std::borrow::Cow;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::output::{Page, beside, keep_apart, keep_each_apart};
use super::{Form, InspectArgs, input, print_result, rate, write_file};
use crate::error::Error;
use crate::exit_code;
use crate::memory::inspect::{Inspection, folded_stacks};
use crate::memory::recording::Recording;
use crate::memory::snapshot::Snapshot;
use crate::report::html;
use crate::text::harmless;
use crate::units::{Bytes, plural};

/// The most rows of a list that the table shows; `--json` has all.
const SHOWN: usize = 8;

pub(super) fn run(args: &InspectArgs) -> Result<u8, Error> {
    let form = Form::of(args.json);
    let page = Page::asked(args.html.as_ref(), form, || beside(&args.file))?;
    let files = [&args.folded, &args.export].into_iter().flatten().map(PathBuf::as_path);
    let outputs: Vec<&Path> = files.chain(page.as_ref().and_then(Page::path)).collect();
    keep_each_apart(&outputs)?;
    for output in &outputs {
        keep_apart(output, std::slice::from_ref(&args.file))?;
    }
    let recording = input::recording(&args.file)?;
    let inspection = recording.inspect()?;
    if let Some(path) = &args.folded {
        let Recording::PytorchSnapshot(snapshot) = &recording else { return Err(Error::NoFrames) };
        write_file(path, folded_stacks(snapshot).as_bytes())?;
    }
    if let Some(path) = &args.export {
        export(&recording, path)?;
    }
    match form {
        Form::Json => print_result(&format!("{}\n", super::to_json(&inspection)))?,
        Form::Table if page == Some(Page::Printed) => {}
        Form::Table => print_result(&table(&args.file, &inspection))?,
    }
    if let Some(page) = &page {
        page.write(&page_of(&args.file, &recording, &inspection)?)?;
    }
    Ok(exit_code::SAFE)
}

/// The recording as a snapshot: a trace is replayed under its own settings.
fn snapshot_of(recording: &Recording) -> Result<Cow<'_, Snapshot>, Error> {
    Ok(match recording {
        Recording::PytorchSnapshot(snapshot) => Cow::Borrowed(snapshot),
        Recording::BatchtuneTrace(_, trace) | Recording::RmmLog(trace) => {
            Cow::Owned(Snapshot::of_trace(trace, trace.conf.settings)?)
        }
    })
}

/// The page of the recording.
fn page_of(file: &Path, recording: &Recording, inspection: &Inspection) -> Result<String, Error> {
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    let snapshot = snapshot_of(recording)?;
    Ok(html::recording(&html::Recorded { name: &name, snapshot: &snapshot, inspection }))
}

/// Writes a snapshot that PyTorch's Memory Viz page opens.
fn export(recording: &Recording, path: &Path) -> Result<(), Error> {
    let mut bytes = Vec::new();
    let written = snapshot_of(recording)?.write(&mut bytes);
    written.map_err(|source| Error::Output { path: path.to_owned(), source })?;
    write_file(path, &bytes)
}

fn table(file: &Path, found: &Inspection) -> String {
    let mut text = format!(
        "{}: {}, {} in {} of {}\n\n",
        file.display(),
        found.format.replace('_', " "),
        plural(found.events as usize, "event"),
        plural(found.blocks as usize, "block"),
        plural(found.segments as usize, "segment"),
    );
    let rows = [
        ("allocated", found.allocated_bytes, "bytes of live tensors, rounded as the allocator does"),
        ("reserved", found.reserved_bytes, "held from the device"),
        ("free", found.free_bytes, "cached, in blocks that nothing uses"),
        ("largest free", found.largest_free_bytes, "the largest of them"),
        ("unreleasable", found.unreleasable_bytes, "free, and kept by a live neighbour"),
        ("peak allocated", found.peak_allocated_bytes, "the highest of the recording"),
        ("peak reserved", found.peak_reserved_bytes, "the highest of the recording"),
    ];
    for (name, bytes, meaning) in rows {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<15} {:>12}  {meaning}", Bytes(bytes).to_string());
    }
    let _ = writeln!(
        text,
        "\nfragmentation   peak {}, external {}, cache {}",
        rate(found.rates.peak),
        rate(found.rates.external),
        rate(found.rates.reserved)
    );
    if !found.conf.is_empty() {
        let _ = writeln!(text, "settings        {}", found.conf);
    }
    text.push_str(&replay_line(found));
    text.push_str(&lists(found));
    text
}

fn replay_line(found: &Inspection) -> String {
    let check = &found.replay;
    let total = check.placed_same + check.placed_other;
    let mut text = match &check.obstacle {
        Some(obstacle) => format!("replay          cannot reproduce the file: {obstacle}\n"),
        None if check.placed_same == 0 && total == 0 => String::new(),
        None => format!(
            "replay          {} of {} at the recording's own address, peak reserved {}\n",
            check.placed_same,
            plural(total as usize, "allocation"),
            Bytes(check.peak_reserved_bytes)
        ),
    };
    if let Some(oom) = &found.oom {
        let _ = writeln!(
            text,
            "out of memory   {} requested at event {}, the device had {} free",
            Bytes(oom.requested_bytes),
            oom.event,
            Bytes(oom.device_free_bytes)
        );
    }
    text
}

fn lists(found: &Inspection) -> String {
    let mut text = String::new();
    if !found.free_histogram.is_empty() {
        text.push_str("\nfree blocks from\n");
        for class in &found.free_histogram {
            let _ = writeln!(
                text,
                "{:>12}  {:>12} in {}",
                Bytes(class.from_bytes).to_string(),
                Bytes(class.bytes).to_string(),
                plural(class.blocks as usize, "block")
            );
        }
    }
    if !found.pinned.is_empty() {
        text.push_str("\nsegments whose free space cannot be released\n");
        for pinned in found.pinned.iter().take(SHOWN) {
            let _ = writeln!(
                text,
                "{:>#16x}  {} of {} kept by {} ({})",
                pinned.address,
                Bytes(pinned.unreleasable_bytes),
                Bytes(pinned.segment_bytes),
                plural(pinned.live_blocks as usize, "live allocation"),
                Bytes(pinned.live_bytes)
            );
        }
    }
    if !found.top_sites.is_empty() {
        text.push_str("\nwhere the live bytes come from\n");
        for site in found.top_sites.iter().take(SHOWN) {
            let _ = writeln!(text, "{:>12}  {}", Bytes(site.bytes).to_string(), harmless(&site.site));
        }
    }
    text
}

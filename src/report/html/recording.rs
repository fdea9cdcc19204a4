//! The page of a recording: what `tune inspect --html` writes.

use super::answer::LONGEST_REASON;
use super::block_map::{self, Heading};
use super::chart::{Axis, Chart, Guide, Mark, Series, Shape, Unit};
use super::document::{Section, fact, page, table};
use super::markup::{Html, brief, text};
use crate::memory::blocks::{BlockMap, worst_moment};
use crate::memory::inspect::Inspection;
use crate::memory::snapshot::Snapshot;
use crate::memory::timeline::timeline;
use crate::units::{Bytes, Fraction, plural};

/// A recording with what is known of it.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    /// The file's name, for the title.
    pub name: &'a str,
    /// Its content, as a snapshot.
    pub snapshot: &'a Snapshot,
    /// What it says.
    pub inspection: &'a Inspection,
}

/// The page of a recording.
pub fn recording(recorded: &Recorded<'_>) -> String {
    let found = recorded.inspection;
    let mut lead = Html::default();
    write!(
        lead,
        "<p>{}: {} in {} of {}.</p>",
        text(found.format.replace('_', " ")),
        text(plural(found.events as usize, "event")),
        text(plural(found.blocks as usize, "block")),
        text(plural(found.segments as usize, "segment"))
    );
    let sections = [
        Section::new("figures", "Figures", |html| figures(found, html)),
        Section::new("timeline", "Over time", |html| over_events(recorded, html)),
        Section::new("blocks", "Where the blocks lie", |html| maps(recorded, html)),
        Section::new("sites", "What holds the memory", |html| sites(found, html)),
    ];
    page(&format!("Memory of {}", recorded.name), &lead, &sections)
}

fn figures(found: &Inspection, html: &mut Html) {
    let rate = |rate: Option<f64>| rate.map_or_else(|| "undefined".to_owned(), |rate| Fraction(rate).to_string());
    table(html, "Figures", &["what", "value"], |html| {
        fact(html, "allocated at the end", Bytes(found.allocated_bytes));
        fact(html, "reserved at the end", Bytes(found.reserved_bytes));
        fact(html, "free at the end", Bytes(found.free_bytes));
        fact(html, "largest free block", Bytes(found.largest_free_bytes));
        fact(html, "free and kept by neighbours in use", Bytes(found.unreleasable_bytes));
        fact(html, "peak allocated", Bytes(found.peak_allocated_bytes));
        fact(html, "peak reserved", Bytes(found.peak_reserved_bytes));
        fact(html, "fragmentation, peak", rate(found.rates.peak));
        fact(html, "fragmentation, external", rate(found.rates.external));
        fact(html, "cache at the end", rate(found.rates.reserved));
        if !found.conf.is_empty() {
            fact(html, "allocator settings", &found.conf);
        }
        if let Some(oom) = &found.oom {
            let told = format!(
                "{} requested at event {}; the device had {} free",
                Bytes(oom.requested_bytes),
                oom.event,
                Bytes(oom.device_free_bytes)
            );
            fact(html, "out of memory", told);
        }
    });
}

fn over_events(recorded: &Recorded<'_>, html: &mut Html) {
    let points = timeline(recorded.snapshot);
    let series = |name: &str, bytes: &dyn Fn(usize) -> u64| Series {
        name: name.to_owned(),
        shape: Shape::Line,
        marks: (0..points.len()).map(|at| Mark::at(points[at].event as f64, bytes(at) as f64)).collect(),
    };
    let failure = recorded.inspection.oom.map(|oom| Guide {
        name: "reserved and requested where it ran out".to_owned(),
        y: recorded.inspection.reserved_bytes.saturating_add(oom.requested_bytes) as f64,
    });
    let chart = Chart {
        id: "memory-by-event".to_owned(),
        title: "Memory over the events of the trace".to_owned(),
        caption: "Read from the end state back. What was asked for is before the allocator's rounding.".to_owned(),
        x: Axis::from_zero("event", Unit::Count),
        y: Axis::from_zero("memory", Unit::Bytes),
        series: vec![
            series("reserved", &|at| points[at].reserved_bytes),
            series("asked for by live blocks", &|at| points[at].requested_bytes),
        ],
        guides: failure.into_iter().collect(),
    };
    chart.write(html);
}

fn maps(recorded: &Recorded<'_>, html: &mut Html) {
    let Recorded { snapshot, inspection, .. } = recorded;
    let settings = snapshot.conf.settings;
    write!(html, "<div class=\"figures\">");
    let end = BlockMap::of_segments(&snapshot.segments, &settings);
    let heading = Heading { id: "map-end", title: "At the end", caption: "The state that the file holds." };
    block_map::write(&end, &heading, html);
    let trace = snapshot.trace(snapshot.busiest_device());
    let worst =
        trace.obstacle.is_none().then(|| worst_moment(trace.events.iter().copied(), settings, u64::MAX)).flatten();
    match worst {
        Some(map) => {
            let caption = format!(
                "At event {} of the busiest device, for which most was taken from the device although it lay idle; by a replay \
                 from an empty cache under the file's own settings.",
                trace.source_of(map.event as usize)
            );
            let title = "At the worst moment";
            block_map::write(&map, &Heading { id: "map-worst", title, caption: &caption }, html);
        }
        None => write!(
            html,
            "<p>The worst moment cannot be drawn: {}.</p>",
            text(inspection.replay.obstacle.as_deref().unwrap_or("the trace allocates nothing"))
        ),
    }
    write!(html, "</div>");
}

fn sites(found: &Inspection, html: &mut Html) {
    if found.top_sites.is_empty() {
        write!(html, "<p>The file holds no stack frames.</p>");
    } else {
        table(html, "Live bytes by place", &["bytes#", "blocks#", "place"], |html| {
            for site in &found.top_sites {
                write!(
                    html,
                    "<tr><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"long\"><code>{}</code></td></tr>",
                    Bytes(site.bytes),
                    site.blocks,
                    brief(&site.site, LONGEST_REASON)
                );
            }
        });
    }
    if found.pinned.is_empty() {
        return;
    }
    write!(html, "<h3>Segments whose free space cannot be released</h3>");
    table(html, "Kept segments", &["segment", "free and kept#", "of#", "kept by"], |html| {
        for kept in &found.pinned {
            let by = plural(kept.live_blocks as usize, "live allocation");
            write!(
                html,
                "<tr><td><code>{:#x}</code></td><td class=\"number\">{}</td><td class=\"number\">{}</td><td>{} ({})</td></tr>",
                kept.address,
                Bytes(kept.unreleasable_bytes),
                Bytes(kept.segment_bytes),
                text(by),
                Bytes(kept.live_bytes)
            );
        }
    });
}

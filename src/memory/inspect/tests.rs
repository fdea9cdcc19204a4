use std::path::Path;

use serde_json::Value;

use super::*;

const FILES: [&str; 6] = ["accum", "gpt_expandable", "gpt_fixed", "oom_fragmented", "streams", "varlen"];

fn snapshot(name: &str) -> Snapshot {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pytorch");
    Snapshot::read(&std::fs::read(folder.join(format!("{name}.pickle"))).unwrap()).unwrap()
}

fn truth(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pytorch");
    serde_json::from_slice(&std::fs::read(folder.join(format!("{name}.json"))).unwrap()).unwrap()
}

#[test]
fn every_fixture_reads_as_pytorch_itself_reported_it() {
    for name in FILES {
        let (found, truth) = (inspect(&snapshot(name)).unwrap(), truth(name));
        let pairs = [
            ("events", found.events),
            ("blocks", found.blocks),
            ("free_blocks", found.free_blocks),
            ("allocated", found.allocated_bytes),
            ("active", found.active_bytes),
            ("reserved", found.reserved_bytes),
            ("requested", found.requested_bytes),
            ("inactive_split", found.inactive_split_bytes),
            ("free_total", found.free_bytes),
            ("largest_free", found.largest_free_bytes),
            ("max_allocated", found.peak_allocated_bytes),
            ("max_reserved", found.peak_reserved_bytes),
        ];
        for (key, value) in pairs {
            assert_eq!(Some(value), truth[key].as_u64(), "{name}: {key}");
        }
        // PyTorch's own count of segments stays at zero under expandable segments.
        if truth["segments"] != 0 {
            assert_eq!(Some(found.segments), truth["segments"].as_u64(), "{name}: segments");
        }
    }
}

#[test]
fn every_allocation_is_placed_at_pytorchs_own_address() {
    for name in FILES {
        let found = inspect(&snapshot(name)).unwrap();
        assert_eq!(found.replay.obstacle, None, "{name}");
        assert_eq!(found.replay.placed_other, 0, "{name}");
        assert!(found.replay.placed_same >= 80, "{name}");
        assert_eq!(Some(found.replay.peak_reserved_bytes), truth(name)["max_reserved"].as_u64(), "{name}");
    }
}

#[test]
fn pools_add_up_to_the_whole() {
    for name in FILES {
        let found = inspect(&snapshot(name)).unwrap();
        let total = |figure: fn(&PoolFigures) -> u64| found.pools.iter().map(figure).sum::<u64>();
        assert_eq!(total(|pool| pool.reserved_bytes), found.reserved_bytes, "{name}");
        assert_eq!(total(|pool| pool.allocated_bytes), found.allocated_bytes, "{name}");
        assert_eq!(total(|pool| pool.free_bytes), found.free_bytes, "{name}");
        assert_eq!(total(|pool| pool.unreleasable_bytes), found.unreleasable_bytes, "{name}");
        assert_eq!(total(|pool| pool.segments), found.segments, "{name}");
    }
    let streams = inspect(&snapshot("streams")).unwrap().pools;
    assert_eq!(streams.iter().map(|pool| pool.stream).collect::<std::collections::BTreeSet<_>>().len(), 2);
}

#[test]
fn the_failed_request_and_what_pins_the_memory_are_found() {
    let found = inspect(&snapshot("oom_fragmented")).unwrap();
    let failure = found.oom.unwrap();
    assert_eq!((failure.requested_bytes, failure.event), (600 << 20, 240));
    assert_eq!(found.unreleasable_bytes, 943_718_400);
    assert_eq!(found.pinned.len(), MAX_PINS);
    let first = &found.pinned[0];
    assert_eq!((first.unreleasable_bytes, first.live_bytes, first.live_blocks), (30 << 20, 34 << 20, 1));
    assert_eq!(found.free_histogram, [FreeClass { from_bytes: 16 << 20, blocks: 30, bytes: 943_718_400 }]);
    assert!(inspect(&snapshot("gpt_fixed")).unwrap().oom.is_none());
}

#[test]
fn the_json_has_the_names_that_the_documents_promise() {
    let json = serde_json::to_value(inspect(&snapshot("streams")).unwrap()).unwrap();
    for key in [
        "format",
        "events",
        "segments",
        "blocks",
        "free_blocks",
        "allocated_bytes",
        "active_bytes",
        "reserved_bytes",
        "requested_bytes",
        "inactive_split_bytes",
        "free_bytes",
        "largest_free_bytes",
        "unreleasable_bytes",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "rates",
        "replay",
        "oom",
    ] {
        assert!(json.get(key).is_some(), "{key}");
    }
    assert!(json["oom"].is_null());
    for key in ["peak", "external", "reserved"] {
        assert!(json["rates"].get(key).is_some(), "{key}");
    }
}

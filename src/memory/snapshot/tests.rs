//! Round trips, and old, odd, and hostile files.

use std::path::Path;

use proptest::prelude::*;

use super::*;

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pytorch").join(name)).unwrap()
}

fn written(snapshot: &Snapshot) -> Vec<u8> {
    let mut file = Vec::new();
    snapshot.write(&mut file).unwrap();
    file
}

/// A pickled dictionary with this body between its marks.
fn dict(body: &[u8]) -> Vec<u8> {
    [b"\x80\x04}(", body, b"u."].concat()
}

/// A text.
fn text(text: &str) -> Vec<u8> {
    [&[0x8c, text.len() as u8], text.as_bytes()].concat()
}

#[test]
fn what_is_written_reads_back_the_same() {
    for name in ["streams.pickle", "oom_fragmented.pickle", "gpt_expandable.pickle"] {
        let snapshot = Snapshot::read(&fixture(name)).unwrap();
        let again = Snapshot::read(&written(&snapshot)).unwrap();
        assert_eq!(again.segments, snapshot.segments, "{name}");
        assert_eq!(again.traces, snapshot.traces, "{name}");
        assert_eq!(again.conf, snapshot.conf, "{name}");
    }
}

#[test]
fn a_snapshot_is_read_up_to_its_bound_over_all_devices() {
    let mut snapshot = Snapshot::read(&fixture("streams.pickle")).unwrap();
    let entries = snapshot.traces.swap_remove(0);
    let count = entries.len();
    snapshot.traces = vec![entries.clone(), Vec::new(), entries];
    let file = written(&snapshot);
    assert_eq!(read::read_within(&file, 2 * count).unwrap().traces, snapshot.traces);
    assert_eq!(read::read_within(&file, 2 * count - 1).unwrap_err(), SnapshotError::TooLong { limit: 2 * count - 1 });
}

#[test]
fn stack_frames_survive_and_are_kept_once() {
    let mut snapshot = Snapshot::read(&fixture("streams.pickle")).unwrap();
    snapshot.texts = vec!["forward".into(), "/home/me/model.py".into(), "x".repeat(300).into()];
    snapshot.stacks = vec![vec![
        Frame { function: Some(2), file: None, line: 1 },
        Frame { function: Some(0), file: Some(1), line: 42 },
    ]];
    for block in snapshot.segments.iter_mut().flat_map(|segment| &mut segment.blocks) {
        block.stack = Some(0);
    }
    let again = Snapshot::read(&written(&snapshot)).unwrap();
    let stack = again.segments[0].blocks[0].stack;
    let names: Vec<_> = again.frames(stack).iter().map(|frame| (again.text(frame.function), frame.line)).collect();
    assert_eq!(names, [("x".repeat(300).as_str(), 1), ("forward", 42)]);
    assert_eq!(again.text(again.frames(stack)[1].file), "/home/me/model.py");
}

#[test]
fn numbers_that_the_page_cannot_hold_are_not_written() {
    let segment = Segment { address: Address(u64::MAX), ..Segment::default() };
    let error = Snapshot { segments: vec![segment], ..Snapshot::default() }.write(Vec::new()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn a_bare_list_of_segments_without_block_addresses_is_read() {
    let block = |size: u8, state: &str, more: &[u8]| {
        [b"}(", &text("size")[..], b"K", &[size], &text("state"), &text(state), more, b"u"].concat()
    };
    let history = [&text("history")[..], b"](}(", &text("real_size"), b"K\x09ue"].concat();
    let file = [
        &b"\x80\x02](}("[..],
        &text("address"),
        b"J\x00\x10\x00\x00",
        &text("total_size"),
        b"K\x30",
        &text("blocks"),
        b"](",
        &block(16, "active_allocated", &history),
        &block(32, "inactive", b""),
        b"eue.",
    ]
    .concat();
    let snapshot = Snapshot::read(&file).unwrap();
    let blocks = &snapshot.segments[0].blocks;
    assert_eq!(blocks.iter().map(|block| block.address.0).collect::<Vec<_>>(), [0x1000, 0x1010]);
    assert_eq!((blocks[0].requested_bytes, blocks[1].requested_bytes), (9, 32));
    assert_eq!(snapshot.trace(0).obstacle, Some(Obstacle::NoEvents));
}

#[test]
fn pickles_of_something_else_say_what_is_missing() {
    let message = |file: &[u8]| Snapshot::read(file).unwrap_err().to_string();
    assert!(message(b"\x80\x04K\x01.").contains("a dictionary with `segments`"));
    assert!(message(b"\x80\x04](K\x01e.").contains("a segment is not a dictionary"));
    assert!(message(&dict(&[&text("segments")[..], b"K\x01"].concat())).contains("`segments` is not a list"));
    let negative = dict(&[&text("segments")[..], b"](}(", &text("address"), b"J\xff\xff\xff\xffue"].concat());
    assert!(message(&negative).contains("a segment's `address` is not a number"));
}

#[test]
fn parts_that_are_used_many_times_are_refused() {
    // One block of a segment, listed a thousand times.
    let block = [b"}(", &text("size")[..], b"K\x10", &text("state"), &text("inactive"), b"u\x94"].concat();
    let many = b"h\x00".repeat(1000);
    let file = [b"\x80\x04](}(", &text("blocks")[..], b"](", &block, &many, b"eue."].concat();
    assert_eq!(Snapshot::read(&file).unwrap_err(), SnapshotError::Shared);
}

#[test]
fn a_trace_that_begins_late_is_not_reproduced() {
    let mut snapshot = Snapshot::read(&fixture("gpt_fixed.pickle")).unwrap();
    snapshot.traces[0].drain(..1000);
    assert_eq!(snapshot.trace(0).obstacle, Some(Obstacle::Wrapped));
    let found = crate::memory::inspect::inspect(&snapshot).unwrap();
    assert!(found.replay.obstacle.is_some());
    // From the end backwards the peaks can still be told, A a little low for want of rounding.
    assert_eq!(found.peak_reserved_bytes, 402_653_184);
    assert!(found.peak_allocated_bytes > 380_000_000 && found.peak_allocated_bytes <= 387_028_992);
}

#[test]
fn private_pools_are_an_obstacle() {
    let mut snapshot = Snapshot::read(&fixture("gpt_fixed.pickle")).unwrap();
    snapshot.segments[3].is_private = true;
    assert_eq!(snapshot.trace(0).obstacle, Some(Obstacle::PrivatePools));
}

#[test]
fn releases_in_a_trace_are_followed() {
    // A segment is freed by the recorder, and its address used again by a larger one.
    let entry = |action, address, bytes| Entry { action, address, bytes, stream: Stream(0), time_us: 0, stack: None };
    let segment = |action, address, bytes| entry(Action::Segment(action), address, bytes);
    let mib = 1 << 20;
    let traces = vec![vec![
        segment(SegmentAction::Allocate, 0x1000_0000, 20 * mib),
        entry(Action::Alloc, 0x1000_0000, 4 * mib),
        entry(Action::FreeRequested, 0x1000_0000, 4 * mib),
        entry(Action::FreeCompleted, 0x1000_0000, 4 * mib),
        segment(SegmentAction::Free, 0x1000_0000, 20 * mib),
        segment(SegmentAction::Allocate, 0x1000_0000, 64 * mib),
        entry(Action::Alloc, 0x1000_0000, 64 * mib),
    ]];
    let trace = Snapshot { traces, ..Snapshot::default() }.trace(0);
    let reproduced = crate::memory::replay::reproduce(&trace).unwrap();
    assert_eq!((reproduced.placed_same, reproduced.placed_other), (2, 0));
    assert_eq!(reproduced.replayed.state.reserved_bytes, 64 * mib);
    assert_eq!(reproduced.replayed.counts.segments_freed, 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_snapshots_are_an_error_or_a_result(
        damage in proptest::collection::vec((0..14_234_usize, any::<u8>()), 1..6),
        cut in prop_oneof![3 => Just(usize::MAX), 1 => 0..14_234_usize],
    ) {
        let mut file = fixture("streams.pickle");
        for (at, byte) in damage {
            let place = at % file.len();
            file[place] = byte;
        }
        file.truncate(cut);
        if let Ok(snapshot) = Snapshot::read(&file) {
            let _ = crate::memory::inspect::inspect(&snapshot);
            let _ = crate::memory::compare::report(&snapshot.trace(0), &crate::memory::compare::ReplayOptions::default());
        }
    }

    #[test]
    fn random_bytes_are_an_error_or_a_result(rest in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Snapshot::read(&[&b"\x80\x04"[..], &rest].concat());
    }
}

//! What is made of recordings: forecasts and pages.

use std::path::Path;

use tempfile::TempDir;

use crate::{repository, stderr, tune};

#[test]
fn forecasts_of_what_is_none_are_one_clear_error_each() {
    let folder = TempDir::new().unwrap();
    let fixture = |name: &str| repository().join("tests/fixtures/forecast").join(name);
    let (two, three) = (fixture("gpt2_medium_b2.pickle"), fixture("gpt2_medium_b3.pickle"));
    let cases: [(&Path, &[&str], &str); 7] = [
        (&three, &["--batches", "2", "--to", "8"], "2 recordings and 1 batch size"),
        (&three, &["--batches", "1,3", "--to", "8"], "a batch of `1`"),
        (&three, &["--batches", "2,2", "--to", "8"], "`2` is there twice"),
        (&two, &["--batches", "2,3", "--to", "8"], "batches of `2` and `3` are the same"),
        (&three, &["--batches", "2,3", "--to", "1"], "a batch of `1` cannot be forecast"),
        (&three, &["--batches", "2,3", "--to", "8", "--conf", "backend:cudaMallocAsync"], "no model of the allocator"),
        (Path::new("nowhere.trace"), &["--batches", "2,3", "--to", "8"], "cannot read `nowhere.trace`"),
    ];
    for (second, more, words) in cases {
        let output = tune(folder.path()).arg("forecast").arg(&two).arg(second).args(more).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }
    let swapped = ["--batches", "3,2", "--to", "8"];
    let output = tune(folder.path()).arg("forecast").args([&two, &three]).args(swapped).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("the two may be swapped"), "{told}");
}

#[test]
fn whole_runs_that_cannot_be_forecast_are_one_clear_error_each() {
    let folder = TempDir::new().unwrap();
    let shapes = [(2, 64), (3, 64), (2, 96), (3, 96), (2, 160), (4, 128), (3, 200)];
    let trace = |(b, t): (u32, u32)| repository().join(format!("tests/fixtures/forecast/made/b{b}_t{t}.trace"));
    std::fs::write(folder.path().join("lengths.txt"), "90\n").unwrap();
    let cases: [(&[&str], &str); 18] = [
        (&["--run"], "--run-lengths"),
        (&["--tune"], "--run-lengths"),
        (&["--run", "--run-lengths", "nowhere.txt"], "cannot read `nowhere.txt`"),
        (&["--run", "--run-lengths", "40:500", "--token-budget", "999"], "does not hold two samples of `500`"),
        (&["--steps", "1000001", "--run-lengths", "40:500"], "is over 1000000"),
        (&["--run", "--run-lengths", "40:500", "--pad-to", "0"], "0 is not in 1..="),
        (&["--run", "--run-lengths", "40:500", "--evaluate-every", "5"], "the probes hold no evaluation"),
        (&["--steps", "9", "--run-lengths", "lengths.txt", "--html", "lengths.txt"], "lengths.txt"),
        (&["--run-lengths", "500:40"], "longer than the longest"),
        (&["--run-lengths", "0:16"], "expected two lengths from 1 to"),
        (&["--run-lengths", "16:"], "expected two lengths from 1 to"),
        (&["--run-lengths", "40:500", "--steps", "0"], "0 is not in 1.."),
        (&["--run-lengths", "40:500", "--evaluate-every", "0"], "0 is not in 1.."),
        (&["--run-lengths", "40:500", "--limit", "0"], "nothing fits under a limit of 0"),
        (&["--run-lengths", "40:500", "--updates", "3"], "--updates"),
        (&["--run-lengths", "40:500", "--backend", "cuda_malloc_async", "--conf", ""], "which has no settings"),
        (&["--run-lengths", "40:500", "--steps", "9", "--html", "-", "--json"], "both go to standard output"),
        (&["--run-lengths", "40:16777216", "--steps", "9"], "the sizes at `batch 8, length "),
    ];
    for (more, words) in cases {
        let mut command = tune(folder.path());
        command.arg("forecast").args(shapes.map(trace)).args(["--batches", "2,3,2,3,2,4,3", "--to", "8"]);
        command.args(["--lengths", "64,64,96,96,160,128,200"]);
        let output = command.args(more).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{more:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{more:?}: {}", stderr(&output));
    }
    assert_eq!(std::fs::read_to_string(folder.path().join("lengths.txt")).unwrap(), "90\n");
}

#[test]
fn runs_over_named_axes_say_which_one_is_amiss() {
    let folder = TempDir::new().unwrap();
    let shapes = [(2, 64), (3, 64), (2, 96), (3, 96), (2, 160), (4, 128), (3, 200)];
    let trace = |(b, t): (u32, u32)| repository().join(format!("tests/fixtures/forecast/made/b{b}_t{t}.trace"));
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("good.csv", "side\n64\n\n200\n");
    write("header.csv", "side,side\n64,64\n");
    write("line.csv", "side\n64\n64,96\n");
    write("empty.csv", "side\n");
    let forecast = |sides: &str, more: &[&str]| {
        let mut command = tune(folder.path());
        command.arg("forecast").args(shapes.map(trace)).args([
            "--batches",
            "2,3,2,3,2,4,3",
            "--to",
            "8",
            "--steps",
            "9",
        ]);
        command.args(["--axis", sides]).args(more).output().unwrap()
    };
    let sides = "side=64,64,96,96,160,128,200";
    let cases: [(&str, &[&str], &str); 15] = [
        ("side=64,64", &[], "7 recordings and 2 values of `side`"),
        ("side=64,64,96,96,160,128,0", &[], "such as side=64,96,128"),
        ("batch=64,64,96,96,160,128,200", &[], "the axis `batch` is there twice"),
        ("side=64,64,64,64,64,64,64", &[], "all probes have `side 64`"),
        (sides, &["--axis", sides], "the axis `side` is there twice"),
        (sides, &[], "a whole run needs the `side` of the run's samples"),
        (sides, &["--run-axis", "side=64:96:100"], "no multiple of `100` lies between `64` and `96`"),
        (
            sides,
            &["--run-axis", "side=64:96", "--run-axis", "side=3"],
            "the `side` of the run's samples is there twice",
        ),
        (
            sides,
            &["--run-axis", "width=64:96"],
            "the run has a `width`, and the axes of the recordings are batch, side",
        ),
        (sides, &["--run-axis", "side=64:96", "--per-batch", "height"], "`--per-batch height`: no such axis is drawn"),
        (sides, &["--run-shapes", "good.csv", "--per-batch", "side"], "`--per-batch side`: no such axis is drawn"),
        (sides, &["--run-shapes", "header.csv"], "header.csv:1: expected the names of the samples' axes"),
        (sides, &["--run-shapes", "line.csv"], "line.csv:3: expected side, from 1 to"),
        (sides, &["--run-shapes", "empty.csv"], "`empty.csv` has no shapes"),
        (sides, &["--run-shapes", "good.csv", "--html", "good.csv"], "good.csv"),
    ];
    for (sides, more, words) in cases {
        let output = forecast(sides, more);
        assert_eq!(output.status.code(), Some(2), "{sides} {more:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{sides} {more:?}: {}", stderr(&output));
    }
    let alike = forecast(sides, &["--run-axis", "side=64:128:64", "--per-batch", "side", "--group-by-length"]);
    let alike = String::from_utf8_lossy(&alike.stdout).into_owned();
    assert!(
        alike.contains("note: all samples of a batch are drawn alike, so `--group-by-length` groups nothing"),
        "{alike}"
    );
    let page = forecast(sides, &["--run-shapes", "good.csv", "--html", "-"]);
    assert_eq!(page.status.code(), Some(0), "{}", stderr(&page));
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    assert!(page.contains("<p>Axes of its samples: side 64 to 200, as in good.csv.</p>"), "{page}");
}

#[test]
fn a_page_goes_beside_its_recording_to_a_path_or_to_standard_output() {
    let folder = TempDir::new().unwrap();
    let snapshot = folder.path().join("snapshot.pickle");
    std::fs::copy(repository().join("tests/fixtures/pytorch/oom_fragmented.pickle"), &snapshot).unwrap();
    let inspect = |page: &str| tune(folder.path()).args(["inspect", "snapshot.pickle", page]).output().unwrap();
    for (page, file) in [("--html", "snapshot.pickle.html"), ("--html=page.html", "page.html")] {
        let output = inspect(page);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(stderr(&output).trim(), format!("page: {file}"));
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("snapshot.pickle: pytorch snapshot"));
        assert!(std::fs::read(folder.path().join(file)).unwrap().starts_with(b"<!doctype html>"));
    }
    let printed = inspect("--html=-");
    assert_eq!(printed.stdout, std::fs::read(folder.path().join("page.html")).unwrap());
    // What was computed is printed before the page is found to have no place.
    let nowhere = inspect("--html=/nonexistent/page.html");
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(!nowhere.stdout.is_empty() && stderr(&nowhere).contains("cannot write `/nonexistent/page.html`"));
}

#[test]
fn a_tuned_run_is_json_with_everything_that_was_tried() {
    let folder = TempDir::new().unwrap();
    let shapes = [(2, 64), (3, 64), (2, 96), (3, 96), (2, 160), (4, 128), (3, 200)];
    let trace = |(b, t): (u32, u32)| repository().join(format!("tests/fixtures/forecast/made/b{b}_t{t}.trace"));
    let mut command = tune(folder.path());
    command.arg("forecast").args(shapes.map(trace)).args(["--batches", "2,3,2,3,2,4,3", "--to", "8"]);
    command.args(["--lengths", "64,64,96,96,160,128,200", "--steps", "60", "--run-lengths", "40:500"]);
    let output = command.args(["--limit", "300MiB", "--tune", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["method"], &report["runs"][0]["breach"]["breach"]), (&"exact".into(), &"out_of_memory".into()));
    assert_eq!(report["runs"][0]["breach"]["step"], 14);
    let tuning = &report["tuned"][0]["tuning"];
    let chosen = &tuning["tried"][usize::try_from(tuning["chosen"].as_u64().unwrap()).unwrap()];
    assert_eq!(chosen["setting"]["conf"], "expandable_segments:True", "{tuning:#}");
    assert_eq!((&chosen["ending"], &chosen["figures"]["steps"]), (&"survived".into(), &60.into()));
    assert!(tuning["tried"].as_array().unwrap().len() > 10);
    let ways = report["tuned"][0]["remedies"]["ways"].as_array().unwrap();
    assert!(ways.len() >= 6 && ways.iter().all(|way| way["figures"]["padding_share"].is_number()));
}

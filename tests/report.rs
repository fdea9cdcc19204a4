//! The report pages in a real browser: no error on its console, every figure there, nothing wider than a telephone.
//!
//! Screenshots at 400 and 1200 pixels, light and dark, are left in `target/report/` to be looked at. The journals are of
//! real studies on an H200 (`tests/fixtures/journal/`), one of them of before the forecast's curve and the block map were
//! in a journal, and of a study on the CPU that is run here.
//!
//! The browser is `chromium` (Debian's package; `CHROMIUM` names another). Without one the tests say so and pass, unless
//! `CI` is set.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// Figures that every page of a study has.
const FIGURES: [&str; 7] = [
    "throughput",
    "memory",
    "fragmentation-by-step",
    "memory-by-step",
    "fragmentation-by-run",
    "block-map",
    "loader-grid",
];

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn browser() -> Option<String> {
    let named = std::env::var("CHROMIUM").ok();
    let known = ["chromium", "chromium-browser", "google-chrome"].map(str::to_owned);
    let found = named.into_iter().chain(known).find(|program| Command::new(program).arg("--version").output().is_ok());
    assert!(found.is_some() || std::env::var_os("CI").is_none(), "CI has no browser: `.ci/run` installs chromium");
    if found.is_none() {
        // The one way to be heard from a test that passes.
        #[expect(clippy::print_stderr, reason = "a test that was not run must not look like one that was")]
        {
            eprintln!("\n*** NOT TESTED: no browser (hint: `apt-get install chromium`, or set CHROMIUM) ***\n");
        }
    }
    found
}

/// Opens a file, with a profile of its own so that tests do not wait for one another.
fn open(browser: &str, file: &Path, options: &[String]) -> Output {
    let profile = TempDir::new().unwrap();
    Command::new(browser)
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--enable-logging=stderr", "--hide-scrollbars", "--force-device-scale-factor=1"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(options)
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap()
}

/// The document as the browser built it, and what it said on its console.
fn document(browser: &str, file: &Path) -> (String, Vec<String>) {
    let output = open(browser, file, &["--dump-dom".to_owned()]);
    let errors = String::from_utf8_lossy(&output.stderr);
    let console = errors.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
    (String::from_utf8_lossy(&output.stdout).into_owned(), console)
}

fn tune(folder: &Path, arguments: &[&str]) {
    let output = assert_cmd::Command::cargo_bin("tune").unwrap().current_dir(folder).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Leaves pictures of a page to be looked at.
fn photograph(browser: &str, file: &Path, name: &str) {
    let folder = repository().join("target/report");
    std::fs::create_dir_all(&folder).unwrap();
    for width in [400, 1200] {
        for (theme, setting) in [("light", 1), ("dark", 0)] {
            let picture = folder.join(format!("{name}-{width}-{theme}.png"));
            // A window is 500 wide at least, a frame in it is not.
            let host = folder.join(format!("{name}-{width}-{theme}.host.html"));
            let height = if width == 400 { 5600 } else { 4400 };
            let frame = format!(
                "<body style=\"margin:0\"><iframe src=\"file://{}\" style=\"border:0\" width={width} height={height}></iframe>",
                file.display()
            );
            std::fs::write(&host, frame).unwrap();
            let output = open(
                browser,
                &host,
                &[
                    format!("--screenshot={}", picture.display()),
                    format!("--window-size={},{height}", width.max(500)),
                    format!("--blink-settings=preferredColorScheme={setting}"),
                ],
            );
            assert!(picture.exists(), "{}", String::from_utf8_lossy(&output.stderr));
            std::fs::remove_file(host).unwrap();
        }
    }
}

/// How wide a page's content is where it has 400 pixels, measured by a script that a copy without its policy may run.
fn width_at_400(browser: &str, page: &str, folder: &Path) -> f64 {
    let begin = page.find("<meta http-equiv").unwrap();
    let end = begin + page[begin..].find('>').unwrap() + 1;
    let script = "<script>document.body.style.width='400px';document.title='width '+document.body.scrollWidth</script>";
    let copy = folder.join("measured.html");
    std::fs::write(&copy, format!("{}{}{script}", &page[..begin], &page[end..])).unwrap();
    let (dom, _) = document(browser, &copy);
    let title = dom.split("<title>width ").nth(1).unwrap();
    title.split('<').next().unwrap().parse().unwrap()
}

fn check(browser: &str, file: &Path, name: &str) -> String {
    let (dom, console) = document(browser, file);
    assert_eq!(console, Vec::<String>::new(), "{name}");
    for figure in FIGURES {
        let count = dom.matches(&format!("id=\"{figure}\"")).count();
        assert_eq!(count, 1, "{name}: {figure}");
    }
    let page = std::fs::read_to_string(file).unwrap();
    assert!(width_at_400(browser, &page, file.parent().unwrap()) <= 400.0, "{name} is wider than its screen");
    photograph(browser, file, name);
    dom
}

#[test]
fn the_page_of_a_real_study_has_every_figure_and_no_error() {
    let Some(browser) = browser() else { return };
    let folder = TempDir::new().unwrap();
    // The first two are of before the forecast's curve and the block map were kept.
    for name in ["h200_gpt2_medium_40gib", "h200_gpt2_medium_killed", "h200_lengths"] {
        let journal = repository().join(format!("tests/fixtures/journal/{name}.jsonl"));
        let file = folder.path().join(format!("{name}.html"));
        tune(folder.path(), &["report", journal.to_str().unwrap(), "--output", file.to_str().unwrap()]);
        let dom = check(&browser, &file, name);
        assert!(dom.contains("NVIDIA H200") && dom.contains("<svg"), "{name}");
        let is_whole = dom.contains("peak reserved, forecast (exact)") && dom.contains("class=\"b-live\"");
        assert_eq!(is_whole, name == "h200_lengths", "{name}");
    }
}

#[test]
fn a_forecast_run_leaves_a_page_with_its_series_settings_and_ways_to_batch() {
    let Some(browser) = browser() else { return };
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("run.html");
    let shapes = [(2, 64), (3, 64), (2, 96), (3, 96), (2, 160), (4, 128), (3, 200)];
    let traces = shapes.map(|(b, t)| {
        let trace = repository().join(format!("tests/fixtures/forecast/made/b{b}_t{t}.trace"));
        trace.to_str().unwrap().to_owned()
    });
    let mut arguments: Vec<&str> = vec!["forecast"];
    arguments.extend(traces.iter().map(String::as_str));
    arguments.extend(["--batches", "2,3,2,3,2,4,3", "--lengths", "64,64,96,96,160,128,200", "--to", "8"]);
    arguments.extend(["--steps", "300", "--run-lengths", "40:500", "--limit", "300MiB", "--tune"]);
    arguments.extend(["--html", file.to_str().unwrap()]);
    tune(folder.path(), &arguments);
    let (dom, console) = document(&browser, &file);
    assert_eq!(console, Vec::<String>::new());
    for figure in ["whole-run-memory", "whole-run-rate"] {
        assert_eq!(dom.matches(&format!("id=\"{figure}\"")).count(), 1, "{figure}");
    }
    for words in ["where a run breaks", "limit: 300.0 MiB", "expandable_segments:True (found)", "grouped by length"] {
        assert!(dom.contains(words), "{words}");
    }
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(width_at_400(&browser, &page, folder.path()) <= 400.0, "wider than its screen");
    photograph(&browser, &file, "whole-run");
}

#[test]
fn a_study_leaves_a_page_with_its_forecast_and_its_blocks() {
    let Some(browser) = browser() else { return };
    let folder = TempDir::new().unwrap();
    let config = repository().join("configs/quickstart.yaml");
    // One pair, so that the answer is no batch of 1, which has no forecast.
    let only_8 = ["--set", "target.batch_size=8", "--set", "search.accumulation_steps=[1]"];
    tune(folder.path(), &[&["--config", config.to_str().unwrap(), "--quiet", "--budget", "10m"], &only_8[..]].concat());
    let dom = check(&browser, &folder.path().join(".tune/quickstart/report.html"), "quickstart");
    assert!(dom.contains("peak reserved, forecast (exact)") && dom.contains("class=\"b-live\""));
}

#[test]
fn two_studies_and_a_recording_have_pages_too() {
    let Some(browser) = browser() else { return };
    let folder = TempDir::new().unwrap();
    let journal = |name: &str| repository().join(format!("tests/fixtures/journal/{name}.jsonl"));
    let (left, right) = (journal("h200_gpt2_medium_40gib"), journal("h200_gpt2_medium_killed"));
    let file = folder.path().join("both.html");
    tune(
        folder.path(),
        &["report", left.to_str().unwrap(), right.to_str().unwrap(), "--output", file.to_str().unwrap()],
    );
    let (dom, console) = document(&browser, &file);
    assert_eq!(console, Vec::<String>::new());
    assert!(dom.contains("id=\"difference\"") && dom.contains("id=\"throughput\""));
    photograph(&browser, &file, "comparison");
    for name in ["oom_fragmented", "varlen"] {
        let snapshot = repository().join(format!("tests/fixtures/pytorch/{name}.pickle"));
        let file = folder.path().join("snapshot.html");
        tune(folder.path(), &["inspect", snapshot.to_str().unwrap(), "--html", file.to_str().unwrap()]);
        let (dom, console) = document(&browser, &file);
        assert_eq!(console, Vec::<String>::new(), "{name}");
        for figure in ["memory-by-event", "map-end", "map-worst"] {
            assert!(dom.contains(&format!("id=\"{figure}\"")), "{name}: {figure}");
        }
        photograph(&browser, &file, name);
    }
}

#[test]
fn the_page_s_own_policy_stops_a_script_and_the_test_would_hear_of_it() {
    let Some(browser) = browser() else { return };
    let folder = TempDir::new().unwrap();
    let journal = repository().join("tests/fixtures/journal/h200_gpt2_medium_40gib.jsonl");
    let file = folder.path().join("report.html");
    tune(folder.path(), &["report", journal.to_str().unwrap(), "--output", file.to_str().unwrap()]);
    let page: PathBuf = folder.path().join("broken.html");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&page, text.replace("<main>", "<script>document.title='it ran'</script><main>")).unwrap();
    let (dom, console) = document(&browser, &page);
    assert!(!dom.contains("<title>it ran") && console.iter().any(|line| line.contains("Content Security Policy")));
}

//! A study of a program of the user's own by the command itself: the fastest batch runs well for as long as any trial, and is
//! refused for the step in which its run breaks; the next best is soaked and recommended.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The program says its times and its memory by a formula, so that the fastest is the largest whatever the machine does. The
/// seed decides the lengths that are forecast.
fn config() -> String {
    let trainer = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_trainer.py");
    format!(
        "device: cpu\nseed: 1\n\
         command:\n  run: [python3, {trainer}, --batch-size, {{batch_size}}, --steps, {{steps}}, \
         \"--accumulation-steps={{accumulation_steps}}\", \"--sequence-length={{sequence_length}}\", \
         --min-length=16, --max-length=128, --bytes-per-sample=6291456, --uneven]\n\
         data: {{sequence_length: {{min: 16, max: 128}}}}\ntarget: {{batch_size: 16}}\n\
         search: {{accumulation_steps: [1, 2], loader_workers: [0], alloc_conf: []}}\n\
         trial: {{steps: 4, soak_steps: 20}}\nmemory: {{limit: 1GiB}}\nsafety: {{horizon_steps: 400}}\n"
    )
}

fn tune(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tune"))
        .args(["--config", "model.yaml", "--study", "study"])
        .args(arguments)
        .current_dir(folder)
        .env_remove("PYTORCH_CUDA_ALLOC_CONF")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn found(folder: &Path) -> Value {
    serde_yaml::from_str(&std::fs::read_to_string(folder.join("recommendation.yaml")).unwrap()).unwrap()
}

fn entries(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("study/journal.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The batch sizes of the entries of a kind.
fn sizes<'a>(entries: &'a [Value], kind: &'a str) -> impl Iterator<Item = u64> + 'a {
    entries.iter().filter(move |entry| entry["entry"] == kind).filter_map(|entry| entry["point"]["batch_size"].as_u64())
}

#[test]
fn the_best_batch_is_refused_for_the_step_in_which_its_run_breaks_and_the_next_best_is_proved() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.yaml"), config()).unwrap();
    let table = tune(folder.path(), &[]);
    let found = found(folder.path());
    assert_eq!((&found["status"], &found["recommended"]["batch_size"]), (&"safe".into(), &8.into()), "{table}");

    let entries = entries(folder.path());
    let run = |size: u64| {
        let of_size = |entry: &&Value| entry["entry"] == "whole_run" && entry["point"]["batch_size"] == size;
        entries.iter().find(of_size).unwrap()["outlook"].clone()
    };
    let step = run(16)["breach"]["step"].as_u64().unwrap();
    assert!(run(8)["breach"].is_null(), "{}", run(8));
    let rejected = found["rejected"].as_array().unwrap();
    let reason = rejected.iter().find(|other| other["batch_size"] == 16).unwrap()["reason"].as_str().unwrap();
    assert!(reason.starts_with("its whole run breaks by forecast: "), "{reason}");
    assert!(reason.contains(&format!("at step {step}, ")) && reason.contains("(hint: with `data."), "{reason}");
    let speed = |size: u64| {
        let measured = |entry: &&Value| {
            let spec = &entry["record"]["spec"];
            spec["point"]["batch_size"] == size && spec["purpose"] != "probe" && spec["purpose"] != "soak"
        };
        entries.iter().find(measured).unwrap()["record"]["measurement"]["samples_per_second"].as_f64().unwrap()
    };
    assert!(speed(16) > speed(8), "what was refused is the faster one");
    let soaks = entries.iter().filter(|entry| entry["record"]["spec"]["purpose"] == "soak");
    assert_eq!(soaks.map(|soak| soak["record"]["spec"]["point"]["batch_size"].as_u64()).collect::<Vec<_>>(), [Some(8)]);

    // What other shapes would do is told of both, and that none of it was run.
    assert_eq!(sizes(&entries, "remedies").collect::<Vec<_>>(), [16, 8]);
    let others = found["alternatives"].as_array().unwrap();
    let by_forecast = || others.iter().filter(|other| other["basis"] == "forecast");
    for size in [8, 16] {
        let of_size = || by_forecast().filter(|other| other["batch_size"] == size);
        assert!(of_size().count() > 0, "{found:#}");
        assert!(of_size().all(|other| other["remedy"]["as_it_is"]["breach"].is_null() == (size == 8)), "{found:#}");
    }
    // Nobody counts the samples of the program.
    assert!(by_forecast().all(|other| other["remedy"]["run"]["epoch_steps"].is_null()), "{found:#}");
    assert!(table.contains("By forecast, not proved: batch size 8 × 2 with "), "{table}");
    assert!(table.contains("By forecast, not proved: batch size 16 × 1 with "), "{table}");
    let page = std::fs::read_to_string(folder.path().join("study/report.html")).unwrap();
    assert!(page.contains("Other shapes, by forecast") && page.contains("Other shapes for batch 16 × 1"), "the page");

    // All of it is in the journal: what goes on from there plays nothing again and says the same.
    let journal = folder.path().join("study/journal.jsonl");
    let text = std::fs::read_to_string(&journal).unwrap();
    let cut =
        text.lines().position(|line| line.contains("\"entry\":\"remedies\"") && line.contains("\"batch_size\":8"));
    let kept: Vec<&str> = text.lines().take(cut.unwrap() + 1).collect();
    std::fs::write(&journal, kept.join("\n") + "\n").unwrap();
    tune(folder.path(), &["--resume"]);
    let resumed = self::found(folder.path());
    assert_eq!((&resumed["recommended"], &resumed["alternatives"]), (&found["recommended"], &found["alternatives"]));
    assert_eq!(sizes(&self::entries(folder.path()), "remedies").count(), 2);
}

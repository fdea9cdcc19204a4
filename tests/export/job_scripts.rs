//! The job scripts of `examples/`, with the real `tune` on the CPU and stand-ins for Slurm.

use std::process::Output;

use serde_json::{Value, json};

use crate::support::{Bench, SMALL_CONFIG, repository, text_of, with};

/// What a job's command finds. Which pair makes up the target is a matter of speed, and not for a test.
const SHOW: &str = "echo $((TUNE_BATCH_SIZE * TUNE_ACCUMULATION_STEPS)) $TUNE_EFFECTIVE_BATCH_SIZE $TUNE_STATUS";

/// An empty folder with a configuration.
fn bench(more: &str) -> Bench {
    let bench = Bench::new(&json!({}));
    std::fs::remove_file(bench.path("recommendation.yaml")).unwrap();
    bench.write("small.yaml", &format!("{SMALL_CONFIG}{more}"));
    bench
}

/// Submits a command with the Slurm example.
fn submit(bench: &Bench, command: &[&str]) -> Output {
    let script = repository().join("examples/slurm/tune_and_train.sbatch");
    let mut sbatch = bench.command("sbatch");
    sbatch.arg(script).arg("small.yaml").args(command).env("STUB_LOG", bench.path("srun.log"));
    sbatch.output().unwrap()
}

/// The one answer that the example keeps.
fn answer(bench: &Bench) -> std::path::PathBuf {
    let entries = std::fs::read_dir(bench.path(".tune/answers")).unwrap();
    let mut answers =
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "yaml"));
    let answer = answers.next().unwrap();
    assert!(answers.next().is_none());
    answer
}

fn tuned(output: &Output) -> bool {
    text_of(&output.stderr).contains("trial 1")
}

#[test]
fn a_slurm_job_tunes_first_and_later_jobs_launch_at_once() {
    let bench = bench("");
    let first = submit(&bench, &["sh", "-c", SHOW, "a word with $(touch owned)"]);
    assert!(first.status.success() && tuned(&first), "{}", text_of(&first.stderr));
    assert_eq!(text_of(&first.stdout), "2 2 safe\n");
    bench.assert_nothing_ran("an argument");
    let log = std::fs::read_to_string(bench.path("srun.log")).unwrap();
    assert!(log.starts_with("srun --kill-on-bad-exit=1 sh -c"), "{log}");

    let second = submit(&bench, &["sh", "-c", SHOW]);
    assert!(second.status.success() && !tuned(&second), "{}", text_of(&second.stderr));
    assert_eq!(text_of(&second.stdout), "2 2 safe\n");

    // Another configuration, or an answer that is not safe any more, is tuned anew.
    std::fs::write(answer(&bench), serde_yaml::to_string(&with("/status", "unverified".into())).unwrap()).unwrap();
    let third = submit(&bench, &["sh", "-c", SHOW]);
    assert_eq!(text_of(&third.stdout), "2 2 safe\n", "{}", text_of(&third.stderr));
    bench.write("small.yaml", &SMALL_CONFIG.replace("batch_size: 2", "batch_size: 3"));
    let other = submit(&bench, &["sh", "-c", SHOW]);
    assert!(tuned(&other) && text_of(&other.stdout).ends_with("3 3 safe\n"), "{}", text_of(&other.stderr));
}

#[test]
fn a_slurm_job_ends_where_nothing_is_safe() {
    let bench = bench("memory: {limit: 100KiB}\n");
    let output = submit(&bench, &["echo", "launched"]);
    assert_eq!((output.status.code(), text_of(&output.stdout).as_str()), (Some(3), ""), "{output:?}");
    assert!(!bench.path("srun.log").exists());
}

#[test]
fn a_slurm_job_whose_answer_went_away_does_not_launch() {
    // A stand-in for `tune` that succeeds and writes nothing, as a full disk or a broken wrapper might.
    let bench = bench("");
    std::fs::create_dir(bench.path("bin")).unwrap();
    let wrapper = format!("#!/bin/sh\n[ \"$1\" != export ] || exec {} \"$@\"\n", env!("CARGO_BIN_EXE_tune"));
    let wrapper = bench.write("bin/tune", &wrapper);
    std::process::Command::new("chmod").arg("+x").arg(&wrapper).status().unwrap();
    let path = format!(
        "{}:{}:{}",
        bench.path("bin").display(),
        repository().join("tests/stubs").display(),
        std::env::var("PATH").unwrap()
    );
    let script = repository().join("examples/slurm/tune_and_train.sbatch");
    let output =
        bench.command("sbatch").env("PATH", path).arg(script).args(["small.yaml", "echo", "launched"]).output();
    let output = output.unwrap();
    assert_eq!((output.status.code(), text_of(&output.stdout).as_str()), (Some(2), ""), "{output:?}");
    assert!(text_of(&output.stderr).contains("cannot read"), "{output:?}");
}

#[test]
fn jobs_without_a_command_say_how_they_are_used() {
    let bench = bench("");
    assert_eq!(submit(&bench, &[]).status.code(), Some(2));
    let script = repository().join("examples/shell/train.sh");
    let output = bench.command("sh").arg(script).arg("small.yaml").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text_of(&output.stderr).contains("usage:"), "{output:?}");
}

#[test]
fn a_shell_job_knows_its_answer_again_and_replaces_a_stale_one() {
    let bench = bench("");
    let launch = || {
        let script = repository().join("examples/shell/train.sh");
        bench.command("sh").arg(script).args(["small.yaml", "sh", "-c", SHOW]).output().unwrap()
    };
    let first = launch();
    assert!(first.status.success() && tuned(&first), "{}", text_of(&first.stderr));
    let second = launch();
    assert!(second.status.success() && !tuned(&second), "{}", text_of(&second.stderr));
    assert!(text_of(&first.stdout).ends_with("\n2 2 safe\n"), "{first:?}");
    assert_eq!(first.stdout, second.stdout);
    let stale = serde_yaml::to_string(&with("/provenance/config_sha256", "0".into())).unwrap();
    bench.write("recommendation.yaml", &stale);
    assert_eq!(launch().stdout, first.stdout, "what is stale is replaced");
}

/// The scripts of the Kubernetes example, by name, with their configuration replaced.
fn kubernetes_scripts(bench: &Bench) {
    let text = std::fs::read_to_string(repository().join("examples/k8s/tune-and-train.yaml")).unwrap();
    let documents: Vec<Value> = serde_yaml::Deserializer::from_str(&text)
        .map(|document| serde::Deserialize::deserialize(document).unwrap())
        .collect();
    assert_eq!(
        documents.iter().map(|document| &document["kind"]).collect::<Vec<_>>(),
        ["ConfigMap", "PersistentVolumeClaim", "Job"]
    );
    for name in ["tune.sh", "train.sh"] {
        bench.write(name, documents[0]["data"][name].as_str().unwrap());
    }
    // The example's own configuration is one.
    bench.write("model.yaml", documents[0]["data"]["model.yaml"].as_str().unwrap());
    bench.run(env!("CARGO_BIN_EXE_tune"), &["check", "--config", "model.yaml"]);
    let pod = &documents[2]["spec"]["template"]["spec"];
    assert_eq!(pod["initContainers"][0]["command"], json!(["/bin/sh", "/etc/tune/tune.sh"]));
    assert_eq!(pod["initContainers"][0]["volumeMounts"], pod["containers"][0]["volumeMounts"]);
}

#[test]
fn a_kubernetes_job_tunes_in_its_init_container_and_trains_in_the_other() {
    let bench = bench("");
    kubernetes_scripts(&bench);
    std::fs::create_dir(bench.path("answers")).unwrap();
    let run = |script: &str, pod: &str, command: &[&str]| {
        let mut shell = bench.command("sh");
        shell.env("TUNE_CONFIG", bench.path("small.yaml")).env("TUNE_ANSWERS", bench.path("answers"));
        shell.env("TUNE_RECOMMENDATION", bench.path(pod)).arg(script).args(command).output().unwrap()
    };
    let early = run("train.sh", "first.yaml", &["echo", "launched"]);
    assert_eq!((early.status.code(), text_of(&early.stdout).as_str()), (Some(2), ""), "{early:?}");

    let first = run("tune.sh", "first.yaml", &[]);
    assert!(first.status.success() && tuned(&first), "{}", text_of(&first.stderr));
    let trained = run("train.sh", "first.yaml", &["sh", "-c", SHOW]);
    assert_eq!(text_of(&trained.stdout), "2 2 safe\n", "{trained:?}");

    let second = run("tune.sh", "second.yaml", &[]);
    assert!(second.status.success() && !tuned(&second), "{}", text_of(&second.stderr));
    let trained = run("train.sh", "second.yaml", &["sh", "-c", SHOW]);
    assert_eq!(text_of(&trained.stdout), "2 2 safe\n", "{trained:?}");
}

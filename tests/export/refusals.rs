//! What is not exported: values without a place, recommendations that cannot be right, and questions without an answer.

use serde_json::{Value, json};

use crate::support::{Bench, recommendation, with};

#[test]
fn a_value_that_a_format_cannot_hold_names_itself() {
    let cases: [(&str, &str, Value, &str); 13] = [
        ("hf", "/recommended/precision", "bf16".into(), "`precision: bf16`"),
        ("accelerate", "/recommended/precision", "f16".into(), "`precision: f16`"),
        ("deepspeed", "/recommended/precision", "bf16".into(), "`precision: bf16`"),
        ("hf", "/recommended/trim", "after_eval".into(), "`trim: after_eval`"),
        ("lightning", "/recommended/trim", "after_update".into(), "`trim: after_update`"),
        ("deepspeed", "/recommended/trim", "every_k".into(), "`trim: every_k`"),
        ("lightning", "/recommended/gradient_checkpointing", "blocks".into(), "`gradient_checkpointing: blocks`"),
        ("accelerate", "/recommended/gradient_checkpointing", "blocks".into(), "`gradient_checkpointing: blocks`"),
        ("torch", "/recommended/prefetch_depth", 0.into(), "`prefetch_depth: 0`"),
        ("hf", "/recommended/prefetch_depth", 0.into(), "`prefetch_depth: 0`"),
        ("env", "/recommended/allocator/conf", "a\0b".into(), "`PYTORCH_CUDA_ALLOC_CONF`"),
        ("slurm", "/recommended/allocator/conf", "a\0b".into(), "`PYTORCH_CUDA_ALLOC_CONF`"),
        ("k8s", "/recommended/allocator/conf", "a\0b".into(), "`PYTORCH_CUDA_ALLOC_CONF`"),
    ];
    for (format, path, value, words) in cases {
        let error = Bench::new(&with(path, value)).refused(&["--format", format], 2);
        assert!(error.contains(words), "{format}: {error}");
    }
    // More than the whole card.
    let mut beyond = with("/recommended/allocator/limit_bytes", (81_u64 << 30).into());
    beyond["measured"]["limit_bytes"] = (81_u64 << 30).into();
    let error = Bench::new(&beyond).refused(&["--format", "torch"], 2);
    assert!(error.contains("`allocator.limit_bytes: 86973087744`"), "{error}");
}

#[test]
fn a_recommendation_that_cannot_be_right_is_refused() {
    let cases: [(&str, Value, &str); 20] = [
        ("/checks", json!([]), "`checks` is empty"),
        ("/measured/peak_reserved_bytes", (41_u64 << 30).into(), "is above `limit_bytes: 42949672960`"),
        ("/recommended/allocator/limit_bytes", (41_u64 << 30).into(), "is not the limit that was measured under"),
        ("/measured/samples_per_second", (-1.0).into(), "`measured.samples_per_second`"),
        ("/measured/fragmentation/max", (-0.5).into(), "`measured.fragmentation.max`"),
        ("/recommended/loader_workers", 1025.into(), "`loader_workers: 1025` is over 1024"),
        ("/recommended/batch_size", 0.into(), "`batch_size` is 0"),
        ("/recommended/accumulation_steps", 0.into(), "`accumulation_steps` is 0"),
        ("/recommended/effective_batch_size", 0.into(), "`effective_batch_size` is 0"),
        ("/recommended/allocator/limit_bytes", 0.into(), "`allocator.limit_bytes` is 0"),
        ("/recommended/effective_batch_size", 48.into(), "`effective_batch_size: 48` is not"),
        // A multiple of 8 × 4 is no number of replicas.
        ("/recommended/effective_batch_size", 96.into(), "`effective_batch_size: 96` is not"),
        ("/recommended/replicas", 0.into(), "`replicas` is 0"),
        ("/recommended/batch_size", u64::MAX.into(), "× `replicas: 2`"),
        ("/recommended/loader_workers", 0.into(), "`prefetch_depth: 3` needs loader workers"),
        ("/recommended/gradient_checkpointing", "auto".into(), "`gradient_checkpointing: auto`"),
        ("/recommended", Value::Null, "`status: safe` goes with a configuration"),
        ("/measured", Value::Null, "`measured` is null"),
        ("/checks/0/passed", false.into(), "`completion` did not"),
        ("/status", "none".into(), "`recommended: null`"),
    ];
    for (path, value, words) in cases {
        let error = Bench::new(&with(path, value)).refused(&[], 2);
        assert!(error.contains(words) && error.contains("recommendation.yaml"), "{path}: {error}");
    }
    let bench = Bench::new(&recommendation());
    let text = serde_yaml::to_string(&recommendation()).unwrap();
    for figure in [".nan", ".inf"] {
        bench.write(
            "recommendation.yaml",
            &text.replace("samples_per_second: 12.5", &format!("samples_per_second: {figure}")),
        );
        let error = bench.refused(&[], 2);
        assert!(error.contains("`measured.samples_per_second`"), "{figure}: {error}");
    }
    let error = Bench::new(&with("/recommended/batch_size", (-1).into())).refused(&[], 2);
    assert!(error.contains("batch_size"), "{error}");
}

#[test]
fn what_is_not_safe_or_stale_is_not_launched() {
    let unverified = Bench::new(&with("/status", "unverified".into()));
    assert!(unverified.refused(&["--format", "torch"], 3).contains("`unverified`"));
    let mut none = with("/status", "none".into());
    none["recommended"] = Value::Null;
    assert!(Bench::new(&none).refused(&["--format", "slurm"], 3).contains("`none`"));
    let stale = Bench::new(&recommendation());
    let config = crate::support::repository().join("configs/quickstart.yaml");
    assert!(stale.refused(&["--config", &config.display().to_string()], 3).contains("stale"));
}

#[test]
fn changes_of_a_configuration_need_one() {
    let bench = Bench::new(&recommendation());
    for change in [["--set", "seed=1"], ["--limit", "1GiB"], ["--device", "cpu"], ["--budget", "1m"]] {
        let error = bench.refused(&change, 2);
        assert!(error.contains("--config <FILE>"), "{change:?}: {error}");
    }
}

#[test]
fn only_deepspeed_is_merged_and_only_into_its_configuration() {
    let bench = Bench::new(&recommendation());
    bench.write("ds.json", "{}");
    bench.write("list.json", "[1]");
    bench.write("broken.json", "{\"a\": 1,\n}");
    bench.write("text.json", r#"{"bf16": "auto"}"#);
    let into = |format: &str, file: &str| bench.refused(&["--format", format, "--into", file], 2);
    assert!(into("hf", "ds.json").contains("`--format deepspeed`"));
    assert!(into("deepspeed", "list.json").contains("`$` of the file"));
    assert!(into("deepspeed", "broken.json").contains("`broken.json` is not JSON: line 2 column 1"));
    assert!(into("deepspeed", "text.json").contains("`bf16` of the file"));
    for (text, words) in [
        (r#"{"optimizer": {"params": {"lr": 0.10000000000000000000001}}}"#, "the number at `optimizer.params.lr`"),
        (r#"{"fp16": {}, "fp16": {}}"#, "has `fp16` twice"),
        (&"[".repeat(1000), "nested too deeply"),
    ] {
        bench.write("lossy.json", text);
        let error = into("deepspeed", "lossy.json");
        assert!(error.contains(words), "{error}");
    }
    assert!(into("deepspeed", "missing.json").contains("cannot read `missing.json`"));
}

#[test]
fn an_output_is_whole_or_not_there() {
    let bench = Bench::new(&recommendation());
    let output = bench.tune_export(&["--output", "tune.env"]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert_eq!(std::fs::read_to_string(bench.path("tune.env")).unwrap(), bench.exported("env"));

    // What cannot be exported leaves the earlier file alone.
    let before = std::fs::read_to_string(bench.path("tune.env")).unwrap();
    let bad = serde_yaml::to_string(&with("/status", "unverified".into())).unwrap();
    bench.write("bad.yaml", &bad);
    bench.refused(&["bad.yaml", "--output", "tune.env"], 3);
    assert_eq!(std::fs::read_to_string(bench.path("tune.env")).unwrap(), before);

    assert!(bench.refused(&["--output", "./recommendation.yaml"], 2).contains("is the recommendation itself"));
    assert!(bench.refused(&["--output", "no/such/folder"], 2).contains("cannot write `no/such/folder`"));
    // Through links, as a shell would: to a file, and to one that is not there yet.
    std::os::unix::fs::symlink("tune.env", bench.path("link")).unwrap();
    std::os::unix::fs::symlink("link-of-new", bench.path("to-new")).unwrap();
    std::os::unix::fs::symlink("new.env", bench.path("link-of-new")).unwrap();
    bench.write("tune.env", "old");
    for (link, file) in [("link", "tune.env"), ("to-new", "new.env")] {
        assert!(bench.tune_export(&["--output", link]).status.success());
        assert!(bench.path(link).is_symlink() && !bench.path(file).is_symlink());
        assert_eq!(std::fs::read_to_string(bench.path(file)).unwrap(), bench.exported("env"));
    }
    let left: Vec<_> = std::fs::read_dir(bench.path(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 7, "{left:?}");
}

#[test]
fn an_answer_of_the_search_passes_the_validation() {
    let bench = Bench::new(&json!({}));
    bench.write("small.yaml", crate::support::SMALL_CONFIG);
    bench.run(env!("CARGO_BIN_EXE_tune"), &["--quiet", "--config", "small.yaml"]);
    for format in ["env", "args", "json", "torch", "hf", "accelerate", "lightning", "deepspeed", "slurm", "k8s"] {
        let output = bench.tune_export(&["--format", format, "--config", "small.yaml"]);
        assert!(output.status.success(), "{format}: {output:?}");
    }
    let text = std::fs::read_to_string(bench.path("recommendation.yaml")).unwrap();
    assert!(!text.contains("replicas"), "{text}");
    let edited = text.replace("effective_batch_size: 2", "effective_batch_size: 4");
    bench.write("recommendation.yaml", &edited);
    bench.refused(&[], 2);
    let edited = edited.replace("effective_batch_size: 4", "effective_batch_size: 4\n  replicas: 2");
    bench.write("recommendation.yaml", &edited);
    let error = bench.refused(&["--config", "small.yaml"], 2);
    assert!(error.contains("for 2 replicas") && error.contains("`target.replicas` is 1"), "{error}");
}

#[test]
fn batches_that_do_not_fit_into_shared_memory_are_told_of_on_the_host_that_they_were_measured_on() {
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let notes = |format: &str, batch_bytes: Value, hostname: &str| {
        let mut measured = with("/environment/hostname", hostname.into());
        measured["measured"]["batch_bytes"] = batch_bytes;
        let output = Bench::new(&measured).tune_export(&["--format", format]);
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stderr).unwrap()
    };
    let here = hostname.trim();
    for format in ["torch", "hf", "lightning", "env"] {
        let note = notes(format, (1_u64 << 50).into(), here);
        assert!(note.contains("keep 6.0 PiB in /dev/shm (1.0 PiB a batch × 2 workers × 3)"), "{format}: {note}");
        for (bytes, host) in [(1.into(), here), (Value::Null, here), ((1_u64 << 50).into(), "another")] {
            assert!(!notes(format, bytes, host).contains("/dev/shm"), "{format}");
        }
    }
}

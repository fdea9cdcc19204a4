//! One test a format: what was exported is read by the program that it is for.

use serde_json::{Value, json};

use crate::support::{Bench, HOSTILE, drives_a_terminal, hostile, recommendation, text_of, variables, with};

/// What every launch gets in its environment.
fn expect_environment(read: &std::collections::BTreeMap<String, String>, conf: &str) {
    let expected = [
        ("TUNE_BATCH_SIZE", "8"),
        ("TUNE_ACCUMULATION_STEPS", "4"),
        ("TUNE_EFFECTIVE_BATCH_SIZE", "64"),
        ("TUNE_LOADER_WORKERS", "2"),
        ("TUNE_PREFETCH_DEPTH", "3"),
        ("TUNE_DEVICE_PREFETCH", "0"),
        ("TUNE_PIN_MEMORY", "true"),
        ("TUNE_PRECISION", "mixed_bf16"),
        ("TUNE_GRADIENT_CHECKPOINTING", "none"),
        ("TUNE_BATCH_NORM", "train"),
        ("TUNE_TRIM", "never"),
        ("TUNE_LIMIT_BYTES", "42949672960"),
        ("TUNE_STATUS", "safe"),
        ("PYTORCH_CUDA_ALLOC_CONF", conf),
    ];
    for (name, value) in expected {
        assert_eq!(read.get(name).map(String::as_str), Some(value), "{name}");
    }
}

#[test]
fn shells_evaluate_assignments_and_nothing_else() {
    for text in HOSTILE {
        let bench = Bench::new(&hostile(text));
        if drives_a_terminal(text) {
            assert!(bench.refused(&["--format", "env"], 2).contains("`PYTORCH_CUDA_ALLOC_CONF`"), "{text:?}");
            continue;
        }
        bench.write("tune.env", &bench.exported("env"));
        for shell in ["sh", "bash"] {
            let environment = bench.run(shell, &["-euc", "tune_env=$(cat tune.env)\neval \"$tune_env\"\nexec env -0"]);
            expect_environment(&variables(&environment), text);
            bench.assert_nothing_ran(text);
        }
    }
}

#[test]
fn the_shell_splits_arguments_and_argparse_takes_them() {
    const PARSER: &str = "
import argparse, json
parser = argparse.ArgumentParser(allow_abbrev=False)
for name in ('batch-size', 'accumulation-steps', 'loader-workers', 'prefetch-depth'):
    parser.add_argument('--' + name, type=int)
parser.add_argument('--precision', default='f32')
parser.add_argument('--pin-memory', action='store_true')
parser.add_argument('--gradient-checkpointing', action=argparse.BooleanOptionalAction, default=False)
print(json.dumps(vars(parser.parse_args())))
";
    for text in HOSTILE {
        let bench = Bench::new(&hostile(text));
        let line = bench.exported("args");
        assert_eq!(line.matches('\n').count(), 1);
        bench.write("parser.py", PARSER);
        let script = format!("eval \"set -- {}\"; exec python3 parser.py \"$@\"", line.trim_end());
        let read: Value = serde_json::from_str(&bench.run("sh", &["-euc", &script])).unwrap();
        let expected = json!({
            "batch_size": 8, "accumulation_steps": 4, "loader_workers": 2, "prefetch_depth": 3,
            "precision": "mixed_bf16", "pin_memory": true, "gradient_checkpointing": false
        });
        assert_eq!(read, expected);
        bench.assert_nothing_ran(text);
    }
}

#[test]
fn arguments_say_only_what_is_not_as_usual() {
    let mut usual = with("/recommended/precision", "f32".into());
    usual["recommended"]["loader_workers"] = 0.into();
    usual["recommended"]["prefetch_depth"] = 0.into();
    usual["recommended"]["pin_memory"] = false.into();
    let line = Bench::new(&usual).exported("args");
    assert_eq!(line, "--batch-size 8 --accumulation-steps 4 --loader-workers 0\n");

    let mut unusual = with("/recommended/trim", "after_update".into());
    unusual["recommended"]["gradient_checkpointing"] = "blocks".into();
    unusual["recommended"]["batch_norm"] = "sync".into();
    unusual["recommended"]["device_prefetch"] = 1.into();
    let line = Bench::new(&unusual).exported("args");
    assert_eq!(
        line,
        "--batch-size 8 --accumulation-steps 4 --loader-workers 2 --prefetch-depth 3 --device-prefetch 1 --precision mixed_bf16 --batch-norm sync --trim after_update --gradient-checkpointing --pin-memory\n"
    );
}

#[test]
fn python_reads_the_whole_recommendation_as_json() {
    for text in HOSTILE {
        let expected = hostile(text);
        let bench = Bench::new(&expected);
        let exported = bench.exported("json");
        assert!(!exported.contains(|c: char| c.is_control() && c != '\n'), "{exported:?}");
        bench.write("recommendation.json", &exported);
        let mut read = bench.python("import json; print(json.dumps(json.load(open('recommendation.json'))))");
        // Fields with a default, which the file may leave out.
        read["checks"][0].as_object_mut().unwrap().remove("warning");
        read["measured"]["fragmentation"].as_object_mut().unwrap().remove("native");
        assert_eq!(read, expected);
    }
}

#[test]
fn python_imports_the_settings_module_and_applies_it() {
    const SCRIPT: &str = "
import json, os, sys
sys.path.insert(0, '.')
import tune_settings
assert 'torch' not in sys.modules, 'importing settings must import nothing'
values = {name: getattr(tune_settings, name) for name in dir(tune_settings) if name.isupper()}
tune_settings.apply()
import torch
values['applied'] = [torch.cuda.fraction, torch.cuda.conf_when_limited]
print(json.dumps(values))
";
    for text in HOSTILE {
        let bench = Bench::new(&hostile(text));
        let output = bench.tune_export(&["--format", "torch", "--output", "tune_settings.py"]);
        assert!(output.status.success() && output.stdout.is_empty());
        let read = bench.python(SCRIPT);
        let loader = json!({
            "batch_size": 8, "num_workers": 2, "prefetch_factor": 3, "persistent_workers": true, "pin_memory": true
        });
        assert_eq!(read["DATALOADER"], loader);
        assert_eq!((&read["ALLOC_CONF"], &read["DEVICE_NAME"]), (&json!(text), &json!(text)));
        assert_eq!((&read["PRECISION"], &read["BATCH_NORM"]), (&json!("mixed_bf16"), &json!("train")));
        assert_eq!((&read["MEMORY_FRACTION"], &read["LIMIT_BYTES"]), (&json!(0.5), &json!(40_u64 << 30)));
        assert_eq!(read["applied"], json!([0.5, text]));
        bench.assert_nothing_ran(text);
    }
}

#[test]
fn settings_without_a_card_and_without_workers_ask_for_neither() {
    let mut on_cpu = with("/environment/device", "cpu".into());
    on_cpu["recommended"]["loader_workers"] = 0.into();
    on_cpu["recommended"]["prefetch_depth"] = 0.into();
    on_cpu["recommended"]["allocator"]["conf"] = Value::Null;
    let bench = Bench::new(&on_cpu);
    bench.write("tune_settings.py", &bench.exported("torch"));
    let read = bench.python(
        "import json, sys; sys.path.insert(0, '.'); import tune_settings as t; t.apply(); assert 'torch' not in sys.modules; print(json.dumps([t.DATALOADER, t.MEMORY_FRACTION, t.ALLOC_CONF]))",
    );
    let loader = json!({"batch_size": 8, "num_workers": 0, "persistent_workers": false, "pin_memory": true});
    assert_eq!(read, json!([loader, null, null]));
}

#[test]
fn python_reads_training_arguments() {
    for text in HOSTILE {
        let bench = Bench::new(&hostile(text));
        bench.write("hf.json", &bench.exported("hf"));
        let read = bench.python("import json; print(json.dumps(json.load(open('hf.json'))))");
        let expected = json!({
            "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "bf16": true,
            "dataloader_num_workers": 2, "dataloader_prefetch_factor": 3, "dataloader_persistent_workers": true,
            "dataloader_pin_memory": true
        });
        assert_eq!(read, expected);
    }
}

#[test]
fn training_arguments_follow_precision_recomputation_and_trimming() {
    let mut changed = with("/recommended/precision", "mixed_f16".into());
    changed["recommended"]["gradient_checkpointing"] = "blocks".into();
    changed["recommended"]["trim"] = "after_update".into();
    changed["recommended"]["loader_workers"] = 0.into();
    changed["recommended"]["prefetch_depth"] = 0.into();
    let read: Value = serde_json::from_str(&Bench::new(&changed).exported("hf")).unwrap();
    assert_eq!((&read["fp16"], read.get("bf16")), (&json!(true), None));
    assert_eq!((&read["gradient_checkpointing"], &read["torch_empty_cache_steps"]), (&json!(true), &json!(1)));
    assert_eq!((&read["dataloader_persistent_workers"], read.get("dataloader_prefetch_factor")), (&json!(false), None));
}

#[test]
fn accelerate_gets_the_keys_that_it_knows() {
    // `ClusterConfig` refuses any other (accelerate/commands/config/config_args.py).
    let known = "compute_environment distributed_type mixed_precision use_cpu debug num_processes machine_rank \
                 num_machines gpu_ids main_process_ip main_process_port rdzv_backend same_network main_training_function";
    let known: Vec<&str> = known.split_whitespace().collect();
    for text in HOSTILE {
        let read: Value = serde_yaml::from_str(&Bench::new(&hostile(text)).exported("accelerate")).unwrap();
        assert!(read.as_object().unwrap().keys().all(|key| known.contains(&key.as_str())), "{read:#}");
        assert_eq!((&read["num_processes"], &read["distributed_type"]), (&json!(2), &json!("MULTI_GPU")));
        assert_eq!((&read["mixed_precision"], &read["use_cpu"]), (&json!("bf16"), &json!(false)));
    }
    let alone = Bench::new(&crate::support::alone());
    let read: Value = serde_yaml::from_str(&alone.exported("accelerate")).unwrap();
    // In quotes: YAML 1.1, which accelerate reads, takes a bare NO for a boolean.
    assert_eq!(read["distributed_type"], "NO");
    assert!(alone.exported("accelerate").contains("distributed_type: \"NO\""));
}

#[test]
fn lightning_gets_a_file_to_lay_over_another() {
    for text in HOSTILE {
        let read: Value = serde_yaml::from_str(&Bench::new(&hostile(text)).exported("lightning")).unwrap();
        let expected = json!({
            "trainer": {"accumulate_grad_batches": 4, "precision": "bf16-mixed"},
            "data": {"init_args": {
                "batch_size": 8, "num_workers": 2, "prefetch_factor": 3, "persistent_workers": true, "pin_memory": true
            }}
        });
        assert_eq!(read, expected);
    }
    for (precision, name) in [("bf16", json!("bf16-true")), ("f16", json!("16-true")), ("f32", Value::Null)] {
        let text = Bench::new(&with("/recommended/precision", precision.into())).exported("lightning");
        let read: Value = serde_yaml::from_str(&text).unwrap();
        assert_eq!(read["trainer"]["precision"], name);
    }
    let sync = Bench::new(&with("/recommended/batch_norm", "sync".into()));
    let read: Value = serde_yaml::from_str(&sync.exported("lightning")).unwrap();
    assert_eq!(read["trainer"]["sync_batchnorm"], true);
}

#[test]
fn deepspeed_settings_are_merged_and_the_rest_is_kept() {
    for text in HOSTILE {
        let base = json!({
            "train_batch_size": "auto", "gradient_clipping": 1.0, "fp16": {"enabled": true, "loss_scale": 0},
            "zero_optimization": {"stage": 2, "note": text}, text: [text]
        });
        let bench = Bench::new(&hostile(text));
        bench.write("ds.json", &base.to_string());
        // In place: the file is replaced as a whole.
        let output = bench.tune_export(&["--format", "deepspeed", "--into", "ds.json", "--output", "ds.json"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let read = bench.python("import json; print(json.dumps(json.load(open('ds.json'))))");
        let expected = json!({
            "train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 4,
            "gradient_clipping": 1.0, "bf16": {"enabled": true}, "fp16": {"enabled": false, "loss_scale": 0},
            "zero_optimization": {"stage": 2, "note": text}, text: [text]
        });
        assert_eq!(read, expected);
    }
    let alone: Value = serde_json::from_str(&Bench::new(&recommendation()).exported("deepspeed")).unwrap();
    assert_eq!((&alone["train_batch_size"], &alone["bf16"]), (&json!(64), &json!({"enabled": true})));
}

#[test]
fn f32_leaves_deepspeeds_types_alone() {
    let bench = Bench::new(&with("/recommended/precision", "f32".into()));
    bench.write("ds.json", r#"{"bf16": {"enabled": true}}"#);
    let output = bench.tune_export(&["--format", "deepspeed", "--into", "ds.json"]);
    let read: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(read["bf16"], json!({"enabled": true}));
    let note = "note: the file keeps `bf16` enabled, and the recommendation has `precision: f32`";
    assert!(text_of(&output.stderr).contains(note), "{output:?}");
    bench.write("ds.json", r#"{"bf16": {"enabled": false}}"#);
    let output = bench.tune_export(&["--format", "deepspeed", "--into", "ds.json"]);
    assert!(!text_of(&output.stderr).contains("the file keeps"), "{output:?}");
}

#[test]
fn the_batch_script_launches_with_the_settings() {
    for text in HOSTILE {
        let bench = Bench::new(&hostile(text));
        if drives_a_terminal(text) {
            assert!(bench.refused(&["--format", "slurm"], 2).contains("`PYTORCH_CUDA_ALLOC_CONF`"), "{text:?}");
            continue;
        }
        bench.write("tuned.sbatch", &bench.exported("slurm"));
        let environment = bench.run("sbatch", &["tuned.sbatch", "env", "-0"]);
        let read = variables(&environment);
        expect_environment(&read, text);
        assert_eq!(read["SRUN_CPUS_PER_TASK"], "3", "two workers and the loop");
        bench.assert_nothing_ran(text);
    }
    let bench = Bench::new(&recommendation());
    let script = bench.exported("slurm");
    assert!(script.contains("\n#SBATCH --ntasks=2\n") && script.contains("\n#SBATCH --gpus-per-task=1\n"), "{script}");
    bench.write("tuned.sbatch", &script);
    let nothing = bench.command("sbatch").arg("tuned.sbatch").output().unwrap();
    assert_eq!(nothing.status.code(), Some(2));
}

/// `$(NAME)` as Kubernetes replaces it in a container's `env`: `$$` is a `$`, a name that is not set stays as written.
fn expand(value: &str, set: &[(String, String)]) -> String {
    let mut expanded = String::new();
    let mut rest = value;
    while let Some(start) = rest.find('$') {
        expanded.push_str(&rest[..start]);
        rest = &rest[start + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            expanded.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            let known = set.iter().rev().find(|(known, _)| known == name);
            expanded.push_str(&known.map_or_else(|| format!("$({name})"), |(_, value)| value.clone()));
            rest = after;
        } else {
            expanded.push('$');
        }
    }
    expanded + rest
}

#[test]
fn kubernetes_gets_strings_and_expands_none() {
    for text in HOSTILE {
        let read: Value = serde_yaml::from_str(&Bench::new(&hostile(text)).exported("k8s")).unwrap();
        let mut set: Vec<(String, String)> = Vec::new();
        for entry in read.as_array().unwrap() {
            assert_eq!(entry.as_object().unwrap().len(), 2);
            let value = expand(entry["value"].as_str().expect("the API takes strings only"), &set);
            set.push((entry["name"].as_str().unwrap().to_owned(), value));
        }
        expect_environment(&set.into_iter().collect(), text);
    }
}

#[test]
fn batch_normalisation_under_accumulation_is_warned_of() {
    for format in ["torch", "hf", "accelerate", "lightning", "deepspeed", "slurm", "k8s"] {
        let said = |recommendation: &Value| {
            let output = Bench::new(recommendation).tune_export(&["--format", format]);
            crate::support::text_of(&output.stderr)
        };
        let over_replicas = said(&recommendation());
        assert!(over_replicas.contains("micro-batches of 8, not over 64"), "{format}");
        assert!(over_replicas.contains("torch.nn.SyncBatchNorm for those of all replicas"), "{format}");
        let alone = said(&crate::support::alone());
        assert!(alone.contains("`train.batch_norm: frozen`") && !alone.contains("SyncBatchNorm"), "{format}");
        let mut without = crate::support::alone();
        without["recommended"]["accumulation_steps"] = 1.into();
        without["recommended"]["effective_batch_size"] = 8.into();
        assert!(!said(&without).contains("batch normalisation"), "{format}");
        let sync = said(&with("/recommended/batch_norm", "sync".into()));
        assert_eq!(sync.contains("SyncBatchNorm"), format != "lightning", "{format}: {sync}");
    }
}

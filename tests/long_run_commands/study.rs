//! A whole study of such a program: settings of the allocator are searched for over the coming run, soaked, and held against
//! the program's own by a soak under those.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// Longer samples than the program shows at first: 64 tokens in its own trials and soaks, 128 in the run that is to come.
fn config(limit_mib: u32) -> String {
    let trainer = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_trainer.py");
    format!(
        "device: cpu\ncommand:\n  run: [python3, {trainer}, --batch-size, {{batch_size}}, --steps, {{steps}}, \
         \"--accumulation-steps={{accumulation_steps}}\", \"--sequence-length={{sequence_length}}\", --uneven, \
         --min-length=16, --max-length=64]\n\
         target: {{batch_size: 8}}\nmemory: {{limit: {limit_mib}MiB}}\ntrial: {{steps: 4, soak_steps: 20}}\n\
         data: {{sequence_length: {{min: 16, max: 128}}}}\nsearch: {{loader_workers: [0]}}\n\
         safety: {{horizon_steps: 120, fragmentation_threshold: 90%}}\n"
    )
}

struct Study {
    folder: tempfile::TempDir,
}

impl Study {
    fn new(limit_mib: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("train.yaml"), config(limit_mib)).unwrap();
        Self { folder }
    }

    /// What it said on standard output.
    fn run(&self, arguments: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_tune"))
            .args(["--config", "train.yaml", "--study", "study"])
            .args(arguments)
            .current_dir(self.folder.path())
            .env_remove("PYTORCH_CUDA_ALLOC_CONF")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn recommended(&self) -> Value {
        let text = std::fs::read_to_string(self.file("recommendation.yaml")).unwrap();
        let found: Value = serde_yaml::from_str(&text).unwrap();
        assert_eq!(found["status"], "safe", "{found:#}");
        found["recommended"].clone()
    }

    fn journal(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.file("study/journal.jsonl")).unwrap();
        text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The settings of the soaks, in order; `null` for the program's own.
    fn soaks(&self) -> Vec<Value> {
        let ended = self.journal().into_iter().filter(|entry| entry["entry"] == "trial_ended");
        let specs = ended.map(|mut entry| entry["record"]["spec"].take());
        specs.filter(|spec| spec["purpose"] == "soak").map(|mut spec| spec["point"]["alloc_conf"].take()).collect()
    }
}

fn entries<'a>(journal: &'a [Value], kind: &str) -> Vec<&'a Value> {
    journal.iter().filter(|entry| entry["entry"] == kind).collect()
}

const FOUND: &str = "expandable_segments:True";

#[test]
fn a_run_that_breaks_under_the_program_s_own_settings_keeps_its_batch_under_those_that_are_found() {
    let study = Study::new(366);
    let told = study.run(&["--json"]);
    let events: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_kind = |kind: &str| events.iter().filter(|event| event["event"] == kind).count();
    assert!(of_kind("allocator_tuning") > 0 && of_kind("allocator_tuned") == 1, "{told}");

    let found = study.recommended();
    assert_eq!((found["batch_size"].as_u64(), &found["allocator"]["conf"]), (Some(8), &Value::from(FOUND)));
    let reason = found["allocator"]["reason"].as_str().unwrap();
    assert!(reason.starts_with("`expandable_segments:True` holds "), "{reason}");
    for words in [
        "and survives 120 steps; `defaults` runs out of memory at step ",
        "; soaked: ",
        " under the program's own settings, whose run breaks at step ",
    ] {
        assert!(reason.contains(words), "{reason}");
    }
    assert_eq!(study.soaks(), [Value::from(FOUND), Value::Null]);
    let journal = study.journal();
    let searches = entries(&journal, "allocator_tuned");
    let [search] = searches[..] else { panic!("{searches:?}") };
    assert_eq!((&search["found"]["steps"], &search["found"]["conf"]), (&Value::from(120), &Value::from(FOUND)));
    assert!((10..=32).contains(&search["tried"].as_array().unwrap().len()), "{search:#}");
    let page = std::fs::read_to_string(study.file("study/report.html")).unwrap();
    assert!(page.contains("Settings of the allocator: ") && page.contains("one setting changed"));

    // Taken up where the search had ended, it does not search again.
    let text = std::fs::read_to_string(study.file("study/journal.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let cut = lines.iter().position(|line| line.starts_with("{\"entry\":\"allocator_tuned\"")).unwrap();
    std::fs::write(study.file("study/journal.jsonl"), format!("{}\n", lines[..=cut].join("\n"))).unwrap();
    study.run(&["--resume"]);
    assert_eq!(study.recommended(), found);
    assert_eq!(entries(&study.journal(), "allocator_tuned").len(), 1);
}

#[test]
fn settings_that_the_soaks_show_to_win_nothing_are_left_for_the_program_s_own() {
    let study = Study::new(440);
    let table = study.run(&[]);
    let found = study.recommended();
    assert_eq!((found["batch_size"].as_u64(), &found["allocator"]["conf"]), (Some(8), &Value::Null), "{table}");
    let reason = found["allocator"]["reason"].as_str().unwrap();
    let words = "`expandable_segments:True` holds less by replay, but soaked: 222.0 MiB reserved, 226.0 MiB under the \
                 program's own settings, which stay where nothing is won";
    assert_eq!(reason, words);
    assert!(table.contains(&format!("  allocator: {reason}\n")), "{table}");
    assert!(table.contains("8 × 1 [1]") && table.contains("[1]: with expandable_segments:True\n"), "{table}");
    assert_eq!(study.soaks(), [Value::from(FOUND), Value::Null]);
}

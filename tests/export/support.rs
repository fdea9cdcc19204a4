//! A recommendation to export, and programs that read what was exported.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

/// The repository, so that tests run from anywhere.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Texts that try to be more than a text. Each would make a file `owned` if anything ran it.
pub(crate) const HOSTILE: [&str; 20] = [
    "\u{1b}[2J\u{1b}]0;owned\u{7}",
    "日本 🚀 é\u{2028}\u{feff}",
    "it's \"quoted\" \\ and back\\",
    "$(touch owned)",
    "`touch owned`",
    "first\ntouch owned\n",
    "\r\ntouch owned\r\n",
    "'; touch owned; '",
    "'\"'\"'; touch owned #",
    "\"; touch owned; \"",
    "-rf --help",
    "日本 🚀 é\u{85}\u{2028}\u{feff}",
    "\"\nimport os; os.system('touch owned') #",
    "\"\"\"\nimport os\nos.system('touch owned')\n\"\"\"",
    "coding: utf-7 +AAo-import os+AAo-os.system('touch owned')+AAo-#",
    "{__import__('os').system('touch owned')}",
    "${HOME} $$ $$$(TUNE_STATUS) $1 %s %n",
    "off",
    "!!python/object/apply:os.system ['touch owned']",
    "x\n#SBATCH --wrap=\"touch owned\"\n- name: PATH\n  value: .\n---\n",
];

/// Whether a terminal would obey a text, so that no shell script is made of it.
pub(crate) fn drives_a_terminal(text: &str) -> bool {
    text.contains(|c: char| c.is_control() && !"\n\t".contains(c))
}

/// A safe recommendation, as made on a card for a PyTorch program.
pub(crate) fn recommendation() -> Value {
    json!({
        "schema": "batchtune/recommendation/v1",
        "status": "safe",
        "recommended": {
            "batch_size": 8, "accumulation_steps": 4, "effective_batch_size": 64, "replicas": 2,
            "loader_workers": 2, "prefetch_depth": 3, "device_prefetch": 0, "pin_memory": true,
            "precision": "mixed_bf16", "gradient_checkpointing": "none", "batch_norm": "train", "trim": "never",
            "allocator": {
                "backend": "native", "release_threshold": null, "limit_bytes": 40_u64 << 30,
                "conf": "expandable_segments:True"
            }
        },
        "measured": {
            "samples_per_second": 12.5, "step_ms": {"p50": 1.0, "p95": 2.0}, "data_wait_fraction": 0.01,
            "peak_allocated_bytes": 1, "peak_reserved_bytes": 2, "limit_bytes": 40_u64 << 30, "headroom_bytes": 3,
            "largest_satisfiable_bytes": 4, "largest_request_bytes": 5, "allocated_blocks": 6,
            "fragmentation": {"metric": "peak", "max": 0.1, "last": 0.1, "threshold": 0.3},
            "steps": 50, "first_loss": 5.0, "last_loss": 4.0
        },
        "checks": [{"rule": "completion", "value": null, "limit": null, "passed": true, "reason": "all ran"}],
        "forecast": null, "alternatives": [], "rejected": [], "warnings": [],
        "environment": {
            "device": "cuda:0", "name": "NVIDIA H200", "total_bytes": 80_u64 << 30, "free_bytes": 79_u64 << 30,
            "external_bytes": 0, "limit_bytes": 40_u64 << 30, "allocator": "native", "cpus": 8, "hostname": "node1"
        },
        "provenance": {
            "config_sha256": "d9f588398eccd3410d055f2c41387b0878ab6cfbd4140e4958333d6be67dc527", "version": "0.1.0",
            "seed": 0, "started": "2026-11-29T21:28:50Z", "seconds": 1.0, "trials": 6, "oom_trials": 0
        }
    })
}

/// The recommendation with one of its values changed, by the path of its keys.
pub(crate) fn with(path: &str, value: Value) -> Value {
    let mut changed = recommendation();
    *changed.pointer_mut(path).unwrap() = value;
    changed
}

/// The recommendation for one device.
pub(crate) fn alone() -> Value {
    let mut changed = with("/recommended/effective_batch_size", 32.into());
    changed["recommended"]["replicas"] = 1.into();
    changed
}

/// The recommendation with a stranger's text wherever there is a text that is free.
pub(crate) fn hostile(text: &str) -> Value {
    let mut changed = with("/recommended/allocator/conf", text.into());
    for path in [
        "/recommended/allocator/backend",
        "/checks/0/rule",
        "/checks/0/reason",
        "/environment/name",
        "/environment/allocator",
        "/environment/hostname",
        "/provenance/config_sha256",
        "/provenance/version",
        "/provenance/started",
    ] {
        *changed.pointer_mut(path).unwrap() = text.into();
    }
    changed["environment"]["device"] = format!("cuda:0{text}").into();
    changed["warnings"] = json!([text]);
    changed
}

/// A folder with a recommendation in it.
pub(crate) struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new(recommendation: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("recommendation.yaml"), serde_yaml::to_string(recommendation).unwrap())
            .unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// A program that runs in the folder and finds `tune` and the stand-ins on its path.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let binary = Path::new(env!("CARGO_BIN_EXE_tune")).parent().unwrap();
        let stubs = repository().join("tests/stubs");
        let inherited = std::env::var("PATH").unwrap();
        let path = format!("{}:{}:{inherited}", binary.display(), stubs.display());
        command.current_dir(self.folder.path()).env("PATH", path).env_remove("TUNE_LOG");
        command.env_remove("PYTORCH_CUDA_ALLOC_CONF").env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    pub(crate) fn tune_export(&self, arguments: &[&str]) -> Output {
        self.command(env!("CARGO_BIN_EXE_tune")).arg("export").args(arguments).output().unwrap()
    }

    /// The text of a format.
    pub(crate) fn exported(&self, format: &str) -> String {
        let output = self.tune_export(&["--format", format]);
        assert_eq!(output.status.code(), Some(0), "{format}: {}", text_of(&output.stderr));
        text_of(&output.stdout)
    }

    /// The error of a format, which has the exit code `code`.
    pub(crate) fn refused(&self, arguments: &[&str], code: i32) -> String {
        let output = self.tune_export(arguments);
        assert_eq!((output.status.code(), text_of(&output.stdout).as_str()), (Some(code), ""), "{arguments:?}");
        text_of(&output.stderr)
    }

    /// The standard output of a program that succeeds.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program} {arguments:?}: {}", text_of(&output.stderr));
        text_of(&output.stdout)
    }

    /// Runs Python, which CI installs.
    pub(crate) fn python(&self, script: &str) -> Value {
        let stubs = repository().join("tests/stubs/python");
        let output = self.command("python3").env("PYTHONPATH", stubs).args(["-c", script]).output();
        let output = output.expect("python3 is needed to test what is exported for it");
        assert!(output.status.success(), "{}", text_of(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Asserts that no text was run.
    pub(crate) fn assert_nothing_ran(&self, text: &str) {
        assert!(!self.path("owned").exists(), "{text:?} was executed");
    }
}

pub(crate) fn text_of(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// `NAME=value` pairs of `env -0`.
pub(crate) fn variables(environment: &str) -> std::collections::BTreeMap<String, String> {
    let pairs = environment.split('\0').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// A configuration that is tuned within seconds on the CPU.
pub(crate) const SMALL_CONFIG: &str = "version: 1\nname: small\ndevice: cpu\n\
    model: {family: gpt, preset: nano, layers: 2, hidden_size: 32, sequence_length: 32}\n\
    data: {source: synthetic}\ntrial: {warmup_steps: 2, steps: 4, soak_steps: 6}\n\
    search: {loader_workers: [0, 1]}\ntarget: {batch_size: 2}\n";

//! The fake trainer (`fake_trainer.py`) as a program of the user's own: how it is run, and one trial of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use batchtune::device::DeviceChoice;
use batchtune::memory::{AllocatorKind, LimitSpec, Trim};
use batchtune::train::GradientCheckpointing;
use batchtune::trial::command::{CommandConfig, CommandSpec, Template};
use batchtune::trial::process::{OomKills, Patience};
use batchtune::trial::{Interrupt, Point, Purpose, TrialId, TrialSpec};
use batchtune::units::{Bytes, GIB};

pub(crate) const TRAINER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_trainer.py");

/// One rank under a limit of a gibibyte, with options of its own after the usual ones.
pub(crate) fn command(folder: &Path, options: &[&str]) -> CommandConfig {
    let usual = ["python3", TRAINER, "--batch-size={batch_size}", "--steps={steps}"];
    let run = usual.iter().chain(options).map(|argument| Template::parse(argument).unwrap()).collect();
    CommandConfig {
        command: CommandSpec {
            run,
            env: BTreeMap::new(),
            cwd: Some(folder.to_owned()),
            preload: Vec::new(),
            timeout: Duration::from_secs(60),
        },
        precision: "bf16".to_owned(),
        seed: 0,
        replicas: 1,
        device: DeviceChoice::Cpu,
        limit: LimitSpec::Bytes(Bytes(GIB)),
        allocator: AllocatorKind::Auto,
        scratch: folder.to_owned(),
        patience: Patience {
            start: Duration::from_secs(30),
            build: Duration::from_secs(20),
            step: Duration::from_secs(3),
            kill: Duration::from_millis(300),
            ..Patience::with_step_timeout(Duration::from_secs(1))
        },
        interrupt: Interrupt::default(),
        deadline: None,
        oom_kills: OomKills::default(),
    }
}

/// A trial of eight steps, two of them to warm up.
pub(crate) fn trial(purpose: Purpose, batch_size: usize) -> TrialSpec {
    let point = Point {
        batch_size,
        accumulation_steps: 2,
        loader_workers: 1,
        prefetch_depth: 2,
        device_prefetch: 0,
        pin_memory: true,
        gradient_checkpointing: GradientCheckpointing::None,
        trim: Trim::Never,
        alloc_conf: None,
    };
    TrialSpec { id: TrialId(1), purpose, point, warmup_steps: 2, steps: 6, sample_every: 2, sample_size: None }
}

//! What the workers of these tests are asked to train, and one trial of it.

use batchtune::data::DataSpec;
use batchtune::device::DeviceChoice;
use batchtune::memory::{AllocatorKind, LimitSpec, Trim};
use batchtune::model::ModelSpec;
use batchtune::train::{GradientCheckpointing, TrainSpec};
use batchtune::trial::{Point, Purpose, TrialId, TrialSpec, WorkloadSpec};

/// A family on the virtual device, everything else as it comes.
pub(crate) fn workload(family: &str) -> WorkloadSpec {
    WorkloadSpec {
        model: ModelSpec { family: family.to_owned(), ..ModelSpec::default() },
        train: TrainSpec::default(),
        data: DataSpec::default(),
        device: DeviceChoice::Cpu,
        limit: LimitSpec::Auto,
        allocator: AllocatorKind::Auto,
        seed: 0,
    }
}

/// A trial of one step.
pub(crate) fn spec(id: u32, purpose: Purpose) -> TrialSpec {
    TrialSpec {
        id: TrialId(id),
        purpose,
        point: Point {
            batch_size: 8,
            accumulation_steps: 1,
            loader_workers: 0,
            prefetch_depth: 0,
            device_prefetch: 0,
            pin_memory: false,
            gradient_checkpointing: GradientCheckpointing::None,
            trim: Trim::Never,
            alloc_conf: None,
        },
        warmup_steps: 0,
        steps: 1,
        sample_every: 1,
        length: None,
    }
}

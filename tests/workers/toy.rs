//! What the workers of these tests are asked to train, and one trial of it.

use std::time::Duration;

use batchtune::data::{DataSpec, InputSpec};
use batchtune::device::DeviceChoice;
use batchtune::memory::{AllocatorKind, LimitSpec};
use batchtune::model::{BuildContext, Family, ModelError, ModelSpec, Workload};
use batchtune::train::TrainSpec;
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
        point: Point::plain(8),
        warmup_steps: 0,
        steps: 1,
        sample_every: 1,
        sample_size: None,
    }
}

/// A family that never gets ready, so that a worker's main thread is as busy as in a long step.
pub(crate) struct Stuck;

impl Family for Stuck {
    fn name(&self) -> &'static str {
        "stuck"
    }
    fn input(&self, _spec: &ModelSpec) -> Result<InputSpec, ModelError> {
        loop {
            std::thread::sleep(Duration::from_secs(600));
        }
    }
    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn Workload>, ModelError> {
        Err(ModelError::Invalid { field: "family", reason: "it is stuck".to_owned() })
    }
}

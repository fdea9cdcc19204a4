//! Families that can be told to go wrong on one rank: `options: {fault: killed, rank: 1}`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use batchtune::data::{Batch, InputSpec};
use batchtune::model::parameters::Init;
use batchtune::model::{BuildContext, Family, ModelError, ModelSpec, Parameters, Pass, Segmented, Segments, Workload};
use batchtune::units::MIB;
use candle_core::{DType, Device, Tensor};
use nix::sys::signal::{Signal, raise};

/// The batch size at which they fail.
pub(crate) const FATAL_BATCH: usize = 3;
/// The step, counted from 1, at which the family of one piece does.
const FATAL_STEP: u32 = 4;

/// A family of one piece, which fails in the forward pass.
pub(crate) struct Faulty;

impl Family for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn input(&self, _spec: &ModelSpec) -> Result<InputSpec, ModelError> {
        Ok(InputSpec::Features { shape: vec![8], classes: 4 })
    }

    fn build(&self, context: &BuildContext<'_>) -> Result<Box<dyn Workload>, ModelError> {
        let (mut parameters, fault) = (parameters(context), fault(context));
        let weight = parameters.create("weight", &[8, 4], Init::Normal(0.5))?;
        let work_ms = context.spec.options.get("work_ms").and_then(serde_json::Value::as_u64).unwrap_or(0);
        let work = Duration::from_millis(work_ms);
        Ok(Box::new(Net { parameters, weight, fault, work, steps: AtomicU32::new(0) }))
    }
}

/// Parameters that start apart on every rank.
fn parameters(context: &BuildContext<'_>) -> Parameters {
    let rank = context.replicas.map_or(0, |group| group.rank() as u64);
    Parameters::new(context.device, DType::F32, context.seed + rank)
}

/// What this rank is told to do wrong.
fn fault(context: &BuildContext<'_>) -> Option<String> {
    let option = |name: &str| context.spec.options.get(name);
    let rank = context.replicas.map_or(0, |group| group.rank() as u64);
    let is_struck = option("rank").and_then(serde_json::Value::as_u64) == Some(rank);
    option("fault").and_then(serde_json::Value::as_str).filter(|_| is_struck).map(str::to_owned)
}

/// Does what is wrong.
fn strike(fault: Option<&str>, device: &Device) -> candle_core::Result<()> {
    match fault {
        Some("killed") => {
            let _ = raise(Signal::SIGKILL);
        }
        Some("hangs") => std::thread::sleep(Duration::from_secs(3600)),
        Some("panics") => panic!("as it was told"),
        Some("fails") => candle_core::bail!("as it was told"),
        Some("out_of_memory") => {
            let values = (200 * MIB / 4) as usize;
            Tensor::zeros(values, DType::F32, device)?;
        }
        _ => {}
    }
    Ok(())
}

struct Net {
    parameters: Parameters,
    weight: Tensor,
    fault: Option<String>,
    /// What the fatal step takes where nothing is wrong.
    work: Duration,
    steps: AtomicU32,
}

impl Workload for Net {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn loss(&self, batch: &Batch) -> candle_core::Result<Tensor> {
        let is_fatal = self.steps.fetch_add(1, Ordering::SeqCst) + 1 == FATAL_STEP && batch.samples == FATAL_BATCH;
        let loss = candle_nn::loss::cross_entropy(&batch.input.matmul(&self.weight)?, &batch.target)?; // []
        let fault = self.fault.as_deref().filter(|_| is_fatal);
        strike(fault, batch.input.device())?;
        if is_fatal {
            std::thread::sleep(self.work);
        }
        if fault == Some("diverges") { loss * f64::NAN } else { Ok(loss) }
    }
}

/// A family in three segments, the last of which has as many values as a bucket. It fails in the backward pass, when the
/// exchange of that one has begun.
pub(crate) struct FaultyBlocks;

/// Values of the large parameter: a bucket of them and one more.
const LARGE: usize = batchtune::train::replicas::BUCKET_BYTES / 4 + 1;
/// The first step whose backward pass has an exchange beside it, where an update has two: the order of the gradients is
/// known from the one before.
const FIRST_OVERLAPPED: u32 = 2;

impl Family for FaultyBlocks {
    fn name(&self) -> &'static str {
        "faulty_blocks"
    }

    fn input(&self, spec: &ModelSpec) -> Result<InputSpec, ModelError> {
        Faulty.input(spec)
    }

    fn build(&self, context: &BuildContext<'_>) -> Result<Box<dyn Workload>, ModelError> {
        let (mut parameters, fault) = (parameters(context), fault(context));
        parameters.create("small", &[8, 4], Init::Normal(0.5))?;
        parameters.create("large", &[LARGE], Init::Constant(1.0))?;
        Ok(Box::new(Blocks { parameters, fault, steps: AtomicU32::new(0) }))
    }
}

struct Blocks {
    parameters: Parameters,
    fault: Option<String>,
    steps: AtomicU32,
}

struct Block<'a> {
    model: &'a Blocks,
    batch: &'a Batch,
    fault: Option<&'a str>,
}

impl Segmented for Blocks {
    type OnePass<'a> = Block<'a>;

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn pass<'a>(&'a self, batch: &'a Batch, pass: Pass) -> candle_core::Result<Block<'a>> {
        let step = self.steps.fetch_add(u32::from(pass == Pass::Forward), Ordering::SeqCst);
        let is_fatal = pass == Pass::Recompute && step == FIRST_OVERLAPPED && batch.samples == FATAL_BATCH;
        Ok(Block { model: self, batch, fault: self.fault.as_deref().filter(|_| is_fatal) })
    }
}

impl Segments for Block<'_> {
    fn count(&self) -> usize {
        3
    }

    fn forward(&self, index: usize, x: &Tensor) -> candle_core::Result<Tensor> {
        let parameter = |name| self.model.parameters.get(name).ok_or_else(|| candle_core::Error::Msg(name.to_owned()));
        match index {
            0 => x.matmul(parameter("small")?), // [B, 4]
            1 => {
                strike(self.fault, x.device())?;
                x.affine(1.0, 0.5) // [B, 4]
            }
            _ => {
                let scale = parameter("large")?.narrow(0, 0, 4)?; // [4]
                candle_nn::loss::cross_entropy(&x.broadcast_mul(&scale)?, &self.batch.target) // []
            }
        }
    }
}

//! Comparison of a workload with what PyTorch made of the same net: see `tests/fixtures/models/`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};
use serde::Deserialize;

use super::{Buffers, Workload};
use crate::data::Batch;
use crate::train::testing::PlainCpu;
use crate::train::{TrainSpec, Trainer};

/// Largest difference, as a share of the value.
const TOLERANCE: f64 = 1e-4;

/// What PyTorch found.
#[derive(Deserialize)]
struct Expected {
    loss: f64,
    gradient_norms: BTreeMap<String, f64>,
    loss_after_three_steps: f64,
    #[serde(default)]
    buffers_after_three_steps: BTreeMap<String, Vec<f64>>,
    evaluation_after_three_steps: Option<f64>,
}

/// The path of a fixture's file.
pub(super) fn path(name: &str, extension: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/models/{name}.{extension}"))
}

/// Trains what `build` makes of the fixture's weights on the fixture's batch, as PyTorch did, and compares on the way.
pub(super) fn compare(name: &str, build: impl Fn() -> Box<dyn Workload>) {
    let expected: Expected = serde_json::from_slice(&std::fs::read(path(name, "json")).unwrap()).unwrap();
    let tensors = candle_core::safetensors::load(path(name, "safetensors"), &Device::Cpu).unwrap();
    let input = tensors["input"].to_dtype(DType::F32).unwrap();
    let target = tensors["target"].to_dtype(DType::U32).unwrap();
    let batch = Batch { samples: input.dim(0).unwrap(), input, target };

    let workload = build();
    let loss = workload.loss(&batch).unwrap();
    close(&format!("{name}: loss"), value(&loss), expected.loss);
    let gradients = loss.backward().unwrap();
    let names: BTreeSet<&str> = workload.parameters().iter().map(|(name, _)| name).collect();
    assert_eq!(names, expected.gradient_norms.keys().map(String::as_str).collect(), "{name}");
    for (parameter, variable) in workload.parameters().iter() {
        let norm = gradients.get(variable).unwrap().sqr().unwrap().sum_all().unwrap().sqrt().unwrap();
        close(&format!("{name}: gradient of `{parameter}`"), value(&norm), expected.gradient_norms[parameter]);
    }

    let spec = TrainSpec { learning_rate: 1e-3, ..TrainSpec::default() };
    // Another one: the pass above has moved the running statistics.
    let mut trainer = Trainer::new(build(), &spec).unwrap();
    let mut session = PlainCpu::default();
    for _ in 0..3 {
        trainer.step(&batch, &mut session).unwrap();
        trainer.update(&mut session).unwrap();
    }
    let trained = trainer.workload();
    let buffers: BTreeMap<&str, Vec<f32>> =
        trained.buffers().into_iter().flat_map(Buffers::iter).map(|(name, b)| (name, b.to_vec1().unwrap())).collect();
    let names: BTreeSet<&str> = buffers.keys().copied().collect();
    assert_eq!(names, expected.buffers_after_three_steps.keys().map(String::as_str).collect(), "{name}");
    for (buffer, found) in buffers {
        let expected = &expected.buffers_after_three_steps[buffer];
        let largest = expected.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
        assert_eq!(found.len(), expected.len(), "{name}: `{buffer}`");
        for (found, expected) in found.iter().zip(expected) {
            let difference = (f64::from(*found) - expected).abs();
            assert!(difference <= TOLERANCE * largest, "{name}: `{buffer}` holds {found} and should {expected}");
        }
    }
    if let Some(expected) = expected.evaluation_after_three_steps {
        close(&format!("{name}: evaluation"), value(&trained.evaluate(&batch).unwrap()), expected);
    }
    let loss = trained.loss(&batch).unwrap();
    close(&format!("{name}: loss after three steps"), value(&loss), expected.loss_after_three_steps);
}

fn value(tensor: &Tensor) -> f64 {
    f64::from(tensor.to_scalar::<f32>().unwrap())
}

fn close(what: &str, found: f64, expected: f64) {
    let difference = (found - expected).abs();
    assert!(difference <= TOLERANCE * expected.abs(), "{what}: {found} against {expected}");
}

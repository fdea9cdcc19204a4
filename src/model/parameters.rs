//! Named parameters with their own seeded initialisation.
//!
//! `Device::Cpu` of candle cannot be seeded, and a `VarMap` hands its variables out in hash order, which would make
//! every process allocate in another order. So parameters are made from our own generator and kept sorted by name.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Result, Tensor, Var};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All the same value.
    Constant(f32),
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
    /// Uniform between −bound and bound.
    Uniform(f32),
}

/// The trainable parameters of a model, sorted by name.
#[derive(Debug)]
pub struct Parameters {
    variables: BTreeMap<String, Var>,
    seed: u64,
    dtype: DType,
    device: Device,
}

impl Parameters {
    /// An empty set whose parameters will live on `device` with type `dtype`.
    pub fn new(device: &Device, dtype: DType, seed: u64) -> Self {
        Self { variables: BTreeMap::new(), seed, dtype, device: device.clone() }
    }

    /// Makes a parameter. Its values depend on the seed and its name alone, not on the order of creation.
    pub fn create(&mut self, name: &str, shape: &[usize], init: Init) -> Result<Tensor> {
        if self.variables.contains_key(name) {
            candle_core::bail!("parameter `{name}` is created twice");
        }
        let values = initial_values(shape.iter().product(), init, self.seed ^ name_hash(name));
        let tensor = Tensor::from_vec(values, shape, &self.device)?.to_dtype(self.dtype)?;
        let variable = Var::from_tensor(&tensor)?;
        let tensor = variable.as_tensor().clone();
        self.variables.insert(name.to_owned(), variable);
        Ok(tensor)
    }

    /// Every parameter with its name, in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.variables.iter().map(|(name, variable)| (name.as_str(), variable))
    }

    /// Number of parameter tensors.
    pub fn len(&self) -> usize {
        self.variables.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.variables.is_empty()
    }

    /// Number of scalar parameters.
    pub fn elements(&self) -> usize {
        self.variables.values().map(|variable| variable.elem_count()).sum()
    }
}

fn initial_values(count: usize, init: Init, seed: u64) -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(seed);
    match init {
        Init::Constant(value) => vec![value; count],
        Init::Uniform(bound) => (0..count).map(|_| rng.random_range(-bound..=bound)).collect(),
        Init::Normal(deviation) => (0..count).map(|_| deviation * standard_normal(&mut rng)).collect(),
    }
}

/// One draw by the Box-Muller transform (1958).
fn standard_normal(rng: &mut StdRng) -> f32 {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    (radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()) as f32
}

/// FNV-1a: the same on every machine and in every version, unlike the standard hasher.
fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

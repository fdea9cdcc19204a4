//! Named parameters with their own seeded initialisation.
//!
//! `Device::Cpu` of candle cannot be seeded, and a `VarMap` hands its variables out in hash order, which would make
//! every process allocate in another order. So parameters are made from our own generator and kept sorted by name.
//!
//! Parameters are what an optimizer changes. What a model keeps but no gradient reaches (the running statistics of a
//! batch norm) does not belong there: such tensors are [`Buffers`], a registry of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use candle_core::{DType, Device, Result, Tensor, Var};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::weights::Weights;

/// Values drawn from one generator. A parameter of more is cut into such chunks, each with its own seed, so that they
/// can be filled side by side: GPT-2 medium has 355 million values, and a trial should not wait seconds for them.
const CHUNK_VALUES: usize = 1 << 16;

/// Values that are worth a thread of their own.
const VALUES_PER_THREAD: usize = 16 * CHUNK_VALUES;

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
    weights: Option<Arc<Weights>>,
}

impl Parameters {
    /// An empty set whose parameters will live on `device` with type `dtype`.
    pub fn new(device: &Device, dtype: DType, seed: u64) -> Self {
        Self { variables: BTreeMap::new(), seed, dtype, device: device.clone(), weights: None }
    }

    /// The same with values from a file in place of the seeded ones. Parameters that are made from then on must be in
    /// it.
    pub fn with_weights(self, weights: Weights) -> Self {
        Self { weights: Some(Arc::new(weights)), ..self }
    }

    /// An empty set of buffers beside these parameters: f32, with values from the same file.
    pub fn buffers(&self) -> Buffers {
        Buffers { variables: BTreeMap::new(), device: self.device.clone(), weights: self.weights.clone() }
    }

    /// Makes a parameter. Its values depend on the seed and its name alone, not on the order of creation.
    pub fn create(&mut self, name: &str, shape: &[usize], init: Init) -> Result<Tensor> {
        if self.variables.contains_key(name) {
            candle_core::bail!("parameter `{name}` is created twice");
        }
        let count = shape.iter().try_fold(1_usize, |count, &size| count.checked_mul(size));
        let Some(count) = count else { candle_core::bail!("parameter `{name}` of shape {shape:?} is too large") };
        let values = match &self.weights {
            Some(weights) => weights.values(name, shape)?,
            None => initial_values(name, count, init, self.seed ^ name_hash(name))?,
        };
        let tensor = Tensor::from_vec(values, shape, &self.device)?.to_dtype(self.dtype)?;
        let variable = Var::from_tensor(&tensor)?;
        let tensor = variable.as_tensor().clone();
        self.variables.insert(name.to_owned(), variable);
        Ok(tensor)
    }

    /// The parameter of that name.
    pub fn get(&self, name: &str) -> Option<&Var> {
        self.variables.get(name)
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

/// What a model keeps beside its parameters, sorted by name: running statistics, which training changes and no gradient
/// reaches. Always f32, whatever the precision: they are sums over many batches.
#[derive(Debug)]
pub struct Buffers {
    variables: BTreeMap<String, Var>,
    device: Device,
    weights: Option<Arc<Weights>>,
}

impl Buffers {
    /// Makes a buffer with this value in every place.
    pub fn create(&mut self, name: &str, shape: &[usize], value: f32) -> Result<Var> {
        if self.variables.contains_key(name) {
            candle_core::bail!("buffer `{name}` is created twice");
        }
        let tensor = match &self.weights {
            Some(weights) => Tensor::from_vec(weights.values(name, shape)?, shape, &self.device)?,
            None => Tensor::full(value, shape, &self.device)?.contiguous()?,
        };
        let variable = Var::from_tensor(&tensor)?;
        self.variables.insert(name.to_owned(), variable.clone());
        Ok(variable)
    }

    /// Every buffer with its name, in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.variables.iter().map(|(name, variable)| (name.as_str(), variable))
    }
}

fn initial_values(name: &str, count: usize, init: Init, seed: u64) -> Result<Vec<f32>> {
    let mut values = Vec::new();
    if values.try_reserve_exact(count).is_err() {
        candle_core::bail!("the host has no memory for the {count} values of parameter `{name}`");
    }
    values.resize(count, 0.0_f32);
    let fill = |index: usize, chunk: &mut [f32]| {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        match init {
            Init::Constant(value) => chunk.fill(value),
            Init::Uniform(bound) => chunk.iter_mut().for_each(|value| *value = bound * rng.random_range(-1.0..=1.0)),
            Init::Normal(deviation) => fill_normal(chunk, deviation, &mut rng),
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(count.div_ceil(VALUES_PER_THREAD));
    let chunks = Mutex::new(values.chunks_mut(CHUNK_VALUES).enumerate());
    let take = || chunks.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some((index, chunk)) = take() {
            fill(index, chunk);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Without a helper the caller does all of it.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    Ok(values)
}

/// Fills with normal draws by the Box-Muller transform (1958), which gives two at a time.
fn fill_normal(values: &mut [f32], deviation: f32, rng: &mut StdRng) {
    for pair in values.chunks_mut(2) {
        let radius = deviation * (-2.0 * (1.0 - rng.random::<f32>()).ln()).sqrt();
        let (sine, cosine) = (std::f32::consts::TAU * rng.random::<f32>()).sin_cos();
        for (value, direction) in pair.iter_mut().zip([cosine, sine]) {
            *value = radius * direction;
        }
    }
}

/// FNV-1a: the same on every machine and in every version, unlike the standard hasher.
fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(names: &[&str], dtype: DType, seed: u64) -> Parameters {
        let mut parameters = Parameters::new(&Device::Cpu, dtype, seed);
        for name in names {
            parameters.create(name, &[40, 50], Init::Normal(0.02)).unwrap();
        }
        parameters
    }

    fn values(parameters: &Parameters, name: &str) -> Vec<f32> {
        let variable = parameters.get(name).unwrap();
        variable.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn values_depend_on_seed_and_name_and_not_on_the_order() {
        let (one, other) = (made(&["a", "b"], DType::F32, 3), made(&["b", "a"], DType::F32, 3));
        assert_eq!(values(&one, "a"), values(&other, "a"));
        assert_eq!(values(&one, "b"), values(&other, "b"));
        assert_ne!(values(&one, "a"), values(&one, "b"));
        assert_ne!(values(&one, "a"), values(&made(&["a"], DType::F32, 4), "a"));
    }

    #[test]
    fn parameters_come_out_in_name_order() {
        let parameters = made(&["h.1", "a", "h.0", "wte"], DType::F32, 0);
        let names: Vec<&str> = parameters.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "h.0", "h.1", "wte"]);
        assert_eq!((parameters.len(), parameters.elements()), (4, 8_000));
    }

    #[test]
    fn bfloat16_parameters_are_the_f32_ones_rounded() {
        let (exact, rounded) = (made(&["a"], DType::F32, 3), made(&["a"], DType::BF16, 3));
        assert_eq!(rounded.get("a").unwrap().dtype(), DType::BF16);
        for (exact, rounded) in values(&exact, "a").iter().zip(values(&rounded, "a")) {
            assert!((exact - rounded).abs() <= exact.abs() / 256.0);
        }
    }

    #[test]
    fn normal_values_have_the_deviation_asked_for() {
        let drawn = initial_values("w", 3 * CHUNK_VALUES + 1, Init::Normal(0.5), 11).unwrap();
        let mean = drawn.iter().sum::<f32>() / drawn.len() as f32;
        let variance = drawn.iter().map(|value| value * value).sum::<f32>() / drawn.len() as f32;
        assert!(mean.abs() < 0.005, "{mean}");
        assert!((variance.sqrt() - 0.5).abs() < 0.005, "{variance}");
        assert!(drawn.iter().all(|value| value.is_finite()));
    }

    #[test]
    fn a_large_parameter_has_the_values_that_one_thread_would_give_it() {
        let count = 33 * CHUNK_VALUES + 5;
        let large = initial_values("w", count, Init::Uniform(2.0), 5).unwrap();
        // Small enough for one thread, and made of the same chunks.
        let small = initial_values("w", 3 * CHUNK_VALUES, Init::Uniform(2.0), 5).unwrap();
        assert_eq!(large.len(), count);
        assert_eq!(large[..small.len()], small[..]);
        assert!(large.iter().all(|value| (-2.0..=2.0).contains(value)));
        assert!(large[32 * CHUNK_VALUES..].iter().any(|value| *value != 0.0));
    }

    #[test]
    fn a_name_may_be_used_once_and_a_shape_must_fit_the_machine() {
        let mut parameters = made(&["a"], DType::F32, 0);
        assert!(parameters.create("a", &[1], Init::Constant(0.0)).is_err());
        assert!(parameters.create("b", &[usize::MAX, 2], Init::Constant(0.0)).is_err());
        assert!(parameters.create("c", &[usize::MAX / 64], Init::Constant(0.0)).is_err());
        assert_eq!(parameters.len(), 1);
    }
}

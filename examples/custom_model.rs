//! A complete tuner for a model of your own.
//!
//! ```sh
//! cargo run --release --example custom_model -- --config examples/custom_model.yaml
//! ```
//!
//! The binary declares batchtune's allocator, so that tensor memory on the CPU can be seen, registers its family and
//! hands over to [`batchtune::main`]. It is its own worker: every trial runs in a process of this very program.

use batchtune::data::{Batch, InputSpec};
use batchtune::model::parameters::Init;
use batchtune::model::{BuildContext, Family, ModelError, ModelSpec, Parameters, Registry, Workload};
use candle_core::{D, Result, Tensor};
use candle_nn::Module;

batchtune::declare_allocator!();

fn main() -> std::process::ExitCode {
    batchtune::main(Registry::builtin().with(Perceptron))
}

/// The family `perceptron`: one hidden layer with a norm, for feature vectors.
struct Perceptron;

/// What `model.options` may say, with its defaults.
struct Options {
    features: usize,
    hidden: usize,
    classes: usize,
    norm: Norm,
}

/// Which layer norm to use.
#[derive(Clone, Copy, PartialEq)]
enum Norm {
    /// Built from operations that have a backward pass.
    Differentiable,
    /// `candle_nn::LayerNorm`, which is faster and cuts the graph. Try it to see what `tune` says.
    Fused,
}

impl Options {
    fn read(spec: &ModelSpec) -> std::result::Result<Self, ModelError> {
        let invalid = |reason: String| ModelError::Invalid { field: "options", reason };
        let mut options = Self { features: 64, hidden: 256, classes: 10, norm: Norm::Differentiable };
        for (key, value) in &spec.options {
            let number = || {
                let number = value.as_u64().filter(|number| (1..=1 << 20).contains(number));
                number
                    .map(|number| number as usize)
                    .ok_or_else(|| invalid(format!("`{key}` must be a number from 1 up, found `{value}`")))
            };
            match (key.as_str(), value.as_str()) {
                ("features", _) => options.features = number()?,
                ("hidden", _) => options.hidden = number()?,
                ("classes", _) => options.classes = number()?,
                ("norm", Some("differentiable")) => options.norm = Norm::Differentiable,
                ("norm", Some("fused")) => options.norm = Norm::Fused,
                _ => return Err(invalid(format!("`{key}: {value}` is not an option of this family"))),
            }
        }
        Ok(options)
    }
}

impl Family for Perceptron {
    fn name(&self) -> &'static str {
        "perceptron"
    }

    fn input(&self, spec: &ModelSpec) -> std::result::Result<InputSpec, ModelError> {
        let options = Options::read(spec)?;
        Ok(InputSpec::Features { shape: vec![options.features], classes: options.classes })
    }

    fn build(&self, context: &BuildContext<'_>) -> std::result::Result<Box<dyn Workload>, ModelError> {
        let options = Options::read(context.spec)?;
        let (features, hidden, classes) = (options.features, options.hidden, options.classes);
        let mut parameters = Parameters::new(context.device, context.precision.parameter_dtype(), context.seed);
        let bound = |inputs: usize| Init::Uniform((1.0 / inputs as f32).sqrt());
        Ok(Box::new(Net {
            input: parameters.create("input.weight", &[features, hidden], bound(features))?, // [F, H]
            norm_weight: parameters.create("norm.weight", &[hidden], Init::Constant(1.0))?,  // [H]
            norm_bias: parameters.create("norm.bias", &[hidden], Init::Constant(0.0))?,      // [H]
            output: parameters.create("output.weight", &[hidden, classes], bound(hidden))?,  // [H, K]
            norm: options.norm,
            parameters,
        }))
    }
}

/// A built model. B samples, F features, H hidden units, K classes.
struct Net {
    parameters: Parameters,
    input: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    output: Tensor,
    norm: Norm,
}

impl Net {
    fn normalise(&self, hidden: &Tensor) -> Result<Tensor> {
        const EPSILON: f64 = 1e-5;
        if self.norm == Norm::Fused {
            return candle_nn::LayerNorm::new(self.norm_weight.clone(), self.norm_bias.clone(), EPSILON)
                .forward(hidden); // [B, H]
        }
        let centred = hidden.broadcast_sub(&hidden.mean_keepdim(D::Minus1)?)?; // [B, H]
        let variance = centred.sqr()?.mean_keepdim(D::Minus1)?; // [B, 1]
        let scaled = centred.broadcast_div(&(variance + EPSILON)?.sqrt()?)?; // [B, H]
        scaled.broadcast_mul(&self.norm_weight)?.broadcast_add(&self.norm_bias) // [B, H]
    }
}

impl Workload for Net {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor> {
        let hidden = batch.input.matmul(&self.input)?; // [B, H]
        let hidden = self.normalise(&hidden)?.relu()?; // [B, H]
        let logits = hidden.matmul(&self.output)?; // [B, K]
        candle_nn::loss::cross_entropy(&logits, &batch.target) // []
    }
}

//! Llama: the decoder-only transformer with rotary positions.
//!
//! Paper: Touvron et al., "LLaMA: Open and Efficient Foundation Language Models" (2023), with the grouped queries of
//! Llama 2 (2023) and the long-context frequencies of Llama 3 (2024); reference implementation: `transformers`'
//! `LlamaForCausalLM`, whose parameter names and shapes are used here (without the `model.` prefix), so that a checkpoint
//! of theirs fits. Pre-norm blocks with a root-mean-square norm, SwiGLU, no biases, and an output layer of its own or the
//! embedding's.
//!
//! Letters of the shapes: B samples, T tokens, D `hidden_size`, H `heads`, G `key_value_heads`, K the width of a head,
//! V `vocabulary_size`.

use candle_core::{DType, Result, Tensor};

use super::layers::{
    CausalMask, Embedding, GatedMlp, Linear, Llama3Scaling, RmsNorm, Rotary, RotaryDimensions, Rotation, attend,
};
use super::parameters::Parameters;
use super::segments::{self, Pass, Segments};
use super::spec::{Presets, check_range};
use super::{BuildContext, Family, ModelError, ModelSpec, Workload, hugging_face};
use crate::data::{Batch, InputSpec};

/// Standard deviation of all weights, as in `transformers`.
const DEVIATION: f32 = 0.02;
/// The base of the rotary frequencies, where nothing else is said.
pub(super) const THETA: f64 = 10_000.0;
/// What is added to the mean square, where nothing else is said.
const EPSILON: f64 = 1e-5;

/// Named dimensions. `nano` is for tests and first steps on a CPU; the others are the published sizes, Llama 3.2 at the
/// context that it was trained with and not at the 131072 tokens that it was stretched to.
const PRESETS: Presets<'static, Dimensions> = Presets { family: "llama", all: &ALL };
const ALL: [(&str, Dimensions); 4] = [
    (
        "tinyllama-1.1b",
        Dimensions {
            length: 2048,
            layers: 22,
            heads: 32,
            shared: 4,
            size: 64,
            width: 2048,
            hidden: 5632,
            vocabulary: 32_000,
            ..PLAIN
        },
    ),
    (
        "llama-3.2-1b",
        Dimensions {
            length: 8192,
            layers: 16,
            heads: 32,
            shared: 8,
            size: 64,
            width: 2048,
            hidden: 8192,
            vocabulary: 128_256,
            theta: 500_000.0,
            scaling: Some(Llama3Scaling {
                factor: 32.0,
                low_frequency_factor: 1.0,
                high_frequency_factor: 4.0,
                original_length: 8192,
            }),
            tied: true,
            ..PLAIN
        },
    ),
    (
        "llama-2-7b",
        Dimensions {
            length: 4096,
            layers: 32,
            heads: 32,
            shared: 32,
            size: 128,
            width: 4096,
            hidden: 11_008,
            vocabulary: 32_000,
            ..PLAIN
        },
    ),
    ("nano", PLAIN),
];

/// The smallest, and what the others have in common.
const PLAIN: Dimensions = Dimensions {
    length: 64,
    layers: 4,
    heads: 4,
    shared: 2,
    size: 32,
    width: 128,
    hidden: 344,
    vocabulary: 256,
    epsilon: EPSILON,
    theta: THETA,
    scaling: None,
    tied: false,
};

/// The keys of `model` that mean something here.
const READ: [&str; 9] = [
    "preset",
    "config",
    "sequence_length",
    "layers",
    "heads",
    "key_value_heads",
    "hidden_size",
    "intermediate_size",
    "vocabulary_size",
];

/// Every layer keeps scores of T × T per head: far below this length they exceed any device.
const MAX_LENGTH: usize = 1 << 15;
/// Deeper than any published model; bounds the work of a typing error, and candle's recursion over the graph.
const MAX_LAYERS: usize = 1024;
/// A trillion parameters: more cannot be meant for one device.
const MAX_PARAMETERS: usize = 1 << 40;

/// The Llama family.
#[derive(Debug)]
pub struct Llama;

impl Family for Llama {
    fn name(&self) -> &'static str {
        "llama"
    }

    fn presets(&self) -> Vec<&'static str> {
        PRESETS.names()
    }

    fn input(&self, spec: &ModelSpec) -> std::result::Result<InputSpec, ModelError> {
        let dimensions = Dimensions::of(spec)?;
        Ok(InputSpec::Tokens { vocabulary_size: dimensions.vocabulary, sequence_length: dimensions.length })
    }

    fn parameter_count(&self, spec: &ModelSpec) -> std::result::Result<Option<u64>, ModelError> {
        Ok(Dimensions::of(spec)?.parameters().map(|count| count as u64))
    }

    fn build(&self, context: &BuildContext<'_>) -> std::result::Result<Box<dyn Workload>, ModelError> {
        let dimensions = Dimensions::of(context.spec)?;
        let mut parameters = context.parameters(&["model."])?;
        let network = Network::create(&mut parameters, &dimensions)?;
        let detached = network.detached();
        let Dimensions { length, size, theta, scaling, .. } = dimensions;
        let rotary = Rotary::new(&RotaryDimensions { length, size, theta, scaling }, context.device)?;
        let mask = CausalMask::new(length, context.device)?;
        let compute = context.precision.compute_dtype();
        Ok(Box::new(LlamaWorkload { parameters, network, detached, mask, rotary, dimensions, compute }))
    }
}

/// The dimensions of a model, validated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dimensions {
    /// T: the most tokens of a sample.
    pub(super) length: usize,
    /// Blocks.
    pub(super) layers: usize,
    /// H.
    pub(super) heads: usize,
    /// G.
    pub(super) shared: usize,
    /// K.
    pub(super) size: usize,
    /// D.
    pub(super) width: usize,
    /// Width of the hidden layer of a block's network.
    pub(super) hidden: usize,
    /// V.
    pub(super) vocabulary: usize,
    /// Added to the mean square of a norm.
    pub(super) epsilon: f64,
    /// The base of the rotary frequencies.
    pub(super) theta: f64,
    /// How they are changed for a longer context.
    pub(super) scaling: Option<Llama3Scaling>,
    /// Whether the output layer is the embedding's.
    pub(super) tied: bool,
}

impl Dimensions {
    /// The base's dimensions with the fields of the specification over them.
    fn of(spec: &ModelSpec) -> std::result::Result<Self, ModelError> {
        spec.refuse_unread("llama", &READ)?;
        let base = spec.base(&PRESETS, hugging_face::llama)?;
        let of_base = |of: fn(&Self) -> usize| base.as_ref().map(of);
        let heads = PRESETS.dimension("heads", spec.heads, of_base(|base| base.heads))?;
        let width = PRESETS.dimension("hidden_size", spec.hidden_size, of_base(|base| base.width))?;
        let size = if spec.heads.is_some() || spec.hidden_size.is_some() { None } else { of_base(|base| base.size) };
        if size.is_none() && width.checked_rem(heads).is_some_and(|rest| rest != 0) {
            let reason = format!("{heads} heads do not divide a `hidden_size` of {width}");
            return Err(ModelError::Invalid { field: "heads", reason });
        }
        let shared = spec.key_value_heads.or(of_base(|base| base.shared));
        let (hidden, vocabulary) = (spec.intermediate_size, spec.vocabulary_size);
        let dimensions = Self {
            length: PRESETS.dimension("sequence_length", spec.sequence_length, of_base(|base| base.length))?,
            layers: PRESETS.dimension("layers", spec.layers, of_base(|base| base.layers))?,
            heads,
            shared: shared.unwrap_or(heads),
            size: size.or(width.checked_div(heads)).unwrap_or(0),
            width,
            hidden: PRESETS.dimension("intermediate_size", hidden, of_base(|base| base.hidden))?,
            vocabulary: PRESETS.dimension("vocabulary_size", vocabulary, of_base(|base| base.vocabulary))?,
            ..base.unwrap_or(PLAIN)
        };
        dimensions.validate()?;
        Ok(dimensions)
    }

    fn validate(&self) -> std::result::Result<(), ModelError> {
        check_range("sequence_length", self.length, MAX_LENGTH)?;
        check_range("layers", self.layers, MAX_LAYERS)?;
        check_range("heads", self.heads, usize::MAX)?;
        check_range("key_value_heads", self.shared, self.heads)?;
        check_range("hidden_size", self.width, usize::MAX)?;
        check_range("intermediate_size", self.hidden, usize::MAX)?;
        check_range("vocabulary_size", self.vocabulary, u32::MAX as usize)?;
        let invalid = |field, reason| Err(ModelError::Invalid { field, reason });
        if !self.heads.is_multiple_of(self.shared) {
            let reason = format!("{} do not divide the {} `heads`", self.shared, self.heads);
            return invalid("key_value_heads", reason);
        }
        if self.size == 0 || !self.size.is_multiple_of(2) {
            let reason = format!("a head is {} wide, and rotary positions need an even width", self.size);
            return invalid("heads", reason);
        }
        let scaling = self.scaling.map_or(1.0, |scaling| scaling.factor);
        if ![self.theta, self.epsilon, scaling].iter().all(|value| value.is_finite() && *value > 0.0) {
            return invalid("config", "its rope or `rms_norm_eps` is not a positive number".to_owned());
        }
        match self.parameters() {
            Some(parameters) if parameters <= MAX_PARAMETERS => Ok(()),
            _ => invalid("hidden_size", format!("{self} has more than {MAX_PARAMETERS} parameters")),
        }
    }

    /// Scalar parameters; `None` where they overflow.
    fn parameters(&self) -> Option<usize> {
        let width = self.width;
        let tables = self.vocabulary.checked_mul(width)?.checked_mul(if self.tied { 1 } else { 2 })?;
        // Queries and output of H heads, keys and values of G; gate, up and down; two norms.
        let heads = self.heads.checked_add(self.shared)?.checked_mul(2)?.checked_mul(self.size)?;
        let rows = heads.checked_add(self.hidden.checked_mul(3)?)?.checked_add(2)?;
        let blocks = rows.checked_mul(width)?.checked_mul(self.layers)?;
        tables.checked_add(blocks)?.checked_add(width)
    }
}

impl std::fmt::Display for Dimensions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { layers, width, vocabulary, .. } = self;
        write!(f, "a model of {layers} layers, hidden size {width} and vocabulary {vocabulary}")
    }
}

/// A Llama that can be trained.
#[derive(Debug)]
struct LlamaWorkload {
    parameters: Parameters,
    network: Network,
    /// The same tensors without a graph.
    detached: Network,
    mask: CausalMask,
    rotary: Rotary,
    dimensions: Dimensions,
    /// The type of the activations.
    compute: DType,
}

impl LlamaWorkload {
    fn pass<'a>(&'a self, batch: &'a Batch, pass: Pass) -> Result<LlamaPass<'a>> {
        let (samples, length) = batch.input.dims2()?;
        let Dimensions { heads, shared, size, .. } = self.dimensions;
        let queries = self.rotary.rotation([samples, heads, length, size], self.compute)?;
        let keys = if shared == heads {
            queries.clone()
        } else {
            self.rotary.rotation([samples, shared, length, size], self.compute)?
        };
        let mask = self.mask.broadcast(samples, heads, length)?; // [B, H, T, T]
        Ok(LlamaPass {
            network: if pass.has_graph() { &self.network } else { &self.detached },
            places: Places { mask, queries, keys },
            target: &batch.target,
            compute: self.compute,
        })
    }
}

impl Workload for LlamaWorkload {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor> {
        segments::loss(&self.pass(batch, Pass::Train)?, &batch.input)
    }

    fn evaluate(&self, batch: &Batch) -> Result<Tensor> {
        segments::loss(&self.pass(batch, Pass::Evaluate)?, &batch.input)
    }

    fn segments<'a>(&'a self, batch: &'a Batch, pass: Pass) -> Result<Option<Box<dyn Segments + 'a>>> {
        Ok(Some(Box::new(self.pass(batch, pass)?)))
    }
}

/// What all blocks know of the tokens' places in one pass.
struct Places {
    /// Who may look at whom, `[B, H, T, T]`.
    mask: Tensor,
    queries: Rotation,
    keys: Rotation,
}

/// A pass over one batch: the embedding, the blocks, and the head.
struct LlamaPass<'a> {
    network: &'a Network,
    places: Places,
    target: &'a Tensor,
    compute: DType,
}

impl Segments for LlamaPass<'_> {
    fn count(&self) -> usize {
        self.network.blocks.len() + 2
    }

    fn forward(&self, index: usize, x: &Tensor) -> Result<Tensor> {
        if index == 0 {
            return self.network.tokens.forward(x)?.to_dtype(self.compute); // [B, T, D]
        }
        if let Some(block) = self.network.blocks.get(index - 1) {
            return block.forward(x, &self.places); // [B, T, D]
        }
        let normed = self.network.norm.forward(x)?; // [B, T, D]
        let logits = self.network.output.rows(&normed)?.to_dtype(DType::F32)?; // [B·T, V]
        candle_nn::loss::cross_entropy(&logits, &self.target.flatten_all()?) // []
    }
}

/// Self-attention with rotary positions, in which several heads of queries share one of keys and values.
#[derive(Clone, Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    size: usize,
}

impl Attention {
    fn create(parameters: &mut Parameters, name: &str, dimensions: &Dimensions) -> Result<Self> {
        let Dimensions { heads, shared, size, width, .. } = *dimensions;
        let mut linear =
            |part: &str, shape| Linear::create(parameters, &format!("{name}.{part}_proj"), shape, DEVIATION);
        Ok(Self {
            query: linear("q", [heads * size, width])?,
            key: linear("k", [shared * size, width])?,
            value: linear("v", [shared * size, width])?,
            output: linear("o", [width, heads * size])?,
            size,
        })
    }

    fn forward(&self, x: &Tensor, places: &Places) -> Result<Tensor> {
        let (batch, length, _) = x.dims3()?;
        let heads = |part: &Linear| part.forward(x)?.reshape((batch, length, (), self.size))?.transpose(1, 2);
        let query = places.queries.apply(&heads(&self.query)?)?; // [B, H, T, K]
        let key = places.keys.apply(&heads(&self.key)?)?; // [B, G, T, K]
        let value = heads(&self.value)?.contiguous()?; // [B, G, T, K]
        let mixed = attend(&query, &key, &value, Some(&places.mask))?; // [B, H, T, K]
        let mixed = mixed.transpose(1, 2)?.reshape((batch, length, ()))?; // [B, T, H·K]
        self.output.forward(&mixed) // [B, T, D]
    }

    fn detached(&self) -> Self {
        Self {
            query: self.query.detached(),
            key: self.key.detached(),
            value: self.value.detached(),
            output: self.output.detached(),
            size: self.size,
        }
    }
}

/// One block: attention and network, each behind a norm and around a residual connection.
#[derive(Clone, Debug)]
struct Block {
    attention_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
    mlp: GatedMlp,
}

impl Block {
    fn create(parameters: &mut Parameters, name: &str, dimensions: &Dimensions) -> Result<Self> {
        let (width, epsilon) = (dimensions.width, dimensions.epsilon as f32);
        let shape = [width, dimensions.hidden];
        Ok(Self {
            attention_norm: RmsNorm::create(parameters, &format!("{name}.input_layernorm"), width, epsilon)?,
            attention: Attention::create(parameters, &format!("{name}.self_attn"), dimensions)?,
            mlp_norm: RmsNorm::create(parameters, &format!("{name}.post_attention_layernorm"), width, epsilon)?,
            mlp: GatedMlp::create(parameters, &format!("{name}.mlp"), shape, DEVIATION)?,
        })
    }

    fn forward(&self, x: &Tensor, places: &Places) -> Result<Tensor> {
        let x = (x + self.attention.forward(&self.attention_norm.forward(x)?, places)?)?; // [B, T, D]
        let mlp = self.mlp.forward(&self.mlp_norm.forward(&x)?)?; // [B, T, D]
        x + mlp // [B, T, D]
    }

    fn detached(&self) -> Self {
        Self {
            attention_norm: self.attention_norm.detached(),
            attention: self.attention.detached(),
            mlp_norm: self.mlp_norm.detached(),
            mlp: self.mlp.detached(),
        }
    }
}

/// Tokens in, logits out.
#[derive(Clone, Debug)]
struct Network {
    tokens: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    output: Linear,
}

impl Network {
    fn create(parameters: &mut Parameters, dimensions: &Dimensions) -> Result<Self> {
        let Dimensions { layers, width, vocabulary, epsilon, tied, .. } = *dimensions;
        let tokens = Embedding::create(parameters, "embed_tokens", [vocabulary, width], DEVIATION)?; // [V, D]
        Ok(Self {
            blocks: (0..layers)
                .map(|layer| Block::create(parameters, &format!("layers.{layer}"), dimensions))
                .collect::<Result<_>>()?,
            norm: RmsNorm::create(parameters, "norm", width, epsilon as f32)?,
            output: if tied {
                Linear::tied(tokens.table())
            } else {
                Linear::create(parameters, "lm_head", [vocabulary, width], DEVIATION)?
            },
            tokens,
        })
    }

    fn detached(&self) -> Self {
        Self {
            tokens: self.tokens.detached(),
            blocks: self.blocks.iter().map(Block::detached).collect(),
            norm: self.norm.detached(),
            output: self.output.detached(),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::train::{BatchNorm, Precision};

    fn spec(preset: &str) -> ModelSpec {
        ModelSpec { family: "llama".to_owned(), preset: Some(preset.to_owned()), ..ModelSpec::default() }
    }

    fn tiny() -> ModelSpec {
        ModelSpec {
            sequence_length: Some(8),
            layers: Some(2),
            heads: Some(4),
            key_value_heads: Some(2),
            hidden_size: Some(16),
            intermediate_size: Some(24),
            vocabulary_size: Some(32),
            ..spec("nano")
        }
    }

    fn build(spec: &ModelSpec, precision: Precision) -> Box<dyn Workload> {
        Llama
            .build(&BuildContext { spec, device: &Device::Cpu, precision, batch_norm: BatchNorm::Train, seed: 1 })
            .unwrap()
    }

    fn batch(samples: usize, length: usize) -> Batch {
        let ids = |shift: u32| {
            let ids: Vec<u32> = (0..(samples * length) as u32).map(|index| (index * 7 + shift) % 32).collect();
            Tensor::from_vec(ids, (samples, length), &Device::Cpu).unwrap()
        };
        Batch { input: ids(0), target: ids(7), samples }
    }

    fn invalid_field(spec: &ModelSpec) -> &'static str {
        match Llama.input(spec) {
            Err(ModelError::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn presets_have_the_published_numbers_of_parameters() {
        let count = |preset| PRESETS.get(preset).unwrap().parameters();
        assert_eq!(count("tinyllama-1.1b"), Some(1_100_048_384));
        assert_eq!(count("llama-3.2-1b"), Some(1_235_814_400));
        assert_eq!(count("llama-2-7b"), Some(6_738_415_616));
        for name in PRESETS.names() {
            assert!(Llama.input(&spec(name)).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_built_model_has_the_parameters_that_were_computed() {
        let workload = build(&tiny(), Precision::F32);
        let expected = Dimensions::of(&tiny()).unwrap().parameters();
        assert_eq!(Some(workload.parameters().elements()), expected);
        assert_eq!(workload.parameters().len(), 2 * 9 + 3);
    }

    #[test]
    fn dimensions_that_do_not_go_together_name_their_field() {
        assert_eq!(invalid_field(&ModelSpec { heads: Some(3), ..spec("nano") }), "heads");
        assert_eq!(invalid_field(&ModelSpec { heads: Some(128), ..spec("nano") }), "heads");
        assert_eq!(invalid_field(&ModelSpec { heads: Some(0), ..spec("nano") }), "heads");
        assert_eq!(invalid_field(&ModelSpec { key_value_heads: Some(3), ..spec("nano") }), "key_value_heads");
        assert_eq!(invalid_field(&ModelSpec { key_value_heads: Some(8), ..spec("nano") }), "key_value_heads");
        assert_eq!(invalid_field(&ModelSpec { key_value_heads: Some(0), ..spec("nano") }), "key_value_heads");
        assert_eq!(invalid_field(&ModelSpec { intermediate_size: Some(0), ..spec("nano") }), "intermediate_size");
        assert_eq!(invalid_field(&ModelSpec { hidden_size: Some(1 << 40), ..spec("nano") }), "hidden_size");
        assert_eq!(invalid_field(&ModelSpec { layers: Some(usize::MAX), ..spec("nano") }), "layers");
        assert_eq!(invalid_field(&ModelSpec { image_size: Some(224), ..spec("nano") }), "image_size");
        assert_eq!(invalid_field(&ModelSpec { preset: None, ..spec("nano") }), "heads");
    }

    #[test]
    fn evaluation_gives_the_same_loss_and_no_graph() {
        let workload = build(&tiny(), Precision::F32);
        let batch = batch(2, 8);
        let (trained, evaluated) = (workload.loss(&batch).unwrap(), workload.evaluate(&batch).unwrap());
        let bits = |loss: &Tensor| loss.to_scalar::<f32>().unwrap().to_bits();
        assert_eq!(bits(&trained), bits(&evaluated));
        assert!(trained.track_op() && !evaluated.track_op());
    }

    #[test]
    fn grouped_heads_are_those_of_repeated_keys_and_values() {
        let value = |seed: usize, shape: [usize; 4]| {
            let values: Vec<f32> =
                (0..shape.iter().product::<usize>()).map(|at| (at * (31 + seed) % 17) as f32 / 8.0 - 1.0).collect();
            Tensor::from_vec(values, &shape[..], &Device::Cpu).unwrap()
        };
        let (query, key, shared) = (value(0, [2, 6, 5, 4]), value(1, [2, 2, 5, 4]), value(2, [2, 2, 5, 4]));
        let mask = CausalMask::new(5, &Device::Cpu).unwrap().broadcast(2, 6, 5).unwrap();
        // Heads 0 to 2 share the first of the two.
        let repeated = |x: &Tensor| {
            let x = x.unsqueeze(2).unwrap().broadcast_as((2, 2, 3, 5, 4)).unwrap();
            x.reshape((2, 6, 5, 4)).unwrap()
        };
        let ours = attend(&query, &key, &shared, Some(&mask)).unwrap();
        let plain = attend(&query, &repeated(&key), &repeated(&shared), Some(&mask)).unwrap();
        let difference = (ours - plain).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(difference < 1e-6, "{difference}");
    }

    #[test]
    fn sixteen_bits_follow_f32() {
        let exact = build(&tiny(), Precision::F32).loss(&batch(2, 8)).unwrap().to_scalar::<f32>().unwrap();
        for precision in [Precision::Bf16, Precision::F16, Precision::MixedBf16, Precision::MixedF16] {
            let workload = build(&tiny(), precision);
            let loss = workload.loss(&batch(2, 8)).unwrap();
            assert_eq!(loss.dtype(), DType::F32);
            assert!((loss.to_scalar::<f32>().unwrap() - exact).abs() < 0.02, "{precision}");
            let gradients = loss.backward().unwrap();
            for (name, variable) in workload.parameters().iter() {
                let dtype = gradients.get(variable).map(Tensor::dtype);
                assert_eq!(dtype, Some(precision.parameter_dtype()), "{precision}: {name}");
            }
        }
    }
}

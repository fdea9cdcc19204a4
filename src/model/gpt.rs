//! GPT: the decoder-only transformer of GPT-2.
//!
//! Paper: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019); reference implementations:
//! `openai/gpt-2` `src/model.py` and `transformers`' `GPT2LMHeadModel`, whose parameter names and shapes are used
//! here (without the `transformer.` prefix), so that a checkpoint of theirs fits. Pre-norm blocks, learned positions,
//! GELU in its tanh form, and one matrix for the token embedding and the output layer. No dropout: it is switched off
//! in most pre-training since, and it would only hide a loss that does not fall.
//!
//! In 16 bits, parameters and activations have 16 and the normalisation, the softmax of the attention, and the loss are
//! computed in f32. The f32 copies cost memory where the tensors are largest: the scores of each layer
//! `[B, H, T, T]` and the logits `[B·T, V]`.
//!
//! Letters of the shapes: B samples, T tokens, D `hidden_size`, H `heads`, V `vocabulary_size`.

use candle_core::{DType, Result, Tensor};

use super::layers::{BlockDimensions, CausalAttention, CausalMask, LayerNorm, Mlp};
use super::parameters::{Init, Parameters};
use super::segments::{Pass, Segmented, Segments};
use super::spec::{MAX_LAYERS, MAX_LENGTH, Presets, check_parameters, check_range};
use super::{BuildContext, Family, ModelError, ModelSpec, Workload, hugging_face};
use crate::data::{Batch, InputSpec};

/// Standard deviation of all weights, before the residual scaling.
const DEVIATION: f32 = 0.02;

/// Named dimensions. `nano` is for tests and first steps on a CPU; the others are the published sizes.
const PRESETS: Presets<'static, Dimensions> = Presets { family: "gpt", all: &ALL };
const ALL: [(&str, Dimensions); 5] = [
    ("gpt2", Dimensions { length: 1024, layers: 12, heads: 12, width: 768, vocabulary: 50_257 }),
    ("gpt2-medium", Dimensions { length: 1024, layers: 24, heads: 16, width: 1024, vocabulary: 50_257 }),
    ("gpt2-large", Dimensions { length: 1024, layers: 36, heads: 20, width: 1280, vocabulary: 50_257 }),
    ("gpt2-xl", Dimensions { length: 1024, layers: 48, heads: 25, width: 1600, vocabulary: 50_257 }),
    ("nano", Dimensions { length: 64, layers: 4, heads: 4, width: 128, vocabulary: 256 }),
];

/// The keys of `model` that mean something here.
const READ: [&str; 7] = ["preset", "config", "sequence_length", "layers", "heads", "hidden_size", "vocabulary_size"];

/// The GPT family.
#[derive(Debug)]
pub struct Gpt;

impl Family for Gpt {
    fn name(&self) -> &'static str {
        "gpt"
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

    fn has_batch_norm(&self) -> bool {
        false
    }

    fn build(&self, context: &BuildContext<'_>) -> std::result::Result<Box<dyn Workload>, ModelError> {
        let dimensions = Dimensions::of(context.spec)?;
        let mut parameters = context.parameters(&["transformer."])?;
        let network = Network::create(&mut parameters, &dimensions)?;
        let mask = CausalMask::new(dimensions.length, context.device)?;
        let detached = network.detached();
        let compute = context.precision.compute_dtype();
        Ok(Box::new(GptWorkload { parameters, network, detached, mask, heads: dimensions.heads, compute }))
    }
}

/// The dimensions of a model, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dimensions {
    /// T: the most tokens of a sample, and the number of learned positions.
    pub(super) length: usize,
    /// Blocks.
    pub(super) layers: usize,
    /// H.
    pub(super) heads: usize,
    /// D.
    pub(super) width: usize,
    /// V.
    pub(super) vocabulary: usize,
}

impl Dimensions {
    /// The preset's dimensions with the fields of the specification over them.
    fn of(spec: &ModelSpec) -> std::result::Result<Self, ModelError> {
        spec.refuse_unread("gpt", &READ)?;
        let base = spec.base(&PRESETS, hugging_face::gpt)?;
        let base = |of: fn(&Self) -> usize| base.as_ref().map(of);
        let dimensions = Self {
            length: PRESETS.dimension("sequence_length", spec.sequence_length, base(|base| base.length))?,
            layers: PRESETS.dimension("layers", spec.layers, base(|base| base.layers))?,
            heads: PRESETS.dimension("heads", spec.heads, base(|base| base.heads))?,
            width: PRESETS.dimension("hidden_size", spec.hidden_size, base(|base| base.width))?,
            vocabulary: PRESETS.dimension("vocabulary_size", spec.vocabulary_size, base(|base| base.vocabulary))?,
        };
        dimensions.validate()?;
        Ok(dimensions)
    }

    fn validate(&self) -> std::result::Result<(), ModelError> {
        check_range("sequence_length", self.length, MAX_LENGTH)?;
        check_range("layers", self.layers, MAX_LAYERS)?;
        check_range("heads", self.heads, usize::MAX)?;
        check_range("hidden_size", self.width, usize::MAX)?;
        check_range("vocabulary_size", self.vocabulary, u32::MAX as usize)?;
        if !self.width.is_multiple_of(self.heads) {
            return Err(ModelError::Invalid {
                field: "heads",
                reason: format!("{} heads do not divide a `hidden_size` of {}", self.heads, self.width),
            });
        }
        check_parameters(self.parameters())
    }

    /// Scalar parameters; `None` where they overflow.
    fn parameters(&self) -> Option<usize> {
        let width = self.width;
        let embeddings = self.vocabulary.checked_add(self.length)?.checked_mul(width)?;
        // Attention 4·D² + 4·D, network 8·D² + 5·D, two norms of 2·D.
        let block = width.checked_mul(width)?.checked_mul(12)?.checked_add(width.checked_mul(13)?)?;
        embeddings.checked_add(block.checked_mul(self.layers)?)?.checked_add(width.checked_mul(2)?)
    }
}

/// A GPT that can be trained.
#[derive(Debug)]
struct GptWorkload {
    parameters: Parameters,
    network: Network,
    /// The same tensors without a graph.
    detached: Network,
    mask: CausalMask,
    heads: usize,
    /// The type of the activations.
    compute: DType,
}

impl Segmented for GptWorkload {
    type OnePass<'a> = GptPass<'a>;

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn pass<'a>(&'a self, batch: &'a Batch, pass: Pass) -> Result<GptPass<'a>> {
        let (samples, length) = batch.input.dims2()?;
        let network = if pass.has_graph() { &self.network } else { &self.detached };
        let mask = self.mask.broadcast(samples, self.heads, length)?; // [B, H, T, T]
        Ok(GptPass { network, mask, target: &batch.target, compute: self.compute })
    }
}

/// A pass over one batch: the embedding, the blocks, and the head.
struct GptPass<'a> {
    network: &'a Network,
    mask: Tensor,
    target: &'a Tensor,
    compute: DType,
}

impl Segments for GptPass<'_> {
    fn count(&self) -> usize {
        self.network.blocks.len() + 2
    }

    fn forward(&self, index: usize, x: &Tensor) -> Result<Tensor> {
        if index == 0 {
            return self.network.embed(x)?.to_dtype(self.compute); // [B, T, D]
        }
        if let Some(block) = self.network.blocks.get(index - 1) {
            return block.forward(x, &self.mask); // [B, T, D]
        }
        let logits = self.network.logits(x)?.to_dtype(DType::F32)?; // [B·T, V]
        candle_nn::loss::cross_entropy(&logits, &self.target.flatten_all()?) // []
    }
}

/// One block: attention and network, each behind a norm and around a residual connection.
#[derive(Clone, Debug)]
struct Block {
    attention_norm: LayerNorm,
    attention: CausalAttention,
    mlp_norm: LayerNorm,
    mlp: Mlp,
}

impl Block {
    fn create(parameters: &mut Parameters, name: &str, dimensions: &BlockDimensions) -> Result<Self> {
        Ok(Self {
            attention_norm: LayerNorm::create(parameters, &format!("{name}.ln_1"), dimensions.width)?,
            attention: CausalAttention::create(parameters, &format!("{name}.attn"), dimensions)?,
            mlp_norm: LayerNorm::create(parameters, &format!("{name}.ln_2"), dimensions.width)?,
            mlp: Mlp::create(parameters, &format!("{name}.mlp"), dimensions)?,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let x = (x + self.attention.forward(&self.attention_norm.forward(x)?, mask)?)?; // [B, T, D]
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
    /// Also the output layer.
    tokens: Tensor,
    positions: Tensor,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

impl Network {
    fn create(parameters: &mut Parameters, dimensions: &Dimensions) -> Result<Self> {
        let Dimensions { length, layers, heads, width, vocabulary } = *dimensions;
        // Two writes to the residual stream per layer: this keeps its variance independent of the depth.
        let residual_deviation = DEVIATION / (2.0 * layers as f32).sqrt();
        let block = BlockDimensions { width, heads, deviation: DEVIATION, residual_deviation };
        Ok(Self {
            tokens: parameters.create("wte.weight", &[vocabulary, width], Init::Normal(DEVIATION))?, // [V, D]
            positions: parameters.create("wpe.weight", &[length, width], Init::Normal(DEVIATION))?,  // [T, D]
            blocks: (0..layers)
                .map(|layer| Block::create(parameters, &format!("h.{layer}"), &block))
                .collect::<Result<_>>()?,
            norm: LayerNorm::create(parameters, "ln_f", width)?,
        })
    }

    fn embed(&self, tokens: &Tensor) -> Result<Tensor> {
        let (samples, length) = tokens.dims2()?;
        let width = self.tokens.dim(1)?;
        let embedded = self.tokens.index_select(&tokens.flatten_all()?, 0)?; // [B·T, D]
        let embedded = embedded.reshape((samples, length, width))?; // [B, T, D]
        embedded.broadcast_add(&self.positions.narrow(0, 0, length)?) // [B, T, D]
    }

    fn logits(&self, x: &Tensor) -> Result<Tensor> {
        let (samples, length, width) = x.dims3()?;
        let rows = self.norm.forward(x)?.reshape((samples * length, width))?; // [B·T, D]
        rows.matmul(&self.tokens.to_dtype(x.dtype())?.t()?) // [B·T, V]
    }

    fn detached(&self) -> Self {
        Self {
            tokens: self.tokens.detach(),
            positions: self.positions.detach(),
            blocks: self.blocks.iter().map(Block::detached).collect(),
            norm: self.norm.detached(),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::train::{BatchNorm, Precision};

    fn spec(preset: &str) -> ModelSpec {
        ModelSpec { family: "gpt".to_owned(), preset: Some(preset.to_owned()), ..ModelSpec::default() }
    }

    fn tiny() -> ModelSpec {
        ModelSpec {
            sequence_length: Some(8),
            layers: Some(2),
            heads: Some(2),
            hidden_size: Some(16),
            vocabulary_size: Some(32),
            ..spec("nano")
        }
    }

    fn build(spec: &ModelSpec, precision: Precision) -> Box<dyn Workload> {
        Gpt.build(&BuildContext {
            spec,
            device: &Device::Cpu,
            precision,
            batch_norm: BatchNorm::Train,
            seed: 1,
            replicas: None,
        })
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
        match Gpt.input(spec) {
            Err(ModelError::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn presets_have_the_published_numbers_of_parameters() {
        assert_eq!(PRESETS.get("gpt2").unwrap().parameters(), Some(124_439_808));
        assert_eq!(PRESETS.get("gpt2-medium").unwrap().parameters(), Some(354_823_168));
    }

    #[test]
    fn a_built_model_has_the_parameters_that_were_computed() {
        let dimensions = Dimensions::of(&tiny()).unwrap();
        let workload = build(&tiny(), Precision::F32);
        assert_eq!(Some(workload.parameters().elements()), dimensions.parameters());
        // Twelve a block, two embeddings and the last norm: the output layer has none of its own.
        assert_eq!(workload.parameters().len(), 2 * 12 + 2 + 2);
    }

    #[test]
    fn fields_override_the_preset() {
        let spec = ModelSpec { sequence_length: Some(512), ..spec("gpt2-medium") };
        let expected = InputSpec::Tokens { vocabulary_size: 50_257, sequence_length: 512 };
        assert_eq!(Gpt.input(&spec).unwrap(), expected);
    }

    #[test]
    fn dimensions_that_do_not_go_together_name_their_field() {
        assert_eq!(invalid_field(&ModelSpec { heads: Some(3), ..spec("nano") }), "heads");
        assert_eq!(invalid_field(&ModelSpec { heads: Some(0), ..spec("nano") }), "heads");
        assert_eq!(invalid_field(&ModelSpec { layers: Some(0), ..spec("nano") }), "layers");
        assert_eq!(invalid_field(&ModelSpec { layers: Some(usize::MAX), ..spec("nano") }), "layers");
        assert_eq!(invalid_field(&ModelSpec { sequence_length: Some(0), ..spec("nano") }), "sequence_length");
        assert_eq!(invalid_field(&ModelSpec { sequence_length: Some(1 << 40), ..spec("nano") }), "sequence_length");
        assert_eq!(invalid_field(&ModelSpec { vocabulary_size: Some(0), ..spec("nano") }), "vocabulary_size");
        assert_eq!(invalid_field(&ModelSpec { hidden_size: Some(0), ..spec("nano") }), "hidden_size");
        assert_eq!(invalid_field(&ModelSpec { hidden_size: Some(usize::MAX - 3), ..spec("nano") }), "hidden_size");
        assert_eq!(invalid_field(&ModelSpec { hidden_size: Some(1 << 22), ..spec("nano") }), "hidden_size");
        assert_eq!(invalid_field(&ModelSpec { preset: None, ..spec("nano") }), "sequence_length");
        let mut odd = spec("nano");
        odd.options.insert("dropout".to_owned(), 0.1.into());
        assert_eq!(invalid_field(&odd), "options");
    }

    #[test]
    fn an_unknown_preset_names_those_there_are() {
        let error = Gpt.input(&spec("gpt5")).unwrap_err().to_string();
        assert!(error.contains("`gpt5`") && error.contains("gpt2-medium"), "{error}");
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
    fn shorter_samples_than_the_model_takes_are_fine() {
        let loss = build(&tiny(), Precision::F32).loss(&batch(3, 5)).unwrap();
        assert!(loss.to_scalar::<f32>().unwrap().is_finite());
        assert!(build(&tiny(), Precision::F32).loss(&batch(1, 9)).is_err());
    }

    #[test]
    fn the_gradient_of_the_tied_embedding_is_that_of_finite_differences() {
        let workload = build(&tiny(), Precision::F32);
        let batch = batch(2, 8);
        let tokens = workload.parameters().get("wte.weight").unwrap();
        let gradient = workload.loss(&batch).unwrap().backward().unwrap().remove(tokens).unwrap();
        let gradient: Vec<f32> = gradient.flatten_all().unwrap().to_vec1().unwrap();
        let values: Vec<f32> = tokens.flatten_all().unwrap().to_vec1().unwrap();
        let at = |index: usize, shift: f32| {
            let mut moved = values.clone();
            moved[index] += shift;
            tokens.set(&Tensor::from_vec(moved, tokens.shape(), &Device::Cpu).unwrap()).unwrap();
            workload.loss(&batch).unwrap().to_scalar::<f32>().unwrap()
        };
        let scale = gradient.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
        for index in (0..values.len()).step_by(61) {
            let numeric = (at(index, 1e-2) - at(index, -1e-2)) / 2e-2;
            let expected = gradient[index];
            assert!((numeric - expected).abs() < 0.02 * scale, "{index}: {numeric} against {expected}");
        }
    }

    #[test]
    fn bfloat16_follows_f32() {
        let (exact, rounded) = (build(&tiny(), Precision::F32), build(&tiny(), Precision::Bf16));
        let batch = batch(2, 8);
        let (exact, loss) = (exact.loss(&batch).unwrap(), rounded.loss(&batch).unwrap());
        assert_eq!(loss.dtype(), DType::F32);
        let difference = exact.to_scalar::<f32>().unwrap() - loss.to_scalar::<f32>().unwrap();
        assert!(difference.abs() < 0.02, "{difference}");
        let gradients = loss.backward().unwrap();
        for (name, variable) in rounded.parameters().iter() {
            assert_eq!(gradients.get(variable).map(Tensor::dtype), Some(DType::BF16), "{name}");
        }
    }
}

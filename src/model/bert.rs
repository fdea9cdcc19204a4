//! BERT: the encoder that guesses masked tokens.
//!
//! Paper: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding" (2018);
//! reference implementation: `transformers`' `BertForMaskedLM`, whose parameter names and shapes are used here (without
//! the `bert.` prefix), so that a checkpoint of theirs fits. Post-norm blocks, learned positions, GELU in its exact form,
//! and an output layer that shares the token embedding and has a bias of its own. All tokens are of type 0, and there is
//! no next-sentence head, which most pre-training has dropped since RoBERTa (2019); nor is there dropout.
//!
//! Padding is not masked out of the attention: it costs what a token costs either way, and that is what is measured.
//!
//! Letters of the shapes: B samples, T tokens, D `hidden_size`, H `heads`, K = D / H, V `vocabulary_size`.

use candle_core::{DType, Result, Tensor};

use super::layers::{Embedding, LayerNorm, Linear, attend, masked_cross_entropy};
use super::parameters::{Init, Parameters};
use super::segments::{self, Pass, Segments};
use super::spec::{Presets, check_range};
use super::{BuildContext, Family, ModelError, ModelSpec, Workload, hugging_face};
use crate::data::{Batch, InputSpec};

/// Standard deviation of all weights.
const DEVIATION: f32 = 0.02;

/// `[MASK]` in all published vocabularies of BERT.
pub(super) const MASK_TOKEN: u32 = 103;

/// Named dimensions. `nano` is for tests and first steps on a CPU, with all 256 bytes and a mask; the others are the
/// published sizes.
const PRESETS: Presets<'static, Dimensions> = Presets { family: "bert", all: &ALL };
const ALL: [(&str, Dimensions); 3] = [
    ("base", BASE),
    ("large", Dimensions { layers: 24, heads: 16, width: 1024, hidden: 4096, ..BASE }),
    (
        "nano",
        Dimensions {
            length: 64,
            layers: 4,
            heads: 4,
            width: 128,
            hidden: 512,
            vocabulary: 257,
            mask_token: 256,
            ..BASE
        },
    ),
];

const BASE: Dimensions = Dimensions {
    length: 512,
    layers: 12,
    heads: 12,
    width: 768,
    hidden: 3072,
    vocabulary: 30_522,
    types: 2,
    epsilon: 1e-12,
    mask_token: MASK_TOKEN,
};

/// The keys of `model` that mean something here.
const READ: [&str; 8] =
    ["preset", "config", "sequence_length", "layers", "heads", "hidden_size", "intermediate_size", "vocabulary_size"];

/// Every layer keeps scores of T × T per head: far below this length they exceed any device.
const MAX_LENGTH: usize = 1 << 15;
/// Deeper than any published model; bounds the work of a typing error, and candle's recursion over the graph.
const MAX_LAYERS: usize = 1024;
/// A trillion parameters: more cannot be meant for one device.
const MAX_PARAMETERS: usize = 1 << 40;

/// The BERT family.
#[derive(Debug)]
pub struct Bert;

impl Family for Bert {
    fn name(&self) -> &'static str {
        "bert"
    }

    fn presets(&self) -> Vec<&'static str> {
        PRESETS.names()
    }

    fn input(&self, spec: &ModelSpec) -> std::result::Result<InputSpec, ModelError> {
        let Dimensions { vocabulary, length, mask_token, .. } = Dimensions::of(spec)?;
        Ok(InputSpec::MaskedTokens { vocabulary_size: vocabulary, sequence_length: length, mask_token })
    }

    fn parameter_count(&self, spec: &ModelSpec) -> std::result::Result<Option<u64>, ModelError> {
        Ok(Dimensions::of(spec)?.parameters().map(|count| count as u64))
    }

    fn build(&self, context: &BuildContext<'_>) -> std::result::Result<Box<dyn Workload>, ModelError> {
        let dimensions = Dimensions::of(context.spec)?;
        let mut parameters = context.parameters(&["bert."])?;
        let network = Network::create(&mut parameters, &dimensions)?;
        let detached = network.detached();
        let compute = context.precision.compute_dtype();
        Ok(Box::new(BertWorkload { parameters, network, detached, compute }))
    }
}

/// The dimensions of a model, validated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dimensions {
    /// T: the most tokens of a sample, and the number of learned positions.
    pub(super) length: usize,
    /// Blocks.
    pub(super) layers: usize,
    /// H.
    pub(super) heads: usize,
    /// D.
    pub(super) width: usize,
    /// Width of the hidden layer of a block's network.
    pub(super) hidden: usize,
    /// V.
    pub(super) vocabulary: usize,
    /// Kinds of tokens that the embedding tells apart.
    pub(super) types: usize,
    /// Added to the variance of a norm.
    pub(super) epsilon: f64,
    /// The token that stands for a hidden one.
    pub(super) mask_token: u32,
}

impl Dimensions {
    /// The base's dimensions with the fields of the specification over them.
    fn of(spec: &ModelSpec) -> std::result::Result<Self, ModelError> {
        spec.refuse_unread("bert", &READ)?;
        let base = spec.base(&PRESETS, hugging_face::bert)?;
        let of_base = |of: fn(&Self) -> usize| base.as_ref().map(of);
        let vocabulary = spec.vocabulary_size;
        let width = PRESETS.dimension("hidden_size", spec.hidden_size, of_base(|base| base.width))?;
        let hidden = spec.intermediate_size.or(of_base(|base| base.hidden));
        let dimensions = Self {
            length: PRESETS.dimension("sequence_length", spec.sequence_length, of_base(|base| base.length))?,
            layers: PRESETS.dimension("layers", spec.layers, of_base(|base| base.layers))?,
            heads: PRESETS.dimension("heads", spec.heads, of_base(|base| base.heads))?,
            width,
            hidden: hidden.unwrap_or(width.saturating_mul(4)),
            vocabulary: PRESETS.dimension("vocabulary_size", vocabulary, of_base(|base| base.vocabulary))?,
            ..base.unwrap_or(BASE)
        };
        dimensions.validate()?;
        // A vocabulary of one's own has its mask at the end, where none is known.
        let last = u32::try_from(dimensions.vocabulary - 1).unwrap_or(u32::MAX);
        let is_known = base.is_some() && dimensions.mask_token <= last;
        Ok(Self { mask_token: if is_known { dimensions.mask_token } else { last }, ..dimensions })
    }

    fn validate(&self) -> std::result::Result<(), ModelError> {
        check_range("sequence_length", self.length, MAX_LENGTH)?;
        check_range("layers", self.layers, MAX_LAYERS)?;
        check_range("heads", self.heads, usize::MAX)?;
        check_range("hidden_size", self.width, usize::MAX)?;
        check_range("intermediate_size", self.hidden, usize::MAX)?;
        check_range("vocabulary_size", self.vocabulary, u32::MAX as usize)?;
        let invalid = |field, reason| Err(ModelError::Invalid { field, reason });
        if !self.width.is_multiple_of(self.heads) {
            let reason = format!("{} heads do not divide a `hidden_size` of {}", self.heads, self.width);
            return invalid("heads", reason);
        }
        if self.types == 0 || !(self.epsilon.is_finite() && self.epsilon > 0.0) {
            return invalid("config", "its `type_vocab_size` or `layer_norm_eps` is not positive".to_owned());
        }
        match self.parameters() {
            Some(parameters) if parameters <= MAX_PARAMETERS => Ok(()),
            _ => invalid("hidden_size", format!("{self} has more than {MAX_PARAMETERS} parameters")),
        }
    }

    /// Scalar parameters; `None` where they overflow.
    fn parameters(&self) -> Option<usize> {
        let Self { width, hidden, vocabulary, .. } = *self;
        // Tokens, positions, types, and a norm.
        let rows = vocabulary.checked_add(self.length)?.checked_add(self.types)?.checked_add(2)?;
        let embeddings = rows.checked_mul(width)?;
        // Attention 4·D² + 4·D, network 2·D·F + F + D, two norms of 2·D.
        let square = width.checked_mul(width)?;
        let mlp = width.checked_mul(hidden)?.checked_mul(2)?.checked_add(hidden)?;
        let block = square.checked_mul(4)?.checked_add(mlp)?.checked_add(width.checked_mul(9)?)?;
        // D² + D, a norm, and a bias a token.
        let head = square.checked_add(width.checked_mul(3)?)?.checked_add(vocabulary)?;
        embeddings.checked_add(block.checked_mul(self.layers)?)?.checked_add(head)
    }
}

impl std::fmt::Display for Dimensions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { layers, width, vocabulary, .. } = self;
        write!(f, "a model of {layers} layers, hidden size {width} and vocabulary {vocabulary}")
    }
}

/// A BERT that can be trained.
#[derive(Debug)]
struct BertWorkload {
    parameters: Parameters,
    network: Network,
    /// The same tensors without a graph.
    detached: Network,
    /// The type of the activations.
    compute: DType,
}

impl BertWorkload {
    fn pass<'a>(&'a self, batch: &'a Batch, pass: Pass) -> BertPass<'a> {
        let network = if pass.has_graph() { &self.network } else { &self.detached };
        BertPass { network, target: &batch.target, compute: self.compute }
    }
}

impl Workload for BertWorkload {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor> {
        segments::loss(&self.pass(batch, Pass::Train), &batch.input)
    }

    fn evaluate(&self, batch: &Batch) -> Result<Tensor> {
        segments::loss(&self.pass(batch, Pass::Evaluate), &batch.input)
    }

    fn segments<'a>(&'a self, batch: &'a Batch, pass: Pass) -> Result<Option<Box<dyn Segments + 'a>>> {
        Ok(Some(Box::new(self.pass(batch, pass))))
    }
}

/// A pass over one batch: the embeddings, the blocks, and the head.
struct BertPass<'a> {
    network: &'a Network,
    target: &'a Tensor,
    compute: DType,
}

impl Segments for BertPass<'_> {
    fn count(&self) -> usize {
        self.network.blocks.len() + 2
    }

    fn forward(&self, index: usize, x: &Tensor) -> Result<Tensor> {
        if index == 0 {
            return self.network.embeddings.forward(x, self.compute); // [B, T, D]
        }
        if let Some(block) = self.network.blocks.get(index - 1) {
            return block.forward(x); // [B, T, D]
        }
        let logits = self.network.head.forward(x)?.to_dtype(DType::F32)?; // [B·T, V]
        masked_cross_entropy(&logits, &self.target.flatten_all()?) // []
    }
}

/// What the layers are made with.
struct Maker<'a> {
    parameters: &'a mut Parameters,
    dimensions: &'a Dimensions,
}

impl Maker<'_> {
    fn dense(&mut self, name: &str, shape: [usize; 2]) -> Result<Linear> {
        Linear::create(self.parameters, name, shape, DEVIATION)?.with_bias(self.parameters, name)
    }

    fn norm(&mut self, name: &str) -> Result<LayerNorm> {
        let norm = LayerNorm::create(self.parameters, &format!("{name}.LayerNorm"), self.dimensions.width)?;
        Ok(norm.with_epsilon(self.dimensions.epsilon as f32))
    }
}

/// Tokens, their places and their kinds as vectors.
#[derive(Clone, Debug)]
struct Embeddings {
    tokens: Embedding,
    positions: Embedding,
    types: Embedding,
    norm: LayerNorm,
}

impl Embeddings {
    fn create(maker: &mut Maker<'_>) -> Result<Self> {
        let Dimensions { length, vocabulary, types, width, .. } = *maker.dimensions;
        let mut table = |kind: &str, rows| {
            let name = format!("embeddings.{kind}_embeddings");
            Embedding::create(maker.parameters, &name, [rows, width], DEVIATION)
        };
        Ok(Self {
            tokens: table("word", vocabulary)?,    // [V, D]
            positions: table("position", length)?, // [T, D]
            types: table("token_type", types)?,    // [types, D]
            norm: maker.norm("embeddings")?,
        })
    }

    fn forward(&self, tokens: &Tensor, compute: DType) -> Result<Tensor> {
        let (_, length) = tokens.dims2()?;
        let places = self.positions.first(length)?.broadcast_add(&self.types.first(1)?)?; // [T, D]
        let embedded = self.tokens.forward(tokens)?.broadcast_add(&places)?; // [B, T, D]
        self.norm.forward(&embedded.to_dtype(compute)?) // [B, T, D]
    }

    fn detached(&self) -> Self {
        Self {
            tokens: self.tokens.detached(),
            positions: self.positions.detached(),
            types: self.types.detached(),
            norm: self.norm.detached(),
        }
    }
}

/// One block: attention and network, each with a residual connection around it and a norm behind that.
#[derive(Clone, Debug)]
struct Block {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    mlp_norm: LayerNorm,
    heads: usize,
}

impl Block {
    fn create(maker: &mut Maker<'_>, layer: usize) -> Result<Self> {
        let Dimensions { width, hidden, heads, .. } = *maker.dimensions;
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        Ok(Self {
            query: maker.dense(&name("attention.self.query"), [width, width])?,
            key: maker.dense(&name("attention.self.key"), [width, width])?,
            value: maker.dense(&name("attention.self.value"), [width, width])?,
            output: maker.dense(&name("attention.output.dense"), [width, width])?,
            attention_norm: maker.norm(&name("attention.output"))?,
            up: maker.dense(&name("intermediate.dense"), [hidden, width])?,
            down: maker.dense(&name("output.dense"), [width, hidden])?,
            mlp_norm: maker.norm(&name("output"))?,
            heads,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.attention_norm.forward(&(x + self.attention(x)?)?)?; // [B, T, D]
        let hidden = self.up.forward(&x)?.gelu_erf()?; // [B, T, hidden width]
        let mlp = self.down.forward(&hidden)?; // [B, T, D]
        self.mlp_norm.forward(&(x + mlp)?) // [B, T, D]
    }

    /// Every token looks at every token.
    fn attention(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, length, width) = x.dims3()?;
        let heads = |part: &Linear| {
            let rows = part.forward(x)?.reshape((batch, length, self.heads, ()))?; // [B, T, H, K]
            rows.transpose(1, 2)?.contiguous() // [B, H, T, K]
        };
        let mixed = attend(&heads(&self.query)?, &heads(&self.key)?, &heads(&self.value)?, None)?; // [B, H, T, K]
        self.output.forward(&mixed.transpose(1, 2)?.reshape((batch, length, width))?) // [B, T, D]
    }

    fn detached(&self) -> Self {
        Self {
            query: self.query.detached(),
            key: self.key.detached(),
            value: self.value.detached(),
            output: self.output.detached(),
            attention_norm: self.attention_norm.detached(),
            up: self.up.detached(),
            down: self.down.detached(),
            mlp_norm: self.mlp_norm.detached(),
            heads: self.heads,
        }
    }
}

/// From vectors to logits: one more layer, then the similarity to each token's vector.
#[derive(Clone, Debug)]
struct Head {
    dense: Linear,
    norm: LayerNorm,
    output: Linear,
    bias: Tensor,
}

impl Head {
    fn create(maker: &mut Maker<'_>, tokens: &Tensor) -> Result<Self> {
        let Dimensions { width, vocabulary, .. } = *maker.dimensions;
        Ok(Self {
            dense: maker.dense("cls.predictions.transform.dense", [width, width])?,
            norm: maker.norm("cls.predictions.transform")?,
            output: Linear::tied(tokens),
            bias: maker.parameters.create("cls.predictions.bias", &[vocabulary], Init::Constant(0.0))?, // [V]
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.norm.forward(&self.dense.forward(x)?.gelu_erf()?)?; // [B, T, D]
        let logits = self.output.rows(&x)?; // [B·T, V]
        logits.broadcast_add(&self.bias.to_dtype(x.dtype())?) // [B·T, V]
    }

    fn detached(&self) -> Self {
        Self {
            dense: self.dense.detached(),
            norm: self.norm.detached(),
            output: self.output.detached(),
            bias: self.bias.detach(),
        }
    }
}

/// Tokens in, logits out.
#[derive(Clone, Debug)]
struct Network {
    embeddings: Embeddings,
    blocks: Vec<Block>,
    head: Head,
}

impl Network {
    fn create(parameters: &mut Parameters, dimensions: &Dimensions) -> Result<Self> {
        let mut maker = Maker { parameters, dimensions };
        let embeddings = Embeddings::create(&mut maker)?;
        let blocks = (0..dimensions.layers).map(|layer| Block::create(&mut maker, layer)).collect::<Result<_>>()?;
        let head = Head::create(&mut maker, embeddings.tokens.table())?;
        Ok(Self { embeddings, blocks, head })
    }

    fn detached(&self) -> Self {
        Self {
            embeddings: self.embeddings.detached(),
            blocks: self.blocks.iter().map(Block::detached).collect(),
            head: self.head.detached(),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::data::masked::IGNORED;
    use crate::train::{BatchNorm, Precision};

    fn spec(preset: &str) -> ModelSpec {
        ModelSpec { family: "bert".to_owned(), preset: Some(preset.to_owned()), ..ModelSpec::default() }
    }

    fn tiny() -> ModelSpec {
        ModelSpec {
            sequence_length: Some(8),
            layers: Some(2),
            heads: Some(2),
            hidden_size: Some(16),
            intermediate_size: Some(24),
            vocabulary_size: Some(32),
            ..spec("nano")
        }
    }

    fn build(spec: &ModelSpec, precision: Precision) -> Box<dyn Workload> {
        Bert.build(&BuildContext { spec, device: &Device::Cpu, precision, batch_norm: BatchNorm::Train, seed: 1 })
            .unwrap()
    }

    /// Every third token is asked about.
    fn batch(samples: usize, length: usize) -> Batch {
        let ids = |of: fn(u32) -> u32| {
            let ids: Vec<u32> = (0..(samples * length) as u32).map(of).collect();
            Tensor::from_vec(ids, (samples, length), &Device::Cpu).unwrap()
        };
        let target = ids(|at| if at % 3 == 0 { (at * 5 + 2) % 32 } else { IGNORED });
        Batch { input: ids(|at| at * 7 % 32), target, samples }
    }

    fn invalid_field(spec: &ModelSpec) -> &'static str {
        match Bert.input(spec) {
            Err(ModelError::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn presets_have_the_numbers_of_parameters_of_the_reference() {
        assert_eq!(PRESETS.get("base").unwrap().parameters(), Some(109_514_298));
        assert_eq!(PRESETS.get("large").unwrap().parameters(), Some(335_174_458));
    }

    #[test]
    fn a_built_model_has_the_parameters_that_were_computed() {
        let workload = build(&tiny(), Precision::F32);
        let expected = Dimensions::of(&tiny()).unwrap().parameters();
        assert_eq!(Some(workload.parameters().elements()), expected);
        assert_eq!(workload.parameters().len(), 5 + 2 * 16 + 5);
    }

    #[test]
    fn the_mask_is_the_vocabulary_s_own_or_its_last_token() {
        let mask = |spec: &ModelSpec| match Bert.input(spec).unwrap() {
            InputSpec::MaskedTokens { mask_token, .. } => mask_token,
            other => panic!("{other:?}"),
        };
        assert_eq!(mask(&spec("base")), 103);
        assert_eq!(mask(&spec("nano")), 256);
        assert_eq!(mask(&tiny()), 31);
        assert_eq!(mask(&ModelSpec { preset: None, ..tiny() }), 31);
    }

    #[test]
    fn dimensions_that_do_not_go_together_name_their_field() {
        assert_eq!(invalid_field(&ModelSpec { heads: Some(3), ..spec("nano") }), "heads");
        assert_eq!(invalid_field(&ModelSpec { vocabulary_size: Some(0), ..spec("nano") }), "vocabulary_size");
        assert_eq!(invalid_field(&ModelSpec { key_value_heads: Some(2), ..spec("nano") }), "key_value_heads");
        assert_eq!(invalid_field(&ModelSpec { hidden_size: Some(usize::MAX - 3), ..spec("nano") }), "hidden_size");
        assert_eq!(invalid_field(&ModelSpec { intermediate_size: Some(0), ..spec("nano") }), "intermediate_size");
    }

    #[test]
    fn evaluation_gives_the_same_loss_and_no_graph() {
        let workload = build(&tiny(), Precision::F32);
        let batch = batch(2, 8);
        let (trained, evaluated) = (workload.loss(&batch).unwrap(), workload.evaluate(&batch).unwrap());
        let bits = |loss: &Tensor| loss.to_scalar::<f32>().unwrap().to_bits();
        assert_eq!(bits(&trained), bits(&evaluated));
        assert!(trained.track_op() && !evaluated.track_op());
        assert!(workload.loss(&super::tests::batch(1, 9)).is_err());
    }

    #[test]
    fn every_token_sees_those_after_it() {
        let workload = build(&tiny(), Precision::F32);
        let loss = |last: u32| {
            let input = Tensor::new(&[[1_u32, 2, 3, last]], &Device::Cpu).unwrap();
            let target = Tensor::new(&[[5_u32, IGNORED, IGNORED, IGNORED]], &Device::Cpu).unwrap();
            workload.evaluate(&Batch { input, target, samples: 1 }).unwrap().to_scalar::<f32>().unwrap()
        };
        assert_ne!(loss(4).to_bits(), loss(9).to_bits());
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

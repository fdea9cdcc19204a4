//! The dimensions of a BERT, and where they come from.

use crate::model::spec::{MAX_LAYERS, MAX_LENGTH, Presets, check_parameters, check_range};
use crate::model::{ModelError, ModelSpec, hugging_face};

/// `[MASK]` in all published vocabularies of BERT.
pub(in crate::model) const MASK_TOKEN: u32 = 103;

/// Named dimensions. `nano` is for tests and first steps on a CPU, with all 256 bytes and a mask; the others are the
/// published sizes.
pub(in crate::model) const PRESETS: Presets<'static, Dimensions> = Presets { family: "bert", all: &ALL };
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

/// The dimensions of a model, validated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::model) struct Dimensions {
    /// T: the most tokens of a sample, and the number of learned positions.
    pub(in crate::model) length: usize,
    /// Blocks.
    pub(in crate::model) layers: usize,
    /// H.
    pub(in crate::model) heads: usize,
    /// D.
    pub(in crate::model) width: usize,
    /// Width of the hidden layer of a block's network.
    pub(in crate::model) hidden: usize,
    /// V.
    pub(in crate::model) vocabulary: usize,
    /// Kinds of tokens that the embedding tells apart.
    pub(in crate::model) types: usize,
    /// Added to the variance of a norm.
    pub(in crate::model) epsilon: f64,
    /// The token that stands for a hidden one.
    pub(in crate::model) mask_token: u32,
}

impl Dimensions {
    /// The base's dimensions with the fields of the specification over them.
    pub(super) fn of(spec: &ModelSpec) -> Result<Self, ModelError> {
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

    fn validate(&self) -> Result<(), ModelError> {
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
        check_parameters(self.parameters())
    }

    /// Scalar parameters; `None` where they overflow.
    pub(super) fn parameters(&self) -> Option<usize> {
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

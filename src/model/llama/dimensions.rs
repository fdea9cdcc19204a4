//! The dimensions of a Llama, and where they come from.

use crate::model::layers::Llama3Scaling;
use crate::model::spec::{MAX_LAYERS, MAX_LENGTH, Presets, check_parameters, check_range};
use crate::model::{ModelError, ModelSpec, hugging_face};

/// The base of the rotary frequencies, where nothing else is said.
pub(in crate::model) const THETA: f64 = 10_000.0;
/// What is added to the mean square, where nothing else is said.
const EPSILON: f64 = 1e-5;

/// Named dimensions. `nano` is for tests and first steps on a CPU; the others are the published sizes, Llama 3.2 at the
/// context that it was trained with and not at the 131072 tokens that it was stretched to.
pub(in crate::model) const PRESETS: Presets<'static, Dimensions> = Presets { family: "llama", all: &ALL };
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

/// The dimensions of a model, validated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::model) struct Dimensions {
    /// T: the most tokens of a sample.
    pub(in crate::model) length: usize,
    /// Blocks.
    pub(in crate::model) layers: usize,
    /// H.
    pub(in crate::model) heads: usize,
    /// G.
    pub(in crate::model) shared: usize,
    /// K.
    pub(in crate::model) size: usize,
    /// D.
    pub(in crate::model) width: usize,
    /// Width of the hidden layer of a block's network.
    pub(in crate::model) hidden: usize,
    /// V.
    pub(in crate::model) vocabulary: usize,
    /// Added to the mean square of a norm.
    pub(in crate::model) epsilon: f64,
    /// The base of the rotary frequencies.
    pub(in crate::model) theta: f64,
    /// How they are changed for a longer context.
    pub(in crate::model) scaling: Option<Llama3Scaling>,
    /// Whether the output layer is the embedding's.
    pub(in crate::model) tied: bool,
}

impl Dimensions {
    /// The base's dimensions with the fields of the specification over them.
    pub(super) fn of(spec: &ModelSpec) -> Result<Self, ModelError> {
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

    fn validate(&self) -> Result<(), ModelError> {
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
        check_parameters(self.parameters())
    }

    /// Scalar parameters; `None` where they overflow.
    pub(super) fn parameters(&self) -> Option<usize> {
        let width = self.width;
        let tables = self.vocabulary.checked_mul(width)?.checked_mul(if self.tied { 1 } else { 2 })?;
        // Queries and output of H heads, keys and values of G; gate, up and down; two norms.
        let heads = self.heads.checked_add(self.shared)?.checked_mul(2)?.checked_mul(self.size)?;
        let rows = heads.checked_add(self.hidden.checked_mul(3)?)?.checked_add(2)?;
        let blocks = rows.checked_mul(width)?.checked_mul(self.layers)?;
        tables.checked_add(blocks)?.checked_add(width)
    }
}

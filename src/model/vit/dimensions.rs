//! The dimensions of a ViT, and where they come from.

use crate::model::spec::{MAX_LAYERS, MAX_LENGTH, Presets, check_parameters, check_range};
use crate::model::{ModelError, ModelSpec, hugging_face};

/// Named dimensions. `nano` is for tests and first steps on a CPU, with images of the size of CIFAR's; the others are
/// those of the paper and, for the small one, of DeiT (Touvron et al., 2020).
pub(super) const PRESETS: Presets<'static, Dimensions> = Presets { family: "vit", all: &ALL };
const ALL: [(&str, Dimensions); 4] = [
    ("vit-s16", Dimensions { heads: 6, width: 384, hidden: 1536, ..BASE }),
    ("vit-b16", BASE),
    ("vit-l16", Dimensions { layers: 24, heads: 16, width: 1024, hidden: 4096, ..BASE }),
    ("nano", Dimensions { image: 32, patch: 4, classes: 10, layers: 4, heads: 4, width: 64, hidden: 256, ..BASE }),
];

const BASE: Dimensions = Dimensions {
    image: 224,
    patch: 16,
    classes: 1000,
    layers: 12,
    heads: 12,
    width: 768,
    hidden: 3072,
    epsilon: 1e-12,
};

/// The keys of `model` that mean something here.
const READ: [&str; 9] =
    ["preset", "config", "image_size", "patch_size", "classes", "layers", "heads", "hidden_size", "intermediate_size"];

/// Red, green and blue.
pub(super) const CHANNELS: usize = 3;
/// Larger ones are cut before they are looked at.
const MAX_IMAGE: usize = 1 << 14;

/// The dimensions of a model, validated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::model) struct Dimensions {
    /// S.
    pub(in crate::model) image: usize,
    /// P.
    pub(in crate::model) patch: usize,
    /// K.
    pub(in crate::model) classes: usize,
    /// Blocks.
    pub(in crate::model) layers: usize,
    /// H.
    pub(in crate::model) heads: usize,
    /// D.
    pub(in crate::model) width: usize,
    /// Width of the hidden layer of a block's network.
    pub(in crate::model) hidden: usize,
    /// Added to the variance of a norm.
    pub(in crate::model) epsilon: f64,
}

impl Dimensions {
    /// The base's dimensions with the fields of the specification over them.
    pub(super) fn of(spec: &ModelSpec) -> Result<Self, ModelError> {
        spec.refuse_unread("vit", &READ)?;
        let base = spec.base(&PRESETS, hugging_face::vit)?;
        let of_base = |of: fn(&Self) -> usize| base.as_ref().map(of);
        let width = PRESETS.dimension("hidden_size", spec.hidden_size, of_base(|base| base.width))?;
        let hidden = spec.intermediate_size.or(of_base(|base| base.hidden));
        let dimensions = Self {
            image: PRESETS.dimension("image_size", spec.image_size, of_base(|base| base.image))?,
            patch: PRESETS.dimension("patch_size", spec.patch_size, of_base(|base| base.patch))?,
            classes: PRESETS.dimension("classes", spec.classes, of_base(|base| base.classes))?,
            layers: PRESETS.dimension("layers", spec.layers, of_base(|base| base.layers))?,
            heads: PRESETS.dimension("heads", spec.heads, of_base(|base| base.heads))?,
            width,
            hidden: hidden.unwrap_or(width.saturating_mul(4)),
            ..base.unwrap_or(BASE)
        };
        dimensions.validate()?;
        Ok(dimensions)
    }

    fn validate(&self) -> Result<(), ModelError> {
        check_range("image_size", self.image, MAX_IMAGE)?;
        check_range("patch_size", self.patch, self.image)?;
        check_range("classes", self.classes, u32::MAX as usize)?;
        check_range("layers", self.layers, MAX_LAYERS)?;
        check_range("heads", self.heads, usize::MAX)?;
        check_range("hidden_size", self.width, usize::MAX)?;
        check_range("intermediate_size", self.hidden, usize::MAX)?;
        let invalid = |field, reason| Err(ModelError::Invalid { field, reason });
        if !self.image.is_multiple_of(self.patch) {
            let reason = format!("patches of {} do not divide an `image_size` of {}", self.patch, self.image);
            return invalid("patch_size", reason);
        }
        if self.tokens() > MAX_LENGTH {
            return invalid("patch_size", format!("{} patches are over {}", self.tokens() - 1, MAX_LENGTH - 1));
        }
        if !self.width.is_multiple_of(self.heads) {
            let reason = format!("{} heads do not divide a `hidden_size` of {}", self.heads, self.width);
            return invalid("heads", reason);
        }
        if !(self.epsilon.is_finite() && self.epsilon > 0.0) {
            return invalid("config", "its `layer_norm_eps` is not positive".to_owned());
        }
        check_parameters(self.parameters())
    }

    /// T: one for each patch, and the class token.
    pub(super) fn tokens(&self) -> usize {
        (self.image / self.patch).pow(2) + 1
    }

    /// Values of a patch.
    pub(super) fn patch_values(&self) -> usize {
        CHANNELS * self.patch * self.patch
    }

    /// Scalar parameters; `None` where they overflow.
    pub(super) fn parameters(&self) -> Option<usize> {
        let Self { width, hidden, classes, .. } = *self;
        // The projection of the patches with its bias, the class token, the positions, and the last norm.
        let rows = self.patch_values().checked_add(self.tokens())?.checked_add(4)?;
        let embeddings = rows.checked_mul(width)?;
        // Attention 4·D² + 4·D, network 2·D·F + F + D, two norms of 2·D.
        let square = width.checked_mul(width)?;
        let mlp = width.checked_mul(hidden)?.checked_mul(2)?.checked_add(hidden)?;
        let block = square.checked_mul(4)?.checked_add(mlp)?.checked_add(width.checked_mul(9)?)?;
        let head = width.checked_add(1)?.checked_mul(classes)?;
        embeddings.checked_add(block.checked_mul(self.layers)?)?.checked_add(head)
    }
}

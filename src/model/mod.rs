//! The model room: workloads that a trial can train.
//!
//! A [`Workload`] is a model instance on a device that can say what the loss of a batch is. A [`Family`] builds one
//! from a [`ModelSpec`]. The [`Registry`] holds the families; a user's own binary adds its own and so becomes a
//! tuner for them (see [`crate::main`]).
//!
//! # To add a family
//! Create `model/<family>.rs` with a type that implements [`Family`], add one line to [`Registry::builtin`], and
//! the contract tests run over it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{Device, Tensor};

use crate::data::{Batch, ImageSizeSpec, InputSpec};
use crate::device::collective::Collective;
use crate::train::{BatchNorm, Precision};

pub mod batch_norm;
pub mod bert;
#[cfg(test)]
pub(crate) mod contract;
pub mod convolution;
pub mod gpt;
mod hugging_face;
pub mod layers;
pub mod llama;
pub mod max_pool;
pub mod parameters;
pub mod resnet;
pub mod segments;
pub mod spec;
pub mod vit;
mod weights;

pub use batch_norm::Statistics;
pub use hugging_face::Place;
pub use parameters::{Buffers, Parameters};
pub use segments::{Pass, Segmented, Segments};
pub use spec::ModelSpec;
pub use weights::Weights;

/// What a family gets to build a workload with.
#[derive(Clone, Copy, Debug)]
pub struct BuildContext<'a> {
    /// The dimensions asked for.
    pub spec: &'a ModelSpec,
    /// Where the parameters are to live.
    pub device: &'a Device,
    /// The types of the parameters and the activations.
    pub precision: Precision,
    /// What batch normalisation does in training.
    pub batch_norm: BatchNorm,
    /// The seed of the initialisation.
    pub seed: u64,
    /// The group of replicas that this model is one of; `None` where it is alone.
    pub replicas: Option<&'a Arc<dyn Collective>>,
}

impl BuildContext<'_> {
    /// What batch normalisation takes its statistics over.
    pub fn statistics(&self) -> Result<Statistics, ModelError> {
        match (self.batch_norm, self.replicas) {
            (BatchNorm::Train, _) => Ok(Statistics::Batch),
            (BatchNorm::Frozen, _) => Ok(Statistics::Running),
            (BatchNorm::Sync, Some(group)) if group.world() > 1 => Ok(Statistics::Replicas(Arc::clone(group))),
            (BatchNorm::Sync, _) => Err(ModelError::SyncWithoutReplicas),
        }
    }

    /// An empty set of parameters for the model, with the values of `model.weights` where there are some. Tensors in
    /// that file may have one of the `prefixes` before the parameter's name.
    pub fn parameters(&self, prefixes: &'static [&'static str]) -> Result<Parameters, ModelError> {
        let parameters = Parameters::new(self.device, self.precision.parameter_dtype(), self.seed);
        Ok(match &self.spec.weights {
            Some(path) => parameters.with_weights(Weights::open(path, prefixes)?),
            None => parameters,
        })
    }
}

/// A kind of model.
pub trait Family: Send + Sync {
    /// The name in `model.family`.
    fn name(&self) -> &'static str;

    /// The names allowed in `model.preset`.
    fn presets(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// What a batch for this model looks like, so that a dataset can be made to fit.
    fn input(&self, spec: &ModelSpec) -> Result<InputSpec, ModelError>;

    /// Scalar parameters of a model, without building it; `None` where the family cannot say.
    fn parameter_count(&self, _spec: &ModelSpec) -> Result<Option<u64>, ModelError> {
        Ok(None)
    }

    /// Whether its models normalise over batches, so that `train.batch_norm` means something to them. A family that does
    /// not say is believed to.
    fn has_batch_norm(&self) -> bool {
        true
    }

    /// Whether its models take images of any side, so that `data.image_size` may vary. One whose parameters are made for a
    /// side (positions, a layer over all pixels) does not.
    fn takes_any_image_size(&self) -> bool {
        false
    }

    /// Builds the model with initialised parameters.
    fn build(&self, context: &BuildContext<'_>) -> Result<Box<dyn Workload>, ModelError>;
}

/// A model that can be trained: parameters, and the loss of a batch.
///
/// The loss must reach every parameter by operations that have a backward pass. Some of candle's have none and cut
/// the graph silently (`candle_nn::LayerNorm`, `RmsNorm`, `softmax_last_dim`, the rotary ops, `sdpa`); a trial checks
/// the first step and warns of parameters without a gradient.
pub trait Workload {
    /// The trainable parameters.
    fn parameters(&self) -> &Parameters;

    /// What the model keeps beside its parameters and no gradient reaches; `None` where it keeps nothing.
    fn buffers(&self) -> Option<&Buffers> {
        None
    }

    /// The mean loss over the batch: a scalar, differentiable with respect to the parameters.
    fn loss(&self, batch: &Batch) -> candle_core::Result<Tensor>;

    /// The same loss for an evaluation pass, where nobody asks for gradients.
    ///
    /// candle has no switch that turns the graph off, so by default this builds one and the activations live until
    /// the loss is dropped. A family that can run over detached parameters does so and needs far less.
    fn evaluate(&self, batch: &Batch) -> candle_core::Result<Tensor> {
        self.loss(batch)
    }

    /// The loss of a batch cut into segments, one after the other, which is what gradient checkpointing needs; `None`
    /// where the model is of one piece.
    fn segments<'a>(&'a self, _batch: &'a Batch, _pass: Pass) -> candle_core::Result<Option<Box<dyn Segments + 'a>>> {
        Ok(None)
    }
}

/// The families a binary knows.
#[derive(Default)]
pub struct Registry {
    families: BTreeMap<&'static str, Box<dyn Family>>,
}

impl Registry {
    /// A registry with the families that come with batchtune.
    pub fn builtin() -> Self {
        Self::default().with(gpt::Gpt).with(llama::Llama).with(bert::Bert).with(resnet::ResNet).with(vit::Vit)
    }

    /// Adds a family. One of the same name is replaced.
    pub fn with(mut self, family: impl Family + 'static) -> Self {
        self.families.insert(family.name(), Box::new(family));
        self
    }

    /// The family called `name`.
    pub fn get(&self, name: &str) -> Result<&dyn Family, ModelError> {
        self.families
            .get(name)
            .map(AsRef::as_ref)
            .ok_or_else(|| ModelError::UnknownFamily { name: name.to_owned(), known: self.names().join(", ") })
    }

    /// Refuses sides that vary where the model takes images of one.
    pub fn check_sides(
        &self,
        spec: &ModelSpec,
        input: &InputSpec,
        size: Option<ImageSizeSpec>,
    ) -> Result<(), ModelError> {
        let family = self.get(&spec.family)?;
        let varies = matches!(size, Some(ImageSizeSpec::Range { .. })) && matches!(input, InputSpec::Features { .. });
        if varies && !family.takes_any_image_size() {
            return Err(ModelError::OneImageSize { family: family.name() });
        }
        Ok(())
    }

    /// The names of all families, in order.
    pub fn names(&self) -> Vec<&'static str> {
        self.families.keys().copied().collect()
    }
}

/// Why a model cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// No family of that name.
    #[error("unknown model family `{name}`, expected one of: {known}{}", spec::suggestion(name, known))]
    UnknownFamily {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// No preset of that name.
    #[error(
        "unknown preset `{preset}` of family `{family}`, expected one of: {known}{}",
        spec::suggestion(preset, known)
    )]
    UnknownPreset {
        /// The family.
        family: &'static str,
        /// What was asked for.
        preset: String,
        /// What there is.
        known: String,
    },
    /// Dimensions that do not go together.
    #[error("invalid `model.{field}`: {reason}")]
    Invalid {
        /// The field of the specification.
        field: &'static str,
        /// Why not.
        reason: String,
    },
    /// Sides that vary, for a model that takes images of one.
    #[error(
        "models of family `{family}` take images of one side, that of `model.image_size` (hint: those of `resnet` take any; \
         a family of your own says that its do by `takes_any_image_size`)"
    )]
    OneImageSize {
        /// The family.
        family: &'static str,
    },
    /// A precision that the family cannot train in.
    #[error("`train.precision: {precision}` is not supported yet by family `{family}` (hint: `f32` or `bf16`)")]
    PrecisionNotSupported {
        /// The family.
        family: &'static str,
        /// What was asked for.
        precision: Precision,
    },
    /// Batch norm over all replicas, where there is one.
    #[error("`train.batch_norm: sync` needs more than one replica (hint: `train` or `frozen`)")]
    SyncWithoutReplicas,
    /// A file of weights that cannot be read.
    #[error("cannot read `model.weights` `{}`: {reason}", path.display())]
    Weights {
        /// Which.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A `config.json` that cannot be read, or is not the family's.
    #[error("cannot use `model.config` `{}{}`: {reason}", path.display(), place.map_or_else(String::new, |place| place.to_string()))]
    Config {
        /// Which.
        path: PathBuf,
        /// Where in it, if it is about one place.
        place: Option<Place>,
        /// Why not.
        reason: String,
    },
    /// candle could not build it.
    #[error("cannot build the model")]
    Candle(#[from] candle_core::Error),
}

impl Registry {
    /// Validates a specification without building anything: the family and preset exist, the dimensions agree.
    pub fn input(&self, spec: &ModelSpec) -> Result<InputSpec, ModelError> {
        self.get(&spec.family)?.input(spec)
    }
}

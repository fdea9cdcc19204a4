//! ResNet: the convolutional nets of image classification.
//!
//! Paper: He et al., "Deep Residual Learning for Image Recognition" (2015). Reference implementation: `torchvision`'s
//! `models/resnet.py`, whose parameter and buffer names and shapes are used here, so that a checkpoint of theirs fits.
//! As there, the deeper nets are "v1.5": the stride of a bottleneck is in its convolution of 3 × 3.
//!
//! The activations have the compute type; batch norm's statistics, the average over the last image and the loss are
//! computed in f32.
//!
//! Letters of the shapes: B samples, C channels, H and W sides of the image, K classes.

use candle_core::{DType, Result, Tensor};

use super::convolution::Kernel;
use super::parameters::{Buffers, Parameters};
use super::segments::{Pass, Segmented, Segments};
use super::spec::{Presets, check_range};
use super::{BuildContext, Family, ModelError, ModelSpec, Workload};
use crate::data::{Batch, InputSpec};

mod network;

use network::Network;

/// Named dimensions. `nano` is for tests and first steps on a CPU, with images of the size of CIFAR's; the others are
/// the published ones.
const PRESETS: Presets<'static, Dimensions> = Presets { family: "resnet", all: &ALL };
const ALL: [(&str, Dimensions); 6] = [
    ("resnet18", published(&[2, 2, 2, 2], Block::Basic)),
    ("resnet34", published(&[3, 4, 6, 3], Block::Basic)),
    ("resnet50", published(&[3, 4, 6, 3], Block::Bottleneck)),
    ("resnet101", published(&[3, 4, 23, 3], Block::Bottleneck)),
    ("resnet152", published(&[3, 8, 36, 3], Block::Bottleneck)),
    ("nano", Dimensions { image: 32, classes: 10, width: 16, stages: &[1, 1, 1], block: Block::Basic }),
];

/// The keys of `model` that mean something here.
const READ: [&str; 4] = ["preset", "image_size", "classes", "hidden_size"];

/// ImageNet's images and classes.
const fn published(stages: &'static [usize], block: Block) -> Dimensions {
    Dimensions { image: 224, classes: 1000, width: 64, stages, block }
}

/// Red, green and blue.
const CHANNELS: usize = 3;
/// A batch of one such image has activations of hundreds of gigabytes.
const MAX_IMAGE: usize = 1 << 14;
/// A weight for each class and feature: more cannot be meant.
const MAX_CLASSES: usize = 1 << 24;
/// The last stage of a bottleneck net has thirty-two times as many channels.
const MAX_WIDTH: usize = 1 << 14;

/// The ResNet family.
#[derive(Debug)]
pub struct ResNet;

impl Family for ResNet {
    fn name(&self) -> &'static str {
        "resnet"
    }

    fn presets(&self) -> Vec<&'static str> {
        PRESETS.names()
    }

    fn input(&self, spec: &ModelSpec) -> std::result::Result<InputSpec, ModelError> {
        let Dimensions { image, classes, .. } = Dimensions::of(spec)?;
        Ok(InputSpec::Features { shape: vec![CHANNELS, image, image], classes })
    }

    fn parameter_count(&self, spec: &ModelSpec) -> std::result::Result<Option<u64>, ModelError> {
        Ok(Dimensions::of(spec)?.parameters().map(|count| count as u64))
    }

    /// The head is a linear map of the mean over the last image, however large that is.
    fn takes_any_image_size(&self) -> bool {
        true
    }

    fn build(&self, context: &BuildContext<'_>) -> std::result::Result<Box<dyn Workload>, ModelError> {
        let dimensions = Dimensions::of(context.spec)?;
        Ok(Box::new(ResNetWorkload::create(context, &dimensions)?))
    }
}

/// What a residual block is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    /// Two convolutions of 3 × 3.
    Basic,
    /// One of 1 × 1 that narrows, one of 3 × 3, and one of 1 × 1 that widens to four times the width.
    Bottleneck,
}

/// The dimensions of a model, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dimensions {
    /// Pixels of an image's side.
    image: usize,
    /// K.
    classes: usize,
    /// Channels after the stem. Each stage but the first doubles them and halves the sides of the image.
    width: usize,
    /// Blocks in each stage.
    stages: &'static [usize],
    block: Block,
}

impl Dimensions {
    /// The preset's dimensions with the fields of the specification over them.
    fn of(spec: &ModelSpec) -> std::result::Result<Self, ModelError> {
        spec.refuse_unread("resnet", &READ)?;
        let Some(name) = &spec.preset else {
            let reason = format!("it is missing (hint: one of {})", PRESETS.names().join(", "));
            return Err(ModelError::Invalid { field: "preset", reason });
        };
        let preset = PRESETS.get(name)?;
        let dimensions = Self {
            image: spec.image_size.unwrap_or(preset.image),
            classes: spec.classes.unwrap_or(preset.classes),
            width: spec.hidden_size.unwrap_or(preset.width),
            ..preset
        };
        check_range("image_size", dimensions.image, MAX_IMAGE)?;
        check_range("classes", dimensions.classes, MAX_CLASSES)?;
        check_range("hidden_size", dimensions.width, MAX_WIDTH)?;
        Ok(dimensions)
    }

    /// The convolution before the first stage.
    fn stem(&self) -> Kernel {
        Kernel { inputs: CHANNELS, outputs: self.width, side: 7, stride: 2 }
    }

    /// The residual blocks, in order.
    fn blocks(&self) -> Vec<BlockShape> {
        let mut inputs = self.width;
        let mut blocks = Vec::new();
        for (stage, &count) in self.stages.iter().enumerate() {
            for index in 0..count {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                let block =
                    self.block.shape(format!("layer{}.{index}", stage + 1), inputs, self.width << stage, stride);
                inputs = block.outputs();
                blocks.push(block);
            }
        }
        blocks
    }

    /// Channels of the last image.
    fn features(&self) -> usize {
        self.blocks().last().map_or(self.width, BlockShape::outputs)
    }

    /// Scalar parameters; `None` where they overflow.
    fn parameters(&self) -> Option<usize> {
        let blocks = self.blocks();
        let kernels = blocks.iter().flat_map(|block| block.kernels.iter().chain(&block.shortcut));
        let stem = self.stem();
        // Each convolution has a norm with a weight and a bias for each of its channels.
        let convolutions = std::iter::once(&stem).chain(kernels).try_fold(0_usize, |sum, kernel| {
            sum.checked_add(kernel.parameters()?)?.checked_add(kernel.outputs.checked_mul(2)?)
        })?;
        convolutions.checked_add(self.features().checked_add(1)?.checked_mul(self.classes)?)
    }
}

/// The convolutions of a residual block.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BlockShape {
    name: String,
    /// One after the other.
    kernels: Vec<Kernel>,
    /// The one around them, where the image changes its shape.
    shortcut: Option<Kernel>,
}

impl BlockShape {
    fn outputs(&self) -> usize {
        self.kernels.last().map_or(0, |kernel| kernel.outputs)
    }
}

impl Block {
    fn shape(self, name: String, inputs: usize, width: usize, stride: usize) -> BlockShape {
        let kernel = |inputs, outputs, side, stride| Kernel { inputs, outputs, side, stride };
        let (outputs, kernels) = match self {
            Self::Basic => (width, vec![kernel(inputs, width, 3, stride), kernel(width, width, 3, 1)]),
            Self::Bottleneck => {
                let outputs = 4 * width;
                let narrow = kernel(inputs, width, 1, 1);
                (outputs, vec![narrow, kernel(width, width, 3, stride), kernel(width, outputs, 1, 1)])
            }
        };
        let shortcut = (stride != 1 || inputs != outputs).then(|| kernel(inputs, outputs, 1, stride));
        BlockShape { name, kernels, shortcut }
    }
}

/// A ResNet that can be trained.
#[derive(Debug)]
struct ResNetWorkload {
    parameters: Parameters,
    buffers: Buffers,
    network: Network,
    /// The same tensors without a graph.
    detached: Network,
    /// The type of the activations.
    compute: DType,
}

impl ResNetWorkload {
    fn create(context: &BuildContext<'_>, dimensions: &Dimensions) -> std::result::Result<Self, ModelError> {
        let statistics = context.statistics()?;
        // A net that was wrapped for training on several devices is saved with this prefix.
        let mut parameters = context.parameters(&["module."])?;
        let mut buffers = parameters.buffers();
        let network = Network::create((&mut parameters, &mut buffers), dimensions, statistics)?;
        let detached = network.detached();
        Ok(Self { parameters, buffers, network, detached, compute: context.precision.compute_dtype() })
    }
}

impl Segmented for ResNetWorkload {
    type OnePass<'a> = ResNetPass<'a>;

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn buffers(&self) -> Option<&Buffers> {
        Some(&self.buffers)
    }

    fn pass<'a>(&'a self, batch: &'a Batch, pass: Pass) -> Result<ResNetPass<'a>> {
        let network = if pass.has_graph() { &self.network } else { &self.detached };
        Ok(ResNetPass { network, target: &batch.target, compute: self.compute, pass })
    }
}

/// A pass over one batch: the stem, the residual blocks, and the head.
struct ResNetPass<'a> {
    network: &'a Network,
    target: &'a Tensor,
    compute: DType,
    pass: Pass,
}

impl Segments for ResNetPass<'_> {
    fn count(&self) -> usize {
        self.network.blocks.len() + 2
    }

    fn forward(&self, index: usize, x: &Tensor) -> Result<Tensor> {
        if index == 0 {
            return self.network.stem(&x.to_dtype(self.compute)?, self.pass); // [B, C, H, W]
        }
        if let Some(block) = self.network.blocks.get(index - 1) {
            return block.forward(x, self.pass); // [B, C, H, W]
        }
        let logits = self.network.logits(x)?.to_dtype(DType::F32)?; // [B, K]
        candle_nn::loss::cross_entropy(&logits, self.target) // []
    }
}

#[cfg(test)]
mod tests;

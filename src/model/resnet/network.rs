//! The layers of a ResNet, from the image to the logits.
//!
//! Letters of the shapes: B samples, C channels, H and W sides of the image, K classes.

use candle_core::{DType, Result, Tensor};

use super::{BlockShape, Dimensions};
use crate::model::batch_norm::{BatchNorm, Statistics};
use crate::model::convolution::{Convolution, Kernel};
use crate::model::layers::Linear;
use crate::model::max_pool::max_pool;
use crate::model::parameters::{Buffers, Parameters};
use crate::model::segments::Pass;

/// Images in, logits out.
#[derive(Clone, Debug)]
pub(super) struct Network {
    stem: Unit,
    pub(super) blocks: Vec<Residual>,
    head: Linear,
}

impl Network {
    pub(super) fn create(
        (parameters, buffers): (&mut Parameters, &mut Buffers),
        dimensions: &Dimensions,
        statistics: Statistics,
    ) -> Result<Self> {
        let mut maker = Maker { parameters, buffers, statistics };
        let stem = maker.unit(["conv1", "bn1"], dimensions.stem())?;
        let blocks = dimensions.blocks().iter().map(|shape| maker.residual(shape)).collect::<Result<_>>()?;
        let features = dimensions.features();
        // The deviation of the uniform distribution that PyTorch starts a linear layer with.
        let deviation = 1.0 / (3.0 * features as f32).sqrt();
        let head = Linear::create(maker.parameters, "fc", [dimensions.classes, features], deviation)?;
        let head = head.with_bias(maker.parameters, "fc")?;
        Ok(Self { stem, blocks, head })
    }

    /// From the image to a quarter of its sides.
    pub(super) fn stem(&self, x: &Tensor, pass: Pass) -> Result<Tensor> {
        max_pool(&self.stem.forward(x, pass)?.relu()?) // [B, C, H, W]
    }

    /// The mean over the last image, and a linear map of it.
    pub(super) fn logits(&self, x: &Tensor) -> Result<Tensor> {
        let pooled = x.to_dtype(DType::F32)?.flatten_from(2)?.mean(2)?; // [B, C]
        self.head.rows(&pooled.to_dtype(x.dtype())?.unsqueeze(1)?) // [B, K]
    }

    pub(super) fn detached(&self) -> Self {
        Self {
            stem: self.stem.detached(),
            blocks: self.blocks.iter().map(Residual::detached).collect(),
            head: self.head.detached(),
        }
    }
}

/// A convolution and the norm after it.
#[derive(Clone, Debug)]
struct Unit {
    convolution: Convolution,
    norm: BatchNorm,
}

impl Unit {
    fn forward(&self, x: &Tensor, pass: Pass) -> Result<Tensor> {
        self.norm.forward(&self.convolution.forward(x)?, pass) // [B, C, H, W]
    }

    fn detached(&self) -> Self {
        Self { convolution: self.convolution.detached(), norm: self.norm.detached() }
    }
}

/// A residual block: what its units make of an image is added to the image.
#[derive(Clone, Debug)]
pub(super) struct Residual {
    units: Vec<Unit>,
    shortcut: Option<Unit>,
}

impl Residual {
    pub(super) fn forward(&self, x: &Tensor, pass: Pass) -> Result<Tensor> {
        let mut y = x.clone(); // [B, C, H, W]
        for (index, unit) in self.units.iter().enumerate() {
            let input = if index == 0 { y } else { y.relu()? }; // [B, C, H, W]
            y = unit.forward(&input, pass)?; // [B, C, H, W]
        }
        let sum = match &self.shortcut {
            Some(unit) => y + unit.forward(x, pass)?, // [B, C, H, W]
            None => y + x,                            // [B, C, H, W]
        };
        sum?.relu() // [B, C, H, W]
    }

    fn detached(&self) -> Self {
        Self {
            units: self.units.iter().map(Unit::detached).collect(),
            shortcut: self.shortcut.as_ref().map(Unit::detached),
        }
    }
}

/// Where the layers' parameters and buffers go.
struct Maker<'a> {
    parameters: &'a mut Parameters,
    buffers: &'a mut Buffers,
    statistics: Statistics,
}

impl Maker<'_> {
    fn unit(&mut self, [convolution, norm]: [&str; 2], kernel: Kernel) -> Result<Unit> {
        Ok(Unit {
            convolution: Convolution::create(self.parameters, convolution, kernel)?,
            norm: BatchNorm::create((self.parameters, self.buffers), norm, kernel.outputs, self.statistics.clone())?,
        })
    }

    fn residual(&mut self, BlockShape { name, kernels, shortcut }: &BlockShape) -> Result<Residual> {
        let units = kernels.iter().enumerate().map(|(index, kernel)| {
            let number = index + 1;
            self.unit([&format!("{name}.conv{number}"), &format!("{name}.bn{number}")], *kernel)
        });
        let units = units.collect::<Result<_>>()?;
        let names = [format!("{name}.downsample.0"), format!("{name}.downsample.1")];
        let shortcut = shortcut.map(|kernel| self.unit([&names[0], &names[1]], kernel)).transpose()?;
        Ok(Residual { units, shortcut })
    }
}

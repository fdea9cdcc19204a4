//! The two-dimensional convolution of image models, as PyTorch's `Conv2d` without a bias.
//!
//! Letters of the shapes: B samples, C channels in, O channels out, K side of the kernel, H and W sides of the image.

use candle_core::{DType, Result, Tensor};

use super::parameters::{Init, Parameters};

/// The form of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// C.
    pub inputs: usize,
    /// O.
    pub outputs: usize,
    /// K.
    pub side: usize,
    /// Pixels from one window to the next.
    pub stride: usize,
}

impl Kernel {
    /// Zeros around the image: with them, a stride of 1 keeps its size.
    pub fn padding(&self) -> usize {
        self.side / 2
    }

    /// Scalar weights; `None` where they overflow.
    pub fn parameters(&self) -> Option<usize> {
        self.inputs.checked_mul(self.outputs)?.checked_mul(self.side)?.checked_mul(self.side)
    }
}

/// A convolution over the sides of an image.
#[derive(Clone, Debug)]
pub struct Convolution {
    weight: Tensor,
    kernel: Kernel,
}

impl Convolution {
    /// Creates `<name>.weight`, drawn as He et al. (2015) do for nets of rectified units, over the outputs: the normal
    /// distribution of variance 2 / (O·K²).
    pub fn create(parameters: &mut Parameters, name: &str, kernel: Kernel) -> Result<Self> {
        let Kernel { inputs, outputs, side, .. } = kernel;
        let deviation = (2.0 / (outputs * side * side) as f32).sqrt();
        let shape = [outputs, inputs, side, side];
        let weight = parameters.create(&format!("{name}.weight"), &shape, Init::Normal(deviation))?; // [O, C, K, K]
        Ok(Self { weight, kernel })
    }

    /// Applies the kernel to every window.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let Kernel { side, stride, .. } = self.kernel;
        let padding = self.kernel.padding();
        // candle's backward pass takes the rest of the division by the stride from the height alone.
        let rest = |size: usize| (size + 2 * padding).checked_sub(side).map(|size| size % stride);
        if rest(height).is_none() || rest(height) != rest(width) {
            candle_core::bail!("a convolution of {side} × {side} with stride {stride} does not fit {height} × {width}");
        }
        // candle's convolution on the CPU knows no bfloat16.
        let dtype = if x.device().is_cpu() && x.dtype() == DType::BF16 { DType::F32 } else { x.dtype() };
        let weight = self.weight.to_dtype(x.dtype())?.to_dtype(dtype)?; // [O, C, K, K]
        x.to_dtype(dtype)?.conv2d(&weight, padding, stride, 1, 1)?.to_dtype(x.dtype()) // [B, O, H, W]
    }

    /// The same layer without a graph, over the same storage.
    pub fn detached(&self) -> Self {
        Self { weight: self.weight.detach(), kernel: self.kernel }
    }
}

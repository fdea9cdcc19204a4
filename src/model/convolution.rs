//! The two-dimensional convolution of image models, as PyTorch's `Conv2d` without a bias.
//!
//! Forward it is candle's `conv2d`, and a matrix product where the kernel is a single pixel. The backward pass is our
//! own, because candle's
//! - fails where the two sides of an image leave different rests when divided by the stride, as 8 × 7 does with 2,
//! - computes a gradient for the image even where nobody asks for it, as for the input of a net,
//! - runs on CUDA through kernels with a loop a pixel (`conv_transpose2d`, and with cuDNN the direct convolution, since
//!   the gradient that it takes for a kernel is not contiguous).
//!
//! Here the gradient of the weight is one matrix product for each pixel of the kernel, and that of the image is a
//! convolution with the kernel turned around. What lives until the backward pass is as with candle's: the input and the
//! result.
//!
//! Letters of the shapes: B samples, C channels in, O channels out, K side of the kernel, H and W sides of the image, h
//! and w those of the result.

use std::sync::{Mutex, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, CustomOp2, DType, Layout, Result, Shape, Storage, Tensor};

use super::parameters::{Init, Parameters};

/// The form of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// C.
    pub inputs: usize,
    /// O.
    pub outputs: usize,
    /// K, an odd number.
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
        let Kernel { inputs, outputs, side, stride } = kernel;
        if side.is_multiple_of(2) || stride == 0 {
            candle_core::bail!(
                "`{name}` has a kernel of {side} × {side} and a stride of {stride}: an odd side, over 0"
            );
        }
        let deviation = (2.0 / (outputs * side * side) as f32).sqrt();
        let shape = [outputs, inputs, side, side];
        let weight = parameters.create(&format!("{name}.weight"), &shape, Init::Normal(deviation))?; // [O, C, K, K]
        Ok(Self { weight, kernel })
    }

    /// Applies the kernel to every window.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let weight = self.weight.to_dtype(x.dtype())?; // [O, C, K, K]
        let y = convolve(&x.detach(), &weight.detach(), self.kernel)?; // [B, O, h, w]
        if x.track_op() || weight.track_op() {
            return x.apply_op2(&weight, Convolve { kernel: self.kernel, result: Mutex::new(Some(y)) }); // [B, O, h, w]
        }
        Ok(y)
    }

    /// The same layer without a graph, over the same storage.
    pub fn detached(&self) -> Self {
        Self { weight: self.weight.detach(), kernel: self.kernel }
    }
}

/// The type to compute in: candle's convolution on the CPU knows no bfloat16.
fn computed(x: &Tensor) -> DType {
    if x.device().is_cpu() && x.dtype() == DType::BF16 { DType::F32 } else { x.dtype() }
}

fn convolve(x: &Tensor, weight: &Tensor, kernel: Kernel) -> Result<Tensor> {
    let (input, weight) = (x.to_dtype(computed(x))?, weight.to_dtype(computed(x))?); // [B, C, H, W], [O, C, K, K]
    let y = if kernel.side == 1 {
        let input = every(&every(&input, 2, kernel.stride)?, 3, kernel.stride)?; // [B, C, h, w]
        per_pixel(&weight.flatten_from(1)?, &input)? // [B, O, h, w]
    } else {
        input.conv2d(&weight, kernel.padding(), kernel.stride, 1, 1)? // [B, O, h, w]
    };
    y.to_dtype(x.dtype())
}

/// The product of a matrix `[O, C]` with the channels of every pixel.
fn per_pixel(weight: &Tensor, x: &Tensor) -> Result<Tensor> {
    let (samples, channels, height, width) = x.dims4()?;
    let weight = weight.unsqueeze(0)?.broadcast_as((samples, weight.dim(0)?, channels))?; // [B, O, C]
    weight.matmul(&x.reshape((samples, channels, height * width))?)?.reshape((samples, (), height, width))
}

/// Every `step`th place of a dimension, from the first.
fn every(x: &Tensor, dim: usize, step: usize) -> Result<Tensor> {
    if step == 1 {
        return Ok(x.clone());
    }
    let size = x.dim(dim)?.div_ceil(step);
    let padded = x.pad_with_zeros(dim, 0, size * step - x.dim(dim)?)?; // [.., size · step, ..]
    let mut shape = padded.dims().to_vec();
    shape.splice(dim..=dim, [size, step]);
    padded.contiguous()?.reshape(shape)?.narrow(dim + 1, 0, 1)?.squeeze(dim + 1) // [.., size, ..]
}

/// The reverse: the places of a dimension, `step` apart, in one of `size` that is zero between them.
fn spread(x: &Tensor, dim: usize, (step, size): (usize, usize)) -> Result<Tensor> {
    if step == 1 && x.dim(dim)? == size {
        return Ok(x.clone());
    }
    let spread = x.unsqueeze(dim + 1)?.pad_with_zeros(dim + 1, 0, step - 1)?.flatten(dim, dim + 1)?; // [.., S · step, ..]
    match spread.dim(dim)? {
        long if long > size => spread.narrow(dim, 0, size), // [.., size, ..]
        short => spread.pad_with_zeros(dim, 0, size - short), // [.., size, ..]
    }
}

/// The operation in the graph.
struct Convolve {
    kernel: Kernel,
    /// Computed before, because candle lets nobody else call its convolution with storages; taken by the forward pass.
    result: Mutex<Option<Tensor>>,
}

impl Convolve {
    fn forward<S: BackendStorage>(&self, of: fn(&Storage) -> Option<&S>) -> Result<(S, Shape)> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(result) = result else { candle_core::bail!("a convolution ran twice") };
        let (storage, layout) = result.storage_and_layout();
        match of(&storage) {
            Some(storage) => Ok((storage.try_clone(layout)?, layout.shape().clone())),
            None => candle_core::bail!("a convolution lies on another device than its image"),
        }
    }

    /// Pixel (i, j) of the kernel saw, for each pixel of the result, the one of the image that is (i, j) from the corner
    /// of its window; its gradient is the product of the two over all pixels and samples.
    fn of_weight(&self, x: &Tensor, gradient: &Tensor) -> Result<Tensor> {
        let Kernel { side, stride, .. } = self.kernel;
        let padding = self.kernel.padding();
        let (_, outputs, height, width) = gradient.dims4()?;
        let channels = x.dim(1)?;
        let gradient = gradient.transpose(0, 1)?.reshape((outputs, ()))?; // [O, B·h·w]
        let image = x.transpose(0, 1)?; // [C, B, H, W]
        // What a window of the last row and column can reach.
        let (tall, wide) = ((height - 1) * stride + side, (width - 1) * stride + side);
        let fit = |image: Tensor, dim: usize, reach: usize| {
            let size = image.dim(dim)?;
            image.pad_with_zeros(dim, padding, reach.saturating_sub(size + padding))
        };
        let image = fit(fit(image, 2, tall)?, 3, wide)?; // [C, B, H + .., W + ..]
        let mut pixels = Vec::new();
        for (row, column) in (0..side).flat_map(|row| (0..side).map(move |column| (row, column))) {
            let seen = image.narrow(2, row, tall + 1 - side)?.narrow(3, column, wide + 1 - side)?;
            let seen = every(&every(&seen, 2, stride)?, 3, stride)?.reshape((channels, ()))?; // [C, B·h·w]
            pixels.push(gradient.matmul(&seen.t()?)?); // [O, C]
        }
        Tensor::stack(&pixels, 2)?.reshape((outputs, channels, side, side)) // [O, C, K, K]
    }

    /// Each pixel of the result is spread over its window by the kernel: a convolution of the gradients, as far apart as
    /// the windows are, with the kernel turned around.
    fn of_image(&self, (height, width): (usize, usize), weight: &Tensor, gradient: &Tensor) -> Result<Tensor> {
        let Kernel { side, stride, .. } = self.kernel;
        let apart = |x: &Tensor| spread(&spread(x, 2, (stride, height))?, 3, (stride, width));
        let weight = weight.transpose(0, 1)?.flatten_from(2)?.contiguous()?; // [C, O, K²]
        if side == 1 {
            return apart(&per_pixel(&weight.squeeze(2)?, gradient)?); // [B, C, H, W]
        }
        // Pixels in the reverse order are rows and columns in the reverse order.
        let turned = weight.flip(&[2])?.reshape(((), gradient.dim(1)?, side, side))?; // [C, O, K, K]
        apart(gradient)?.conv2d(&turned, self.kernel.padding(), 1, 1, 1) // [B, C, H, W]
    }
}

impl CustomOp2 for Convolve {
    fn name(&self) -> &'static str {
        "convolution"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.forward(|storage| match storage {
            Storage::Cpu(storage) => Some(storage),
            Storage::Cuda(_) | Storage::Metal(_) => None,
        })
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        self.forward(|storage| match storage {
            Storage::Cuda(storage) => Some(storage),
            Storage::Cpu(_) | Storage::Metal(_) => None,
        })
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (_, _, height, width) = x.dims4()?;
        let given = x.dtype();
        let dtype = computed(x);
        let gradient = gradient.to_dtype(dtype)?; // [B, O, h, w]
        let of_weight = self.of_weight(&x.detach().to_dtype(dtype)?, &gradient)?.to_dtype(given)?; // [O, C, K, K]
        // Nobody asks for the gradient of a net's input.
        let of_image = if x.track_op() {
            let weight = weight.detach().to_dtype(dtype)?; // [O, C, K, K]
            Some(self.of_image((height, width), &weight, &gradient)?.to_dtype(given)?) // [B, C, H, W]
        } else {
            None
        };
        Ok((of_image, Some(of_weight)))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    fn random(shape: &[usize]) -> Var {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|index| (index * 37 % 101) as f32 / 50.0 - 1.0).collect();
        Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu).unwrap()).unwrap()
    }

    fn layer(side: usize, stride: usize) -> (Parameters, Convolution) {
        let mut parameters = Parameters::new(&Device::Cpu, DType::F32, 5);
        let kernel = Kernel { inputs: 2, outputs: 3, side, stride };
        let convolution = Convolution::create(&mut parameters, "conv", kernel).unwrap();
        (parameters, convolution)
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    fn assert_close(found: &Tensor, expected: &Tensor, tolerance: f32) {
        assert_eq!(found.dims(), expected.dims());
        for (found, expected) in values(found).iter().zip(values(expected)) {
            let close = (found - expected).abs() < tolerance * (1.0 + expected.abs());
            assert!(close, "{found} against {expected}");
        }
    }

    #[test]
    fn results_and_gradients_are_those_of_candle_where_it_has_them() {
        for (side, stride) in [(1, 1), (1, 2), (3, 1), (3, 2), (3, 3), (7, 2)] {
            let (parameters, convolution) = layer(side, stride);
            let x = random(&[2, 2, 8, 8]);
            let weight = parameters.get("conv.weight").unwrap();
            let y = convolution.forward(&x).unwrap();
            let expected = x.conv2d(weight, side / 2, stride, 1, 1).unwrap();
            assert_close(&y, &expected, 1e-5);
            let gradients = |y: &Tensor| (y.sqr().unwrap() * 0.5).unwrap().sum_all().unwrap().backward().unwrap();
            let (found, expected) = (gradients(&y), gradients(&expected));
            for variable in [&x, weight] {
                assert_close(found.get(variable).unwrap(), expected.get(variable).unwrap(), 1e-4);
            }
        }
    }

    #[test]
    fn an_image_of_any_sides_has_the_gradients_of_finite_differences() {
        for (side, stride) in [(1, 2), (3, 2), (7, 2)] {
            for (height, width) in [(6, 5), (1, 4), (3, 2)] {
                let (parameters, convolution) = layer(side, stride);
                let x = random(&[1, 2, height, width]);
                let loss = || convolution.forward(&x).unwrap().sqr().unwrap().sum_all().unwrap();
                let gradients = loss().backward().unwrap();
                for variable in [&x, parameters.get("conv.weight").unwrap()] {
                    let start = values(variable);
                    let gradient = values(gradients.get(variable).unwrap());
                    let at = |index: usize, shift: f32| {
                        let mut moved = start.clone();
                        moved[index] += shift;
                        variable.set(&Tensor::from_vec(moved, variable.shape(), &Device::Cpu).unwrap()).unwrap();
                        loss().to_scalar::<f32>().unwrap()
                    };
                    for index in (0..start.len()).step_by(5) {
                        let numeric = (at(index, 1e-2) - at(index, -1e-2)) / 2e-2;
                        at(index, 0.0);
                        let expected = gradient[index];
                        let close = (numeric - expected).abs() < 5e-3 * (1.0 + expected.abs());
                        assert!(close, "{side}/{stride}, {height} × {width}, {index}: {numeric} against {expected}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_input_gets_no_gradient_and_a_detached_layer_builds_no_graph() {
        let (parameters, convolution) = layer(3, 1);
        let x = random(&[1, 2, 4, 4]).as_detached_tensor();
        let y = convolution.forward(&x).unwrap();
        let gradients = y.sum_all().unwrap().backward().unwrap();
        assert!(gradients.get(&x).is_none() && gradients.get(parameters.get("conv.weight").unwrap()).is_some());
        let detached = convolution.detached().forward(&x).unwrap();
        assert!(!detached.track_op());
        assert_eq!(values(&y), values(&detached));
    }

    #[test]
    fn bfloat16_follows_f32() {
        let (_parameters, convolution) = layer(3, 2);
        let x = random(&[2, 2, 7, 6]);
        let rounded = Var::from_tensor(&x.to_dtype(DType::BF16).unwrap()).unwrap();
        let gradient = |x: &Var| {
            let y = convolution.forward(x).unwrap();
            assert_eq!(y.dtype(), x.dtype());
            y.sum_all().unwrap().backward().unwrap().remove(x).unwrap()
        };
        assert_close(&gradient(&rounded), &gradient(&x), 0.03);
    }

    #[test]
    fn a_kernel_without_a_middle_is_refused() {
        let mut parameters = Parameters::new(&Device::Cpu, DType::F32, 5);
        for (side, stride) in [(2, 1), (0, 1), (3, 0)] {
            let kernel = Kernel { inputs: 2, outputs: 3, side, stride };
            assert!(Convolution::create(&mut parameters, "conv", kernel).is_err());
        }
    }
}

//! The largest value of each window of 3 × 3 pixels, two pixels apart: PyTorch's `MaxPool2d(3, stride=2, padding=1)`.
//!
//! The backward pass of candle's own `max_pool2d` is wrong, and it refuses windows that overlap. So this one is made of
//! operations that have a right one: window i of a row covers the pixels 2i − 1, 2i and 2i + 1, which are an odd one,
//! the even one after it and the next odd one; and the largest of a window is the largest of its rows' largest.
//!
//! Where several values of a window are the largest, PyTorch gives the gradient to the first of them; here they share
//! it, in halves at each comparison. Both are subgradients, and after a rectifier the values that tie are zeros, where no
//! gradient passes.
//!
//! Letters of the shapes: B samples, C channels, H and W sides of the image, h and w those of the result, N all of B, C
//! and the sides before the one that is halved, M the product of those after it.

use candle_core::{Result, Tensor};

/// Halves both sides of `[B, C, H, W]`, rounding up.
pub fn max_pool(x: &Tensor) -> Result<Tensor> {
    let (samples, channels, height, width) = x.dims4()?;
    let rows = halve(&x.reshape((samples * channels * height, width, 1))?)?; // [B·C·H, w, 1]
    let columns = halve(&rows.reshape((samples * channels, height, width.div_ceil(2)))?)?; // [B·C, h, w]
    columns.reshape((samples, channels, height.div_ceil(2), width.div_ceil(2))) // [B, C, h, w]
}

/// The largest of the three around every second place of the middle dimension.
fn halve(x: &Tensor) -> Result<Tensor> {
    let (outer, size, inner) = x.dims3()?;
    let nothing = || Tensor::full(f32::NEG_INFINITY, (outer, 1, inner), x.device())?.to_dtype(x.dtype());
    let padded;
    let x = if size.is_multiple_of(2) {
        x
    } else {
        padded = Tensor::cat(&[x, &nothing()?], 1)?; // [N, S + 1, M]
        &padded
    };
    let half = size.div_ceil(2);
    let pairs = x.reshape((outer, half, 2, inner))?; // [N, s, 2, M]
    let even = pairs.narrow(2, 0, 1)?.squeeze(2)?; // [N, s, M]
    let odd = pairs.narrow(2, 1, 1)?.squeeze(2)?; // [N, s, M]
    let before = Tensor::cat(&[&nothing()?, &odd.narrow(1, 0, half - 1)?], 1)?; // [N, s, M]
    before.maximum(&even)?.maximum(&odd) // [N, s, M]
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;

    /// No two values are alike.
    fn image(height: usize, width: usize) -> Var {
        let count = 2 * 3 * height * width;
        let values: Vec<f32> = (0..count).map(|index| (index * 5741 % 7919) as f32 / 7919.0 - 0.5).collect();
        Var::from_tensor(&Tensor::from_vec(values, (2, 3, height, width), &Device::Cpu).unwrap()).unwrap()
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    /// Where each window's largest value lies, found one by one.
    fn largest(x: &[f32], (height, width): (usize, usize)) -> Vec<usize> {
        let mut places = Vec::new();
        for plane in 0..x.len() / (height * width) {
            for (row, column) in (0..height).step_by(2).flat_map(|row| (0..width).step_by(2).map(move |c| (row, c))) {
                let rows = row.saturating_sub(1)..(row + 2).min(height);
                let window = rows.flat_map(|row| {
                    (column.saturating_sub(1)..(column + 2).min(width))
                        .map(move |column| (plane * height + row) * width + column)
                });
                places.push(window.max_by(|a, b| x[*a].total_cmp(&x[*b])).unwrap());
            }
        }
        places
    }

    #[test]
    fn every_window_gives_its_largest_value_and_gets_the_gradient_there() {
        for (height, width) in [(8, 8), (7, 7), (6, 9), (1, 1), (2, 1), (3, 2)] {
            let x = image(height, width);
            let places = largest(&values(&x), (height, width));
            let y = max_pool(&x).unwrap();
            assert_eq!(y.dims(), [2, 3, height.div_ceil(2), width.div_ceil(2)]);
            let expected: Vec<f32> = places.iter().map(|place| values(&x)[*place]).collect();
            assert_eq!(values(&y), expected, "{height} × {width}");

            let gradient = y.sqr().unwrap().sum_all().unwrap().backward().unwrap().remove(&x).unwrap();
            let mut expected = vec![0.0; x.elem_count()];
            for place in &places {
                expected[*place] += 2.0 * values(&x)[*place];
            }
            for (index, (found, expected)) in values(&gradient).iter().zip(expected).enumerate() {
                assert!((found - expected).abs() < 1e-6, "{height} × {width}, {index}: {found} against {expected}");
            }
        }
    }

    #[test]
    fn values_that_tie_share_one_gradient() {
        let x = Var::ones((1, 1, 4, 4), DType::F32, &Device::Cpu).unwrap();
        let gradient = max_pool(&x).unwrap().sum_all().unwrap().backward().unwrap().remove(&x).unwrap();
        let sum = gradient.sum_all().unwrap().to_scalar::<f32>().unwrap();
        assert!((sum - 4.0).abs() < 1e-6, "{sum}");
    }

    #[test]
    fn bfloat16_pools_as_f32_does() {
        let x = image(7, 8).to_dtype(DType::BF16).unwrap();
        let y = max_pool(&x).unwrap();
        assert_eq!(y.dtype(), DType::BF16);
        let exact = max_pool(&x.to_dtype(DType::F32).unwrap()).unwrap();
        assert_eq!(values(&y.to_dtype(DType::F32).unwrap()), values(&exact));
    }
}

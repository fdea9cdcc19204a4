//! Losses.

use candle_core::{D, DType, Result, Tensor};

use crate::data::masked::IGNORED;

/// The cross entropy of the rows whose target is not [`IGNORED`]: the mean over them, and 0 where there is none.
///
/// Every row is computed and the others are weighted with 0, as `torch.nn.functional.cross_entropy` does it. To pick
/// the rows first would need less memory, and a size that depends on the data.
///
/// `logits` is `[N, V]` in f32 and `target` `[N]`.
pub fn masked_cross_entropy(logits: &Tensor, target: &Tensor) -> Result<Tensor> {
    let chosen = target.ne(IGNORED)?; // [N]
    let class = chosen.where_cond(target, &target.zeros_like()?)?; // [N]
    let weight = chosen.to_dtype(DType::F32)?; // [N]
    let count = weight.sum_all()?.maximum(1.0)?; // []
    let log_probabilities = candle_nn::ops::log_softmax(logits, D::Minus1)?; // [N, V]
    let of_class = log_probabilities.gather(&class.unsqueeze(1)?, 1)?.squeeze(1)?; // [N]
    (of_class * weight)?.sum_all()?.neg()? / count // []
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    fn logits() -> Var {
        let values = [[1.0_f32, 2.0, 0.5], [0.0, -1.0, 3.0], [2.0, 2.0, 1.0], [0.3, 0.1, -0.7]];
        Var::from_tensor(&Tensor::new(&values, &Device::Cpu).unwrap()).unwrap()
    }

    fn target(ids: [u32; 4]) -> Tensor {
        Tensor::new(&ids, &Device::Cpu).unwrap()
    }

    #[test]
    fn ignored_rows_count_for_nothing() {
        let logits = logits();
        let loss = masked_cross_entropy(&logits, &target([IGNORED, 2, IGNORED, 0])).unwrap();
        let chosen = logits.index_select(&Tensor::new(&[1_u32, 3], &Device::Cpu).unwrap(), 0).unwrap();
        let expected = candle_nn::loss::cross_entropy(&chosen, &Tensor::new(&[2_u32, 0], &Device::Cpu).unwrap());
        let value = |loss: &Tensor| loss.to_scalar::<f32>().unwrap();
        assert!((value(&loss) - value(&expected.unwrap())).abs() < 1e-6);
        let gradient = loss.backward().unwrap().remove(&logits).unwrap().to_vec2::<f32>().unwrap();
        let is_zero = |row: usize| gradient[row].iter().all(|value| *value == 0.0);
        assert_eq!([0, 1, 2, 3].map(is_zero), [true, false, true, false]);
    }

    #[test]
    fn without_a_chosen_row_the_loss_is_zero_and_finite() {
        let logits = logits();
        let loss = masked_cross_entropy(&logits, &target([IGNORED; 4])).unwrap();
        assert!(loss.to_scalar::<f32>().unwrap().abs() < f32::MIN_POSITIVE);
        let gradient = loss.backward().unwrap().remove(&logits).unwrap().to_vec2::<f32>().unwrap();
        assert!(gradient.iter().flatten().all(|value| *value == 0.0));
    }
}

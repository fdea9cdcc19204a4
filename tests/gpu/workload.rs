//! GPT-2 medium's shape in operations that have a backward pass, small enough to read.

use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW};

const WIDTH: usize = 1024;
const HEADS: usize = 16;
const VOCABULARY: usize = 50_257;
/// T.
pub(crate) const LENGTH: usize = 512;

struct Block {
    norms: [(Var, Var); 2],
    qkv: Var,
    out: Var,
    up: Var,
    down: Var,
}

/// The model with its optimizer. B is the batch, T the length, D the width.
pub(crate) struct Gpt {
    tokens: Var,
    positions: Var,
    blocks: Vec<Block>,
    optimizer: AdamW,
    mask: Tensor,
}

impl Gpt {
    pub(crate) fn new(layers: usize, dtype: DType, device: &Device) -> Result<Self> {
        let mut all = Vec::new();
        let mut weight = |rows: usize, columns: usize| -> Result<Var> {
            let var = Var::from_tensor(&Tensor::randn(0_f32, 0.02, (rows, columns), device)?.to_dtype(dtype)?)?;
            all.push(var.clone());
            Ok(var)
        };
        let tokens = weight(VOCABULARY, WIDTH)?;
        let positions = weight(LENGTH, WIDTH)?;
        let mut blocks = Vec::new();
        for _ in 0..layers {
            blocks.push(Block {
                norms: [(weight(1, WIDTH)?, weight(1, WIDTH)?), (weight(1, WIDTH)?, weight(1, WIDTH)?)],
                qkv: weight(WIDTH, 3 * WIDTH)?,
                out: weight(WIDTH, WIDTH)?,
                up: weight(WIDTH, 4 * WIDTH)?,
                down: weight(4 * WIDTH, WIDTH)?,
            });
        }
        let mask: Vec<f32> =
            (0..LENGTH * LENGTH).map(|at| if at % LENGTH > at / LENGTH { f32::NEG_INFINITY } else { 0.0 }).collect();
        let mask = Tensor::from_vec(mask, (LENGTH, LENGTH), device)?.to_dtype(dtype)?; // [T, T]
        let optimizer = AdamW::new(all, ParamsAdamW { lr: 1e-4, ..ParamsAdamW::default() })?;
        Ok(Self { tokens, positions, blocks, optimizer, mask })
    }

    /// Forward, backward and an optimizer step on `batch` random sequences.
    pub(crate) fn step(&mut self, batch: usize) -> Result<()> {
        let ids: Vec<u32> = (0..batch * (LENGTH + 1)).map(|at| (at * 7919 % VOCABULARY) as u32).collect();
        let ids = Tensor::from_vec(ids, (batch, LENGTH + 1), self.mask.device())?; // [B, T + 1]
        let input = ids.narrow(1, 0, LENGTH)?.contiguous()?; // [B, T]
        let target = ids.narrow(1, 1, LENGTH)?.contiguous()?.flatten_all()?; // [B·T]
        let logits = self.forward(&input)?; // [B·T, V]
        let loss = candle_nn::loss::cross_entropy(&logits.to_dtype(DType::F32)?, &target)?; // []
        let gradients = loss.backward()?;
        self.optimizer.step(&gradients)
    }

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let (batch, length) = input.dims2()?;
        let embedded = self.tokens.index_select(&input.flatten_all()?, 0)?; // [B·T, D]
        let mut x = embedded.reshape((batch, length, WIDTH))?.broadcast_add(&self.positions)?; // [B, T, D]
        for block in &self.blocks {
            let [first, second] = &block.norms;
            x = (&x + self.attention(&norm(&x, first)?, block)?)?; // [B, T, D]
            let inner = norm(&x, second)?.reshape((batch * length, WIDTH))?.matmul(&block.up)?.gelu()?; // [B·T, 4D]
            x = (&x + inner.matmul(&block.down)?.reshape((batch, length, WIDTH))?)?; // [B, T, D]
        }
        x.reshape((batch * length, WIDTH))?.matmul(&self.tokens.t()?) // [B·T, V]
    }

    fn attention(&self, x: &Tensor, block: &Block) -> Result<Tensor> {
        let (batch, length, width) = x.dims3()?;
        let size = width / HEADS;
        let qkv = x.reshape((batch * length, width))?.matmul(&block.qkv)?; // [B·T, 3D]
        let qkv = qkv.reshape((batch, length, 3, HEADS, size))?.permute((2, 0, 3, 1, 4))?; // [3, B, H, T, S]
        let part = |index| qkv.get(index)?.contiguous(); // [B, H, T, S]
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let scores = (q.matmul(&k.t()?)? * (size as f64).sqrt().recip())?; // [B, H, T, T]
        let weights = candle_nn::ops::softmax(&scores.broadcast_add(&self.mask)?, D::Minus1)?; // [B, H, T, T]
        let mixed = weights.matmul(&v)?.transpose(1, 2)?.reshape((batch * length, width))?; // [B·T, D]
        mixed.matmul(&block.out)?.reshape((batch, length, width)) // [B, T, D]
    }
}

/// Layer normalisation by parts, since candle's own has no backward pass.
fn norm(x: &Tensor, (scale, shift): &(Var, Var)) -> Result<Tensor> {
    let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?; // [B, T, D]
    let variance = centred.sqr()?.mean_keepdim(D::Minus1)?; // [B, T, 1]
    let normal = centred.broadcast_div(&(variance + 1e-5)?.sqrt()?)?; // [B, T, D]
    normal.broadcast_mul(&(scale.as_tensor() + 1.0)?)?.broadcast_add(shift) // [B, T, D]
}

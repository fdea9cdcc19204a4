//! Tensors of the CPU as values on a wire.
//!
//! Values go in pieces of a fixed size, each of which is answered before the next one is sent: two ranks never write to
//! each other at the same time, so none can be stuck, and the memory is that of one piece whatever the tensor.
//!
//! Sums are in f64 and in rank order and rounded once, so the mean of f16 or bf16 values is as good as the type allows and
//! does not overflow on the way. The buffers are of types that the [virtual device](crate::device::cpu) does not take for
//! tensors: a group leaves no trace of its own in a recording.

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, bail};
use half::{bf16, f16};

/// Values of a piece.
const PIECE_VALUES: usize = 1 << 14;

/// A number that can be exchanged.
trait Value: Copy {
    const BYTES: usize;

    fn to_f64(self) -> f64;

    fn of_f64(value: f64) -> Self;

    fn write(self, bytes: &mut [u8]);

    fn read(bytes: &[u8]) -> Self;
}

macro_rules! values {
    ($($type:ty: $to:expr, $of:expr;)*) => {$(
        impl Value for $type {
            const BYTES: usize = size_of::<$type>();

            fn to_f64(self) -> f64 {
                $to(self)
            }

            fn of_f64(value: f64) -> Self {
                $of(value)
            }

            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }

            fn read(bytes: &[u8]) -> Self {
                // Pieces are cut into values of just this size.
                bytes.try_into().map_or(Self::of_f64(f64::NAN), Self::from_le_bytes)
            }
        }
    )*};
}

values! {
    f64: |value| value, |value| value;
    f32: f64::from, |value| value as f32;
    f16: f64::from, f16::from_f64;
    bf16: f64::from, bf16::from_f64;
}

/// What is done with each piece of a tensor on its way through the group.
pub(super) trait Exchange {
    /// The peers whose values are added to this rank's, in their order: 0 where it only sends or only receives.
    fn addends(&self) -> usize;

    /// Receives the values of an addend into the bytes.
    fn addend(&self, index: usize, bytes: &mut [u8]) -> Result<()>;

    /// What the sum is multiplied by.
    fn factor(&self) -> f64;

    /// Sends this rank's piece to whoever is to have it, and fills it with the answer where there is one.
    fn pass_on(&self, bytes: &mut [u8]) -> Result<()>;
}

/// The operation on a tensor's storage.
pub(super) struct Exchanged<'a>(pub(super) &'a dyn Exchange);

impl InplaceOp1 for Exchanged<'_> {
    fn name(&self) -> &'static str {
        "collective"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else { bail!("a tensor to exchange is not contiguous") };
        match storage {
            CpuStorage::F32(values) => exchange(self.0, values.get_mut(start..end)),
            CpuStorage::F64(values) => exchange(self.0, values.get_mut(start..end)),
            CpuStorage::F16(values) => exchange(self.0, values.get_mut(start..end)),
            CpuStorage::BF16(values) => exchange(self.0, values.get_mut(start..end)),
            other => {
                bail!("tensors of type {:?} cannot be exchanged", candle_core::backend::BackendStorage::dtype(other))
            }
        }
    }
}

fn exchange<V: Value>(way: &dyn Exchange, values: Option<&mut [V]>) -> Result<()> {
    let Some(values) = values else { bail!("a tensor to exchange is longer than its storage") };
    let mut bytes = vec![0_u8; PIECE_VALUES.min(values.len()) * V::BYTES];
    let mut sums: Vec<f64> = Vec::new();
    for piece in values.chunks_mut(PIECE_VALUES) {
        let Some(bytes) = bytes.get_mut(..piece.len() * V::BYTES) else { continue };
        if way.addends() > 0 {
            sums.clear();
            sums.extend(piece.iter().map(|value| value.to_f64()));
            for index in 0..way.addends() {
                way.addend(index, bytes)?;
                let addends = bytes.chunks_exact(V::BYTES).map(V::read);
                sums.iter_mut().zip(addends).for_each(|(sum, addend)| *sum += addend.to_f64());
            }
            let factor = way.factor();
            piece.iter_mut().zip(&sums).for_each(|(value, sum)| *value = V::of_f64(sum * factor));
        }
        bytes.chunks_exact_mut(V::BYTES).zip(piece.iter()).for_each(|(bytes, value)| value.write(bytes));
        way.pass_on(bytes)?;
        piece.iter_mut().zip(bytes.chunks_exact(V::BYTES)).for_each(|(value, bytes)| *value = V::read(bytes));
    }
    Ok(())
}

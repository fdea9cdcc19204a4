//! Values of parameters from a safetensors file, such as a checkpoint of Hugging Face's.
//!
//! The file is mapped and a tensor is read when its parameter is made, so that a host never holds the whole of it. The
//! file is a stranger's: its header is checked by the `safetensors` crate, and a tensor that is missing, or has another
//! shape, is an error that names both.

use std::path::Path;

use candle_core::Result;
use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};

use super::ModelError;
use crate::data::mapped::Mapped;

/// An open safetensors file.
#[derive(Debug)]
pub struct Weights {
    file: Mapped,
    metadata: Metadata,
    /// Where the values begin.
    start: u64,
    prefixes: &'static [&'static str],
}

impl Weights {
    /// Opens a file. A parameter's tensor has its name, with one of the prefixes before it or without any.
    pub fn open(path: &Path, prefixes: &'static [&'static str]) -> std::result::Result<Self, ModelError> {
        let invalid = |reason: String| ModelError::Weights { path: path.to_owned(), reason };
        let file = Mapped::open(path).map_err(|error| invalid(crate::text::with_causes(&error)))?;
        let header = file.read(0..file.len(), |bytes| SafeTensors::read_metadata(bytes));
        let header = header.map_err(|error| invalid(crate::text::with_causes(&error)))?;
        let (length, metadata) = header.map_err(|error| invalid(error.to_string()))?;
        let start = (length as u64).saturating_add(8);
        Ok(Self { file, metadata, start, prefixes })
    }

    /// The values of a tensor as f32, row-major.
    pub(super) fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let path = self.file.path().display();
        let Some(info) = self.info(name) else { candle_core::bail!("`{path}` has no tensor `{name}`") };
        if info.shape != shape {
            candle_core::bail!("tensor `{name}` of `{path}` has shape {:?}, and the model's has {shape:?}", info.shape);
        }
        let (begin, end) = info.data_offsets;
        let range = self.start.saturating_add(begin as u64)..self.start.saturating_add(end as u64);
        let values = self.file.read(range, |bytes| match info.dtype {
            Dtype::F32 => Some(decoded(bytes, f32::from_le_bytes)),
            Dtype::F64 => Some(decoded(bytes, |value| f64::from_le_bytes(value) as f32)),
            Dtype::F16 => Some(decoded(bytes, |value| f16::from_le_bytes(value).to_f32())),
            Dtype::BF16 => Some(decoded(bytes, |value| bf16::from_le_bytes(value).to_f32())),
            _ => None,
        });
        match values.map_err(candle_core::Error::wrap)? {
            Some(values) => Ok(values),
            None => candle_core::bail!("tensor `{name}` of `{path}` has type {:?}, which is no float's", info.dtype),
        }
    }

    fn info(&self, name: &str) -> Option<&TensorInfo> {
        let prefixed = |prefix: &&str| self.metadata.info(&format!("{prefix}{name}"));
        self.metadata.info(name).or_else(|| self.prefixes.iter().find_map(prefixed))
    }
}

fn decoded<const N: usize>(bytes: &[u8], decode: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|value| decode(*value)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::PathBuf;

    use candle_core::{DType, Device, Tensor};

    use super::*;

    fn file(folder: &Path, dtype: DType) -> PathBuf {
        let tensor = Tensor::new(&[[1.0_f32, -2.5], [0.0, 4.0]], &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let path = folder.join("model.safetensors");
        candle_core::safetensors::save(&HashMap::from([("transformer.w".to_owned(), tensor)]), &path).unwrap();
        path
    }

    #[test]
    fn values_of_every_float_come_out_as_f32() {
        let folder = tempfile::tempdir().unwrap();
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let weights = Weights::open(&file(folder.path(), dtype), &["transformer."]).unwrap();
            assert_eq!(weights.values("w", &[2, 2]).unwrap(), [1.0, -2.5, 0.0, 4.0], "{dtype:?}");
            assert_eq!(weights.values("transformer.w", &[2, 2]).unwrap().len(), 4);
        }
    }

    #[test]
    fn what_is_not_there_or_has_another_shape_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let weights = Weights::open(&file(folder.path(), DType::F32), &[]).unwrap();
        let error = weights.values("w", &[2, 2]).unwrap_err().to_string();
        assert!(error.contains("no tensor `w`") && error.contains("model.safetensors"), "{error}");
        let error = weights.values("transformer.w", &[4]).unwrap_err().to_string();
        assert!(error.contains("[2, 2]") && error.contains("[4]"), "{error}");
        let whole_numbers = file(folder.path(), DType::U32);
        let weights = Weights::open(&whole_numbers, &["transformer."]).unwrap();
        assert!(weights.values("w", &[2, 2]).unwrap_err().to_string().contains("U32"));
    }

    #[test]
    fn a_file_that_is_none_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        assert!(matches!(Weights::open(&path, &[]), Err(ModelError::Weights { .. })));
        for bytes in [&b""[..], b"\xff\xff\xff\xff\xff\xff\xff\x7f{}", b"\x02\0\0\0\0\0\0\0{}trailing", &[0; 64]] {
            std::fs::write(&path, bytes).unwrap();
            assert!(matches!(Weights::open(&path, &[]), Err(ModelError::Weights { .. })), "{bytes:?}");
        }
    }
}

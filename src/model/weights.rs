//! Values of parameters from safetensors files, such as a checkpoint of Hugging Face's.
//!
//! `model.weights` names a file, the index of a checkpoint that is cut into several (`model.safetensors.index.json`), or
//! the folder of either. The files are mapped and a tensor is read when its parameter is made, so that a host never
//! holds the whole of them. They are a stranger's: their headers are checked by the `safetensors` crate, an index may
//! name only files beside itself, and a tensor that is missing, or has another shape, is an error that names both.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use candle_core::Result;
use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};
use serde::Deserialize;

use super::{ModelError, hugging_face};
use crate::data::mapped::Mapped;
use crate::text::with_causes;

/// The file of a checkpoint that is not cut.
const WHOLE: &str = "model.safetensors";
/// The index of one that is.
const INDEX: &str = "model.safetensors.index.json";
/// The longest index: that of a model of 70 billion parameters has 60 kilobytes.
const MAX_INDEX_BYTES: u64 = 1 << 24;
/// The most files of a checkpoint; each of them stays open.
const MAX_FILES: usize = 512;

/// An open checkpoint.
#[derive(Debug)]
pub struct Weights {
    path: PathBuf,
    shards: Vec<Shard>,
    prefixes: &'static [&'static str],
}

/// One file of it.
#[derive(Debug)]
struct Shard {
    file: Mapped,
    metadata: Metadata,
    /// Where the values begin.
    start: u64,
}

impl Weights {
    /// Opens a checkpoint. A parameter's tensor has its name, with one of the prefixes before it or without any.
    pub fn open(path: &Path, prefixes: &'static [&'static str]) -> std::result::Result<Self, ModelError> {
        let invalid = |reason: String| ModelError::Weights { path: path.to_owned(), reason };
        let files = files(path).map_err(invalid)?;
        let shards = files.iter().map(|file| Shard::open(file)).collect::<std::result::Result<_, _>>();
        Ok(Self { path: path.to_owned(), shards: shards.map_err(invalid)?, prefixes })
    }

    /// The values of a tensor as f32, row-major.
    pub(super) fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let Some((shard, info)) = self.find(name) else {
            candle_core::bail!("`{}` has no tensor `{name}`", self.path.display())
        };
        let path = shard.file.path().display();
        if info.shape != shape {
            candle_core::bail!("tensor `{name}` of `{path}` has shape {:?}, and the model's has {shape:?}", info.shape);
        }
        match shard.values(info)? {
            Some(values) => Ok(values),
            None => candle_core::bail!("tensor `{name}` of `{path}` has type {:?}, which is no float's", info.dtype),
        }
    }

    fn find(&self, name: &str) -> Option<(&Shard, &TensorInfo)> {
        let before = std::iter::once("").chain(self.prefixes.iter().copied());
        let names: Vec<String> = before
            .flat_map(|prefix| {
                std::iter::once(name.to_owned()).chain(old_name(name)).map(move |name| [prefix, &name].concat())
            })
            .collect();
        names.iter().find_map(|name| self.shards.iter().find_map(|shard| Some((shard, shard.metadata.info(name)?))))
    }
}

/// What checkpoints converted from TensorFlow, BERT's own among them, call the parts of a norm.
fn old_name(name: &str) -> Option<String> {
    let weight = name.strip_suffix("LayerNorm.weight").map(|norm| format!("{norm}LayerNorm.gamma"));
    weight.or_else(|| name.strip_suffix("LayerNorm.bias").map(|norm| format!("{norm}LayerNorm.beta")))
}

impl Shard {
    fn open(path: &Path) -> std::result::Result<Self, String> {
        let of_file = |reason: String| format!("`{}`: {reason}", path.display());
        let file = Mapped::open(path).map_err(|error| with_causes(&error))?;
        let header = file.read(0..file.len(), |bytes| SafeTensors::read_metadata(bytes));
        let header = header.map_err(|error| with_causes(&error))?;
        let (length, metadata) = header.map_err(|error| of_file(error.to_string()))?;
        Ok(Self { file, metadata, start: (length as u64).saturating_add(8) })
    }

    /// The values of a tensor; `None` where they are no floats.
    fn values(&self, info: &TensorInfo) -> Result<Option<Vec<f32>>> {
        let (begin, end) = info.data_offsets;
        let range = self.start.saturating_add(begin as u64)..self.start.saturating_add(end as u64);
        let values = self.file.read(range, |bytes| match info.dtype {
            Dtype::F32 => Some(decoded(bytes, f32::from_le_bytes)),
            Dtype::F64 => Some(decoded(bytes, |value| f64::from_le_bytes(value) as f32)),
            Dtype::F16 => Some(decoded(bytes, |value| f16::from_le_bytes(value).to_f32())),
            Dtype::BF16 => Some(decoded(bytes, |value| bf16::from_le_bytes(value).to_f32())),
            _ => None,
        });
        values.map_err(candle_core::Error::wrap)
    }
}

/// The files of a checkpoint.
fn files(path: &Path) -> std::result::Result<Vec<PathBuf>, String> {
    if path.is_dir() {
        let (whole, index) = (path.join(WHOLE), path.join(INDEX));
        return match (whole.is_file(), index.is_file()) {
            (true, _) => Ok(vec![whole]),
            (false, true) => indexed(&index),
            (false, false) => Err(format!("the folder has neither `{WHOLE}` nor `{INDEX}`")),
        };
    }
    if path.extension().is_some_and(|extension| extension == "json") {
        return indexed(path);
    }
    Ok(vec![path.to_owned()])
}

/// The files that an index names. Which tensor is in which of them is what their own headers say.
fn indexed(index: &Path) -> std::result::Result<Vec<PathBuf>, String> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = hugging_face::read_text(index, MAX_INDEX_BYTES)?;
    let read: Index = serde_json::from_str(&text).map_err(|error| crate::text::harmless(&error.to_string()))?;
    let names: BTreeSet<&String> = read.weight_map.values().collect();
    if names.is_empty() || names.len() > MAX_FILES {
        return Err(format!("the index names {} files, expected 1 to {MAX_FILES}", names.len()));
    }
    let folder = index.parent().unwrap_or(Path::new(""));
    let beside = |name: &String| {
        let mut parts = Path::new(name).components();
        match (parts.next(), parts.next()) {
            (Some(Component::Normal(_)), None) => Ok(folder.join(name)),
            _ => Err(format!("the index names `{}`, which is no file beside it", name.escape_debug())),
        }
    };
    names.into_iter().map(beside).collect()
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

    /// Two files with an index, and a norm under its old name.
    fn sharded(folder: &Path, second: &str) -> PathBuf {
        let tensor = |value: f32| Tensor::full(value, 2, &Device::Cpu).unwrap();
        let save = |file: &str, name: &str, value| {
            candle_core::safetensors::save(&HashMap::from([(name.to_owned(), tensor(value))]), folder.join(file))
                .unwrap();
        };
        save("model-1.safetensors", "bert.a", 1.0);
        save("model-2.safetensors", "bert.LayerNorm.gamma", 2.0);
        let map = serde_json::json!({"bert.a": "model-1.safetensors", "bert.LayerNorm.gamma": second});
        let index = folder.join(INDEX);
        std::fs::write(&index, serde_json::json!({"metadata": {}, "weight_map": map}).to_string()).unwrap();
        index
    }

    #[test]
    fn a_checkpoint_in_several_files_is_found_by_its_index_or_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let index = sharded(folder.path(), "model-2.safetensors");
        for path in [index.as_path(), folder.path()] {
            let weights = Weights::open(path, &["bert."]).unwrap();
            assert_eq!(weights.values("a", &[2]).unwrap(), [1.0, 1.0]);
            assert_eq!(weights.values("LayerNorm.weight", &[2]).unwrap(), [2.0, 2.0]);
            assert!(weights.values("LayerNorm.bias", &[2]).is_err());
        }
        file(folder.path(), DType::F32);
        let whole = Weights::open(folder.path(), &["transformer."]).unwrap();
        assert_eq!(whole.values("w", &[2, 2]).unwrap().len(), 4);
    }

    #[test]
    fn an_index_names_files_beside_itself_alone() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["../model-2.safetensors", "/etc/passwd", "", "..", "inner/model-2.safetensors"] {
            let index = sharded(folder.path(), name);
            let error = Weights::open(&index, &[]).unwrap_err().to_string();
            assert!(error.contains("no file beside it"), "{error}");
        }
        let missing = Weights::open(&sharded(folder.path(), "model-3.safetensors"), &[]).unwrap_err().to_string();
        assert!(missing.contains("model-3.safetensors"), "{missing}");
        let empty = tempfile::tempdir().unwrap();
        assert!(Weights::open(empty.path(), &[]).unwrap_err().to_string().contains(INDEX));
        for text in ["", "{}", "{\"weight_map\": {}}", "{\"weight_map\": 7}"] {
            std::fs::write(empty.path().join(INDEX), text).unwrap();
            assert!(matches!(Weights::open(empty.path(), &[]), Err(ModelError::Weights { .. })), "{text}");
        }
    }
}

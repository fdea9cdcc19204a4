//! Writing a checkpoint: parameters and optimizer state as one safetensors file.
//!
//! The format (`huggingface/safetensors`, `README.md`): eight bytes with the length of the header, little-endian; the
//! header, a JSON object from names to type, shape and offsets; then the values, one tensor after the other. The
//! `safetensors` crate wants a tensor's bytes in one piece; here they go through a buffer of fixed size, so that a
//! checkpoint of a large model costs no host memory worth counting.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use candle_core::{CpuStorage, DType, Device, Storage, Tensor};
use serde_json::{Map, Value, json};

use super::optimizer::Optimizer;
use crate::model::{Buffers, Parameters, Workload};

/// Values that are copied to the host at a time.
const CHUNK_VALUES: usize = 1 << 20;

/// The header's length is padded to a multiple of this, so that the values are aligned in a mapped file.
const ALIGNMENT: usize = 8;

/// Why a checkpoint cannot be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckpointError {
    /// The file.
    #[error("cannot write the checkpoint `{}`", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// candle could not hand out the values.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// What a checkpoint holds.
pub(super) struct Contents<'a> {
    parameters: &'a Parameters,
    buffers: Option<&'a Buffers>,
    optimizer: &'a dyn Optimizer,
}

impl<'a> Contents<'a> {
    /// A workload with its optimizer.
    pub(super) fn of(workload: &'a dyn Workload, optimizer: &'a dyn Optimizer) -> Self {
        Self { parameters: workload.parameters(), buffers: workload.buffers(), optimizer }
    }
}

/// Writes the checkpoint and returns its bytes. The file appears whole or not at all.
pub(super) fn write(path: &Path, contents: &Contents<'_>) -> Result<u64, CheckpointError> {
    let failed = |source| CheckpointError::Write { path: path.to_owned(), source };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    let written = write_to(&mut BufWriter::new(file.as_file_mut()), contents);
    let written = written.map_err(|error| match error {
        PartError::Io(source) => failed(source),
        PartError::Candle(error) => CheckpointError::Candle(error),
    })?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(written)
}

/// Makes a checkpoint and writes it nowhere: what the device does for one, without the disk. Returns its bytes.
pub(super) fn rehearse(contents: &Contents<'_>) -> Result<u64, CheckpointError> {
    write_to(&mut io::sink(), contents).map_err(|error| match error {
        // The sink refuses nothing.
        PartError::Io(source) => CheckpointError::Write { path: PathBuf::new(), source },
        PartError::Candle(error) => CheckpointError::Candle(error),
    })
}

fn write_to(file: &mut impl Write, contents: &Contents<'_>) -> Result<u64, PartError> {
    let Contents { parameters, buffers, optimizer } = *contents;
    let state = optimizer.state();
    let state = state.iter().map(|(name, variable)| (format!("optimizer.{name}"), variable.as_tensor()));
    let kept = parameters.iter().chain(buffers.into_iter().flat_map(Buffers::iter));
    let tensors: Vec<(String, &Tensor)> =
        kept.map(|(name, variable)| (name.to_owned(), variable.as_tensor())).chain(state).collect();
    write_parts(file, &header(&tensors, optimizer.updates())?, &tensors)
}

/// An error on the way, before it is known which file it was.
#[derive(Debug, thiserror::Error)]
enum PartError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

fn header(tensors: &[(String, &Tensor)], updates: u64) -> candle_core::Result<Vec<u8>> {
    let mut entries = Map::new();
    // Readers of the field refuse a file that does not say which framework's layout it has.
    entries.insert("__metadata__".to_owned(), json!({ "format": "pt", "updates": updates.to_string() }));
    let mut offset = 0_usize;
    for (name, tensor) in tensors {
        let end = offset + tensor.elem_count() * tensor.dtype().size_in_bytes();
        let entry =
            json!({ "dtype": type_name(tensor.dtype())?, "shape": tensor.dims(), "data_offsets": [offset, end] });
        entries.insert(name.clone(), entry);
        offset = end;
    }
    let mut text = Value::Object(entries).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(ALIGNMENT), b' ');
    Ok(text)
}

fn type_name(dtype: DType) -> candle_core::Result<&'static str> {
    match dtype {
        DType::F64 => Ok("F64"),
        DType::F32 => Ok("F32"),
        DType::F16 => Ok("F16"),
        DType::BF16 => Ok("BF16"),
        other => candle_core::bail!("a parameter of type {other:?} cannot be written to a checkpoint"),
    }
}

fn write_parts(file: &mut impl Write, header: &[u8], tensors: &[(String, &Tensor)]) -> Result<u64, PartError> {
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header)?;
    let mut written = 8 + header.len() as u64;
    let mut buffer = Vec::new();
    for (_, tensor) in tensors {
        let values = tensor.detach().flatten_all()?; // [N]
        for start in (0..values.elem_count()).step_by(CHUNK_VALUES) {
            let count = CHUNK_VALUES.min(values.elem_count() - start);
            buffer.clear();
            copy_bytes(&values.narrow(0, start, count)?, &mut buffer)?;
            file.write_all(&buffer)?;
            written += buffer.len() as u64;
        }
    }
    file.flush()?;
    Ok(written)
}

/// Appends the values of a contiguous tensor as little-endian bytes.
fn copy_bytes(values: &Tensor, bytes: &mut Vec<u8>) -> candle_core::Result<()> {
    let host;
    let values = if values.device().is_cpu() {
        values
    } else {
        // A copy first: candle moves a view's whole storage to the host.
        host = values.force_contiguous()?.to_device(&Device::Cpu)?;
        &host
    };
    let (storage, layout) = values.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { candle_core::bail!("the values are not on the host") };
    let range = match layout.contiguous_offsets() {
        Some((start, end)) => start..end,
        None => candle_core::bail!("a parameter is not contiguous"),
    };
    let found = match storage {
        CpuStorage::F64(values) => values.get(range).map(|v| bytes.extend(v.iter().flat_map(|v| v.to_le_bytes()))),
        CpuStorage::F32(values) => values.get(range).map(|v| bytes.extend(v.iter().flat_map(|v| v.to_le_bytes()))),
        CpuStorage::F16(values) => values.get(range).map(|v| bytes.extend(v.iter().flat_map(|v| v.to_le_bytes()))),
        CpuStorage::BF16(values) => values.get(range).map(|v| bytes.extend(v.iter().flat_map(|v| v.to_le_bytes()))),
        _ => None,
    };
    found.ok_or_else(|| candle_core::Error::Msg(format!("a parameter's storage does not hold {layout:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::parameters::Init;
    use crate::train::optimizer::{adamw::AdamW, sgd::Sgd};

    fn parameters(dtype: DType) -> Parameters {
        let mut parameters = Parameters::new(&Device::Cpu, dtype, 2);
        parameters.create("small", &[3, 5], Init::Normal(1.0)).unwrap();
        parameters.create("large", &[CHUNK_VALUES + 7], Init::Normal(1.0)).unwrap();
        parameters
    }

    fn write_parameters(
        path: &Path,
        parameters: &Parameters,
        optimizer: &dyn Optimizer,
    ) -> Result<u64, CheckpointError> {
        write(path, &Contents { parameters, buffers: None, optimizer })
    }

    #[test]
    fn buffers_and_velocities_are_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let parameters = parameters(DType::BF16);
        let mut buffers = parameters.buffers();
        buffers.create("norm.running_mean", &[3], 0.25).unwrap();
        let optimizer = Sgd::new(&parameters, 0.1, 0.9).unwrap();
        write(&path, &Contents { parameters: &parameters, buffers: Some(&buffers), optimizer: &optimizer }).unwrap();
        let read = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
        assert_eq!(read.len(), 2 + 1 + 2);
        assert_eq!(read["norm.running_mean"].to_vec1::<f32>().unwrap(), [0.25; 3]);
        assert_eq!(read["optimizer.small.velocity"].dims(), [3, 5]);
    }

    #[test]
    fn tensors_longer_than_the_buffer_read_back_exactly() {
        let folder = tempfile::tempdir().unwrap();
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let path = folder.path().join(format!("{dtype:?}"));
            let parameters = parameters(dtype);
            write_parameters(&path, &parameters, &Sgd::new(&parameters, 0.1, 0.0).unwrap()).unwrap();
            let read = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
            assert_eq!(read.len(), 2);
            for (name, variable) in parameters.iter() {
                assert_eq!(read[name].dtype(), dtype);
                let f32s = |tensor: &Tensor| -> Vec<f32> {
                    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
                };
                assert!(f32s(&read[name]) == f32s(variable), "{name} in {dtype:?}");
            }
        }
    }

    #[test]
    fn the_updates_are_in_the_metadata() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let parameters = parameters(DType::F32);
        write_parameters(&path, &parameters, &AdamW::new(&parameters, 0.1).unwrap()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(header.metadata().as_ref().unwrap()["updates"], "0");
        assert_eq!(header.tensors().len(), 6);
    }

    /// A disk with so many bytes left.
    struct Disk(usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_an_error_wherever_it_fills() {
        let parameters = parameters(DType::F32);
        let tensors: Vec<_> = parameters.iter().map(|(name, value)| (name.to_owned(), value.as_tensor())).collect();
        let header = header(&tensors, 0).unwrap();
        let needed = write_parts(&mut Disk(usize::MAX), &header, &tensors).unwrap() as usize;
        for left in [0, 8, 8 + header.len(), needed / 2, needed - 1] {
            let error = write_parts(&mut Disk(left), &header, &tensors);
            assert!(matches!(error, Err(PartError::Io(_))), "{left} of {needed} bytes");
        }
        assert!(write_parts(&mut Disk(needed), &header, &tensors).is_ok());
    }

    #[test]
    fn a_failed_checkpoint_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("taken");
        std::fs::create_dir(&taken).unwrap();
        let parameters = parameters(DType::F32);
        let error = write_parameters(&taken, &parameters, &Sgd::new(&parameters, 0.1, 0.0).unwrap());
        assert!(matches!(error, Err(CheckpointError::Write { .. })), "{error:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

//! CIFAR-10's binary files (Krizhevsky, "Learning multiple layers of features from tiny images", 2009).
//!
//! A record is a byte of label and 3 × 32 × 32 bytes of pixels, channel by channel. A source is the folder of the binary
//! version: `data_batch_*.bin` are trained on, and `test_batch.bin` is held out where it is there. All of it is held in
//! memory, 184 MB. A training image is shifted by up to four pixels (with black around it), mirrored every other time
//! (both as in He et al., "Deep residual learning", 2015), and normalised.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::files::{append, files};
use super::image::Normalisation;
use super::order::mix;
use super::{DataError, Dataset, HostValues, InputSpec, Place, Sample};
use crate::units::GIB;

const SIDE: usize = 32;
const PIXELS: usize = SIDE * SIDE;
const SHAPE: [usize; 3] = [3, SIDE, SIDE];
/// Label and pixels.
const RECORD_BYTES: usize = 1 + 3 * PIXELS;
const CLASSES: usize = 10;
/// The farthest that an image is shifted, in pixels.
const SHIFT: i32 = 4;
/// Ten times what there is.
const MAX_BYTES: u64 = 2 * GIB;
/// Mean and deviation of the training set's channels.
const NORMALISATION: Normalisation =
    Normalisation { mean: [0.491_4, 0.482_2, 0.446_5], deviation: [0.247_0, 0.243_5, 0.261_6] };

/// CIFAR-10 in memory.
#[derive(Debug)]
pub struct Cifar10 {
    /// Records to train on, then those held out.
    records: Vec<u8>,
    training: usize,
    held_out: usize,
    seed: u64,
}

impl Cifar10 {
    /// Reads the files of a folder, or one file, for a model that takes `input`.
    pub fn open(path: Option<&Path>, input: &InputSpec, seed: u64) -> Result<Self, DataError> {
        let InputSpec::Features { shape, classes } = input else {
            return Err(DataError::Mismatch { source_kind: "cifar10", gives: "images", takes: "tokens" });
        };
        let path = path.ok_or(DataError::PathMissing)?;
        if *shape != SHAPE {
            return Err(DataError::ImageShape {
                source_kind: "cifar10",
                gives: "shape [3, 32, 32]",
                takes: shape.clone(),
            });
        }
        if *classes < CLASSES {
            return Err(DataError::TooManyClasses { path: path.to_owned(), found: CLASSES, limit: *classes });
        }
        let mut records = Vec::new();
        for file in files(path, &|file| is_named(file, "data_batch_"))? {
            read(&file, path, &mut records)?;
        }
        let training = records.len() / RECORD_BYTES;
        if training == 0 {
            return Err(DataError::NoFiles { path: path.to_owned() });
        }
        let test = path.join("test_batch.bin");
        if path.is_dir() && !fs::metadata(&test).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            read(&test, path, &mut records)?;
        }
        let held_out = records.len() / RECORD_BYTES - training;
        Ok(Self { records, training, held_out, seed: mix(seed, 0x6369_6661_7231_3021) })
    }

    fn record(&self, index: usize) -> Result<(u8, &[u8]), DataError> {
        let record =
            index.checked_mul(RECORD_BYTES).and_then(|start| self.records.get(start..start.checked_add(RECORD_BYTES)?));
        let samples = self.training + self.held_out;
        record
            .and_then(|record| record.split_first())
            .map(|(label, pixels)| (*label, pixels))
            .ok_or(DataError::NoSuchSample { index, samples })
    }
}

fn is_named(file: &Path, prefix: &str) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with(prefix) && file.extension().is_some_and(|extension| extension == "bin")
}

/// Appends the records of a file.
fn read(file: &Path, source_path: &Path, records: &mut Vec<u8>) -> Result<(), DataError> {
    let start = records.len();
    append(file, source_path, MAX_BYTES, records)?;
    let added = records.get(start..).unwrap_or_default();
    let broken = |offset, reason| DataError::BrokenFile { path: file.to_owned(), offset, reason };
    let (whole, rest) = (added.len() / RECORD_BYTES, added.len() % RECORD_BYTES);
    if rest != 0 {
        let reason = format!("it ends {rest} bytes into a record of {RECORD_BYTES}");
        return Err(broken((whole * RECORD_BYTES) as u64, reason));
    }
    let label = added.iter().step_by(RECORD_BYTES).position(|label| usize::from(*label) >= CLASSES);
    match label {
        None => Ok(()),
        Some(record) => {
            let offset = record * RECORD_BYTES;
            let label = added.get(offset).copied().unwrap_or_default();
            Err(broken(offset as u64, format!("label {label} is none of the {CLASSES}")))
        }
    }
}

impl Dataset for Cifar10 {
    fn len(&self) -> usize {
        self.training
    }

    fn held_out_len(&self) -> usize {
        self.held_out
    }

    fn sample(&self, index: usize) -> Result<Sample, DataError> {
        self.sample_at(Place { index, epoch: 0 })
    }

    fn sample_at(&self, place: Place) -> Result<Sample, DataError> {
        let (label, pixels) = self.record(place.index)?;
        let view = if place.index < self.training {
            let mut rng = StdRng::seed_from_u64(mix(mix(self.seed, place.epoch), place.index as u64));
            let mut shift = || rng.random_range(-SHIFT..=SHIFT);
            View { down: shift(), right: shift(), mirrored: rng.random_bool(0.5) }
        } else {
            View { down: 0, right: 0, mirrored: false }
        };
        let mut values = Vec::with_capacity(3 * PIXELS);
        for (channel, plane) in pixels.chunks_exact(PIXELS).enumerate() {
            let scale = NORMALISATION.of_channel(channel);
            values.extend((0..PIXELS).map(|place| scale.of(view.pixel(plane, place))));
        }
        Ok(Sample { input: HostValues::F32(values), target: HostValues::U32(vec![u32::from(label)]) })
    }

    fn input_shape(&self) -> Vec<usize> {
        SHAPE.to_vec()
    }

    fn target_shape(&self) -> Vec<usize> {
        Vec::new()
    }
}

/// How an image is looked at.
struct View {
    down: i32,
    right: i32,
    mirrored: bool,
}

impl View {
    /// The pixel of a plane that is seen there; black beyond the edge.
    fn pixel(&self, plane: &[u8], seen_at: usize) -> f32 {
        let (row, column) = (seen_at / SIDE, seen_at % SIDE);
        let column = if self.mirrored { SIDE - 1 - column } else { column };
        let moved = |at: usize, by: i32| at.checked_add_signed(by as isize).filter(|at| *at < SIDE);
        let seen = moved(row, self.down).zip(moved(column, self.right));
        seen.and_then(|(row, column)| plane.get(row * SIDE + column)).map_or(0.0, |pixel| f32::from(*pixel))
    }
}

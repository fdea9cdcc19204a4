//! Class folders of images, as torchvision's `ImageFolder` reads them.
//!
//! ```text
//! photos/cat/1.jpg          class 0: classes are numbered in the order of their folders' names
//! photos/dog/a.png          class 1
//! ```
//!
//! Files are decoded when they are asked for. A training image is cropped and mirrored as in "Going deeper with
//! convolutions" (Szegedy et al., 2014; torchvision's `RandomResizedCrop` and `RandomHorizontalFlip` at their defaults),
//! resized to what the model takes and normalised as ImageNet is. One in ten, drawn once, is held out; those are cropped
//! in their middle.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::files::is_hidden;
use super::image::{self, Crop, MAX_PIXELS, Normalisation, Resample, View};
use super::order::mix;
use super::text::HELD_OUT_DIVISOR;
use super::{DataError, Dataset, HostValues, InputSpec, Place, Sample};

/// The most images: four times ImageNet, at about 60 bytes each.
const MAX_IMAGES: usize = 5_000_000;
/// Shares of the image's area that a crop may have.
const AREA: (f32, f32) = (0.08, 1.0);
/// Its sides' ratio.
const RATIO: (f32, f32) = (3.0 / 4.0, 4.0 / 3.0);
/// Crops that are drawn until one lies within the image; then it is the middle.
const DRAWS: usize = 10;
const CHANNELS: usize = 3;

/// A folder of class folders.
#[derive(Debug)]
pub struct ImageFolder {
    root: PathBuf,
    classes: Vec<OsString>,
    /// In the order in which indices count: drawn once, so that the last tenth is of all classes.
    images: Vec<Image>,
    held_out: usize,
    resample: Resample,
    seed: u64,
}

/// A file and its class.
#[derive(Debug)]
struct Image {
    class: u32,
    name: Box<OsStr>,
}

impl ImageFolder {
    /// Lists the images of a folder for a model that takes `input`, of the shape [3, height, width].
    pub fn open(path: Option<&Path>, input: &InputSpec, seed: u64) -> Result<Self, DataError> {
        let InputSpec::Features { shape, classes: limit } = input else {
            return Err(DataError::Mismatch { source_kind: "image_folder", gives: "images", takes: "tokens" });
        };
        let path = path.ok_or(DataError::PathMissing)?;
        let [CHANNELS, height, width] = shape[..] else {
            let gives = "shape [3, height, width]";
            return Err(DataError::ImageShape { source_kind: "image_folder", gives, takes: shape.clone() });
        };
        if width.checked_mul(height).is_none_or(|pixels| pixels > MAX_PIXELS) {
            return Err(DataError::InvalidInput { reason: "its images are too large" });
        }
        let classes = class_folders(path, *limit)?;
        let mut images = Vec::new();
        for (class, name) in (0..).zip(&classes) {
            list(&path.join(name), class, &mut images)?;
        }
        images.shuffle(&mut StdRng::seed_from_u64(mix(seed, 0x7368_7566_666c_6521)));
        let held_out = if images.len() == 1 { 0 } else { images.len().div_ceil(HELD_OUT_DIVISOR) };
        let resample = Resample { width, height, normalisation: Normalisation::IMAGENET };
        let seed = mix(seed, 0x6175_676d_656e_7421);
        Ok(Self { root: path.to_owned(), classes, images, held_out, resample, seed })
    }

    /// A sample as large as the resampler makes it.
    fn load(&self, place: Place, resample: &Resample) -> Result<Sample, DataError> {
        let image = self.images.get(place.index);
        let found = image.and_then(|image| Some((image, self.classes.get(image.class as usize)?)));
        let (image, class) = found.ok_or(DataError::NoSuchSample { index: place.index, samples: self.images.len() })?;
        let path = self.root.join(class).join(Path::new(&image.name));
        let choose = |width, height| self.view(place, width, height);
        let values = image::load(&path, resample, &choose)?;
        Ok(Sample { input: HostValues::F32(values), target: HostValues::U32(vec![image.class]) })
    }

    /// What is seen of an image of this size.
    fn view(&self, place: Place, width: usize, height: usize) -> View {
        if place.index >= self.len() {
            return View { crop: middle(width, height), is_mirrored: false };
        }
        let mut rng = StdRng::seed_from_u64(mix(mix(self.seed, place.epoch), place.index as u64));
        View { crop: random_crop(&mut rng, width, height), is_mirrored: rng.random_bool(0.5) }
    }
}

impl Dataset for ImageFolder {
    fn len(&self) -> usize {
        self.images.len() - self.held_out
    }

    fn held_out_len(&self) -> usize {
        self.held_out
    }

    fn sample(&self, index: usize) -> Result<Sample, DataError> {
        self.sample_at(Place { index, epoch: 0 })
    }

    fn sample_at(&self, place: Place) -> Result<Sample, DataError> {
        self.load(place, &self.resample)
    }

    fn sample_of_side(&self, place: Place, side: usize) -> Result<Sample, DataError> {
        self.load(place, &Resample { width: side, height: side, ..self.resample })
    }

    fn input_shape(&self) -> Vec<usize> {
        vec![CHANNELS, self.resample.height, self.resample.width]
    }

    fn target_shape(&self) -> Vec<usize> {
        Vec::new()
    }
}

/// The names of the class folders, in order. Those over the limit are counted and no more.
fn class_folders(root: &Path, limit: usize) -> Result<Vec<OsString>, DataError> {
    let failed = |source| DataError::Read { path: root.to_owned(), source };
    let (mut classes, mut found) = (Vec::new(), 0);
    for entry in fs::read_dir(root).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !is_hidden(&entry) && fs::metadata(entry.path()).is_ok_and(|kind| kind.is_dir()) {
            found += 1;
            if found <= limit {
                classes.push(entry.file_name());
            }
        }
    }
    if found == 0 {
        return Err(DataError::NoClasses { path: root.to_owned() });
    }
    if found > limit {
        return Err(DataError::TooManyClasses { path: root.to_owned(), found, limit });
    }
    classes.sort_unstable();
    Ok(classes)
}

/// Appends the images of a class folder, in the order of their names.
fn list(folder: &Path, class: u32, images: &mut Vec<Image>) -> Result<(), DataError> {
    let failed = |source| DataError::Read { path: folder.to_owned(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if is_hidden(&entry) || !is_image(&entry.path()) {
            continue;
        }
        if images.len() + names.len() == MAX_IMAGES {
            return Err(DataError::TooManyFiles { path: folder.to_owned(), limit: MAX_IMAGES });
        }
        names.push(entry.file_name().into_boxed_os_str());
    }
    if names.is_empty() {
        return Err(DataError::EmptyClass { path: folder.to_owned() });
    }
    names.sort_unstable();
    images.extend(names.into_iter().map(|name| Image { class, name }));
    Ok(())
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default();
    ["jpg", "jpeg", "png"].iter().any(|known| extension.eq_ignore_ascii_case(known))
}

/// A crop of random area and ratio within the image.
fn random_crop(rng: &mut StdRng, width: usize, height: usize) -> Crop {
    let area = (width * height) as f32;
    for _ in 0..DRAWS {
        let target = area * rng.random_range(AREA.0..=AREA.1);
        let ratio = rng.random_range(RATIO.0.ln()..=RATIO.1.ln()).exp();
        let sides = ((target * ratio).sqrt().round() as usize, (target / ratio).sqrt().round() as usize);
        if (1..=width).contains(&sides.0) && (1..=height).contains(&sides.1) {
            let left = rng.random_range(0..=width - sides.0);
            let top = rng.random_range(0..=height - sides.1);
            return Crop { left, top, width: sides.0, height: sides.1 };
        }
    }
    middle(width, height)
}

/// The largest crop of an allowed ratio in the middle of the image.
fn middle(width: usize, height: usize) -> Crop {
    let at_most = |side: usize, other: usize, ratio: f32| side.min(((other as f32 * ratio).round() as usize).max(1));
    let (crop_width, crop_height) = (at_most(width, height, RATIO.1), at_most(height, width, 1.0 / RATIO.0));
    Crop { left: (width - crop_width) / 2, top: (height - crop_height) / 2, width: crop_width, height: crop_height }
}

//! Folders of images that somebody made to break the reader, or that a broken disk left behind: what cannot be read is an
//! error that names the file, and nothing panics, waits for ever, or takes memory for what is only promised.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use batchtune::data::loader::{Loader, LoaderConfig};
use batchtune::data::rules::BatchRules;
use batchtune::data::{self, DataError, DataSpec, Dataset, HostValues, OnBadSample, SourceKind};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::fixtures::{cifar, image_folder, image_input, jpeg, png};

fn try_open(root: &Path) -> Result<Arc<dyn Dataset>, DataError> {
    let spec = DataSpec { source: SourceKind::ImageFolder, path: Some(root.to_owned()), ..DataSpec::default() };
    data::open(&spec, &image_input(8), 5)
}

fn open(root: &Path) -> Arc<dyn Dataset> {
    try_open(root).unwrap_or_else(|error| panic!("{error}"))
}

/// The errors of all samples, in order.
fn errors(dataset: &dyn Dataset) -> Vec<String> {
    let samples = dataset.len() + dataset.held_out_len();
    let mut errors: Vec<String> = (0..samples)
        .filter_map(|index| dataset.sample(index).err())
        .inspect(|error| assert!(error.is_of_one_sample(), "{error}"))
        .map(|error| error.to_string())
        .collect();
    errors.sort();
    errors
}

#[test]
fn what_is_no_file_is_an_error_of_its_sample_and_is_skipped_where_asked() {
    let root = tempfile::tempdir().unwrap();
    image_folder(root.path(), 2, 6);
    let class = root.path().join("class-0");
    mkfifo(&class.join("a-pipe.jpg"), Mode::S_IRWXU).unwrap();
    fs::create_dir(class.join("b-folder.jpg")).unwrap();
    symlink("c-loop.jpg", class.join("c-loop.jpg")).unwrap();
    symlink("nowhere", class.join("d-dangling.png")).unwrap();
    symlink("/dev/zero", class.join("e-device.png")).unwrap();
    fs::write(class.join("f-empty.jpg"), b"").unwrap();
    symlink("../class-1/0.jpg", class.join("g-good.jpg")).unwrap();
    let dataset = open(root.path());
    let found = errors(dataset.as_ref());
    let named = ["a-pipe", "b-folder", "c-loop", "d-dangling", "e-device", "f-empty"];
    assert_eq!(found.len(), named.len(), "{found:#?}");
    for name in named {
        assert!(found.iter().any(|error| error.contains(name)), "{name}: {found:#?}");
    }
    for workers in [0, 2] {
        let config = LoaderConfig { batch_size: 3, workers, prefetch_depth: 1, seed: 1 };
        let rules = BatchRules { on_bad_sample: OnBadSample::Skip, ..BatchRules::default() };
        let mut loader = Loader::with_rules(Arc::clone(&dataset), config, rules);
        for _ in 0..12 {
            assert_eq!(loader.next_batch().unwrap().samples, 3);
        }
        assert!(loader.skipped().samples > 0);
    }
}

#[test]
fn names_that_are_not_utf_8_are_read_and_named() {
    let root = tempfile::tempdir().unwrap();
    let class = root.path().join(OsStr::from_bytes(b"class-\xff"));
    fs::create_dir(&class).unwrap();
    fs::write(class.join(OsStr::from_bytes(b"good-\xfe.JPEG")), jpeg(20, 20, 1)).unwrap();
    fs::write(class.join(OsStr::from_bytes(b"bad-\xfe\n.png")), b"no image").unwrap();
    let dataset = open(root.path());
    assert_eq!(dataset.len() + dataset.held_out_len(), 2);
    let found = errors(dataset.as_ref());
    assert!(found.len() == 1 && found[0].contains("bad-"), "{found:?}");
}

#[test]
fn class_folders_that_are_links_in_a_circle_are_read_once_or_left_out() {
    let root = tempfile::tempdir().unwrap();
    image_folder(root.path(), 1, 2);
    symlink("class-0", root.path().join("class-1")).unwrap();
    symlink("class-2", root.path().join("class-2")).unwrap();
    let dataset = open(root.path());
    assert_eq!(dataset.len() + dataset.held_out_len(), 4);
    // The folder itself is a class without images of its own.
    symlink(".", root.path().join("class-3")).unwrap();
    assert!(matches!(try_open(root.path()), Err(DataError::EmptyClass { path }) if path.ends_with("class-3")));
}

#[test]
fn more_class_folders_than_the_model_has_classes_are_counted() {
    let root = tempfile::tempdir().unwrap();
    for class in 0..3000 {
        fs::create_dir(root.path().join(class.to_string())).unwrap();
    }
    assert!(matches!(try_open(root.path()), Err(DataError::TooManyClasses { found: 3000, limit: 10, .. })));
}

#[test]
fn a_file_that_is_replaced_while_it_is_trained_on_is_read_as_it_is_then() {
    let root = tempfile::tempdir().unwrap();
    let class = root.path().join("class");
    fs::create_dir(&class).unwrap();
    let path = class.join("only.jpg");
    fs::write(&path, jpeg(30, 20, 1)).unwrap();
    let dataset = open(root.path());
    let first = dataset.sample(0).unwrap();
    // Another image of another kind and size, then something broken, a pipe, nothing, and the image again.
    fs::write(&path, png(7, 50, 2)).unwrap();
    assert_ne!(dataset.sample(0).unwrap().input, first.input);
    fs::write(&path, &jpeg(30, 20, 1)[..300]).unwrap();
    assert!(matches!(dataset.sample(0), Err(DataError::BrokenImage { .. })));
    fs::remove_file(&path).unwrap();
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    assert!(matches!(dataset.sample(0), Err(DataError::NotAFile { .. })));
    fs::remove_file(&path).unwrap();
    assert!(matches!(dataset.sample(0), Err(DataError::Read { .. })));
    fs::write(&path, jpeg(30, 20, 1)).unwrap();
    assert_eq!(dataset.sample(0).unwrap(), first);
}

#[test]
fn a_file_beyond_the_limit_is_refused_by_its_size() {
    let root = tempfile::tempdir().unwrap();
    image_folder(root.path(), 1, 1);
    let sparse = fs::File::create(root.path().join("class-0/huge.jpg")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    let found = errors(open(root.path()).as_ref());
    assert!(found.len() == 1 && found[0].contains("huge.jpg` holds more than"), "{found:?}");
}

#[test]
fn images_of_one_pixel_and_of_extreme_ratios_are_read() {
    let root = tempfile::tempdir().unwrap();
    let class = root.path().join("class");
    fs::create_dir(&class).unwrap();
    for (number, (width, height)) in
        [(1, 1), (1, 9), (9, 1), (1, 5000), (5000, 1), (2, 2), (17, 3)].into_iter().enumerate()
    {
        fs::write(class.join(format!("{number}.jpg")), jpeg(width, height, 1)).unwrap();
        fs::write(class.join(format!("{number}.png")), png(width, height, 1)).unwrap();
    }
    let dataset = open(root.path());
    assert_eq!(errors(dataset.as_ref()), [""; 0]);
    for index in 0..dataset.len() {
        let HostValues::F32(values) = dataset.sample(index).unwrap().input else { panic!("pixels are floats") };
        assert!(values.len() == 192 && values.iter().all(|value| (-2.2..2.7).contains(value)));
    }
}

/// A broken byte anywhere in a file is an image or an error of the file's, for every kind of file.
#[test]
fn a_broken_byte_anywhere_is_an_image_or_an_error_that_names_the_file() {
    let root = tempfile::tempdir().unwrap();
    let class = root.path().join("class");
    fs::create_dir(&class).unwrap();
    let path = class.join("broken.jpg");
    for file in [jpeg(40, 30, 3), png(40, 30, 3)] {
        fs::write(&path, &file).unwrap();
        let dataset = open(root.path());
        for place in (0..file.len()).step_by(29) {
            let mut broken = file.clone();
            broken[place] = !broken[place];
            fs::write(&path, broken).unwrap();
            if let Err(error) = dataset.sample(0) {
                assert!(error.is_of_one_sample() && error.to_string().contains("broken.jpg"), "{error}");
            }
        }
    }
}

#[test]
fn a_shape_that_no_memory_holds_is_refused() {
    let root = tempfile::tempdir().unwrap();
    image_folder(root.path(), 1, 1);
    let spec = DataSpec { source: SourceKind::ImageFolder, path: Some(root.path().to_owned()), ..DataSpec::default() };
    for side in [1 << 20, usize::MAX / 2] {
        assert!(matches!(data::open(&spec, &image_input(side), 5), Err(DataError::InvalidInput { .. })));
    }
}

#[test]
fn cifar10_s_held_out_file_is_read_or_refused_and_not_passed_over() {
    let root = tempfile::tempdir().unwrap();
    let spec = DataSpec { source: SourceKind::Cifar10, path: Some(root.path().to_owned()), ..DataSpec::default() };
    let open = || data::open(&spec, &image_input(32), 5);
    mkfifo(&root.path().join("data_batch_0.bin"), Mode::S_IRWXU).unwrap();
    assert!(matches!(open(), Err(DataError::NoFiles { .. })));
    fs::write(root.path().join("data_batch_1.bin"), cifar(3, 1)).unwrap();
    assert_eq!(open().unwrap().held_out_len(), 0);
    let test = root.path().join("test_batch.bin");
    mkfifo(&test, Mode::S_IRWXU).unwrap();
    assert!(matches!(open(), Err(DataError::NotAFile { path }) if path == test));
    fs::remove_file(&test).unwrap();
    fs::write(&test, &cifar(2, 1)[..4000]).unwrap();
    assert!(matches!(open(), Err(DataError::BrokenFile { path, offset: 3073, .. }) if path == test));
    fs::write(&test, b"").unwrap();
    assert_eq!(open().unwrap().held_out_len(), 0);
    fs::write(root.path().join("data_batch_1.bin"), b"").unwrap();
    assert!(matches!(open(), Err(DataError::NoFiles { .. })));
}

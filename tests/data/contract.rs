//! The laws of datasets and of the loader, over every kind of dataset and over workers × prefetch depth.

use std::sync::Arc;

use batchtune::data::lengths::Longest;
use batchtune::data::loader::{Loader, LoaderConfig};
use batchtune::data::order::Order;
use batchtune::data::rules::BatchRules;
use batchtune::data::{
    self, DataSpec, Dataset, HostBatch, HostValues, ImageSizeSpec, LastBatch, LengthDistribution, LengthSpec, Padding,
    Place, Sample, held_out,
};

use crate::fixtures::{every_kind, image_input};

const WORKERS: [usize; 4] = [0, 1, 2, 4];
const DEPTHS: [usize; 3] = [0, 1, 2];
const BATCH_SIZE: usize = 4;
const SEED: u64 = 9;

fn count(values: &HostValues) -> usize {
    (values.bytes() / 4) as usize
}

#[test]
fn a_sample_is_of_the_promised_shape_and_the_same_whenever_it_is_asked_for() {
    let root = tempfile::tempdir().unwrap();
    for (name, dataset) in every_kind(root.path()) {
        assert!(!dataset.is_empty(), "{name}");
        for index in [0, dataset.len() / 2, dataset.len() - 1, dataset.len() + dataset.held_out_len() - 1] {
            let sample = dataset.sample(index).unwrap();
            assert_eq!(sample, dataset.sample(index).unwrap(), "{name}");
            assert_eq!(count(&sample.input), dataset.input_shape().iter().product::<usize>(), "{name}");
            assert_eq!(count(&sample.target), dataset.target_shape().iter().product::<usize>(), "{name}");
            let place = Place { index, epoch: 3 };
            assert_eq!(dataset.sample_at(place).unwrap(), dataset.sample_at(place).unwrap(), "{name}");
        }
    }
}

#[test]
fn a_dataset_of_files_has_no_sample_beyond_its_end() {
    let root = tempfile::tempdir().unwrap();
    for (name, dataset) in every_kind(root.path()).into_iter().filter(|(name, _)| !name.starts_with("synthetic")) {
        let samples = dataset.len() + dataset.held_out_len();
        for index in [samples, samples + 1, usize::MAX / 2, usize::MAX] {
            let error = dataset.sample(index).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("there is no sample"), "{name}: {error}");
        }
    }
}

#[test]
fn held_out_samples_are_no_training_samples() {
    let root = tempfile::tempdir().unwrap();
    // Synthetic samples are too many to compare, and two windows of a text may well read alike.
    let is_compared = |name: &str| !name.contains("synthetic") && !name.contains("text");
    for (name, dataset) in every_kind(root.path()).into_iter().filter(|(name, _)| is_compared(name)) {
        let part = held_out::split(&dataset).unwrap();
        for index in 0..part.len() {
            let held_out = part.sample(index).unwrap();
            assert_eq!(
                held_out,
                part.sample_at(Place { index, epoch: 5 }).unwrap(),
                "{name}: nothing is left to chance"
            );
            let trained = (0..dataset.len()).any(|index| dataset.sample(index).unwrap() == held_out);
            assert!(!trained, "{name}");
        }
    }
}

#[test]
fn images_look_different_in_every_epoch() {
    let root = tempfile::tempdir().unwrap();
    for (name, dataset) in every_kind(root.path()) {
        let of_epoch = |epoch| dataset.sample_at(Place { index: 1, epoch }).unwrap();
        let differ = (1..6).any(|epoch| of_epoch(epoch) != of_epoch(0));
        assert_eq!(differ, ["image_folder", "cifar10"].contains(&name), "{name}");
    }
}

/// The batches of two epochs, and of as many as that where an epoch is long.
fn batches(dataset: &Arc<dyn Dataset>, rules: BatchRules, (workers, prefetch_depth): (usize, usize)) -> Vec<HostBatch> {
    let config = LoaderConfig { batch_size: BATCH_SIZE, workers, prefetch_depth, seed: SEED };
    let mut loader = Loader::with_rules(Arc::clone(dataset), config, rules);
    let number = (2 * dataset.len().div_ceil(BATCH_SIZE)).min(16);
    (0..number).map(|_| loader.next_batch().expect("a batch")).collect()
}

/// What the batches hold, sample by sample.
fn samples(dataset: &dyn Dataset, batches: &[HostBatch]) -> Vec<Sample> {
    let rows = |values: &HostValues, shape: Vec<usize>| -> Vec<HostValues> {
        let row = shape.iter().product::<usize>();
        match values {
            HostValues::U32(values) => values.chunks(row).map(|row| HostValues::U32(row.to_vec())).collect(),
            HostValues::F32(values) => values.chunks(row).map(|row| HostValues::F32(row.to_vec())).collect(),
        }
    };
    let of_batch = |batch: &HostBatch| -> Vec<Sample> {
        let (input, target) = (rows(&batch.input, dataset.input_shape()), rows(&batch.target, dataset.target_shape()));
        input.into_iter().zip(target).map(|(input, target)| Sample { input, target }).collect()
    };
    batches.iter().flat_map(of_batch).collect()
}

#[test]
fn every_dataset_comes_whole_and_in_the_same_order_for_any_workers_and_depth() {
    let root = tempfile::tempdir().unwrap();
    for (name, dataset) in every_kind(root.path()) {
        for last_batch in [LastBatch::Keep, LastBatch::Drop] {
            let rules = BatchRules { last_batch, ..BatchRules::default() };
            let order = Order::new(dataset.len(), BATCH_SIZE, SEED).with_last_batch(last_batch);
            let expected = batches(&dataset, rules, (0, 0));
            let places = (0..expected.len() as u64).flat_map(|number| order.batch(number));
            let one_by_one: Vec<Sample> = places.map(|place| dataset.sample_at(place).unwrap()).collect();
            assert_eq!(samples(dataset.as_ref(), &expected), one_by_one, "{name}");
            if last_batch == LastBatch::Keep && dataset.len() < 32 {
                let epoch = dataset.len().div_ceil(BATCH_SIZE);
                let sizes: Vec<usize> = expected[..epoch].iter().map(|batch| batch.samples).collect();
                assert_eq!(sizes.iter().sum::<usize>(), dataset.len(), "{name}: nothing is lost at an epoch's end");
            }
            for workers in WORKERS {
                for depth in DEPTHS {
                    let found = batches(&dataset, rules, (workers, depth));
                    assert_eq!(found, expected, "{name}, {workers} workers × {depth}");
                    // A thread that was left would hold the dataset.
                    assert_eq!(Arc::strong_count(&dataset), 1, "{name}, {workers} workers × {depth}");
                }
            }
        }
    }
}

#[test]
fn images_of_varying_side_are_the_same_for_any_workers_and_depth_and_every_image_of_a_batch_has_its_side() {
    let root = tempfile::tempdir().unwrap();
    let mut kinds = 0;
    let synthetic = data::open(&DataSpec::default(), &image_input(16), 5).unwrap();
    for (name, dataset) in every_kind(root.path()).into_iter().chain([("synthetic images", synthetic)]) {
        let place = Place { index: 1, epoch: 2 };
        let whole = dataset.input_shape();
        let [channels, side, _] = whole[..] else { continue };
        let of_side = dataset.sample_of_side(place, side);
        if name == "cifar10" {
            assert!(of_side.unwrap_err().to_string().contains("cannot be made as images of 32 × 32 pixels"));
            continue;
        }
        kinds += 1;
        assert_eq!(of_side.unwrap(), dataset.sample_at(place).unwrap(), "{name}");
        let image_size = ImageSizeSpec::Range { min: side / 4, max: side, multiple_of: side / 4, every: 2 };
        let spec = DataSpec { image_size: Some(image_size), ..DataSpec::default() };
        let longest = Longest::Every { first: 1, period: 4 };
        let rules = BatchRules { longest, ..BatchRules::of(&spec, SEED) };
        let expected = batches(&dataset, rules, (0, 0));
        let shape = |batch: &HostBatch| (batch.input_shape[1..].to_vec(), batch.target_shape.clone());
        let sides: Vec<usize> = expected.iter().map(|batch| batch.input_shape[3]).collect();
        for (batch, side) in expected.iter().zip(&sides) {
            assert_eq!(shape(batch), (vec![channels, *side, *side], vec![BATCH_SIZE]), "{name}");
        }
        assert!(sides.iter().skip(1).step_by(4).all(|other| *other == side), "{name}: {sides:?}");
        assert!(sides.iter().any(|other| *other < side), "{name}: {sides:?}");
        for workers in WORKERS {
            for depth in DEPTHS {
                assert_eq!(batches(&dataset, rules, (workers, depth)), expected, "{name}, {workers} × {depth}");
            }
        }
    }
    assert_eq!(kinds, 2, "synthetic images and those of a folder");
}

#[test]
fn batches_of_varying_length_are_the_same_for_any_workers_and_depth() {
    let root = tempfile::tempdir().unwrap();
    let range = LengthSpec::Range { min: 2, max: 8, distribution: LengthDistribution::Uniform };
    for (name, dataset) in every_kind(root.path()).into_iter().filter(|(_, dataset)| dataset.input_shape() == [8]) {
        for padding in [Padding::Longest, Padding::Maximum] {
            let spec = DataSpec { sequence_length: Some(range), padding, ..DataSpec::default() };
            let longest = Longest::Every { first: 1, period: 4 };
            let rules = BatchRules { longest, ..BatchRules::of(&spec, SEED) };
            let expected = batches(&dataset, rules, (0, 0));
            let lengths: Vec<usize> = expected.iter().map(|batch| batch.input_shape[1]).collect();
            assert!(lengths.iter().skip(1).step_by(4).all(|length| *length == 8), "{name}: {lengths:?}");
            assert!(lengths.iter().all(|length| (2..=8).contains(length)), "{name}: {lengths:?}");
            assert_eq!(lengths.iter().all(|length| *length == 8), padding == Padding::Maximum, "{name}: {lengths:?}");
            for workers in WORKERS {
                for depth in DEPTHS {
                    assert_eq!(batches(&dataset, rules, (workers, depth)), expected, "{name}, {workers} × {depth}");
                }
            }
        }
    }
}

//! What is wrong with files is told by name and place, and skipped where that is asked for.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use batchtune::data::loader::{Loader, LoaderConfig};
use batchtune::data::rules::BatchRules;
use batchtune::data::{self, DataError, DataSpec, Dataset, HostValues, InputSpec, OnBadSample, SourceKind};

use crate::fixtures::{cifar, headed_tokens, image_folder, image_input, jpeg, raw_tokens, token_input, tokenizer};

fn try_open(source: SourceKind, path: &Path, input: &InputSpec) -> Result<Arc<dyn Dataset>, DataError> {
    data::open(&DataSpec { source, path: Some(path.to_owned()), ..DataSpec::default() }, input, 5)
}

fn refusal(source: SourceKind, path: &Path, input: &InputSpec) -> String {
    match try_open(source, path, input) {
        Ok(_) => panic!("{source}: {} opened", path.display()),
        Err(error) => error.to_string(),
    }
}

fn u32s(values: &HostValues) -> Vec<u32> {
    match values {
        HostValues::U32(values) => values.clone(),
        HostValues::F32(_) => panic!("floats"),
    }
}

#[test]
fn tokens_of_either_layout_are_read_as_they_were_written() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("tokens.bin");
    let tokens: Vec<u32> = (0..50).map(|token| token * 5).collect();
    let input = token_input();
    let wide: Vec<u32> = tokens.iter().map(|token| token + 70_000).collect();
    raw_tokens(&path, tokens.iter().map(|token| *token as u16));
    let raw = try_open(SourceKind::Tokens, &path, &input).unwrap();
    headed_tokens(&root.path().join("headed.bin"), (20_240_520, 1), &tokens);
    let headed = try_open(SourceKind::Tokens, &root.path().join("headed.bin"), &input).unwrap();
    headed_tokens(&root.path().join("wide.bin"), (20_240_801, 7), &wide);
    let large = InputSpec::Tokens { vocabulary_size: 128_256, sequence_length: 8 };
    let wide_set = try_open(SourceKind::Tokens, &root.path().join("wide.bin"), &large).unwrap();
    for dataset in [&raw, &headed, &wide_set] {
        assert_eq!((dataset.len(), dataset.held_out_len()), (5, 1));
    }
    for index in 0..6 {
        let sample = raw.sample(index).unwrap();
        assert_eq!(sample, headed.sample(index).unwrap());
        assert_eq!(u32s(&sample.input), tokens[8 * index..8 * index + 8]);
        assert_eq!(u32s(&sample.target), tokens[8 * index + 1..8 * index + 9]);
        assert_eq!(u32s(&wide_set.sample(index).unwrap().target), wide[8 * index + 1..8 * index + 9]);
    }
}

#[test]
fn shards_are_one_dataset_and_no_window_reaches_over_their_ends() {
    let root = tempfile::tempdir().unwrap();
    for (shard, count) in [("a", 20_u16), ("b", 3), ("c", 17)] {
        let first = 100 * u16::from(shard.as_bytes()[0] - b'a');
        raw_tokens(&root.path().join(format!("{shard}.bin")), first..first + count);
    }
    let dataset = try_open(SourceKind::Tokens, root.path(), &token_input()).unwrap();
    assert_eq!(dataset.len() + dataset.held_out_len(), 4);
    let firsts: Vec<u32> = (0..4).map(|index| u32s(&dataset.sample(index).unwrap().input)[0]).collect();
    assert_eq!(firsts, [0, 8, 200, 208]);
}

#[test]
fn a_broken_token_file_is_named_with_the_place() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("tokens.bin");
    let refused = || refusal(SourceKind::Tokens, &path, &token_input());
    fs::write(&path, [0; 33]).unwrap();
    assert!(refused().contains("tokens.bin` is broken at offset 32: it ends in the middle"), "{}", refused());
    headed_tokens(&path, (20_240_520, 2), &[1; 50]);
    assert!(refused().contains("offset 4: its header has version 2, expected version 1"), "{}", refused());
    headed_tokens(&path, (20_240_801, 7), &[1; 50]);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 4]).unwrap();
    assert!(
        refused().contains("offset 8: its header promises 50 tokens, so 1224 bytes, and it has 1220"),
        "{}",
        refused()
    );
    fs::write(&path, &whole[..8]).unwrap();
    assert!(refused().contains("promises 0 tokens"), "{}", refused());
    fs::write(&path, []).unwrap();
    assert!(refused().contains("holds 0 tokens, and one sample needs 9"), "{}", refused());
    assert!(refusal(SourceKind::Tokens, &root.path().join("none"), &token_input()).contains("none"));
    assert!(
        refusal(SourceKind::Tokens, Path::new("/dev/zero"), &token_input()).contains("neither a file nor a folder")
    );
}

#[test]
fn a_token_beyond_the_vocabulary_is_named_with_its_offset_and_can_be_skipped() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("tokens.bin");
    raw_tokens(&path, (0..200).map(|token| if token == 42 { 999 } else { token % 300 }));
    let dataset = try_open(SourceKind::Tokens, &path, &token_input()).unwrap();
    let error = dataset.sample(5).unwrap_err().to_string();
    assert!(error.contains("tokens.bin` holds token 999 at offset 84, beyond the vocabulary of 300"), "{error}");
    assert!(dataset.sample(4).is_ok() && dataset.sample(6).is_ok());
}

#[test]
fn a_token_file_that_becomes_shorter_is_an_error_of_the_samples_behind_its_end() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("tokens.bin");
    raw_tokens(&path, (0..60_000).map(|token| token % 300));
    let dataset = try_open(SourceKind::Tokens, &path, &token_input()).unwrap();
    let last = dataset.len() - 1;
    assert!(dataset.sample(last).is_ok());
    fs::File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
    assert!(dataset.sample(3).is_ok());
    let error = dataset.sample(last).unwrap_err().to_string();
    assert!(error.contains("ends at 1000 bytes"), "{error}");
}

#[test]
fn a_text_is_cut_by_its_tokenizer() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("text");
    fs::write(&path, "the model reads words\nand unheard words ".repeat(5)).unwrap();
    let spec = DataSpec {
        source: SourceKind::Text,
        path: Some(path.clone()),
        tokenizer: Some(tokenizer()),
        ..DataSpec::default()
    };
    let dataset = data::open(&spec, &token_input(), 0).unwrap();
    // The file's own truncation to four tokens does not hold for a corpus.
    assert_eq!(dataset.len() + dataset.held_out_len(), 4);
    assert_eq!(u32s(&dataset.sample(0).unwrap().input), [1, 2, 3, 299, 0, 0, 299, 1]);

    fs::write(&path, "the model\nreads a rare word ".repeat(9)).unwrap();
    let error = data::open(&spec, &token_input(), 0).err().unwrap().to_string();
    assert!(error.contains("text` holds token 1000 at offset 18, beyond the vocabulary of 300"), "{error}");
    let broken = DataSpec { tokenizer: Some(path.clone()), ..spec.clone() };
    let error = data::open(&broken, &token_input(), 0).err().unwrap();
    assert!(matches!(error, DataError::Tokenizer { .. }), "{error}");
    let missing = DataSpec { tokenizer: Some(root.path().join("missing.json")), ..spec };
    let error = data::open(&missing, &token_input(), 0).err().unwrap().to_string();
    assert!(error.contains("missing.json"), "{error}");
}

#[test]
fn what_is_wrong_with_an_image_folder_is_named() {
    let root = tempfile::tempdir().unwrap();
    let input = image_input(8);
    let refused = |input: &InputSpec| refusal(SourceKind::ImageFolder, root.path(), input);
    assert!(refusal(SourceKind::ImageFolder, &root.path().join("missing"), &input).contains("missing"));
    assert!(refused(&input).contains("has no class folders"));
    image_folder(root.path(), 2, 3);
    fs::create_dir(root.path().join("class-9")).unwrap();
    fs::write(root.path().join("class-9/notes.txt"), "no image").unwrap();
    let error = refused(&input);
    assert!(error.contains("class-9` has no `.jpg`, `.jpeg` or `.png` files"), "{error}");
    fs::remove_dir_all(root.path().join("class-9")).unwrap();
    assert!(refused(&InputSpec::Features { shape: vec![3, 8, 8], classes: 1 }).contains("has 2 classes"));
    assert!(refused(&InputSpec::Features { shape: vec![1, 8, 8], classes: 2 }).contains("takes shape [1, 8, 8]"));
    assert!(refused(&token_input()).contains("gives images, and the model takes tokens"));
    assert!(try_open(SourceKind::ImageFolder, root.path(), &input).is_ok());
}

#[test]
fn classes_are_numbered_by_their_names_and_images_are_normalised() {
    let root = tempfile::tempdir().unwrap();
    image_folder(root.path(), 3, 10);
    let dataset = try_open(SourceKind::ImageFolder, root.path(), &image_input(8)).unwrap();
    assert_eq!((dataset.len(), dataset.held_out_len()), (27, 3));
    let mut classes = [0; 3];
    for index in 0..30 {
        let sample = dataset.sample(index).unwrap();
        classes[u32s(&sample.target)[0] as usize] += 1;
        let HostValues::F32(values) = sample.input else { panic!("pixels are floats") };
        assert!(values.iter().all(|value| (-2.2..2.7).contains(value)));
    }
    assert_eq!(classes, [10, 10, 10]);
}

fn folder_with_bad_files(root: &Path) -> Arc<dyn Dataset> {
    image_folder(root, 2, 10);
    let whole = jpeg(40, 30, 1);
    fs::write(root.join("class-0/0.jpg"), &whole[..whole.len() / 2]).expect("a file");
    fs::write(root.join("class-0/2.jpg"), b"").expect("a file");
    fs::write(root.join("class-1/1.PNG"), b"GIF89a").expect("a file");
    try_open(SourceKind::ImageFolder, root, &image_input(8)).expect("a folder with some good files")
}

#[test]
fn a_broken_image_is_named() {
    let root = tempfile::tempdir().unwrap();
    let dataset = folder_with_bad_files(root.path());
    let mut errors: Vec<String> =
        (0..20).filter_map(|index| dataset.sample(index).err()).map(|error| error.to_string()).collect();
    errors.sort();
    assert_eq!(errors.len(), 3);
    assert!(errors[0].contains("class-0/0.jpg` is no image that can be read: it ends before"), "{errors:?}");
    assert!(errors[1].contains("class-0/2.jpg") && errors[1].contains("it is empty"), "{errors:?}");
    assert!(errors[2].contains("class-1/1.PNG") && errors[2].contains("neither JPEG nor PNG"), "{errors:?}");
}

#[test]
fn bad_files_are_skipped_and_counted_alike_for_any_workers() {
    let root = tempfile::tempdir().unwrap();
    let dataset = folder_with_bad_files(root.path());
    let load = |workers: usize, on_bad_sample| {
        let config = LoaderConfig { batch_size: 3, workers, prefetch_depth: 2, seed: 1 };
        let rules = BatchRules { on_bad_sample, ..BatchRules::default() };
        let mut loader = Loader::with_rules(Arc::clone(&dataset), config, rules);
        let batches: Vec<_> = (0..12).map(|_| loader.next_batch()).collect();
        (batches, loader.skipped().clone())
    };
    let (batches, skipped) = load(0, OnBadSample::Error);
    assert!(batches.iter().any(Result::is_err) && skipped.samples == 0);
    let (batches, skipped) = load(0, OnBadSample::Skip);
    let expected: Vec<_> = batches.into_iter().map(Result::unwrap).collect();
    assert!(expected.iter().all(|batch| batch.samples == 3 && batch.input_shape == [3, 3, 8, 8]));
    assert!(
        skipped.samples >= 2 && skipped.first.as_ref().is_some_and(|first| first.contains("class-")),
        "{skipped:?}"
    );
    for workers in [1, 2, 4] {
        let (batches, found) = load(workers, OnBadSample::Skip);
        assert_eq!(found, skipped);
        assert_eq!(batches.into_iter().map(Result::unwrap).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_broken_record_of_cifar10_is_named_with_its_offset() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("data_batch_1.bin");
    let refused = || refusal(SourceKind::Cifar10, root.path(), &image_input(32));
    assert!(refused().contains("has no files to read"), "{}", refused());
    let mut records = cifar(4, 1);
    records[2 * 3073] = 10;
    fs::write(&file, &records).unwrap();
    assert!(
        refused().contains("data_batch_1.bin` is broken at offset 6146: label 10 is none of the 10"),
        "{}",
        refused()
    );
    fs::write(&file, &records[..3073 + 5]).unwrap();
    assert!(refused().contains("offset 3073: it ends 5 bytes into a record of 3073"), "{}", refused());
    fs::write(&file, cifar(4, 1)).unwrap();
    let error = refusal(SourceKind::Cifar10, root.path(), &image_input(16));
    assert!(error.contains("gives images of shape [3, 32, 32], and the model takes shape [3, 16, 16]"), "{error}");
    assert_eq!(try_open(SourceKind::Cifar10, root.path(), &image_input(32)).unwrap().len(), 4);
    assert_eq!(try_open(SourceKind::Cifar10, &file, &image_input(32)).unwrap().len(), 4);
}

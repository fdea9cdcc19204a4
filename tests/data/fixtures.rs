//! Small datasets of every kind, written to a folder of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use batchtune::data::{self, DataSpec, Dataset, InputSpec, SourceKind};

/// A number that looks random, from a counter.
pub(crate) fn noise(counter: u64) -> u64 {
    let mut mixed = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// An image of coarse and fine noise.
pub(crate) fn pixels(width: usize, height: usize, seed: u64) -> Vec<u8> {
    let value = |column: usize, row: usize, channel: usize| {
        let coarse = noise(seed ^ ((column / 4) as u64) << 40 ^ ((row / 4) as u64) << 20 ^ channel as u64);
        let fine = noise(seed ^ (column as u64) << 42 ^ (row as u64) << 22 ^ 8);
        (coarse % 200 + fine % 56) as u8
    };
    let places = (0..height).flat_map(|row| (0..width).map(move |column| (column, row)));
    places.flat_map(|(column, row)| (0..3).map(move |channel| value(column, row, channel))).collect()
}

pub(crate) fn jpeg(width: usize, height: usize, seed: u64) -> Vec<u8> {
    let mut file = Vec::new();
    let encoder = jpeg_encoder::Encoder::new(&mut file, 90);
    let (pixels, size) = (pixels(width, height, seed), (width as u16, height as u16));
    encoder.encode(&pixels, size.0, size.1, jpeg_encoder::ColorType::Rgb).expect("an image");
    file
}

pub(crate) fn png(width: usize, height: usize, seed: u64) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder
        .write_header()
        .and_then(|mut writer| writer.write_image_data(&pixels(width, height, seed)))
        .expect("an image");
    file
}

/// Class folders with so many images each, JPEG and PNG by turns.
pub(crate) fn image_folder(root: &Path, classes: usize, images: usize) {
    for class in 0..classes {
        let folder = root.join(format!("class-{class}"));
        fs::create_dir_all(&folder).expect("a folder");
        for image in 0..images {
            let seed = noise((class * 1000 + image) as u64);
            let size = (24 + seed as usize % 20, 20 + (seed >> 8) as usize % 20);
            let (name, file) = if image % 2 == 0 {
                (format!("{image}.jpg"), jpeg(size.0, size.1, seed))
            } else {
                (format!("{image}.PNG"), png(size.0, size.1, seed))
            };
            fs::write(folder.join(name), file).expect("a file");
        }
    }
}

/// A file in nanoGPT's layout.
pub(crate) fn raw_tokens(path: &Path, tokens: impl Iterator<Item = u16>) {
    fs::write(path, tokens.flat_map(u16::to_le_bytes).collect::<Vec<u8>>()).expect("a file");
}

/// A file in one of llm.c's layouts.
pub(crate) fn headed_tokens(path: &Path, (magic, version): (u32, u32), tokens: &[u32]) {
    let mut header = [0_u32; 256];
    header[..3].copy_from_slice(&[magic, version, tokens.len() as u32]);
    let mut file: Vec<u8> = header.into_iter().flat_map(u32::to_le_bytes).collect();
    for token in tokens {
        match version {
            1 => file.extend((*token as u16).to_le_bytes()),
            _ => file.extend(token.to_le_bytes()),
        }
    }
    fs::write(path, file).expect("a file");
}

/// Records of CIFAR-10.
pub(crate) fn cifar(records: usize, seed: u64) -> Vec<u8> {
    let record = |record: u64| {
        let pixels = (0..3072).map(move |place| noise(seed ^ record << 20 ^ place) as u8);
        std::iter::once((record % 10) as u8).chain(pixels)
    };
    (0..records as u64).flat_map(record).collect()
}

/// The tokenizer that is kept with the tests: one token a word, and some words known.
pub(crate) fn tokenizer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/data/tokenizer.json")
}

pub(crate) fn token_input() -> InputSpec {
    InputSpec::Tokens { vocabulary_size: 300, sequence_length: 8 }
}

pub(crate) fn image_input(side: usize) -> InputSpec {
    InputSpec::Features { shape: vec![3, side, side], classes: 10 }
}

pub(crate) fn open(source: SourceKind, path: &Path, input: &InputSpec) -> Arc<dyn Dataset> {
    let spec = DataSpec { source, path: Some(path.to_owned()), ..DataSpec::default() };
    data::open(&spec, input, 5).unwrap_or_else(|error| panic!("{source}: {error}"))
}

/// Every kind of dataset in every form.
pub(crate) fn every_kind(root: &Path) -> Vec<(&'static str, Arc<dyn Dataset>)> {
    let at = |name: &str| root.join(name);
    let words: Vec<&str> =
        (0..250).map(|at| ["the", "model", "reads", "words", "unheard"][noise(at) as usize % 5]).collect();
    fs::write(at("text"), words.join(" ")).expect("a text");
    raw_tokens(&at("raw.bin"), (0..203).map(|token| noise(token) as u16 % 300));
    fs::create_dir_all(at("shards")).expect("a folder");
    let tokens = |range: std::ops::Range<u64>| range.map(|token| noise(token) as u32 % 300).collect::<Vec<u32>>();
    headed_tokens(&at("shards/a.bin"), (20_240_520, 1), &tokens(0..100));
    headed_tokens(&at("shards/b.bin"), (20_240_801, 7), &tokens(500..590));
    fs::write(at("shards/README"), "not a shard").expect("a file");
    image_folder(&at("images"), 3, 8);
    fs::create_dir_all(at("cifar")).expect("a folder");
    fs::write(at("cifar/data_batch_1.bin"), cifar(12, 1)).expect("a file");
    fs::write(at("cifar/data_batch_2.bin"), cifar(11, 2)).expect("a file");
    fs::write(at("cifar/test_batch.bin"), cifar(5, 3)).expect("a file");

    let tokenized = DataSpec {
        source: SourceKind::Text,
        path: Some(at("text")),
        tokenizer: Some(tokenizer()),
        ..DataSpec::default()
    };
    let (tokens, features) = (token_input(), InputSpec::Features { shape: vec![2, 3], classes: 4 });
    let synthetic = |input| data::open(&DataSpec::default(), input, 5).expect("needs no file");
    vec![
        ("synthetic tokens", synthetic(&tokens)),
        ("synthetic features", synthetic(&features)),
        ("text", open(SourceKind::Text, &at("text"), &tokens)),
        ("tokenized text", data::open(&tokenized, &tokens, 5).unwrap_or_else(|error| panic!("{error}"))),
        ("nanoGPT's tokens", open(SourceKind::Tokens, &at("raw.bin"), &tokens)),
        ("llm.c's tokens", open(SourceKind::Tokens, &at("shards"), &tokens)),
        ("image_folder", open(SourceKind::ImageFolder, &at("images"), &image_input(16))),
        ("cifar10", open(SourceKind::Cifar10, &at("cifar"), &image_input(32))),
    ]
}

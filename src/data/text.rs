//! Text: one token a byte, or the tokens of a `tokenizer.json`.
//!
//! A source is a UTF-8 file, or a folder whose files (not those of its subfolders, and none whose name starts with a
//! dot) are joined in the order of their names. It is held in memory and cut into windows of T + 1 tokens, each of
//! which starts where the one before has its last: every token is predicted once an epoch. The last tenth of the
//! windows is held out.

use std::path::Path;

use super::files::{append, files};
use super::tokenized::Cutter;
use super::{DataError, Dataset, HostValues, InputSpec, Sample};
use crate::units::{GIB, MIB};

/// The longest text: larger ones belong into a token file, which is mapped and not read.
const MAX_BYTES: u64 = GIB;
/// The longest text that a tokenizer is given: it cuts a few megabytes a second, and every worker cuts it anew.
const MAX_TOKENIZED_BYTES: u64 = 64 * MIB;
/// One window in so many is held out.
pub(super) const HELD_OUT_DIVISOR: usize = 10;
/// Tokens there are when each is a byte.
const BYTE_VALUES: usize = 256;

/// A text in memory.
#[derive(Debug)]
pub struct Text {
    tokens: Tokens,
    /// T.
    length: usize,
    windows: usize,
    held_out: usize,
}

/// A byte takes a byte, and another token four.
#[derive(Debug)]
enum Tokens {
    Bytes(Vec<u8>),
    Ids(Vec<u32>),
}

impl Text {
    /// Reads a file or a folder for a model that takes `input`, and cuts it with a tokenizer where there is one.
    pub fn open(path: Option<&Path>, tokenizer: Option<&Path>, input: &InputSpec) -> Result<Self, DataError> {
        let InputSpec::Tokens { vocabulary_size, sequence_length: length } = *input else {
            return Err(DataError::Mismatch { source_kind: "text", gives: "tokens", takes: "features" });
        };
        let path = path.ok_or(DataError::PathMissing)?;
        if length == 0 {
            return Err(DataError::InvalidInput { reason: "a sample has at least one token" });
        }
        let tokens = match tokenizer {
            None => Tokens::Bytes(read(path, vocabulary_size)?),
            Some(tokenizer) => Tokens::Ids(tokenize(path, &mut Cutter::open(tokenizer, vocabulary_size)?)?),
        };
        let found = match &tokens {
            Tokens::Bytes(bytes) => bytes.len(),
            Tokens::Ids(ids) => ids.len(),
        };
        let windows = found.saturating_sub(1) / length;
        if windows == 0 {
            return Err(DataError::TooSmall { path: path.to_owned(), found, needed: length.saturating_add(1) });
        }
        let held_out = if windows == 1 { 0 } else { windows.div_ceil(HELD_OUT_DIVISOR) };
        Ok(Self { tokens, length, windows, held_out })
    }
}

impl Dataset for Text {
    fn len(&self) -> usize {
        self.windows - self.held_out
    }

    fn held_out_len(&self) -> usize {
        self.held_out
    }

    fn sample(&self, index: usize) -> Result<Sample, DataError> {
        let tokens = |shift: usize| {
            let start = index.checked_mul(self.length)?.checked_add(shift)?;
            let window = start..start.checked_add(self.length)?;
            Some(HostValues::U32(match &self.tokens {
                Tokens::Bytes(bytes) => bytes.get(window)?.iter().copied().map(u32::from).collect(),
                Tokens::Ids(ids) => ids.get(window)?.to_vec(),
            }))
        };
        match (tokens(0), tokens(1)) {
            (Some(input), Some(target)) => Ok(Sample { input, target }),
            _ => Err(DataError::NoSuchSample { index, samples: self.windows }),
        }
    }

    fn input_shape(&self) -> Vec<usize> {
        vec![self.length]
    }

    fn target_shape(&self) -> Vec<usize> {
        vec![self.length]
    }
}

/// The bytes of a source, checked.
fn read(path: &Path, vocabulary_size: usize) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    for file in files(path, &|_| true)? {
        let start = bytes.len();
        append(&file, path, MAX_BYTES, &mut bytes)?;
        let added = bytes.get(start..).unwrap_or_default();
        check_vocabulary(&file, utf8(&file, added)?.as_bytes(), vocabulary_size)?;
    }
    Ok(bytes)
}

/// The tokens of a source. Each file is cut by itself: no token reaches over the end of one.
fn tokenize(path: &Path, cutter: &mut Cutter) -> Result<Vec<u32>, DataError> {
    let (mut ids, mut left) = (Vec::new(), MAX_TOKENIZED_BYTES);
    for file in files(path, &|_| true)? {
        let mut bytes = Vec::new();
        append(&file, path, left, &mut bytes)?;
        left -= bytes.len() as u64;
        cutter.cut(&file, utf8(&file, &bytes)?, &mut ids)?;
    }
    Ok(ids)
}

/// Bytes as the text that they have to be.
fn utf8<'a>(file: &Path, bytes: &'a [u8]) -> Result<&'a str, DataError> {
    std::str::from_utf8(bytes).map_err(|error| {
        let offset = error.valid_up_to();
        let byte = bytes.get(offset).copied().unwrap_or_default();
        DataError::NotUtf8 { path: file.to_owned(), byte, offset: offset as u64 }
    })
}

/// Refuses bytes that the model has no token for.
fn check_vocabulary(file: &Path, bytes: &[u8], vocabulary_size: usize) -> Result<(), DataError> {
    if vocabulary_size >= BYTE_VALUES {
        return Ok(());
    }
    match bytes.iter().position(|byte| usize::from(*byte) >= vocabulary_size) {
        None => Ok(()),
        Some(offset) => Err(DataError::TokenOutOfVocabulary {
            path: file.to_owned(),
            offset: offset as u64,
            token: bytes.get(offset).copied().map_or(0, u32::from),
            vocabulary_size,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs::{self, File};

    use super::*;

    fn input(vocabulary_size: usize, sequence_length: usize) -> InputSpec {
        InputSpec::Tokens { vocabulary_size, sequence_length }
    }

    /// A folder of files with these names and contents.
    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(folder.path().join(name), content).unwrap();
        }
        folder
    }

    fn open(folder: &tempfile::TempDir, name: &str, length: usize) -> Result<Text, DataError> {
        Text::open(Some(&folder.path().join(name)), None, &input(256, length))
    }

    fn u32s(values: &HostValues) -> Vec<u32> {
        match values {
            HostValues::U32(values) => values.clone(),
            HostValues::F32(values) => panic!("{values:?}"),
        }
    }

    #[test]
    fn windows_cover_the_text_and_predict_every_byte_once() {
        let text: Vec<u8> = (0..101).map(|index| b'a' + index % 26).collect();
        let folder = folder(&[("text", &text)]);
        let dataset = open(&folder, "text", 4).unwrap();
        assert_eq!((dataset.len(), dataset.held_out_len()), (22, 3));
        let mut predicted = Vec::new();
        for index in 0..25 {
            let sample = dataset.sample(index).unwrap();
            let (input, target) = (u32s(&sample.input), u32s(&sample.target));
            assert_eq!(input[1..], target[..3]);
            predicted.extend(target);
        }
        let expected: Vec<u32> = text[1..].iter().copied().map(u32::from).collect();
        assert_eq!(predicted, expected);
        assert!(matches!(dataset.sample(25), Err(DataError::NoSuchSample { index: 25, samples: 25 })));
        assert!(dataset.sample(usize::MAX).is_err());
    }

    #[test]
    fn a_folder_is_its_files_in_the_order_of_their_names() {
        let folder = folder(&[("b.txt", b"456"), ("a.txt", b"123"), (".hidden", b"\xff")]);
        fs::create_dir(folder.path().join("c")).unwrap();
        let dataset = open(&folder, "", 5).unwrap();
        let sample = dataset.sample(0).unwrap();
        let read: Vec<u32> = "12345".bytes().map(u32::from).collect();
        assert_eq!(u32s(&sample.input), read);
        assert_eq!((dataset.len(), dataset.held_out_len()), (1, 0));
    }

    #[test]
    fn held_out_windows_are_those_at_the_end() {
        let folder = folder(&[("text", &[b'x'; 41])]);
        let dataset = open(&folder, "text", 2).unwrap();
        assert_eq!((dataset.len(), dataset.held_out_len()), (18, 2));
        let small = open(&folder, "text", 20).unwrap();
        assert_eq!((small.len(), small.held_out_len()), (1, 1));
    }

    #[test]
    fn what_is_missing_empty_or_short_names_the_path() {
        let folder = folder(&[("empty", b""), ("short", b"abc")]);
        assert!(matches!(Text::open(None, None, &input(256, 4)), Err(DataError::PathMissing)));
        assert!(matches!(open(&folder, "missing", 4), Err(DataError::Read { .. })));
        assert!(matches!(open(&folder, "empty", 4), Err(DataError::TooSmall { found: 0, needed: 5, .. })));
        let error = open(&folder, "short", 4).unwrap_err();
        assert!(matches!(error, DataError::TooSmall { found: 3, needed: 5, .. }));
        assert!(error.to_string().contains("short"), "{error}");
        assert!(open(&folder, "short", 2).is_ok());
        assert!(matches!(open(&folder, "short", usize::MAX), Err(DataError::TooSmall { .. })));
    }

    #[test]
    fn a_folder_without_files_of_its_own_says_what_is_left_out() {
        let folder = folder(&[(".hidden", b"text that is long enough")]);
        fs::create_dir(folder.path().join("inner")).unwrap();
        fs::write(folder.path().join("inner/text"), "text that is long enough").unwrap();
        let error = open(&folder, "", 4).unwrap_err();
        assert!(matches!(error, DataError::NoFiles { .. }));
        assert!(error.to_string().contains("has no files to read"), "{error}");
    }

    #[test]
    fn a_byte_that_is_not_text_is_named_with_its_offset_in_its_file() {
        let folder = folder(&[("a", b"good text"), ("b", b"bad \xff text")]);
        let error = open(&folder, "", 2).unwrap_err();
        assert!(matches!(&error, DataError::NotUtf8 { path, byte: 0xff, offset: 4 } if path.ends_with("b")), "{error}");
    }

    #[test]
    fn a_byte_beyond_the_vocabulary_is_named_with_its_offset() {
        let folder = folder(&[("text", "plain, then é".as_bytes())]);
        let path = folder.path().join("text");
        assert!(Text::open(Some(&path), None, &input(256, 2)).is_ok());
        let error = Text::open(Some(&path), None, &input(128, 2)).unwrap_err();
        assert!(matches!(error, DataError::TokenOutOfVocabulary { offset: 12, token: 0xc3, .. }), "{error}");
    }

    #[test]
    fn a_device_is_not_a_text() {
        let error = Text::open(Some(Path::new("/dev/zero")), None, &input(256, 2));
        assert!(matches!(error, Err(DataError::NotAFile { .. })));
    }

    #[test]
    fn a_file_over_the_limit_is_refused_unread() {
        let folder = folder(&[]);
        let path = folder.path().join("huge");
        // Sparse: it takes no room on the disk.
        File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        let error = open(&folder, "huge", 2).unwrap_err();
        assert!(matches!(error, DataError::TooLarge { .. }), "{error}");
    }

    #[test]
    fn a_model_of_features_takes_no_text() {
        let folder = folder(&[("text", b"abc")]);
        let features = InputSpec::Features { shape: vec![2], classes: 2 };
        let error = Text::open(Some(&folder.path().join("text")), None, &features);
        assert!(matches!(error, Err(DataError::Mismatch { .. })));
    }

    #[test]
    fn training_never_sees_a_held_out_byte_as_its_target() {
        let text: Vec<u8> = (0..=120).collect();
        let folder = folder(&[("text", &text)]);
        let dataset = open(&folder, "text", 3).unwrap();
        let targets = |range: std::ops::Range<usize>| -> BTreeSet<u32> {
            range.flat_map(|index| u32s(&dataset.sample(index).unwrap().target)).collect()
        };
        let trained = targets(0..dataset.len());
        let held_out = targets(dataset.len()..dataset.len() + dataset.held_out_len());
        assert!(trained.is_disjoint(&held_out));
    }
}

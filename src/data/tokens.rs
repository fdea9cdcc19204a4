//! Token files, mapped and not read: a corpus of any size costs no memory but the page cache.
//!
//! Two layouts are known, both little-endian:
//!
//! - nanoGPT's `.bin` (`data/openwebtext/prepare.py`): 16-bit tokens and nothing else.
//! - llm.c's shards (`dev/data/data_common.py`): a header of 256 32-bit integers (magic, version, tokens), then the tokens:
//!   magic 20240520 and version 1 for 16-bit ones (GPT-2), magic 20240801 and version 7 for 32-bit ones (Llama 3).
//!
//! A source is such a file, or a folder whose `.bin` files are the shards. Each shard is cut into windows as a
//! [`Text`](super::text::Text) is; no window reaches over the end of a shard. The last tenth of all windows is held out.

use std::path::{Path, PathBuf};

use super::files::files;
use super::mapped::Mapped;
use super::text::HELD_OUT_DIVISOR;
use super::{DataError, Dataset, HostValues, InputSpec, Sample};

/// Bytes of llm.c's header.
const HEADER_BYTES: u64 = 256 * 4;
/// Its kinds: magic, version, and width of the tokens.
const HEADERS: [(u32, u32, Width); 2] = [(20_240_520, 1, Width::Two), (20_240_801, 7, Width::Four)];

/// Bytes of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Two,
    Four,
}

impl Width {
    fn bytes(self) -> u64 {
        match self {
            Self::Two => 2,
            Self::Four => 4,
        }
    }
}

/// Mapped token files.
#[derive(Debug)]
pub struct Tokens {
    shards: Vec<Shard>,
    vocabulary_size: usize,
    /// T.
    length: usize,
    windows: usize,
    held_out: usize,
}

/// One file.
#[derive(Debug)]
struct Shard {
    file: Mapped,
    /// Bytes before the first token.
    header_bytes: u64,
    width: Width,
    tokens: u64,
    /// Windows of this shard and of those before it.
    windows_up_to: usize,
}

impl Tokens {
    /// Maps a file or the `.bin` files of a folder for a model that takes `input`.
    pub fn open(path: Option<&Path>, input: &InputSpec) -> Result<Self, DataError> {
        let InputSpec::Tokens { vocabulary_size, sequence_length: length } = *input else {
            return Err(DataError::Mismatch { source_kind: "tokens", gives: "tokens", takes: "features" });
        };
        let path = path.ok_or(DataError::PathMissing)?;
        if length == 0 {
            return Err(DataError::InvalidInput { reason: "a sample has at least one token" });
        }
        let (mut shards, mut windows, mut found) = (Vec::new(), 0_usize, 0_u64);
        for file in files(path, &|file| file.extension().is_some_and(|extension| extension == "bin"))? {
            let shard = Shard::open(&file)?;
            found = found.saturating_add(shard.tokens);
            let of_shard = usize::try_from(shard.tokens.saturating_sub(1) / length as u64).unwrap_or(usize::MAX);
            windows = windows.saturating_add(of_shard);
            shards.push(Shard { windows_up_to: windows, ..shard });
        }
        if windows == 0 {
            let found = usize::try_from(found).unwrap_or(usize::MAX);
            return Err(DataError::TooSmall { path: path.to_owned(), found, needed: length.saturating_add(1) });
        }
        let held_out = if windows == 1 { 0 } else { windows.div_ceil(HELD_OUT_DIVISOR) };
        Ok(Self { shards, vocabulary_size, length, windows, held_out })
    }

    /// The shard of a window, and which of its windows that is.
    fn window(&self, index: usize) -> Option<(&Shard, u64)> {
        let shard = self.shards.partition_point(|shard| shard.windows_up_to <= index);
        let before =
            shard.checked_sub(1).and_then(|before| self.shards.get(before)).map_or(0, |shard| shard.windows_up_to);
        Some((self.shards.get(shard)?, (index - before) as u64))
    }
}

impl Dataset for Tokens {
    fn len(&self) -> usize {
        self.windows - self.held_out
    }

    fn held_out_len(&self) -> usize {
        self.held_out
    }

    fn sample(&self, index: usize) -> Result<Sample, DataError> {
        let no_such = DataError::NoSuchSample { index, samples: self.windows };
        let (shard, window) = self.window(index).ok_or(no_such)?;
        let first = window * self.length as u64;
        let mut input = shard.read(first, self.length + 1)?;
        if let Some(place) = input.iter().position(|token| *token as usize >= self.vocabulary_size) {
            return Err(DataError::TokenOutOfVocabulary {
                path: shard.file.path().to_owned(),
                offset: shard.offset(first + place as u64),
                token: input.get(place).copied().unwrap_or_default(),
                vocabulary_size: self.vocabulary_size,
            });
        }
        let target = input.iter().skip(1).copied().collect();
        input.truncate(self.length);
        Ok(Sample { input: HostValues::U32(input), target: HostValues::U32(target) })
    }

    fn input_shape(&self) -> Vec<usize> {
        vec![self.length]
    }

    fn target_shape(&self) -> Vec<usize> {
        vec![self.length]
    }
}

impl Shard {
    fn open(path: &Path) -> Result<Self, DataError> {
        let file = Mapped::open(path)?;
        let header = file.read(0..file.len().min(12), <[u8]>::to_vec)?;
        let number = |place: usize| {
            let bytes = header.get(4 * place..4 * place + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u32::from_le_bytes)
        };
        let broken = |offset, reason| DataError::BrokenFile { path: PathBuf::from(path), offset, reason };
        let known = HEADERS.iter().find(|(magic, ..)| number(0) == Some(*magic));
        let Some((_, version, width)) = known else {
            // Without a header: nanoGPT's.
            if !file.len().is_multiple_of(Width::Two.bytes()) {
                let reason = "it ends in the middle of a 16-bit token".to_owned();
                return Err(broken(file.len() - 1, reason));
            }
            let tokens = file.len() / Width::Two.bytes();
            return Ok(Self { file, header_bytes: 0, width: Width::Two, tokens, windows_up_to: 0 });
        };
        if number(1) != Some(*version) {
            let found = number(1).map_or("nothing".to_owned(), |found| format!("version {found}"));
            return Err(broken(4, format!("its header has {found}, expected version {version}")));
        }
        let tokens = u64::from(number(2).unwrap_or(0));
        let promised = HEADER_BYTES + tokens * width.bytes();
        if file.len() != promised {
            let reason = format!("its header promises {tokens} tokens, so {promised} bytes, and it has {}", file.len());
            return Err(broken(8, reason));
        }
        Ok(Self { file, header_bytes: HEADER_BYTES, width: *width, tokens, windows_up_to: 0 })
    }

    /// Where a token is in the file.
    fn offset(&self, token: u64) -> u64 {
        self.header_bytes + token * self.width.bytes()
    }

    fn read(&self, first: u64, count: usize) -> Result<Vec<u32>, DataError> {
        let range = self.offset(first)..self.offset(first + count as u64);
        self.file.read(range, |bytes| match self.width {
            Width::Two => bytes.as_chunks().0.iter().map(|bytes| u32::from(u16::from_le_bytes(*bytes))).collect(),
            Width::Four => bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect(),
        })
    }
}

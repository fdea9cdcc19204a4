//! Cutting text into tokens with a `tokenizer.json`, the format of Hugging Face's `tokenizers`.

use std::path::{Path, PathBuf};

use tokenizers::Tokenizer;

use super::DataError;
use super::files::append;

/// Bytes that are cut at a time, up to the end of a line: an encoding takes some hundred bytes a token.
const CHUNK_BYTES: usize = 1 << 20;

/// The largest `tokenizer.json` that is read; those of large vocabularies have 20 MB.
const MAX_DESCRIPTION_BYTES: u64 = 64 << 20;

/// A tokenizer for a model's vocabulary.
pub(super) struct Cutter {
    tokenizer: Tokenizer,
    path: PathBuf,
    vocabulary_size: usize,
}

impl Cutter {
    pub(super) fn open(path: &Path, vocabulary_size: usize) -> Result<Self, DataError> {
        let failed =
            |error: tokenizers::Error| DataError::Tokenizer { path: path.to_owned(), reason: error.to_string() };
        let mut description = Vec::new();
        append(path, path, MAX_DESCRIPTION_BYTES, &mut description)?;
        let mut tokenizer = Tokenizer::from_bytes(&description).map_err(failed)?;
        // A file may ask for sentences of one length; here the whole text counts.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(failed)?;
        Ok(Self { tokenizer, path: path.to_owned(), vocabulary_size })
    }

    /// Appends the tokens of a file's text.
    pub(super) fn cut(&self, file: &Path, text: &str, ids: &mut Vec<u32>) -> Result<(), DataError> {
        let mut start = 0;
        while let Some(rest) = text.get(start..).filter(|rest| !rest.is_empty()) {
            let chunk = first_chunk(rest);
            let failed =
                |error: tokenizers::Error| DataError::Tokenizer { path: self.path.clone(), reason: error.to_string() };
            let encoding = self.tokenizer.encode(chunk, false).map_err(failed)?;
            for (id, offsets) in encoding.get_ids().iter().zip(encoding.get_offsets()) {
                if *id as usize >= self.vocabulary_size {
                    return Err(DataError::TokenOutOfVocabulary {
                        path: file.to_owned(),
                        offset: (start + offsets.0) as u64,
                        token: *id,
                        vocabulary_size: self.vocabulary_size,
                    });
                }
            }
            ids.extend_from_slice(encoding.get_ids());
            start += chunk.len();
        }
        Ok(())
    }
}

/// The first lines of a text, or, of a line that has no end, as much as fits.
fn first_chunk(text: &str) -> &str {
    if text.len() <= CHUNK_BYTES {
        return text;
    }
    let fits = (0..=CHUNK_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(text.len());
    let chunk = text.get(..fits).unwrap_or(text);
    let lines = chunk.rfind('\n').map_or(fits, |newline| newline + 1);
    chunk.get(..lines).unwrap_or(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_end_with_a_line_where_there_is_one() {
        assert_eq!(first_chunk("a\nb"), "a\nb");
        let lines = "é234567\n".repeat(CHUNK_BYTES / 8);
        let chunk = first_chunk(&lines);
        assert!(chunk.ends_with('\n') && chunk.len() <= CHUNK_BYTES && chunk.len() > CHUNK_BYTES - 10);
        let line = "é".repeat(CHUNK_BYTES);
        assert_eq!(first_chunk(&line).len(), CHUNK_BYTES);
        let odd = format!("a{line}");
        assert_eq!(first_chunk(&odd).len(), CHUNK_BYTES - 1);
    }
}

//! The grammar of texts with placeholders: `--batch-size={batch_size}`.
//!
//! A placeholder is a known name in braces; `{{batch_size}}` stands for the name in single braces. Braces around anything
//! else than a bare word (`{"lr": 1}`, `{}`) stand for themselves, so that JSON can be an argument. A bare word that is no
//! known name is an error, since it is nearly always a slip.

/// The longest word in braces that is taken for a slip of a placeholder's name.
const LONGEST_NAME: usize = 40;

/// A piece of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece<P> {
    Text(String),
    Value(P),
}

/// Reads a text. A bare word has such letters, or underscores; one that is no placeholder's name is given back.
pub(super) fn parse<P>(
    text: &str,
    is_letter: fn(&u8) -> bool,
    named: impl Fn(&str) -> Option<P>,
) -> Result<Vec<Piece<P>>, &str> {
    let (mut pieces, mut plain, mut rest) = (Vec::new(), String::new(), text);
    while let Some(at) = rest.find('{') {
        let (before, from) = rest.split_at(at);
        plain.push_str(before);
        if let Some((name, after)) = escaped_word(from, is_letter) {
            plain.extend(["{", name, "}"]);
            rest = after;
        } else if let Some((name, after)) = word_in_braces(from, is_letter) {
            let placeholder = named(name).ok_or(name)?;
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(Piece::Value(placeholder));
            rest = after;
        } else {
            // One ASCII brace that means nothing.
            let (brace, after) = from.split_at(1);
            plain.push_str(brace);
            rest = after;
        }
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    Ok(pieces)
}

/// The text with every placeholder filled in; `None` if the value of any is not known.
pub(super) fn fill<P: Copy>(pieces: &[Piece<P>], value: impl Fn(P) -> Option<String>) -> Option<String> {
    let piece = |piece: &Piece<P>| match piece {
        Piece::Text(text) => Some(text.clone()),
        Piece::Value(placeholder) => value(*placeholder),
    };
    pieces.iter().map(piece).collect()
}

/// The word of `{{word}}` at the start of a text, and what follows it.
fn escaped_word(text: &str, is_letter: fn(&u8) -> bool) -> Option<(&str, &str)> {
    let (name, after) = word_in_braces(text.strip_prefix('{')?, is_letter)?;
    Some((name, after.strip_prefix('}')?))
}

/// The word of `{word}` at the start of a text, and what follows it.
fn word_in_braces(text: &str, is_letter: fn(&u8) -> bool) -> Option<(&str, &str)> {
    let (name, after) = text.strip_prefix('{')?.split_once('}')?;
    let is_word = !name.is_empty() && name.bytes().all(|byte| is_letter(&byte) || byte == b'_');
    (is_word && name.len() <= LONGEST_NAME).then_some((name, after))
}

//! Errors in words, and words from strangers.

use std::error::Error;

/// An error with all its causes, in one line.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let also = error.to_string();
        // Transparent errors and some of candle's repeat their cause in their own words.
        if !text.contains(&also) {
            text.push_str(": ");
            text.push_str(&also);
        }
        cause = error.source();
    }
    text
}

/// A text without control characters other than line ends, and without those that turn the direction of writing: what a
/// workload, a file or a journal says must not drive the terminal, nor look like something else.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if (c.is_control() && c != '\n') || turns_direction(c) { '\u{fffd}' } else { c }).collect()
}

/// The explicit directional formatting characters (Unicode Standard Annex 9, section 2).
fn turns_direction(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_are_disarmed() {
        assert_eq!(harmless("a\u{1b}[2Jb\nc"), "a\u{fffd}[2Jb\nc");
    }

    #[test]
    fn causes_follow_one_another() {
        let error = std::io::Error::other("disk full");
        let outer = crate::Error::Io { action: "cannot write", source: error };
        assert_eq!(with_causes(&outer), "cannot write: disk full");
    }
}

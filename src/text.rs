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

/// A text without control characters other than line ends: what a workload, a file or a journal says must not drive
/// the terminal.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
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

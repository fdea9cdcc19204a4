//! Writing HTML: text goes in escaped, or not at all.
//!
//! Names, paths and errors come from strangers. [`Html`] is a string that `write!` adds to without a result to look at,
//! and [`text`] is the one way in for what a journal or a recording says.

use std::fmt::{self, Display, Write};

/// The most characters of one text from a journal: a crashed worker's log can have megabytes.
const LONGEST_TEXT: usize = 4000;

/// A page, or a part of one, as it is written.
#[derive(Clone, Debug, Default)]
pub struct Html(String);

impl Html {
    /// Takes what `write!` is given. Writing to a string cannot fail, so there is nothing to return.
    pub fn write_fmt(&mut self, arguments: fmt::Arguments<'_>) {
        let _ = self.0.write_fmt(arguments);
    }

    /// The text written.
    pub fn into_string(self) -> String {
        self.0
    }

    /// The text so far.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Display for Html {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value as text of a page, in an element or in a quoted attribute: nothing in it is markup, nothing turns the
/// direction of writing, and it has an end.
#[derive(Clone, Copy, Debug)]
pub struct Text<T> {
    value: T,
    longest: usize,
}

/// A value as text of a page.
pub fn text<T: Display>(value: T) -> Text<T> {
    Text { value, longest: LONGEST_TEXT }
}

/// A value as text of at most so many characters.
pub fn brief<T: Display>(value: T, longest: usize) -> Text<T> {
    Text { value, longest }
}

impl<T: Display> Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut escaper = Escaper { output: f, left: self.longest };
        match write!(escaper, "{}", self.value) {
            // The escaper stops the value at its end.
            Err(_) if escaper.left == 0 => f.write_char('…'),
            written => written,
        }
    }
}

/// Passes characters on, those that mean something to a browser as references.
struct Escaper<'a, 'b> {
    output: &'a mut fmt::Formatter<'b>,
    left: usize,
}

impl fmt::Write for Escaper<'_, '_> {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        let piece = crate::text::harmless(piece);
        for c in piece.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            match c {
                '&' => self.output.write_str("&amp;")?,
                '<' => self.output.write_str("&lt;")?,
                '>' => self.output.write_str("&gt;")?,
                '"' => self.output.write_str("&quot;")?,
                '\'' => self.output.write_str("&#39;")?,
                c => self.output.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stranger_wrote_is_no_markup() {
        let hostile = "</title><script>alert('1')</script>\" onload=x &lt; \u{202e}gpj\u{1b}[2J\0";
        let shown = text(hostile).to_string();
        assert_eq!(
            shown,
            "&lt;/title&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&quot; onload=x &amp;lt; \u{fffd}gpj\u{fffd}[2J\u{fffd}"
        );
    }

    #[test]
    fn what_has_no_end_is_cut() {
        assert_eq!(brief("<".repeat(100), 3).to_string(), "&lt;&lt;&lt;…");
        assert_eq!(brief("abc", 3).to_string(), "abc");
    }
}

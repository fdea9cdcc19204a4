//! How deeply a file may be nested.
//!
//! A reader of YAML that is handed brackets without end takes a time that grows with their square. So the file is scanned
//! first, and what no recommendation looks like is not read.

use saphyr_parser::{Event, Parser};

/// The deepest nesting; a recommendation needs five levels.
pub(super) const DEEPEST: usize = 32;

/// The line and the column, counted from 1, at which a text is nested more deeply than that. What is no YAML at all is
/// left to whoever reads it.
pub(super) fn too_deep_at(text: &str) -> Option<(usize, usize)> {
    let mut parser = Parser::new_from_str(text);
    let mut depth = 0_usize;
    loop {
        match parser.next_event()? {
            Ok((Event::SequenceStart(..) | Event::MappingStart(..), span)) if depth == DEEPEST => {
                return Some((span.start.line().max(1), span.start.col() + 1));
            }
            Ok((Event::SequenceStart(..) | Event::MappingStart(..), _)) => depth += 1,
            Ok((Event::SequenceEnd | Event::MappingEnd, _)) => depth = depth.saturating_sub(1),
            Ok(_) => {}
            // The scanner looks ahead, and gives up at 255 open brackets before the first event of them arrives.
            Err(error) if error.info() == "recursion limit exceeded" => {
                return Some((error.marker().line().max(1), error.marker().col() + 1));
            }
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nested_without_end_is_found_and_a_long_flat_list_is_not() {
        for deep in
            ["[".repeat(1 << 20), "{a: ".repeat(1 << 18), "- ".repeat(1 << 19), format!("a: {}", "[".repeat(33))]
        {
            assert!(too_deep_at(&deep).is_some(), "{}", &deep[..20]);
        }
        for fine in ["a: [[1]]\n".to_owned(), "- [1]\n".repeat(1000), "[".repeat(32), "a: b: c".to_owned()] {
            assert_eq!(too_deep_at(&fine), None, "{}", &fine[..6]);
        }
    }
}

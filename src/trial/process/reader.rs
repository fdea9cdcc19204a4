//! Reading what a worker says: bounded lines from its standard output and its log, each on a thread of its own.
//!
//! Both threads always read on, so a worker never blocks on a full pipe for long, and nothing here grows: messages
//! wait in a bounded channel, the log keeps its last lines only.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{Sender, TrySendError};

use crate::trial::protocol::{FromWorker, MAX_LINE_BYTES};

/// Lines of the log that are kept.
const TAIL_LINES: usize = 40;
/// Bytes of the log that are kept.
const TAIL_BYTES: usize = 16 << 10;
/// A longer line of the log is broken into pieces of this length.
const LOG_LINE_BYTES: u64 = 4 << 10;
/// Lines before a worker's first message that are passed over behind a launcher: machines greet whoever logs in.
const GREETING_LINES: usize = 64;
/// Characters of a bad line that a message shows.
const EXCERPT_CHARS: usize = 80;

/// What came on a worker's standard output.
#[derive(Debug)]
pub(super) enum Line {
    /// A message.
    Said(Box<FromWorker>),
    /// Something that is not one; nothing is read after it.
    Spoiled(String),
    /// Output ended within a line.
    Torn,
}

/// Reads messages until the output ends, is spoiled, or nobody listens. Where a `greeting` may come before the first of
/// them, it goes to that log.
pub(super) fn read_messages(output: impl Read, lines: &Sender<Line>, greeting: Option<LogTail>) {
    let mut output = BufReader::new(output);
    let mut bytes = Vec::new();
    let (mut greeting, mut greeted) = (greeting, 0);
    loop {
        bytes.clear();
        let line = match output.by_ref().take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut bytes) {
            Err(error) => Line::Spoiled(format!("its output cannot be read: {error}")),
            Ok(0) => return,
            Ok(_) => parse(&bytes),
        };
        if let (Line::Spoiled(_), Some(log), Some(text)) = (&line, &greeting, bytes.strip_suffix(b"\n"))
            && greeted < GREETING_LINES
        {
            log.push(excerpt(text));
            greeted += 1;
            continue;
        }
        greeting = None;
        let last = !matches!(line, Line::Said(_));
        if lines.send(line).is_err() || last {
            return;
        }
    }
}

fn parse(bytes: &[u8]) -> Line {
    let Some(line) = bytes.strip_suffix(b"\n") else {
        return if bytes.len() > MAX_LINE_BYTES {
            Line::Spoiled(format!("a line is longer than {MAX_LINE_BYTES} bytes"))
        } else {
            Line::Torn
        };
    };
    match serde_json::from_slice(line) {
        Ok(message) => Line::Said(Box::new(message)),
        Err(error) => Line::Spoiled(format!("`{}` is no message of the protocol: {error}", excerpt(line))),
    }
}

fn excerpt(line: &[u8]) -> String {
    let start = line.get(..EXCERPT_CHARS * 4).unwrap_or(line);
    let text = String::from_utf8_lossy(start);
    let shown: String = text.chars().take(EXCERPT_CHARS).collect();
    let more = if shown.len() < line.len() { "…" } else { "" };
    format!("{}{more}", printable(&shown))
}

/// `text` with control characters escaped, so that a terminal shows it and does not obey it.
pub(in crate::trial) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() && character != '\t' {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// The last lines of a process's log.
#[derive(Clone, Debug, Default)]
pub(in crate::trial) struct LogTail(Arc<Mutex<Tail>>);

#[derive(Debug, Default)]
struct Tail {
    lines: VecDeque<String>,
    bytes: usize,
}

impl LogTail {
    fn push(&self, line: String) {
        let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tail.bytes += line.len();
        tail.lines.push_back(line);
        while tail.lines.len() > TAIL_LINES || tail.bytes > TAIL_BYTES {
            let Some(oldest) = tail.lines.pop_front() else { return };
            tail.bytes -= oldest.len();
        }
    }

    /// The lines, one below the other.
    pub(in crate::trial) fn text(&self) -> String {
        let tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tail.lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

/// Reads the log until it ends. Every line goes to the tail; those that find `lines` full are not passed on.
pub(in crate::trial) fn read_log(log: impl Read, tail: &LogTail, lines: &Sender<String>) {
    let mut log = BufReader::new(log);
    let mut bytes = Vec::new();
    let mut listened_to = true;
    loop {
        bytes.clear();
        match log.by_ref().take(LOG_LINE_BYTES).read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let line = printable(String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']));
        tail.push(line.clone());
        if listened_to && let Err(TrySendError::Disconnected(_)) = lines.try_send(line) {
            listened_to = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{bounded, unbounded};

    fn lines_of(output: &[u8]) -> Vec<Line> {
        let (sender, receiver) = unbounded();
        read_messages(output, &sender, None);
        drop(sender);
        receiver.iter().collect()
    }

    const HELLO: &str = "{\"message\":\"hello\",\"protocol\":1,\"version\":\"0\",\"pid\":7,\"new_field\":[]}\n";

    #[test]
    fn messages_are_read_line_by_line_and_unknown_fields_ignored() {
        let lines = lines_of(HELLO.repeat(3).as_bytes());
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| matches!(line, Line::Said(_))));
        assert!(lines_of(b"").is_empty());
    }

    #[test]
    fn half_a_line_is_told_apart_from_garbage() {
        assert!(matches!(lines_of(&HELLO.as_bytes()[..20])[..], [Line::Torn]));
        let lines = lines_of(b"\xff\x1b[2Jnonsense\n{\"message\":\"hello\"}\n");
        let [Line::Spoiled(why)] = &lines[..] else { panic!("{lines:?}") };
        assert!(why.contains("\\u{1b}[2Jnonsense"), "{why}");
        for bad in ["\n", "[]\n", "{}\n", "{\"message\":\"sing\"}\n", "{\"message\":\"hello\"}\n"] {
            assert!(matches!(lines_of(bad.as_bytes())[..], [Line::Spoiled(_)]), "{bad:?}");
        }
    }

    #[test]
    fn a_greeting_is_passed_over_up_to_its_bound_and_before_the_first_message_alone() {
        let (sender, receiver) = unbounded();
        let log = LogTail::default();
        let output = format!("Welcome!\n\n{{\"a\": 1}}\n{HELLO}Bye!\n");
        read_messages(output.as_bytes(), &sender, Some(log.clone()));
        assert_eq!(log.text(), "Welcome!\n\n{\"a\": 1}");
        let lines: Vec<Line> = receiver.try_iter().collect();
        assert!(matches!(&lines[..], [Line::Said(_), Line::Spoiled(why)] if why.contains("Bye!")), "{lines:?}");
        let endless = "x\n".repeat(GREETING_LINES + 1);
        for output in [endless.into_bytes(), vec![b'x'; 2 * MAX_LINE_BYTES]] {
            read_messages(&output[..], &sender, Some(LogTail::default()));
            let lines: Vec<Line> = receiver.try_iter().collect();
            assert!(matches!(lines[..], [Line::Spoiled(_)]), "{lines:?}");
        }
    }

    #[test]
    fn a_line_without_end_is_given_up_at_the_bound() {
        let lines = lines_of(&vec![b'x'; 3 * MAX_LINE_BYTES]);
        assert!(matches!(&lines[..], [Line::Spoiled(why)] if why.contains("longer than")), "{lines:?}");
    }

    #[test]
    fn a_flood_of_log_leaves_its_last_lines_and_blocks_nobody() {
        let (sender, receiver) = bounded(4);
        let tail = LogTail::default();
        let flood = (0..10_000).map(|i| format!("line {i}")).collect::<Vec<_>>().join("\n");
        read_log(flood.as_bytes(), &tail, &sender);
        assert_eq!(receiver.len(), 4);
        let text = tail.text();
        assert_eq!((text.lines().count(), text.lines().last()), (TAIL_LINES, Some("line 9999")));

        read_log(&vec![b'y'; 1 << 20][..], &tail, &sender);
        assert!(tail.text().len() <= TAIL_BYTES + TAIL_LINES);
    }
}

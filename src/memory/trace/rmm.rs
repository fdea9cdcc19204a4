//! RMM's allocation log: the CSV that `rmm::mr::logging_resource_adaptor` writes and people attach to reports.
//!
//! ```text
//! Thread,Time,Action,Pointer,Size,Stream
//! 140202053,19:53:56:770100,allocate,0x7f62b6a00000,256,0
//! 140202053,19:53:56:770400,free,0x7f62b6a00000,256,0
//! 140202053,19:53:56:770500,allocate failure,(nil),1024,0
//! ```

use std::collections::HashMap;

use super::{Failure, MAX_EVENTS, Obstacle, Trace};
use crate::memory::event::{Event, Ordinal, Stream};
use crate::memory::policy::{Address, FastHash};

/// The columns, which are the file's first line.
pub const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";

/// Why a log is not read. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RmmError {
    /// The first line is another one.
    #[error("not an RMM log: the first line is not `{HEADER}`")]
    Foreign,
    /// A line that does not fit the columns.
    #[error("line {line} of the RMM log: {problem}")]
    Line {
        /// The line.
        line: usize,
        /// What is wrong.
        problem: &'static str,
    },
}

const TOO_LONG: &str = "there are more lines than are read (hint: cut the log off after some steps)";

/// Live blocks by pointer.
type Pointers = HashMap<u64, Ordinal, FastHash>;

/// Reads a log.
pub fn read(data: &[u8]) -> Result<Trace, RmmError> {
    let mut lines = data.split(|byte| *byte == b'\n').enumerate();
    let first = lines.next().map(|(_, line)| line.trim_ascii());
    if first != Some(HEADER.as_bytes()) {
        return Err(RmmError::Foreign);
    }
    let mut trace = Trace { obstacle: Some(Obstacle::NoSegments), ..Trace::default() };
    let mut pointers = Pointers::default();
    for (index, line) in lines {
        if !line.trim_ascii().is_empty() {
            add(&mut trace, &mut pointers, index, line)
                .map_err(|problem| RmmError::Line { line: index + 1, problem })?;
        }
    }
    Ok(trace)
}

fn add(trace: &mut Trace, pointers: &mut Pointers, index: usize, line: &[u8]) -> Result<(), &'static str> {
    let line = std::str::from_utf8(line).map_err(|_| "it is not text")?;
    let columns: Vec<&str> = line.splitn(7, ',').map(str::trim).collect();
    let [_, _, action, pointer, bytes, stream] = columns[..] else { return Err("it does not have six columns") };
    let bytes: u64 = bytes.parse().map_err(|_| "the size is not a number")?;
    let stream = Stream(number(stream).ok_or("the stream is not a number")?);
    let source = u32::try_from(index).map_err(|_| TOO_LONG)?;
    if trace.events.len() >= MAX_EVENTS {
        return Err(TOO_LONG);
    }
    match action {
        "allocate" => {
            let pointer = number(pointer).ok_or("the pointer is not a number")?;
            let ordinal = Ordinal(trace.addresses.len() as u64);
            trace.addresses.push(Address(pointer));
            pointers.insert(pointer, ordinal);
            trace.events.push(Event::Alloc { ordinal, bytes, stream });
            trace.source.push(source);
        }
        "free" => {
            let pointer = number(pointer).ok_or("the pointer is not a number")?;
            // What was allocated before the log began is freed without a trace.
            if let Some(ordinal) = pointers.remove(&pointer) {
                trace.events.push(Event::Free { ordinal });
                trace.source.push(source);
            }
        }
        "allocate failure" => {
            trace.failures.push(Failure { before: trace.events.len(), source, bytes, stream, device_free_bytes: None });
        }
        _ => return Err("the action is not `allocate`, `free` or `allocate failure`"),
    }
    Ok(())
}

/// A number in decimal, or in hexadecimal with `0x`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn log(lines: &str) -> Vec<u8> {
        format!("{HEADER}\n{lines}").into_bytes()
    }

    #[test]
    fn allocations_frees_and_failures_become_events() {
        let trace =
            read(&log("1,19:53:56:770100,allocate,0x7f00,256,0\r\n1,t,free,0x1234,8,0\n2,t,allocate,0x8000,512,0x2\n\
             1,t,allocate failure,(nil),4096,0\n1,t,free,0x7f00,256,0\n"))
            .unwrap();
        assert_eq!(
            trace.events,
            [
                Event::Alloc { ordinal: Ordinal(0), bytes: 256, stream: Stream(0) },
                Event::Alloc { ordinal: Ordinal(1), bytes: 512, stream: Stream(2) },
                Event::Free { ordinal: Ordinal(0) },
            ]
        );
        assert_eq!((trace.failures[0].before, trace.failures[0].bytes), (2, 4096));
        assert_eq!(trace.source_of(2), 5);
    }

    #[test]
    fn mistakes_name_their_line() {
        assert_eq!(read(b"a,b,c\n").unwrap_err(), RmmError::Foreign);
        assert_eq!(read(b"").unwrap_err(), RmmError::Foreign);
        let problem = |lines| read(&log(lines)).unwrap_err().to_string();
        assert_eq!(problem("1,t,allocate,0x1,256\n"), "line 2 of the RMM log: it does not have six columns");
        assert_eq!(problem("\n1,t,allocate,0x1,-3,0\n"), "line 3 of the RMM log: the size is not a number");
        assert!(problem("1,t,grab,0x1,3,0").contains("the action is not"));
        assert!(problem("1,t,free,zz,3,0").contains("the pointer is not a number"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_an_error_or_a_recording(rest in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&[HEADER.as_bytes(), b"\n", &rest].concat());
        }
    }
}

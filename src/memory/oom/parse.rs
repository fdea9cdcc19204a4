//! Figures out of text.
//!
//! Each wording is a few fixed phrases with a size before or behind them. A log may hold several errors: the last one
//! ended the program, so the last one is read.

use super::{OomFigures, OomSource};

/// What PyTorch says where not its allocator was refused but the driver beneath it.
const PYTORCH_BARE: [&str; 5] = [
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "HIP error: out of memory",
    "OutOfMemoryError: CUDA out of memory",
    "OutOfMemoryError: HIP out of memory",
];
/// The driver's own codes.
const DRIVER: [&str; 3] = ["CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "hipErrorOutOfMemory"];
/// What libraries say that could not have their workspace.
const LIBRARIES: [&str; 4] = [
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
];
/// What candle puts around a code.
const CANDLE: [&str; 2] = ["DriverError(", "CublasError("];

/// Reads one family of wordings.
type Reader = fn(&str) -> Option<(OomSource, OomFigures)>;

/// The source of an error and its figures.
pub(super) fn figures(text: &str) -> (OomSource, OomFigures) {
    let readers: [Reader; 5] = [pytorch, bfc, cupy, batchtune, bare];
    readers.iter().find_map(|read| read(text)).unwrap_or((OomSource::Unknown, OomFigures::default()))
}

/// The part of a text from the last occurrence of a phrase on.
fn from_last<'a>(text: &'a str, phrase: &str) -> Option<&'a str> {
    text.rfind(phrase).map(|at| &text[at..])
}

/// PyTorch, from 1.0 to today.
///
/// * `Tried to allocate 1.86 GiB (GPU 0; 31.72 GiB total capacity; 24.58 GiB already allocated; 1.28 GiB free; 29.66 GiB
///   reserved in total by PyTorch)`, before 1.5 `… 5.08 GiB cached)`, which was V − A
/// * `Tried to allocate 600.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which 137.41 GiB is free. Process 570 has
///   120.51 GiB memory in use. … 2.00 GiB allowed; Of the allocated memory 1020.00 MiB is allocated by PyTorch, … and
///   900.00 MiB is reserved by PyTorch but unallocated.`
fn pytorch(text: &str) -> Option<(OomSource, OomFigures)> {
    let text = from_last(text, "Tried to allocate ").or_else(|| from_last(text, "tried to allocate "))?;
    let mut figures = OomFigures { requested_bytes: after(text, "ried to allocate "), ..OomFigures::default() };
    let unallocated;
    if text.contains("already allocated") {
        figures.total_bytes = before(text, " total capacity");
        figures.allocated_bytes = before(text, " already allocated");
        figures.device_free_bytes = before(text, " free;").or_else(|| before(text, " free)"));
        figures.reserved_bytes = before(text, " reserved in total");
        figures.limit_bytes = before(text, " allowed;").or_else(|| before(text, " allowed)"));
        unallocated = before(text, " cached");
    } else {
        // Several releases wrote `capacty`.
        figures.total_bytes = after(text, "total capacity of ").or_else(|| after(text, "total capacty of "));
        figures.device_free_bytes = before(text, " is free");
        figures.allocated_bytes = before(text, " is allocated by PyTorch");
        figures.limit_bytes = before(text, " allowed");
        figures.others_bytes = other_processes(text);
        unallocated = before(text, " is reserved by PyTorch but unallocated");
    }
    if let (None, Some(allocated), Some(unallocated)) = (figures.reserved_bytes, figures.allocated_bytes, unallocated) {
        figures.reserved_bytes = Some(allocated.saturating_add(unallocated));
    }
    figures.requested_bytes?;
    Some((OomSource::Pytorch, figures))
}

/// The sum over `Process 570 has 120.51 GiB memory in use.`; `this process` is ours.
fn other_processes(text: &str) -> Option<u64> {
    let sizes = text.match_indices("Process ").filter_map(|(at, phrase)| {
        let rest = text[at + phrase.len()..].trim_start_matches(|letter: char| letter.is_ascii_digit());
        size(rest.strip_prefix(" has ")?).map(|(bytes, _)| bytes)
    });
    sizes.fold(None, |sum: Option<u64>, bytes| Some(sum.unwrap_or(0).saturating_add(bytes)))
}

/// TensorFlow's and XLA's best-fit-with-coalescing allocator.
fn bfc(text: &str) -> Option<(OomSource, OomFigures)> {
    const REQUESTS: [&str; 3] = [
        "ran out of memory trying to allocate ",
        "Out of memory while trying to allocate ",
        "Out of memory trying to allocate ",
    ];
    let statistic = |name: &str| {
        let line = text.lines().rev().find_map(|line| line.split_once(name).map(|(_, rest)| rest))?;
        line.trim_start().split(|letter: char| !letter.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    let request = REQUESTS.iter().find_map(|phrase| Some(from_last(text, phrase)?.get(phrase.len()..)));
    // The code alone may be any quota's.
    let tensor = ["OOM when allocating tensor", "RESOURCE_EXHAUSTED: Out of memory"];
    let tensor = tensor.iter().any(|phrase| text.contains(phrase));
    if request.is_none() && !tensor {
        return None;
    }
    let rest = request.flatten();
    // The rounded figure is exact, the other has one or two decimals.
    let line = rest.and_then(|rest| rest.lines().next()).unwrap_or_default();
    let requested_bytes = after(line, "rounded to ").or_else(|| size(line).map(|(bytes, _)| bytes));
    let figures = OomFigures {
        requested_bytes,
        limit_bytes: statistic(" Limit:")
            .or_else(|| statistic("memory_limit_:"))
            .or_else(|| at_line_start(text, "Limit:")),
        allocated_bytes: statistic(" InUse:").or_else(|| at_line_start(text, "InUse:")),
        reserved_bytes: statistic("total_region_allocated_bytes_:"),
        largest_free_bytes: statistic("LargestFreeBlock:").filter(|bytes| *bytes > 0),
        ..OomFigures::default()
    };
    Some((OomSource::Bfc, figures))
}

fn at_line_start(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().rev().find_map(|line| line.trim_start().strip_prefix(name))?;
    rest.trim().parse().ok()
}

/// `Out of memory allocating 8,589,934,592 bytes (allocated so far: 146,028,888,064 bytes, limit set to: N bytes).`
fn cupy(text: &str) -> Option<(OomSource, OomFigures)> {
    let text = from_last(text, "Out of memory allocating ")?;
    let figures = OomFigures {
        requested_bytes: after(text, "Out of memory allocating "),
        // What the pool holds, used or not.
        reserved_bytes: after(text, "allocated so far: "),
        limit_bytes: after(text, "limit set to: "),
        ..OomFigures::default()
    };
    Some((OomSource::Cupy, figures))
}

/// `out of memory: 24 MiB requested, 20 MiB allocated, 20 MiB reserved of a limit of 40 MiB`
fn batchtune(text: &str) -> Option<(OomSource, OomFigures)> {
    let text = from_last(text, "out of memory: ")?;
    let figures = OomFigures {
        requested_bytes: Some(before(text, " requested,")?),
        allocated_bytes: before(text, " allocated,"),
        reserved_bytes: before(text, " reserved of"),
        limit_bytes: after(text, "a limit of "),
        ..OomFigures::default()
    };
    Some((OomSource::Batchtune, figures))
}

/// A code and nothing else. What only mentions memory has none: `MemoryError`, `will retry on CUDA out of memory`.
fn bare(text: &str) -> Option<(OomSource, OomFigures)> {
    let has = |phrases: &[&str]| phrases.iter().any(|phrase| text.contains(phrase));
    let is_code = has(&DRIVER) || has(&LIBRARIES);
    let source = if is_code && has(&CANDLE) {
        OomSource::Candle
    } else if has(&LIBRARIES) {
        OomSource::Library
    } else if has(&PYTORCH_BARE) {
        OomSource::Pytorch
    } else if has(&DRIVER) {
        OomSource::Driver
    } else {
        return None;
    };
    Some((source, OomFigures::default()))
}

/// The size right behind the first occurrence of a phrase.
fn after(text: &str, phrase: &str) -> Option<u64> {
    let at = text.find(phrase)? + phrase.len();
    size(&text[at..]).map(|(bytes, _)| bytes)
}

/// The size right before the first occurrence of a phrase that has one.
fn before(text: &str, phrase: &str) -> Option<u64> {
    text.match_indices(phrase).find_map(|(at, _)| {
        let head = &text[..at];
        // A size is two words, `1.86 GiB`; the last one is the unit.
        let unit = head.rfind(char::is_whitespace)?;
        let number = head[..unit].rfind(|letter: char| !(letter.is_ascii_digit() || ".,".contains(letter)));
        let start = number.map_or(0, |place| place + head[place..].chars().next().map_or(1, char::len_utf8));
        if head[..start].ends_with(['-', '\u{2212}']) {
            // Less than nothing is no size, and least of all that much of one.
            return None;
        }
        size(&head[start..]).filter(|(_, rest)| rest.is_empty()).map(|(bytes, _)| bytes)
    })
}

/// A number with a unit at the start of a text, and what follows: `1.86 GiB`, `2.00GiB`, `8,589,934,592 bytes`, `512`.
fn size(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|letter: char| !(letter.is_ascii_digit() || ".,".contains(letter))).unwrap_or(text.len());
    let digits = text[..end].trim_end_matches(['.', ',']);
    let number: f64 = digits.replace(',', "").parse().ok().filter(|number: &f64| number.is_finite())?;
    let rest = &text[digits.len()..];
    let spaced = rest.trim_start_matches(' ');
    let units: [(&str, u64); 11] = [
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("TB", 1_000_000_000_000),
        ("GB", 1_000_000_000),
        ("MB", 1_000_000),
        ("kB", 1_000),
        ("bytes", 1),
        ("byte", 1),
        ("B", 1),
    ];
    let unit = units.iter().find(|(name, _)| spaced.starts_with(name));
    let (scale, rest) = unit.map_or((1, rest), |(name, scale)| (*scale, &spaced[name.len()..]));
    Some(((number * scale as f64) as u64, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{GIB, MIB};

    #[test]
    fn sizes_are_read_in_every_form_that_errors_use() {
        assert_eq!(size("600.00 MiB. GPU"), Some((600 * MIB, ". GPU")));
        assert_eq!(size("2.00GiB (rounded"), Some((2 * GIB, " (rounded")));
        assert_eq!(size("8,589,934,592 bytes ("), Some((8 * GIB, " (")));
        assert_eq!(size("0 bytes is"), Some((0, " is")));
        assert_eq!(size("17, then"), Some((17, ", then")));
        assert_eq!(size("none"), None);
        assert_eq!(size(""), None);
        assert_eq!(size("99999999999999999999999 GiB").map(|(bytes, _)| bytes), Some(u64::MAX));
    }

    #[test]
    fn sizes_are_found_before_a_phrase() {
        assert_eq!(before("(GPU 0; 31.72 GiB total capacity", " total capacity"), Some((31.72 * GIB as f64) as u64));
        assert_eq!(before("and 0 bytes is reserved", " is reserved"), Some(0));
        assert_eq!(before("it is free, 2.00 MiB is free", " is free"), Some(2 * MIB));
        assert_eq!(before("é3 MiB free)", " free)"), Some(3 * MIB));
        assert_eq!(before("free", "free"), None);
    }

    #[test]
    fn a_negative_size_is_none() {
        assert_eq!(size("-5 MiB"), None);
        assert_eq!(before("of which -5 MiB is free", " is free"), None);
        assert_eq!(before("of which \u{2212}5.00 MiB is free", " is free"), None);
        assert_eq!(before("-5 MiB is free, 2 MiB is free", " is free"), Some(2 * MIB));
        assert_eq!(before("in use - 5 MiB is free", " is free"), Some(5 * MIB), "a dash between words");
    }
}

//! Allocator settings as `PYTORCH_CUDA_ALLOC_CONF` (and `PYTORCH_ALLOC_CONF`) writes them.
//!
//! The form is `key:value` pairs with commas between; `roundup_power2_divisions` also takes a list,
//! `[256:1,512:2,>:4]`. PyTorch ignores some mistakes and dies of others; here an unknown key, a value out of range, and
//! two settings that exclude each other are errors that name the key. Keys that exist but do not change where a block
//! is put are accepted and printed back.

use std::fmt;
use std::str::FromStr;

use super::settings::{ROUNDUP_CLASSES, Settings};
use crate::units::MIB;

/// The longest text that is looked at.
const MAX_TEXT_BYTES: usize = 4096;

/// Keys that change where blocks are put.
const PLACING: [&str; 8] = [
    "backend",
    "expandable_segments",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "per_process_memory_fraction",
    "roundup_power2_divisions",
];
/// Keys that PyTorch knows and that do not.
const OTHER: [&str; 8] = [
    "graph_capture_record_stream_reuse",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "throw_on_cudamalloc_oom",
];

/// Which allocator a process asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// PyTorch's own.
    #[default]
    Native,
    /// The driver's stream-ordered pool.
    CudaMallocAsync,
}

impl Backend {
    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::CudaMallocAsync => "cudaMallocAsync",
        }
    }
}

/// A parsed configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllocConf {
    /// The allocator.
    pub backend: Backend,
    /// How the native one is set.
    pub settings: Settings,
    /// Pairs that do not change where blocks are put, as they were written.
    pub other: Vec<(String, String)>,
}

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfError {
    /// Not a list of pairs.
    #[error("`{0}` is not a `key:value` pair")]
    NotAPair(String),
    /// No such key.
    #[error("unknown allocator setting `{key}` (hint: known are {})", PLACING.join(", "))]
    UnknownKey {
        /// What was written.
        key: String,
    },
    /// A value that the key does not take.
    #[error("invalid value `{value}` of `{key}`, expected {expected}")]
    Invalid {
        /// The key.
        key: &'static str,
        /// What was written.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// Two settings that exclude each other.
    #[error("`{key}` contradicts `{other}`")]
    Contradiction {
        /// One.
        key: String,
        /// The other.
        other: String,
    },
    /// Too long to be one.
    #[error("an allocator configuration of {0} bytes is too long")]
    TooLong(usize),
}

/// Text from outside as an error shows it: short, and nothing that a terminal would obey.
fn shown(text: &str) -> String {
    text.chars().take(60).flat_map(char::escape_debug).collect()
}

impl FromStr for AllocConf {
    type Err = ConfError;

    fn from_str(text: &str) -> Result<Self, ConfError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(ConfError::TooLong(text.len()));
        }
        let mut conf = Self::default();
        let mut seen: Vec<(&str, &str)> = Vec::new();
        for pair in pairs(text) {
            let (key, value) = pair.split_once(':').ok_or_else(|| ConfError::NotAPair(shown(pair)))?;
            let (key, value) = (key.trim(), value.trim());
            if let Some((_, before)) = seen.iter().find(|(name, before)| *name == key && *before != value) {
                return Err(ConfError::Contradiction {
                    key: format!("{}:{}", shown(key), shown(value)),
                    other: format!("{}:{}", shown(key), shown(before)),
                });
            }
            seen.push((key, value));
            conf.set(key, value)?;
        }
        conf.check()
    }
}

/// Splits at the commas outside brackets.
fn pairs(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|pair| !pair.is_empty())
}

impl AllocConf {
    /// Sets one key.
    fn set(&mut self, key: &str, value: &str) -> Result<(), ConfError> {
        let settings = &mut self.settings;
        match key {
            "backend" => self.backend = backend(value)?,
            "expandable_segments" => settings.expandable_segments = switch("expandable_segments", value)?,
            "garbage_collection_threshold" => {
                settings.garbage_collection_threshold = Some(share("garbage_collection_threshold", value)?);
            }
            "per_process_memory_fraction" => {
                settings.per_process_memory_fraction = Some(share("per_process_memory_fraction", value)?);
            }
            "max_split_size_mb" => {
                settings.max_split_bytes = Some(mebibytes("max_split_size_mb", value, "at least 20 (MiB)", 20)?);
            }
            "max_non_split_rounding_mb" => {
                settings.max_non_split_rounding_bytes =
                    mebibytes("max_non_split_rounding_mb", value, "at least 20 (MiB)", 20)?;
            }
            "large_segment_size_mb" => {
                settings.large_segment_bytes = mebibytes("large_segment_size_mb", value, "at least 2 (MiB)", 2)?;
            }
            "roundup_power2_divisions" => settings.roundup_divisions = divisions(value)?,
            _ => {
                let Some(key) = OTHER.into_iter().find(|known| *known == key) else {
                    return Err(ConfError::UnknownKey { key: shown(key) });
                };
                if !value.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter)) {
                    return invalid(key, value, "a word or a number");
                }
                self.other.push((key.to_owned(), value.to_owned()));
            }
        }
        Ok(())
    }

    /// Refuses what cannot hold at once.
    fn check(self) -> Result<Self, ConfError> {
        let defaults = Settings::default();
        if self.backend == Backend::CudaMallocAsync {
            let native_only = [
                ("expandable_segments", self.settings.expandable_segments),
                ("max_split_size_mb", self.settings.max_split_bytes.is_some()),
                ("garbage_collection_threshold", self.settings.garbage_collection_threshold.is_some()),
                ("roundup_power2_divisions", self.settings.roundup_divisions != defaults.roundup_divisions),
            ];
            if let Some((key, _)) = native_only.into_iter().find(|(_, set)| *set) {
                return Err(ConfError::Contradiction {
                    key: key.to_owned(),
                    other: "backend:cudaMallocAsync".to_owned(),
                });
            }
        }
        Ok(self)
    }
}

fn invalid<T>(key: &'static str, value: &str, expected: &'static str) -> Result<T, ConfError> {
    Err(ConfError::Invalid { key, value: shown(value), expected })
}

fn backend(value: &str) -> Result<Backend, ConfError> {
    [Backend::Native, Backend::CudaMallocAsync]
        .into_iter()
        .find(|backend| backend.name() == value)
        .map_or_else(|| invalid("backend", value, "`native` or `cudaMallocAsync`"), Ok)
}

fn switch(key: &'static str, value: &str) -> Result<bool, ConfError> {
    match value {
        "True" => Ok(true),
        "False" => Ok(false),
        _ => invalid(key, value, "`True` or `False`"),
    }
}

fn share(key: &'static str, value: &str) -> Result<f64, ConfError> {
    match value.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => invalid(key, value, "a share above 0 and at most 1"),
    }
}

fn mebibytes(key: &'static str, value: &str, expected: &'static str, least: u64) -> Result<u64, ConfError> {
    match value.parse::<u64>().ok().filter(|size| *size >= least).and_then(|size| size.checked_mul(MIB)) {
        Some(bytes) => Ok(bytes),
        None => invalid(key, value, expected),
    }
}

/// One number for all sizes, or a list of `size in MiB:number` with `>` for the rest.
fn divisions(value: &str) -> Result<[u32; ROUNDUP_CLASSES], ConfError> {
    const KEY: &str = "roundup_power2_divisions";
    const EXPECTED: &str = "a power of two such as `4`, or a list such as `[256:1,512:2,>:4]`";
    let number = |text: &str| match text.trim().parse::<u32>() {
        Ok(number) if number == 0 || number.is_power_of_two() => Ok(number),
        _ => invalid(KEY, value, EXPECTED),
    };
    let Some(list) = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
        return Ok([number(value)?; ROUNDUP_CLASSES]);
    };
    let mut divisions = [0; ROUNDUP_CLASSES];
    let mut after = 0;
    for (position, entry) in list.split(',').enumerate() {
        let Some((size, count)) = entry.split_once(':') else { return invalid(KEY, value, EXPECTED) };
        let count = number(count)?;
        if size.trim() == ">" {
            divisions[after..].fill(count);
            continue;
        }
        let Some(log) = size.trim().parse::<u64>().ok().filter(|mib| mib.is_power_of_two()).map(u64::ilog2) else {
            return invalid(KEY, value, EXPECTED);
        };
        let class = (log as usize).min(ROUNDUP_CLASSES - 1);
        // The first entry also holds for everything smaller.
        divisions[if position == 0 { 0 } else { class }..=class].fill(count);
        after = class + 1;
    }
    Ok(divisions)
}

impl fmt::Display for AllocConf {
    /// Only what differs from PyTorch's defaults, in the order of the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (settings, defaults) = (&self.settings, Settings::default());
        let mut pairs: Vec<String> = Vec::new();
        if self.backend != Backend::default() {
            pairs.push(format!("backend:{}", self.backend.name()));
        }
        if settings.expandable_segments {
            pairs.push("expandable_segments:True".to_owned());
        }
        if let Some(threshold) = settings.garbage_collection_threshold {
            pairs.push(format!("garbage_collection_threshold:{threshold}"));
        }
        if settings.large_segment_bytes != defaults.large_segment_bytes {
            pairs.push(format!("large_segment_size_mb:{}", settings.large_segment_bytes / MIB));
        }
        if settings.max_non_split_rounding_bytes != defaults.max_non_split_rounding_bytes {
            pairs.push(format!("max_non_split_rounding_mb:{}", settings.max_non_split_rounding_bytes / MIB));
        }
        if let Some(bytes) = settings.max_split_bytes {
            pairs.push(format!("max_split_size_mb:{}", bytes / MIB));
        }
        if let Some(fraction) = settings.per_process_memory_fraction {
            pairs.push(format!("per_process_memory_fraction:{fraction}"));
        }
        if settings.roundup_divisions != defaults.roundup_divisions {
            pairs.push(format!("roundup_power2_divisions:{}", print_divisions(&settings.roundup_divisions)));
        }
        pairs.extend(self.other.iter().map(|(key, value)| format!("{key}:{value}")));
        f.write_str(&pairs.join(","))
    }
}

fn print_divisions(divisions: &[u32; ROUNDUP_CLASSES]) -> String {
    if divisions.iter().all(|count| *count == divisions[0]) {
        return divisions[0].to_string();
    }
    let entries: Vec<String> =
        divisions.iter().enumerate().map(|(class, count)| format!("{}:{count}", 1_u64 << class)).collect();
    format!("[{}]", entries.join(","))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<AllocConf, ConfError> {
        text.parse()
    }

    #[test]
    fn nothing_is_the_defaults_and_prints_as_nothing() {
        for text in ["", " , ", "expandable_segments:False", "backend:native"] {
            assert_eq!(parse(text).unwrap().to_string(), "", "{text}");
        }
    }

    #[test]
    fn every_key_survives_a_round_trip() {
        let text = "expandable_segments:True,garbage_collection_threshold:0.8,large_segment_size_mb:12,\
                    max_non_split_rounding_mb:40,max_split_size_mb:128,per_process_memory_fraction:0.5,\
                    roundup_power2_divisions:8,pinned_num_register_threads:4";
        let conf = parse(text).unwrap();
        assert_eq!(conf.settings.max_split_bytes, Some(128 * MIB));
        assert_eq!(conf.to_string(), text);
        assert_eq!(parse(&conf.to_string()), Ok(conf));
    }

    #[test]
    fn a_list_of_divisions_reaches_down_from_its_first_entry_and_up_from_its_rest() {
        let conf = parse(" roundup_power2_divisions : [256:1, 512:2,1024:4,>:8] ,max_split_size_mb:64").unwrap();
        let divisions = conf.settings.roundup_divisions;
        assert_eq!(divisions[..9], [1; 9]);
        assert_eq!(divisions[9..], [2, 4, 8, 8, 8, 8, 8]);
        assert_eq!(parse(&conf.to_string()), Ok(conf));
    }

    #[test]
    fn mistakes_name_their_key() {
        let message = |text| parse(text).unwrap_err().to_string();
        assert!(message("max_split_mb:64").starts_with("unknown allocator setting `max_split_mb`"));
        assert_eq!(
            message("max_split_size_mb:10"),
            "invalid value `10` of `max_split_size_mb`, expected at least 20 (MiB)"
        );
        assert!(message("expandable_segments:true").contains("`True` or `False`"));
        assert!(message("garbage_collection_threshold:1.5").contains("`garbage_collection_threshold`"));
        assert!(message("garbage_collection_threshold:nan").contains("`nan`"));
        assert!(message("roundup_power2_divisions:3").contains("a power of two"));
        assert!(message("roundup_power2_divisions:[256:1,x]").contains("a power of two"));
        assert!(message("expandable_segments").contains("is not a `key:value` pair"));
        assert_eq!(
            message("backend:cudaMallocAsync,expandable_segments:True"),
            "`expandable_segments` contradicts `backend:cudaMallocAsync`"
        );
        assert_eq!(
            message("max_split_size_mb:64,max_split_size_mb:128"),
            "`max_split_size_mb:128` contradicts `max_split_size_mb:64`"
        );
        assert!(message("max_split_size_mb:18446744073709551615").contains("invalid value"));
    }

    #[test]
    fn text_from_outside_is_escaped_and_short_in_errors() {
        let message = parse(&format!("\u{1b}[2J{}:1", "x".repeat(500))).unwrap_err().to_string();
        assert!(!message.contains('\u{1b}') && message.len() < 400, "{message}");
        assert_eq!(parse(&"x".repeat(5000)), Err(ConfError::TooLong(5000)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_parses_or_is_an_error(text in "[a-z_0-9:,\\[\\]> .]{0,80}") {
            if let Ok(conf) = parse(&text) {
                prop_assert_eq!(parse(&conf.to_string()), Ok(conf));
            }
        }
    }
}

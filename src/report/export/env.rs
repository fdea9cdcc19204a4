//! Shell assignments for a job script.
//!
//! ```sh
//! tune_env=$(tune export --format env recommendation.yaml)   # stops here under `set -e` if there is none
//! eval "$tune_env"
//! ```
//! Two statements, because `eval "$(…)"` swallows a failure even under `set -e`. Every value is quoted, so whatever
//! a name holds cannot break out.

use std::fmt::Write;

use super::{ExportError, Exporter};
use crate::report::Recommendation;
use crate::report::recommendation::Recommended;

/// Shell assignments.
#[derive(Debug)]
pub struct Env;

impl Exporter for Env {
    fn export(&self, recommendation: &Recommendation, recommended: &Recommended) -> Result<String, ExportError> {
        let name_of = |value: &dyn erased::Named| value.name();
        let mut variables = vec![
            ("TUNE_BATCH_SIZE", recommended.batch_size.to_string()),
            ("TUNE_ACCUMULATION_STEPS", recommended.accumulation_steps.to_string()),
            ("TUNE_EFFECTIVE_BATCH_SIZE", recommended.effective_batch_size.to_string()),
            ("TUNE_LOADER_WORKERS", recommended.loader_workers.to_string()),
            ("TUNE_PREFETCH_DEPTH", recommended.prefetch_depth.to_string()),
            ("TUNE_DEVICE_PREFETCH", recommended.device_prefetch.to_string()),
            ("TUNE_PIN_MEMORY", recommended.pin_memory.to_string()),
            ("TUNE_PRECISION", name_of(&recommended.precision)),
            ("TUNE_GRADIENT_CHECKPOINTING", name_of(&recommended.gradient_checkpointing)),
            ("TUNE_LIMIT_BYTES", recommended.allocator.limit_bytes.to_string()),
            ("TUNE_STATUS", recommendation.status.name().to_owned()),
        ];
        if let Some(conf) = &recommended.allocator.conf {
            variables.push(("PYTORCH_CUDA_ALLOC_CONF", conf.clone()));
        }
        let mut text = String::new();
        for (name, value) in variables {
            let quoted = quote(&value).ok_or(ExportError::Unrepresentable { field: name })?;
            // Writing to a String cannot fail.
            let _ = writeln!(text, "export {name}={quoted}");
        }
        Ok(text)
    }
}

/// A value in single quotes, where the shell expands nothing. A NUL byte cannot be in an environment at all.
fn quote(value: &str) -> Option<String> {
    if value.contains('\0') {
        return None;
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        return Some(value.to_owned());
    }
    Some(format!("'{}'", value.replace('\'', r"'\''")))
}

mod erased {
    //! The serialised name of a unit variant, so that files and environment cannot differ.

    use serde::Serialize;

    pub(super) trait Named {
        fn name(&self) -> String;
    }

    impl<T: Serialize> Named for T {
        fn name(&self) -> String {
            match serde_json::to_value(self) {
                Ok(serde_json::Value::String(name)) => name,
                Ok(other) => other.to_string(),
                Err(_) => String::new(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_reads_back_exactly_what_was_quoted() {
        for value in ["64", "", "it's", "$(touch /tmp/owned)", "a\nb", "`id`", "\\", "expandable_segments:True"] {
            let script = format!("v={}; printf %s \"$v\"", quote(value).unwrap());
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), value);
        }
    }

    #[test]
    fn a_nul_byte_is_refused() {
        assert_eq!(quote("a\0b"), None);
    }
}

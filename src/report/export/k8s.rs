//! The `env` list of a Kubernetes container.
//!
//! ```yaml
//! containers:
//! - name: train
//!   env:            # paste here
//! ```
//! Values are strings always, as the API wants them, and in double quotes, so that no YAML reads a number or a boolean.
//! Kubernetes expands `$(NAME)` in them and reads `$$` as one `$`, so every `$` is doubled. A byte 0 cannot be in an
//! environment.

use std::fmt::Write;

use super::{Answer, ExportError, Exporter, env, pytorch, quote};

/// Kubernetes.
#[derive(Debug)]
pub struct K8s;

impl Exporter for K8s {
    fn export(&self, answer: &Answer<'_>) -> Result<String, ExportError> {
        let mut text = String::new();
        for (name, value) in env::variables(answer) {
            if value.contains('\0') {
                return Err(ExportError::Unrepresentable { field: name });
            }
            // Writing to a String cannot fail.
            let _ = writeln!(text, "- name: {name}\n  value: {}", quote::literal(&value.replace('$', "$$")));
        }
        Ok(text)
    }

    fn notes(&self, answer: &Answer<'_>) -> Vec<String> {
        pytorch::batch_norm_notes(answer)
    }
}

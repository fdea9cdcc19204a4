//! The checks of `data:`, alone and beside the model.

use std::path::PathBuf;

use super::Checks;
use crate::config::leaf::number::Whole;
use crate::config::leaf::text::Text;
use crate::config::problem::ProblemKind;
use crate::config::sections::data::Length;
use crate::config::sections::model::ModelFile;
use crate::data::{Padding, SourceKind};

impl Checks<'_> {
    /// Samples are as long as the model takes them.
    pub(super) fn check_lengths(&mut self) {
        let key = "data.sequence_length";
        if !self.sound(&[key, "model.sequence_length"]) {
            return;
        }
        let model = self.file.model.as_ref().and_then(|model| model.sequence_length).map(Whole::get);
        match (&self.file.data.sequence_length, model) {
            (Some(Length::Fixed(tokens)), Some(model)) if tokens.get() != model => {
                let message = format!("samples of {} tokens do not fit `model.sequence_length: {model}`", tokens.get());
                self.refuse(ProblemKind::Conflict, key, &message);
            }
            (Some(Length::Fixed(tokens)), None) if self.file.model.is_some() => {
                let message =
                    format!("samples of {} tokens, and the model's length is left to its preset", tokens.get());
                let hint = format!("write `sequence_length: {}` under `model` in its place", tokens.get());
                self.problems.push(self.located.problem(ProblemKind::Conflict, key, &message).with_hint(&hint));
            }
            _ => {}
        }
    }

    /// Lengths between two bounds have both, in order, and end where the model does.
    pub(super) fn check_range(&mut self) {
        let key = "data.sequence_length";
        let Some(Length::Range(range)) = &self.file.data.sequence_length else { return };
        if !self.sound(&[key, "model.sequence_length"]) {
            return;
        }
        let model = self.file.model.as_ref().and_then(|model| model.sequence_length).map(Whole::get);
        match (range.min.map(Whole::get), range.max.map(Whole::get)) {
            (None, _) => self.missing(&format!("{key}.min"), "missing", "add `min: 64`, the shortest sample"),
            (_, None) => self.missing(&format!("{key}.max"), "missing", "add `max: 512`, the longest sample"),
            (Some(min), Some(max)) if min > max => {
                let message = format!("{min} tokens are more than the `max` of {max}");
                self.refuse(ProblemKind::Conflict, &format!("{key}.min"), &message);
            }
            (_, Some(max)) => {
                if let Some(model) = model.filter(|model| max > *model) {
                    let message = format!("samples of up to {max} tokens do not fit `model.sequence_length: {model}`");
                    self.refuse(ProblemKind::Conflict, &format!("{key}.max"), &message);
                }
            }
        }
    }

    /// Rows are filled up to a multiple only where they are as long as their longest sample.
    pub(super) fn check_padding(&mut self) {
        let (key, data) = ("data.pad_to_multiple_of", &self.file.data);
        if data.pad_to_multiple_of.is_none()
            || self.file.command.is_some()
            || !self.sound(&[key, "data.padding", "data.sequence_length"])
        {
            return;
        }
        let varies = matches!(data.sequence_length, Some(Length::Range(_)));
        if !varies || data.padding.0 != Padding::Longest {
            let message = "it means something for samples of varying length with `padding: longest` only";
            let problem = self.located.problem(ProblemKind::Conflict, key, message);
            let hint = "leave it out, or write `sequence_length: {min: 64, max: 512}`";
            self.problems.push(problem.with_hint(hint));
        }
    }

    /// Keys that mean something to one source stand beside that source. (To a program of the user's own, none does.)
    pub(super) fn check_source_keys(&mut self) {
        let data = &self.file.data;
        let keys = [
            ("data.tokenizer", data.tokenizer.is_some(), SourceKind::Text),
            ("data.cost", data.cost.is_some(), SourceKind::Synthetic),
            ("data.sample_bytes", data.sample_bytes.is_some(), SourceKind::Synthetic),
        ];
        for (key, is_given, source) in keys {
            if is_given && data.source.0 != source && self.file.command.is_none() && self.sound(&[key, "data.source"]) {
                let message = format!("it means something with `source: {source}` only");
                self.refuse(ProblemKind::Conflict, key, &message);
            }
        }
    }

    /// The data's file or folder, absolute. Sources that read none have none.
    pub(super) fn data_path(&mut self) -> Option<PathBuf> {
        let key = "data.path";
        if self.file.command.is_some()
            || self.file.data.source.0 == SourceKind::Synthetic
            || !self.sound(&[key, "data.source"])
        {
            return None;
        }
        let Some(written) = &self.file.data.path else {
            let message = format!("missing, and `source: {}` reads a file or a folder", self.file.data.source.0);
            self.missing(key, &message, "add `path: …` to `data`");
            return None;
        };
        self.existing(key, written)
    }

    /// The tokenizer's file, absolute.
    pub(super) fn tokenizer(&mut self) -> Option<PathBuf> {
        let (key, data) = ("data.tokenizer", &self.file.data);
        if self.file.command.is_some() || data.source.0 != SourceKind::Text || !self.sound(&[key, "data.source"]) {
            return None;
        }
        self.existing(key, data.tokenizer.as_ref()?)
    }

    /// A file of the model's, absolute.
    pub(super) fn model_file(&mut self, key: &str, of: fn(&ModelFile) -> Option<&Text>) -> Option<PathBuf> {
        let written = self.file.model.as_ref().and_then(of)?;
        if self.sound(&[key]) { self.existing(key, written) } else { None }
    }

    /// The absolute path of what a key names.
    fn existing(&mut self, key: &str, written: &Text) -> Option<PathBuf> {
        let path = self.base_of(key).join(&written.0);
        match std::fs::canonicalize(&path) {
            Ok(absolute) if absolute.to_str().is_some() => Some(absolute),
            Ok(_) => {
                self.refuse(ProblemKind::Outside, key, "its full path is not UTF-8");
                None
            }
            Err(error) => {
                let shown = std::path::absolute(&path).unwrap_or(path);
                let message = format!("cannot find `{}`: {error}", shown.display());
                let problem = self.located.problem(ProblemKind::Outside, key, &message);
                self.problems.push(problem.with_hint("a path is relative to the file that it is written in"));
                None
            }
        }
    }
}

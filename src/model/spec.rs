//! What a specification asks for, read in the same way by every family.
//!
//! The keys of `model:` are those of all families together. Which of them mean something is the family's to say, and a
//! key that means nothing is refused: who writes `image_size` for a GPT expects something that will not happen.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ModelError;
use crate::suggest::closest;

/// Which model to train, as a plan holds it. Fields that are `None` come from the preset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// The family's name in the registry.
    pub family: String,
    /// A named set of dimensions of that family.
    pub preset: Option<String>,
    /// Tokens per sample.
    pub sequence_length: Option<usize>,
    /// Blocks, one after the other.
    pub layers: Option<usize>,
    /// Attention heads.
    pub heads: Option<usize>,
    /// Width of the residual stream.
    pub hidden_size: Option<usize>,
    /// Distinct tokens.
    pub vocabulary_size: Option<usize>,
    /// Heads of keys and values, where several heads of queries share one.
    pub key_value_heads: Option<usize>,
    /// Width of the hidden layer of a block's network.
    pub intermediate_size: Option<usize>,
    /// Pixels of an image's side.
    pub image_size: Option<usize>,
    /// Pixels of a patch's side.
    pub patch_size: Option<usize>,
    /// Distinct classes.
    pub classes: Option<usize>,
    /// Safetensors with values for the parameters, in place of an initialisation: a file, the index of several, or the
    /// folder of either.
    pub weights: Option<PathBuf>,
    /// A `config.json` of Hugging Face's; it stands where a preset would.
    pub config: Option<PathBuf>,
    /// Settings of a family that batchtune does not know, handed to it unread.
    pub options: serde_json::Map<String, serde_json::Value>,
}

impl ModelSpec {
    /// Refuses what is given and not among the keys that a family reads, by name. `weights` are every family's.
    pub fn refuse_unread(&self, family: &str, read: &[&str]) -> Result<(), ModelError> {
        let given = [
            ("preset", self.preset.is_some()),
            ("sequence_length", self.sequence_length.is_some()),
            ("layers", self.layers.is_some()),
            ("heads", self.heads.is_some()),
            ("hidden_size", self.hidden_size.is_some()),
            ("vocabulary_size", self.vocabulary_size.is_some()),
            ("key_value_heads", self.key_value_heads.is_some()),
            ("intermediate_size", self.intermediate_size.is_some()),
            ("image_size", self.image_size.is_some()),
            ("patch_size", self.patch_size.is_some()),
            ("classes", self.classes.is_some()),
            ("config", self.config.is_some()),
        ];
        let unread = given.into_iter().find(|(field, is_given)| *is_given && !read.contains(field));
        if let Some((field, _)) = unread {
            let reason = format!("family `{family}` does not read it (hint: it reads {})", listed(read));
            return Err(ModelError::Invalid { field, reason });
        }
        match self.options.keys().next() {
            Some(option) if !read.contains(&"options") => Err(ModelError::Invalid {
                field: "options",
                reason: format!("family `{family}` has no option `{}`", option.escape_debug()),
            }),
            _ => Ok(()),
        }
    }

    /// The dimensions that the keys override: those of the preset or of a `config.json`, and none where neither is
    /// given.
    pub fn base<D: Clone>(
        &self,
        presets: &Presets<'_, D>,
        read: impl Fn(&Path) -> Result<D, ModelError>,
    ) -> Result<Option<D>, ModelError> {
        match (&self.preset, &self.config) {
            (Some(_), Some(_)) => Err(ModelError::Invalid {
                field: "config",
                reason: "it stands where a `preset` would, and both are given".to_owned(),
            }),
            (Some(preset), None) => presets.get(preset).map(Some),
            (None, Some(path)) => read(path).map(Some),
            (None, None) => Ok(None),
        }
    }
}

/// The longest sample of tokens: every layer keeps scores of T × T per head, which exceed any device far below this.
pub const MAX_LENGTH: usize = 1 << 15;
/// The most blocks. Deeper than any published model; bounds the work of a typing error, and candle's recursion over the
/// graph.
pub const MAX_LAYERS: usize = 1024;
/// A trillion parameters: more cannot be meant for one device.
pub const MAX_PARAMETERS: usize = 1 << 40;

/// Named sets of dimensions of a family.
#[derive(Clone, Copy, Debug)]
pub struct Presets<'a, D> {
    /// The family.
    pub family: &'static str,
    /// The sets, in the order in which they are listed.
    pub all: &'a [(&'static str, D)],
}

impl<D: Clone> Presets<'_, D> {
    /// The dimensions of one.
    pub fn get(&self, name: &str) -> Result<D, ModelError> {
        let found = self.all.iter().find(|(preset, _)| *preset == name);
        found.map(|(_, dimensions)| dimensions.clone()).ok_or_else(|| ModelError::UnknownPreset {
            family: self.family,
            preset: name.to_owned(),
            known: self.names().join(", "),
        })
    }

    /// Their names.
    pub fn names(&self) -> Vec<&'static str> {
        self.all.iter().map(|(name, _)| *name).collect()
    }

    /// A dimension: what is given, else the base's. It is missing where there is neither.
    pub fn dimension(
        &self,
        field: &'static str,
        given: Option<usize>,
        base: Option<usize>,
    ) -> Result<usize, ModelError> {
        given.or(base).ok_or_else(|| ModelError::Invalid {
            field,
            reason: format!("it is missing (hint: give it, or a `model.preset` of {})", self.names().join(", ")),
        })
    }
}

/// Refuses 0 and what is over a limit.
pub fn check_range(field: &'static str, value: usize, max: usize) -> Result<(), ModelError> {
    match value {
        0 => Err(ModelError::Invalid { field, reason: "it is 0".to_owned() }),
        value if value > max => Err(ModelError::Invalid { field, reason: format!("{value} is over {max}") }),
        _ => Ok(()),
    }
}

/// Refuses a number of parameters that overflows (`None`) or is over [`MAX_PARAMETERS`].
pub fn check_parameters(count: Option<usize>) -> Result<(), ModelError> {
    match count {
        Some(count) if count <= MAX_PARAMETERS => Ok(()),
        _ => Err(ModelError::Invalid {
            field: "hidden_size",
            reason: format!("the model has more than {MAX_PARAMETERS} parameters"),
        }),
    }
}

/// What an unknown name was probably meant to be, as the end of a message. `known` are names with commas between.
pub(super) fn suggestion(name: &str, known: &str) -> String {
    let known: Vec<&str> = known.split(", ").collect();
    closest(name, &known).map_or_else(String::new, |meant| format!(" (hint: did you mean `{meant}`?)"))
}

fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRESETS: Presets<'_, usize> = Presets { family: "toy", all: &[("toy-small", 1), ("toy-large", 2)] };

    fn message(error: &ModelError) -> String {
        error.to_string()
    }

    #[test]
    fn a_key_that_means_nothing_to_the_family_is_named_with_those_that_do() {
        let spec = ModelSpec { image_size: Some(224), heads: Some(2), ..ModelSpec::default() };
        assert!(spec.refuse_unread("toy", &["heads", "image_size"]).is_ok());
        let error = message(&spec.refuse_unread("toy", &["heads", "layers"]).unwrap_err());
        let expected = "invalid `model.image_size`: family `toy` does not read it (hint: it reads `heads`, `layers`)";
        assert_eq!(error, expected);
        let mut spec = ModelSpec::default();
        spec.options.insert("dropout".to_owned(), 0.1.into());
        assert!(message(&spec.refuse_unread("toy", &["heads"]).unwrap_err()).contains("no option `dropout`"));
        assert!(spec.refuse_unread("toy", &["options"]).is_ok());
        let spec = ModelSpec { weights: Some("w".into()), ..ModelSpec::default() };
        assert!(spec.refuse_unread("toy", &[]).is_ok());
    }

    #[test]
    fn an_unknown_preset_suggests_the_nearest() {
        assert_eq!(PRESETS.get("toy-large").unwrap(), 2);
        let error = message(&PRESETS.get("toy-smal").unwrap_err());
        let expected = "unknown preset `toy-smal` of family `toy`, expected one of: toy-small, toy-large \
                        (hint: did you mean `toy-small`?)";
        assert_eq!(error, expected);
        assert!(!message(&PRESETS.get("else").unwrap_err()).contains("hint"));
    }

    #[test]
    fn a_preset_and_a_configuration_exclude_each_other() {
        let read = |_: &Path| Ok(7);
        let spec = |preset: Option<&str>, config: Option<&str>| ModelSpec {
            preset: preset.map(str::to_owned),
            config: config.map(PathBuf::from),
            ..ModelSpec::default()
        };
        assert_eq!(spec(Some("toy-large"), None).base(&PRESETS, read).unwrap(), Some(2));
        assert_eq!(spec(None, Some("config.json")).base(&PRESETS, read).unwrap(), Some(7));
        assert_eq!(spec(None, None).base(&PRESETS, read).unwrap(), None);
        let both = spec(Some("toy-large"), Some("config.json")).base(&PRESETS, read);
        assert!(matches!(both, Err(ModelError::Invalid { field: "config", .. })));
    }

    #[test]
    fn a_dimension_is_given_or_the_base_s_or_missing() {
        assert_eq!(PRESETS.dimension("layers", Some(3), Some(4)).unwrap(), 3);
        assert_eq!(PRESETS.dimension("layers", None, Some(4)).unwrap(), 4);
        let error = message(&PRESETS.dimension("layers", None, None).unwrap_err());
        assert!(error.contains("`model.layers`") && error.contains("toy-small, toy-large"), "{error}");
        assert!(check_range("layers", 0, 5).is_err() && check_range("layers", 6, 5).is_err());
        assert!(check_range("layers", 5, 5).is_ok());
    }
}

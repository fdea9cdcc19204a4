//! Dimensions at which a test of any family is quick. Integration tests include this file too.

use super::ModelSpec;

/// The small model of a family.
pub(crate) fn small(family: &str) -> ModelSpec {
    let spec = ModelSpec { family: family.to_owned(), ..ModelSpec::default() };
    let transformer = ModelSpec {
        sequence_length: Some(16),
        layers: Some(2),
        heads: Some(2),
        hidden_size: Some(32),
        vocabulary_size: Some(64),
        ..spec.clone()
    };
    match family {
        "gpt" => transformer,
        "llama" => ModelSpec { heads: Some(4), key_value_heads: Some(2), intermediate_size: Some(48), ..transformer },
        "bert" => ModelSpec { intermediate_size: Some(48), ..transformer },
        "resnet" => ModelSpec { preset: Some("nano".to_owned()), image_size: Some(24), ..spec },
        "vit" => ModelSpec {
            image_size: Some(8),
            patch_size: Some(4),
            classes: Some(10),
            intermediate_size: Some(48),
            sequence_length: None,
            vocabulary_size: None,
            ..transformer
        },
        other => panic!("add small dimensions for family `{other}`"),
    }
}

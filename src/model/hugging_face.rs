//! A model's dimensions from the `config.json` that Hugging Face's `transformers` writes beside its weights.
//!
//! Only what a family needs is read, and keys that nobody asked for are ignored, as there are dozens of them. A key that
//! asks for another computation than the family's (another activation, biases, a rope of another kind) is refused: the
//! weights would load and mean something else. The file is a stranger's, and [`mod@file`] reads it.

use std::path::Path;

use super::layers::Llama3Scaling;
use super::{ModelError, bert, gpt, llama, vit};

mod file;

pub use file::Place;
pub(super) use file::read_text;
use file::{ConfigFile, Keys};

/// GPT-2's tanh form of GELU, under all its names.
const GELU_TANH: [&str; 2] = ["gelu_new", "gelu_pytorch_tanh"];

/// The dimensions of a GPT-2.
pub(super) fn gpt(path: &Path) -> Result<gpt::Dimensions, ModelError> {
    let file = ConfigFile::open(path, "gpt", "gpt2")?;
    let config = file.keys();
    let dimensions = gpt::Dimensions {
        length: config.needed("n_positions")?,
        layers: config.needed("n_layer")?,
        heads: config.needed("n_head")?,
        width: config.needed("n_embd")?,
        vocabulary: config.needed("vocab_size")?,
    };
    let activation = config.optional("activation_function")?.unwrap_or("gelu_new");
    config.check(GELU_TANH.contains(&activation), "activation_function")?;
    let inner: Option<usize> = config.optional("n_inner")?;
    config.check(inner.is_none_or(|inner| Some(inner) == dimensions.width.checked_mul(4)), "n_inner")?;
    let epsilon: Option<f64> = config.optional("layer_norm_epsilon")?;
    config.check(epsilon.is_none_or(|epsilon| (epsilon - 1e-5).abs() < 1e-9), "layer_norm_epsilon")?;
    config.check_is("tie_word_embeddings", true)?;
    config.check_is("scale_attn_weights", true)?;
    config.check_is("scale_attn_by_inverse_layer_idx", false)?;
    Ok(dimensions)
}

/// The dimensions of a Llama.
pub(super) fn llama(path: &Path) -> Result<llama::Dimensions, ModelError> {
    let file = ConfigFile::open(path, "llama", "llama")?;
    let config = file.keys();
    let (heads, width): (usize, usize) = (config.needed("num_attention_heads")?, config.needed("hidden_size")?);
    config.check(config.optional("hidden_act")?.unwrap_or("silu") == "silu", "hidden_act")?;
    config.check_is("attention_bias", false)?;
    config.check_is("mlp_bias", false)?;
    // From version 5 on, and up to version 4.
    let rope = match config.object("rope_parameters")? {
        Some(rope) => Some(rope),
        None => config.object("rope_scaling")?,
    };
    let of_rope = rope.as_ref().map(|rope| rope.optional("rope_theta")).transpose()?.flatten();
    let theta: Option<f64> = of_rope.map_or_else(|| config.optional("rope_theta"), |theta| Ok(Some(theta)))?;
    Ok(llama::Dimensions {
        length: config.needed("max_position_embeddings")?,
        layers: config.needed("num_hidden_layers")?,
        heads,
        shared: config.optional("num_key_value_heads")?.unwrap_or(heads),
        size: config.optional("head_dim")?.or(width.checked_div(heads)).unwrap_or(0),
        width,
        hidden: config.needed("intermediate_size")?,
        vocabulary: config.needed("vocab_size")?,
        epsilon: config.needed("rms_norm_eps")?,
        theta: theta.unwrap_or(llama::THETA),
        scaling: rope.map(|rope| scaling(&rope)).transpose()?.flatten(),
        tied: config.optional("tie_word_embeddings")?.unwrap_or(false),
    })
}

/// How a rope's frequencies are scaled; `None` where they are not.
fn scaling(rope: &Keys<'_>) -> Result<Option<Llama3Scaling>, ModelError> {
    // Older files have the second.
    let (new, old): (Option<&str>, Option<&str>) = (rope.optional("rope_type")?, rope.optional("type")?);
    match new.or(old) {
        None | Some("default") => Ok(None),
        Some("llama3") => Ok(Some(Llama3Scaling {
            factor: rope.needed("factor")?,
            low_frequency_factor: rope.needed("low_freq_factor")?,
            high_frequency_factor: rope.needed("high_freq_factor")?,
            original_length: rope.needed("original_max_position_embeddings")?,
        })),
        Some(_) => rope.check(false, if new.is_some() { "rope_type" } else { "type" }).map(|()| None),
    }
}

/// The dimensions of a BERT.
pub(super) fn bert(path: &Path) -> Result<bert::Dimensions, ModelError> {
    let file = ConfigFile::open(path, "bert", "bert")?;
    let config = file.keys();
    config.check(config.optional("hidden_act")?.unwrap_or("gelu") == "gelu", "hidden_act")?;
    let positions = config.optional("position_embedding_type")?.unwrap_or("absolute");
    config.check(positions == "absolute", "position_embedding_type")?;
    config.check_is("tie_word_embeddings", true)?;
    config.check_is("is_decoder", false)?;
    Ok(bert::Dimensions {
        length: config.needed("max_position_embeddings")?,
        layers: config.needed("num_hidden_layers")?,
        heads: config.needed("num_attention_heads")?,
        width: config.needed("hidden_size")?,
        hidden: config.needed("intermediate_size")?,
        vocabulary: config.needed("vocab_size")?,
        types: config.optional("type_vocab_size")?.unwrap_or(2),
        epsilon: config.optional("layer_norm_eps")?.unwrap_or(1e-12),
        mask_token: bert::MASK_TOKEN,
    })
}

/// The dimensions of a ViT.
pub(super) fn vit(path: &Path) -> Result<vit::Dimensions, ModelError> {
    let file = ConfigFile::open(path, "vit", "vit")?;
    let config = file.keys();
    config.check(config.optional("hidden_act")?.unwrap_or("gelu") == "gelu", "hidden_act")?;
    config.check(config.optional("num_channels")?.unwrap_or(3_usize) == 3, "num_channels")?;
    config.check_is("qkv_bias", true)?;
    Ok(vit::Dimensions {
        image: config.needed("image_size")?,
        patch: config.needed("patch_size")?,
        // By the name of each class; a file without one means the library's default, of two.
        classes: config.object("id2label")?.map_or(2, |labels| labels.count()),
        layers: config.needed("num_hidden_layers")?,
        heads: config.needed("num_attention_heads")?,
        width: config.needed("hidden_size")?,
        hidden: config.needed("intermediate_size")?,
        epsilon: config.optional("layer_norm_eps")?.unwrap_or(1e-12),
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    const LLAMA: &str = r#""model_type": "llama", "max_position_embeddings": 131072, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "hidden_size": 2048,
        "intermediate_size": 8192, "vocab_size": 128256, "rms_norm_eps": 1e-05, "tie_word_embeddings": true,
        "architectures": ["LlamaForCausalLM"], "bos_token_id": 128000"#;

    fn llama_with(more: &str) -> Result<llama::Dimensions, ModelError> {
        let (_folder, path) = written(&format!("{{{LLAMA}{more}}}"));
        llama(&path)
    }

    #[test]
    fn both_spellings_of_a_rope_are_read() {
        let old = llama_with(
            r#", "rope_theta": 500000.0, "rope_scaling": {"factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}"#,
        );
        let new = llama_with(
            r#", "rope_parameters": {"rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}"#,
        );
        let (old, new) = (old.unwrap(), new.unwrap());
        assert_eq!(old, new);
        assert_eq!((old.heads, old.shared, old.size, old.tied), (32, 8, 64, true));
        assert_eq!(old.scaling.unwrap().original_length, 8192);
        let plain = llama_with(r#", "rope_scaling": null"#).unwrap();
        assert_eq!((plain.theta.to_bits(), plain.scaling), (10_000.0_f64.to_bits(), None));
    }

    #[test]
    fn what_is_not_built_is_refused_by_its_key() {
        for (more, named) in [
            (r#", "hidden_act": "gelu""#, "hidden_act"),
            (r#", "attention_bias": true"#, "attention_bias"),
            (r#", "mlp_bias": true"#, "mlp_bias"),
            (r#", "rope_scaling": {"type": "linear", "factor": 2.0}"#, "linear"),
            (r#", "rope_scaling": {"rope_type": "llama3", "factor": 2.0}"#, "low_freq_factor"),
        ] {
            let error = llama_with(more).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn another_model_type_names_both() {
        let (_folder, path) = written(&format!("{{{LLAMA}}}"));
        let error = gpt(&path).unwrap_err().to_string();
        assert!(error.contains("`llama`") && error.contains("`gpt2`") && error.contains("family `gpt`"), "{error}");
        let (_folder, path) = written("{}");
        assert!(bert(&path).unwrap_err().to_string().contains("missing"));
    }

    #[test]
    fn gpt2_s_own_file_gives_its_dimensions() {
        let text = r#"{"activation_function": "gelu_new", "attn_pdrop": 0.1, "layer_norm_epsilon": 1e-05,
            "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
            "task_specific_params": {"text-generation": {"do_sample": true}}, "vocab_size": 50257}"#;
        let (_folder, path) = written(text);
        let expected = gpt::Dimensions { length: 1024, layers: 12, heads: 12, width: 768, vocabulary: 50_257 };
        assert_eq!(gpt(&path).unwrap(), expected);
        for (from, to) in [("gelu_new", "relu"), ("1e-05", "1e-03"), ("\"n_ctx\"", "\"n_inner\"")] {
            let (_folder, path) = written(&text.replace(from, to));
            assert!(matches!(gpt(&path), Err(ModelError::Config { .. })), "{to}");
        }
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_told_by_its_key_its_place_and_what_it_is_to_be() {
        let text = "{\"é\": \"}\\\"{\", \"model_type\": \"gpt2\",\n \"other\": {\"n_layer\": [1, {}]},\n \"n_positions\": 64, \"n_layer\" : \"twelve\"}";
        let said = |text: &str| {
            let (_folder, path) = written(text);
            let said = gpt(&path).unwrap_err().to_string();
            said.replace(&path.display().to_string(), "config.json")
        };
        let whole = "expected a whole number that is not negative";
        for (from, to, expected) in [
            ("", "", format!("config.json:3:33`: `n_layer` is `\"twelve\"`, {whole}")),
            ("\"twelve\"", "-12", format!("config.json:3:33`: `n_layer` is `-12`, {whole}")),
            ("\"twelve\"", "12.5", format!("config.json:3:33`: `n_layer` is `12.5`, {whole}")),
            ("\"twelve\"", "[12]", format!("config.json:3:33`: `n_layer` is a list, {whole}")),
            // The last one counts.
            ("\"twelve\"", "1, \"n_layer\": true", format!("config.json:3:47`: `n_layer` is `true`, {whole}")),
            ("\"twelve\"", "null", format!("config.json`: `n_layer` is missing, {whole}")),
            ("\"gpt2\"", "7", "config.json:1:29`: `model_type` is `7`, expected a text in quotes".to_owned()),
            ("\"gpt2\"", "\"bert\"", "config.json:1:29`: its `model_type` is `bert`".to_owned()),
            ("twelve\"}", "", "config.json:3:33`: it is no JSON: EOF while parsing a string".to_owned()),
        ] {
            let said = said(&text.replace(from, to));
            assert!(said.contains(&expected), "{said}, expected {expected}");
        }
        assert!(said("[1]").contains("config.json`: it is a list, expected keys in `{…}`"));
        let rope =
            llama_with(",\n\"rope_scaling\": {\"type\": \"llama3\", \"factor\": \"2\"}").unwrap_err().to_string();
        assert!(rope.contains(":5:46`: `rope_scaling.factor` is `\"2\"`, expected a number"), "{rope}");
        let rope = llama_with(",\n\"rope_scaling\": {\"type\": \"llama3\"}").unwrap_err().to_string();
        assert!(rope.contains(":5:17`: `rope_scaling.factor` is missing, expected a number"), "{rope}");
    }

    #[test]
    fn a_file_that_is_none_is_refused() {
        for text in ["", "[]", "{\"model_type\": 7}", "{\"model_type\": \"gpt2\"}", "\u{1b}[2J"] {
            let (_folder, path) = written(text);
            let error = gpt(&path).unwrap_err();
            assert!(matches!(error, ModelError::Config { .. }));
            assert!(!error.to_string().contains('\u{1b}'), "{error}");
        }
        let (folder, path) = written(&" ".repeat((file::MAX_BYTES + 1) as usize));
        assert!(gpt(&path).unwrap_err().to_string().contains("longer"));
        assert!(gpt(folder.path()).unwrap_err().to_string().contains("no file"));
        assert!(matches!(gpt(&folder.path().join("missing")), Err(ModelError::Config { .. })));
    }
}

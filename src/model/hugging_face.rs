//! A model's dimensions from the `config.json` that Hugging Face's `transformers` writes beside its weights.
//!
//! Only what a family needs is read, and keys that nobody asked for are ignored, as there are dozens of them. A key that
//! asks for another computation than the family's (another activation, biases, a rope of another kind) is refused: the
//! weights would load and mean something else. The file is a stranger's and is read up to [`MAX_BYTES`].

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::layers::Llama3Scaling;
use super::{ModelError, bert, gpt, llama, vit};
use crate::text::harmless;

/// The longest file. A configuration has a few kilobytes, those that name a thousand classes some fifty.
const MAX_BYTES: u64 = 1 << 20;

/// GPT-2's tanh form of GELU, under all its names.
const GELU_TANH: [&str; 2] = ["gelu_new", "gelu_pytorch_tanh"];

/// An open configuration.
struct Config<'a> {
    path: &'a Path,
    text: String,
}

impl<'a> Config<'a> {
    /// Reads the file, which must be of this `model_type`.
    fn open(path: &'a Path, family: &str, model_type: &str) -> Result<Self, ModelError> {
        #[derive(Deserialize)]
        struct Kind {
            model_type: Option<String>,
        }
        let error = |reason| ModelError::Config { path: path.to_owned(), reason };
        let config = Self { path, text: read_text(path, MAX_BYTES).map_err(error)? };
        match config.parse::<Kind>()?.model_type {
            Some(found) if found == model_type => Ok(config),
            found => {
                let found = found.map_or("missing".to_owned(), |found| format!("`{}`", found.escape_debug()));
                Err(config.error(format!("its `model_type` is {found}, and family `{family}` needs `{model_type}`")))
            }
        }
    }

    fn parse<T: DeserializeOwned>(&self) -> Result<T, ModelError> {
        serde_json::from_str(&self.text).map_err(|error| self.error(harmless(&error.to_string())))
    }

    fn error(&self, reason: String) -> ModelError {
        ModelError::Config { path: self.path.to_owned(), reason }
    }

    /// Refuses a value that the family does not compute.
    fn check(&self, is_built: bool, key: &str, value: &dyn std::fmt::Debug) -> Result<(), ModelError> {
        if is_built { Ok(()) } else { Err(self.error(format!("`{key}: {value:?}` is not built"))) }
    }
}

/// The text of a stranger's file, which may be anything.
pub(super) fn read_text(path: &Path, limit_bytes: u64) -> Result<String, String> {
    // Before it is opened: to open a pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(|error| error.to_string())?.is_file() {
        return Err("it is no file".to_owned());
    }
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(limit_bytes + 1).read_to_string(&mut text));
    read.map_err(|error| error.to_string())?;
    if text.len() as u64 > limit_bytes {
        return Err(format!("it is longer than {limit_bytes} bytes"));
    }
    Ok(text)
}

/// The dimensions of a GPT-2.
pub(super) fn gpt(path: &Path) -> Result<gpt::Dimensions, ModelError> {
    #[derive(Deserialize)]
    struct Gpt2 {
        n_positions: usize,
        n_layer: usize,
        n_head: usize,
        n_embd: usize,
        vocab_size: usize,
        n_inner: Option<usize>,
        activation_function: Option<String>,
        layer_norm_epsilon: Option<f64>,
        tie_word_embeddings: Option<bool>,
        scale_attn_weights: Option<bool>,
        scale_attn_by_inverse_layer_idx: Option<bool>,
    }
    let config = Config::open(path, "gpt", "gpt2")?;
    let found: Gpt2 = config.parse()?;
    let activation = found.activation_function.as_deref().unwrap_or("gelu_new");
    config.check(GELU_TANH.contains(&activation), "activation_function", &activation)?;
    let inner = found.n_inner;
    config.check(inner.is_none_or(|inner| Some(inner) == found.n_embd.checked_mul(4)), "n_inner", &inner)?;
    let epsilon = found.layer_norm_epsilon;
    config.check(epsilon.is_none_or(|epsilon| (epsilon - 1e-5).abs() < 1e-9), "layer_norm_epsilon", &epsilon)?;
    config.check(found.tie_word_embeddings.unwrap_or(true), "tie_word_embeddings", &false)?;
    config.check(found.scale_attn_weights.unwrap_or(true), "scale_attn_weights", &false)?;
    let by_layer = found.scale_attn_by_inverse_layer_idx.unwrap_or(false);
    config.check(!by_layer, "scale_attn_by_inverse_layer_idx", &true)?;
    Ok(gpt::Dimensions {
        length: found.n_positions,
        layers: found.n_layer,
        heads: found.n_head,
        width: found.n_embd,
        vocabulary: found.vocab_size,
    })
}

/// The dimensions of a Llama.
pub(super) fn llama(path: &Path) -> Result<llama::Dimensions, ModelError> {
    #[derive(Deserialize)]
    struct Llama {
        max_position_embeddings: usize,
        num_hidden_layers: usize,
        num_attention_heads: usize,
        num_key_value_heads: Option<usize>,
        head_dim: Option<usize>,
        hidden_size: usize,
        intermediate_size: usize,
        vocab_size: usize,
        rms_norm_eps: f64,
        tie_word_embeddings: Option<bool>,
        hidden_act: Option<String>,
        attention_bias: Option<bool>,
        mlp_bias: Option<bool>,
        rope_theta: Option<f64>,
        // Up to version 4 and from version 5 on.
        rope_scaling: Option<Frequencies>,
        rope_parameters: Option<Frequencies>,
    }
    let config = Config::open(path, "llama", "llama")?;
    let found: Llama = config.parse()?;
    let activation = found.hidden_act.as_deref().unwrap_or("silu");
    config.check(activation == "silu", "hidden_act", &activation)?;
    config.check(!found.attention_bias.unwrap_or(false), "attention_bias", &true)?;
    config.check(!found.mlp_bias.unwrap_or(false), "mlp_bias", &true)?;
    let rope = found.rope_parameters.or(found.rope_scaling);
    let theta = rope.as_ref().and_then(|rope| rope.rope_theta).or(found.rope_theta);
    Ok(llama::Dimensions {
        length: found.max_position_embeddings,
        layers: found.num_hidden_layers,
        heads: found.num_attention_heads,
        shared: found.num_key_value_heads.unwrap_or(found.num_attention_heads),
        size: found.head_dim.or(found.hidden_size.checked_div(found.num_attention_heads)).unwrap_or(0),
        width: found.hidden_size,
        hidden: found.intermediate_size,
        vocabulary: found.vocab_size,
        epsilon: found.rms_norm_eps,
        theta: theta.unwrap_or(llama::THETA),
        scaling: rope.map(|rope| rope.scaling(&config)).transpose()?.flatten(),
        tied: found.tie_word_embeddings.unwrap_or(false),
    })
}

#[derive(Deserialize)]
struct Frequencies {
    rope_type: Option<String>,
    /// The same in older files.
    r#type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
}

impl Frequencies {
    fn scaling(self, config: &Config<'_>) -> Result<Option<Llama3Scaling>, ModelError> {
        let kind = self.rope_type.or(self.r#type);
        match kind.as_deref() {
            None | Some("default") => Ok(None),
            Some("llama3") => {
                let missing = |key: &str| config.error(format!("its rope of type `llama3` has no `{key}`"));
                Ok(Some(Llama3Scaling {
                    factor: self.factor.ok_or_else(|| missing("factor"))?,
                    low_frequency_factor: self.low_freq_factor.ok_or_else(|| missing("low_freq_factor"))?,
                    high_frequency_factor: self.high_freq_factor.ok_or_else(|| missing("high_freq_factor"))?,
                    original_length: self
                        .original_max_position_embeddings
                        .ok_or_else(|| missing("original_max_position_embeddings"))?,
                }))
            }
            Some(other) => Err(config.error(format!("a rope of type `{}` is not built", other.escape_debug()))),
        }
    }
}

/// The dimensions of a BERT.
pub(super) fn bert(path: &Path) -> Result<bert::Dimensions, ModelError> {
    #[derive(Deserialize)]
    struct Bert {
        max_position_embeddings: usize,
        num_hidden_layers: usize,
        num_attention_heads: usize,
        hidden_size: usize,
        intermediate_size: usize,
        vocab_size: usize,
        type_vocab_size: Option<usize>,
        layer_norm_eps: Option<f64>,
        hidden_act: Option<String>,
        position_embedding_type: Option<String>,
        tie_word_embeddings: Option<bool>,
        is_decoder: Option<bool>,
    }
    let config = Config::open(path, "bert", "bert")?;
    let found: Bert = config.parse()?;
    let activation = found.hidden_act.as_deref().unwrap_or("gelu");
    config.check(activation == "gelu", "hidden_act", &activation)?;
    let positions = found.position_embedding_type.as_deref().unwrap_or("absolute");
    config.check(positions == "absolute", "position_embedding_type", &positions)?;
    config.check(found.tie_word_embeddings.unwrap_or(true), "tie_word_embeddings", &false)?;
    config.check(!found.is_decoder.unwrap_or(false), "is_decoder", &true)?;
    Ok(bert::Dimensions {
        length: found.max_position_embeddings,
        layers: found.num_hidden_layers,
        heads: found.num_attention_heads,
        width: found.hidden_size,
        hidden: found.intermediate_size,
        vocabulary: found.vocab_size,
        types: found.type_vocab_size.unwrap_or(2),
        epsilon: found.layer_norm_eps.unwrap_or(1e-12),
        mask_token: bert::MASK_TOKEN,
    })
}

/// The dimensions of a ViT.
pub(super) fn vit(path: &Path) -> Result<vit::Dimensions, ModelError> {
    #[derive(Deserialize)]
    struct Vit {
        image_size: usize,
        patch_size: usize,
        num_channels: Option<usize>,
        num_hidden_layers: usize,
        num_attention_heads: usize,
        hidden_size: usize,
        intermediate_size: usize,
        layer_norm_eps: Option<f64>,
        hidden_act: Option<String>,
        qkv_bias: Option<bool>,
        // By the name of each class; a file without one means the library's default, of two.
        id2label: Option<serde_json::Map<String, serde_json::Value>>,
    }
    let config = Config::open(path, "vit", "vit")?;
    let found: Vit = config.parse()?;
    let activation = found.hidden_act.as_deref().unwrap_or("gelu");
    config.check(activation == "gelu", "hidden_act", &activation)?;
    let channels = found.num_channels.unwrap_or(3);
    config.check(channels == 3, "num_channels", &channels)?;
    config.check(found.qkv_bias.unwrap_or(true), "qkv_bias", &false)?;
    Ok(vit::Dimensions {
        image: found.image_size,
        patch: found.patch_size,
        classes: found.id2label.map_or(2, |labels| labels.len()),
        layers: found.num_hidden_layers,
        heads: found.num_attention_heads,
        width: found.hidden_size,
        hidden: found.intermediate_size,
        epsilon: found.layer_norm_eps.unwrap_or(1e-12),
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
    fn a_file_that_is_none_is_refused() {
        for text in ["", "[]", "{\"model_type\": 7}", "{\"model_type\": \"gpt2\"}", "\u{1b}[2J"] {
            let (_folder, path) = written(text);
            let error = gpt(&path).unwrap_err();
            assert!(matches!(error, ModelError::Config { .. }));
            assert!(!error.to_string().contains('\u{1b}'), "{error}");
        }
        let (folder, path) = written(&" ".repeat((MAX_BYTES + 1) as usize));
        assert!(gpt(&path).unwrap_err().to_string().contains("longer"));
        assert!(gpt(folder.path()).unwrap_err().to_string().contains("no file"));
        assert!(matches!(gpt(&folder.path().join("missing")), Err(ModelError::Config { .. })));
    }
}

//! `tune models`: what can be trained, and the least memory that it takes.

use std::fmt::Write;

use serde::Serialize;

use super::{Form, ModelsArgs, print_result, to_json};
use crate::data::InputSpec;
use crate::error::Error;
use crate::exit_code;
use crate::model::{Family, ModelError, ModelSpec, Registry};
use crate::train::{OptimizerKind, Precision};
use crate::units::Bytes;

/// The types of `--precision`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum PrecisionArg {
    F32,
    Bf16,
    F16,
    MixedBf16,
    MixedF16,
}

impl From<PrecisionArg> for Precision {
    fn from(precision: PrecisionArg) -> Self {
        match precision {
            PrecisionArg::F32 => Self::F32,
            PrecisionArg::Bf16 => Self::Bf16,
            PrecisionArg::F16 => Self::F16,
            PrecisionArg::MixedBf16 => Self::MixedBf16,
            PrecisionArg::MixedF16 => Self::MixedF16,
        }
    }
}

/// The optimizers of `--optimizer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum OptimizerArg {
    Adamw,
    Sgd,
}

impl From<OptimizerArg> for OptimizerKind {
    fn from(optimizer: OptimizerArg) -> Self {
        match optimizer {
            OptimizerArg::Adamw => Self::Adamw,
            OptimizerArg::Sgd => Self::Sgd,
        }
    }
}

/// The list.
#[derive(Debug, Serialize)]
struct Listing {
    precision: Precision,
    optimizer: OptimizerKind,
    models: Vec<Row>,
}

/// A preset, or a family that has none.
#[derive(Debug, Serialize)]
struct Row {
    family: &'static str,
    preset: Option<&'static str>,
    parameters: Option<u64>,
    /// Parameters, gradients and the optimizer's state.
    floor_bytes: Option<u64>,
    /// What a batch looks like.
    input: Option<InputSpec>,
}

pub(super) fn run(args: &ModelsArgs, registry: &Registry) -> Result<u8, Error> {
    let (precision, optimizer) = (args.precision.into(), args.optimizer.into());
    let names = match &args.family {
        Some(name) => vec![registry.get(name)?.name()],
        None => registry.names(),
    };
    let mut models = Vec::new();
    for name in names {
        models.extend(rows(registry.get(name)?, |parameters| floor_bytes(parameters, precision, optimizer))?);
    }
    let found = Listing { precision, optimizer, models };
    match Form::of(args.json) {
        Form::Json => print_result(&format!("{}\n", to_json(&found)))?,
        Form::Table => print_result(&table(&found))?,
    }
    Ok(exit_code::SAFE)
}

fn rows(family: &dyn Family, floor_bytes: impl Fn(u64) -> u64) -> Result<Vec<Row>, ModelError> {
    let presets = family.presets();
    if presets.is_empty() {
        let family = family.name();
        return Ok(vec![Row { family, preset: None, parameters: None, floor_bytes: None, input: None }]);
    }
    let row = |preset: &'static str| {
        let (family_name, preset_name) = (family.name().to_owned(), Some(preset.to_owned()));
        let spec = ModelSpec { family: family_name, preset: preset_name, ..ModelSpec::default() };
        let parameters = family.parameter_count(&spec)?;
        Ok(Row {
            family: family.name(),
            preset: Some(preset),
            parameters,
            floor_bytes: parameters.map(&floor_bytes),
            input: Some(family.input(&spec)?),
        })
    };
    presets.into_iter().map(row).collect()
}

/// What is live at the end of every backward pass whatever the batch: a gradient has its parameter's type, and so has
/// each of the two moments of AdamW. SGD keeps nothing without a momentum.
fn floor_bytes(parameters: u64, precision: Precision, optimizer: OptimizerKind) -> u64 {
    let copies = match optimizer {
        OptimizerKind::Adamw => 4,
        OptimizerKind::Sgd => 2,
    };
    parameters.saturating_mul(copies * precision.parameter_dtype().size_in_bytes() as u64)
}

fn table(found: &Listing) -> String {
    let wide = |of: fn(&Row) -> &str| found.models.iter().map(|row| of(row).len()).max().unwrap_or(0).max(8);
    let (family, preset) = (wide(|row| row.family), wide(|row| row.preset.unwrap_or("-")));
    let mut text =
        format!("{:family$}  {:preset$}  {:>10}  {:>10}  a sample\n", "family", "preset", "parameters", "floor");
    for row in &found.models {
        let parameters = row.parameters.map_or("-".to_owned(), millions);
        let floor = row.floor_bytes.map_or("-".to_owned(), |bytes| Bytes(bytes).to_string());
        let name = row.preset.unwrap_or("-");
        let sample = row.input.as_ref().map_or("-".to_owned(), sample);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:family$}  {name:preset$}  {parameters:>10}  {floor:>10}  {sample}", row.family);
    }
    let optimizer = match found.optimizer {
        OptimizerKind::Adamw => "adamw",
        OptimizerKind::Sgd => "sgd",
    };
    let _ = writeln!(
        text,
        "\nfloor: parameters, gradients and the state of {optimizer} in {}; activations come on top, and a trial measures them",
        found.precision
    );
    text
}

/// A count of parameters as papers write it.
fn millions(count: u64) -> String {
    let millions = count as f64 / 1e6;
    if millions < 1000.0 { format!("{millions:.1} M") } else { format!("{:.2} B", millions / 1000.0) }
}

fn sample(input: &InputSpec) -> String {
    match input {
        InputSpec::Tokens { vocabulary_size, sequence_length } => {
            format!("{sequence_length} tokens of {vocabulary_size}")
        }
        InputSpec::MaskedTokens { vocabulary_size, sequence_length, .. } => {
            format!("{sequence_length} tokens of {vocabulary_size}, some masked")
        }
        InputSpec::Features { shape, classes } => {
            let shape: Vec<String> = shape.iter().map(ToString::to_string).collect();
            format!("{} values of {classes} classes", shape.join(" × "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_what_is_held_whatever_the_batch() {
        let floor = |precision, optimizer| floor_bytes(1000, precision, optimizer);
        assert_eq!(floor(Precision::F32, OptimizerKind::Adamw), 16_000);
        assert_eq!(floor(Precision::Bf16, OptimizerKind::Adamw), 8_000);
        assert_eq!(floor(Precision::MixedBf16, OptimizerKind::Adamw), 16_000);
        assert_eq!(floor(Precision::F16, OptimizerKind::Sgd), 4_000);
        assert_eq!(floor_bytes(u64::MAX, Precision::F32, OptimizerKind::Adamw), u64::MAX);
    }

    #[test]
    fn every_family_of_the_registry_has_rows_that_can_be_counted() {
        let registry = Registry::builtin();
        for name in registry.names() {
            let rows = rows(registry.get(name).unwrap(), |parameters| parameters).unwrap();
            assert!(!rows.is_empty());
            for row in rows {
                assert!(row.parameters.is_some_and(|count| count > 0) && row.input.is_some(), "{row:?}");
            }
        }
    }

    #[test]
    fn counts_are_written_as_papers_do() {
        assert_eq!(millions(124_439_808), "124.4 M");
        assert_eq!(millions(6_738_415_616), "6.74 B");
    }
}

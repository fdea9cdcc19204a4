//! Checks of a plan against what this binary knows: its model families, and data that can be opened.
//!
//! The other stages look at the file alone; this one asks the rooms that will use it, and puts their answers to the
//! place in the file that they are about.

use super::plan::{DevicesPlan, Plan, Subject};
use super::{ConfigError, Loaded};
use crate::data::{self, DataError, SampleSize};
use crate::model::{ModelError, Registry, Weights};
use crate::search::{Space, shape_probes};
use crate::text::with_causes;
use crate::train::BatchNorm;
use crate::trial::command::{CommandSpec, Placeholder};
use crate::trial::launcher::LauncherSpec;
use crate::units::plural;

impl Loaded {
    /// Refuses a plan whose model or data this binary cannot build.
    pub fn validate(&self, registry: &Registry) -> Result<(), ConfigError> {
        let plan = &self.plan;
        if Space::new(plan).pairs().is_empty() {
            let target = plan.target.batch_size;
            return Err(self.source.error_at(
                "search.accumulation_steps",
                format!("no micro-batch size times these steps gives the target of `{target}` (hint: `auto`, or set `target.tolerance`)"),
            ));
        }
        let Subject::Model(model) = &plan.subject else { return Ok(()) };
        let input = registry.input(model).and_then(|input| {
            // Minutes of a study would pass before a build found out.
            model.weights.as_deref().map_or(Ok(()), |path| Weights::open(path, &[]).map(drop))?;
            registry.check_sides(model, &input, plan.data.image_size)?;
            Ok(input)
        });
        let input = input.map_err(|error| {
            let key = match &error {
                ModelError::UnknownFamily { .. } => "model.family".to_owned(),
                ModelError::UnknownPreset { .. } => "model.preset".to_owned(),
                ModelError::Invalid { field, .. } => format!("model.{field}"),
                ModelError::PrecisionNotSupported { .. } => "train.precision".to_owned(),
                ModelError::SyncWithoutReplicas => "train.batch_norm".to_owned(),
                ModelError::Weights { .. } => "model.weights".to_owned(),
                ModelError::Config { .. } => "model.config".to_owned(),
                ModelError::OneImageSize { .. } => "data.image_size".to_owned(),
                ModelError::Candle(_) => "model".to_owned(),
            };
            self.source.error_at(&key, with_causes(&error))
        })?;
        match data::open(&plan.data, &input, plan.seed) {
            Ok(_) => Ok(()),
            Err(error) => {
                let key = match &error {
                    DataError::Mismatch { .. } | DataError::ImageShape { .. } => "data.source",
                    DataError::LengthsOfFeatures
                    | DataError::InvalidLengths { .. }
                    | DataError::SequenceTooLong { .. } => "data.sequence_length",
                    DataError::SidesOfTokens
                    | DataError::SidesOfFeatures { .. }
                    | DataError::OtherSide { .. }
                    | DataError::InvalidSides
                    | DataError::OneSide { .. } => "data.image_size",
                    DataError::Tokenizer { .. } => "data.tokenizer",
                    _ => "data.path",
                };
                Err(self.source.error_at(key, with_causes(&error)))
            }
        }
    }

    /// What is allowed and still worth a word.
    pub fn notes(&self, registry: &Registry) -> Vec<String> {
        let space = Space::new(&self.plan);
        let command = self.plan.command();
        let of_command = [
            command.and_then(batch_size_note),
            command.and_then(|command| sample_size_note(&self.plan, command)),
            command.and_then(|command| replicas_note(command, self.plan.target.replicas)),
        ];
        let of_launcher = self.plan.launcher.as_ref().and_then(launcher_note);
        let of_target = near_targets_note(&self.plan.target, &space);
        let of_model = batch_norm_note(&self.plan, registry);
        let of_devices = [of_launcher, idle_note(&self.plan)];
        let single = of_target.into_iter().chain(of_model);
        single.chain(of_command.into_iter().flatten()).chain(of_devices.into_iter().flatten()).collect()
    }
}

/// What a launcher cannot do as it is written.
fn launcher_note(launcher: &LauncherSpec) -> Option<String> {
    launcher.has_nameless_jobs().then(|| {
        "`launcher.command` does not hold `{trial}`, so a job that is still pending cannot be cancelled by its name (hint: \
         add `\"--job-name={trial}\"`)"
            .to_owned()
    })
}

/// What is left over where every trial takes as many as there are replicas.
fn idle_note(plan: &Plan) -> Option<String> {
    let replicas = plan.target.replicas.max(1);
    let (count, what) = match (&plan.launcher, &plan.devices) {
        (Some(launcher), _) if launcher.workers > 1 => (launcher.workers, "worker"),
        (None, DevicesPlan::Listed(devices)) => (devices.len(), "device"),
        _ => return None,
    };
    let (all, idle) = (plural(count, what), count % replicas);
    let run = if idle == 1 { "runs" } else { "run" };
    (idle > 0).then(|| match count / replicas {
        0 => format!("a trial takes {replicas} {what}s (`target.replicas`), more than {all}: one runs at a time"),
        _ => format!("{idle} of {all} {run} nothing: a trial takes {replicas} (`target.replicas`)"),
    })
}

/// A model without batch normalisation has no statistics to be frozen or shared.
fn batch_norm_note(plan: &Plan, registry: &Registry) -> Option<String> {
    let Subject::Model(model) = &plan.subject else { return None };
    let family = registry.get(&model.family).ok()?;
    (plan.train.batch_norm != BatchNorm::Train && !family.has_batch_norm()).then(|| {
        let name = family.name();
        format!("`train.batch_norm` does nothing: models of family `{name}` have no batch normalisation")
    })
}

/// A program that is not told a length or a side cannot be probed at one.
fn sample_size_note(plan: &Plan, command: &CommandSpec) -> Option<String> {
    let (_, size) = shape_probes::shapes(&plan.data).ok()?.first().copied()?;
    let placeholder = Placeholder::of_sample_size(size);
    (plan.safety.horizon_steps > 0 && !command.holds(placeholder)).then(|| {
        let name = placeholder.name();
        let hint = match size {
            SampleSize::Tokens(_) => "have the program pad every batch to that length where it is not 0",
            SampleSize::Side(_) => "have the program give the images of every batch that side where it is not 0",
        };
        format!("`command.run` does not hold `{{{name}}}`, so the whole run is not forecast (hint: {hint})")
    })
}

/// A program that is not told the batch size runs the same one in every trial, unless it asks; its report shows that.
fn batch_size_note(command: &CommandSpec) -> Option<String> {
    (!command.holds(Placeholder::BatchSize)).then(|| {
        "`command.run` does not hold `{batch_size}`: the program has to read TUNE_BATCH_SIZE from its environment, and to \
         report, or its answer stays `unverified`"
            .to_owned()
    })
}

/// A launcher that is not told how many ranks to start starts always as many.
fn replicas_note(command: &CommandSpec, replicas: usize) -> Option<String> {
    (replicas > 1 && !command.holds(Placeholder::Replicas)).then(|| {
        format!(
            "`command.run` does not hold `{{replicas}}`: the program has to start {replicas} ranks by itself, or to read \
             TUNE_REPLICAS from its environment"
        )
    })
}

/// A target such as a prime has no useful divisors: either the whole batch fits, or next to nothing does.
fn near_targets_note(target: &super::plan::TargetPlan, space: &Space) -> Option<String> {
    let per_replica = target.batch_size / target.replicas.max(1);
    let useful = |pair: &crate::search::space::Pair| pair.batch_size < per_replica && pair.batch_size > per_replica / 8;
    // Where `search.accumulation_steps` leaves out what would divide, the target is not to blame.
    let has_divisor = (per_replica / 8 + 1..per_replica).any(|batch| per_replica.is_multiple_of(batch));
    if per_replica < 8 || has_divisor || space.pairs().iter().any(useful) {
        return None;
    }
    let divisible = |batch: &usize| batch.is_multiple_of(4 * target.replicas);
    let below = (1..target.batch_size).rev().find(divisible);
    let above = (target.batch_size + 1..=2 * target.batch_size).find(divisible);
    let near: Vec<String> = below.into_iter().chain(above).map(|batch| batch.to_string()).collect();
    Some(format!(
        "a target of {} has no divisor above an eighth of it, so a smaller micro-batch would be tiny (hint: {} divide well, or set `target.tolerance`)",
        target.batch_size,
        near.join(" and ")
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn load(text: &str) -> Loaded {
        super::super::parse_text(Path::new("model.yaml"), text, &[]).unwrap()
    }

    #[test]
    fn an_unknown_family_points_at_its_key() {
        let loaded = load("model:\n  family: gtp\ntarget: {batch_size: 8}\n");
        let message = loaded.validate(&Registry::builtin()).unwrap_err().to_string();
        assert!(message.starts_with("model.yaml:2:11: model.family: "), "{message}");
    }

    #[test]
    fn images_for_a_model_of_tokens_point_at_the_source() {
        for source in ["image_folder", "cifar10"] {
            let loaded = load(&format!(
                "model: {{family: gpt, preset: nano}}\ndata: {{source: {source}, path: .}}\ntarget: {{batch_size: 8}}\n"
            ));
            let message = loaded.validate(&Registry::builtin()).unwrap_err().to_string();
            let expected = format!(
                "model.yaml:2:16: data.source: `data.source: {source}` gives images, and the model takes tokens"
            );
            assert_eq!(message, expected);
        }
    }

    #[test]
    fn lengths_beyond_the_preset_s_point_at_the_lengths() {
        let loaded = load(
            "model: {family: gpt, preset: nano}\ndata: {sequence_length: {min: 1, max: 100000}}\ntarget: {batch_size: 8}\n",
        );
        let message = loaded.validate(&Registry::builtin()).unwrap_err().to_string();
        assert!(message.starts_with("model.yaml:2:25: data.sequence_length: "), "{message}");
    }

    #[test]
    fn images_of_a_side_that_the_model_does_not_take_point_at_the_side() {
        let message = |family: &str, size: &str| {
            let model = format!("model: {{family: {family}, preset: nano}}\n");
            let loaded = load(&format!("{model}data: {{image_size: {size}}}\ntarget: {{batch_size: 8}}\n"));
            loaded.validate(&Registry::builtin()).map_err(|error| error.to_string())
        };
        let range = "{min: 32, max: 96}";
        assert_eq!((message("resnet", range), message("resnet", "32"), message("vit", "32")), (Ok(()), Ok(()), Ok(())));
        for (family, size, said) in [
            ("vit", range, "models of family `vit` take images of one side, that of `model.image_size` (hint: "),
            ("resnet", "64", "images of 64 × 64 pixels do not fit the model, which takes shape [3, 32, 32] (hint: "),
            ("gpt", range, "`data.image_size` is for images, and the model takes tokens"),
            ("gpt", "64", "`data.image_size` is for images, and the model takes tokens"),
        ] {
            let message = message(family, size).unwrap_err();
            assert!(message.starts_with(&format!("model.yaml:2:20: data.image_size: {said}")), "{message}");
        }
    }

    #[test]
    fn weights_that_no_build_could_read_point_at_their_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, "no header").unwrap();
        let model = format!("model:\n  family: gpt\n  preset: nano\n  weights: {}\n", path.display());
        let loaded = load(&format!("{model}target: {{batch_size: 8}}\n"));
        let message = loaded.validate(&Registry::builtin()).unwrap_err().to_string();
        assert!(message.starts_with("model.yaml:4:12: model.weights: cannot read"), "{message}");
    }

    #[test]
    fn what_is_left_over_by_groups_of_replicas_gets_a_note() {
        let notes = |replicas: usize, rest: &str| {
            let model = "model: {family: gpt, preset: nano}\n";
            load(&format!("{model}target: {{batch_size: 64, replicas: {replicas}, tolerance: 50%}}\n{rest}\n"))
                .notes(&Registry::builtin())
        };
        let three = "devices: [cpu, cpu, cpu]";
        assert_eq!(notes(2, three), ["1 of 3 devices runs nothing: a trial takes 2 (`target.replicas`)"]);
        assert_eq!([notes(3, three), notes(1, three), notes(2, "device: cpu")].concat(), [""; 0]);
        let workers = |workers: usize| format!("launcher: {{command: [ssh, node7], workers: {workers}}}");
        assert_eq!(notes(4, &workers(6)), ["2 of 6 workers run nothing: a trial takes 4 (`target.replicas`)"]);
        let few = "a trial takes 4 workers (`target.replicas`), more than 3 workers: one runs at a time";
        assert_eq!(notes(4, &workers(3)), [few]);
        assert_eq!(notes(4, &workers(1)), [""; 0]);
    }

    #[test]
    fn a_target_without_divisors_gets_a_note_and_one_whose_divisors_are_left_out_does_not() {
        let notes = |batch_size: usize, steps: &str| {
            let model = "model: {family: gpt, preset: nano}\n";
            load(&format!("{model}target: {{batch_size: {batch_size}}}\nsearch: {{accumulation_steps: {steps}}}\n"))
                .notes(&Registry::builtin())
        };
        let [prime] = notes(61, "auto").try_into().unwrap();
        assert!(prime.contains("no divisor above an eighth of it") && prime.contains("60 and 64 divide"), "{prime}");
        assert_eq!([notes(64, "auto"), notes(64, "[1]"), notes(7, "auto")].concat(), [""; 0]);
    }

    #[test]
    fn a_launcher_that_is_not_told_how_many_ranks_to_start_gets_a_note() {
        let notes = |run: &str| {
            load(&format!("command: {{run: [{run}]}}\ntarget: {{batch_size: 64, replicas: 2}}\n"))
                .notes(&Registry::builtin())
        };
        assert_eq!(notes("torchrun, \"--nproc-per-node={replicas}\", \"{batch_size}\""), [""; 0]);
        let said = notes("torchrun, \"{batch_size}\"");
        assert!(said.len() == 1 && said[0].contains("start 2 ranks by itself"), "{said:?}");
    }

    #[test]
    fn accumulation_that_never_meets_the_target_is_refused() {
        let loaded =
            load("model: {family: gpt, preset: nano}\ntarget: {batch_size: 4}\nsearch: {accumulation_steps: [3]}\n");
        let message = loaded.validate(&Registry::builtin()).unwrap_err().to_string();
        assert!(message.contains("gives the target of `4`"), "{message}");
    }

    #[test]
    fn a_program_that_is_not_told_the_length_or_the_side_gets_a_note_where_it_varies() {
        let notes = |options: &str, data: &str| {
            let run = format!("command: {{run: [train, \"{{batch_size}}\"{options}]}}\n");
            load(&format!("{run}target: {{batch_size: 8}}\n{data}")).notes(&Registry::builtin())
        };
        for (key, range) in [("sequence_length", "{min: 16, max: 128}"), ("image_size", "{min: 64, max: 320}")] {
            let varying = format!("data: {{{key}: {range}}}\n");
            let said = notes("", &varying);
            assert!(
                said[0].starts_with(&format!("`command.run` does not hold `{{{key}}}`, so the whole run")),
                "{said:?}"
            );
            assert!(notes(&format!(", \"{{{key}}}\""), &varying).is_empty());
        }
        assert!(notes("", "").is_empty());
    }

    #[test]
    fn batch_norm_of_a_model_that_has_none_gets_a_note() {
        let notes = |family: &str, batch_norm: &str, replicas: usize| {
            let model = format!("model: {{family: {family}, preset: nano}}\ntrain: {{batch_norm: {batch_norm}}}\n");
            load(&format!("{model}target: {{batch_size: 8, replicas: {replicas}}}\n")).notes(&Registry::builtin())
        };
        let said = notes("vit", "frozen", 1);
        assert!(
            said.len() == 1 && said[0].contains("`train.batch_norm` does nothing: models of family `vit`"),
            "{said:?}"
        );
        assert_eq!(notes("gpt", "sync", 2).len(), 1);
        assert_eq!([notes("gpt", "train", 1), notes("resnet", "frozen", 1)], [const { Vec::<String>::new() }; 2]);
    }

    #[test]
    fn a_prime_target_gets_a_note_that_names_better_ones() {
        let loaded = load("model: {family: gpt, preset: nano}\ntarget: {batch_size: 61}\n");
        let notes = loaded.notes(&Registry::builtin());
        assert!(notes[0].contains("60 and 64"), "{notes:?}");
        assert!(
            load("model: {family: gpt, preset: nano}\ntarget: {batch_size: 64}\n")
                .notes(&Registry::builtin())
                .is_empty()
        );
    }
}

//! What people get to see when a configuration is wrong, one snapshot a bad file (`tests/config/*.yaml`), and that no
//! text whatever makes the configuration room panic.
//!
//! To add a bad file: put it into `tests/config/`, run `INSTA_UPDATE=always cargo test --test config_errors`, and read
//! the new snapshot before it is committed.

use std::path::{Path, PathBuf};

use batchtune::config::{self, Colours, ConfigError, Plan, ProblemKind};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const REFERENCE: &str = include_str!("../configs/reference.yaml");
const SMALL: &str = "model: {family: gpt, preset: nano}\ntarget: {batch_size: 16}\n";

fn overrides(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn load(path: &str) -> Result<Plan, ConfigError> {
    config::load(Path::new(path), &[]).map(|loaded| loaded.plan)
}

fn parse(text: &str, set: &[&str]) -> Result<Plan, ConfigError> {
    config::parse_text(Path::new("configs/model.yaml"), text, &overrides(set)).map(|loaded| loaded.plan)
}

/// Both forms of an error, without the place of this checkout.
fn shown(error: &ConfigError) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    // Wide enough that no line wraps: where one does would depend on the length of the path.
    format!("{error}\n\n{}", error.render(Colours::Off, 4000)).replace(root, "[root]")
}

/// Snapshots stand beside the bad files and are called like them.
fn snapshots() -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("config/snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings
}

fn bad_files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir("tests/config")
        .expect("the folder of bad files")
        .map(|entry| entry.expect("an entry of it").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    files
}

#[test]
fn every_bad_file_is_told_all_that_is_wrong_with_it_and_where() {
    let files = bad_files();
    assert!(files.len() >= 40, "only {} files", files.len());
    snapshots().bind(|| {
        for file in files {
            let name = file.file_stem().unwrap().to_str().unwrap();
            let error = config::load(&file, &[]).expect_err(name);
            insta::assert_snapshot!(name, shown(&error));
        }
    });
}

#[test]
fn no_message_carries_control_characters_to_the_terminal() {
    for file in bad_files() {
        let error = config::load(&file, &[]).unwrap_err();
        let printed = shown(&error);
        let hostile = printed.chars().find(|character| character.is_control() && *character != '\n');
        assert_eq!(hostile, None, "{}", file.display());
    }
}

#[test]
fn files_that_cannot_be_read_are_refused_by_name() {
    assert_eq!(load("no/such/model.yaml").unwrap_err().to_string(), "cannot read `no/such/model.yaml`");
    assert!(load("no/such/model.yaml").unwrap_err().render(Colours::Off, 80).contains("No such file"));
    assert!(load("configs").unwrap_err().to_string().contains("is a directory"));

    let large = tempfile::NamedTempFile::new().unwrap();
    large.as_file().set_len(100 << 20).unwrap();
    let error = config::load(large.path(), &[]).unwrap_err();
    assert!(error.to_string().contains("larger than 1 MiB"), "{error}");
}

#[test]
fn an_override_is_checked_like_the_file_and_named_as_its_place() {
    let error = |set: &[&str]| parse(SMALL, set).unwrap_err().to_string();
    assert_eq!(
        error(&["target.batch_size=0"]),
        "--set target.batch_size=0: target.batch_size: invalid value: integer `0`, expected a whole number from 1 to \
         1000000, such as `8`"
    );
    assert!(error(&["serach.strategy=grid"]).contains("(hint: did you mean `search`?)"));
    assert!(error(&["search.loader_workers=[0, 0]"]).contains("`0` twice"));
    assert!(error(&["seed"]).contains("no `=` in it"));
    assert!(error(&["target.batch_size=", "seed=x"]).lines().count() == 2);
    let error = parse(SMALL, &["search.batch_size.start=150%", "model=gpt"]).unwrap_err();
    snapshots().bind(|| insta::assert_snapshot!("set_overrides", shown(&error)));
}

#[test]
fn an_override_wins_over_the_file_and_the_last_one_over_the_first() {
    let plan = parse(SMALL, &["target.batch_size=32", "memory.limit=1GiB", "memory.limit=auto"]).unwrap();
    assert_eq!(plan.target.batch_size, 32);
    assert_eq!(plan, parse(SMALL, &["target.batch_size=32"]).unwrap());
    assert_eq!(parse(SMALL, &["search.strategy=grid", "search.strategy="]).unwrap(), parse(SMALL, &[]).unwrap());
}

#[test]
fn a_path_is_relative_to_the_file_and_on_the_command_line_to_the_working_directory() {
    let text = std::fs::canonicalize("examples/text").unwrap();
    let quickstart = config::load(Path::new("configs/quickstart.yaml"), &[]).unwrap().plan;
    assert_eq!(quickstart.data.path.as_deref(), Some(text.as_path()));
    let set = overrides(&["data.path=examples/text/gpl-3.txt"]);
    let plan = config::load(Path::new("configs/quickstart.yaml"), &set).unwrap().plan;
    assert_eq!(plan.data.path, Some(text.join("gpl-3.txt")));
}

#[test]
fn findings_of_other_rooms_point_into_the_file_or_at_the_override() {
    let quickstart = Path::new("configs/quickstart.yaml");
    let source = config::load(quickstart, &[]).unwrap().source;
    let error = source.error_at("model.preset", "unknown preset `nano`");
    let text = std::fs::read_to_string(quickstart).unwrap();
    let line = text.lines().position(|line| line.starts_with("  preset:")).unwrap() + 1;
    assert_eq!(error.to_string(), format!("configs/quickstart.yaml:{line}:11: model.preset: unknown preset `nano`"));
    assert_eq!(error.problems()[0].kind(), ProblemKind::Outside);

    let source = config::load(quickstart, &overrides(&["model.preset=huge"])).unwrap().source;
    assert!(source.error_at("model.preset", "unknown").to_string().starts_with("--set model.preset=huge: "));
}

#[test]
fn the_reference_file_means_what_a_file_without_its_optional_keys_means() {
    assert_eq!(parse(REFERENCE, &[]).unwrap(), parse(SMALL, &[]).unwrap());
}

/// The text of a section: its line and the more deeply indented ones after it, commented out or not.
fn section_text<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let begins = |line: &&str| {
        let line = line.strip_prefix("# ").unwrap_or(line);
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':'))
    };
    let mut lines: Vec<&str> = Vec::new();
    for (number, _) in text.lines().enumerate().filter(|(_, line)| begins(line)) {
        lines.extend(text.lines().skip(number + 1).take_while(|line| line.starts_with("  ")));
    }
    lines
}

fn has_described_key(lines: &[&str], key: &str) -> bool {
    lines.iter().any(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix("# ").unwrap_or(line);
        line.strip_prefix(key).is_some_and(|rest| rest.starts_with(':'))
    })
}

#[test]
fn the_reference_file_has_every_key_of_the_schema_and_no_other() {
    let schema = config::json_schema();
    let sections = schema["properties"].as_object().unwrap();
    let top: Vec<&str> = REFERENCE.lines().filter(|line| !line.starts_with("  ")).collect();
    let mut keys = 0;
    for (name, property) in sections {
        assert!(has_described_key(&top, name), "`{name}` is not in configs/reference.yaml");
        let definition = property["$ref"]
            .as_str()
            .or_else(|| property["anyOf"][0]["$ref"].as_str())
            .and_then(|reference| schema.pointer(reference.trim_start_matches('#')));
        let Some(properties) = definition.and_then(|definition| definition["properties"].as_object()) else { continue };
        let lines = section_text(REFERENCE, name);
        for key in properties.keys() {
            keys += 1;
            assert!(has_described_key(&lines, key), "`{name}.{key}` is not in configs/reference.yaml");
        }
    }
    // That the walk found the sections at all; that there is no other key, the loading of the file shows.
    assert!(keys >= 45, "only {keys} keys in the schema's sections");
    let (parsed, defaults) = (parse(REFERENCE, &[]).unwrap(), parse(SMALL, &[]).unwrap());
    assert_eq!(parsed.sha256(), defaults.sha256());
}

#[test]
fn of_a_launcher_the_command_alone_makes_another_study() {
    let sha256 = |launcher: &str| parse(SMALL, &[&format!("launcher={launcher}")]).unwrap().sha256();
    let slurm = sha256("slurm");
    assert_eq!(sha256("{command: slurm, start_timeout: 2h, workers: 4, cancel: [scancel, \"{SLURM_JOB_ID}\"]}"), slurm);
    assert_ne!(sha256("{command: [srun]}"), slurm);
    assert_ne!(sha256("null"), slurm);
    assert_eq!(sha256("null"), parse(SMALL, &[]).unwrap().sha256());
}

#[test]
fn a_launcher_survives_printing() {
    for launcher in
        ["slurm", "{command: slurm, workers: 2}", "{command: [ssh, n1, \"{{x}}\"], cancel: [ssh, n1, \"kill {pid}\"]}"]
    {
        let plan = parse(SMALL, &[&format!("launcher={launcher}")]).unwrap();
        assert_eq!(parse(&plan.to_yaml().unwrap(), &[]).unwrap(), plan, "{launcher}");
    }
    assert!(parse(SMALL, &["launcher=slurm"]).unwrap().to_yaml().unwrap().contains("\nlauncher: slurm\n"));
}

#[test]
fn commented_examples_in_the_reference_file_are_true() {
    for set in [
        "name=my-study",
        "model.sequence_length=64",
        "model.layers=4",
        "model.options={dropout: 0.1}",
        "data.sequence_length={min: 64, max: 512, distribution: uniform}",
        "launcher=slurm",
        "launcher={command: slurm, start_timeout: 1h}",
        "launcher={command: [srun, --ntasks=1, \"--gres=gpu:1\", \"--job-name={trial}\"], workers: 2, start_timeout: 10m, cancel: [scancel, --quiet, \"{SLURM_JOB_ID}\"]}",
    ] {
        let unsupported = |problem: &config::Problem| problem.kind() == ProblemKind::NotSupported;
        match parse(REFERENCE, &[set]) {
            Ok(_) => {}
            Err(error) => assert!(error.problems().iter().all(unsupported), "{set}: {error}"),
        }
    }
}

#[test]
fn every_configuration_that_ships_is_sound_and_prints_as_a_file_that_gives_the_same_plan() {
    for name in [
        "quickstart",
        "multi-scale",
        "gpt2-medium",
        "llama",
        "llama-2-7b",
        "bert",
        "resnet",
        "vit",
        "slurm",
        "reference",
    ] {
        let plan = load(&format!("configs/{name}.yaml")).unwrap_or_else(|error| panic!("{error}"));
        let printed = plan.to_yaml().unwrap();
        // From another directory: what is printed holds absolute paths.
        let again = config::parse_text(Path::new("/elsewhere/model.yaml"), &printed, &[]);
        assert_eq!(again.unwrap_or_else(|error| panic!("{error}\n{printed}")).plan, plan, "{printed}");
    }
}

#[test]
fn a_printed_plan_shows_every_default() {
    let printed =
        parse(SMALL, &["name=off", "memory.limit=1536MiB", "target.tolerance=2.5%"]).unwrap().to_yaml().unwrap();
    snapshots().bind(|| insta::assert_snapshot!("printed_plan", printed));
}

#[test]
fn the_hash_forgets_the_budget_and_nothing_else() {
    let hash = |set: &[&str]| parse(SMALL, set).unwrap().sha256();
    assert_eq!(hash(&[]).len(), 64);
    assert_eq!(hash(&[]), hash(&["budget.time=5h", "budget.trials=7"]));
    for set in ["seed=1", "target.batch_size=32", "memory.limit=1GiB", "trial.steps=11", "model.options={a: 1}"] {
        assert_ne!(hash(&[]), hash(&[set]), "{set}");
    }
    assert_eq!(hash(&["model.options={a: 1, b: 2}"]), hash(&["model.options={b: 2, a: 1}"]));
}

#[test]
fn the_ladder_is_resolved_in_samples_per_device() {
    let ladder = |set: &[&str]| {
        let ladder = parse(SMALL, set).unwrap().search.batch_size;
        (ladder.start, ladder.max, ladder.step)
    };
    assert_eq!(ladder(&[]), (8, 16, 2));
    assert_eq!(ladder(&["target.batch_size=100"]), (50, 100, 12));
    assert_eq!(ladder(&["target.batch_size=5"]), (3, 5, 1));
    assert_eq!(ladder(&["target.batch_size=1"]), (1, 1, 1));
    assert_eq!(ladder(&["search.batch_size={start: 4, max: 75%, step: 25%}"]), (4, 12, 4));
}

#[test]
fn a_hostile_megabyte_is_refused_with_a_bounded_message() {
    let megabyte = |unit: &str| unit.repeat((1 << 20) / unit.len());
    for text in [
        megabyte("["),
        megabyte("a: "),
        megabyte("a: 1\n"),
        megabyte("? "),
        megabyte("- "),
        megabyte("{"),
        megabyte("'"),
        megabyte("\""),
        megabyte("&a "),
        megabyte("*a "),
        megabyte("!"),
        megabyte("#"),
        megabyte("%"),
        megabyte("---\n"),
        megabyte("|\n"),
        megabyte("é: {}\n"),
        megabyte("x"),
        format!("model: {{family: {}}}", megabyte("x")),
        format!("{SMALL}{}", megabyte("key: &a [*a]\n")),
        format!("{SMALL}{}: 1\n", megabyte("long")),
    ] {
        let error = parse(&text, &[]).unwrap_err();
        let printed = shown(&error);
        assert!(printed.len() < 200_000, "{} bytes for {:?}", printed.len(), &text[..12]);
    }
}

/// Pieces of YAML, sane and mad, that a mutation may write over a part of the reference file.
const PIECES: [&str; 32] = [
    "0", "-1", "1e999", ".nan", "null", "~", "true", "auto", "150%", "0%", "40GiB", "120s", "[]", "[1, 1]", "{}",
    "{a: b}", "{", "]", ": ", "- ", "\n", "\n  ", "&a ", "*a", "!!int ", "\"", "'", "|\n", "---\n", "\u{feff}", "é",
    "\t",
];

/// One mutation: where (in thousandths of the text), how much is replaced, and by what.
fn mutation() -> impl Strategy<Value = (usize, usize, usize)> {
    (0..1000_usize, 0..24_usize, 0..PIECES.len())
}

fn mutated(text: &str, mutations: &[(usize, usize, usize)]) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    for (place, removed, piece) in mutations {
        let start = characters.len() * place / 1000;
        let end = (start + removed).min(characters.len());
        characters.splice(start..end, PIECES[*piece].chars());
    }
    characters.into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/config/regressions.txt"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_mutation_of_the_reference_file_panics_and_what_is_sound_survives_printing(
        mutations in prop::collection::vec(mutation(), 1..6),
    ) {
        let text = mutated(REFERENCE, &mutations);
        match parse(&text, &[]) {
            Ok(plan) => {
                let printed = plan.to_yaml().unwrap();
                prop_assert_eq!(parse(&printed, &[]).map_err(|error| error.to_string()), Ok(plan));
            }
            Err(error) => {
                prop_assert!(!error.problems().is_empty());
                prop_assert!(!shown(&error).is_empty());
            }
        }
    }

    #[test]
    fn no_text_whatever_panics(text in "(?s).{0,200}", set in "[a-z.]{0,12}=?.{0,20}") {
        let _ = parse(&text, &[&set]).map_err(|error| shown(&error));
        let _ = parse(SMALL, &[&set]).map_err(|error| shown(&error));
    }
}

//! Why there is no export.

/// Why a recommendation is not exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// It was not proved by a soak.
    #[error(
        "the recommendation's status is `{0}`, and only `safe` ones are exported (hint: run `tune --config …` to its end, with a larger `--budget` if it ran out)"
    )]
    NotSafe(&'static str),
    /// It was made for another configuration.
    #[error(
        "the recommendation is stale: made for configuration {found}, and this one is {expected} (hint: run `tune --config …` again)"
    )]
    Stale {
        /// The start of the given configuration's hash.
        expected: String,
        /// The start of the recommendation's.
        found: String,
    },
    /// The format cannot hold a value.
    #[error("`{field}` holds a character that cannot be exported")]
    Unrepresentable {
        /// The field.
        field: &'static str,
    },
    /// The format has no place for a value, and the launch would not be the one that was measured without it.
    #[error("`{field}: {value}` has no place in {format} (hint: {hint})")]
    NoPlace {
        /// The field of the recommendation.
        field: &'static str,
        /// What it holds.
        value: String,
        /// The format, for people.
        format: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// The format has nothing to merge.
    #[error("`--into` goes with `--format deepspeed`, and this is `{format}`")]
    NothingToMerge {
        /// The format that was asked for.
        format: String,
    },
    /// The file to merge into is of another shape.
    #[error("`{key}` of the file to merge into is not an object (hint: is it a DeepSpeed configuration?)")]
    NoObject {
        /// Where.
        key: String,
    },
    /// The file to merge into is no JSON.
    #[error("`{}` is not JSON: line {line} column {column}", path.display())]
    NotJson {
        /// The file.
        path: std::path::PathBuf,
        /// Where it stops being JSON.
        line: usize,
        /// Where in that line.
        column: usize,
    },
    /// The file to merge into goes deeper than is read.
    #[error("`{}` is nested too deeply: line {line} column {column}", path.display())]
    TooDeep {
        /// The file.
        path: std::path::PathBuf,
        /// Where that is found.
        line: usize,
        /// Where in that line.
        column: usize,
    },
    /// The file to merge into has a number beyond every type.
    #[error("`{}` has a number that is too large: line {line} column {column}", path.display())]
    TooLarge {
        /// The file.
        path: std::path::PathBuf,
        /// Where.
        line: usize,
        /// Where in that line.
        column: usize,
    },
    /// A number of the file to merge into has more digits than would come out again.
    #[error(
        "the number at `{key}` of the file to merge into cannot be kept as it is (hint: write it with at most 15 digits)"
    )]
    NumberLost {
        /// Where.
        key: String,
    },
    /// The file to merge into does not say which of two values it means.
    #[error("the file to merge into has `{key}` twice (hint: remove one)")]
    Twice {
        /// Where.
        key: String,
    },
    /// The recommendation is for another number of replicas than its configuration.
    #[error(
        "the recommendation is for {found} replicas, and the configuration's `target.replicas` is {expected} (hint: was `replicas` edited?)"
    )]
    Replicas {
        /// What the configuration says.
        expected: usize,
        /// What the recommendation's figures come to.
        found: usize,
    },
    /// A value that JSON cannot hold.
    #[error("cannot write the recommendation as JSON")]
    NoJson,
    /// The output would replace the input.
    #[error("`{}` is the recommendation itself (hint: give `--output` another name)", path.display())]
    OutputIsInput {
        /// The file.
        path: std::path::PathBuf,
    },
}

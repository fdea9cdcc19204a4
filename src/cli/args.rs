//! The arguments of every command, as `--help` says them.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::output::PageArg;
use super::values::{at_least_one, limit};
use super::{long_run, models, watch};
use crate::memory::policy::Backend;
use crate::report::export::Format;
use crate::units::Bytes;

/// The examples under `tune --help`.
const EXAMPLES: &str = "\
Examples:
  Find the fastest safe configuration and write recommendation.yaml:
    tune --config configs/quickstart.yaml

  Try what a 40 GiB card would take, for at most five minutes:
    tune --config model.yaml --limit 40GiB --budget 5m

  See the resolved plan without running anything:
    tune check --config model.yaml --set target.batch_size=128

  Launch with the answer (two statements, so that a failure stops the script):
    tune_env=$(tune export --format env recommendation.yaml)
    eval \"$tune_env\"

Exit codes: 0 safe, 2 usage or configuration, 3 no safe configuration, 4 device unavailable,
5 the budget ended first, or a rank was never seen, 6 the workload fails whatever the size,
130 interrupted, 1 a bug.";

/// The examples under `tune forecast --help`.
const FORECAST_EXAMPLES: &str = "\
Examples:
  From recordings at batches of 2 and 3, what larger ones take:
    tune forecast b2.pickle b3.pickle --batches 2,3 --to 8,16,32 --limit 40GiB

  A run of 10,000 steps whose samples have 64 to 512 tokens, and what would do better:
    tune forecast b2t64 b3t64 b2t96 b3t96 b2t160 b4t128 b3t200 --batches 2,3,2,3,2,4,3 \\
      --lengths 64,64,96,96,160,128,200 --to 8 --run --run-lengths 64:512 --limit 40GiB --tune";

/// Finds the fastest batch configuration that is shown to be safe, by running real training steps before the launch.
#[derive(Debug, Parser)]
#[command(name = "tune", version, after_long_help = EXAMPLES, after_help = "See `tune --help` for examples.")]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Option<Command>,
    #[command(flatten)]
    pub(super) search: SearchArgs,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Print the resolved plan, every default shown; refuse what cannot run
    Check(PlanArgs),
    /// Print a safe recommendation in the form that a launch needs
    Export(ExportArgs),
    /// Compute what any batch size takes, from recordings at two tiny ones
    Forecast(ForecastArgs),
    /// Make the page of a study, or of two side by side
    Report(ReportArgs),
    /// Show what holds the memory in a PyTorch snapshot, a trace or an RMM log
    Inspect(InspectArgs),
    /// Replay a recording under other allocator settings, or rank a set of them
    Replay(ReplayArgs),
    /// Say what an out-of-memory error means, and what to change
    ExplainOom(ExplainOomArgs),
    /// List the model families, their presets, and the least memory that training takes
    Models(ModelsArgs),
    /// Watch a card's memory from outside, for a program that nobody may change
    Watch(watch::WatchArgs),
    /// Look whether this machine is fit for a training run, and say what to change
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the JSON Schema of the configuration file
    Schema,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Run trials for a driver (started by tune itself)
    #[command(hide = true)]
    Worker {
        /// A launcher started it
        #[arg(long)]
        launched: bool,
    },
    /// Become a launcher in a session of its own (started by tune itself)
    #[command(hide = true)]
    Launch {
        /// The launcher and its arguments
        #[arg(required = true, last = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
}

/// Which plan: the file and what the command line changes of it.
#[derive(Clone, Debug, Args)]
pub(super) struct PlanArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", required = true)]
    pub(super) config: Option<PathBuf>,
    #[command(flatten)]
    pub(super) changes: ChangeArgs,
}

impl PlanArgs {
    pub(super) fn path(&self) -> PathBuf {
        self.config.clone().unwrap_or_default()
    }
}

/// What the command line changes of a configuration, which must be given too.
#[derive(Clone, Debug, Args)]
pub(super) struct ChangeArgs {
    /// Where to train: auto, cpu, cuda or cuda:1
    #[arg(long, requires = "config", value_name = "DEVICE")]
    pub(super) device: Option<String>,
    /// What tensors may use: a size such as 40GiB or a share such as 85%
    #[arg(long, requires = "config", value_name = "SIZE")]
    pub(super) limit: Option<String>,
    /// How long the search may take, such as 5m
    #[arg(long, requires = "config", value_name = "TIME")]
    pub(super) budget: Option<String>,
    /// How to search: staged or grid
    #[arg(long, requires = "config", value_name = "STRATEGY")]
    pub(super) strategy: Option<String>,
    /// Change any key of the configuration; may be given several times
    #[arg(long = "set", requires = "config", value_name = "KEY.PATH=VALUE")]
    pub(super) set: Vec<String>,
}

impl ChangeArgs {
    /// The flags as overrides of the file's keys, the named ones after `--set` so that they win.
    pub(super) fn overrides(&self) -> Vec<String> {
        let named = [
            ("device", &self.device),
            ("memory.limit", &self.limit),
            ("budget.time", &self.budget),
            ("search.strategy", &self.strategy),
        ];
        let named = named.iter().filter_map(|(key, value)| value.as_ref().map(|value| format!("{key}={value}")));
        self.set.iter().cloned().chain(named).collect()
    }
}

#[derive(Debug, Args)]
pub(super) struct SearchArgs {
    #[command(flatten)]
    pub(super) plan: PlanArgs,
    /// Where to write the recommendation
    #[arg(long, value_name = "FILE", default_value = "recommendation.yaml")]
    pub(super) output: PathBuf,
    /// Where to keep the journal [default: .tune/NAME]
    #[arg(long, value_name = "DIR")]
    pub(super) study: Option<PathBuf>,
    /// Show which trials would run, and run none
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Go on with the study in --study instead of starting anew
    #[arg(long)]
    pub(super) resume: bool,
    /// Search even if the study in --study has a safe answer for this configuration and device
    #[arg(long, conflicts_with = "resume")]
    pub(super) fresh: bool,
    /// Print every event as a line of JSON on standard output
    #[arg(long, conflicts_with = "quiet")]
    pub(super) json: bool,
    /// Print no progress, only the result and warnings
    #[arg(long, short)]
    pub(super) quiet: bool,
}

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// The recommendation file
    #[arg(value_name = "FILE", default_value = "recommendation.yaml")]
    pub(super) recommendation: PathBuf,
    /// The format
    #[arg(long, value_enum, default_value_t = Format::Env)]
    pub(super) format: Format,
    /// Where to write it, as a whole or not at all [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Merge into this DeepSpeed configuration; - is standard input
    #[arg(long, value_name = "FILE")]
    pub(super) into: Option<PathBuf>,
    /// Refuse a recommendation that was not made for this configuration file
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    #[command(flatten)]
    pub(super) changes: ChangeArgs,
}

#[derive(Debug, Args)]
// What only a whole run has; each of them means one.
#[command(group = clap::ArgGroup::new("whole").args(WHOLE_RUN).multiple(true).conflicts_with_all(["updates", "last_batch"]))]
#[command(after_help = FORECAST_EXAMPLES)]
pub(super) struct ForecastArgs {
    /// Recordings of the same run at different batch sizes: PyTorch snapshots, batchtune traces or RMM logs
    #[arg(required = true, num_args = 2..=16, value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
    /// The batch size of each recording
    #[arg(long, value_name = "B,B,…", value_delimiter = ',', required = true)]
    pub(super) batches: Vec<usize>,
    /// The batch sizes to forecast
    #[arg(long, value_name = "B,B,…", value_delimiter = ',', required = true)]
    pub(super) to: Vec<usize>,
    /// The allocator's settings, as PYTORCH_CUDA_ALLOC_CONF has them; with --run several times, to compare [default: the
    /// recordings' own]
    #[arg(long, value_name = "KEY:VALUE,…")]
    pub(super) conf: Vec<String>,
    /// What the allocator may take from the device, such as 40GiB
    #[arg(long, value_name = "SIZE", value_parser = limit)]
    pub(super) limit: Option<Bytes>,
    /// Forecast a whole run of varying lengths or sides, step by step; the recordings vary in batch size and in these.
    /// Implied by every option that only such a run has, from --steps to --html
    #[arg(long)]
    pub(super) run: bool,
    /// Its steps, rounded up to whole updates as they were recorded [default: 10000]
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    pub(super) steps: Option<usize>,
    /// The length of each recording's samples: the same as --axis length=T,T,…
    #[arg(long, value_name = "T,T,…", value_delimiter = ',')]
    pub(super) lengths: Vec<u64>,
    /// What each recording's samples have on another axis, such as side=64,64,96; up to three times. A side is both sides of
    /// square images, so that its square counts in pixels
    #[arg(long = "axis", value_name = "NAME=V,V,…")]
    pub(super) axes: Vec<long_run::ProbeAxis>,
    /// How long the run's samples are: drawn between two bounds, such as 64:512, or a file with one length a line. Each
    /// batch is padded to its longest
    #[arg(long, value_name = "MIN:MAX|FILE")]
    pub(super) run_lengths: Option<long_run::RunLengths>,
    /// What the run's samples have on an axis, drawn between two bounds, with a third number as its multiples: side=160:320:32
    #[arg(long = "run-axis", value_name = "NAME=MIN:MAX[:STEP]")]
    pub(super) run_axes: Vec<long_run::RunAxis>,
    /// The same from a file for several axes: their names in the first line, then a sample a line, with commas between
    #[arg(long, value_name = "FILE")]
    pub(super) run_shapes: Option<PathBuf>,
    /// Axes of --run-axis that are drawn for each batch rather than for each sample, as training at several scales does
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(super) per_batch: Vec<String>,
    /// Rows are filled up to a multiple of so many tokens, and so on every other axis
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub(super) pad_to: Option<u64>,
    /// Samples come in windows of 50 batches, the longest first; of several axes those with the largest product
    #[arg(long)]
    pub(super) group_by_length: bool,
    /// A batch holds as many samples as fit into so many tokens, or pixels, padding included, and --to of them at most
    #[arg(long, value_name = "N")]
    pub(super) token_budget: Option<u64>,
    /// An evaluation pass after every so many updates, where the recordings have one
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    pub(super) evaluate_every: Option<usize>,
    /// A checkpoint after every so many updates, where the recordings have one
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    pub(super) checkpoint_every: Option<usize>,
    /// Search for settings of the allocator, and for ways to batch, that do better over the whole run. A way with a budget of
    /// tokens has up to four times the samples of --to, and says so
    #[arg(long)]
    pub(super) tune: bool,
    /// The allocator of the whole run; cuda_malloc_async is the driver's pool as candle uses it, which has no --conf
    #[arg(long, value_enum)]
    pub(super) backend: Option<BackendArg>,
    /// Write a page with the series of the whole run [default path: forecast.html]; - is standard output
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "")]
    pub(super) html: Option<PageArg>,
    /// Optimizer steps of the run [default: as recorded]
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    pub(super) updates: Option<usize>,
    /// The size of the epoch's last, smaller batch
    #[arg(long, value_name = "B")]
    pub(super) last_batch: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Options of `tune forecast` that say something of a whole run, and so mean one.
const WHOLE_RUN: [&str; 12] = [
    "run",
    "steps",
    "lengths",
    "run_lengths",
    "pad_to",
    "group_by_length",
    "token_budget",
    "evaluate_every",
    "checkpoint_every",
    "tune",
    "backend",
    "html",
];

impl ForecastArgs {
    /// Whether the forecast is of a whole run, step by step.
    pub(super) fn is_whole_run(&self) -> bool {
        self.run
            || self.steps.is_some()
            || !self.lengths.is_empty()
            || self.run_lengths.is_some()
            || !self.axes.is_empty()
            || !self.run_axes.is_empty()
            || self.run_shapes.is_some()
            || !self.per_batch.is_empty()
            || self.pad_to.is_some()
            || self.group_by_length
            || self.token_budget.is_some()
            || self.evaluate_every.is_some()
            || self.checkpoint_every.is_some()
            || self.tune
            || self.backend.is_some()
            || self.html.is_some()
    }
}

#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    /// A snapshot of `torch.cuda.memory._dump_snapshot`, a batchtune trace or an RMM log
    pub(super) file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Write the live bytes by stack, one line a stack, for a flame graph
    #[arg(long, value_name = "FILE")]
    pub(super) folded: Option<PathBuf>,
    /// Write a snapshot for PyTorch's Memory Viz page
    #[arg(long, value_name = "FILE")]
    pub(super) export: Option<PathBuf>,
    /// Write a page with the timeline and the block map [default path: FILE with `.html` added]; - is standard output
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "")]
    pub(super) html: Option<PageArg>,
}

#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// Study directories, such as .tune/NAME; two are set side by side
    #[arg(required = true, num_args = 1..=2, value_name = "DIR")]
    pub(super) studies: Vec<PathBuf>,
    /// Where to write the page; - is standard output [default: report.html in DIR, comparison.html for two]
    #[arg(long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// A snapshot of `torch.cuda.memory._dump_snapshot`, a batchtune trace or an RMM log
    pub(super) file: PathBuf,
    /// The allocator [default: the recording's own]
    #[arg(long, value_enum)]
    pub(super) backend: Option<BackendArg>,
    /// Its settings, as PYTORCH_CUDA_ALLOC_CONF has them [default: the recording's own]
    #[arg(long, value_name = "KEY:VALUE,…")]
    pub(super) conf: Option<String>,
    /// What it may take from the device, such as 40GiB
    #[arg(long, value_name = "SIZE", value_parser = limit)]
    pub(super) limit: Option<Bytes>,
    /// Try a set of sensible settings and rank them
    #[arg(long, conflicts_with_all = ["conf", "backend"])]
    pub(super) compare: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ExplainOomArgs {
    /// A file with the error's text; - is standard input
    #[arg(default_value = "-")]
    pub(super) file: PathBuf,
    /// PYTORCH_CUDA_ALLOC_CONF of the process, so that nothing is advised that is already on
    #[arg(long, value_name = "KEY:VALUE,…")]
    pub(super) conf: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ModelsArgs {
    /// The family [default: all]
    pub(super) family: Option<String>,
    /// The type of parameters, gradients and the optimizer's state
    #[arg(long, value_enum, default_value_t = models::PrecisionArg::F32)]
    pub(super) precision: models::PrecisionArg,
    /// The optimizer
    #[arg(long, value_enum, default_value_t = models::OptimizerArg::Adamw)]
    pub(super) optimizer: models::OptimizerArg,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The allocators of `--backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum BackendArg {
    /// PyTorch's caching allocator
    Native,
    /// The CUDA driver's stream-ordered pool
    CudaMallocAsync,
}

impl From<BackendArg> for Backend {
    fn from(backend: BackendArg) -> Self {
        match backend {
            BackendArg::Native => Self::Native,
            BackendArg::CudaMallocAsync => Self::CudaMallocAsync,
        }
    }
}

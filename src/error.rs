//! The errors of the whole program: one variant a room, and the exit code of each.

use crate::cli::{ForecastInputError, InputError};
use crate::config::ConfigError;
use crate::data::DataError;
use crate::device::DeviceError;
use crate::exit_code;
use crate::memory::policy::ConfError;
use crate::memory::replay::ReplayError;
use crate::model::ModelError;
use crate::report::export::ExportError;
use crate::report::recommendation::ReportError;
use crate::search::driver::DriverError;
use crate::trial::ExecutorError;
use crate::watch::WatchError;

/// Anything that ends a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model is wrong.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The data is wrong.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The search could not go on.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A result file cannot be read or written.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// A recommendation must not be exported.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A file that a command was given cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Recordings cannot be forecast from.
    #[error(transparent)]
    Forecast(#[from] ForecastInputError),
    /// A recording cannot be replayed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// There is nothing to watch.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// An allocator configuration is wrong.
    #[error("invalid `--conf`")]
    Conf(#[from] ConfError),
    /// Stacks were asked for of a recording that has none.
    #[error("only PyTorch snapshots hold stack frames (hint: leave `--folded` out)")]
    NoFrames,
    /// A recommendation for another kind of device cannot be applied to a card.
    #[error("the recommendation was made on `{device}`, and only one made on a CUDA device can be applied to one")]
    NotForCuda {
        /// Where it was made.
        device: String,
    },
    /// A result would be written over what it is made from.
    #[error("`{}` is what this is made from, and would be lost (hint: another name)", path.display())]
    OverSource {
        /// Which.
        path: std::path::PathBuf,
    },
    /// Two results would be written to one file.
    #[error("`{}` is asked for twice (hint: a name for each result)", path.display())]
    SameOutput {
        /// Which.
        path: std::path::PathBuf,
    },
    /// Standard output is for one result.
    #[error("`--html -` and `--json` both go to standard output (hint: a file for the page)")]
    TwoPrinted,
    /// A result file cannot be written.
    #[error("cannot write `{}`", path.display())]
    Output {
        /// Which.
        path: std::path::PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Standard output went away or a signal handler cannot be set.
    #[error("{action}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// The process's exit code. No wildcard: a new error forces the choice.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_)
            | Self::Model(_)
            | Self::Data(_)
            | Self::Report(_)
            | Self::Input(_)
            | Self::Forecast(_)
            | Self::Replay(_)
            | Self::Conf(_)
            | Self::NoFrames
            | Self::NotForCuda { .. }
            | Self::OverSource { .. }
            | Self::SameOutput { .. }
            | Self::TwoPrinted
            | Self::Output { .. }
            | Self::Io { .. } => exit_code::USAGE,
            Self::Watch(error) => error.exit_code(),
            Self::Device(_) => exit_code::DEVICE_UNAVAILABLE,
            Self::Export(error) => match error {
                ExportError::NotSafe(_) | ExportError::Stale { .. } => exit_code::NO_SAFE_CONFIGURATION,
                ExportError::Unrepresentable { .. }
                | ExportError::NoPlace { .. }
                | ExportError::NothingToMerge { .. }
                | ExportError::NoObject { .. }
                | ExportError::NotJson { .. }
                | ExportError::TooDeep { .. }
                | ExportError::TooLarge { .. }
                | ExportError::NumberLost { .. }
                | ExportError::Twice { .. }
                | ExportError::Replicas { .. }
                | ExportError::NoJson
                | ExportError::OutputIsInput { .. } => exit_code::USAGE,
            },
            Self::Driver(error) => match error {
                DriverError::Executor(error) => match error {
                    ExecutorError::DeviceUnavailable(_)
                    | ExecutorError::NotStarted { .. }
                    | ExecutorError::Launcher { .. }
                    | ExecutorError::LauncherInput { .. }
                    | ExecutorError::LauncherOutput { .. } => exit_code::DEVICE_UNAVAILABLE,
                    ExecutorError::Workload(_) | ExecutorError::Scratch { .. } => exit_code::USAGE,
                    ExecutorError::Cancelled => exit_code::INTERRUPTED,
                    ExecutorError::Spawn { .. }
                    | ExecutorError::Startup { .. }
                    | ExecutorError::LeaseExpired { .. } => exit_code::WORKLOAD_FAILS,
                },
                DriverError::BudgetEnded => exit_code::BUDGET_ENDED,
                DriverError::Journal(_) | DriverError::Report(_) | DriverError::Thread(_) => exit_code::USAGE,
            },
        }
    }
}

//! The command line: one file a command. This room and [`crate::progress`] are the only ones that print.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use self::args::{
    BackendArg, Cli, Command, ExplainOomArgs, ExportArgs, ForecastArgs, InspectArgs, ModelsArgs, PlanArgs, ReplayArgs,
    ReportArgs, SearchArgs,
};
use self::diagnostics::Role;
use crate::error::Error;
use crate::exit_code;
use crate::model::Registry;
use crate::progress::say;
use crate::text::harmless;
use crate::trial::launcher::session;
use crate::trial::worker;

mod args;
mod check;
mod completions;
mod diagnostics;
mod doctor;
mod explain_oom;
mod export;
mod forecast;
mod input;
mod inspect;
mod known_answer;
mod long_run;
mod models;
mod output;
mod replay;
mod report;
mod schema;
mod search;
mod slots;
mod values;
mod watch;

pub use forecast::ForecastInputError;
pub use input::InputError;

/// What a command prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Table,
    Json,
}

impl Form {
    fn of(json: bool) -> Self {
        if json { Self::Json } else { Self::Table }
    }
}

/// The program: reads the command line, runs the command, prints an error once and gives the exit code.
pub fn main(registry: &Registry) -> ExitCode {
    let cli = Cli::parse();
    match &cli.command {
        Some(Command::Worker { launched }) => {
            diagnostics::install(Role::Worker);
            return if *launched { worker::launched(registry) } else { worker::main(registry) };
        }
        Some(Command::Launch { command }) => return launch(command),
        _ => {}
    }
    diagnostics::install(Role::Command);
    // A panic is a bug of ours, and has the exit code that is documented for one: Rust's own is 101. Its message was
    // printed by the panic hook.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| dispatch(cli, registry))) {
        Err(_) => ExitCode::from(exit_code::BUG),
        Ok(Ok(code)) => ExitCode::from(code),
        Ok(Err(error)) => {
            diagnostics::print(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

fn dispatch(cli: Cli, registry: &Registry) -> Result<u8, Error> {
    match cli.command {
        None => search::run(&cli.search, registry),
        Some(Command::Check(args)) => check::run(&args, registry),
        Some(Command::Export(args)) => export::run(&args),
        Some(Command::Forecast(args)) => forecast::run(&args),
        Some(Command::Report(args)) => report::run(&args),
        Some(Command::Inspect(args)) => inspect::run(&args),
        Some(Command::Replay(args)) => replay::run(&args),
        Some(Command::ExplainOom(args)) => explain_oom::run(&args),
        Some(Command::Models(args)) => models::run(&args, registry),
        Some(Command::Doctor { json }) => doctor::run(Form::of(json)),
        Some(Command::Watch(args)) => watch::run(&args),
        Some(Command::Schema) => schema::run(),
        Some(Command::Completions { shell }) => completions::run(shell, &mut Cli::command()),
        Some(Command::Worker { .. } | Command::Launch { .. }) => Ok(exit_code::BUG),
    }
}

/// Becomes a launcher; what is printed where that fails is a line of its log.
fn launch(command: &[OsString]) -> ExitCode {
    let error = session::become_launcher(command);
    let program = command.first().map_or_else(String::new, |program| program.to_string_lossy().into_owned());
    say(&format!("cannot start `{}`: {error}", harmless(&program)));
    ExitCode::from(session::NOT_FOUND)
}

/// Prints a result to standard output. A reader that went away (`| head`) is no error.
fn print_result(text: &str) -> Result<(), Error> {
    use std::io::{ErrorKind, Write};
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(source) if source.kind() != ErrorKind::BrokenPipe => {
            Err(Error::Io { action: "cannot write to standard output", source })
        }
        _ => Ok(()),
    }
}

/// A result as JSON for other programs.
fn to_json(value: &impl serde::Serialize) -> String {
    // The types printed here have string keys and finite numbers, so this cannot fail; an error would show as such.
    serde_json::to_string_pretty(value).unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"))
}

/// A rate as a percentage; a dash where it is undefined.
fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.1}%", rate * 100.0))
}

/// Writes a result file.
fn write_file(path: &std::path::Path, bytes: &[u8]) -> Result<(), Error> {
    std::fs::write(path, bytes).map_err(|source| Error::Output { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}

//! `tune completions`: a completion script for a shell.

use super::print_result;
use crate::error::Error;
use crate::exit_code;

pub(super) fn run(shell: clap_complete::Shell, command: &mut clap::Command) -> Result<u8, Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "tune", &mut script);
    print_result(&String::from_utf8_lossy(&script))?;
    Ok(exit_code::SAFE)
}

//! `tune schema`: the JSON Schema of the configuration file, for editors.

use super::print_result;
use crate::config;
use crate::error::Error;
use crate::exit_code;

pub(super) fn run() -> Result<u8, Error> {
    print_result(&format!("{:#}\n", config::json_schema()))?;
    Ok(exit_code::SAFE)
}

//! `tune explain-oom`: what a CUDA out-of-memory error means, and what to change.

use std::fmt::Write;

use super::{ExplainOomArgs, Form, input, print_result};
use crate::error::Error;
use crate::exit_code;
use crate::memory::oom::{self, OomClass, OomExplanation};
use crate::text::harmless;

pub(super) fn run(args: &ExplainOomArgs) -> Result<u8, Error> {
    let text = input::text(&args.file)?;
    let explanation = oom::explain(&text, args.conf.as_deref());
    match Form::of(args.json) {
        Form::Json => print_result(&format!("{}\n", super::to_json(&explanation)))?,
        Form::Table => print_result(&words(&explanation))?,
    }
    Ok(exit_code::SAFE)
}

fn words(explanation: &OomExplanation) -> String {
    let mut text = format!("{}\n\n", headline(explanation.class));
    for sentence in &explanation.explanation {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", harmless(sentence));
    }
    if !explanation.advice.is_empty() {
        text.push_str("\nWhat to change:\n");
        for (number, advice) in explanation.advice.iter().enumerate() {
            let _ = writeln!(text, "  {}. {}", number + 1, harmless(advice));
        }
    }
    text
}

fn headline(class: OomClass) -> &'static str {
    match class {
        OomClass::Capacity => "Capacity: the program needs more memory than there is.",
        OomClass::Fragmentation => "Fragmentation: there were enough free bytes, in pieces too small for the request.",
        OomClass::OtherProcess => "Another process holds the memory.",
        OomClass::HostOrDriverLimit => "The device had the bytes free: the driver or the host refused the request.",
        OomClass::Unknown => "Unknown: the text does not say enough.",
    }
}

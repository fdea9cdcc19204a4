//! What a configuration may already say and this version cannot do yet.
//!
//! All of it in one function: whoever builds a room deletes its lines here.

use super::file::File;
use super::leaf::list::Devices;
use super::problem::{Problem, ProblemKind};
use super::source::Located;

/// Reports every key that asks for something that is not built yet.
pub fn refuse_unsupported(file: &File, located: &Located, problems: &mut Vec<Problem>) {
    let many_devices = match &file.devices {
        Devices::Auto => false,
        Devices::All => true,
        Devices::Some(devices) => devices.len() > 1,
    };
    let refusals = [
        (file.launcher.is_some(), "launcher", "a launcher".to_owned(), "remove it, or write `null`"),
        (many_devices, "devices", "more than one device".to_owned(), "use `auto`, or name one"),
        (
            file.command.is_some() && file.target.replicas.get() > 1,
            "target.replicas",
            "a program of your own on more than one replica".to_owned(),
            "use 1, and let the program start its own",
        ),
    ];
    for (_, key, what, instead) in refusals.iter().filter(|(asked, ..)| *asked) {
        let problem = located.problem(ProblemKind::NotSupported, key, &format!("{what} is not supported yet"));
        problems.push(problem.with_hint(instead));
    }
}

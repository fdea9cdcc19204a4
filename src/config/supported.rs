//! What a configuration may already say and this version cannot do yet.
//!
//! All of it in one function: whoever builds a room deletes its lines here.

use super::file::File;
use super::problem::{Problem, ProblemKind};
use super::source::Located;
use crate::device::collective::MOST_RANKS;

/// Each rank of a command has a report that is open while it runs, and a process may have 1024 open files.
const MAX_RANKS: u64 = 512;

/// Reports every key that asks for something that is not built yet.
pub fn refuse_unsupported(file: &File, located: &Located, problems: &mut Vec<Problem>) {
    let replicas = file.target.replicas.get();
    let refusals = [
        (
            replicas > MOST_RANKS as u64 && file.model.is_some(),
            "target.replicas",
            format!("`{replicas}`, more than {MOST_RANKS} replicas of a model,"),
            "tune with fewer: what one needs hardly depends on how many there are",
        ),
        (
            replicas > MAX_RANKS && file.command.is_some(),
            "target.replicas",
            format!("`{replicas}`, more than {MAX_RANKS} ranks of a command,"),
            "tune with fewer ranks: what one needs hardly depends on how many there are",
        ),
    ];
    for (_, key, what, instead) in refusals.iter().filter(|(asked, ..)| *asked) {
        let problem = located.problem(ProblemKind::NotSupported, key, &format!("{what} is not supported yet"));
        problems.push(problem.with_hint(instead));
    }
}

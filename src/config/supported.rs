//! What a configuration may already say and this version cannot do yet.
//!
//! All of it in one function: whoever builds a room deletes its lines here.

use super::file::File;
use super::problem::{Problem, ProblemKind};
use super::source::Located;

/// Reports every key that asks for something that is not built yet.
pub fn refuse_unsupported(file: &File, located: &Located, problems: &mut Vec<Problem>) {
    let replicas = file.target.replicas.get();
    let refusals = [(replicas > 1, "target.replicas", format!("`{replicas}`, more than one replica,"), "use 1")];
    for (_, key, what, instead) in refusals.iter().filter(|(asked, ..)| *asked) {
        let problem = located.problem(ProblemKind::NotSupported, key, &format!("{what} is not supported yet"));
        problems.push(problem.with_hint(instead));
    }
}

//! What is to be said of a run that went well and showed less than it could.

use super::rank::Told;
use super::spec::CommandSpec;
use super::template::Placeholder;
use crate::trial::spawn::{Attribution, GpuUse};

/// Ranks that are named.
const NAMED_RANKS: usize = 8;

/// What is to be said of a program that says nothing itself.
pub(super) fn unreported(used: &GpuUse, command: &CommandSpec, complaint: Option<&str>) -> String {
    let unproven = if command.holds(Placeholder::BatchSize) {
        ""
    } else {
        "; and nothing shows that it takes another batch size at all, since `{batch_size}` is not in `command.run`"
    };
    let why = match complaint {
        Some(complaint) => format!("(it says `{complaint}`)"),
        None => "(hint: three lines do, see examples/pytorch/tune_report.py)".to_owned(),
    };
    format!("fragmentation was not observed, since the program does not report {why}; {}{unproven}", seen(used))
}

/// What is to be said of a program that tells its steps and not its memory.
pub(super) fn unsampled(used: &GpuUse) -> String {
    format!("fragmentation was not observed, since the program reports no allocator figures; {}", seen(used))
}

/// How the peak of a program was found that does not tell it. The figure itself is beside it in every result.
fn seen(used: &GpuUse) -> &'static str {
    match (used.peak_bytes, used.attributed) {
        (None, _) => "what it held is not known",
        (Some(_), Attribution::Processes) => "its peak is what its processes held, seen from outside",
        (Some(_), Attribution::Rise) => {
            "its peak is by how much the device's used memory rose, since its processes cannot be told from others"
        }
    }
}

/// What a soak was to show and did not.
pub(super) fn incomplete_soak(ranks: &[Told]) -> Option<String> {
    // One rank may do either for all.
    let (evaluated, saved) = (|told: &Told| told.has_evaluated, |told: &Told| told.has_checkpoint);
    let missing = match (ranks.iter().any(evaluated), ranks.iter().any(saved)) {
        (true, true) => return None,
        (true, false) => "no checkpoint",
        (false, true) => "no evaluation pass",
        (false, false) => "no evaluation pass and no checkpoint",
    };
    Some(format!(
        "the soak had {missing}, and either can need more memory than training (hint: `tune_report.run(evaluate, \
         checkpoint)`)"
    ))
}

/// The ranks that say nothing beside others that do.
pub(super) fn unseen_ranks(ranks: &[Told]) -> Vec<usize> {
    let silent: Vec<usize> = (0..).zip(ranks).filter(|(_, told)| told.hello.is_none()).map(|(rank, _)| rank).collect();
    if silent.len() < ranks.len() { silent } else { Vec::new() }
}

/// What is to be said of them: nobody knows what they need.
pub(super) fn silent_ranks(unseen: &[usize], ranks: usize) -> Option<String> {
    let silent: Vec<String> = unseen.iter().map(ToString::to_string).collect();
    let (are, shown) = (silent.len(), silent.get(..NAMED_RANKS).unwrap_or(&silent).join(", "));
    let more = if are > NAMED_RANKS { format!(" and {} more", are - NAMED_RANKS) } else { String::new() };
    let subject = if are == 1 { "rank" } else { "ranks" };
    (are > 0).then(|| {
        format!(
            "{subject} {shown}{more} of {ranks} never reported, so what they need was not seen (hint: every rank has to \
             import `tune_report`, and to have RANK or LOCAL_RANK in its environment)"
        )
    })
}

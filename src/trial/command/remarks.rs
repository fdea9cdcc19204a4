//! What is to be said of a run that went well and showed less than it could.

use super::run::Told;
use super::spec::CommandSpec;
use super::template::Placeholder;
use crate::trial::spawn::{Attribution, GpuUse};

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
pub(super) fn incomplete_soak(told: &Told) -> Option<String> {
    let missing = match (told.has_evaluated, told.has_checkpoint) {
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

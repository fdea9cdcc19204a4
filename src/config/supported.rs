//! What a configuration may already say and this version cannot do yet.
//!
//! All of it in one function: whoever builds a room deletes its lines here.

use super::error::{Problem, ProblemKind};
use super::file::File;
use super::leaf::list::Devices;
use super::sections::data::Length;
use super::source::Located;
use crate::data::SourceKind;
use crate::memory::{AllocatorKind, Trim};
use crate::train::{BatchNorm, GradientCheckpointing, Precision};

/// Reports every key that asks for something that is not built yet.
pub fn refuse_unsupported(file: &File, located: &Located, problems: &mut Vec<Problem>) {
    let many_devices = match &file.devices {
        Devices::Auto => false,
        Devices::All => true,
        Devices::Some(devices) => devices.len() > 1,
    };
    let source = file.data.source.0;
    let refusals = [
        (file.command.is_some(), "command", "tuning a program of your own", "use `model`"),
        (file.launcher.is_some(), "launcher", "starting workers through a launcher", "remove it, or write `null`"),
        (many_devices, "devices", "more than one device", "use `auto`, or name one"),
        (file.target.replicas.get() > 1, "target.replicas", "more than one replica", "use 1"),
        (file.train.precision.0 != Precision::F32, "train.precision", "another precision than f32", "use `f32`"),
        (
            file.train.gradient_checkpointing.0 != GradientCheckpointing::None,
            "train.gradient_checkpointing",
            "recomputing activations",
            "use `none`",
        ),
        (file.train.batch_norm.0 != BatchNorm::Train, "train.batch_norm", "another rule than `train`", "use `train`"),
        (
            matches!(source, SourceKind::Tokens | SourceKind::ImageFolder | SourceKind::Cifar10),
            "data.source",
            "this kind of data",
            "use `synthetic` or `text`",
        ),
        (
            matches!(file.data.sequence_length, Some(Length::Range(_))),
            "data.sequence_length",
            "data of varying length",
            "give one length",
        ),
        (
            !matches!(file.memory.allocator.0, AllocatorKind::Auto | AllocatorKind::Native),
            "memory.allocator",
            "this allocator",
            "use `auto` or `native`",
        ),
        (file.memory.trim.0 != Trim::Never, "memory.trim", "handing memory back", "use `never`"),
    ];
    for (_, key, what, instead) in refusals.iter().filter(|(asked, ..)| *asked) {
        let problem = located.problem(ProblemKind::NotSupported, key, &format!("{what} is not supported yet"));
        problems.push(problem.with_hint(instead));
    }
}

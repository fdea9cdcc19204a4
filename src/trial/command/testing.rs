//! Commands and trials for this room's tests.

use std::time::Duration;

use super::spec::CommandSpec;
use super::template::Template;
use crate::trial::spec::{Point, Purpose, TrialId, TrialSpec};

/// A command of these arguments.
pub(super) fn command(run: &[&str]) -> CommandSpec {
    CommandSpec {
        run: run.iter().map(|argument| Template::parse(argument).unwrap()).collect(),
        env: std::collections::BTreeMap::new(),
        cwd: None,
        preload: Vec::new(),
        timeout: Duration::from_secs(60),
    }
}

/// A measuring trial of 2 + 10 steps that accumulates.
pub(super) fn trial(batch_size: usize) -> TrialSpec {
    let point = Point { accumulation_steps: 4, pin_memory: true, ..Point::plain(batch_size) };
    TrialSpec {
        id: TrialId(3),
        purpose: Purpose::Ladder,
        point,
        warmup_steps: 2,
        steps: 10,
        sample_every: 2,
        sample_size: None,
    }
}

//! Checks of `train:`: settings that do nothing beside another, or cannot be.

use super::Checks;
use crate::config::problem::ProblemKind;
use crate::train::{BatchNorm, OptimizerKind};

impl Checks<'_> {
    /// Momentum goes with an optimizer that has some, and statistics over replicas with replicas.
    pub(super) fn check_training(&mut self) {
        let train = &self.file.train;
        let (momentum, is_adam) = (train.momentum.0, train.optimizer.0 == OptimizerKind::Adamw);
        if momentum > 0.0 && is_adam && self.sound(&["train.optimizer", "train.momentum"]) {
            let message = "AdamW has its own moments and takes no momentum";
            let problem = self.located.problem(ProblemKind::Conflict, "train.momentum", message);
            self.problems.push(problem.with_hint("leave it out, or use `optimizer: sgd`"));
        }
        let is_alone = self.file.target.replicas.get() == 1;
        if self.file.train.batch_norm.0 == BatchNorm::Sync
            && is_alone
            && self.sound(&["train.batch_norm", "target.replicas"])
        {
            let message = "statistics over all replicas need more than one, and `target.replicas` is 1";
            let problem = self.located.problem(ProblemKind::Conflict, "train.batch_norm", message);
            self.problems.push(problem.with_hint("use `train`, or `frozen`"));
        }
    }
}

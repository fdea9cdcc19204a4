//! Dynamic loss scaling, for gradients in f16.
//!
//! f16 has nothing between 0 and 6·10⁻⁸, and many gradients lie there. So the loss is multiplied by a large scale before
//! the backward pass and the gradients are divided by it after (Micikevicius et al., "Mixed Precision Training", 2017).
//! The largest scale that does not overflow is found by trying: PyTorch's `torch.amp.GradScaler`, with its defaults and
//! rule for rule. An update with a gradient that is not finite is skipped and halves the scale; the first few of a run
//! often are, and that is not a failure.
//!
//! bf16 has the range of f32 and needs none of this.

/// The scale at the start.
const INITIAL: f64 = 65_536.0;
/// What a long row of good updates multiplies it by.
const GROWTH: f64 = 2.0;
/// How long that row is.
const GROWTH_INTERVAL: u32 = 2000;
/// What a bad update multiplies it by.
const BACKOFF: f64 = 0.5;
/// Bad updates at a scale under 1 that mean that no scale helps.
const HOPELESS_UPDATES: u32 = 3;

/// The scale, and how it has fared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LossScale {
    scale: f64,
    good_updates: u32,
    hopeless_updates: u32,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { scale: INITIAL, good_updates: 0, hopeless_updates: 0 }
    }
}

impl LossScale {
    /// What the loss is to be multiplied by.
    pub(super) fn scale(self) -> f64 {
        self.scale
    }

    /// Tells of an update: `true` where all gradients were finite, `false` where it was skipped.
    pub(super) fn tell(&mut self, is_finite: bool) {
        if !is_finite {
            self.scale *= BACKOFF;
            self.good_updates = 0;
            self.hopeless_updates += u32::from(self.scale < 1.0);
            return;
        }
        self.good_updates += 1;
        if self.good_updates == GROWTH_INTERVAL {
            self.good_updates = 0;
            // The scaled loss is an f32.
            if self.scale * GROWTH <= f64::from(f32::MAX) {
                self.scale *= GROWTH;
            }
        }
    }

    /// Whether gradients overflow that nothing scales up any more: the training has diverged.
    pub(super) fn is_lost(self) -> bool {
        self.hopeless_updates >= HOPELESS_UPDATES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_thousand_good_updates_in_a_row_double_the_scale() {
        let mut scale = LossScale::default();
        (1..GROWTH_INTERVAL).for_each(|_| scale.tell(true));
        assert!((scale.scale() - 65_536.0).abs() < 0.5);
        scale.tell(true);
        assert!((scale.scale() - 131_072.0).abs() < 0.5);
        (1..GROWTH_INTERVAL).for_each(|_| scale.tell(true));
        scale.tell(false);
        (1..GROWTH_INTERVAL).for_each(|_| scale.tell(true));
        assert!((scale.scale() - 65_536.0).abs() < 0.5, "the row begins anew after a bad one");
    }

    #[test]
    fn the_scale_never_leaves_what_f32_can_hold() {
        let mut scale = LossScale::default();
        (0..200 * GROWTH_INTERVAL).for_each(|_| scale.tell(true));
        assert!((scale.scale() as f32).is_finite() && scale.scale() > 1e38);
    }

    #[test]
    fn only_a_scale_that_stays_under_one_is_lost() {
        let mut scale = LossScale::default();
        (0..16).for_each(|_| scale.tell(false));
        assert!((scale.scale() - 1.0).abs() < 1e-9 && !scale.is_lost());
        (0..2).for_each(|_| scale.tell(false));
        assert!(!scale.is_lost());
        scale.tell(false);
        assert!(scale.is_lost());
    }
}

//! Stage 8: the first candidate whose soak passes, and where it has other settings of the allocator than the program's own,
//! a soak under those beside it.
//!
//! After a breach the next best of the measured points is soaked. The smallest pair was measured first of all, far from
//! where the speed is: before it comes to that, the pairs between are measured.

use super::settle::Settled;
use super::{Staged, View};
use crate::search::recommend::candidates;
use crate::search::{Ask, Conclusion};
use crate::trial::{Point, Purpose};

impl Staged {
    /// The conclusion, or the next soak.
    pub(super) fn soak(&mut self, view: View<'_>, best: &Point) -> Result<Ask, Ask> {
        let smallest = self.space.pairs().last().map_or(0, |pair| pair.batch_size);
        let candidates = candidates(view.history, &self.space);
        let others = candidates.iter().map(|trial| &trial.record.spec.point).filter(|point| *point != best);
        for point in std::iter::once(best).chain(others) {
            match view.history.soaked(point) {
                Some(trial) if trial.is_safe() => return self.against_own_settings(view, point, trial),
                Some(_) => {}
                None => {
                    let Some(lasting) = self.lasting(view, point)? else { continue };
                    match view.history.soaked(&lasting) {
                        Some(trial) if trial.is_safe() => return self.against_own_settings(view, &lasting, trial),
                        Some(_) => continue,
                        None => {}
                    }
                    if point.batch_size == smallest && point != best {
                        self.pairs_between(view, best)?;
                    }
                    return Ok(Ask::Run { point: lasting, purpose: Purpose::Soak });
                }
            }
        }
        Ok(Ask::Finished(Conclusion::NoSafePoint))
    }

    /// Leaves with the largest pair below the best that nobody has measured and no forecast rules out.
    fn pairs_between(&mut self, view: View<'_>, best: &Point) -> Result<(), Ask> {
        let mode = best.gradient_checkpointing;
        let below = self.space.pairs().iter().copied().filter(|pair| pair.batch_size < best.batch_size);
        for pair in below.collect::<Vec<_>>() {
            let point = self.base_point(pair, mode);
            if view.history.measured(&point).is_some() {
                continue;
            }
            if let Some(reason) = self.expect(view, pair, mode)?.and_then(|expected| expected.breach) {
                self.skip(point, reason);
                continue;
            }
            if let Settled::Needs(ask) = self.settle(view, point, Purpose::Accumulation) {
                return Err(ask);
            }
        }
        Ok(())
    }
}

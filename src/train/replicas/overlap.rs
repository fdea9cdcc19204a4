//! Exchanging gradients while the backward pass goes on (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3).
//!
//! A gradient is final once no segment is left that uses its parameter. candle's backward pass has no hook that would
//! tell, but one that [recomputes](crate::train::recompute) comes back after every segment: then the buckets whose
//! gradients all are final are filled, and their exchange is begun, while the segments before are computed again. Only the
//! last micro-batch of an update does so, since its sums are those of all of them.
//!
//! # The plan
//! Which gradients are final when is learned from the first backward pass: a parameter that several segments use (an
//! embedding that is the output layer too) is final after the last of them to come. The buckets hold gradients in that order,
//! and are the same from then on; all ranks make sure once that theirs are alike. A gradient that a pass did not reach has
//! zeros in its bucket, so no rank ever waits for a bucket that another one does not fill. That all have the same gradients
//! is checked before the update, as without overlap.
//!
//! A plan that is wrong costs time and no correctness. A gradient that comes after its bucket has gone stays with the others
//! that no bucket has, which are averaged after the pass: the mean of a sum is the sum of the means.
//!
//! # Memory
//! A bucket is filled after a segment's graph is gone, and its gradients go with that. From then on it holds them, so an
//! exchange that takes place beside the pass takes no memory that one after it would not: that of one bucket at a time
//! beside the gradients, for as long as it is being filled.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use candle_core::{Device, Result, Tensor};

use super::bucket::{self, BUCKET_BYTES, Slot};
use super::{Turn, into_candle};
use crate::device::collective::{Collective, Reduction, Work};
use crate::train::gradients::Gradients;
use crate::train::recompute::Follow;

/// The sums of gradients by their parameters' names.
type Sums = BTreeMap<String, Tensor>;

/// What is known of the order in which gradients become final, and what of them was sent.
#[derive(Debug)]
pub(super) struct Overlap {
    /// `None` before the first backward pass.
    plan: Option<Plan>,
    /// The bucket that is sent next, where this update's are sent beside the pass.
    next: Option<usize>,
    sent: Vec<Sent>,
    bucket_bytes: usize,
}

/// Which buckets there are.
#[derive(Debug)]
struct Plan {
    buckets: Vec<Planned>,
    /// Where the gradients are.
    device: Device,
    /// Whether all ranks are known to have the same.
    is_agreed: bool,
}

#[derive(Debug)]
struct Planned {
    slots: Vec<Slot>,
    /// The place of the segment after which all of them are final, in the order of the backward pass.
    after: usize,
}

/// A bucket that was sent.
#[derive(Debug)]
struct Sent {
    /// Its place in the plan.
    bucket: usize,
    values: Tensor,
    /// The slots of gradients that there were.
    filled: Vec<bool>,
    work: Box<dyn Work>,
}

impl Default for Overlap {
    fn default() -> Self {
        Self { plan: None, next: None, sent: Vec::new(), bucket_bytes: BUCKET_BYTES }
    }
}

impl Overlap {
    /// With other buckets, for tests: a small model has more than one then.
    #[cfg(test)]
    pub(super) fn set_bucket_bytes(&mut self, bucket_bytes: usize) {
        self.bucket_bytes = bucket_bytes;
    }

    /// How many buckets of this update were sent.
    #[cfg(test)]
    pub(super) fn sent_so_far(&self) -> usize {
        self.sent.len()
    }

    /// What follows a backward pass; `None` where nothing is to be done in it. The first one is learned from, and later
    /// ones, where they are the last of an update, have their buckets sent.
    pub(super) fn follower<'a>(&'a mut self, group: &'a dyn Collective, turn: Turn) -> Option<Box<dyn Follow + 'a>> {
        match (&self.plan, turn) {
            (None, _) => Some(Box::new(Learner { overlap: self, segments: 0, final_after: BTreeMap::new() })),
            (Some(_), Turn::Earlier) => None,
            (Some(_), Turn::Last) => {
                self.next = Some(0);
                Some(Box::new(Exchanger { overlap: self, group, segments: 0 }))
            }
        }
    }

    /// Sends what is left of this update's buckets, if it has any. A number for which of their gradients there are, then.
    pub(super) fn send_rest(&mut self, group: &dyn Collective, sums: &mut Sums) -> Result<Option<u64>> {
        if self.next.is_none() {
            return Ok(None);
        }
        self.send(group, sums, usize::MAX)?;
        self.next = None;
        let mut hasher = DefaultHasher::new();
        self.sent.iter().for_each(|sent| sent.filled.hash(&mut hasher));
        Ok(Some(hasher.finish()))
    }

    /// Puts the means into the sums once they are there.
    pub(super) fn take_back(&mut self, sums: &mut Sums) -> Result<()> {
        for Sent { bucket, values, filled, work } in self.sent.drain(..) {
            work.wait().map_err(into_candle)?;
            let Some(planned) = self.plan.as_ref().and_then(|plan| plan.buckets.get(bucket)) else { continue };
            let views = bucket::views(&values, &planned.slots).zip(&planned.slots).zip(&filled);
            for ((view, slot), _) in views.filter(|(_, is_filled)| **is_filled) {
                let mean = match sums.remove(&slot.name) {
                    // It came after the bucket had gone.
                    Some(late) => (view? + late)?,
                    None => view?,
                };
                sums.insert(slot.name.clone(), mean);
            }
        }
        Ok(())
    }

    /// Sends the buckets whose gradients are all final after this segment of the backward pass.
    fn send(&mut self, group: &dyn Collective, sums: &mut Sums, segment: usize) -> Result<()> {
        let (Some(plan), Some(next)) = (&mut self.plan, &mut self.next) else { return Ok(()) };
        if !plan.is_agreed {
            group.check_equal("gradients", plan.layout()).map_err(into_candle)?;
            plan.is_agreed = true;
        }
        while let Some(planned) = plan.buckets.get(*next).filter(|planned| planned.after <= segment) {
            let mut filled = Vec::with_capacity(planned.slots.len());
            let gradients = planned.slots.iter().map(|slot| {
                let gradient = sums.remove(&slot.name);
                filled.push(gradient.is_some());
                gradient.map_or_else(|| Tensor::zeros(&slot.shape, slot.dtype, &plan.device), Ok)
            });
            let values = bucket::fill(gradients.collect::<Result<_>>()?)?; // [sum of N]
            let work = group.begin_all_reduce(&values, Reduction::Mean).map_err(into_candle)?;
            self.sent.push(Sent { bucket: *next, values, filled, work });
            *next += 1;
        }
        Ok(())
    }
}

impl Plan {
    /// The buckets of gradients by the place of the segment after which each is final. `None` without any.
    fn of(sums: &Sums, final_after: &BTreeMap<String, usize>, bucket_bytes: usize) -> Option<Self> {
        let device = sums.values().next()?.device().clone();
        let after = |name: &String| final_after.get(name).copied().unwrap_or(usize::MAX);
        let mut slots: Vec<Slot> = sums.iter().map(Slot::of).collect();
        // Stable: those of one segment stay in the order of their names.
        slots.sort_by_key(|slot| after(&slot.name));
        let buckets = bucket::pack(slots, bucket_bytes).into_iter();
        let planned = |slots: Vec<Slot>| Planned { after: slots.last().map_or(0, |last| after(&last.name)), slots };
        Some(Self { buckets: buckets.map(planned).collect(), device, is_agreed: false })
    }

    /// A number for all of it. Every replica is the same program, so a hasher's keys are too.
    fn layout(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for planned in &self.buckets {
            (planned.after, planned.slots.len()).hash(&mut hasher);
            for slot in &planned.slots {
                (&slot.name, slot.shape.dims(), slot.dtype.as_str()).hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}

/// Learns from a backward pass when each gradient is final.
#[derive(Debug)]
pub(super) struct Learner<'a> {
    overlap: &'a mut Overlap,
    segments: usize,
    final_after: BTreeMap<String, usize>,
}

impl Follow for Learner<'_> {
    fn segment_done(&mut self, reached: &[&str], _gradients: &mut Gradients) -> Result<()> {
        let place = self.segments;
        self.final_after.extend(reached.iter().map(|name| ((*name).to_owned(), place)));
        self.segments += 1;
        Ok(())
    }

    fn pass_done(&mut self, gradients: &mut Gradients) {
        self.overlap.plan = Plan::of(gradients.sums_mut(), &self.final_after, self.overlap.bucket_bytes);
    }
}

/// Sends what is final after each segment of a backward pass.
#[derive(Debug)]
pub(super) struct Exchanger<'a> {
    overlap: &'a mut Overlap,
    group: &'a dyn Collective,
    segments: usize,
}

impl Follow for Exchanger<'_> {
    fn segment_done(&mut self, _reached: &[&str], gradients: &mut Gradients) -> Result<()> {
        self.overlap.send(self.group, gradients.sums_mut(), self.segments)?;
        self.segments += 1;
        Ok(())
    }

    fn pass_done(&mut self, _gradients: &mut Gradients) {}
}

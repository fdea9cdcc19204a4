//! Before the soak: whether the whole run of a point lasts, by forecast.
//!
//! A soak sees fifty steps, and a run that breaks does so later. So before a point is soaked its coming run is played:
//! where samples vary in length or images in their side, tiny probes at a handful of shapes come first. A point whose
//! run breaks is ruled out with the step; settings of the allocator under which it lasts are taken where there are any,
//! else the next best is looked at. What could not be forecast is left to the soak. The one soak of a run that breaks
//! is that of the program's own settings beside better ones ([`allocator`](super::allocator)), which it is there to be
//! compared with.
//!
//! These probes are asked for when a point is known, and at no other time: they come last, so that nothing that was
//! decided before but the allocator's settings depends on them, and they do not count among the trials that a search may
//! take.

use super::{Staged, View};
use crate::search::Ask;
use crate::trial::{Outlook, Point};

impl Staged {
    /// Whether a point may be soaked; leaves with what it takes to tell.
    pub(super) fn lasts(&mut self, view: View<'_>, point: &Point) -> Result<bool, Ask> {
        if view.history.outlook(point).is_none() && !view.knowledge.can_play(point) {
            return Ok(true);
        }
        let Some(breach) = &self.outlook(view, point)?.breach else { return Ok(true) };
        self.skip(point.clone(), format!("its whole run breaks by forecast: {}", breach.reason));
        Ok(false)
    }

    /// What is forecast of the whole run of a point that can be played; leaves with what it takes to tell.
    pub(super) fn outlook<'a>(&self, view: View<'a>, point: &Point) -> Result<&'a Outlook, Ask> {
        self.shape_probes(view, point)?;
        view.history.outlook(point).ok_or_else(|| Ask::Play { point: point.clone() })
    }

    /// Leaves with the next probe that a play of a point's whole run takes. A resumed study that knows what came of the play
    /// is told of the probes all the same: a search for settings plays the run again.
    fn shape_probes(&self, view: View<'_>, point: &Point) -> Result<(), Ask> {
        for (batch_size, sample_size) in self.space.probe_shapes() {
            let probe = self.space.shape_probe_point(point, *batch_size);
            match view.history.shape_probed(&probe, *sample_size) {
                None => return Err(Ask::ProbeShape { point: probe, sample_size: *sample_size }),
                Some(trial) if trial.record.completed() => {}
                // The others would not make up for it; the forecast says so.
                Some(_) => break,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Plan;
    use crate::data::{DataSpec, LengthDistribution, LengthSpec};
    use crate::memory::forecast::Method;
    use crate::search::machine::{Machine, chosen};
    use crate::search::scripted::{Played, plan};
    use crate::search::{Conclusion, History, strategy};
    use crate::trial::{Outlook, Purpose};
    use crate::units::MIB;

    fn varying() -> Plan {
        let length = LengthSpec::Range { min: 8, max: 64, distribution: LengthDistribution::Uniform };
        let mut plan = plan(16);
        plan.data = DataSpec { sequence_length: Some(length), ..DataSpec::default() };
        plan.safety.horizon_steps = 200;
        plan
    }

    /// A search on a machine whose runs break at this micro-batch and above, whatever their forecast says.
    fn on(breaks_from: usize) -> (Played, History) {
        let machine = Machine { tokens: 64, breaks_from: Some(breaks_from), ..Machine::new() };
        machine.play(&mut *strategy(&varying(), usize::MAX), &varying())
    }

    fn soaked(history: &History) -> Vec<(usize, Option<Outlook>)> {
        let soaks = history.trials().iter().map(|trial| &trial.record).filter(|record| record.spec.is_soak());
        soaks.map(|record| (record.spec.point.batch_size, record.outlook.clone())).collect()
    }

    #[test]
    fn a_run_that_lasts_is_soaked_after_its_seven_tiny_probes() {
        let (played, history) = on(usize::MAX);
        assert_eq!(chosen(&played), 16);
        let soaks = soaked(&history);
        let [(16, Some(outlook))] = soaks.as_slice() else { panic!("{:?}", played.sizes()) };
        assert_eq!((outlook.method, outlook.steps, &outlook.breach), (Method::Exact, 200, &None));
        let at: Vec<_> = history.trials().iter().map(|trial| trial.record.spec.is_shape_probe()).collect();
        let first = at.iter().position(|is_shape_probe| *is_shape_probe).unwrap();
        assert!(at[first..at.len() - 1].iter().all(|is_shape_probe| *is_shape_probe), "right before the soak");
        assert_eq!(at.len() - 1 - first, 7);
    }

    #[test]
    fn a_run_that_breaks_is_never_soaked_and_the_next_best_is() {
        let (played, history) = on(16);
        assert_eq!(soaked(&history).iter().map(|(size, _)| *size).collect::<Vec<_>>(), [chosen(&played)]);
        assert!(chosen(&played) < 16, "{:?}", played.sizes());
        let skip = played.skipped.iter().find(|skip| skip.point.batch_size == 16).unwrap();
        assert_eq!(skip.reason, "its whole run breaks by forecast: out of memory at step 150");
    }

    #[test]
    fn where_every_run_breaks_there_is_no_safe_point() {
        let (played, history) = on(2);
        // A batch of one takes other paths, so its run is not forecast and its soak decides.
        assert!(soaked(&history).iter().all(|(size, outlook)| *size == 1 && outlook.is_none()));
        assert!(played.trials.iter().any(|(purpose, _)| *purpose == Purpose::Soak));
        assert!(matches!(played.conclusion, Conclusion::Safe(_)), "{:?}", played.conclusion);
    }

    #[test]
    fn updates_of_more_micro_batches_than_were_probed_are_forecast_too() {
        let (_, history) = on(usize::MAX);
        let tight = Machine { tokens: 64, limit_bytes: 200 * MIB, ..Machine::new() };
        let (played, tight) = tight.play(&mut *strategy(&varying(), usize::MAX), &varying());
        assert!(soaked(&tight)[0].0 < soaked(&history)[0].0, "{:?}", played.sizes());
        let outlook = soaked(&tight)[0].1.clone().unwrap();
        assert_eq!(outlook.method, Method::Exact, "{}", outlook.reason);
    }
}

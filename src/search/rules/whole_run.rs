//! The coming run lasts, by forecast.
//!
//! Where samples vary in length, or images in their side, a cache may grow for hundreds of steps after the soak's
//! fifty. Before the soak the whole run is played to the model of the allocator
//! ([`knowledge`](crate::search::knowledge)), and what came of it is put into the soak's record as its [`Outlook`]: the
//! one thing beside the recorded series that a rule reads. It is the record's, so it is in the journal, and a resumed
//! study judges the same without playing anything.
//!
//! - It **fails** where the forecast breaks: out of memory, a rate above its threshold in the steady state, growth without a
//!   plateau, however far away the limit is ([`judge`](crate::memory::forecast::long_run::judge) says what that is). (Such a point is ruled out before its soak; the rule stands for a soak that has run all the same.)
//! - It **warns** where the forecast may err, could not be made, or is refuted by the soak: one that reserved more than
//!   was forecast of the whole run had its samples in another order, or of other sizes.
//!
//! The value is the step of the breach, counted from 0; there is no value where there is none.

use super::{Finding, Level, NOT_JUDGED, Rule};
use crate::config::plan::SafetyPlan;
use crate::memory::forecast::Method;
use crate::memory::forecast::long_run::has_plateau;
use crate::trial::outlook::RunBreach;
use crate::trial::{Outlook, TrialRecord};
use crate::units::Bytes;

/// A device's own count may be somewhat above that of the allocator's model: on cards by up to 0.3 %.
const ALLOWANCE: f64 = 1.03;

/// The run lasts.
#[derive(Debug)]
pub struct WholeRun;

impl Rule for WholeRun {
    fn name(&self) -> &'static str {
        "whole_run"
    }

    fn check(&self, trial: &TrialRecord, safety: &SafetyPlan) -> Finding {
        if !trial.spec.is_soak() {
            return Finding::none(None, "the whole run is forecast before a soak");
        }
        let Some(outlook) = &trial.outlook else {
            let reason = if safety.horizon_steps == 0 {
                "`safety.horizon_steps` is 0"
            } else {
                "the whole run was not forecast"
            };
            return Finding::none(None, reason);
        };
        let level = match (&outlook.breach, outlook.method) {
            (Some(_), _) => Level::Failed,
            (None, Method::Exact) if outlook.doubt.is_none() => Level::Passed,
            (None, _) => Level::Warning,
        };
        let breach = outlook.breach.as_ref().or(outlook.doubt.as_ref());
        let value = breach.map(|breach| f64::from(breach.step));
        let (level, reason) = match more_than_forecast(trial, outlook) {
            Some(reserved_bytes) => (
                level.max(Level::Warning),
                format!(
                    "{}; the soak reserved {} already, so its samples come in another order or of other sizes than those \
                     of the forecast",
                    sentence(outlook),
                    Bytes(reserved_bytes)
                ),
            ),
            None => (level, sentence(outlook)),
        };
        Finding { value, limit: Some(f64::from(safety.horizon_steps)), level, reason }
    }
}

/// What a soak reserved at its highest, where that is clearly more than was forecast of the whole run.
fn more_than_forecast(soak: &TrialRecord, outlook: &Outlook) -> Option<u64> {
    let reserved_bytes = soak.samples.iter().map(|sample| sample.peak_reserved_bytes).max()?;
    let is_played = outlook.method != Method::None;
    (is_played && reserved_bytes as f64 > outlook.peak_reserved_bytes as f64 * ALLOWANCE).then_some(reserved_bytes)
}

/// What an outlook says, for people.
pub fn sentence(outlook: &Outlook) -> String {
    if outlook.method == Method::None {
        return format!("{NOT_JUDGED}{}", outlook.reason);
    }
    let may_err = if outlook.method == Method::Exact { "" } else { ", by a forecast that may err" };
    match (&outlook.breach, &outlook.doubt) {
        (Some(RunBreach { reason, .. }), _) => format!("{reason}{may_err}"),
        (None, Some(RunBreach { reason, .. })) => format!("{reason}, by a forecast that may be wrong about it"),
        (None, None) => {
            let (steps, last) = (outlook.steps, outlook.last_growth_step);
            let growth = if has_plateau(steps, last) {
                format!("plateau from step {last} on")
            } else {
                format!("no plateau yet: it last rose in step {last}, though at no steady pace")
            };
            format!("{steps} steps forecast: {} reserved, {growth}{may_err}", Bytes(outlook.peak_reserved_bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{healthy, safety, sample, soak};
    use super::*;
    use crate::units::MIB;

    fn outlook(method: Method) -> Outlook {
        Outlook {
            method,
            reason: "all allocations follow polynomials".to_owned(),
            steps: 10_000,
            limit_bytes: 1000 * MIB,
            peak_allocated_bytes: 700 * MIB,
            peak_reserved_bytes: 800 * MIB,
            last_growth_step: 812,
            breach: None,
            doubt: None,
        }
    }

    fn breach() -> RunBreach {
        RunBreach { step: 4012, reason: "out of memory at step 4012".to_owned() }
    }

    fn found(outlook: Option<Outlook>) -> Finding {
        WholeRun.check(&TrialRecord { outlook, ..soak(vec![sample(2)]) }, &safety())
    }

    #[test]
    fn a_run_that_lasts_passes_with_its_plateau() {
        let finding = found(Some(outlook(Method::Exact)));
        assert_eq!((finding.value, finding.level), (None, Level::Passed));
        assert_eq!(finding.reason, "10000 steps forecast: 800.0 MiB reserved, plateau from step 812 on");
    }

    #[test]
    fn no_plateau_is_claimed_where_the_last_quarter_still_rose() {
        for (last_growth_step, is_claimed) in [(7499, true), (7500, false), (9932, false)] {
            let finding = found(Some(Outlook { last_growth_step, ..outlook(Method::Exact) }));
            assert_eq!(finding.level, Level::Passed);
            assert_eq!(finding.reason.contains("plateau from step"), is_claimed, "{}", finding.reason);
        }
    }

    #[test]
    fn a_run_that_breaks_fails_with_its_step() {
        for method in [Method::Exact, Method::Affine] {
            let finding = found(Some(Outlook { breach: Some(breach()), ..outlook(method) }));
            assert_eq!((finding.value, finding.level), (Some(4012.0), Level::Failed));
            assert!(finding.reason.starts_with("out of memory at step 4012"), "{}", finding.reason);
        }
    }

    #[test]
    fn a_forecast_that_may_err_warns_and_so_does_none() {
        assert_eq!(found(Some(outlook(Method::Affine))).level, Level::Warning);
        let doubtful = found(Some(Outlook { doubt: Some(breach()), ..outlook(Method::Affine) }));
        assert_eq!((doubtful.level, doubtful.value), (Level::Warning, Some(4012.0)));
        let unknown = found(Some(Outlook::unknown("the probes differ".to_owned())));
        assert_eq!((unknown.level, unknown.value), (Level::Warning, None));
        assert_eq!(unknown.reason, "not judged: the probes differ");
    }

    #[test]
    fn a_soak_that_holds_more_than_was_forecast_of_the_whole_run_is_a_warning() {
        let reserving = |mib: u64| {
            let held = crate::memory::MemorySample { peak_reserved_bytes: mib * MIB, ..sample(2) };
            let outlook = Some(outlook(Method::Exact));
            WholeRun.check(&TrialRecord { outlook, ..soak(vec![held]) }, &safety())
        };
        assert_eq!(reserving(820).level, Level::Passed);
        let refuted = reserving(840);
        assert_eq!(refuted.level, Level::Warning);
        let words =
            "plateau from step 812 on; the soak reserved 840.0 MiB already, so its samples come in another order";
        assert!(refuted.reason.contains(words), "{}", refuted.reason);
    }

    #[test]
    fn what_nobody_forecast_is_not_judged() {
        assert_eq!(found(None).reason, "not judged: the whole run was not forecast");
        let off = SafetyPlan { horizon_steps: 0, ..safety() };
        let finding = WholeRun.check(&soak(vec![sample(2)]), &off);
        assert_eq!(
            (finding.level, finding.reason.as_str()),
            (Level::Passed, "not judged: `safety.horizon_steps` is 0")
        );
        assert_eq!(WholeRun.check(&healthy(), &safety()).level, Level::Passed);
    }
}

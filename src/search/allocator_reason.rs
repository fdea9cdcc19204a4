//! Why a recommended point has its settings of PyTorch's allocator, in a sentence: what the search for them found, and what
//! its soak and the one under the program's own settings came to.

use super::knowledge::Kind;
use super::recommend::{is_slower, own_settings};
use super::space::ConfChoice;
use super::staged::breach_reason;
use super::{History, JudgedTrial, Knowledge, Space};
use crate::trial::Point;
use crate::units::Bytes;

/// Why these settings; `None` where none were tried.
pub fn allocator_reason(point: &Point, history: &History, knowledge: &dyn Knowledge, space: &Space) -> Option<String> {
    let found = Found::of(&own_settings(point), history, knowledge, space);
    match &point.alloc_conf {
        Some(conf) => {
            let why = why_changed(point, conf, found, history, knowledge);
            Some(compared(point, history).map_or_else(|| why.clone(), |compared| format!("{why}; {compared}")))
        }
        None => why_own(point, found, history),
    }
}

/// What a search found by replay.
struct Found {
    /// `None` where the program's own are the best.
    conf: Option<String>,
    reason: String,
}

impl Found {
    fn of(own: &Point, history: &History, knowledge: &dyn Knowledge, space: &Space) -> Option<Self> {
        // A run that could not be searched has no steps.
        if let Some(found) = history.tuned(own).filter(|found| found.steps > 0) {
            return Some(Self { conf: found.conf.clone(), reason: found.reason.clone() });
        }
        let found = match space.conf_choice() {
            ConfChoice::Any => knowledge.tuned_alloc_conf(own)?,
            ConfChoice::Listed(_) => return None,
        };
        Some(Self { conf: found.conf, reason: found.reason })
    }
}

fn why_changed(
    point: &Point,
    conf: &str,
    found: Option<Found>,
    history: &History,
    knowledge: &dyn Knowledge,
) -> String {
    if let Some(found) = found.filter(|found| found.conf.as_deref() == Some(conf)) {
        return found.reason;
    }
    let breach = knowledge.expect(Kind::of(point), point.batch_size).and_then(|expected| expected.breach);
    match breach.filter(|_| history.measured(&own_settings(point)).is_none()) {
        Some(breach) => format!("`{conf}`: under the program's own settings the batch {breach}"),
        None => format!("`{conf}` holds the least of the settings that were tried, by replay"),
    }
}

/// What the soak of a point with other settings came to beside that under the program's own, where there is one or was to be.
fn compared(point: &Point, history: &History) -> Option<String> {
    let soak = history.soaked(point)?;
    let own = own_settings(point);
    let reserved = format!("soaked: {} reserved", reserved(soak));
    Some(match history.soaked(&own) {
        None => {
            history.measured(&own).filter(|trial| trial.is_safe())?;
            "not compared with a soak under the program's own settings, since the study ended first (hint: `--resume`)"
                .to_owned()
        }
        Some(other) if other.record.completed() => {
            let own = self::reserved(other);
            format!("{reserved}, {own} under the program's own settings{}", but(other))
        }
        Some(other) => format!("{reserved}; under the program's own settings the soak broke: {}", brief(other)),
    })
}

/// What is to be said against a soak that came to its end.
fn but(soak: &JudgedTrial) -> String {
    let outlook = soak.record.outlook.as_ref().and_then(|outlook| outlook.breach.as_ref());
    match outlook {
        Some(breach) => format!(", whose run breaks at step {} by forecast", breach.step),
        None if soak.is_safe() => String::new(),
        None => format!(", which break a rule: {}", brief(soak)),
    }
}

/// Why a soak is not safe, without what would help: the settings that are told of do.
fn brief(soak: &JudgedTrial) -> String {
    let reason = breach_reason(soak);
    reason.split(" (hint: ").next().unwrap_or(&reason).to_owned()
}

/// Why the program's own settings.
fn why_own(point: &Point, found: Option<Found>, history: &History) -> Option<String> {
    let is_changed = |other: &Point| other.alloc_conf.is_some() && own_settings(other) == *point;
    let mut tried = history.trials().iter().rev().filter(|trial| is_changed(&trial.record.spec.point));
    let soak = tried.clone().find(|trial| trial.record.spec.is_soak());
    let measured = tried.find(|trial| trial.record.spec.is_measuring());
    let conf = |trial: &JudgedTrial| trial.record.spec.point.alloc_conf.clone().unwrap_or_default();
    match (soak, history.soaked(point), measured) {
        (Some(soak), Some(own), _) if soak.is_safe() && own.is_safe() => {
            Some(format!("`{}` holds less by replay, but soaked: {}", conf(soak), not_worth_it(soak, own)))
        }
        (Some(soak), ..) if !soak.is_safe() => {
            Some(format!("`{}` holds less by replay, but its soak broke: {}", conf(soak), brief(soak)))
        }
        (.., Some(trial)) => {
            Some(format!("`{}` holds less by replay, and the runs did not confirm that it is as good", conf(trial)))
        }
        _ => found.filter(|found| found.conf.is_none()).map(|found| found.reason),
    }
}

fn not_worth_it(soak: &JudgedTrial, own: &JudgedTrial) -> String {
    let (changed, kept) = (reserved(soak), reserved(own));
    let rate = |trial: &JudgedTrial| trial.samples_per_second().unwrap_or(0.0);
    if is_slower(soak, own) {
        let (slow, fast) = (rate(soak), rate(own));
        return format!(
            "{changed} reserved at {slow:.1} samples/s, {kept} at {fast:.1} under the program's own settings, which are \
             faster"
        );
    }
    format!("{changed} reserved, {kept} under the program's own settings, which stay where nothing is won")
}

fn reserved(trial: &JudgedTrial) -> Bytes {
    Bytes(trial.record.measurement.as_ref().map_or(0, |measurement| measurement.peak_reserved_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::forecast::Method;
    use crate::search::knowledge::Nothing;
    use crate::search::recommend::standing;
    use crate::search::rules::testing::{completed, sample};
    use crate::search::scripted::plan;
    use crate::search::{Space, Verdict};
    use crate::trial::{Measurement, Outcome, Purpose, TrialRecord, TrialSpec, TunedRun};
    use crate::units::MIB;

    const CONF: &str = "expandable_segments:True";
    /// C of the samples.
    const LIMIT_MIB: u64 = 1000;

    fn space() -> Space {
        let mut plan = plan(8);
        plan.search.alloc_conf = crate::config::resolve::USUAL_CONFS.map(str::to_owned).to_vec();
        Space::new(&plan)
    }

    fn own() -> Point {
        space().point(space().pair_of(8), space().first_loader())
    }

    fn changed() -> Point {
        Point { alloc_conf: Some(CONF.to_owned()), ..own() }
    }

    fn ran(point: Point, purpose: Purpose, reserved_mib: u64, samples_per_second: f64) -> JudgedTrial {
        let limited = crate::memory::MemorySample { limit_bytes: LIMIT_MIB * MIB, ..sample(4) };
        let record = completed(point, vec![limited]);
        let peak_reserved_bytes = reserved_mib * MIB;
        let measurement = record.measurement.map(|measurement| Measurement {
            samples_per_second,
            peak_reserved_bytes,
            ..measurement
        });
        let spec = TrialSpec { purpose, ..record.spec };
        JudgedTrial { record: TrialRecord { spec, measurement, ..record }, verdict: Verdict::default() }
    }

    /// Both were measured, settings were found, and these soaks ran.
    fn history(soaks: impl IntoIterator<Item = JudgedTrial>) -> History {
        let mut history = History::default();
        history.tell(ran(own(), Purpose::Ladder, 500, 100.0));
        history.tell(ran(changed(), Purpose::Allocator, 450, 100.0));
        let (conf, reason) = (Some(CONF.to_owned()), "it holds less".to_owned());
        history.tell_tuned(
            own(),
            TunedRun { method: Method::Exact, steps: 10, horizon_steps: 10, conf, next: Vec::new(), reason },
        );
        soaks.into_iter().for_each(|soak| history.tell(soak));
        history
    }

    /// Which settings are recommended, and why.
    fn answer(history: &History) -> (bool, String) {
        let point = standing(history, &space()).point().unwrap().clone();
        let reason = allocator_reason(&point, history, &Nothing, &space()).unwrap();
        (point.alloc_conf.is_some(), reason)
    }

    fn soaked(changed_mib: u64, changed_rate: f64) -> (bool, String) {
        answer(&history([
            ran(changed(), Purpose::Soak, changed_mib, changed_rate),
            ran(own(), Purpose::Soak, 500, 100.0),
        ]))
    }

    #[test]
    fn settings_that_hold_less_by_more_than_a_hundredth_of_the_limit_are_recommended_with_both_figures() {
        let reason = "it holds less; soaked: 480.0 MiB reserved, 500.0 MiB under the program's own settings";
        assert_eq!(soaked(480, 99.6), (true, reason.to_owned()));
        assert!(soaked(489, 100.0).0);
    }

    #[test]
    fn settings_that_win_less_or_cost_speed_give_way_to_the_program_s_own_whatever_else_they_do() {
        let stays = "`expandable_segments:True` holds less by replay, but soaked: 490.0 MiB reserved, 500.0 MiB under the \
                     program's own settings, which stay where nothing is won";
        assert_eq!(soaked(490, 100.0), (false, stays.to_owned()));
        // Faster is not what they are for.
        assert!(!soaked(500, 120.0).0 && !soaked(600, 120.0).0);
        let faster = "`expandable_segments:True` holds less by replay, but soaked: 300.0 MiB reserved at 99.0 samples/s, \
                      500.0 MiB at 100.0 under the program's own settings, which are faster";
        assert_eq!(soaked(300, 99.0), (false, faster.to_owned()));
    }

    #[test]
    fn a_soak_that_never_ran_or_broke_is_told() {
        let soak = || ran(changed(), Purpose::Soak, 450, 100.0);
        let missing = answer(&history([soak()]));
        assert!(missing.0 && missing.1.starts_with("it holds less; not compared with a soak under"), "{missing:?}");
        let mut broken = ran(own(), Purpose::Soak, 0, 0.0);
        broken.record.outcome = Outcome::TimedOut { seconds: 9.0 };
        let (is_changed, reason) = answer(&history([soak(), broken]));
        let words = "it holds less; soaked: 450.0 MiB reserved; under the program's own settings the soak broke: ";
        assert!(is_changed && reason.starts_with(words), "{reason}");
        // And the other way round.
        let mut broken = soak();
        broken.record.outcome = Outcome::TimedOut { seconds: 9.0 };
        let (is_changed, reason) = answer(&history([broken, ran(own(), Purpose::Soak, 500, 100.0)]));
        assert!(!is_changed && reason.contains("holds less by replay, but its soak broke: "), "{reason}");
    }

    #[test]
    fn settings_that_were_listed_or_never_tried_say_what_there_is_to_say() {
        let mut history = History::default();
        history.tell(ran(changed(), Purpose::Ladder, 450, 100.0));
        let listed = allocator_reason(&changed(), &history, &Nothing, &space()).unwrap();
        assert_eq!(listed, "`expandable_segments:True` holds the least of the settings that were tried, by replay");
        assert_eq!(allocator_reason(&own(), &History::default(), &Nothing, &space()), None);
    }
}

//! Why a recommended point has its settings of PyTorch's allocator, in a sentence: what the search for them found, and what
//! its soak and the one under the program's own settings came to.

use super::knowledge::Kind;
use super::recommend::{is_slower, own_settings};
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
        if !space.may_tune_allocator() {
            return None;
        }
        // A run that could not be searched has no steps.
        if let Some(found) = history.tuned(own).filter(|found| found.steps > 0) {
            return Some(Self { conf: found.conf.clone(), reason: found.reason.clone() });
        }
        let found = knowledge.tuned_alloc_conf(own)?;
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

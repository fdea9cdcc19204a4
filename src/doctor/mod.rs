//! The doctor room: whether this machine is fit for a training run, and what to change where it is not.
//!
//! [`Facts`] are gathered first, from NVML, `/proc`, `/sys` and the environment; no device is opened, so what only an open
//! one could tell (memory pools) is inferred from the driver and the card's generation, and said to be. Then [`examine`]
//! judges them: a pure function, so that machines nobody has at hand are judged in tests.
//!
//! A [`Finding`] says what was found, what it means and what to do. Its [`Level`] decides the exit code: a problem, which
//! will break a run, is worth 3, no card 4 whatever else there is, all else 0.
//!
//! # To add a check
//! Add what it needs to [`Facts`], and a function to the file of its subject that gives a [`Finding`].

mod card;
mod driver;
mod environment;
mod facts;
mod host;
mod links;
mod occupancy;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::exit_code;

pub use facts::{CardFacts, DriverFacts, Environment, Facts, PairFacts, SlurmFacts};
pub use links::PairView;
pub use occupancy::{CardView, ProcessView};

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Fine,
    /// Worth knowing.
    Note,
    /// May slow a run down or break one.
    Warning,
    /// Will break a run.
    Problem,
}

/// Something that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, such as `driver`.
    pub check: &'static str,
    /// Which card, as CUDA counts them, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card: Option<usize>,
    /// Which other card, where it is about two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_card: Option<usize>,
    /// How serious it is.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What it means.
    pub meaning: String,
    /// What to do, where something is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Finding {
    fn new(check: &'static str, level: Level, found: impl Into<String>, meaning: impl Into<String>) -> Self {
        Self { check, card: None, other_card: None, level, found: found.into(), meaning: meaning.into(), advice: None }
    }

    fn advise(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }

    fn of_card(self, card: usize) -> Self {
        Self { card: Some(card), ..self }
    }
}

/// What it comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Nothing will break a run.
    Fine,
    /// Something will.
    Problem,
    /// There is no card to run on.
    NoDevice,
}

/// All that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// `batchtune/doctor/v1`.
    pub schema: &'static str,
    /// What it comes to.
    pub status: Status,
    /// Every check, in the order of driver, cards, their links, host, environment.
    pub findings: Vec<Finding>,
    /// What is used of each card, and by whom.
    pub cards: Vec<CardView>,
    /// How each pair of cards is connected; of one card there is none.
    pub links: Vec<PairView>,
}

impl Diagnosis {
    /// The exit code of `tune doctor`.
    pub fn exit_code(&self) -> u8 {
        match self.status {
            Status::Fine => exit_code::SAFE,
            Status::Problem => exit_code::NO_SAFE_CONFIGURATION,
            Status::NoDevice => exit_code::DEVICE_UNAVAILABLE,
        }
    }
}

/// Judges a machine.
pub fn examine(facts: &Facts) -> Diagnosis {
    let mut findings = driver::examine(facts);
    findings.extend(facts.cards.iter().enumerate().flat_map(|(index, card)| card::examine(index, card, facts)));
    findings.extend(links::examine(facts));
    findings.extend(host::examine(&facts.host));
    findings.extend(environment::examine(facts));
    let status = match findings.iter().map(|finding| finding.level).max() {
        _ if facts.cards.is_empty() => Status::NoDevice,
        Some(Level::Problem) => Status::Problem,
        _ => Status::Fine,
    };
    Diagnosis {
        schema: "batchtune/doctor/v1",
        status,
        findings,
        cards: occupancy::view(&facts.cards),
        links: links::view(&facts.links),
    }
}

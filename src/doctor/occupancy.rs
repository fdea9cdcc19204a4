//! What is used of each card, and by whom, for files and tables. Whether it is too much is judged in
//! [`card`](super::card).

use serde::Serialize;

use super::CardFacts;
use crate::text::harmless;

/// Processes of a card that are listed.
const LISTED: usize = 64;

/// A card's occupancy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CardView {
    /// As CUDA counts them.
    pub card: usize,
    /// Its name.
    pub name: String,
    /// All its memory.
    pub total_bytes: u64,
    /// What is in use, the driver's own included.
    pub used_bytes: u64,
    /// Who uses it, the largest first.
    pub processes: Vec<ProcessView>,
}

/// A process that holds memory of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessView {
    /// Its number; absent where a container hides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its name, where it may be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it holds, where the driver tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// Every card.
pub(super) fn view(cards: &[CardFacts]) -> Vec<CardView> {
    let card = |(card, facts): (usize, &CardFacts)| CardView {
        card,
        name: harmless(&facts.name),
        total_bytes: facts.total_bytes,
        used_bytes: facts.total_bytes.saturating_sub(facts.free_bytes),
        processes: facts
            .processes
            .iter()
            .take(LISTED)
            .map(|process| ProcessView {
                pid: process.pid,
                name: process.name.as_deref().map(harmless),
                bytes: process.bytes,
            })
            .collect(),
    };
    cards.iter().enumerate().map(card).collect()
}

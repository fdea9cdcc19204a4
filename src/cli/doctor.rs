//! `tune doctor`: whether this machine is fit for a training run.

use std::fmt::Write;
use std::path::Path;

use super::{Form, print_result};
use crate::doctor::{self, CardView, Diagnosis, Facts, Finding, Level, ProcessView, Status};
use crate::error::Error;
use crate::units::{Bytes, plural};

/// Processes of a card that the table names.
const USERS: usize = 4;

pub(super) fn run(form: Form) -> Result<u8, Error> {
    let diagnosis = doctor::examine(&Facts::gather(Path::new("/")));
    match form {
        Form::Json => print_result(&format!("{}\n", super::to_json(&diagnosis)))?,
        Form::Table => print_result(&words(&diagnosis))?,
    }
    Ok(diagnosis.exit_code())
}

fn words(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for finding in &diagnosis.findings {
        let subject = match (finding.card, finding.other_card) {
            (Some(one), Some(other)) => format!("cuda:{one} and cuda:{other} "),
            (Some(card), None) => format!("cuda:{card} "),
            (None, _) => String::new(),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:<8}{subject}{}", mark(finding.level), finding.found);
        let _ = writeln!(text, "        {}", finding.meaning);
        if let Some(advice) = finding.advice.as_ref().filter(|_| finding.level > Level::Fine) {
            let _ = writeln!(text, "        → {advice}");
        }
    }
    if diagnosis.cards.len() > 1 {
        table(&mut text, diagnosis);
    }
    let _ = writeln!(text, "\n{}", verdict(diagnosis));
    text
}

/// Several cards: what is used of each, and how it is connected to the others, as `nvidia-smi topo -m` shows it.
fn table(text: &mut String, diagnosis: &Diagnosis) {
    let cards = &diagnosis.cards;
    // Writing to a String cannot fail.
    let _ = write!(text, "\n{:<8}{:>10}{:>11}", "card", "used", "of");
    for card in cards {
        let _ = write!(text, "{:>8}", format!("cuda:{}", card.card));
    }
    let _ = writeln!(text, "  used by");
    for card in cards {
        let _ = write!(text, "{:<8}", format!("cuda:{}", card.card));
        let _ = write!(text, "{:>10}{:>11}", Bytes(card.used_bytes).to_string(), Bytes(card.total_bytes).to_string());
        for other in cards {
            let link = diagnosis
                .links
                .iter()
                .find(|pair| pair.cards == [card.card, other.card] || pair.cards == [other.card, card.card]);
            let shown = if card.card == other.card { "X" } else { link.map_or("?", |pair| pair.link.as_str()) };
            let _ = write!(text, "{shown:>8}");
        }
        let _ = writeln!(text, "  {}", users(card));
    }
}

fn users(card: &CardView) -> String {
    let user = |process: &ProcessView| {
        let name = process.name.clone().or(process.pid.map(|pid| format!("process {pid}")));
        let held = process.bytes.map_or_else(String::new, |bytes| format!(" {}", Bytes(bytes)));
        format!("{}{held}", name.unwrap_or_else(|| "unknown".to_owned()))
    };
    let mut users: Vec<String> = card.processes.iter().take(USERS).map(user).collect();
    if card.processes.len() > USERS {
        users.push(format!("{} more", card.processes.len() - USERS));
    }
    if users.is_empty() { "nobody".to_owned() } else { users.join(", ") }
}

fn mark(level: Level) -> &'static str {
    match level {
        Level::Fine => "ok",
        Level::Note => "note",
        Level::Warning => "warning",
        Level::Problem => "PROBLEM",
    }
}

fn verdict(diagnosis: &Diagnosis) -> String {
    let count = |level| diagnosis.findings.iter().filter(|finding: &&Finding| finding.level == level).count();
    let warnings = plural(count(Level::Warning), "warning");
    match diagnosis.status {
        Status::NoDevice => format!("No card can be used here; {warnings} on the rest."),
        Status::Problem => format!("{} will break a run; {warnings}.", plural(count(Level::Problem), "problem")),
        Status::Fine => format!("Fit for a run; {warnings}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::PairView;

    #[test]
    fn several_cards_are_a_table_and_one_is_none() {
        let card = |card| CardView {
            card,
            name: "NVIDIA H200".to_owned(),
            total_bytes: 140 << 30,
            used_bytes: 12 << 30,
            processes: vec![ProcessView { pid: Some(7), name: None, bytes: Some(1 << 30) }; 5],
        };
        let link = PairView {
            cards: [0, 1],
            link: "NV18".to_owned(),
            nvlinks: 18,
            nvlink_version: Some(4),
            pcie: Some("NODE"),
            peer_access: Some("works"),
        };
        let diagnosis = |cards: Vec<CardView>| {
            let links = vec![link.clone()];
            Diagnosis { schema: "batchtune/doctor/v1", status: Status::Fine, findings: Vec::new(), cards, links }
        };
        let two = words(&diagnosis(vec![card(0), card(1)]));
        let rows: Vec<&str> = two.lines().collect();
        assert_eq!(rows[1], "card          used         of  cuda:0  cuda:1  used by");
        let users = "process 7 1.0 GiB, process 7 1.0 GiB, process 7 1.0 GiB, process 7 1.0 GiB, 1 more";
        assert_eq!(rows[2], format!("cuda:0    12.0 GiB  140.0 GiB       X    NV18  {users}"));
        assert_eq!(rows[3], format!("cuda:1    12.0 GiB  140.0 GiB    NV18       X  {users}"));
        assert!(!words(&diagnosis(vec![card(0)])).contains("used by"));
    }
}

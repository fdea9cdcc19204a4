//! Where a worker runs, as it says itself in its hello, and where a trial ran, as its record keeps it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::device::DeviceFacts;
use crate::device::facts::{self, Processors};

/// Slurm's number of a job, in the environment of what runs in it.
pub(super) const JOB_VARIABLE: &str = "SLURM_JOB_ID";
/// Slurm's number of a step.
pub(super) const STEP_VARIABLE: &str = "SLURM_STEP_ID";
/// Slurm's name of the machine, which need not be its own.
const NODE_VARIABLE: &str = "SLURMD_NODENAME";
/// The longest host name that is one (RFC 1035).
const LONGEST_NODE: usize = 255;
/// The longest number that is an id.
const LONGEST_ID: usize = 20;
/// The longest text that tells machines apart: a UUID.
const LONGEST_MACHINE: usize = 64;

/// Where a worker runs. What is not known, or cannot be right, is `None`: the values end in command lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The machine's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Slurm's number of the job, where it runs in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_job_id: Option<String>,
    /// Slurm's number of the step, where it runs in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_step_id: Option<String>,
    /// What tells the machine from others, whatever its name: a scheduler may have several nodes on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// The processors that it may run on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<Processors>,
}

impl Place {
    /// Where this process runs.
    pub fn here() -> Self {
        let root = Path::new("/");
        let machine = facts::machine(root);
        let place = Self::of(|name| std::env::var(name).ok(), &facts::hostname(root));
        Self { machine, processors: facts::processors(root), ..place }.checked()
    }

    /// Where a process with these variables runs.
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>, hostname: &str) -> Self {
        let place = Self {
            node: variable(NODE_VARIABLE).or_else(|| Some(hostname.to_owned())),
            slurm_job_id: variable(JOB_VARIABLE),
            slurm_step_id: variable(STEP_VARIABLE),
            ..Self::default()
        };
        place.checked()
    }

    /// Whether both are on one machine, as far as is known.
    pub fn is_with(&self, other: &Self) -> bool {
        match (&self.machine, &other.machine) {
            (Some(own), Some(other)) => own == other,
            _ => self.node == other.node,
        }
    }

    /// Whether what runs at both places takes processors from each other. Where a scheduler gives each worker processors
    /// of its own, it does not.
    pub fn competes_with(&self, other: &Self) -> bool {
        let overlap = match (&self.processors, &other.processors) {
            (Some(own), Some(other)) => own.overlap(other),
            _ => true,
        };
        overlap && self.is_with(other)
    }

    /// The place without what cannot be right. A worker is another machine's program: what it says must not become an
    /// option of a command.
    #[must_use]
    pub fn checked(self) -> Self {
        let is_id = |id: &String| (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_digit());
        Self {
            node: self.node.filter(|node| is_host_name(node)),
            slurm_job_id: self.slurm_job_id.filter(is_id),
            slurm_step_id: self.slurm_step_id.filter(is_id),
            machine: self.machine.filter(|machine| is_machine(machine)),
            processors: self.processors,
        }
    }
}

/// Where a trial ran: behind a launcher each may run on another machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerFacts {
    /// The machine's name.
    pub node: String,
    /// The device: `cpu` or `cuda:0`.
    pub device: String,
    /// The product name of the card or of the processor.
    pub name: String,
    /// The card's UUID, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The driver's version, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Slurm's number of the job, where it ran in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_job_id: Option<String>,
    /// Slurm's number of the step, where it ran in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_step_id: Option<String>,
}

impl WorkerFacts {
    /// What a worker at `place` with this device is.
    pub fn new(place: &Place, facts: &DeviceFacts) -> Self {
        Self {
            node: place.node.clone().unwrap_or_else(|| facts.hostname.clone()),
            device: facts.device.clone(),
            name: facts.name.clone(),
            uuid: facts.uuid.clone(),
            driver: facts.driver.clone(),
            slurm_job_id: place.slurm_job_id.clone(),
            slurm_step_id: place.slurm_step_id.clone(),
        }
    }
}

fn is_host_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    text.len() <= LONGEST_NODE
        && text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && text.bytes().all(is_allowed)
}

fn is_machine(text: &str) -> bool {
    (1..=LONGEST_MACHINE).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_become_an_option_is_not_believed() {
        let place = Place {
            node: Some("-oProxyCommand=reboot".to_owned()),
            slurm_job_id: Some("--user=root".to_owned()),
            slurm_step_id: Some("0; reboot".to_owned()),
            machine: Some("\u{1b}[2J".to_owned()),
            processors: None,
        };
        assert_eq!(place.checked(), Place::default());
        let place = Place { node: Some(String::new()), slurm_job_id: Some(String::new()), ..Place::default() };
        assert_eq!(place.checked(), Place::default());
        let good = Place {
            node: Some("gpu-07.cluster".to_owned()),
            slurm_job_id: Some("4711".to_owned()),
            slurm_step_id: Some("0".to_owned()),
            machine: Some("2f6b0e0c-77".to_owned()),
            processors: Some("0-3".parse().unwrap()),
        };
        assert_eq!(good.clone().checked(), good);
    }

    fn at(machine: Option<&str>, node: &str, processors: &str) -> Place {
        Place {
            node: Some(node.to_owned()),
            machine: machine.map(str::to_owned),
            processors: processors.parse().ok(),
            ..Place::default()
        }
    }

    #[test]
    fn who_is_on_one_machine_competes_unless_each_has_processors_of_its_own() {
        let first = at(Some("a"), "n1", "0-3");
        assert!(first.competes_with(&at(Some("a"), "n2", "2-5")), "two nodes of one machine");
        assert!(first.is_with(&at(Some("a"), "n2", "4-7")) && !first.competes_with(&at(Some("a"), "n2", "4-7")));
        assert!(!first.is_with(&at(Some("b"), "n1", "0-3")) && !first.competes_with(&at(Some("b"), "n1", "0-3")));
        assert!(first.competes_with(&at(None, "n1", "")) && !first.competes_with(&at(None, "n2", "")));
        assert!(Place::here().competes_with(&Place::here()) && Place::default().competes_with(&Place::default()));
    }

    #[test]
    fn slurm_s_name_of_a_machine_goes_before_its_own() {
        let of = |name: &str| (name == NODE_VARIABLE).then(|| "n1".to_owned());
        assert_eq!(Place::of(of, "host").node.as_deref(), Some("n1"));
        assert_eq!(Place::of(|_| None, "host").node.as_deref(), Some("host"));
    }

    #[test]
    fn a_hello_of_an_earlier_version_says_nothing_of_it() {
        assert_eq!(serde_json::from_str::<Place>("{}").unwrap(), Place::default());
    }
}

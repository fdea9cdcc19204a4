//! Where a worker runs, as it says itself in its hello, and where a trial ran, as its record keeps it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::device::{DeviceFacts, facts};

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
}

impl Place {
    /// Where this process runs.
    pub fn here() -> Self {
        Self::of(|name| std::env::var(name).ok(), &facts::hostname(Path::new("/")))
    }

    /// Where a process with these variables runs.
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>, hostname: &str) -> Self {
        let place = Self {
            node: variable(NODE_VARIABLE).or_else(|| Some(hostname.to_owned())),
            slurm_job_id: variable(JOB_VARIABLE),
            slurm_step_id: variable(STEP_VARIABLE),
        };
        place.checked()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_become_an_option_is_not_believed() {
        let place = Place {
            node: Some("-oProxyCommand=reboot".to_owned()),
            slurm_job_id: Some("--user=root".to_owned()),
            slurm_step_id: Some("0; reboot".to_owned()),
        };
        assert_eq!(place.checked(), Place::default());
        let place = Place { node: Some(String::new()), slurm_job_id: Some(String::new()), slurm_step_id: None };
        assert_eq!(place.checked(), Place::default());
        let good = Place {
            node: Some("gpu-07.cluster".to_owned()),
            slurm_job_id: Some("4711".to_owned()),
            slurm_step_id: Some("0".to_owned()),
        };
        assert_eq!(good.clone().checked(), good);
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

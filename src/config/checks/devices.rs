//! `device` and `devices`: one, or several that are of one kind.

use super::Checks;
use crate::config::leaf::list::Devices;
use crate::config::leaf::text::DeviceName;
use crate::config::plan::DevicesPlan;
use crate::config::problem::ProblemKind;
use crate::device::DeviceChoice;
use crate::units::plural;

/// The longest list. No machine has as many cards, and every device is a thread and a process.
const MOST: usize = 64;

impl Checks<'_> {
    /// The device, or the first of several, and all of them.
    pub(super) fn devices(&mut self) -> (DeviceChoice, DevicesPlan) {
        let device = self.file.device.0;
        let devices = &self.file.devices;
        if *devices == Devices::Auto {
            return (device, DevicesPlan::One);
        }
        let is_sound = self.sound(&["device", "devices"]);
        if device != DeviceChoice::Auto && is_sound {
            let message = "`device` and `devices` exclude each other, and both are given";
            self.problems.push(self.located.problem_with_key(ProblemKind::Conflict, "devices", message));
        } else if self.file.launcher.is_some() && is_sound {
            let message = "the launcher chooses the devices";
            let problem = self.located.problem_with_key(ProblemKind::Conflict, "devices", message);
            self.problems.push(problem.with_hint("`launcher.workers` says how many"));
        }
        let found = match devices {
            Devices::Some(list) => self.listed(list),
            Devices::Auto | Devices::All => (device, DevicesPlan::All),
        };
        if self.sound(&["target.replicas"]) {
            self.check_groups(&found.1);
        }
        found
    }

    /// A trial takes as many devices as there are replicas.
    fn check_groups(&mut self, plan: &DevicesPlan) {
        let replicas = self.file.target.replicas.get();
        if replicas > 1 && self.file.command.is_some() && *plan != DevicesPlan::One {
            let message = "trials of a `command` side by side and its ranks are not supported together yet";
            let problem = self.located.problem_with_key(ProblemKind::NotSupported, "devices", message);
            self.problems.push(problem.with_hint("leave the key out"));
        } else if let Devices::Some(list) = &self.file.devices
            && (1..replicas).contains(&(list.len() as u64))
        {
            let listed = plural(list.len(), "device");
            let message = format!("{listed} listed, and a trial takes {replicas} (`target.replicas`)");
            self.refuse(ProblemKind::Conflict, "devices", &message);
        }
    }

    fn listed(&mut self, list: &[DeviceName]) -> (DeviceChoice, DevicesPlan) {
        let devices: Vec<DeviceChoice> = list.iter().take(MOST).map(|name| name.0).collect();
        if list.len() > MOST {
            let message = format!("{} devices, more than {MOST}", list.len());
            self.refuse(ProblemKind::InvalidValue, "devices", &message);
        }
        let Some(first) = devices.first().copied() else {
            self.refuse(ProblemKind::InvalidValue, "devices", "an empty list, expected at least one device");
            return (DeviceChoice::Auto, DevicesPlan::One);
        };
        if devices.len() == 1 {
            return (first, DevicesPlan::One);
        }
        for (at, device) in devices.iter().enumerate() {
            let key = format!("devices[{at}]");
            let is_again = devices.iter().take(at).any(|before| before == device);
            match device {
                DeviceChoice::Auto => {
                    self.refuse(ProblemKind::InvalidValue, &key, "`auto` in a list, where each device is named");
                }
                // A virtual device has memory of its own, a card one for all that run on it.
                DeviceChoice::Cuda(_) if is_again => {
                    let message = format!("`{device}` twice: two trials on a card take its memory from each other");
                    self.refuse(ProblemKind::Conflict, &key, &message);
                }
                DeviceChoice::Cpu if first != DeviceChoice::Cpu => self.refuse_kind(&key, *device, first),
                DeviceChoice::Cuda(_) if first == DeviceChoice::Cpu => self.refuse_kind(&key, *device, first),
                DeviceChoice::Cpu | DeviceChoice::Cuda(_) => {}
            }
        }
        (first, DevicesPlan::Listed(devices))
    }

    fn refuse_kind(&mut self, key: &str, device: DeviceChoice, first: DeviceChoice) {
        let message = format!("`{device}` beside `{first}`: what is measured on one says nothing of the other");
        self.refuse(ProblemKind::Conflict, key, &message);
    }
}

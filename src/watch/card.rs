//! The card as NVML shows it.

use super::{Subject, WatchError};
use crate::device::DeviceChoice;
use crate::device::nvml::{CardId, Monitor};
use crate::device::visible::{VISIBLE_DEVICES, visible};

/// A card that can be looked at.
#[derive(Debug)]
pub struct Card {
    monitor: Monitor,
    uuid: String,
}

impl Card {
    /// Finds the card of a device as CUDA counts them, `auto` being the first, and says what it is.
    pub fn open(device: DeviceChoice) -> Result<(Self, Subject), WatchError> {
        let ordinal = match device {
            DeviceChoice::Cpu => return Err(WatchError::Cpu),
            DeviceChoice::Auto => 0,
            DeviceChoice::Cuda(ordinal) => ordinal,
        };
        let monitor = Monitor::open()?;
        let cards = visible(std::env::var(VISIBLE_DEVICES).ok().as_deref(), monitor.cards()?);
        let Some(named) = cards.get(ordinal) else {
            return Err(WatchError::NoSuchCard { device: DeviceChoice::Cuda(ordinal), count: cards.len() });
        };
        let card = monitor.card(named.id())?;
        let subject =
            Subject { name: card.name, uuid: card.uuid.clone(), total_bytes: card.total_bytes, ..Subject::default() };
        Ok((Self { monitor, uuid: card.uuid }, subject))
    }

    /// What of its memory is in use now; `None` if it does not answer.
    pub fn used_bytes(&self) -> Option<u64> {
        self.monitor.used_bytes(self.id()).ok()
    }

    /// How busy it is, where it tells.
    pub fn utilisation_percent(&self) -> Option<u32> {
        self.monitor.utilisation_percent(self.id())
    }

    /// Who holds memory of it, by the driver's numbers, and how much where it tells.
    pub fn holders(&self) -> Vec<(u32, Option<u64>)> {
        self.monitor.holders(self.id()).unwrap_or_default()
    }

    fn id(&self) -> CardId<'_> {
        CardId::Uuid(&self.uuid)
    }
}

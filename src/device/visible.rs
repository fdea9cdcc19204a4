//! Which cards CUDA shows to a process.
//!
//! CUDA numbers the cards that `CUDA_VISIBLE_DEVICES` leaves, NVML all of them; the UUID is the name that both share. So
//! `cuda:1` is looked up in the variable first.

use super::nvml::{CardId, Monitor};

/// The variable that says which cards a process may see.
pub(crate) const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// One of the cards that a process may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Visible {
    /// By NVML's index.
    Index(u32),
    /// By its UUID.
    Uuid(String),
}

impl Visible {
    /// Its name for NVML.
    pub(crate) fn id(&self) -> CardId<'_> {
        match self {
            Self::Index(index) => CardId::Index(*index),
            Self::Uuid(uuid) => CardId::Uuid(uuid),
        }
    }
}

/// The cards that `CUDA_VISIBLE_DEVICES` leaves of `cards`. As with CUDA, the list ends at the first name that is no
/// card's. (CUDA C++ Programming Guide, "CUDA Environment Variables")
pub(crate) fn visible(variable: Option<&str>, cards: u32) -> Vec<Visible> {
    let Some(list) = variable else { return (0..cards).map(Visible::Index).collect() };
    let card = |name: &str| {
        let name = name.trim();
        match name.parse::<u32>() {
            Ok(index) => (index < cards).then_some(Visible::Index(index)),
            Err(_) => name.starts_with("GPU-").then(|| Visible::Uuid(name.to_owned())),
        }
    };
    list.split(',').map_while(card).collect()
}

/// How many cards this process may see; none where NVML does not tell.
pub(crate) fn count() -> usize {
    let Ok(cards) = Monitor::open().and_then(|monitor| monitor.cards()) else { return 0 };
    visible(std::env::var(VISIBLE_DEVICES).ok().as_deref(), cards).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_cards_are_those_of_the_variable_in_its_order() {
        let index = |list: &[u32]| list.iter().copied().map(Visible::Index).collect::<Vec<_>>();
        assert_eq!(visible(None, 2), index(&[0, 1]));
        assert_eq!(visible(Some("1, 0"), 2), index(&[1, 0]));
        assert_eq!(visible(Some(""), 2), []);
        assert_eq!(visible(Some("1,7,0"), 2), index(&[1]));
        assert_eq!(visible(Some("-1"), 2), []);
        assert_eq!(visible(Some("GPU-ab"), 0), [Visible::Uuid("GPU-ab".to_owned())]);
    }
}

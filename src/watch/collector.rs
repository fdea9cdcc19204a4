//! Looks at a card become samples: one an interval, with the lowest and the highest of all looks within it.
//!
//! A second is long for an allocator: memory given back and taken again within one would not be seen.

use super::{Holder, Sample};

/// Collects the looks of one interval.
#[derive(Clone, Copy, Debug, Default)]
pub struct Collector {
    seen: Option<(u64, u64)>,
}

impl Collector {
    /// What of the card is in use at a moment within the interval.
    pub fn look(&mut self, used_bytes: u64) {
        let (low, high) = self.seen.unwrap_or((used_bytes, used_bytes));
        self.seen = Some((low.min(used_bytes), high.max(used_bytes)));
    }

    /// Ends the interval at `at_seconds` with the last look, and begins the next.
    pub fn end(
        &mut self,
        at_seconds: f64,
        used_bytes: u64,
        utilisation_percent: Option<u32>,
        processes: Vec<Holder>,
    ) -> Sample {
        self.look(used_bytes);
        let (low_bytes, high_bytes) = self.seen.take().unwrap_or((used_bytes, used_bytes));
        // A millisecond is as near as the driver's answer is.
        let at_seconds = (at_seconds * 1e3).round() / 1e3;
        Sample { at_seconds, used_bytes, low_bytes, high_bytes, utilisation_percent, processes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_keeps_its_lowest_and_highest_look_and_nothing_of_the_one_before() {
        let mut collector = Collector::default();
        for used in [5, 9, 2] {
            collector.look(used);
        }
        let first = collector.end(1.0004, 4, Some(80), Vec::new());
        assert_eq!((first.low_bytes, first.used_bytes, first.high_bytes), (2, 4, 9));
        assert!((first.at_seconds - 1.0).abs() < 1e-9);
        let second = collector.end(2.0, 4, None, Vec::new());
        assert_eq!((second.low_bytes, second.high_bytes), (4, 4));
    }
}

//! Numbers that are drawn evenly between two bounds.

use std::str::FromStr;

/// Nothing longer fits on a device.
pub(super) const MAX_EXTENT: u64 = 1 << 24;

/// Numbers between two bounds, all of them or the multiples of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Bounds {
    /// The smallest.
    pub(super) min: u64,
    /// The largest.
    pub(super) max: u64,
    /// From one to the next.
    pub(super) step: u64,
}

/// Why bounds bound nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::cli) enum BoundsError {
    /// Something is no number, or one that no sample has.
    #[error("expected two lengths from 1 to {MAX_EXTENT}, such as 64:512, or a file")]
    Number,
    /// The shortest is longer than the longest.
    #[error("the shortest, `{min}`, is longer than the longest, `{max}` (hint: {max}:{min})")]
    Reversed {
        /// What stands first.
        min: u64,
        /// What stands second.
        max: u64,
    },
    /// No multiple lies between them.
    #[error("no multiple of `{step}` lies between `{min}` and `{max}`")]
    NoMultiple {
        /// What stands first.
        min: u64,
        /// What stands second.
        max: u64,
        /// What stands third.
        step: u64,
    },
}

impl FromStr for Bounds {
    type Err = BoundsError;

    /// `64:512`, `160:320:32` for multiples, or one number.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.parse().ok().filter(|number| (1..=MAX_EXTENT).contains(number));
        let numbers: Option<Vec<u64>> = text.split(':').map(number).collect();
        let (min, max, step) = match numbers.as_deref() {
            Some([only]) => (*only, *only, 1),
            Some([min, max]) => (*min, *max, 1),
            Some([min, max, step]) => (*min, *max, *step),
            _ => return Err(BoundsError::Number),
        };
        if min > max {
            return Err(BoundsError::Reversed { min, max });
        }
        let (first, last) = (min.next_multiple_of(step), max - max % step);
        if first > last {
            return Err(BoundsError::NoMultiple { min, max, step });
        }
        Ok(Self { min: first, max: last, step })
    }
}

impl Bounds {
    /// One of them for each number: from the number alone, so that a run need not be held and is the same each time.
    pub(super) fn drawn(&self, number: u64) -> u64 {
        let count = u128::from((self.max - self.min) / self.step) + 1;
        self.min + self.step * ((u128::from(mixed(number)) * count) >> 64) as u64
    }
}

/// A number without order for each number: the finaliser of SplitMix64 (Steele, Lea, and Flood, 2014).
pub(super) fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Bounds, BoundsError> {
        text.parse()
    }

    #[test]
    fn bounds_are_two_numbers_their_multiples_or_one() {
        assert_eq!(parsed("64:512"), Ok(Bounds { min: 64, max: 512, step: 1 }));
        assert_eq!(parsed("150:330:32"), Ok(Bounds { min: 160, max: 320, step: 32 }));
        assert_eq!(parsed("224"), Ok(Bounds { min: 224, max: 224, step: 1 }));
    }

    #[test]
    fn bounds_that_bound_nothing_say_what_is_wrong_with_them() {
        let refused = |text: &str| parsed(text).unwrap_err();
        for text in
            ["0:4", "16:", ":16", ":", "1:99999999999", "16:4294967295", "-1:5", "1:2:3:4", "1.5:2", "1:5:0", ""]
        {
            assert_eq!(refused(text), BoundsError::Number, "{text}");
        }
        let reversed = refused("512:64").to_string();
        assert_eq!(reversed, "the shortest, `512`, is longer than the longest, `64` (hint: 64:512)");
        assert_eq!(refused("33:63:32").to_string(), "no multiple of `32` lies between `33` and `63`");
    }

    #[test]
    fn numbers_are_drawn_evenly_and_the_same_each_time() {
        let mut counts = [0_u32; 4];
        let bounds = parsed("10:13").unwrap();
        for number in 0..4000 {
            counts[bounds.drawn(number) as usize - 10] += 1;
        }
        assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
        assert_eq!(bounds.drawn(17), bounds.drawn(17));
        assert_eq!(parsed("8").unwrap().drawn(3), 8);
        let multiples = parsed("160:320:32").unwrap();
        let mut drawn: Vec<u64> = (0..1000).map(|number| multiples.drawn(number)).collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn, [160, 192, 224, 256, 288, 320]);
    }
}

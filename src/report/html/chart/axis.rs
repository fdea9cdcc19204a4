//! Axes: which numbers stand at which ticks, and where they lie.

use crate::units::{Bytes, GIB, MIB};

/// What the numbers of an axis are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Whole things, such as samples or steps.
    Count,
    /// Bytes, shown in the binary unit that suits the largest.
    Bytes,
    /// Shares between 0 and 1, shown as percentages.
    Share,
    /// Anything else, in the unit that is named.
    Number(&'static str),
}

impl Unit {
    /// A value in words, as hover texts and tables have it.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Bytes => Bytes(value.max(0.0) as u64).to_string(),
            Self::Share => format!("{:.1}%", value * 100.0),
            Self::Count => trimmed(value, 1),
            Self::Number(unit) => {
                let decimals = if value.abs() < 10.0 { 3 } else { 1 };
                format!("{} {unit}", trimmed(value, decimals)).trim_end().to_owned()
            }
        }
    }
}

/// An axis before the data is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What it shows, without the unit.
    pub label: String,
    /// What its numbers are.
    pub unit: Unit,
    /// Whether 0 is on it although no value may be near.
    pub from_zero: bool,
}

impl Axis {
    /// An axis from 0.
    pub fn from_zero(label: &str, unit: Unit) -> Self {
        Self { label: label.to_owned(), unit, from_zero: true }
    }

    /// An axis over the values alone.
    pub fn fitted(label: &str, unit: Unit) -> Self {
        Self { label: label.to_owned(), unit, from_zero: false }
    }
}

/// An axis over data: a line from one number to another, with ticks.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    /// Values at which a tick stands.
    pub ticks: Vec<f64>,
    /// What a number on the axis is divided by.
    divisor: f64,
    suffix: &'static str,
    decimals: usize,
}

impl Scale {
    /// The scale of an axis over these values, with about `wanted` ticks.
    pub fn new(axis: &Axis, values: impl Iterator<Item = f64>, wanted: usize) -> Self {
        let (mut low, mut high) = values
            .filter(|value| value.is_finite())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if axis.from_zero {
            low = low.min(0.0);
        }
        if high - low <= f64::EPSILON * high.abs() {
            // One value alone: room on both sides, so that it does not lie on the frame.
            let room = if axis.unit == Unit::Count { 1.0 } else { high.abs().max(1e-9) * 0.5 };
            low = if axis.from_zero { low } else { low - room };
            high += room;
        }
        let (divisor, suffix) = display_unit(axis.unit, high.abs().max(low.abs()));
        let least = if axis.unit == Unit::Count { 1.0 } else { 0.0 };
        let step = nice((high - low) / divisor / wanted.max(1) as f64).max(least);
        // The value axis ends at a tick, so that its highest point has a number above it.
        let high = if axis.from_zero { (high / divisor / step).ceil() * step * divisor } else { high };
        let first = (low / divisor / step - 1e-9).ceil();
        let ticks = (0..64)
            .map(|number| (first + f64::from(number)) * step * divisor)
            .take_while(|tick| *tick <= high + step * divisor * 1e-9)
            .collect();
        let decimals = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
        Self { low, high, ticks, divisor, suffix, decimals }
    }

    /// Where a value lies between the ends, 0 to 1.
    pub fn place(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// A tick's number.
    pub fn number(&self, tick: f64) -> String {
        format!("{:.*}", self.decimals, tick / self.divisor)
    }

    /// The unit of the ticks' numbers; empty where they are counts.
    pub fn unit(&self) -> &'static str {
        self.suffix
    }
}

fn display_unit(unit: Unit, largest: f64) -> (f64, &'static str) {
    const TIB: u64 = GIB << 10;
    match unit {
        Unit::Count => (1.0, ""),
        Unit::Number(unit) => (1.0, unit),
        Unit::Share => (0.01, "%"),
        Unit::Bytes if largest >= TIB as f64 => (TIB as f64, "TiB"),
        Unit::Bytes if largest >= GIB as f64 => (GIB as f64, "GiB"),
        Unit::Bytes if largest >= MIB as f64 => (MIB as f64, "MiB"),
        Unit::Bytes => (1024.0, "KiB"),
    }
}

/// The smallest of 1, 2 or 5 times a power of ten that is not below `least`.
fn nice(least: f64) -> f64 {
    if !least.is_finite() || least <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= least).unwrap_or(power * 10.0)
}

/// A number with so many decimals at most, none that say nothing.
fn trimmed(value: f64, decimals: usize) -> String {
    let shown = format!("{value:.decimals$}");
    if shown.contains('.') { shown.trim_end_matches('0').trim_end_matches('.').to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(axis: &Axis, values: &[f64]) -> Vec<String> {
        let scale = Scale::new(axis, values.iter().copied(), 5);
        scale.ticks.iter().map(|tick| scale.number(*tick)).collect()
    }

    #[test]
    fn ticks_are_round_in_the_unit_that_is_shown() {
        let bytes = Axis::from_zero("memory", Unit::Bytes);
        assert_eq!(numbers(&bytes, &[37.5 * GIB as f64]), ["0", "10", "20", "30", "40"]);
        let share = Axis::from_zero("rate", Unit::Share);
        assert_eq!(numbers(&share, &[0.0, 0.3]), ["0", "10", "20", "30"]);
        let count = Axis::fitted("batch", Unit::Count);
        assert_eq!(numbers(&count, &[2.0, 4.0]), ["2", "3", "4"]);
        assert_eq!(
            numbers(&Axis::from_zero("rate", Unit::Number("/s")), &[0.004]),
            ["0.000", "0.001", "0.002", "0.003", "0.004"]
        );
    }

    #[test]
    fn nothing_and_nonsense_have_an_axis_all_the_same() {
        for values in [&[][..], &[f64::NAN, f64::INFINITY], &[0.0], &[7.0], &[f64::MAX], &[-1.0, 1e-300]] {
            for axis in [Axis::from_zero("a", Unit::Bytes), Axis::fitted("b", Unit::Count)] {
                let scale = Scale::new(&axis, values.iter().copied(), 5);
                assert!(scale.ticks.len() <= 64 && scale.place(f64::NAN).is_nan());
                assert!((0.0..=1.0).contains(&scale.place(3.0)), "{values:?}");
            }
        }
    }

    #[test]
    fn values_are_shown_with_their_unit() {
        assert_eq!(Unit::Bytes.show(1.5 * GIB as f64), "1.5 GiB");
        assert_eq!(Unit::Share.show(0.1234), "12.3%");
        assert_eq!(Unit::Count.show(12.0), "12");
        assert_eq!(Unit::Number("samples/s").show(15.58), "15.6 samples/s");
    }
}

//! A model of the step time: `t(B) = max(f, a + b·B)`, a line with a floor.
//!
//! A step at a small batch waits for kernel launches, so its time does not fall below a floor; above it every sample adds
//! the same. The model says which sizes cannot win and need no trial. It is never reported: what is reported was
//! measured. How far it is from the times that it was fitted to is kept with it, and what it says is taken with twice
//! that doubt.

/// Times that a line alone must explain, one more than it has parameters: otherwise its error would always be zero.
const LEAST_POINTS: usize = 3;
/// A floor is believed when it explains the times this much better than a line alone.
const FLOOR_GAIN: f64 = 0.5;
/// No model of a measured time is better than this.
const LEAST_ERROR: f64 = 0.01;
/// How many times the error a time may be off.
const DOUBT: f64 = 2.0;

/// The fitted model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTime {
    floor_seconds: f64,
    fixed_seconds: f64,
    per_sample_seconds: f64,
    /// The largest relative difference between the model and the times it was fitted to.
    error: f64,
}

impl StepTime {
    /// Fits times of one micro-batch, by batch size. `None` where they are too few, or none of a step.
    pub fn fit(times: &[(usize, f64)]) -> Option<Self> {
        let mut times: Vec<(f64, f64)> = times
            .iter()
            .filter(|(_, seconds)| seconds.is_finite() && *seconds > 0.0)
            .map(|(batch_size, seconds)| (*batch_size as f64, *seconds))
            .collect();
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut best = Self::with_floor_under(&times, 0)?;
        for count in 1..=times.len().saturating_sub(LEAST_POINTS) {
            if let Some(model) = Self::with_floor_under(&times, count)
                && model.error < best.error * FLOOR_GAIN
            {
                best = model;
            }
        }
        Some(best)
    }

    /// The model whose floor is the mean of the `count` smallest sizes' times.
    fn with_floor_under(times: &[(f64, f64)], count: usize) -> Option<Self> {
        let (flat, sloped) = times.split_at_checked(count)?;
        let (fixed_seconds, per_sample_seconds) = line(sloped)?;
        let floor_seconds = flat.iter().map(|(_, seconds)| seconds).sum::<f64>() / flat.len().max(1) as f64;
        let mut model = Self { floor_seconds, fixed_seconds, per_sample_seconds, error: 0.0 };
        let off = |(size, seconds): &(f64, f64)| (model.at(*size) - seconds).abs() / seconds;
        model.error = times.iter().map(off).fold(0.0, f64::max);
        Some(model)
    }

    fn at(&self, size: f64) -> f64 {
        self.floor_seconds.max(self.fixed_seconds + self.per_sample_seconds * size)
    }

    /// The relative error at the times it was fitted to.
    pub fn error(&self) -> f64 {
        self.error
    }

    /// The highest rate that a batch size can be expected to reach, in samples per second.
    pub fn highest_rate(&self, batch_size: usize) -> f64 {
        let doubt = (DOUBT * self.error.max(LEAST_ERROR)).min(0.99);
        batch_size as f64 / (self.at(batch_size as f64) * (1.0 - doubt)).max(f64::MIN_POSITIVE)
    }
}

/// The line of least relative squares through at least three times: intercept and slope, neither below zero.
fn line(times: &[(f64, f64)]) -> Option<(f64, f64)> {
    if times.len() < LEAST_POINTS {
        return None;
    }
    // Weighted by 1/t², so that a percent counts the same at every size.
    let sum = |of: &dyn Fn(f64, f64) -> f64| times.iter().map(|(x, t)| of(*x, *t) / (t * t)).sum::<f64>();
    let (w, x, t) = (sum(&|_, _| 1.0), sum(&|x, _| x), sum(&|_, t| t));
    let (xx, xt) = (sum(&|x, _| x * x), sum(&|x, t| x * t));
    let determinant = w * xx - x * x;
    if determinant <= f64::EPSILON * w * xx {
        return None;
    }
    let slope = ((w * xt - x * t) / determinant).max(0.0);
    Some((((t - slope * x) / w).max(0.0), slope))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_with_no_error() {
        let times: Vec<(usize, f64)> = [1, 2, 3, 16].map(|size| (size, 0.062 + 0.054 * size as f64)).to_vec();
        let model = StepTime::fit(&times).unwrap();
        assert!(model.error() < 1e-9);
        let exact = 8.0 / (0.062 + 0.054 * 8.0);
        assert!(model.highest_rate(8) > exact && model.highest_rate(8) < exact * 1.03);
    }

    #[test]
    fn a_floor_is_found_where_small_steps_take_the_same() {
        let times = [(1, 0.1), (2, 0.1), (3, 0.1), (16, 0.16), (32, 0.32), (64, 0.64)];
        let model = StepTime::fit(&times).unwrap();
        assert!(model.error() < 1e-9, "{model:?}");
        assert!((model.at(4.0) - 0.1).abs() < 1e-9);
        assert!((model.at(24.0) - 0.24).abs() < 1e-9);
    }

    #[test]
    fn the_measured_times_of_gpt2_medium_tell_eight_from_sixteen() {
        // candle in bf16 on an H200, without 8; measured there: 16.3 samples/s.
        let times = [(2, 0.1695), (3, 0.2311), (4, 0.2849), (16, 0.9221)];
        let model = StepTime::fit(&times).unwrap();
        assert!(model.error() < 0.03, "{model:?}");
        assert!(model.highest_rate(8) > 8.0 / 0.4919);
    }

    #[test]
    fn too_few_times_or_none_of_a_step_fit_nothing() {
        assert_eq!(StepTime::fit(&[(1, 0.1), (2, 0.2)]), None);
        assert_eq!(StepTime::fit(&[(1, 0.1), (2, 0.2), (3, f64::NAN), (4, 0.0)]), None);
        assert_eq!(StepTime::fit(&[(4, 0.1), (4, 0.1), (4, 0.1)]), None);
    }

    #[test]
    fn noise_widens_what_a_size_may_reach() {
        let clean = StepTime::fit(&[(1, 0.11), (2, 0.12), (3, 0.13), (16, 0.26)]).unwrap();
        let noisy = StepTime::fit(&[(1, 0.15), (2, 0.10), (3, 0.14), (16, 0.26)]).unwrap();
        assert!(noisy.error() > 0.05);
        assert!(noisy.highest_rate(8) > clean.highest_rate(8));
    }
}

//! Course of the training loss over a run, in constant memory, and how often gradients were clipped.
//!
//! ```
//! use ddp::checkpoint::Course;
//!
//! let mut course = Course::default();
//! for step in 0..1000 {
//!     course.add(1.0 / (1.0 + f64::from(step)), Some(2.0), 1.0);
//! }
//! assert_eq!((course.first(), course.n_steps()), (Some(1.0), 1000));
//! assert!(course.span(0.0..0.1).mean() > course.span(0.9..1.0).mean());
//! assert_eq!((course.n_norms, course.n_clipped), (1000, 1000));
//! ```

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Bins at most; when they are full, each two neighbors become one.
const MAX_BINS: usize = 64;
/// Most steps of a bin, so that those of all bins are a number.
const MAX_STEPS: u64 = 1 << 52;

/// Losses of the steps of a run in bins of as many steps each, and counts of the norms of its gradients.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Course {
    /// Loss of the first step.
    first: Option<f64>,
    /// Steps of a full bin.
    bin_steps: u64,
    /// Bins in the order of the steps; all but the last are full.
    bins: Vec<LossBin>,
    /// Steps whose gradient has a known norm, while gradients are clipped.
    pub n_norms: u64,
    /// Steps whose gradient was clipped.
    pub n_clipped: u64,
    /// Sum of the norms of these gradients before they were clipped.
    pub clipped_norms: f64,
}

/// Number, sum and sum of squares of the losses of some steps.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct LossBin(u64, f64, f64);

impl Course {
    /// The first contradiction, in words; `None` for a course as [`Course::add`] makes it.
    pub(super) fn contradiction(&self) -> Option<String> {
        let Course { first, bin_steps, bins, n_norms, n_clipped, .. } = self;
        let n = bins.len();
        if first.is_some() != (n > 0) || n > MAX_BINS || n_clipped > n_norms || *bin_steps > MAX_STEPS {
            return Some(format!(
                "{n} bins of {bin_steps} steps, {n_clipped} of {n_norms} gradients clipped"
            ));
        }
        let wrong = bins.iter().position(|bin| !(1..=*bin_steps).contains(&bin.0))?;
        Some(format!("bin {wrong} is of {} steps, expected 1 to {bin_steps}", bins[wrong].0))
    }

    /// Whether no step was added.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Adds the mean loss of a step that updated the weights, and the norm of its gradient where it is known; a loss or norm that is not
    /// finite is left out. `clip` is the largest norm that is not clipped, or 0.
    pub fn add(&mut self, loss: f64, norm: Option<f64>, clip: f64) {
        if let Some(norm) = norm.filter(|norm| norm.is_finite() && clip > 0.0) {
            self.n_norms += 1;
            if norm > clip {
                self.n_clipped += 1;
                self.clipped_norms += norm;
            }
        }
        if !loss.is_finite() {
            return;
        }
        self.first.get_or_insert(loss);
        self.bin_steps = self.bin_steps.max(1);
        match self.bins.last_mut() {
            Some(bin) if bin.0 < self.bin_steps => bin.add(LossBin::of(loss)),
            _ => {
                if self.bins.len() == MAX_BINS {
                    let pairs = self.bins.chunks_exact(2);
                    self.bins = pairs.map(LossBin::sum).collect();
                    self.bin_steps *= 2;
                }
                self.bins.push(LossBin::of(loss));
            }
        }
    }

    /// Loss of the first step.
    pub fn first(&self) -> Option<f64> {
        self.first
    }

    /// Number of steps.
    pub fn n_steps(&self) -> u64 {
        self.bins.iter().map(|bin| bin.0).sum()
    }

    /// The bins that lie in this part of the course, at least one of them; `0.5..1.0` is its second half.
    ///
    /// # Panics
    /// If no step was added.
    pub fn span(&self, part: Range<f64>) -> LossBin {
        let n = self.bins.len();
        let at = |share: f64| ((share * n as f64).round() as usize).min(n);
        let start = at(part.start).min(n - 1);
        LossBin::sum(&self.bins[start..at(part.end).max(start + 1)])
    }
}

impl LossBin {
    fn of(loss: f64) -> Self {
        LossBin(1, loss, loss * loss)
    }

    fn add(&mut self, other: LossBin) {
        *self = LossBin(self.0 + other.0, self.1 + other.1, self.2 + other.2);
    }

    fn sum(bins: &[LossBin]) -> Self {
        bins.iter().fold(LossBin::default(), |mut sum, bin| {
            sum.add(*bin);
            sum
        })
    }

    /// Mean loss of a step.
    pub fn mean(&self) -> f64 {
        self.1 / self.0 as f64
    }

    /// Standard deviation of the losses of the steps.
    pub fn deviation(&self) -> f64 {
        (self.2 / self.0 as f64 - self.mean() * self.mean()).max(0.0).sqrt()
    }

    /// Standard error of the mean loss.
    pub fn error(&self) -> f64 {
        self.deviation() / (self.0 as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_course_keeps_its_means() {
        let mut course = Course::default();
        for step in 0..10_007 {
            course.add(f64::from(step), None, 0.0);
        }
        assert!(course.bins.len() <= MAX_BINS, "{}", course.bins.len());
        assert_eq!((course.n_steps(), course.first(), course.n_norms), (10_007, Some(0.0), 0));
        let bin = course.bin_steps as f64;
        for (part, want) in [(0.0..1.0, 5003.0), (0.0..0.5, 2501.0), (0.9..1.0, 9500.0)] {
            let got = course.span(part.clone()).mean();
            assert!((got - want).abs() < bin, "{part:?}: {got}, {want}");
        }
        let all = course.span(0.0..1.0);
        assert!((all.deviation() - 10_007.0 / 12f64.sqrt()).abs() < 1.0, "{}", all.deviation());
    }

    #[test]
    fn what_is_not_finite_is_left_out() {
        let mut course = Course::default();
        course.add(f64::NAN, Some(f64::INFINITY), 1.0);
        assert!(course.is_empty() && course.n_norms == 0);
        course.add(2.0, Some(0.5), 1.0);
        course.add(4.0, Some(3.0), 1.0);
        assert_eq!((course.n_norms, course.n_clipped, course.clipped_norms), (2, 1, 3.0));
        let json = serde_json::to_string(&course).unwrap();
        assert_eq!(serde_json::from_str::<Course>(&json).unwrap(), course);
        assert_eq!(serde_json::from_str::<Course>("{}").unwrap(), Course::default());
    }
}

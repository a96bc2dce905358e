//! Loss spikes: a limit for the next step's loss from the median of recent losses and their median absolute deviation (MAD).
//!
//! The limit of a step uses the losses of the steps up to the one before the last: on a GPU the last step may still compute, and
//! a run gives the same limits on every device, and after it was resumed. The device compares the step's loss with the limit
//! before it updates, so a spike's update can be withheld.
//!
//! Source: the modified z-score of Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993).

use std::collections::VecDeque;

use crate::checkpoint::RecentLosses;

/// MAD of a normal distribution of deviation 1.
const MAD_OF_NORMAL: f64 = 1.0 / 1.4826;
/// Smallest deviation relative to the median, for losses that are nearly equal.
const MIN_DEVIATION: f64 = 0.01;

/// Window of recent losses.
#[derive(Debug, Clone)]
pub(crate) struct SpikeLimit {
    window: usize,
    threshold: f64,
    /// Finite losses up to the step before the last, at most `window`.
    losses: VecDeque<f64>,
    /// Loss of the last step whose outcome is known, if it was finite.
    last: Option<f64>,
    sorted: Vec<f64>,
}

impl SpikeLimit {
    /// Continues after the losses of `state`.
    ///
    /// - `threshold`: largest distance from the median, in robust standard deviations
    pub(crate) fn new(window: usize, threshold: f64, state: &RecentLosses) -> Self {
        let mut losses: VecDeque<f64> = state.before_last.iter().copied().collect();
        losses.drain(..losses.len().saturating_sub(window));
        SpikeLimit { window, threshold, losses, last: state.last, sorted: Vec::with_capacity(window) }
    }

    /// State for a checkpoint, when the outcomes of all steps are known.
    pub(crate) fn state(&self) -> RecentLosses {
        RecentLosses { before_last: self.losses.iter().copied().collect(), last: self.last }
    }

    /// Records the mean loss of the next step. One that is not finite moves nothing.
    pub(crate) fn record(&mut self, loss: f64) {
        if let Some(last) = std::mem::replace(&mut self.last, loss.is_finite().then_some(loss)) {
            self.losses.push_back(last);
            self.losses.drain(..self.losses.len().saturating_sub(self.window));
        }
    }

    /// Largest loss of the next step that is not a spike; infinity until the window is full. `n_unknown` (0 or 1) is the number of
    /// enqueued steps whose outcome is unknown.
    pub(crate) fn limit(&mut self, n_unknown: usize) -> f64 {
        let last = self.last.filter(|_| n_unknown > 0);
        let n = self.losses.len() + usize::from(last.is_some());
        if n < self.window {
            return f64::INFINITY;
        }
        self.sorted.clear();
        self.sorted.extend(self.losses.iter().copied().chain(last).skip(n - self.window));
        let median = median(&mut self.sorted);
        self.sorted.iter_mut().for_each(|loss| *loss = (*loss - median).abs());
        let deviation = (self::median(&mut self.sorted) / MAD_OF_NORMAL).max(MIN_DEVIATION * median.abs());
        median + self.threshold * deviation
    }
}

/// The median; the mean of the middle two of an even number.
fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    let (below, &mut upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    match below.iter().copied().reduce(f64::max) {
        Some(lower) if values.len().is_multiple_of(2) => lower + (upper - lower) / 2.0,
        _ => upper,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(window: usize, losses: &[f64]) -> SpikeLimit {
        let mut limit = SpikeLimit::new(window, 10.0, &RecentLosses::default());
        losses.iter().for_each(|loss| limit.record(*loss));
        limit
    }

    #[test]
    fn median_of_odd_and_even_numbers() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&mut [7.0]), 7.0);
    }

    #[test]
    fn a_limit_needs_a_full_window_and_ignores_the_last_step() {
        // Median 3, MAD 1.
        let losses = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(after(5, &losses).limit(0), f64::INFINITY);
        let want = 3.0 + 10.0 * 1.4826;
        assert!((after(5, &[&losses[..], &[1e9]].concat()).limit(0) - want).abs() < 1e-12);
        assert!((after(5, &losses).limit(1) - want).abs() < 1e-12, "the last known step is not the last one");
    }

    #[test]
    fn steps_that_are_not_finite_or_far_off_do_not_poison_the_window() {
        let calm = after(4, &[1.0, 1.1, 0.9, 1.0, 1.0]).limit(0);
        let shaken = after(4, &[1.0, f64::NAN, 1.1, f64::INFINITY, 0.9, 1.0, f64::NAN, 1.0]).limit(0);
        assert_eq!(shaken, calm);
        let with_spike = after(9, &[1.0, 1.1, 0.9, 1.0, 1e30, 1.05, 0.95, 1.0, 1.1, 0.0]).limit(0);
        assert!((1.2..3.0).contains(&with_spike), "{with_spike}");
        // Equal losses still leave some room.
        assert!((after(3, &[2.0; 4]).limit(0) - 2.2).abs() < 1e-12);
    }

    #[test]
    fn the_limit_does_not_depend_on_when_outcomes_are_read() {
        let losses: Vec<f64> = (0..40).map(|i| 1.0 + f64::from(i * 7 % 11) / 10.0).collect();
        for n in 0..losses.len() {
            let mut early = after(8, &losses[..n]);
            let mut late = after(8, &losses[..n.saturating_sub(1)]);
            assert_eq!(early.limit(0), if n == 0 { f64::INFINITY } else { late.limit(1) });
            let mut resumed = SpikeLimit::new(8, 10.0, &early.state());
            assert_eq!(resumed.limit(0), early.limit(0));
        }
    }
}

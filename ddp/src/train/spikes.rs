//! Loss spikes: a limit for the next step's loss from the median of recent losses and their median absolute deviation (MAD).
//!
//! The limit of a step uses the losses of the steps up to the one before the last: on a GPU the last step may still compute, and
//! a run gives the same limits on every device, and after it was resumed. The device compares the step's loss with the limit
//! before it updates, so a spike's update can be withheld.
//!
//! Source: the modified z-score of Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993).

use crate::checkpoint::RecentLosses;

/// MAD of a normal distribution of deviation 1.
const MAD_OF_NORMAL: f64 = 1.0 / 1.4826;
/// Smallest deviation relative to the median, for losses that are nearly equal.
const MIN_DEVIATION: f64 = 0.01;

/// Limit by a window of recent losses, which are in the run's state.
#[derive(Debug, Clone)]
pub(crate) struct SpikeLimit {
    window: usize,
    threshold: f64,
    sorted: Vec<f64>,
}

impl SpikeLimit {
    /// - `window`: losses that are compared; `threshold`: largest distance from the median, in robust standard deviations
    pub(crate) fn new(window: usize, threshold: f64) -> Self {
        SpikeLimit { window, threshold, sorted: Vec::with_capacity(window) }
    }

    /// Records the mean loss of the next step. One that is not finite moves nothing.
    pub(crate) fn record(&self, losses: &mut RecentLosses, loss: f64) {
        let RecentLosses { before_last, last } = losses;
        if let Some(last) = std::mem::replace(last, loss.is_finite().then_some(loss)) {
            before_last.push(last);
            before_last.drain(..before_last.len().saturating_sub(self.window));
        }
    }

    /// Largest loss of the next step that is not a spike; infinity until the window is full. `n_unknown` (0 or 1) is the number of
    /// enqueued steps whose outcome is unknown.
    pub(crate) fn limit(&mut self, losses: &RecentLosses, n_unknown: usize) -> f64 {
        let RecentLosses { before_last, last } = losses;
        let last = last.filter(|_| n_unknown > 0);
        let n = before_last.len() + usize::from(last.is_some());
        if n < self.window {
            return f64::INFINITY;
        }
        self.sorted.clear();
        self.sorted.extend(before_last.iter().copied().chain(last).skip(n - self.window));
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

    /// The limit of the next step after these losses.
    fn limit_after(window: usize, losses: &[f64], n_unknown: usize) -> f64 {
        let (mut limit, mut state) = (SpikeLimit::new(window, 10.0), RecentLosses::default());
        losses.iter().for_each(|loss| limit.record(&mut state, *loss));
        limit.limit(&state, n_unknown)
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
        assert_eq!(limit_after(5, &losses, 0), f64::INFINITY);
        let want = 3.0 + 10.0 * 1.4826;
        assert!((limit_after(5, &[&losses[..], &[1e9]].concat(), 0) - want).abs() < 1e-12);
        assert!((limit_after(5, &losses, 1) - want).abs() < 1e-12, "the last known step is not the last one");
    }

    #[test]
    fn steps_that_are_not_finite_or_far_off_do_not_poison_the_window() {
        let calm = limit_after(4, &[1.0, 1.1, 0.9, 1.0, 1.0], 0);
        let shaken = limit_after(4, &[1.0, f64::NAN, 1.1, f64::INFINITY, 0.9, 1.0, f64::NAN, 1.0], 0);
        assert_eq!(shaken, calm);
        let with_spike = limit_after(9, &[1.0, 1.1, 0.9, 1.0, 1e30, 1.05, 0.95, 1.0, 1.1, 0.0], 0);
        assert!((1.2..3.0).contains(&with_spike), "{with_spike}");
        // Equal losses still leave some room.
        assert!((limit_after(3, &[2.0; 4], 0) - 2.2).abs() < 1e-12);
    }

    #[test]
    fn the_limit_does_not_depend_on_when_outcomes_are_read() {
        let losses: Vec<f64> = (0..40).map(|i| 1.0 + f64::from(i * 7 % 11) / 10.0).collect();
        for n in 0..losses.len() {
            let late = if n == 0 { f64::INFINITY } else { limit_after(8, &losses[..n - 1], 1) };
            assert_eq!(limit_after(8, &losses[..n], 0), late);
        }
    }
}

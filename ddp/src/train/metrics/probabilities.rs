//! Sums over the probabilities of classes: log loss, top-5 accuracy, calibration.

use super::rows::EvalRows;

/// Equal-width bins of the largest probability.
const N_BINS: usize = 15;
/// A label counts as right among this many largest outputs.
const TOP_K: usize = 5;
const LOG_LOSS: usize = 0;
const TOP_5: usize = 1;
const BINS: usize = 2;

/// Weighted sums over rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProbabilitySums {
    /// Log loss, top 5, then for each bin: weight, weight of right rows, sum of probabilities.
    sums: [f64; BINS + 3 * N_BINS],
}

impl ProbabilitySums {
    pub(crate) fn new() -> Self {
        ProbabilitySums { sums: [0.0; BINS + 3 * N_BINS] }
    }

    /// Adds rows of one class each; `probabilities` is `[rows, classes]`.
    pub(crate) fn add(&mut self, rows: &EvalRows<'_>, probabilities: &[f64], n_classes: usize) {
        let outputs = rows.outputs.chunks_exact(n_classes).zip(probabilities.chunks_exact(n_classes));
        let rows = outputs.zip(rows.labels()).zip(rows.predicted).zip(rows.weights());
        for ((((outputs, probabilities), label), &predicted), weight) in rows {
            if weight == 0.0 {
                continue;
            }
            self.sums[LOG_LOSS] += weight * log_loss(outputs, label);
            if is_in_top(outputs, label) {
                self.sums[TOP_5] += weight;
            }
            // A row whose outputs are NaN makes the sum NaN.
            let confidence =
                usize::try_from(predicted).map_or(f64::NAN, |predicted| probabilities[predicted]);
            let bin = BINS + 3 * bin(confidence);
            self.sums[bin] += weight;
            self.sums[bin + 1] += if predicted == label as i64 { weight } else { 0.0 };
            self.sums[bin + 2] += weight * confidence;
        }
    }

    /// All sums, for merging.
    pub(crate) fn sums_mut(&mut self) -> &mut [f64] {
        &mut self.sums
    }

    /// Mean of `-ln p(label)` over rows of this weight.
    pub(crate) fn log_loss(&self, weight: f64) -> f64 {
        self.sums[LOG_LOSS] / weight
    }

    /// Share of the rows whose label is among the five largest outputs; not defined for five classes or fewer.
    pub(crate) fn top_5(&self, weight: f64, n_classes: usize) -> Option<f64> {
        (n_classes > TOP_K).then(|| self.sums[TOP_5] / weight)
    }

    /// `Σ_bins |right rows - sum of probabilities| / weight`.
    ///
    /// Source: arXiv:1706.04599, section 2.
    pub(crate) fn ece(&self, weight: f64) -> f64 {
        self.sums[BINS..].chunks_exact(3).map(|bin| (bin[1] - bin[2]).abs()).sum::<f64>() / weight
    }
}

/// The softmax of each row, in f64.
pub(crate) fn softmax(outputs: &[f32], n_classes: usize) -> Vec<f64> {
    let mut probabilities = Vec::with_capacity(outputs.len());
    for row in outputs.chunks_exact(n_classes) {
        let largest = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let start = probabilities.len();
        probabilities.extend(row.iter().map(|&output| (f64::from(output) - largest).exp()));
        let sum: f64 = probabilities[start..].iter().sum();
        probabilities[start..].iter_mut().for_each(|value| *value /= sum);
    }
    probabilities
}

/// `logsumexp(outputs) - outputs[label]`.
fn log_loss(outputs: &[f32], label: usize) -> f64 {
    let largest = f64::from(outputs.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = outputs.iter().map(|&output| (f64::from(output) - largest).exp()).sum();
    sum.ln() - (f64::from(outputs[label]) - largest)
}

/// Of equal outputs the later one counts as larger, as in scikit-learn's `top_k_accuracy_score`.
fn is_in_top(outputs: &[f32], label: usize) -> bool {
    let own = outputs[label];
    let is_larger = |(class, output): (usize, &f32)| *output > own || (*output == own && class > label);
    !own.is_nan() && outputs.iter().enumerate().filter(|&other| is_larger(other)).count() < TOP_K
}

/// Bin of a probability: `(i/15, (i + 1)/15]`.
fn bin(probability: f64) -> usize {
    ((probability * N_BINS as f64).ceil() as usize).clamp(1, N_BINS) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_closed_above() {
        let edges = [bin(1.0), bin(0.2), bin(0.2 + 1e-9), bin(1e-300), bin(0.0)];
        assert_eq!(edges, [14, 2, 3, 0, 0]);
    }

    #[test]
    fn log_loss_does_not_overflow() {
        assert!((log_loss(&[1000.0, 0.0], 1) - 1000.0).abs() < 1e-9);
        assert_eq!(log_loss(&[1000.0, 0.0], 0), 0.0);
        assert_eq!(softmax(&[1000.0, -1000.0], 2), [1.0, 0.0]);
    }

    #[test]
    fn the_later_of_equal_outputs_is_the_larger() {
        let outputs = [1.0; 6];
        assert!(!is_in_top(&outputs, 0));
        assert!((1..6).all(|label| is_in_top(&outputs, label)));
    }
}

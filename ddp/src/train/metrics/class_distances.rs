//! Distances between true and predicted classes in an order: their mean, and Cohen's kappa with quadratic weights.

use super::rows::EvalRows;

const DISTANCE: usize = 0;
const SQUARED: usize = 1;
const LABEL: usize = 2;
const LABEL_SQUARED: usize = 3;
const PREDICTED: usize = 4;
const PREDICTED_SQUARED: usize = 5;
const WEIGHT: usize = 6;

/// Weighted sums over rows that have a prediction.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct ClassDistances {
    sums: [f64; WEIGHT + 1],
}

impl ClassDistances {
    /// Adds rows of one class each.
    pub(crate) fn add(&mut self, rows: &EvalRows<'_>) {
        for ((label, &predicted), weight) in rows.labels().zip(rows.predicted).zip(rows.weights()) {
            // A row whose outputs are NaN is predicted to be of no class.
            if predicted < 0 {
                continue;
            }
            let (label, predicted) = (label as f64, predicted as f64);
            let distance = (label - predicted).abs();
            let of_row =
                [distance, distance * distance, label, label * label, predicted, predicted * predicted, 1.0];
            self.sums.iter_mut().zip(of_row).for_each(|(sum, value)| *sum += weight * value);
        }
    }

    /// All sums, for merging.
    pub(crate) fn sums_mut(&mut self) -> &mut [f64] {
        &mut self.sums
    }

    /// Mean distance.
    pub(crate) fn mean(&self) -> Option<f64> {
        (self.sums[WEIGHT] > 0.0).then(|| self.sums[DISTANCE] / self.sums[WEIGHT])
    }

    /// `1 - Σ O (i - j)² / Σ E (i - j)²` over pairs of true and predicted class, with their observed rows `O` and those expected, `E`,
    /// if the two were independent; not defined where only one class occurs.
    ///
    /// Source: scikit-learn, `cohen_kappa_score` with `weights="quadratic"`.
    pub(crate) fn quadratic_kappa(&self) -> Option<f64> {
        let sums = &self.sums;
        let expected = sums[LABEL_SQUARED] + sums[PREDICTED_SQUARED]
            - 2.0 * sums[LABEL] * sums[PREDICTED] / sums[WEIGHT];
        // What rounding leaves of 0.
        let is_defined = expected > 1e-12 * (sums[LABEL_SQUARED] + sums[PREDICTED_SQUARED]);
        is_defined.then(|| 1.0 - sums[SQUARED] / expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::metrics::rows::RowTargets;

    fn of(labels: &[i64], predicted: &[i64], weights: Option<&[f32]>) -> ClassDistances {
        let mut distances = ClassDistances::default();
        let targets = RowTargets::Labels(labels);
        distances.add(&EvalRows { n_rows: labels.len(), outputs: &[], predicted, targets, weights });
        distances
    }

    #[test]
    fn they_are_those_of_scikit_learn() {
        let (labels, predicted) = ([0, 1, 2, 3, 3, 2, 1, 0, 2], [0, 2, 2, 1, 3, 3, 1, 1, 0]);
        let plain = of(&labels, &predicted, None);
        assert!((plain.mean().unwrap() - MAE).abs() < 1e-15, "{plain:?}");
        assert!((plain.quadratic_kappa().unwrap() - KAPPA).abs() < 1e-14, "{plain:?}");
        let weighted = of(&labels, &predicted, Some(&[1.0, 0.5, 2.0, 1.0, 0.0, 3.0, 1.0, 0.25, 1.0]));
        assert!((weighted.quadratic_kappa().unwrap() - WEIGHTED_KAPPA).abs() < 1e-14, "{weighted:?}");
    }

    // scikit-learn 1.9.1: mean_absolute_error and cohen_kappa_score(..., weights="quadratic") of the rows above.
    const MAE: f64 = 0.7777777777777778;
    const KAPPA: f64 = 0.4648648648648649;
    const WEIGHTED_KAPPA: f64 = 0.3733333333333333;

    #[test]
    fn one_class_has_no_kappa_and_a_row_without_prediction_does_not_count() {
        let one = of(&[2, 2, 2], &[2, 2, -1], None);
        assert_eq!((one.mean(), one.quadratic_kappa()), (Some(0.0), None));
        assert_eq!((of(&[], &[], None).mean(), of(&[], &[], None).quadratic_kappa()), (None, None));
    }
}

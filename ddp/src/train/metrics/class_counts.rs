//! Counts of true and predicted classes, and what follows from them: precision, recall, F1, the confusion matrix.
//!
//! For classification a row has one true and one predicted class. For multilabel each label is a class of its own: true where
//! the target is 1, predicted where the output says that it applies.

use super::rows::EvalRows;
use crate::data::label_applies;
use crate::report::{ClassUse, NAMED_CLASSES, ROWS};

/// Weights of rows by class.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClassCounts {
    /// Rows of the class that are predicted to be of it.
    right: Vec<f64>,
    predicted: Vec<f64>,
    actual: Vec<f64>,
    /// By true class, then by predicted class; empty if it is not asked for.
    confusion: Vec<f64>,
}

/// Averages over the classes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ClassAverages {
    pub(crate) balanced_accuracy: Option<f64>,
    pub(crate) precision_macro: Option<f64>,
    pub(crate) recall_macro: Option<f64>,
    pub(crate) f1_macro: Option<f64>,
    pub(crate) f1_weighted: Option<f64>,
    pub(crate) f1_micro: Option<f64>,
}

impl ClassCounts {
    pub(crate) fn new(n_classes: usize, has_confusion: bool) -> Self {
        let zeros = || vec![0.0; n_classes];
        let confusion = vec![0.0; if has_confusion { n_classes * n_classes } else { 0 }];
        ClassCounts { right: zeros(), predicted: zeros(), actual: zeros(), confusion }
    }

    /// Adds rows of one class each.
    pub(crate) fn add_classes(&mut self, rows: &EvalRows<'_>) {
        let n_classes = self.right.len();
        for ((label, &predicted), weight) in rows.labels().zip(rows.predicted).zip(rows.weights()) {
            self.actual[label] += weight;
            // A row whose outputs are NaN is predicted to be of no class.
            let Ok(predicted) = usize::try_from(predicted) else { continue };
            self.predicted[predicted] += weight;
            if predicted == label {
                self.right[label] += weight;
            }
            if let Some(count) = self.confusion.get_mut(label * n_classes + predicted) {
                *count += weight;
            }
        }
    }

    /// Adds rows of several labels each.
    pub(crate) fn add_labels(&mut self, rows: &EvalRows<'_>) {
        for (row, weight) in rows.values(self.right.len()) {
            for (class, (output, target)) in row.enumerate() {
                let (is_predicted, is_actual) = (label_applies(output), target > 0.5);
                self.predicted[class] += if is_predicted { weight } else { 0.0 };
                self.actual[class] += if is_actual { weight } else { 0.0 };
                self.right[class] += if is_predicted && is_actual { weight } else { 0.0 };
            }
        }
    }

    /// All sums, for merging.
    pub(crate) fn sums_mut(&mut self) -> [&mut [f64]; 4] {
        [&mut self.right, &mut self.predicted, &mut self.actual, &mut self.confusion]
    }

    /// Classes that occur, as label or as prediction; of multilabel all.
    fn classes(&self, is_multilabel: bool) -> impl Iterator<Item = usize> + Clone {
        let occurs = move |class: &usize| is_multilabel || self.actual[*class] + self.predicted[*class] > 0.0;
        (0..self.right.len()).filter(occurs)
    }

    /// Share of the predicted rows that are right; 0 without any, as in scikit-learn.
    fn precision(&self, class: usize) -> f64 {
        share(self.right[class], self.predicted[class])
    }

    fn recall(&self, class: usize) -> f64 {
        share(self.right[class], self.actual[class])
    }

    fn f1(&self, class: usize) -> f64 {
        share(2.0 * self.right[class], self.actual[class] + self.predicted[class])
    }

    /// Source: scikit-learn, `precision_recall_fscore_support` with `zero_division=0`, `balanced_accuracy_score`.
    pub(crate) fn averages(&self, is_multilabel: bool) -> ClassAverages {
        let classes = || self.classes(is_multilabel);
        let actual = || (0..self.actual.len()).filter(|class| self.actual[*class] > 0.0);
        let sum = |of: &[f64]| of.iter().sum::<f64>();
        let (n_actual, n_predicted) = (sum(&self.actual), sum(&self.predicted));
        let weighted: f64 = actual().map(|class| self.actual[class] * self.f1(class)).sum();
        let is_defined = n_actual + n_predicted > 0.0;
        ClassAverages {
            balanced_accuracy: mean(actual().map(|class| self.recall(class))),
            precision_macro: mean(classes().map(|class| self.precision(class))),
            recall_macro: mean(classes().map(|class| self.recall(class))),
            f1_macro: mean(classes().map(|class| self.f1(class))),
            f1_weighted: (n_actual > 0.0).then(|| weighted / n_actual),
            f1_micro: is_defined.then(|| 2.0 * sum(&self.right) / (n_actual + n_predicted)),
        }
    }

    /// Summary of the classes that rows have and that are predicted for them; None without rows.
    pub(crate) fn class_use(&self, name: impl Fn(usize) -> String) -> Option<ClassUse> {
        let actual: Vec<usize> = (0..self.actual.len()).filter(|class| self.actual[*class] > 0.0).collect();
        let n_classes = actual.len() as f64;
        let chance = 1.0 / n_classes;
        let variances = actual.iter().map(|class| chance * (1.0 - chance) / self.actual[*class].max(1.0));
        let mut never: Vec<usize> =
            actual.iter().copied().filter(|class| self.predicted[*class] == 0.0).collect();
        never.sort_by(|a, b| self.actual[*b].total_cmp(&self.actual[*a]));
        Some(ClassUse {
            n_rows: self.actual.iter().sum(),
            n_right: self.right.iter().sum(),
            largest: self.actual.iter().copied().fold(0.0, f64::max),
            n_classes: actual.len() as u64,
            n_predicted: self.predicted.iter().filter(|n| **n > 0.0).count() as u64,
            balanced_accuracy: mean(actual.iter().map(|class| self.recall(*class)))?,
            chance_error: variances.sum::<f64>().sqrt() / n_classes,
            n_never: never.len() as u64,
            never: never
                .iter()
                .take(NAMED_CLASSES)
                .map(|class| (name(*class), self.actual[*class]))
                .collect(),
        })
    }

    /// Figures of each class that occurs, or of each label, with its number.
    pub(crate) fn figures(&self, is_multilabel: bool) -> Vec<(usize, Vec<(&'static str, f64)>)> {
        let figures = |class| {
            let (precision, recall) = (self.precision(class), self.recall(class));
            let rates = [("precision", precision), ("recall", recall), ("f1", self.f1(class))];
            (class, rates.into_iter().chain([(ROWS, self.actual[class])]).collect())
        };
        self.classes(is_multilabel).map(figures).collect()
    }

    /// The confusion matrix, if it is kept.
    pub(crate) fn confusion(&self) -> Option<Vec<Vec<f64>>> {
        let rows = self.confusion.chunks_exact(self.right.len()).map(<[f64]>::to_vec);
        (!self.confusion.is_empty()).then(|| rows.collect())
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, n) = values.fold((0.0, 0), |(sum, n), value| (sum + value, n + 1));
    (n > 0).then(|| sum / f64::from(n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::metrics::rows::RowTargets;

    fn counts(labels: &[i64], predicted: &[i64], n_classes: usize) -> ClassCounts {
        let mut counts = ClassCounts::new(n_classes, true);
        let targets = RowTargets::Labels(labels);
        counts.add_classes(&EvalRows {
            n_rows: labels.len(),
            outputs: &[],
            predicted,
            targets,
            weights: None,
        });
        counts
    }

    #[test]
    fn classes_that_never_occur_count_for_nothing() {
        // Class 3 never occurs; class 2 is predicted only.
        let counts = counts(&[0, 0, 1, 1], &[0, 2, 1, 1], 4);
        let averages = counts.averages(false);
        assert_eq!(averages.balanced_accuracy, Some(0.75));
        assert_eq!(averages.recall_macro, Some(0.5));
        assert_eq!(averages.precision_macro, Some(2.0 / 3.0));
        assert_eq!(averages.f1_micro, Some(0.75));
        let classes: Vec<_> = counts.figures(false).into_iter().map(|(class, _)| class).collect();
        assert_eq!(classes, [0, 1, 2]);
        let matrix = counts.confusion().unwrap();
        assert_eq!(matrix[0], [1.0, 0.0, 1.0, 0.0]);
        assert_eq!(matrix[1], [0.0, 2.0, 0.0, 0.0]);
    }

    #[test]
    fn a_row_without_prediction_is_wrong() {
        let counts = counts(&[0, 1], &[-1, 1], 2);
        assert_eq!(counts.averages(false).balanced_accuracy, Some(0.5));
        assert_eq!(counts.confusion().unwrap().concat().iter().sum::<f64>(), 1.0);
    }

    #[test]
    fn labels_are_predicted_by_the_rule_of_predictions() {
        let mut counts = ClassCounts::new(3, false);
        counts.add_labels(&EvalRows {
            n_rows: 1,
            outputs: &[0.0, 0.0, -1e-30],
            predicted: &[],
            targets: RowTargets::Values(&[1.0, 0.0, 1.0]),
            weights: None,
        });
        assert_eq!((&counts.predicted[..], &counts.right[..]), (&[1.0, 1.0, 0.0][..], &[1.0, 0.0, 0.0][..]));
    }

    #[test]
    fn classes_that_are_never_predicted_are_named() {
        let counts = counts(&[0, 0, 1, 2, 2, 2], &[0, 0, 0, 0, 3, 3], 5);
        let got = counts.class_use(|class| format!("c{class}")).unwrap();
        assert_eq!((got.n_classes, got.n_predicted, got.n_never), (3, 2, 2));
        assert_eq!(got.never, [("c2".to_owned(), 3.0), ("c1".to_owned(), 1.0)]);
        assert_eq!((got.accuracy(), got.balanced_accuracy, got.largest), (2.0 / 6.0, 1.0 / 3.0, 3.0));
        let variance: f64 = (2.0 / 9.0) * (1.0 / 2.0 + 1.0 + 1.0 / 3.0);
        assert!((got.chance_error - variance.sqrt() / 3.0).abs() < 1e-15);
        assert_eq!(ClassCounts::new(3, false).class_use(|_| String::new()), None);
    }

    #[test]
    fn nothing_is_defined_without_rows() {
        let averages = ClassCounts::new(3, false).averages(false);
        let ClassAverages { balanced_accuracy, f1_macro, f1_weighted, f1_micro, .. } = averages;
        assert_eq!([balanced_accuracy, f1_macro, f1_weighted, f1_micro], [None; 4]);
    }
}

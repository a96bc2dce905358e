//! Use that a model makes of its classes in an evaluation: a summary of the counts of true and predicted classes.

use serde::{Deserialize, Serialize};

/// Classes that a summary names.
pub(crate) const NAMED_CLASSES: usize = 3;

/// Counts of rows are sums of their weights.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassUse {
    /// Rows of the evaluation.
    pub n_rows: f64,
    /// Rows whose class is predicted.
    pub n_right: f64,
    /// Rows of the most frequent class.
    pub largest: f64,
    /// Classes that rows have.
    pub n_classes: u64,
    /// Classes that are predicted for some row.
    pub n_predicted: u64,
    /// Mean recall over the classes that rows have.
    pub balanced_accuracy: f64,
    /// Standard deviation of the mean recall of a model that guesses a class for each row.
    pub chance_error: f64,
    /// Classes that rows have and that are never predicted.
    pub n_never: u64,
    /// The most frequent of them, with their rows, in descending order.
    pub never: Vec<(String, f64)>,
}

impl ClassUse {
    /// Share of the rows whose class is predicted.
    pub fn accuracy(&self) -> f64 {
        self.n_right / self.n_rows
    }

    /// Mean recall of a model that guesses a class for each row.
    pub fn chance(&self) -> f64 {
        1.0 / self.n_classes as f64
    }
}

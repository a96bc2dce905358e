//! Scale of the targets of regression: fitted on the training rows, saved with the model, undone in predictions.

/// `y' = (y - shift) / scale`, target by target; a model trained on `y'` predicts `output · scale + shift`.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetScale {
    /// `[n_targets]`: mean of the training rows, unweighted.
    pub shift: Vec<f64>,
    /// `[n_targets]`: standard deviation of the population (division by n); 1 for a constant target.
    pub scale: Vec<f64>,
}

impl TargetScale {
    /// Number of targets.
    pub fn n_targets(&self) -> usize {
        self.shift.len()
    }

    /// Target `target` in standardised units.
    pub fn standardized(&self, target: usize, value: f64) -> f64 {
        (value - self.shift[target]) / self.scale[target]
    }

    /// The model's output for target `target` in the user's units.
    pub fn to_user_units(&self, target: usize, output: f64) -> f64 {
        output * self.scale[target] + self.shift[target]
    }

    /// Standardises rows of targets in place, `[N, K]`.
    pub fn standardize(&self, values: &mut [f32]) {
        for row in values.chunks_exact_mut(self.n_targets().max(1)) {
            for (target, value) in row.iter_mut().enumerate() {
                *value = self.standardized(target, f64::from(*value)) as f32;
            }
        }
    }

    /// The model's outputs in the user's units, `[N, K]`.
    pub fn undo(&self, outputs: &[f32]) -> Vec<f64> {
        let n_targets = self.n_targets().max(1);
        let values = outputs.iter().enumerate();
        values.map(|(i, &output)| self.to_user_units(i % n_targets, f64::from(output))).collect()
    }
}

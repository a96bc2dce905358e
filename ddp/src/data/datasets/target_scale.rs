//! Scale of the targets of regression: fitted on the training rows, saved with the model, undone in predictions; and what the
//! outputs mean.

use crate::config::Loss;

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

    /// Target `target` in standardized units.
    pub fn standardized(&self, target: usize, value: f64) -> f64 {
        (value - self.shift[target]) / self.scale[target]
    }

    /// The model's output for target `target` in the user's units.
    pub fn to_user_units(&self, target: usize, output: f64) -> f64 {
        output * self.scale[target] + self.shift[target]
    }

    /// Standardizes rows of targets in place, `[N, K]`.
    pub fn standardize(&self, values: &mut [f32]) {
        for row in values.chunks_exact_mut(self.n_targets().max(1)) {
            for (target, value) in row.iter_mut().enumerate() {
                *value = self.standardized(target, f64::from(*value)) as f32;
            }
        }
    }
}

/// Meaning of a model's outputs where the task does not decide it.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum OutputUnits {
    /// They are the targets.
    #[default]
    Targets,
    /// They are standardized targets.
    Standardized(TargetScale),
    /// They are logarithms of the targets' rates.
    Logarithms,
    /// They are cumulative logits of classes in an order, and not of a regression.
    Cumulative,
}

impl OutputUnits {
    /// The units of a model's outputs.
    ///
    /// - `scale`: of the targets of its training rows, if they were standardized
    pub fn new(loss: &Loss, scale: Option<&TargetScale>) -> Self {
        match scale {
            _ if loss.predicts_logarithms() => Self::Logarithms,
            _ if *loss == Loss::Ordinal => Self::Cumulative,
            Some(scale) => Self::Standardized(scale.clone()),
            None => Self::Targets,
        }
    }

    /// The output for target `target` in the user's units.
    pub fn to_user_units(&self, target: usize, output: f64) -> f64 {
        match self {
            Self::Targets | Self::Cumulative => output,
            Self::Standardized(scale) => scale.to_user_units(target, output),
            Self::Logarithms => output.exp(),
        }
    }

    /// The output whose value in the user's units is `value`: the inverse of [`OutputUnits::to_user_units`].
    pub fn from_user_units(&self, target: usize, value: f64) -> f64 {
        match self {
            Self::Targets | Self::Cumulative => value,
            Self::Standardized(scale) => scale.standardized(target, value),
            Self::Logarithms => value.ln(),
        }
    }

    /// Outputs of rows in the user's units, `[N, n_targets]`.
    pub fn values(&self, outputs: &[f32], n_targets: usize) -> Vec<f64> {
        let value = |(i, output): (usize, &f32)| self.to_user_units(i % n_targets, f64::from(*output));
        outputs.iter().enumerate().map(value).collect()
    }
}

//! Sums over the errors of one regression target: MAE, RMSE and R².

/// Sums of one target.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct TargetSums {
    /// Σ(y - ŷ)².
    squared_errors: f64,
    /// Σ|y - ŷ|.
    absolute_errors: f64,
    weight: f64,
    mean: f64,
    /// Σ(y - mean)².
    spread: f64,
    min: f64,
    max: f64,
}

impl TargetSums {
    pub(crate) fn new() -> Self {
        let (min, max) = (f64::INFINITY, f64::NEG_INFINITY);
        TargetSums {
            squared_errors: 0.0,
            absolute_errors: 0.0,
            weight: 0.0,
            mean: 0.0,
            spread: 0.0,
            min,
            max,
        }
    }

    /// The sums of one row.
    pub(crate) fn of(y: f64, output: f64, weight: f64) -> Self {
        let squared_errors = weight * (output - y).powi(2);
        let absolute_errors = weight * (output - y).abs();
        TargetSums { squared_errors, absolute_errors, weight, mean: y, spread: 0.0, min: y, max: y }
    }

    /// Merges means and spreads in parallel.
    pub(crate) fn merge(&mut self, other: &Self) {
        if other.weight == 0.0 {
            return;
        }
        let weight = self.weight + other.weight;
        let delta = other.mean - self.mean;
        self.mean += delta * (other.weight / weight);
        self.spread += other.spread + delta * delta * (self.weight * other.weight / weight);
        self.weight = weight;
        self.squared_errors += other.squared_errors;
        self.absolute_errors += other.absolute_errors;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// The sums of errors in other units, of which the current one has `scale`. R² has no unit.
    pub(crate) fn in_units(mut self, scale: f64) -> Self {
        self.squared_errors *= scale * scale;
        self.spread *= scale * scale;
        self.absolute_errors *= scale.abs();
        self
    }

    pub(crate) fn mae(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.absolute_errors / self.weight)
    }

    pub(crate) fn rmse(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| (self.squared_errors / self.weight).sqrt())
    }

    /// R², if the target varies.
    pub(crate) fn r2(&self) -> Option<f64> {
        // The mean of a constant target can differ in the last bit, so a constant is detected by min and max, not by its spread.
        (self.min < self.max).then(|| 1.0 - self.squared_errors / self.spread)
    }
}

/// The mean over the targets, if each of them has a value.
///
/// Source: scikit-learn's `multioutput="uniform_average"`.
pub(crate) fn mean(targets: &[TargetSums], of: fn(&TargetSums) -> Option<f64>) -> Option<f64> {
    let sum: Option<f64> = targets.iter().map(of).sum();
    sum.map(|sum| sum / targets.len() as f64).filter(|_| !targets.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_units_of_the_target() {
        let mut sums = TargetSums::new();
        for (y, output) in [(0.0, 0.5), (1.0, 1.0), (2.0, 1.0)] {
            sums.merge(&TargetSums::of(y, output, 1.0));
        }
        let scaled = sums.in_units(10.0);
        let close =
            |got: Option<f64>, want: f64| assert!((got.unwrap() - want).abs() < 1e-12, "{got:?} {want}");
        close(sums.mae(), 0.5);
        close(scaled.mae(), 5.0);
        close(sums.rmse(), (1.25f64 / 3.0).sqrt());
        close(scaled.rmse(), 10.0 * (1.25f64 / 3.0).sqrt());
        close(scaled.r2(), sums.r2().unwrap());
        close(sums.r2(), 1.0 - 1.25 / 2.0);
        let constant = TargetSums::of(3.0, 2.0, 1.0);
        assert_eq!((constant.r2(), mean(&[sums, constant], TargetSums::r2)), (None, None));
        assert_eq!(mean(&[], TargetSums::mae), None);
    }
}

//! Standardizes the targets of a dataset, and fits the scale to its statistics.

use std::sync::Arc;

use ddp::data::datasets::batch::BatchMut;
use ddp::data::datasets::dataset::{Dataset, RowLayout};
use ddp::data::datasets::target_scale::TargetScale;
use ddp::data::datasets::wrapper::{Changes, DatasetWrapper};
use ddp::data::error::Result;
use ddp_kernels::TensorMut;

use crate::fit::offsets;
use crate::fit::stats::ColumnStats;

/// Fits the scale to the statistics of the targets of the training rows.
///
/// - `are_scaled`: whether a target is standardized, `[n_targets]`; others keep their values
///
/// Source: scikit-learn's `TransformedTargetRegressor` with a `StandardScaler`.
pub(crate) fn fit(stats: &ColumnStats, are_scaled: &[bool]) -> TargetScale {
    let scale = |target: usize| {
        let deviation = stats.standard_deviation(target);
        let is_constant =
            stats.min[target] >= stats.max[target] || stats.is_constant_but_for_rounding(target);
        let is_usable = !is_constant && (deviation as f32).is_normal();
        if is_usable && are_scaled[target] { deviation } else { 1.0 }
    };
    let shift = |target: usize| {
        if are_scaled[target] { stats.origin[target] + stats.mean[target] } else { 0.0 }
    };
    let targets = 0..are_scaled.len();
    TargetScale { shift: targets.clone().map(shift).collect(), scale: targets.map(scale).collect() }
}

/// `dataset` with standardized targets.
pub(crate) fn apply(scale: &TargetScale, dataset: Arc<dyn Dataset>) -> Arc<dyn Dataset> {
    let mut layout = dataset.layout().clone();
    layout.target_scale = Some(scale.clone());
    let are_far = scale.shift.iter().zip(&scale.scale).map(|(&shift, &scale)| offsets::is_far(shift, scale));
    Arc::new(ScaledTargets { of: dataset, are_far: are_far.collect(), layout })
}

/// Rows whose targets are standardized when they are gathered; its layout holds the scale.
///
/// The shift is subtracted from the f32 of a target, so that the format in which it is stored does not matter. Targets far from 0
/// relative to their spread, such as times, have more digits than f32: it is subtracted from their exact values.
#[derive(Debug)]
struct ScaledTargets {
    of: Arc<dyn Dataset>,
    /// Whether the exact values of a target count.
    are_far: Vec<bool>,
    layout: RowLayout,
}

impl ScaledTargets {
    fn standardize(&self, rows: &[usize], targets: TensorMut<'_>) -> Result<()> {
        let Some(scale) = &self.layout.target_scale else { return Ok(()) };
        let values = targets.into_slice::<f32>("gather", "targets")?;
        let mut differences = Vec::new();
        let has_far = self.are_far.contains(&true);
        if has_far {
            differences.resize(values.len(), 0.0);
        }
        let is_wide = has_far && self.of.gather_target_doubles(rows, &scale.shift, &mut differences)?;
        scale.standardize(values);
        if is_wide {
            for (at, (value, difference)) in values.iter_mut().zip(differences).enumerate() {
                let target = at % self.are_far.len();
                if self.are_far[target] {
                    *value = (difference / scale.scale[target]) as f32;
                }
            }
        }
        Ok(())
    }
}

impl DatasetWrapper for ScaledTargets {
    const CHANGES: Changes = Changes::Targets;

    fn inner(&self) -> &dyn Dataset {
        &*self.of
    }

    fn layout(&self) -> &RowLayout {
        &self.layout
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
        let BatchMut { x, mut targets, weights } = out;
        self.of.gather(rows, BatchMut { x, targets: targets.reborrow(), weights })?;
        self.standardize(rows, targets)
    }

    fn gather_targets(&self, rows: &[usize], mut out: TensorMut<'_>) -> Result<()> {
        self.of.gather_targets(rows, out.reborrow())?;
        self.standardize(rows, out)
    }
}

#[cfg(test)]
mod tests {
    use ddp::data::{OutputUnits, TargetLayout, Targets, TensorDataset, numbered_columns};
    use ddp_kernels::{DType, Device, Tensor};

    use crate::fit::scaled_targets::*;

    fn fitted(rows: &[[f64; 3]]) -> TargetScale {
        let mut stats = ColumnStats::new(3);
        stats.add(&rows.concat());
        fit(&stats, &[true; 3])
    }

    #[test]
    fn targets_get_mean_0_and_deviation_1_and_come_back() {
        let rows = [[3e5, 7.0, -1e-3], [5e5, 7.0, 1e-3], [1e5, 7.0, 3e-3], [3e5, 7.0, 1e-3]];
        let scale = fitted(&rows);
        assert_eq!(scale.shift[..2], [3e5, 7.0]);
        assert_eq!(scale.scale[1], 1.0, "a constant target keeps its scale");
        let mut values: Vec<f32> = rows.concat().iter().map(|&y| y as f32).collect();
        let given = values.clone();
        scale.standardize(&mut values);
        for target in [0, 2] {
            let y: Vec<f64> = values.iter().skip(target).step_by(3).map(|&y| f64::from(y)).collect();
            assert!(y.iter().sum::<f64>().abs() < 1e-6, "{y:?}");
            assert!((y.iter().map(|y| y * y).sum::<f64>() / 4.0 - 1.0).abs() < 1e-6, "{y:?}");
        }
        for (back, given) in OutputUnits::Standardized(scale).values(&values, 3).into_iter().zip(given) {
            assert!((back - f64::from(given)).abs() <= 1e-6 * f64::from(given).abs(), "{back} of {given}");
        }
    }

    #[test]
    fn gathered_targets_are_standardized_and_features_are_not() {
        let mut layout =
            RowLayout::new(numbered_columns(1), TargetLayout::Values { names: numbered_columns(1) });
        layout.has_weights = true;
        let rows = TensorDataset {
            features: vec![1.0, 2.0],
            targets: Targets::Values(vec![10.0, 30.0]),
            weights: Some(vec![1.0, 5.0]),
            layout,
            source: "rows in memory".to_owned(),
        };
        let scale = TargetScale { shift: vec![20.0], scale: vec![10.0] };
        let scaled = apply(&scale, Arc::new(rows));
        assert_eq!(scaled.layout().target_scale.as_ref(), Some(&scale));
        assert!(scaled.in_place(0..2).unwrap().is_none(), "rows in memory have the user's targets");
        let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, Device::Cpu).unwrap();
        let (mut x, mut targets, mut weights) = (zeros(&[2, 1]), zeros(&[2, 1]), zeros(&[2]));
        let out =
            BatchMut { x: x.view_mut(), targets: targets.view_mut(), weights: Some(weights.view_mut()) };
        scaled.gather(&[1, 0], out).unwrap();
        assert_eq!(targets.to_vec::<f32>().unwrap(), [1.0, -1.0]);
        assert_eq!(
            (x.to_vec::<f32>().unwrap(), weights.to_vec::<f32>().unwrap()),
            (vec![2.0, 1.0], vec![5.0, 1.0])
        );
    }
}

//! Row by row.

use super::TargetColumns;

/// Rows of targets, and which of their columns are selected.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) targets: &'a [f32],
    pub(super) n_targets: usize,
    pub(super) columns: TargetColumns,
    pub(super) row_weights: Option<&'a [f32]>,
}

impl Rows<'_> {
    /// The selected targets of row `row`, unless one is NaN.
    fn row(&self, row: usize) -> Option<&[f32]> {
        let values = &self.targets[row * self.n_targets + self.columns.first..][..self.columns.len];
        (!values.iter().any(|value| value.is_nan())).then_some(values)
    }

    fn weight(&self, row: usize) -> f32 {
        self.columns.factor * self.row_weights.map_or(1.0, |weights| weights[row])
    }

    pub(super) fn classes(self, classes: &mut [i64], weights: &mut [f32]) {
        for (row, (class, weight)) in classes.iter_mut().zip(weights).enumerate() {
            let values = self.row(row);
            (*class, *weight) = values.map_or((0, 0.0), |values| (values[0] as i64, self.weight(row)));
        }
    }

    pub(super) fn values(self, selected: &mut [f32], weights: &mut [f32]) {
        for (row, weight) in weights.iter_mut().enumerate() {
            let to = &mut selected[row * self.columns.len..][..self.columns.len];
            match self.row(row) {
                Some(values) => to.copy_from_slice(values),
                None => to.fill(0.0),
            }
            *weight = self.row(row).map_or(0.0, |_| self.weight(row));
        }
    }
}

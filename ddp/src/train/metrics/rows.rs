//! A batch of evaluation rows in host memory.

/// Outputs, targets and weights of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EvalRows<'a> {
    pub(crate) n_rows: usize,
    /// Outputs of the model, `[rows, outputs]`; empty if no metric needs them.
    pub(crate) outputs: &'a [f32],
    /// Place of each row's largest output, -1 for none; empty if no metric needs it.
    pub(crate) predicted: &'a [i64],
    pub(crate) targets: RowTargets<'a>,
    /// None if all weights are 1.
    pub(crate) weights: Option<&'a [f32]>,
}

/// Targets of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowTargets<'a> {
    /// A class per row.
    Labels(&'a [i64]),
    /// One value per row and output.
    Values(&'a [f32]),
}

impl<'a> EvalRows<'a> {
    /// The rows' weights.
    pub(crate) fn weights(&self) -> impl Iterator<Item = f64> + use<'a> {
        let weights = self.weights;
        (0..self.n_rows).map(move |row| weights.map_or(1.0, |weights| f64::from(weights[row])))
    }

    /// The classes of the rows; none for rows of values.
    pub(crate) fn labels(&self) -> impl Iterator<Item = usize> + use<'a> {
        let labels = match self.targets {
            RowTargets::Labels(labels) => labels,
            RowTargets::Values(_) => &[],
        };
        labels.iter().map(|&label| label as usize)
    }

    /// Outputs and values of each row with its weight; none for rows of labels.
    pub(crate) fn values(
        &self,
        n_outputs: usize,
    ) -> impl Iterator<Item = (impl Iterator<Item = (f32, f32)> + Clone + use<'a>, f64)> + use<'a> {
        let values = match self.targets {
            RowTargets::Labels(_) => &[],
            RowTargets::Values(values) => values,
        };
        let rows = self.outputs.chunks_exact(n_outputs).zip(values.chunks_exact(n_outputs));
        rows.map(|(outputs, values)| outputs.iter().copied().zip(values.iter().copied())).zip(self.weights())
    }
}

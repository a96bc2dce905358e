//! Rows in memory.

use std::ops::Range;

use ddp_kernels::{TensorMut, TensorRef};

use crate::data::datasets::batch::{Batch, BatchMut};
use crate::data::datasets::dataset::{Dataset, RowLayout, TargetLayout};
use crate::data::error::Result;
use crate::storage::fingerprint::Fingerprint;

/// Rows in host memory, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct ResidentRows {
    /// `[N, features]`.
    pub features: Vec<f32>,
    /// Targets of the rows.
    pub targets: Targets,
    /// `[N]`, if rows have weights.
    pub weights: Option<Vec<f32>>,
    /// Layout of a row.
    pub layout: RowLayout,
    /// Source of the rows, for messages.
    pub source: String,
}

/// Targets of rows.
#[derive(Debug, Clone, PartialEq)]
pub enum Targets {
    /// Class indices, `[N]`.
    Labels(Vec<i64>),
    /// Values, `[N, K]`.
    Values(Vec<f32>),
}

impl ResidentRows {
    /// Rows with a class index each: `features` `[N, features of layout]`, `labels` `[N]`.
    ///
    /// # Panics
    /// If features and labels differ in the number of rows, or there are no features.
    pub fn classes(features: Vec<f32>, labels: Vec<i64>, layout: RowLayout) -> Self {
        assert!(layout.n_features() > 0, "rows have features");
        assert_eq!(features.len(), labels.len() * layout.n_features(), "a row of features a label");
        let source = "rows in memory".to_owned();
        ResidentRows { features, targets: Targets::Labels(labels), weights: None, layout, source }
    }

    fn n_features(&self) -> usize {
        self.layout.n_features()
    }

    fn n_targets(&self) -> usize {
        match &self.layout.targets {
            TargetLayout::Classes { .. } => 1,
            targets => targets.n_values(),
        }
    }
}

impl Dataset for ResidentRows {
    fn len(&self) -> usize {
        self.features.len() / self.n_features()
    }

    fn layout(&self) -> &RowLayout {
        &self.layout
    }

    fn gather_targets(&self, rows: &[usize], out: TensorMut<'_>) -> Result<()> {
        const OP: &str = "gather";
        match &self.targets {
            Targets::Labels(labels) => gather(labels, 1, rows, out.into_slice::<i64>(OP, "targets")?),
            Targets::Values(values) => {
                gather(values, self.n_targets(), rows, out.into_slice::<f32>(OP, "targets")?);
            }
        }
        Ok(())
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
        const OP: &str = "gather";
        gather(&self.features, self.n_features(), rows, out.x.into_slice::<f32>(OP, "x")?);
        self.gather_targets(rows, out.targets)?;
        if let (Some(weights), Some(out)) = (&self.weights, out.weights) {
            gather(weights, 1, rows, out.into_slice::<f32>(OP, "weights")?);
        }
        Ok(())
    }

    fn class_indices(&self, rows: Range<usize>, out: &mut [i64]) -> Result<()> {
        match &self.targets {
            Targets::Labels(labels) => out.copy_from_slice(&labels[rows]),
            Targets::Values(_) => panic!("targets are classes"),
        }
        Ok(())
    }

    fn in_place(&self, rows: Range<usize>) -> Result<Option<Batch<'_>>> {
        let (n, n_features, n_targets) = (rows.len(), self.n_features(), self.n_targets());
        let weights =
            self.weights.as_ref().map(|weights| TensorRef::from_slice(&weights[rows.clone()], &[n]));
        Ok(Some(Batch {
            x: TensorRef::from_slice(
                &self.features[rows.start * n_features..rows.end * n_features],
                &[n, n_features],
            )?,
            targets: match &self.targets {
                Targets::Labels(labels) => TensorRef::from_slice(&labels[rows], &[n])?,
                Targets::Values(values) => TensorRef::from_slice(
                    &values[rows.start * n_targets..rows.end * n_targets],
                    &[n, n_targets],
                )?,
            },
            weights: weights.transpose()?,
        }))
    }

    fn fingerprint(&self) -> Result<u64> {
        let mut hash = Fingerprint::default();
        hash.number(self.len() as u64);
        self.layout.features.iter().for_each(|name| hash.text(name));
        for category in &self.layout.categories {
            category.vocabulary.values().iter().for_each(|value| hash.text(value));
        }
        self.layout.targets.add_to(&mut hash);
        hash.bytes(bytemuck::cast_slice(&self.features));
        match &self.targets {
            Targets::Labels(labels) => hash.bytes(bytemuck::cast_slice(labels)),
            Targets::Values(values) => hash.bytes(bytemuck::cast_slice(values)),
        }
        self.weights.iter().for_each(|weights| hash.bytes(bytemuck::cast_slice(weights)));
        Ok(hash.finish())
    }

    fn resident_bytes(&self) -> usize {
        self.len() * self.layout.row_bytes()
    }

    fn source(&self) -> &str {
        &self.source
    }
}

/// `out[n, :] = from[rows[n], :]`, for rows of `width` elements.
fn gather<T: Copy>(from: &[T], width: usize, rows: &[usize], out: &mut [T]) {
    if width == 1 {
        rows.iter().zip(out).for_each(|(&row, out)| *out = from[row]);
        return;
    }
    for (&row, out) in rows.iter().zip(out.chunks_exact_mut(width.max(1))) {
        out.copy_from_slice(&from[row * width..][..width]);
    }
}

//! Rows in memory.

use std::ops::Range;

use ddp_kernels::{TensorMut, TensorRef};

use crate::data::datasets::batch::{Batch, BatchMut};
use crate::data::datasets::dataset::{Dataset, RowLayout, TargetLayout};
use crate::data::error::Result;
use crate::data::parallel;
use crate::data::tensor_rows_error::TensorRowsError;
use crate::storage::fingerprint::Fingerprint;

/// Rows in host memory, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorDataset {
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

impl TensorDataset {
    /// Rows with a class index each: `features` `[N, features of layout]`, `labels` `[N]`.
    ///
    /// # Panics
    /// If features and labels differ in the number of rows, or there are no features.
    pub fn classes(features: Vec<f32>, labels: Vec<i64>, layout: RowLayout) -> Self {
        assert!(layout.n_features() > 0, "rows have features");
        assert_eq!(features.len(), labels.len() * layout.n_features(), "a row of features a label");
        let source = "rows in memory".to_owned();
        TensorDataset { features, targets: Targets::Labels(labels), weights: None, layout, source }
    }

    /// The rows as slices.
    fn view(&self) -> RowsInMemory<'_> {
        RowsInMemory {
            features: &self.features,
            targets: match &self.targets {
                Targets::Labels(labels) => TargetSlice::Labels(labels),
                Targets::Values(values) => TargetSlice::Values(values),
            },
            weights: self.weights.as_deref(),
            layout: &self.layout,
        }
    }
}

/// Rows in memory that another value owns, such as a mapped file. The methods are as in [`Dataset`].
#[derive(Debug, Clone, Copy)]
pub struct RowsInMemory<'a> {
    /// `[N, features]`.
    pub features: &'a [f32],
    /// Targets of the rows.
    pub targets: TargetSlice<'a>,
    /// `[N]`, if rows have weights.
    pub weights: Option<&'a [f32]>,
    /// Layout of a row.
    pub layout: &'a RowLayout,
}

/// Targets of rows in memory.
#[derive(Debug, Clone, Copy)]
pub enum TargetSlice<'a> {
    /// Class indices, `[N]`.
    Labels(&'a [i64]),
    /// Values, `[N, K]`.
    Values(&'a [f32]),
}

#[allow(missing_docs)]
#[expect(clippy::len_without_is_empty, reason = "`Dataset` has it")]
impl<'a> RowsInMemory<'a> {
    pub fn len(&self) -> usize {
        self.features.len() / self.layout.n_features()
    }

    fn n_targets(&self) -> usize {
        match &self.layout.targets {
            TargetLayout::Classes { .. } => 1,
            targets => targets.n_values(),
        }
    }

    pub fn gather_targets(&self, rows: &[usize], out: TensorMut<'_>) -> Result<()> {
        const OP: &str = "gather";
        match self.targets {
            TargetSlice::Labels(labels) => gather(labels, 1, rows, out.into_slice::<i64>(OP, "targets")?),
            TargetSlice::Values(values) => {
                gather(values, self.n_targets(), rows, out.into_slice::<f32>(OP, "targets")?);
            }
        }
        Ok(())
    }

    pub fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
        const OP: &str = "gather";
        gather(self.features, self.layout.n_features(), rows, out.x.into_slice::<f32>(OP, "x")?);
        self.gather_targets(rows, out.targets)?;
        if let (Some(weights), Some(out)) = (self.weights, out.weights) {
            gather(weights, 1, rows, out.into_slice::<f32>(OP, "weights")?);
        }
        Ok(())
    }

    pub fn class_indices(&self, rows: Range<usize>, out: &mut [i64]) {
        match self.targets {
            TargetSlice::Labels(labels) => out.copy_from_slice(&labels[rows]),
            TargetSlice::Values(_) => panic!("targets are classes"),
        }
    }

    pub fn in_place(&self, rows: Range<usize>) -> Result<Batch<'a>> {
        let (n, n_features, n_targets) = (rows.len(), self.layout.n_features(), self.n_targets());
        let weights = self.weights.map(|weights| TensorRef::from_slice(&weights[rows.clone()], &[n]));
        Ok(Batch {
            x: TensorRef::from_slice(
                &self.features[rows.start * n_features..rows.end * n_features],
                &[n, n_features],
            )?,
            targets: match self.targets {
                TargetSlice::Labels(labels) => TensorRef::from_slice(&labels[rows], &[n])?,
                TargetSlice::Values(values) => TensorRef::from_slice(
                    &values[rows.start * n_targets..rows.end * n_targets],
                    &[n, n_targets],
                )?,
            },
            weights: weights.transpose()?,
        })
    }

    pub fn fingerprint(&self) -> u64 {
        let mut hash = Fingerprint::default();
        hash.number(self.len() as u64);
        self.layout.features.iter().for_each(|name| hash.text(name));
        for category in &self.layout.categories {
            category.vocabulary.values().iter().for_each(|value| hash.text(value));
        }
        self.layout.targets.add_to(&mut hash);
        add_array(&mut hash, bytemuck::cast_slice(self.features));
        match self.targets {
            TargetSlice::Labels(labels) => add_array(&mut hash, bytemuck::cast_slice(labels)),
            TargetSlice::Values(values) => add_array(&mut hash, bytemuck::cast_slice(values)),
        }
        self.weights.iter().for_each(|weights| add_array(&mut hash, bytemuck::cast_slice(weights)));
        hash.finish()
    }
}

/// Adds an array; a large one by its blocks, which the threads of this rank share.
fn add_array(hash: &mut Fingerprint, bytes: &[u8]) {
    const BLOCK_BYTES: usize = 1 << 20;
    if bytes.len() <= BLOCK_BYTES {
        hash.bytes(bytes);
        return;
    }
    hash.number(bytes.len() as u64);
    let blocks: Vec<&[u8]> = bytes.chunks(BLOCK_BYTES).collect();
    let shares = blocks.chunks(blocks.len().div_ceil(parallel::n_threads()));
    let of_share =
        |share: &[&[u8]]| share.iter().map(|block| Fingerprint::of_block(block)).collect::<Vec<_>>();
    parallel::map(shares, of_share).into_iter().flatten().for_each(|block| hash.number(block));
}

impl Dataset for TensorDataset {
    fn len(&self) -> usize {
        self.view().len()
    }

    fn layout(&self) -> &RowLayout {
        &self.layout
    }

    fn check(&self) -> Result<()> {
        let Some(weights) = &self.weights else { return Ok(()) };
        let n_rows = self.len();
        if weights.len() != n_rows || !self.layout.has_weights {
            return Err(TensorRowsError::Weights { n_weights: weights.len(), n_rows }.into());
        }
        match weights.iter().position(|weight| !(weight.is_finite() && *weight >= 0.0)) {
            Some(row) => Err(TensorRowsError::Weight { row, weight: weights[row] }.into()),
            None => Ok(()),
        }
    }

    fn gather_targets(&self, rows: &[usize], out: TensorMut<'_>) -> Result<()> {
        self.view().gather_targets(rows, out)
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
        self.view().gather(rows, out)
    }

    fn class_indices(&self, rows: Range<usize>, out: &mut [i64]) -> Result<()> {
        self.view().class_indices(rows, out);
        Ok(())
    }

    fn in_place(&self, rows: Range<usize>) -> Result<Option<Batch<'_>>> {
        self.view().in_place(rows).map(Some)
    }

    fn fingerprint(&self) -> Result<u64> {
        Ok(self.view().fingerprint())
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

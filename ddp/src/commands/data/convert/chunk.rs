//! Rows on their way from one file to another.

use std::ops::Range;

/// Some rows, side by side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk<'a> {
    pub(super) n_rows: usize,
    /// `[n_rows, features]`; NaN where a value is missing.
    pub(super) features: &'a [f32],
    pub(super) targets: Targets<'a>,
    pub(super) weights: Option<&'a [f32]>,
}

/// What the rows should give.
#[derive(Debug, Clone, Copy)]
pub(super) enum Targets<'a> {
    /// `[n_rows]`
    Labels(&'a [i64]),
    /// `[n_rows, targets]`
    Values(&'a [f32]),
}

impl<'a> Chunk<'a> {
    /// Some of its rows.
    pub(super) fn rows(&self, rows: Range<usize>) -> Chunk<'a> {
        fn part<'a, T>(all: &'a [T], n_rows: usize, rows: &Range<usize>) -> &'a [T] {
            let width = all.len() / n_rows;
            &all[rows.start * width..rows.end * width]
        }
        Chunk {
            n_rows: rows.len(),
            features: part(self.features, self.n_rows, &rows),
            targets: match self.targets {
                Targets::Labels(labels) => Targets::Labels(part(labels, self.n_rows, &rows)),
                Targets::Values(values) => Targets::Values(part(values, self.n_rows, &rows)),
            },
            weights: self.weights.map(|weights| part(weights, self.n_rows, &rows)),
        }
    }
}

impl Targets<'_> {
    /// The bytes as they stand in a file.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Targets::Labels(labels) => bytemuck::cast_slice(labels),
            Targets::Values(values) => bytemuck::cast_slice(values),
        }
    }
}

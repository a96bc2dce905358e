//! A block of rows between a reader and a writer.

use std::ops::Range;

/// Consecutive rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunk<'a> {
    pub(crate) n_rows: usize,
    /// `[n_rows, features]`; NaN where a value is missing.
    pub(crate) features: &'a [f32],
    pub(crate) targets: Targets<'a>,
    pub(crate) weights: Option<&'a [f32]>,
}

/// Targets of the rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Targets<'a> {
    /// `[n_rows]`
    Labels(&'a [i64]),
    /// `[n_rows, targets]`
    Values(&'a [f32]),
}

impl<'a> Chunk<'a> {
    /// A range of these rows.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Chunk<'a> {
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
    /// The values as bytes in the order of the file.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Targets::Labels(labels) => bytemuck::cast_slice(labels),
            Targets::Values(values) => bytemuck::cast_slice(values),
        }
    }
}

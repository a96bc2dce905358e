//! Statistics of columns from f32 and, in columns far from 0 whose values f32 rounds, from the exact values.

use crate::fit::offsets;
use crate::fit::stats::{ColumnStats, N_FIELDS};

/// Statistics of the f32 of columns, and of their exact values.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ExactStats {
    singles: ColumnStats,
    /// `None` if f32 holds all values.
    exact: Option<ColumnStats>,
}

impl ExactStats {
    /// Without rows; `origin` is that of the exact values, if there are any.
    pub(crate) fn new(n_columns: usize, origin: Option<Vec<f64>>) -> Self {
        ExactStats { singles: ColumnStats::new(n_columns), exact: origin.map(ColumnStats::from_origin) }
    }

    pub(crate) fn n_columns(&self) -> usize {
        self.singles.mean.len()
    }

    /// Subtracted from the exact values before they are added; `None` if there are none.
    pub(crate) fn origin(&self) -> Option<&[f64]> {
        self.exact.as_ref().map(|exact| &exact.origin[..])
    }

    /// Adds rows: their f32, and their exact values less the origin, which are ignored without exact statistics.
    pub(crate) fn add(&mut self, singles: &[f32], differences: &[f64]) {
        self.singles.add(singles);
        if let Some(exact) = &mut self.exact {
            exact.add(differences);
        }
    }

    /// Merges the statistics of `other`, whose rows follow.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.singles.merge(&other.singles);
        self.exact.iter_mut().zip(&other.exact).for_each(|(exact, other)| exact.merge(other));
    }

    /// Numbers that [`ExactStats::store`] writes.
    pub(crate) fn n_numbers(&self) -> usize {
        N_FIELDS * self.n_columns() * if self.exact.is_some() { 2 } else { 1 }
    }

    /// The statistics as numbers that can be added to the zeros of other ranks.
    pub(crate) fn store(&self, numbers: &mut [f64]) {
        let (singles, exact) = numbers.split_at_mut(N_FIELDS * self.n_columns());
        self.singles.store(singles);
        self.exact.iter().for_each(|stats| stats.store(exact));
    }

    /// The statistics that [`ExactStats::store`] wrote, with the origins of `self`.
    pub(crate) fn load(&self, numbers: &[f64]) -> Self {
        let (singles, exact) = numbers.split_at(N_FIELDS * self.n_columns());
        ExactStats {
            singles: ColumnStats::load(singles, &self.singles.origin),
            exact: self.exact.as_ref().map(|stats| ColumnStats::load(exact, &stats.origin)),
        }
    }

    /// Statistics of `n_rows` rows: of the exact values in columns that have an offset, else of the f32, so that the format in which
    /// they are stored does not matter.
    pub(crate) fn finish(self, n_rows: usize) -> ColumnStats {
        let mut stats = self.singles;
        stats.n_rows = n_rows;
        if let Some(exact) = self.exact {
            let has_offset = |column: &usize| offsets::column_offset(&exact, *column) != 0.0;
            for column in (0..exact.mean.len()).filter(has_offset) {
                stats.copy_column(column, &exact);
            }
        }
        stats
    }

    /// Statistics of the f32.
    pub(crate) fn into_singles(self) -> ColumnStats {
        self.singles
    }
}

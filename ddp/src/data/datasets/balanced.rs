//! Rows with equal counts of all classes: rows of rarer classes are repeated.

use std::ops::Range;
use std::sync::Arc;

use crate::data::datasets::dataset::Dataset;
use crate::data::datasets::wrapper::{Changes, DatasetWrapper};
use crate::data::error::{DataError, Result};

/// Rows whose classes are read at a time.
const CHUNK_ROWS: usize = 1 << 14;

/// The rows of a dataset of classes, of each class as many as the most frequent one has: the rows of the others are repeated, each of
/// them as often as any other or once more. Classes without rows are left out.
///
/// An epoch visits each of its rows once, in the order of the seed, so the counts are exact on any number of ranks. It takes four bytes per
/// row of the dataset.
///
/// Source: random over-sampling of imbalanced-learn's `RandomOverSampler`, without its chance.
#[derive(Debug)]
pub struct BalancedRows {
    of: Arc<dyn Dataset>,
    /// Numbers of the rows, by class and ascending.
    rows: Vec<u32>,
    /// Range in `rows` of each class that has rows.
    classes: Vec<Range<usize>>,
    /// Rows of the most frequent class.
    most: usize,
}

impl BalancedRows {
    /// Reads the classes of the rows of `of`.
    ///
    /// # Errors
    /// [`DataError::TooManyToBalance`] for more than `u32::MAX` rows; errors of reading them.
    ///
    /// # Panics
    /// If the targets are not classes.
    pub fn new(of: Arc<dyn Dataset>) -> Result<Self> {
        let n_rows = of.len();
        if u32::try_from(n_rows).is_err() {
            return Err(DataError::TooManyToBalance { source_name: of.source().to_owned(), n_rows });
        }
        let n_classes = of.layout().targets.n_outputs();
        let classes_of = |take: &mut dyn FnMut(usize, usize)| -> Result<()> {
            let mut classes = vec![0; CHUNK_ROWS.min(n_rows)];
            for start in (0..n_rows).step_by(CHUNK_ROWS) {
                let end = (start + CHUNK_ROWS).min(n_rows);
                of.class_indices(start..end, &mut classes[..end - start])?;
                for (row, class) in (start..end).zip(&classes) {
                    take(row, usize::try_from(*class).expect("training rows have known classes"));
                }
            }
            Ok(())
        };
        let mut starts = vec![0; n_classes + 1];
        classes_of(&mut |_, class| starts[class + 1] += 1)?;
        (0..n_classes).for_each(|class| starts[class + 1] += starts[class]);
        let mut next = starts.clone();
        let mut rows = vec![0; n_rows];
        classes_of(&mut |row, class| {
            rows[next[class]] = row as u32;
            next[class] += 1;
        })?;
        let classes: Vec<Range<usize>> =
            starts.windows(2).map(|bounds| bounds[0]..bounds[1]).filter(|range| !range.is_empty()).collect();
        let most = classes.iter().map(Range::len).max().unwrap_or(0);
        Ok(BalancedRows { of, rows, classes, most })
    }

    /// Rows of each class, and number of classes.
    pub fn sizes(&self) -> (usize, usize) {
        (self.most, self.classes.len())
    }
}

impl DatasetWrapper for BalancedRows {
    const CHANGES: Changes = Changes::Rows;

    fn inner(&self) -> &dyn Dataset {
        &*self.of
    }

    fn row(&self, n: usize) -> usize {
        let class = &self.classes[n / self.most];
        self.rows[class.start + n % self.most % class.len()] as usize
    }

    fn len(&self) -> usize {
        self.most * self.classes.len()
    }

    fn resident_bytes(&self) -> usize {
        self.of.resident_bytes() + size_of_val(&self.rows[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::datasets::dataset::{RowLayout, TargetLayout};
    use crate::data::datasets::resident::{Targets, TensorDataset};

    fn rows(classes: &[i64], n_classes: usize) -> BalancedRows {
        let layout = RowLayout::new(vec!["x".to_owned()], TargetLayout::Classes { n_classes });
        let features = (0..classes.len()).map(|row| row as f32).collect();
        let targets = Targets::Labels(classes.to_vec());
        let whole = TensorDataset { features, targets, weights: None, layout, source: "test".to_owned() };
        BalancedRows::new(Arc::new(whole)).unwrap()
    }

    #[test]
    fn each_class_has_as_many_rows_and_repeats_its_own_evenly() {
        // Class 2 has no row.
        let rows = rows(&[1, 0, 0, 1, 0, 0, 0, 3], 4);
        assert_eq!((rows.sizes(), Dataset::len(&rows)), ((5, 3), 15));
        let numbers: Vec<usize> = (0..15).map(|n| rows.row(n)).collect();
        assert_eq!(numbers, [1, 2, 4, 5, 6, 0, 3, 0, 3, 0, 7, 7, 7, 7, 7]);
        let mut classes = [0; 15];
        Dataset::class_indices(&rows, 0..15, &mut classes).unwrap();
        assert_eq!(classes, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3]);
    }
}

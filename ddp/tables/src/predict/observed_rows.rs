//! Observes rows on their way to the model: counts values that differ from those of training, and finds rows that can't be
//! predicted.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use ddp::data::datasets::batch::{Batch, BatchMut};
use ddp::data::error::Result;
use ddp::data::{Changes, DataError, Dataset, DatasetWrapper};
use ddp_kernels::{DType, Device, Tensor};

use crate::error::TableError;
use crate::fit::preprocess::ColumnCodes;
use crate::formats::error::{ColumnError, RowsError};
use crate::predict::input::{Input, StreamedRows};

/// Counts of values in a column that differ from those of training.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ColumnCounts {
    /// Number of categories that are empty or were not seen in training.
    pub n_unseen: u64,
    /// Number of missing values that were filled in.
    pub n_filled: u64,
    /// Number of values outside the range of the training rows.
    pub n_outside: u64,
}

/// Rows of a dataset, observed while they are gathered.
#[derive(Debug)]
pub(crate) struct ObservedRows {
    of: Arc<dyn Dataset>,
    /// The table behind them, which knows rows that can't be predicted.
    table: Option<Arc<StreamedRows>>,
    columns: Vec<Watch>,
    /// Whether the model fills in missing values.
    fills: bool,
    /// Whether rows that can't be predicted are skipped.
    skips_bad_rows: bool,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    counts: Vec<ColumnCounts>,
    /// Rows that can't be predicted.
    bad_rows: BTreeSet<usize>,
    /// End of the rows that were observed in place.
    in_place_end: usize,
}

/// Expected values of a column.
#[derive(Debug, Clone, Copy)]
enum Watch {
    Category,
    /// Numbers in the range of the training rows, if it is known.
    Number(Option<[f32; 2]>),
}

impl ObservedRows {
    pub(crate) fn new(input: &Input, plan: &ColumnCodes, skips_bad_rows: bool) -> Self {
        let is_category =
            |name: &String| plan.vocabularies.iter().any(|vocabulary| vocabulary.name() == name);
        let watch = |(index, name): (usize, &String)| {
            if is_category(name) { Watch::Category } else { Watch::Number(plan.training_range(index)) }
        };
        let columns: Vec<Watch> = plan.columns.iter().enumerate().map(watch).collect();
        let seen = Seen { counts: vec![ColumnCounts::default(); columns.len()], ..Seen::default() };
        ObservedRows {
            of: input.rows.clone(),
            table: input.table.clone().filter(|_| skips_bad_rows),
            columns,
            fills: plan.fills_missing(),
            skips_bad_rows,
            seen: Mutex::new(seen),
        }
    }

    /// Counts per column so far, in the order of the columns.
    pub(crate) fn counts(&self) -> Vec<ColumnCounts> {
        self.lock().counts.clone()
    }

    /// Removes and returns the rows of `range` that can't be predicted.
    pub(crate) fn take_bad_rows(&self, range: &Range<usize>) -> Vec<usize> {
        let mut seen = self.lock();
        let found: Vec<usize> = seen.bad_rows.range(range.clone()).copied().collect();
        found.iter().for_each(|row| _ = seen.bad_rows.remove(row));
        found
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the values of rows, `[n_rows, columns]`, except for rows that can't be predicted: those in `bad`, and those that lack a value
    /// which nothing replaces. `number(n)` is the index of the n-th row in the dataset.
    fn watch(&self, values: &[f32], number: impl Fn(usize) -> usize, bad: &HashSet<usize>) {
        let mut counts = vec![ColumnCounts::default(); self.columns.len()];
        let mut bad_rows = Vec::new();
        for (n, row) in values.chunks_exact(self.columns.len()).enumerate() {
            let lacks_value = !self.fills && row.iter().any(|value| value.is_nan());
            if lacks_value {
                bad_rows.push(number(n));
            }
            if lacks_value || !bad.is_empty() && bad.contains(&number(n)) {
                continue;
            }
            for ((value, column), counts) in row.iter().zip(&self.columns).zip(&mut counts) {
                match column {
                    Watch::Category => counts.n_unseen += u64::from(*value == 0.0),
                    Watch::Number(_) if value.is_nan() => counts.n_filled += 1,
                    Watch::Number(Some([min, max])) => {
                        counts.n_outside += u64::from(value < min || value > max);
                    }
                    Watch::Number(None) => {}
                }
            }
        }
        let mut seen = self.lock();
        for (total, counts) in seen.counts.iter_mut().zip(&counts) {
            total.n_unseen += counts.n_unseen;
            total.n_filled += counts.n_filled;
            total.n_outside += counts.n_outside;
        }
        seen.bad_rows.extend(bad_rows);
    }

    /// Gathers row by row; rows with an error become zeros, are recorded and added to `bad`.
    fn gather_each(&self, rows: &[usize], out: BatchMut<'_>, bad: &mut HashSet<usize>) -> Result<()> {
        const OP: &str = "gather";
        let layout = self.of.layout();
        let mut x = Tensor::zeros(&[1, layout.n_features()], layout.dtype, Device::Cpu)?;
        let mut targets = Tensor::zeros(&layout.targets.dims(1), layout.targets.dtype(), Device::Cpu)?;
        let bytes = out.x.into_bytes(OP, "x")?;
        let row_bytes = bytes.len() / rows.len();
        for (&row, bytes) in rows.iter().zip(bytes.chunks_exact_mut(row_bytes)) {
            let one = BatchMut { x: x.view_mut(), targets: targets.view_mut(), weights: None };
            match self.of.gather(&[row], one) {
                Ok(()) => bytes.copy_from_slice(x.view_mut().into_bytes(OP, "x")?),
                Err(_) => {
                    bytes.fill(0);
                    self.lock().bad_rows.insert(row);
                    bad.insert(row);
                }
            }
        }
        Ok(())
    }
}

/// Whether the error concerns a value of a row.
fn is_bad_value(error: &DataError) -> bool {
    match TableError::of(error) {
        Some(TableError::NotFinite { .. } | TableError::MissingValue { .. }) => true,
        Some(TableError::Rows(RowsError::Column(error))) => matches!(**error, ColumnError::ListLength { .. }),
        _ => false,
    }
}

impl DatasetWrapper for ObservedRows {
    const CHANGES: Changes = Changes::Nothing;

    fn inner(&self) -> &dyn Dataset {
        &*self.of
    }

    fn gather(&self, rows: &[usize], mut out: BatchMut<'_>) -> Result<()> {
        const OP: &str = "gather";
        let views = BatchMut { x: out.x.reborrow(), targets: out.targets.reborrow(), weights: None };
        let mut bad =
            self.table.as_ref().map_or_else(|| Ok(HashSet::new()), |table| table.bad_among(rows))?;
        match self.of.gather(rows, views) {
            Err(error) if self.skips_bad_rows && is_bad_value(&error) => {
                let views = BatchMut { x: out.x.reborrow(), targets: out.targets, weights: None };
                self.gather_each(rows, views, &mut bad)?;
            }
            gathered => gathered?,
        }
        if self.of.layout().dtype == DType::F32 {
            self.watch(out.x.into_slice::<f32>(OP, "x")?, |n| rows[n], &bad);
        }
        Ok(())
    }

    fn in_place(&self, rows: Range<usize>) -> Result<Option<Batch<'_>>> {
        let batch = match self.of.in_place(rows.clone()) {
            // These rows are gathered instead.
            Err(error) if self.skips_bad_rows && is_bad_value(&error) => None,
            batch => batch?,
        };
        let Some(batch) = batch else { return Ok(None) };
        // A loader requests the same rows twice, always in ascending order.
        let first_new = {
            let mut seen = self.lock();
            let end = seen.in_place_end.max(rows.end);
            std::mem::replace(&mut seen.in_place_end, end).clamp(rows.start, rows.end)
        };
        let values = batch.x.as_slice::<f32>("gather", "x")?;
        let new = &values[(first_new - rows.start) * self.columns.len()..];
        self.watch(new, |n| first_new + n, &HashSet::new());
        Ok(Some(batch))
    }
}

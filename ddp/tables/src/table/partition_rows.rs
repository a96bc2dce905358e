//! Writes the values in the names of a file's folders to its rows.

use std::path::Path;

use ddp::data::error::{DataError, Result};

use crate::formats::error::ColumnError;
use crate::table::cell;
use crate::table::columns::ColumnPlan;
use crate::table::rows::TableRows;
use crate::values::notation::Notation;

/// Writes the values of `plan`'s partitions to the rows from `first` on.
///
/// # Errors
/// [`ColumnError::Partition`]
pub(crate) fn fill(plan: &ColumnPlan, rows: &mut TableRows, first: usize, path: &Path) -> Result<()> {
    if plan.partitions.is_empty() {
        return Ok(());
    }
    let notation = Notation::for_folders();
    for partition in &plan.partitions {
        for row in first..rows.n_rows {
            let put = cell::put(rows, row, partition.role, partition.value.as_bytes(), &notation);
            if let Err(problem) = put
                && !rows.mark_bad(row)
            {
                let (path, column) = (path.to_owned(), partition.name.clone());
                return Err(DataError::from(ColumnError::Partition { path, column, problem }));
            }
            rows.set_place(|| {
                format!("data file `{}`: column \"{}\" of its folder", path.display(), partition.name)
            });
        }
    }
    for (&column, texts) in plan.kept.iter().zip(&mut rows.kept) {
        if let Some(partition) = column.checked_sub(plan.names.len()).map(|at| &plan.partitions[at]) {
            (first..rows.n_rows).for_each(|_| texts.push(&partition.value));
        }
    }
    Ok(())
}

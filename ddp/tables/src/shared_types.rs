//! Types that the columns of several files of one table have in common, known before their rows are read.

#[cfg(feature = "parquet")]
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ddp::data::error::{DataError, Result};

use crate::formats::error::RowsError;

/// Types of the columns that differ between the files of a table.
#[derive(Debug, Clone, Default)]
pub struct SharedTypes {
    /// The type that holds the values of all files, by column.
    #[cfg(feature = "parquet")]
    pub(crate) types: HashMap<String, arrow_schema::DataType>,
    /// Columns whose values no type holds.
    pub(crate) conflicts: Vec<Conflict>,
    /// Decisions on files and types: sentences for the user.
    pub notes: Vec<String>,
}

/// A column that has two types without a common one.
#[derive(Debug, Clone)]
#[cfg_attr(not(feature = "parquet"), allow(dead_code))] // Only columnar files have types.
pub(crate) struct Conflict {
    pub(crate) column: String,
    pub(crate) first: PathBuf,
    pub(crate) other: PathBuf,
    /// The types in these files.
    pub(crate) types: [String; 2],
}

impl SharedTypes {
    /// Checks that one type holds the values of each used column.
    ///
    /// # Errors
    /// [`RowsError::ShardsDiffer`]
    pub fn check(&self, is_used: impl Fn(&str) -> bool) -> Result<()> {
        match self.conflicts.iter().find(|conflict| is_used(&conflict.column)) {
            None => Ok(()),
            Some(Conflict { column, first, other, types: [here, there] }) => {
                let (first, other) = (first.clone(), other.clone());
                let difference = format!(
                    "column \"{column}\" is {here} in one and {there} in the other, and no type holds both"
                );
                Err(DataError::from(RowsError::ShardsDiffer { first, other, difference }))
            }
        }
    }
}

/// The names of files in a sentence, the last ones left out if they are many.
pub(crate) fn listed(files: &[&Path]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> = files.iter().take(SHOWN).map(|file| format!("`{}`", file.display())).collect();
    match files.len() - shown.len() {
        0 => shown.join(", "),
        n => format!("{} and {n} more", shown.join(", ")),
    }
}

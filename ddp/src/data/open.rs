//! Opens the rows that a [`SourceSpec`] names: finds files and format, then reads or maps them.

use std::sync::Arc;

use super::dataset::{Dataset, TargetLayout};
use super::error::{DataError, Result};
use super::files::files_and_format;
use super::format::Reader;
use super::source::SourceSpec;
use super::{builtin, raw, table};

impl SourceSpec<'_> {
    /// Opens the rows. Files of arrays are not read, except labels that determine the number of classes; tables are.
    ///
    /// # Errors
    /// A [`DataError`] that names the file or the setting.
    pub fn open(&self) -> Result<Arc<dyn Dataset>> {
        open(self)?.ready()
    }
}

/// Rows whose number of classes may still be unknown.
#[derive(Debug)]
pub(crate) enum Opened {
    /// Rows in files whose labels were not read yet.
    Raw(Box<raw::RawRows>),
    Ready(Arc<dyn Dataset>),
}

impl Opened {
    /// The rows, with `max_label` as their largest label.
    pub(crate) fn with_max_label(self, max_label: i64) -> Result<Arc<dyn Dataset>> {
        match self {
            Opened::Ready(rows) => Ok(rows),
            Opened::Raw(mut rows) => {
                if rows.layout.targets == (TargetLayout::Classes { n_classes: 0 }) {
                    if max_label == 0 {
                        let n_rows = rows.len();
                        return Err(DataError::SingleClass { source_name: rows.source, n_rows });
                    }
                    rows.layout.targets = TargetLayout::Classes { n_classes: max_label as usize + 1 };
                }
                let rows: Arc<raw::RawRows> = Arc::from(rows);
                Ok(rows)
            }
        }
    }

    /// Whether the rows of `spec` come from a table, rather than from arrays or a built-in set.
    pub(crate) fn is_table(&self, spec: &SourceSpec<'_>) -> bool {
        matches!(self, Opened::Ready(_)) && !spec.source.starts_with("builtin:")
    }

    /// The rows; reads all labels if the number of classes is unknown.
    pub(crate) fn ready(self) -> Result<Arc<dyn Dataset>> {
        let max_label = self.max_label(|n_rows| 0..n_rows)?;
        self.with_max_label(max_label)
    }

    /// The largest label of the rows `part(n_rows)`; 0 if the number of classes is known.
    pub(crate) fn max_label(&self, part: impl Fn(usize) -> std::ops::Range<usize>) -> Result<i64> {
        match self {
            Opened::Raw(rows) if rows.layout.targets == (TargetLayout::Classes { n_classes: 0 }) => {
                rows.max_label(part(rows.len()), None)
            }
            _ => Ok(0),
        }
    }
}

/// Opens the rows of `spec`. Files of arrays are not read, tables are.
///
/// # Errors
/// A [`DataError`] that names the file or the setting.
pub(crate) fn open(spec: &SourceSpec<'_>) -> Result<Opened> {
    if let Some(name) = spec.source.strip_prefix("builtin:") {
        return Ok(Opened::Ready(Arc::new(builtin::read(name, spec)?)));
    }
    let (files, format) = files_and_format(spec)?;
    if spec.eval_weight().is_some() && !format.is_single_array() {
        return Err(DataError::NotForFormat {
            key: "data.eval_weight",
            source_name: spec.source.to_owned(),
            why: "holds its weights in a column or an array",
            hint: "remove it: `data.weight` names the column or array".to_owned(),
        });
    }
    match &format.reader {
        Reader::Table(readers) => Ok(Opened::Ready(table::open(&files, readers, spec)?)),
        Reader::Arrays(reader) => {
            let rows = raw::open(&files, reader, spec)?;
            if let Some(known) = spec.features {
                raw::same_columns(&rows, known)?;
            }
            Ok(Opened::Raw(Box::new(rows)))
        }
    }
}

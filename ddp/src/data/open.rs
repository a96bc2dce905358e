//! Opens the rows that a [`SourceSpec`] names: finds files and format, then reads or maps them.

use std::sync::Arc;

use super::dataset::{Dataset, TargetLayout};
use super::error::{DataError, Result};
use super::files::files_and_format;
use super::raw::{self, RawFormat};
use super::source::SourceSpec;
use super::{builtin, table};
use crate::config::DataFormat;

impl SourceSpec<'_> {
    /// Opens the rows. Large files are not read, but for labels where the number of classes is to be taken from them; tables
    /// (CSV) are.
    ///
    /// # Errors
    /// What is wrong with the name or the files.
    pub fn open(&self) -> Result<Arc<dyn Dataset>> {
        open(self)?.ready()
    }
}

/// Rows whose number of classes may still be open.
#[derive(Debug)]
pub(crate) enum Opened {
    /// Rows in files, whose labels nobody has looked at.
    Raw(Box<raw::RawRows>),
    Ready(Arc<dyn Dataset>),
}

impl Opened {
    /// The rows, whose largest label is `max_label`.
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

    /// The rows, after a look at all labels where the number of classes isn't known.
    pub(crate) fn ready(self) -> Result<Arc<dyn Dataset>> {
        let max_label = self.max_label(|n_rows| 0..n_rows)?;
        self.with_max_label(max_label)
    }

    /// The largest label of this rank's part of the rows, where the number of classes is not known.
    pub(crate) fn max_label(&self, part: impl Fn(usize) -> std::ops::Range<usize>) -> Result<i64> {
        match self {
            Opened::Raw(rows) if rows.layout.targets == (TargetLayout::Classes { n_classes: 0 }) => {
                rows.max_label(part(rows.len()), None)
            }
            _ => Ok(0),
        }
    }
}

/// Opens what `spec` names. Large files are not read, tables (CSV) are.
///
/// # Errors
/// What is wrong with the name or the files.
pub(crate) fn open(spec: &SourceSpec<'_>) -> Result<Opened> {
    if let Some(name) = spec.source.strip_prefix("builtin:") {
        return Ok(Opened::Ready(Arc::new(builtin::read(name, spec)?)));
    }
    let (files, format) = files_and_format(spec)?;
    if spec.eval_weight().is_some() && !matches!(format, DataFormat::Npy | DataFormat::Idx) {
        return Err(DataError::NotForFormat {
            key: "data.eval_weight",
            source_name: spec.source.to_owned(),
            why: "has weights in a column or array of its own",
            hint: "leave it out: `data.weight` names the column or array".to_owned(),
        });
    }
    let raw_format = match format {
        DataFormat::Npy => RawFormat::Npy,
        DataFormat::Npz => RawFormat::Npz,
        DataFormat::Safetensors => RawFormat::Safetensors,
        DataFormat::Idx => RawFormat::Idx,
        DataFormat::Csv | DataFormat::Parquet | DataFormat::Auto => {
            return Ok(Opened::Ready(table::open(&files, format, spec)?));
        }
    };
    let rows = raw::open(&files, raw_format, spec)?;
    if let Some(known) = spec.features {
        raw::same_columns(&rows, known)?;
    }
    Ok(Opened::Raw(Box::new(rows)))
}

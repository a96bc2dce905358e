//! Opens tables as datasets.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ddp::config::table_options::Decimal;
use ddp::data::datasets::dataset::Dataset;
#[cfg(test)]
use ddp::data::datasets::resident::TensorDataset;
use ddp::data::datasets::subset::with_targets;
use ddp::data::error::{DataError, Result};
use ddp::report::visible::shell_word;
use tracing::info;

use crate::error::TableError;
use crate::formats::error::CsvError;
use crate::formats::table::source::TableFormat;
use crate::source::{KnownFeatures, SourceSpec};
use crate::table::columns::{ColumnPlan, naming_shards, same_names};
use crate::table::exact_columns::ExactColumns;
use crate::table::exact_rows::ExactRows;
use crate::table::filtered::filter_of;
#[cfg(feature = "parquet")]
use crate::table::large;
use crate::table::row_reader::CommonMark;
use crate::table::rows::{TableRows, huge_vocabulary};
use crate::table::shards::{Shards, shards};
use crate::table::shared_rows;
#[cfg(feature = "parquet")]
use crate::table::spilled;

/// Most rows that are read between two checks of the memory limit.
const CHUNK_ROWS: usize = 1 << 14;
/// Most numbers that are read between two checks of the memory limit.
const CHUNK_NUMBERS: usize = 1 << 20;

/// Opens the rows of `files`: reads them into memory, which the ranks of `spec.host` share, or decodes them on demand if they exceed it and
/// the format can.
pub(crate) fn open(
    files: &[PathBuf],
    format: &TableFormat,
    spec: &SourceSpec<'_>,
) -> Result<Arc<dyn Dataset>> {
    let host = spec.host.filter(|host| host.has_readers());
    let Shards { files, types } = shards(files.to_vec(), format, spec);
    let filter = if spec.to_predict.is_none() { filter_of(spec)? } else { None };
    let (files, spec) = (&files[..], &SourceSpec { types: Some(&types), filter: filter.as_ref(), ..*spec });
    #[cfg(feature = "parquet")]
    if format.has_row_groups
        && filter.is_none()
        && let Some(rows) = large::open(files, &SourceSpec { taken: None, ..*spec })?
    {
        if let Some(host) = host {
            shared_rows::publish_elsewhere(host, None)?;
        }
        return Ok(rows);
    }
    let read = read_tables(files, format, spec);
    if let Some(filter) = &filter {
        if let Some(report) = filter.report(spec.source).filter(|_| read.is_ok()) {
            info!("{report}");
        }
        filter.take_counts();
    }
    #[cfg(feature = "parquet")]
    if let Err(error) = &read
        && spilled::is_too_large(error)
        && spilled::may_spill(files, format, spec)
        && let Some((rows, path)) = spilled::spill(files, format, spec)?
    {
        if let Some(host) = host {
            shared_rows::publish_elsewhere(host, Some(&path))?;
        }
        return Ok(rows);
    }
    let (rows, without_target) = read?.finish(files, spec)?;
    if let Some(host) = host {
        let (rows, without_target) = shared_rows::publish(host, rows, &without_target)?;
        return Ok(with_targets(Arc::new(rows), &without_target));
    }
    let rows: Arc<dyn Dataset> = if rows.is_single() { Arc::new(rows.rows) } else { Arc::new(rows) };
    Ok(with_targets(rows, &without_target))
}

/// Opens the rows that the first rank of the host has written to the file `path`, because they exceed the memory.
pub(crate) fn open_fetched(path: &Path, spec: &SourceSpec<'_>) -> Result<Arc<dyn Dataset>> {
    #[cfg(feature = "parquet")]
    if let Some(rows) = spilled::open(path, None, spec)? {
        return Ok(rows);
    }
    Err(DataError::from(TableError::RowsChanged {
        source_name: format!("{}, {}", spec.source, path.display()),
    }))
}

/// The rows of all files.
struct Read {
    plan: ColumnPlan,
    rows: TableRows,
    decimal: Decimal,
}

impl Read {
    fn finish(self, files: &[PathBuf], spec: &SourceSpec<'_>) -> Result<(ExactRows, Vec<usize>)> {
        let (mut rows, without_target) = self.rows.finish(&self.plan, &files[0], spec)?;
        rows.rows.layout.decimal = self.decimal;
        Ok((rows, without_target))
    }
}

/// Reads the rows of all files into memory, as f32.
///
/// # Errors
/// [`TableError::TooLarge`] if they exceed the memory that the config grants.
#[cfg(test)]
pub(crate) fn read_all(
    files: &[PathBuf],
    format: &TableFormat,
    spec: &SourceSpec<'_>,
) -> Result<TensorDataset> {
    Ok(read_tables(files, format, spec)?.finish(files, spec)?.0.rows)
}

fn read_tables(files: &[PathBuf], format: &TableFormat, spec: &SourceSpec<'_>) -> Result<Read> {
    let mut first: Option<(ColumnPlan, TableRows)> = None;
    let mut mark = CommonMark::new(spec);
    for path in files {
        if first.is_some() && spec.filter.is_some_and(|filter| filter.is_full()) {
            break;
        }
        // The columns of further files may have another order, and show their dates in rows of their own: the first file decides.
        let columns =
            first.as_ref().map(|(plan, _)| plan.features.clone()).filter(|_| spec.features.is_none());
        let known = columns.as_deref().map(|names| KnownFeatures::from_shards(names, spec.source));
        let of_file = SourceSpec { features: known.or(spec.features), ..*spec };
        let opened = mark.open(path, format, &of_file);
        let mut reader = match known {
            Some(_) => opened.map_err(|error| naming_shards(error, &files[0], path))?,
            None => opened?,
        };
        let (plan, rows) = match &mut first {
            None => {
                let rows = TableRows::new(reader.plan(), spec);
                first.insert((reader.plan().clone(), rows))
            }
            Some(first) => first,
        };
        same_names(&files[0], &plan.all_names(), path, &reader.plan().all_names())?;
        if known.is_some() {
            rows.expect_kinds(&files[0]);
        }
        let n_before = rows.n_rows;
        let chunk_rows = (CHUNK_NUMBERS / plan.names.len().max(1)).clamp(1, CHUNK_ROWS);
        while reader.read(rows, chunk_rows)? > 0 {
            if let Some(taken) = spec.taken {
                taken.take(&mut rows.kept[0].texts, reader.decimal());
            }
            if let Some(vocabulary) = rows.huge_vocabulary() {
                return Err(huge_vocabulary(path, vocabulary.name()));
            }
            rows.drop_exact(ExactColumns::prune_sometimes);
            if rows.size_bytes() > spec.table_bytes() {
                rows.drop_exact(|exact, singles| exact.prune(singles, false));
            }
            if rows.size_bytes() > spec.table_bytes() {
                return Err(too_large(spec, rows.size_bytes()));
            }
        }
        // Of several files, one may hold no row that the filter keeps.
        if rows.n_rows == n_before && spec.filter.is_none() {
            return Err(CsvError::NoRows { path: path.clone() }.into());
        }
    }
    let (plan, rows) = first.expect("there is a file");
    if rows.n_rows == 0 {
        let n_rows = spec.filter.map_or(0, |filter| filter.take_counts().1);
        if n_rows == 0 {
            return Err(CsvError::NoRows { path: files[0].clone() }.into());
        }
        let source_name = spec.source.to_owned();
        return Err(DataError::from(TableError::FilterKeepsNone { source_name, n_rows }));
    }
    Ok(Read { plan, rows, decimal: mark.found() })
}

fn too_large(spec: &SourceSpec<'_>, at_least: u64) -> DataError {
    DataError::from(TableError::TooLarge {
        source_name: spec.source.to_owned(),
        what: "or more as rows of f32",
        needed_mib: (at_least >> 20) + 1,
        limit_mib: spec.table_bytes() >> 20,
        hint: match spec.filter {
            Some(_) => {
                let filter = spec.data.filter.as_ref();
                let filter = filter.map(|of| format!(" --set 'data.filter={}'", of.replace('\'', "'\\''")));
                let max_rows = spec.data.max_rows.map(|n| format!(" --set data.max_rows={n}"));
                format!(
                    "raise the limit, set `data.shuffle_mode` to \"blocks\" for a file of text, or write the rows that are kept to a file and train on it without these keys: `ddp-train data convert {} kept.parquet{}{}`",
                    shell_word(spec.source),
                    filter.unwrap_or_default(),
                    max_rows.unwrap_or_default(),
                )
            }
            None => format!(
                "set `data.shuffle_mode` to \"blocks\", which keeps the rows in a file for the run (`ddp-train data convert {} rows.parquet` makes one that stays), or raise the limit",
                shell_word(spec.source)
            ),
        },
    })
}

//! Opens a Parquet file: checks its footer and reads its rows in batches.

use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_schema::{DataType, FieldRef, Schema, TimeUnit};
use ddp_kernels::cpu::caught_panic::catch_panic;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::Type as PhysicalType;
use parquet::errors::ParquetError;

use crate::error::{Result, RowsError};
use crate::fingerprint::Fingerprint;
use crate::user_file;

/// A file whose footer was read.
#[derive(Debug, Clone)]
pub struct ParquetFile {
    /// The file.
    pub path: PathBuf,
    pub(super) metadata: ArrowReaderMetadata,
    /// Rows of each row group.
    pub group_rows: Vec<usize>,
    n_bytes: u64,
}

impl ParquetFile {
    /// Reads the footer only.
    ///
    /// # Errors
    /// [`RowsError::Malformed`] for one that contradicts itself or the file's length.
    pub fn open(path: &Path) -> Result<Self> {
        let file = user_file::open("data file", path)?;
        let n_bytes = length(&file, path)?;
        let metadata = guarded(path, || footer(&file))?;
        let group_rows = guarded(path, || group_rows(&metadata, n_bytes))?;
        Ok(ParquetFile { path: path.to_owned(), metadata, group_rows, n_bytes })
    }

    /// Rows of all row groups.
    pub fn n_rows(&self) -> usize {
        self.group_rows.iter().sum()
    }

    /// The columns with these indices of the row groups `groups`, `batch_rows` rows at a time.
    pub(super) fn batches(
        &self,
        groups: Range<usize>,
        roots: &[usize],
        batch_rows: usize,
    ) -> Result<ParquetRecordBatchReader> {
        let file = user_file::open("data file", &self.path)?;
        if length(&file, &self.path)? != self.n_bytes {
            return Err(RowsError::Changed { path: self.path.clone() });
        }
        let mask = ProjectionMask::roots(self.metadata.parquet_schema(), roots.iter().copied());
        guarded(&self.path, || {
            ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone())
                .with_row_groups(groups.collect())
                .with_projection(mask)
                .with_batch_size(batch_rows)
                .build()
        })
    }

    /// Number of the first row of a row group.
    pub fn first_row(&self, group: usize) -> usize {
        self.group_rows[..group].iter().sum()
    }

    /// Bytes that decoding a row group with the columns `roots` takes in addition to its rows, if a column's pages take up to
    /// `page_bytes` and its reader `column_bytes`.
    pub fn decode_bytes(&self, roots: &[usize], page_bytes: usize, column_bytes: usize) -> usize {
        let schema = self.metadata.parquet_schema();
        let is_needed = |leaf: &usize| roots.contains(&schema.get_column_root_idx(*leaf));
        let leaves: Vec<usize> = (0..schema.num_columns()).filter(is_needed).collect();
        let of_groups = self.metadata.metadata().row_groups().iter().map(|group| {
            let of_leaf = |&leaf: &usize| {
                let column = group.column(leaf);
                let both = column.uncompressed_size().saturating_add(column.compressed_size());
                usize::try_from(both).unwrap_or(0).min(page_bytes) + column_bytes
            };
            leaves.iter().map(of_leaf).sum::<usize>()
        });
        of_groups.max().unwrap_or(0)
    }

    /// Adds the footer's facts about rows to a hash: counts, types, sizes, and the range of each column's values.
    pub fn add_to(&self, hash: &mut Fingerprint) {
        // Not the schema's metadata: its order differs in each process.
        for field in self.metadata.schema().fields() {
            hash.text(field.name());
            hash.text(&field.data_type().to_string());
            hash.number(u64::from(field.is_nullable()));
        }
        for group in self.metadata.metadata().row_groups() {
            hash.number(group.num_rows() as u64);
            for column in group.columns() {
                hash.number(column.uncompressed_size() as u64);
                hash.number(column.compressed_size() as u64);
                if let Some(statistics) = column.statistics() {
                    hash.bytes(statistics.min_bytes_opt().unwrap_or_default());
                    hash.bytes(statistics.max_bytes_opt().unwrap_or_default());
                    hash.number(statistics.null_count_opt().unwrap_or(0));
                }
            }
        }
    }
}

/// Reads the footer. An Arrow schema that a writer added is ignored if it contradicts the columns. Spark's INT96 times are read as
/// microseconds, since nanoseconds end in 2262 and later ones would wrap around.
fn footer(file: &std::fs::File) -> Result<ArrowReaderMetadata, ParquetError> {
    let options = ArrowReaderOptions::new();
    let plain = options.clone().with_skip_arrow_metadata(true);
    let metadata = ArrowReaderMetadata::load(file, options.clone())
        .or_else(|error| ArrowReaderMetadata::load(file, plain).map_err(|_| error))?;
    let of_file = metadata.parquet_schema();
    let leaves = of_file.columns().iter().enumerate();
    let old_times: Vec<usize> = leaves
        .filter(|(_, leaf)| leaf.physical_type() == PhysicalType::INT96 && leaf.path().parts().len() == 1)
        .map(|(leaf, _)| of_file.get_column_root_idx(leaf))
        .collect();
    if old_times.is_empty() {
        return Ok(metadata);
    }
    let as_microseconds = |(root, field): (usize, &FieldRef)| {
        if !old_times.contains(&root) {
            return field.clone();
        }
        let microseconds = DataType::Timestamp(TimeUnit::Microsecond, None);
        Arc::new(field.as_ref().clone().with_data_type(microseconds))
    };
    let fields: Vec<FieldRef> = metadata.schema().fields().iter().enumerate().map(as_microseconds).collect();
    let schema = Schema::new_with_metadata(fields, metadata.schema().metadata().clone());
    ArrowReaderMetadata::try_new(metadata.metadata().clone(), options.with_schema(Arc::new(schema)))
}

fn length(file: &std::fs::File, path: &Path) -> Result<u64> {
    let metadata = file.metadata();
    Ok(metadata.map_err(|source| RowsError::Unreadable { path: path.to_owned(), source })?.len())
}

/// Rows of each row group according to the footer.
fn group_rows(metadata: &ArrowReaderMetadata, n_bytes: u64) -> Result<Vec<usize>, String> {
    let metadata = metadata.metadata();
    let groups = metadata.row_groups();
    let mut n_rows = 0i64;
    for (index, group) in groups.iter().enumerate() {
        let all = n_rows.checked_add(group.num_rows()).filter(|_| group.num_rows() >= 0);
        n_rows = all.ok_or_else(|| format!("row group {index} has {} rows", group.num_rows()))?;
        for column in group.columns() {
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let end = start.checked_add(column.compressed_size());
            let is_within = |end: i64| start >= 0 && end >= start && end as u64 <= n_bytes;
            if !end.is_some_and(is_within) {
                return Err(format!("row group {index} extends past the end of the file"));
            }
        }
    }
    if n_rows != metadata.file_metadata().num_rows() {
        let of_file = metadata.file_metadata().num_rows();
        return Err(format!("its row groups have {n_rows} rows, but the file has {of_file}"));
    }
    Ok(groups.iter().map(|group| group.num_rows() as usize).collect())
}

/// Runs `call` and converts errors and panics of the library, which damaged content causes, to errors for the user.
pub(super) fn guarded<T, E: Display>(path: &Path, call: impl FnOnce() -> Result<T, E>) -> Result<T> {
    match catch_panic(call) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(malformed(path, error.to_string())),
        Err(_) => Err(malformed(path, "its content can't be decoded".to_owned())),
    }
}

/// The error of a file that contradicts itself.
pub fn malformed(path: &Path, reason: String) -> RowsError {
    // The library prefixes its messages with its name.
    let reason = ["Parquet error: ", "Parquet argument error: ", "EOF: ", "External: "]
        .iter()
        .fold(reason, |reason, prefix| reason.replace(prefix, ""));
    let hint = "is the file cut off, damaged or still being written?";
    RowsError::Malformed { path: path.to_owned(), format: "Parquet", reason, hint }
}

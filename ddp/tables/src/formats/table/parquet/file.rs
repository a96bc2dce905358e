//! Opens a Parquet file: checks its footer and reads its rows in batches.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use arrow_schema::{DataType, Field, FieldRef, Schema, TimeUnit};
use bytes::Bytes;
use ddp::storage::fingerprint::Fingerprint;
use ddp::storage::user_file;
use ddp_kernels::cpu::caught_panic::catch_panic;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::{ConvertedType, Type as PhysicalType};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ColumnChunkMetaData, FileMetaData, ParquetMetaData, ParquetMetaDataBuilder};
use parquet::file::reader::{ChunkReader, Length};
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor, Type, TypePtr};
use rustix::buffer::spare_capacity;
use rustix::io::{pread, retry_on_intr};

use crate::formats::error::{Result, RowsError};
use crate::formats::table::parquet::bounds::{check_pages, check_schema, malformed};
use crate::formats::table::parquet::embedded;
use crate::formats::table::parquet::page_flags;
use crate::formats::table::patched::{Patched, Patches, patch};
use crate::formats::table::plain::PlainTypes;
use crate::formats::table::source::ReadOptions;

/// A file whose footer was read.
#[derive(Debug, Clone)]
pub struct ParquetFile {
    /// The file.
    pub path: PathBuf,
    pub(super) metadata: ArrowReaderMetadata,
    /// The columns as they are read.
    pub(super) plain: PlainTypes,
    patches: Patches,
    /// Rows of each row group.
    pub group_rows: Vec<usize>,
    /// Length in bytes and time of its last change, by which another file in its place differs.
    version: (u64, Option<SystemTime>),
    memory_bytes: u64,
    /// The file, open, until it is [closed](ParquetFile::closed).
    opened: Option<Arc<File>>,
}

/// A file whose page headers are patched.
#[derive(Clone)]
pub(super) struct PageFile {
    file: Arc<File>,
    patches: Patches,
}

/// A file that is read from a place on. Others may read it meanwhile.
pub(super) struct FileFrom {
    file: Arc<File>,
    at: u64,
}

impl Read for FileFrom {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read_at(out, self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

impl Length for PageFile {
    fn len(&self) -> u64 {
        self.file.len()
    }
}

impl ChunkReader for PageFile {
    type T = Patched<BufReader<FileFrom>>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let from = BufReader::new(FileFrom { file: self.file.clone(), at: start });
        Ok(Patched::new(from, start, self.patches.clone()))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let at = start + bytes.len() as u64;
            let read = || pread(&*self.file, spare_capacity(&mut bytes), at);
            if retry_on_intr(read).map_err(io::Error::from)? == 0 {
                let missing = length - bytes.len();
                return Err(ParquetError::EOF(format!("expected {length} bytes, {missing} are missing")));
            }
        }
        bytes.truncate(length);
        patch(&mut bytes, start, &self.patches);
        Ok(bytes.into())
    }
}

impl ParquetFile {
    /// Reads the footer only.
    ///
    /// # Errors
    /// [`RowsError::Malformed`] for one that contradicts itself or the file's length.
    pub fn open(path: &Path, options: &ReadOptions<'_>) -> Result<Self> {
        let file = user_file::open("data file", path)?;
        let version = version(&file, path)?;
        let (n_bytes, _) = version;
        check_schema(&file, n_bytes).map_err(|reason| malformed(path, reason))?;
        let (metadata, wide) = guarded(path, || footer(&file))?;
        let group_rows = guarded(path, || group_rows(&metadata, n_bytes))?;
        let patches = page_flags::patches(&file, metadata.metadata());
        let plain = PlainTypes::new(metadata.schema(), &wide, options.label);
        let (path, memory_bytes) = (path.to_owned(), options.memory_bytes);
        let opened = Some(Arc::new(file));
        Ok(ParquetFile { path, metadata, plain, patches, group_rows, version, memory_bytes, opened })
    }

    /// The file without a descriptor, of which a process has few: it is opened again where it is read.
    pub fn closed(self) -> Self {
        ParquetFile { opened: None, ..self }
    }

    /// The file with a descriptor of its own.
    pub(super) fn reopened(&self) -> Self {
        // Without one, the error is reported where the file is read.
        let opened = user_file::open("data file", &self.path).ok().map(Arc::new);
        ParquetFile { opened, ..self.clone() }
    }

    /// Checks the pages of a column in a row group, whose values are decoded `batch_rows` at a time.
    pub(super) fn check_pages(
        &self,
        file: &PageFile,
        group: usize,
        leaf: usize,
        batch_rows: usize,
    ) -> Result<()> {
        let (file, metadata) = ((&*self.path, &*file.file), self.metadata.metadata());
        check_pages(file, metadata, (group, leaf), batch_rows.min(self.n_rows()), self.memory_bytes)
    }

    /// The file for its pages.
    pub(super) fn pages(&self) -> Result<PageFile> {
        let file = match &self.opened {
            Some(file) => file.clone(),
            None => Arc::new(user_file::open("data file", &self.path)?),
        };
        Ok(PageFile { file, patches: self.patches.clone() })
    }

    /// Rows of all row groups.
    pub fn n_rows(&self) -> usize {
        self.group_rows.iter().sum()
    }

    /// The columns with these indices of the row groups `groups`, `batch_rows` rows at a time, read from `file`. Their pages are not
    /// checked.
    pub(super) fn batches(
        &self,
        file: PageFile,
        groups: Range<usize>,
        roots: &[usize],
        batch_rows: usize,
    ) -> Result<ParquetRecordBatchReader> {
        if version(&file.file, &self.path)? != self.version {
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

    /// The leaves of the columns with these indices, which ascend.
    pub(super) fn leaves(&self, roots: &[usize]) -> Vec<usize> {
        let schema = self.metadata.parquet_schema();
        let is_needed = |leaf: &usize| roots.binary_search(&schema.get_column_root_idx(*leaf)).is_ok();
        (0..schema.num_columns()).filter(is_needed).collect()
    }

    /// Bytes that decoding a row group with the columns `roots` takes in addition to its rows, if a column's pages take up to
    /// `page_bytes` and its reader `column_bytes`.
    pub fn decode_bytes(&self, roots: &[usize], page_bytes: usize, column_bytes: usize) -> usize {
        let leaves = self.leaves(roots);
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

/// Reads the footer. An Arrow schema that a writer added is ignored if it contradicts the columns; columns of some types are read
/// as others. Returns the footer and the columns of integers of 128 bits.
fn footer(file: &File) -> Result<(ArrowReaderMetadata, Vec<usize>), ParquetError> {
    let options = ArrowReaderOptions::new();
    let plain = options.clone().with_skip_arrow_metadata(true);
    let mut wide = Vec::new();
    let metadata = ArrowReaderMetadata::load(file, options.clone()).or_else(|error| {
        let skipped = ArrowReaderMetadata::load(file, plain.clone()).map_err(|_| error)?;
        let Some((patched, of_schema)) = embedded::patched(skipped.metadata()) else {
            return Ok(skipped);
        };
        let patched = ArrowReaderMetadata::try_new(Arc::new(patched), options.clone());
        Ok::<_, ParquetError>(patched.inspect(|_| wide = of_schema).unwrap_or(skipped))
    })?;
    let n_roots = metadata.parquet_schema().root_schema().get_fields().len();
    let pruned = without_empty_groups(metadata.metadata());
    let metadata = match without_null_offsets(pruned.as_ref().unwrap_or(metadata.metadata())).or(pruned) {
        None => metadata,
        Some(mended) => {
            // Then the columns have other numbers.
            if mended.file_metadata().schema_descr().root_schema().get_fields().len() < n_roots {
                wide.clear();
            }
            let mended = Arc::new(mended);
            ArrowReaderMetadata::try_new(mended.clone(), options.clone())
                .or_else(|_| ArrowReaderMetadata::try_new(mended, plain))?
        }
    };
    let of_file = metadata.parquet_schema();
    let mut fields: Vec<FieldRef> = metadata.schema().fields().iter().cloned().collect();
    let mut has_others = false;
    for (index, leaf) in of_file.columns().iter().enumerate() {
        let field = &mut fields[of_file.get_column_root_idx(index)];
        if let Some(other) = read_as(leaf, field).filter(|_| leaf.path().parts().len() == 1) {
            *field = Arc::new(field.as_ref().clone().with_data_type(other));
            has_others = true;
        }
    }
    if !has_others {
        return Ok((metadata, wide));
    }
    let schema = Schema::new_with_metadata(fields, metadata.schema().metadata().clone());
    let metadata =
        ArrowReaderMetadata::try_new(metadata.metadata().clone(), options.with_schema(Arc::new(schema)))?;
    Ok((metadata, wide))
}

/// A footer without the groups that have no leaves, which are columns without values; `None` if there are none.
fn without_empty_groups(metadata: &ParquetMetaData) -> Option<ParquetMetaData> {
    let of_file = metadata.file_metadata();
    let root = of_file.schema_descr().root_schema();
    if !has_empty_group(root) {
        return None;
    }
    let schema = Arc::new(SchemaDescriptor::new(Arc::new(pruned(root)?)));
    let pairs = of_file.key_value_metadata().cloned();
    let created_by = of_file.created_by().map(str::to_owned);
    let (version, orders) = (of_file.version(), of_file.column_orders().cloned());
    let of_file = FileMetaData::new(version, of_file.num_rows(), created_by, pairs, schema, orders);
    Some(ParquetMetaDataBuilder::new(of_file).set_row_groups(metadata.row_groups().to_vec()).build())
}

/// A footer without dictionaries at byte 0, where old versions of parquet-mr place one that does not exist; `None` if there are none.
fn without_null_offsets(metadata: &ParquetMetaData) -> Option<ParquetMetaData> {
    let is_at_0 = |column: &ColumnChunkMetaData| column.dictionary_page_offset() == Some(0);
    if !metadata.row_groups().iter().any(|group| group.columns().iter().any(is_at_0)) {
        return None;
    }
    let groups = metadata.row_groups().iter().map(|group| {
        let columns = group.columns().iter().map(|column| {
            let offset = column.dictionary_page_offset().filter(|offset| *offset != 0);
            column.clone().into_builder().set_dictionary_page_offset(offset).build()
        });
        group.clone().into_builder().set_column_metadata(columns.collect::<ParquetResult<_>>()?).build()
    });
    let groups: Vec<_> = groups.collect::<ParquetResult<_>>().ok()?;
    Some(metadata.clone().into_builder().set_row_groups(groups).build())
}

fn has_empty_group(of: &Type) -> bool {
    of.is_group()
        && (of.get_fields().is_empty() || of.get_fields().iter().any(|field| has_empty_group(field)))
}

/// A type without groups that have no leaves; `None` for such a group.
fn pruned(of: &Type) -> Option<Type> {
    if !of.is_group() {
        return Some(of.clone());
    }
    let fields: Vec<TypePtr> =
        of.get_fields().iter().filter_map(|field| pruned(field).map(Arc::new)).collect();
    let info = of.get_basic_info();
    let mut group = Type::group_type_builder(info.name())
        .with_converted_type(info.converted_type())
        .with_logical_type(info.logical_type_ref().cloned())
        .with_id(info.has_id().then(|| info.id()));
    if info.has_repetition() {
        group = group.with_repetition(info.repetition());
    }
    let group = group.with_fields(fields).build().ok()?;
    (!group.get_fields().is_empty()).then_some(group)
}

/// The type as which a column is read, if it is not the one that the file states.
fn read_as(leaf: &ColumnDescriptor, field: &Field) -> Option<DataType> {
    match field.data_type() {
        // Spark's times: nanoseconds end in 2262, and later times would wrap around.
        _ if leaf.physical_type() == PhysicalType::INT96 => {
            Some(DataType::Timestamp(TimeUnit::Microsecond, None))
        }
        DataType::Binary if leaf.converted_type() == ConvertedType::ENUM => Some(DataType::Utf8),
        // The library has dictionaries of texts, integers and times only.
        DataType::Dictionary(_, of)
            if matches!(**of, DataType::Boolean | DataType::Float16 | DataType::Utf8View)
                || of.is_decimal() =>
        {
            Some(of.as_ref().clone())
        }
        _ => None,
    }
}

fn version(file: &File, path: &Path) -> Result<(u64, Option<SystemTime>)> {
    let metadata = file.metadata();
    let metadata = metadata.map_err(|source| RowsError::Unreadable { path: path.to_owned(), source })?;
    Ok((metadata.len(), metadata.modified().ok()))
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

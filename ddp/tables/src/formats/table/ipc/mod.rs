//! Arrow IPC: files (Feather version 2, Polars) and streams of record batches.
//!
//! Source: <https://arrow.apache.org/docs/format/Columnar.html>; decoded by the crate `arrow-ipc`.

pub(super) mod schema;
mod bounds;
#[cfg(test)]
mod bounds_tests;

use std::cell::OnceCell;
use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _};
use std::path::{Path, PathBuf};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::DataType::{LargeList, List};
use arrow_schema::{ArrowError, SchemaRef};
use ddp::storage::user_file;
use ddp_kernels::cpu::caught_panic::catch_panic;

use crate::formats::error::{Result, RowsError};
use crate::formats::table::batch_source::{BatchSource, Batches, Selection, list_len_in};
use crate::formats::table::ipc::bounds::malformed;
use crate::formats::table::patched::Patched;
use crate::formats::table::plain::PlainTypes;
use crate::formats::table::source::{ReadOptions, Source};

/// Opens a file or a stream of record batches.
type Reader = Box<dyn RecordBatchReader<Item = Result<RecordBatch, ArrowError>> + Send>;

/// Opens a file and reads its schema.
pub fn open(path: &Path, options: &ReadOptions<'_>) -> Result<Source> {
    let (file, is_file) = opened(path)?;
    bounds::check(path, &file, is_file, options.memory_bytes)?;
    let (reader, wide) = reader(path, None)?;
    let plain = PlainTypes::new(&reader.schema(), &wide, options.label);
    Ok(Source::Batches(Box::new(IpcFile { path: path.to_owned(), plain, first_lens: OnceCell::new() })))
}

/// A file or stream whose schema was read.
struct IpcFile {
    path: PathBuf,
    plain: PlainTypes,
    /// Length of the first list of each column within the first batch: each reader reads all of its columns.
    first_lens: OnceCell<Vec<Option<usize>>>,
}

impl BatchSource for IpcFile {
    fn schema(&self) -> &SchemaRef {
        self.plain.schema()
    }

    fn first_list_len(&self, root: usize) -> Result<Option<usize>> {
        if self.first_lens.get().is_none() {
            let fields = self.schema().fields();
            let mut lens = vec![None; fields.len()];
            let is_list = |root: &usize| matches!(fields[*root].data_type(), List(_) | LargeList(_));
            let roots: Vec<usize> = (0..fields.len()).filter(is_list).collect();
            if let Some(batch) = self.batches(roots.clone())?.next().transpose()? {
                roots.iter().zip(batch.columns()).for_each(|(&root, array)| lens[root] = list_len_in(array));
            }
            self.first_lens.get_or_init(|| lens);
        }
        if let Some(len) = self.first_lens.get().and_then(|lens| lens[root]) {
            return Ok(Some(len));
        }
        for batch in self.batches(vec![root])? {
            if let Some(len) = list_len_in(batch?.column(0)) {
                return Ok(Some(len));
            }
        }
        Ok(None)
    }

    fn read(&self, selection: &Selection) -> Result<Batches> {
        self.batches(selection.roots.clone())
    }
}

impl IpcFile {
    /// The rows with some columns.
    fn batches(&self, columns: Vec<usize>) -> Result<Batches> {
        let (path, plain) = (self.path.clone(), self.plain.of(&columns));
        let (mut reader, _) = reader(&path, Some(columns))?;
        let mut next = move || {
            guarded(&path, || reader.next().transpose()?.map(|batch| plain.convert(batch)).transpose())
        };
        let batches = std::iter::from_fn(move || next().transpose());
        Ok(Box::new(batches.filter(|batch| !matches!(batch, Ok(batch) if batch.num_rows() == 0))))
    }
}

/// The file at `path`, and whether it is one with a footer rather than a stream.
fn opened(path: &Path) -> Result<(File, bool)> {
    let mut file = user_file::open("data file", path)?;
    let mut begin = [0; 6];
    let is_file = file.read_exact(&mut begin).is_ok() && begin == *b"ARROW1";
    file.rewind().map_err(|source| RowsError::Unreadable { path: path.to_owned(), source })?;
    Ok((file, is_file))
}

/// The decoder of a file, and its columns of integers of 128 bits; `columns` are the indices of those that are read, `None` for all.
fn reader(path: &Path, columns: Option<Vec<usize>>) -> Result<(Reader, Vec<usize>)> {
    let (file, is_file) = opened(path)?;
    let facts = schema::facts(&file, is_file).map_err(|reason| RowsError::Malformed {
        path: path.to_owned(),
        format: "Arrow IPC",
        reason,
        hint: "read it with pyarrow.ipc and write it again, on a little-endian machine",
    })?;
    let file = BufReader::with_capacity(1 << 18, Patched::new(file, 0, facts.patches));
    let reader = guarded(path, || {
        Ok(if is_file {
            Box::new(FileReader::try_new(file, columns)?) as Reader
        } else {
            Box::new(StreamReader::try_new(file, columns)?)
        })
    })?;
    Ok((reader, facts.wide))
}

/// Runs `call` and converts errors and panics of the library, which damaged content causes, to errors for the user.
fn guarded<T>(path: &Path, call: impl FnOnce() -> Result<T, ArrowError>) -> Result<T> {
    let reason = match catch_panic(call) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "its content can't be decoded".to_owned(),
    };
    Err(malformed(path, reason))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray as _;
    use arrow_array::types::{Decimal128Type, Int64Type};
    use arrow_array::{ArrayRef, Int64Array, ListArray};
    use arrow_ipc::writer::FileWriter;
    use arrow_schema::DataType;

    use super::*;

    // Streams of one column `y` in one batch, made by Python's flatbuffers: 1 and 2 as i32, big-endian; 2^70 and -3 as an integer of
    // 128 bits.
    const BIG_ENDIAN: &str = "ffffffff800000001000000000000a000c000a00090004000a000000100000000001040008000c000a0004000800000008000000000001\
         00010000001400000010001400100000000f00080000000400100000001000000018000000000000021c0000000000000008000c000800\
         0700080000000000000120000000010000007900000000000000ffffffff8800000014000000000000000c001600140013000c0004000c\
         0000000800000000000000140000000000000304000a0018000c00080004000a0000002c00000010000000020000000000000000000000\
         01000000020000000000000000000000000000000000000002000000000000000000000000000000000000000000000000000000080000\
         00000000000000000100000002ffffffff00000000";
    const WIDE: &str = "ffffffff780000001000000000000a000c000a00090004000a000000100000000001040008000800000004000800000004000000010000\
         001400000010001400100000000f00080000000400100000001000000018000000000000021c0000000000000008000c00080007000800\
         000000000001800000000100000079000000ffffffff8800000014000000000000000c001600140013000c0004000c0000002000000000\
         000000140000000000000304000a0018000c00080004000a0000002c000000100000000200000000000000000000000100000002000000\
         00000000000000000000000000000000020000000000000000000000000000000000000000000000000000002000000000000000000000\
         00000000004000000000000000fdffffffffffffffffffffffffffffffffffffff00000000";

    fn opened(hex: &str) -> Result<Vec<RecordBatch>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.arrow");
        let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
        std::fs::write(&path, hex.as_bytes().chunks(2).map(byte).collect::<Vec<u8>>()).unwrap();
        let Source::Batches(source) = open(&path, &ReadOptions::default())? else {
            unreachable!("columns with types")
        };
        assert_eq!(source.schema().field(0).data_type(), &DataType::Decimal128(38, 0));
        source.read(&Selection { roots: vec![0], lists: Vec::new(), max_len: 0, batch_rows: 9 })?.collect()
    }

    #[test]
    fn streams_of_another_byte_order_are_refused() {
        let error = opened(BIG_ENDIAN).unwrap_err();
        assert!(error.to_string().contains("its numbers are big-endian, expected little-endian"), "{error}");
    }

    #[test]
    fn all_lists_are_measured_in_one_pass() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.arrow");
        let list = |len: usize| -> ArrayRef {
            let first = [Some(vec![Some(1); len])];
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(first))
        };
        let none: ArrayRef = Arc::new(Int64Array::from(vec![5]));
        let columns = [("a", list(3)), ("b", none), ("c", list(2))];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut writer = FileWriter::try_new(File::create(&path).unwrap(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        let Source::Batches(source) = open(&path, &ReadOptions::default()).unwrap() else { unreachable!() };
        assert_eq!(source.first_list_len(2).unwrap(), Some(2));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(source.first_list_len(0).unwrap(), Some(3));
    }

    #[test]
    fn integers_of_128_bits_are_read_as_decimals() {
        let batches = opened(WIDE).unwrap();
        assert_eq!(batches[0].column(0).as_primitive::<Decimal128Type>().values(), &[1 << 70, -3]);
    }
}

//! Pages that are compressed although their headers deny it: data pages of version 2, as pyarrow before 3.0 wrote them.
//!
//! The two sizes of such a page differ, in its header. Its flag is read as if it were set.
//!
//! Source: ARROW-10353, ARROW-17100; Apache Parquet format, `parquet.thrift`; Thrift compact protocol.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use parquet::basic::Compression;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};

use crate::table::patched::Patches;

/// Page header: bytes that are read at first, and at most.
const HEADER_BYTES: Range<usize> = 512..1 << 20;
/// Nesting of structs in a header.
const MAX_DEPTH: usize = 8;

/// The flags of a file to read as if they were set. Only files of old writers are searched.
pub(super) fn patches(file: &File, metadata: &ParquetMetaData) -> Patches {
    if !metadata.file_metadata().created_by().is_some_and(is_old) {
        return Patches::default();
    }
    let mut flags = Vec::new();
    let columns = metadata.row_groups().iter().flat_map(|group| group.columns());
    for column in columns.filter(|column| column.compression() != Compression::UNCOMPRESSED) {
        // The library reports damage.
        let _ = put_flags(file, column, &mut flags);
    }
    flags.sort_unstable();
    flags.into()
}

/// Whether pyarrow before 3.0 wrote the file: it still called itself parquet-cpp, or by both names.
fn is_old(created_by: &str) -> bool {
    let version = created_by.strip_prefix("parquet-cpp-arrow version ");
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    created_by.starts_with("parquet-cpp version ") || major.is_some_and(|major| major < 3)
}

/// Adds the wrong flags of a column's pages.
fn put_flags(file: &File, column: &ColumnChunkMetaData, flags: &mut Vec<(u64, u8)>) -> Option<()> {
    let (start, len) = column.byte_range();
    let (mut at, end) = (start, start + len);
    while at < end {
        let mut header = None;
        let mut n_bytes = HEADER_BYTES.start;
        while header.is_none() && n_bytes <= HEADER_BYTES.end {
            let mut bytes = vec![0; n_bytes.min((end - at) as usize)];
            file.read_exact_at(&mut bytes, at).ok()?;
            header = Header::read(&bytes);
            n_bytes *= 2;
        }
        let header = header?;
        if let Some((place, byte)) = header.unset_flag.filter(|_| header.size != header.plain_size) {
            flags.push((at + place as u64, byte));
        }
        at += header.len as u64 + u64::try_from(header.size).ok()?;
    }
    Some(())
}

/// Sizes and flag of a page, from its header.
#[derive(Debug, Default, PartialEq, Eq)]
struct Header {
    /// Bytes of the header.
    len: usize,
    /// Bytes of the page in the file.
    size: i64,
    /// Bytes of the page once it is decompressed.
    plain_size: i64,
    /// Place of the flag that denies compression, and the byte that states it.
    unset_flag: Option<(usize, u8)>,
}

impl Header {
    /// Reads the header at the start of `bytes`; `None` if it is longer.
    fn read(bytes: &[u8]) -> Option<Header> {
        let mut input = Compact { bytes, at: 0 };
        let mut header = Header::default();
        let mut id = 0;
        while let Some(kind) = input.field(&mut id)? {
            match id {
                2 => header.plain_size = input.number()?,
                3 => header.size = input.number()?,
                8 => {
                    let mut id = 0;
                    loop {
                        let place = input.at;
                        let Some(kind) = input.field(&mut id)? else { break };
                        if (id, kind) == (7, FALSE) {
                            header.unset_flag = Some((place, bytes[place] & 0xf0 | TRUE));
                        }
                        input.skip(kind, MAX_DEPTH)?;
                    }
                }
                _ => input.skip(kind, MAX_DEPTH)?,
            }
        }
        header.len = input.at;
        Some(header)
    }
}

const TRUE: u8 = 1;
const FALSE: u8 = 2;

/// Values in Thrift's compact protocol.
struct Compact<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Compact<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at)?;
        self.at += 1;
        Some(*byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn number(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// The type of the next field, whose number replaces that of the one before; `Some(None)` at the end of the struct.
    fn field(&mut self, id: &mut i64) -> Option<Option<u8>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Some(None);
        }
        *id = match byte >> 4 {
            0 => self.number()?,
            step => *id + i64::from(step),
        };
        Some(Some(byte & 0xf))
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            TRUE | FALSE => {}
            3 => self.at += 1,
            4..=6 => drop(self.varint()?),
            7 => self.at += 8,
            8 => self.at += usize::try_from(self.varint()?).ok()?,
            9 | 10 => {
                let byte = self.byte()?;
                let n = if byte >> 4 == 15 { self.varint()? } else { u64::from(byte >> 4) };
                for _ in 0..n {
                    // Truth values in a list take a byte each.
                    if matches!(byte & 0xf, TRUE | FALSE) {
                        self.at += 1
                    } else {
                        self.skip(byte & 0xf, depth)?
                    }
                    (self.at <= self.bytes.len()).then_some(())?;
                }
            }
            12 => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, depth)?;
                }
            }
            _ => return None,
        }
        (self.at <= self.bytes.len()).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray as _;
    use arrow_array::types::Float64Type;
    use arrow_array::{Array, Float64Array, RecordBatch};
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::{WriterProperties, WriterVersion};

    use super::*;
    use crate::table::batch_source::{BatchSource as _, Selection};
    use crate::table::parquet::ParquetFile;
    use crate::table::source::ReadOptions;

    /// Writes `values` with the old defect: a compressed page of version 2 whose flag is unset.
    fn write(path: &std::path::Path, values: &Float64Array, created_by: &str) {
        let properties = WriterProperties::builder()
            .set_created_by(created_by.to_owned())
            .set_writer_version(WriterVersion::PARQUET_2_0)
            .set_compression(Compression::SNAPPY)
            .set_dictionary_enabled(false)
            .set_encoding(parquet::basic::Encoding::PLAIN);
        let batch = RecordBatch::try_from_iter([("x", Arc::new(values.clone()) as Arc<dyn Array>)]).unwrap();
        let file = File::create(path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).unwrap();
        writer.write(&batch).unwrap();
        let column = writer.close().unwrap().row_group(0).column(0).clone();
        let mut bytes = std::fs::read(path).unwrap();
        let start = column.data_page_offset() as usize;
        let unset = |at: &usize| {
            let mut header = bytes[start..].to_vec();
            header[*at] = header[*at] & 0xf0 | FALSE;
            Header::read(&header)
                .is_some_and(|header| header.unset_flag.is_some_and(|(place, _)| place == *at))
        };
        let flag = (0..64).find(unset).unwrap();
        bytes[start + flag] = bytes[start + flag] & 0xf0 | FALSE;
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn compressed_pages_of_old_writers_are_read_whatever_their_flag() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.parquet");
        let values: Float64Array = (0..999).map(|row| (row % 7 != 3).then(|| f64::from(row / 100))).collect();
        let read = || {
            let file = ParquetFile::open(&path, &ReadOptions::default())?;
            let selection = Selection { roots: vec![0], lists: Vec::new(), max_len: 0, batch_rows: 2000 };
            file.read(&selection)?.collect::<crate::error::Result<Vec<_>>>()
        };
        for old in ["parquet-cpp version 1.5.1-SNAPSHOT", "parquet-cpp-arrow version 2.0.0"] {
            write(&path, &values, old);
            assert_eq!(*read().unwrap()[0].column(0).as_primitive::<Float64Type>(), values, "{old}");
        }
        // Later flags are true.
        write(&path, &values, "parquet-cpp-arrow version 14.0.0");
        let misread = read();
        assert!(misread.is_err() || *misread.unwrap()[0].column(0).as_primitive::<Float64Type>() != values);
    }

    #[test]
    fn headers_end_where_they_end() {
        // Fields 1 to 3, then an unknown list of two structs and a truth value, then the flag of version 2.
        let header = [0x15, 6, 0x15, 20, 0x15, 10, 0x39, 0x2c, 0x11, 0, 0x12, 0, 0x11, 0x1c, 0x72, 0, 0, 9];
        let found = Header::read(&header).unwrap();
        assert_eq!(found, Header { len: 17, size: 5, plain_size: 10, unset_flag: Some((14, 0x71)) });
        assert!((0..17).all(|len| Header::read(&header[..len]).is_none()));
    }
}

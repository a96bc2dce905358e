//! Pages that are compressed although their headers deny it: data pages of version 2, as pyarrow before 3.0 wrote them.
//!
//! The two sizes of such a page differ, in its header. Its flag is read as if it were set.
//!
//! Source: ARROW-10353, ARROW-17100.

use std::fs::File;

use parquet::basic::Compression;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};

use crate::formats::table::parquet::thrift::Pages;
use crate::formats::table::patched::Patches;

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
    for page in Pages::of(file, column) {
        let (at, header) = page?;
        if let Some((place, byte)) = header.unset_flag.filter(|_| header.size != header.plain_size) {
            flags.push((at + place as u64, byte));
        }
    }
    Some(())
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
    use crate::formats::table::batch_source::{BatchSource as _, Selection};
    use crate::formats::table::parquet::ParquetFile;
    use crate::formats::table::parquet::thrift::{FALSE, Header};
    use crate::formats::table::source::ReadOptions;

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
            file.read(&selection)?.collect::<crate::formats::error::Result<Vec<_>>>()
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
}

//! The registry of formats: names, signature and reader of each, and the format of a file by its name or its first bytes.
//!
//! Each format has a folder or file in `arrays` or `table` and a row here, through which the rest of the program finds it, and never
//! matches on its name.
//!
//! ```
//! use std::path::Path;
//!
//! use ddp_tables::formats;
//! use ddp::config::table_options::DataFormat;
//!
//! assert_eq!(formats::by_name(Path::new("rows.CSV.gz")).map(|format| format.id), Some(DataFormat::Csv));
//! assert_eq!(formats::by_signature(b"PAR1").title, "Parquet");
//! ```

pub mod error;
pub mod foreign;
mod read_ahead;
pub mod compression;
pub mod write;
pub mod arrays;
pub mod table;

use std::path::Path;

use ddp::config::table_options::{DataFormat, format_by_name};

/// Writes rows to a Parquet file; [`ParquetWriter::create`] fails in a build without the feature `parquet`.
pub use self::parquet::ParquetWriter;
use crate::formats::arrays::reader::ArrayReader;
use crate::formats::arrays::{idx, npy, npz, safetensors};
use crate::formats::table::source::TableFormat;
#[cfg(not(feature = "parquet"))]
use crate::formats::table::{absent as ipc, absent as parquet};
use crate::formats::table::{csv, json_lines};
#[cfg(feature = "parquet")]
use crate::formats::table::{ipc, parquet};

/// A data format.
#[derive(Debug)]
pub struct Format {
    /// Name in configs.
    pub id: DataFormat,
    /// Name in reports and messages.
    pub title: &'static str,
    /// Whether a file that starts with these bytes is of this format.
    pub has_signature: fn(&[u8]) -> bool,
    /// Whether cells are separated by a delimiter.
    pub has_delimiter: bool,
    /// Reader of its files.
    pub reader: Reader,
}

/// Reader of the files of a format.
#[derive(Debug)]
pub enum Reader {
    /// Files of arrays, mapped or read in pieces.
    Arrays(ArrayReader),
    /// Files of rows with named columns.
    Table(TableFormat),
}

impl Format {
    /// Whether files are text, so that their names say more than their first bytes.
    fn is_text(&self) -> bool {
        matches!(&self.reader, Reader::Table(table) if table.is_text)
    }

    /// Whether a file is a single array, so that labels and weights need files of their own.
    pub fn is_single_array(&self) -> bool {
        matches!(self.reader, Reader::Arrays(ArrayReader::Single { .. }))
    }
}

/// First bytes that [`by_signature`] and [`crate::formats::foreign::find`] need: the mark of a tar archive is at its byte 257.
pub const SIGNATURE_BYTES: usize = 512;

/// All formats: first those of tables, then those of arrays.
static FORMATS: &[Format] = &[
    Format {
        id: DataFormat::Csv,
        title: "CSV",
        has_signature: |_| false,
        has_delimiter: true,
        reader: Reader::Table(TableFormat { is_text: true, has_row_groups: false, open: csv::open }),
    },
    Format {
        id: DataFormat::Parquet,
        title: "Parquet",
        has_signature: |begin| begin.starts_with(b"PAR1"),
        has_delimiter: false,
        reader: Reader::Table(TableFormat { is_text: false, has_row_groups: true, open: parquet::open }),
    },
    Format {
        id: DataFormat::Arrow,
        title: "Arrow IPC",
        // A stream has no name of its format, only the mark of its first message.
        has_signature: |begin| {
            begin.starts_with(b"ARROW1") || begin.starts_with(b"\xff\xff\xff\xff") && begin.get(7) == Some(&0)
        },
        has_delimiter: false,
        reader: Reader::Table(TableFormat { is_text: false, has_row_groups: false, open: ipc::open }),
    },
    Format {
        id: DataFormat::JsonLines,
        title: "JSON lines",
        has_signature: json_lines::has_signature,
        has_delimiter: false,
        reader: Reader::Table(TableFormat { is_text: true, has_row_groups: false, open: json_lines::open }),
    },
    Format {
        id: DataFormat::Npy,
        title: "npy",
        has_signature: |begin| begin.starts_with(b"\x93NUMPY"),
        has_delimiter: false,
        reader: Reader::Arrays(ArrayReader::Single {
            open: npy::open,
            labels_name: |_| None,
            side: |_| None,
        }),
    },
    Format {
        id: DataFormat::Npz,
        title: "npz",
        has_signature: npz::has_signature,
        has_delimiter: false,
        reader: Reader::Arrays(ArrayReader::Named { open: npz::open, is_archive: true }),
    },
    Format {
        id: DataFormat::Safetensors,
        title: "safetensors",
        has_signature: safetensors::has_signature,
        has_delimiter: false,
        reader: Reader::Arrays(ArrayReader::Named { open: safetensors::open, is_archive: false }),
    },
    Format {
        id: DataFormat::Idx,
        title: "IDX",
        has_signature: |begin| matches!(begin, [0, 0, 8..=14, 1..=8, ..]),
        has_delimiter: false,
        reader: Reader::Arrays(ArrayReader::Single {
            open: idx::open,
            labels_name: idx::labels_name,
            side: idx::side,
        }),
    },
];

/// All formats, tables first.
pub fn all() -> impl Iterator<Item = &'static Format> {
    FORMATS.iter()
}

/// The format `id`; `None` for [`DataFormat::Auto`].
pub fn find(id: DataFormat) -> Option<&'static Format> {
    all().find(|format| format.id == id)
}

/// The format of a file name, in any case and without the ending of a compression.
pub fn by_name(path: &Path) -> Option<&'static Format> {
    find(format_by_name(path)?)
}

/// The format of bytes whose signature `begin` carries, unless it is one of text.
pub fn by_binary_signature(begin: &[u8]) -> Option<&'static Format> {
    all().find(|format| !format.is_text() && (format.has_signature)(begin))
}

/// The format whose signature `begin` carries; CSV has none and is the fallback.
pub fn by_signature(begin: &[u8]) -> &'static Format {
    let found = all().find(|format| (format.has_signature)(begin));
    found.or_else(|| find(DataFormat::Csv)).expect("CSV is a format")
}

/// Names in the config and on the command line.
pub fn names() -> Vec<&'static str> {
    all().map(|format| format.id.name()).collect()
}

/// The usual endings of all formats as a list for messages.
pub fn usual_endings() -> String {
    listed(all().filter_map(|format| format.id.endings().first().copied()))
}

/// "a, b or c"
pub fn listed<'a>(items: impl Iterator<Item = &'a str>) -> String {
    let items: Vec<&str> = items.collect();
    match &items[..] {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [others @ .., last] => format!("{} or {last}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::compression::Compression;

    #[test]
    fn names_determine_format_and_compression_in_any_case() {
        for (name, format, compression) in [
            ("x.csv", DataFormat::Csv, Compression::None),
            ("x.csv.gz", DataFormat::Csv, Compression::Gzip),
            ("X.CSV.GZ", DataFormat::Csv, Compression::Gzip),
            ("X.Csv.Zst", DataFormat::Csv, Compression::Zstd),
            ("T10K-IMAGES-IDX3-UBYTE.GZ", DataFormat::Idx, Compression::Gzip),
            ("X.NPY", DataFormat::Npy, Compression::None),
        ] {
            let path = Path::new(name);
            let found = by_name(path).map(|format| format.id);
            assert_eq!((found, Compression::of(path)), (Some(format), compression), "{name}");
        }
    }

    #[test]
    fn every_name_in_the_config_has_a_format() {
        for id in DataFormat::ALL {
            assert_eq!(find(id).is_some(), id != DataFormat::Auto, "{id}");
        }
    }

    #[test]
    fn signatures_are_told_apart() {
        for (begin, format) in [
            (&b"\x93NUMPY"[..], DataFormat::Npy),
            (
                b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x05\0\0\0x.npy\x93NUMPY",
                DataFormat::Npz,
            ),
            (b"\x40\0\0\0\0\0\0\0{\"x\":", DataFormat::Safetensors),
            (b"PAR1..", DataFormat::Parquet),
            (b"\0\0\x08\x03\0\0", DataFormat::Idx),
            (b"ARROW1\0\0", DataFormat::Arrow),
            (b"{\"a\": 1}\n", DataFormat::JsonLines),
            (b" { \"a\": 1}\n", DataFormat::JsonLines),
            (b"[\n  {\n    \"a\": 1", DataFormat::JsonLines),
            (b"[1,2\n", DataFormat::Csv),
            (b"a,b\n1,", DataFormat::Csv),
            (b"", DataFormat::Csv),
        ] {
            assert_eq!(by_signature(begin).id, format, "{begin:?}");
        }
    }
}

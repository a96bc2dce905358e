//! Finds the format of a file by its config name, its first bytes or its ending.

use std::path::Path;

use super::format::Format;
use super::{raw, table};
use crate::config::{DataFormat, format_by_name};

/// First bytes that [`by_signature`] needs.
pub(crate) const SIGNATURE_BYTES: usize = 128;

/// All formats, tables first.
pub fn all() -> impl Iterator<Item = &'static Format> {
    table::FORMATS.iter().chain(raw::FORMATS)
}

/// The format `id`; `None` for [`DataFormat::Auto`].
pub(crate) fn find(id: DataFormat) -> Option<&'static Format> {
    all().find(|format| format.id == id)
}

/// The format of a file name, in any case and without the ending of a compression.
pub fn by_name(path: &Path) -> Option<&'static Format> {
    find(format_by_name(path)?)
}

/// The format of bytes whose signature `begin` carries, unless it is one of text.
pub(crate) fn by_binary_signature(begin: &[u8]) -> Option<&'static Format> {
    all().find(|format| !format.is_text && (format.has_signature)(begin))
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

/// Endings of files that can be written.
pub fn written_endings() -> Vec<&'static str> {
    all().filter_map(|format| format.writer.as_ref()).flat_map(|writer| writer.endings).copied().collect()
}

/// The usual endings of all formats as a list for messages.
pub(crate) fn usual_endings() -> String {
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
    use super::super::compression::Compression;
    use super::*;

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
        for &id in DataFormat::ALL {
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

//! Names files of formats that are not read, each with a hint to convert it.

use std::path::Path;

/// A format that is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreign {
    /// With its article, for a message.
    pub name: &'static str,
    /// A way to convert it.
    pub hint: &'static str,
}

const fn of(name: &'static str, hint: &'static str) -> Foreign {
    Foreign { name, hint }
}

const WITH_PYTHON: &str =
    "read it with Python and save the table as Parquet or CSV, or the array with numpy.save";
const AS_CSV: &str = "save the table as CSV";
const UNPACK: &str = "unpack it first";
const AS_LINES: &str =
    "write one object per line: `jq -c .`, or in pandas to_json(path, orient='records', lines=True)";
const AS_UTF_8: &str =
    "convert it: iconv -f UTF-16 -t UTF-8 OLD.csv > NEW.csv (or -f UTF-16LE, UTF-16BE, UTF-32)";
const SVMLIGHT: &str = "load it with sklearn.datasets.load_svmlight_file and save x and y with numpy.savez";
const IMAGES: &str = "save the images as one array [rows, pixels] with numpy.save, and the labels as another";

const PICKLE: Foreign = of("a Python pickle, which can run any code and is never loaded", WITH_PYTHON);
const HDF5: Foreign = of("an HDF5 file", WITH_PYTHON);
const EXCEL: Foreign = of("an Excel workbook", AS_CSV);
const OPEN_DOCUMENT: Foreign = of("an OpenDocument spreadsheet", AS_CSV);
const TORCH: Foreign = of("a file of torch.save", "save its tensors with safetensors.torch.save_file");
const TAR: Foreign = of("a tar archive", UNPACK);
const ARFF: Foreign = of("an ARFF file of Weka", AS_CSV);
const LIBSVM: Foreign =
    of("a file of LIBSVM (svmlight), which lists only the values that are not 0", SVMLIGHT);
const UTF_16: Foreign = of("text in UTF-16, expected UTF-8", AS_UTF_8);
const UTF_32: Foreign = of("text in UTF-32, expected UTF-8", AS_UTF_8);
const IMAGE: Foreign = of("an image", IMAGES);
const HTML: Foreign = of("a page of HTML", "was it downloaded from a page instead of from its data link?");
const JSON: Foreign = of("JSON that is not one row per line, expected one JSON object per line", AS_LINES);

/// First bytes, and the format that they mean.
const SIGNATURES: &[(&[u8], Foreign)] = &[
    (b"\x80\x02", PICKLE),
    (b"\x80\x03", PICKLE),
    (b"\x80\x04\x95", PICKLE),
    (b"\x80\x05\x95", PICKLE),
    (b"\x89HDF\r\n\x1a\n", HDF5),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", EXCEL),
    (b"BZh", of("compressed by bzip2", UNPACK)),
    (b"\xfd7zXZ\0", of("compressed by xz", UNPACK)),
    (b"\x04\x22\x4d\x18", of("compressed by lz4", UNPACK)),
    (b"ORC", of("an ORC file", WITH_PYTHON)),
    (b"Obj\x01", of("an Avro file", WITH_PYTHON)),
    (b"FEA1", of("a Feather file of version 1", WITH_PYTHON)),
    (b"MATLAB 5.0", of("a MATLAB file", WITH_PYTHON)),
    (b"SQLite format 3\0", of("an SQLite database", "export a table: sqlite3 -csv -header")),
    (b"<stata_dta>", of("a Stata file", WITH_PYTHON)),
    (b"$FL2", of("an SPSS file", WITH_PYTHON)),
    (b"\xff\xfe\0\0", UTF_32),
    (b"\0\0\xfe\xff", UTF_32),
    (b"\xff\xfe", UTF_16),
    (b"\xfe\xff", UTF_16),
    (b"\x89PNG\r\n", IMAGE),
    (b"\xff\xd8\xff", IMAGE),
    (b"GIF8", IMAGE),
    (b"%PDF-", of("a PDF document", AS_CSV)),
    (b"<!DOCTYPE html", HTML),
    (b"<!doctype html", HTML),
    (b"<html", HTML),
    (b"<table", HTML),
    (b"@relation", ARFF),
    (b"@RELATION", ARFF),
];

/// The format of a file that begins with `begin`, if it is one of those that are not read.
pub fn find(begin: &[u8]) -> Option<Foreign> {
    let text = begin.trim_ascii_start();
    match () {
        () if begin.starts_with(b"PK\x03\x04") => Some(of_zip(begin)),
        () if is_json_of_all_rows(text) => Some(JSON),
        () if is_libsvm(text) => Some(LIBSVM),
        () if is_utf_16(begin) => Some(UTF_16),
        () => {
            let found = SIGNATURES.iter().find(|(signature, _)| begin.starts_with(signature));
            found.map(|(_, foreign)| *foreign)
        }
    }
}

/// The format of a file by the ending of its name, for content that could be anything.
pub fn by_name(path: &Path) -> Option<Foreign> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    Some(match &*ending {
        "pkl" | "pickle" | "joblib" => PICKLE,
        "h5" | "hdf5" | "hdf" => HDF5,
        "xlsx" | "xls" | "xlsm" | "xlsb" => EXCEL,
        "pt" | "pth" => TORCH,
        "tar" | "tgz" => TAR,
        "arff" => ARFF,
        _ => return None,
    })
}

/// Whether a text is an object over several lines, or one per column, as `DataFrame.to_json` writes by default:
/// `{"a":{"0":1,"1":2},...`.
fn is_json_of_all_rows(text: &[u8]) -> bool {
    let is_blank = |byte: &u8| byte.is_ascii_whitespace();
    let Some(rest) = text.strip_prefix(b"{") else { return false };
    let breaks_line = rest.iter().take_while(|byte| is_blank(byte)).any(|byte| *byte == b'\n');
    let Some(rest) = rest.trim_ascii_start().strip_prefix(b"\"") else { return false };
    let value = rest.iter().skip_while(|byte| **byte != b'"').skip(1).copied().filter(|byte| !is_blank(byte));
    breaks_line || value.take(6).eq(*b":{\"0\":")
}

/// Whether the first line is a label and pairs of a column and a value: `+1 3:0.5 7:1`.
fn is_libsvm(text: &[u8]) -> bool {
    let mut lines = text.split(|byte| *byte == b'\n');
    let Some(Ok(line)) = lines.next().map(std::str::from_utf8) else { return false };
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    let is_pair = |pair: &&str| {
        let parts = pair.split_once(':');
        parts.is_some_and(|(column, value)| {
            (column == "qid" || column.parse::<u64>().is_ok()) && is_number(value)
        })
    };
    let mut words = line.split_ascii_whitespace();
    let has_label = words.next().is_some_and(|labels| labels.split(',').all(is_number));
    let mut pairs: Vec<&str> = words.collect();
    // The line may continue after the bytes that were read.
    if lines.next().is_none() && pairs.len() > 1 {
        pairs.pop();
    }
    has_label && !pairs.is_empty() && pairs.iter().all(is_pair)
}

/// Whether a text is UTF-16 without a byte order mark: every other byte of the first ones is 0.
fn is_utf_16(begin: &[u8]) -> bool {
    let (pairs, _) = begin[..begin.len().min(12)].as_chunks::<2>();
    let is_text = |byte: u8| matches!(byte, b'\t' | b'\r' | b'\n' | b' '..=b'~');
    pairs.len() == 6
        && (pairs.iter().all(|&[a, b]| is_text(a) && b == 0)
            || pairs.iter().all(|&[a, b]| a == 0 && is_text(b)))
}

/// The format of a zip archive that is not an npz, by its first entry.
fn of_zip(begin: &[u8]) -> Foreign {
    let name = String::from_utf8_lossy(begin.get(30..).unwrap_or_default());
    let begins_with = |parts: &[&str]| parts.iter().any(|part| name.starts_with(part));
    let holds = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    match () {
        () if begins_with(&["[Content_Types].xml", "_rels/", "xl/", "docProps/"]) => EXCEL,
        () if begins_with(&["mimetypeapplication/vnd.oasis.opendocument.spreadsheet"]) => OPEN_DOCUMENT,
        () if holds(&["/data.pkl", "/byteorder", "/.format_version"]) => TORCH,
        () => of("a zip archive", UNPACK),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_named() {
        for (begin, name) in [
            (&b"\x80\x04\x95\x10\0"[..], "pickle"),
            (b"\x80\x02}q\0", "pickle"),
            (b"\x89HDF\r\n\x1a\n\0\0", "HDF5"),
            (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0", "Excel"),
            (b"\xff\xfea\0,\0b\0", "UTF-16"),
            (b"BZh91AY&SY", "bzip2"),
            (b"\xff\xfe\0\0a\0\0\0", "UTF-32"),
            (b"a\0,\0b\0,\0c\0\n\0", "UTF-16"),
            (b"\0a\0,\0b\0,\0c\0\n", "UTF-16"),
            (b"{\"sepal length\":{\"0\":5.1,\"1\":4.9", "not one row per line"),
            (b"{\n  \"a\" : {\n    \"0\": 5.1,", "not one row per line"),
            (b"{\r\n  \"a\": 1,\r\n", "not one row per line"),
            (b"+1 3:0.5 7:-1e-3\n-1 1:2\n", "LIBSVM"),
            (b"3 qid:1 1:0.5 2:0.2", "LIBSVM"),
            (b"@RELATION iris\n", "ARFF"),
        ] {
            assert!(find(begin).is_some_and(|foreign| foreign.name.contains(name)), "{begin:?}");
        }
        let zip = |entry: &str| [&b"PK\x03\x04"[..], &[0; 26], entry.as_bytes()].concat();
        for (entry, name) in
            [("[Content_Types].xml", "Excel"), ("archive/data.pkl", "torch"), ("readme.txt", "zip")]
        {
            assert!(find(&zip(entry)).is_some_and(|foreign| foreign.name.contains(name)), "{entry}");
        }
        for text in [
            "",
            "a,b\n",
            "[1, 2]",
            " [ {\"a\": 1}, {\"a\": 2}]",
            "{\"a\": 1}\n",
            "{\"a\": {\"b\": 0}}\n",
            "{\n1\n2\n",
            "ORacle,b\n",
            "1 2 3\n",
            "1 12:30 x\n",
        ] {
            assert_eq!(find(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn names_decide_where_content_does_not() {
        for (name, part) in
            [("rows.PKL", "pickle"), ("a.xlsx", "Excel"), ("x.pt", "torch"), ("all.tgz", "tar")]
        {
            assert!(by_name(Path::new(name)).is_some_and(|foreign| foreign.name.contains(part)), "{name}");
        }
        assert_eq!(by_name(Path::new("rows.csv")), None);
    }
}

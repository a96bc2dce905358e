//! Names files of formats that are not read, each with a hint to convert it.

use std::path::Path;

use ddp::storage::user_file::{LFS_HINT, LFS_NAME, LFS_POINTER};

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

const LISTS: &str = "write objects that name the columns: in pandas DataFrame(lists, columns=[...]).to_json(path, orient='records', lines=True)";
const WITH_SCIPY: &str = "load it with scipy.io.mmread and save it with numpy.save(path, matrix.toarray())";
const WITH_XARRAY: &str =
    "save it as a table: xarray.open_dataset(path).to_dataframe().reset_index().to_parquet('rows.parquet')";
const WITH_R: &str = "save the table as CSV in R: write.csv(readRDS(path), \"rows.csv\", row.names = FALSE)";
const WITH_R_LOAD: &str =
    "save its table as CSV in R: load(path), then write.csv(TABLE, \"rows.csv\", row.names = FALSE)";
const WITH_SAS: &str = "read it with pandas.read_sas and save the table as Parquet or CSV";
const WITH_LANCE: &str =
    "save it as Parquet: pyarrow.parquet.write_table(lance.dataset(FOLDER).to_table(), 'rows.parquet')";

const LFS: Foreign = of(LFS_NAME, LFS_HINT);
const RDS: Foreign = of("a file of R's saveRDS", WITH_R);
const RDATA: Foreign = of("a file of R's save", WITH_R_LOAD);
const NETCDF: Foreign = of("a NetCDF file", WITH_XARRAY);
const MATRIX_MARKET: Foreign = of("a Matrix Market file", WITH_SCIPY);
const SAS: Foreign = of("a SAS table", WITH_SAS);
const SAS_TRANSPORT: Foreign = of("a SAS transport file", WITH_SAS);
const VORTEX: Foreign = of("a Vortex file", WITH_PYTHON);
const LANCE: Foreign = of("a Lance file", WITH_LANCE);
const STATA: Foreign = of("a Stata file", WITH_PYTHON);
const SPSS: Foreign = of("an SPSS file", WITH_PYTHON);
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
const JSON_LISTS: Foreign = of("JSON of lists, expected one JSON object per line", LISTS);
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
    (b"<stata_dta>", STATA),
    (b"$FL2", SPSS),
    (LFS_POINTER, LFS),
    (b"RDX2\n", RDATA),
    (b"RDX3\n", RDATA),
    (b"RDA2\n", RDATA),
    (b"RDA3\n", RDATA),
    (b"X\n\0\0\0", RDS),
    (b"CDF\x01", NETCDF),
    (b"CDF\x02", NETCDF),
    (b"CDF\x05", NETCDF),
    (b"%%MatrixMarket", MATRIX_MARKET),
    (b"VTXF", VORTEX),
    (b"HEADER RECORD*******", SAS_TRANSPORT),
    (b"\0\0\0\0\0\0\0\0\0\0\0\0\xc2\xea\x81\x60\xb3\x14\x11\xcf", SAS),
    (b"\xff\xfe\0\0", UTF_32),
    (b"\0\0\xfe\xff", UTF_32),
    (b"\xff\xfe", UTF_16),
    (b"\xfe\xff", UTF_16),
    (b"\x89PNG\r\n", IMAGE),
    (b"\xff\xd8\xff", IMAGE),
    (b"GIF8", IMAGE),
    (b"%PDF-", of("a PDF document", AS_CSV)),
    (b"\x1f\x9d", of("compressed by compress", UNPACK)),
    (b"7z\xbc\xaf\x27\x1c", of("a 7-Zip archive", UNPACK)),
    (b"Rar!\x1a\x07", of("a RAR archive", UNPACK)),
    (b"\x7fELF", of("an executable program", "name the file of the rows")),
    (b"<?xml", of("XML", AS_CSV)),
    (b"<!DOCTYPE html", HTML),
    (b"<!doctype html", HTML),
    (b"<html", HTML),
    (b"<table", HTML),
    (b"@relation", ARFF),
    (b"@RELATION", ARFF),
];

/// Signatures with which a text may begin.
const WORDS: [&[u8]; 3] = [b"BZh", b"ORC", b"FEA1"];

/// Whether the first bytes hold no other control characters than those of text.
fn is_text(begin: &[u8]) -> bool {
    begin.iter().all(|byte| *byte >= b' ' || matches!(byte, b'\t' | b'\r' | b'\n'))
}

/// The text without the byte order mark of UTF-8.
pub(crate) fn without_mark(begin: &[u8]) -> &[u8] {
    begin.strip_prefix(b"\xef\xbb\xbf").unwrap_or(begin)
}

/// The format of a file that begins with `begin`, if it is one of those that are not read.
pub fn find(begin: &[u8]) -> Option<Foreign> {
    let text = without_mark(begin).trim_ascii_start();
    match () {
        () if begin.starts_with(b"PK\x03\x04") => Some(kind_of_zip(begin)),
        () if begin.get(8..12) == Some(b"DUCK") && !is_text(begin) => {
            Some(of("a DuckDB database", "export a table: COPY t TO 't.parquet' (FORMAT parquet)"))
        }
        () if begin.get(257..262) == Some(b"ustar") => Some(TAR),
        () if is_json_of_lists(text) => Some(JSON_LISTS),
        () if is_json_of_all_rows(text) => Some(JSON),
        () if is_r_text(begin) => Some(RDS),
        () if is_libsvm(text) => Some(LIBSVM),
        () if is_utf_16(begin) => Some(UTF_16),
        () => {
            let is_here = |signature: &&[u8]| {
                begin.starts_with(signature) && !(WORDS.contains(signature) && is_text(begin))
            };
            let found = SIGNATURES.iter().find(|(signature, _)| is_here(signature));
            found.map(|(_, foreign)| *foreign)
        }
    }
}

/// Whether a file that begins with `begin` is a pointer of Git LFS in place of a file of any format.
pub fn pointer(begin: &[u8]) -> Option<Foreign> {
    begin.starts_with(LFS_POINTER).then_some(LFS)
}

/// The format of a file by the ending of its name, for content that could be anything.
pub fn by_name(path: &Path) -> Option<Foreign> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    Some(match &*ending {
        "pkl" | "pickle" | "joblib" => PICKLE,
        "h5" | "hdf5" | "hdf" => HDF5,
        "xlsx" | "xls" | "xlsm" | "xlsb" => EXCEL,
        "ods" => OPEN_DOCUMENT,
        "docx" | "doc" | "odt" | "pptx" => of("an Office document", AS_CSV),
        "ipynb" => of("a notebook", "name the file of the rows"),
        "tfrecord" | "tfrecords" => of("a TFRecord file", WITH_PYTHON),
        "pt" | "pth" => TORCH,
        "tar" | "tgz" => TAR,
        "arff" => ARFF,
        "rds" => RDS,
        "rdata" | "rda" => RDATA,
        "nc" | "cdf" | "netcdf" => NETCDF,
        "mtx" => MATRIX_MARKET,
        "sas7bdat" => SAS,
        "xpt" => SAS_TRANSPORT,
        "dta" => STATA,
        "sav" => SPSS,
        "lance" => LANCE,
        "vortex" => VORTEX,
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

/// Whether a text is a list of lists, or a list per line.
fn is_json_of_lists(text: &[u8]) -> bool {
    let Some(rest) = text.strip_prefix(b"[") else { return false };
    let is_list = |line: &[u8]| serde_json::from_slice::<Vec<serde_json::Value>>(line).is_ok();
    if let Some(list) = rest.trim_ascii_start().strip_prefix(b"[") {
        // Cut off where the bytes that were read may end, it still begins like a list of values.
        let first = list.split(|byte| matches!(byte, b',' | b']')).next().unwrap_or_default();
        return is_list(&[b"[", first, b"]"].concat());
    }
    let mut lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let (first, second) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    second.starts_with(b"[") && is_list(first)
}

/// Whether a text is an object of R as text: the letter A, the version of the format, of R, and of the oldest R that reads it.
fn is_r_text(text: &[u8]) -> bool {
    let mut lines = text.split(|byte| *byte == b'\n');
    let is_version = |line: &[u8]| line.len() == 6 && line.iter().all(u8::is_ascii_digit);
    lines.next() == Some(b"A")
        && matches!(lines.next(), Some(b"2" | b"3"))
        && lines.next().is_some_and(is_version)
        && matches!(lines.next(), Some(b"131840" | b"197888"))
}

/// Whether the arrays of an npz with these names are those of a sparse matrix, as scipy.sparse and sparse write one.
pub(crate) fn sparse_matrix(names: &[String]) -> Option<Foreign> {
    const HINT: &str =
        "load it with scipy.sparse.load_npz and save it with numpy.save(path, matrix.toarray())";
    let has = |name: &str| names.iter().any(|other| other == name);
    let is_sparse = has("data") && has("shape") && (has("format") || has("coords"));
    is_sparse.then_some(of("a sparse matrix, which lists only the values that are not 0", HINT))
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
fn kind_of_zip(begin: &[u8]) -> Foreign {
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
            (b"BZh91AY&SY\0\x01", "bzip2"),
            (b"ORC\x0a\x03\0", "ORC"),
            (b"FEA1\0\0\0\0", "Feather"),
            (b"\xef\xbb\xbf[[1,2],[3,4]]", "JSON of lists"),
            (b"\xff\xfe\0\0a\0\0\0", "UTF-32"),
            (b"a\0,\0b\0,\0c\0\n\0", "UTF-16"),
            (b"\0a\0,\0b\0,\0c\0\n", "UTF-16"),
            (b"{\"sepal length\":{\"0\":5.1,\"1\":4.9", "not one row per line"),
            (b"{\n  \"a\" : {\n    \"0\": 5.1,", "not one row per line"),
            (b"{\r\n  \"a\": 1,\r\n", "not one row per line"),
            (b"+1 3:0.5 7:-1e-3\n-1 1:2\n", "LIBSVM"),
            (b"3 qid:1 1:0.5 2:0.2", "LIBSVM"),
            (b"@RELATION iris\n", "ARFF"),
            (b"\0\0\0\0\0\0\0\0DUCK\x40\0", "DuckDB"),
            (b"7z\xbc\xaf\x27\x1c\0", "7-Zip"),
            (b"<?xml version=\"1.0\"?>", "XML"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:07\nsize 12345\n", "Git LFS pointer"),
            // saveRDS: binary, little-endian numbers aside, and with ascii = TRUE; save.
            (b"X\n\0\0\0\x03\0\x04\x03\x02", "saveRDS"),
            (b"A\n3\n262914\n197888\n5\nUTF-8\n", "saveRDS"),
            (b"RDX3\nX\n\0\0\0\x03", "R's save"),
            (b"CDF\x01\0\0\0\0", "NetCDF"),
            (b"CDF\x05\0\0\0\0", "NetCDF"),
            (b"%%MatrixMarket matrix coordinate real general\n", "Matrix Market"),
            (b"VTXF\x01\0", "Vortex"),
            (b"HEADER RECORD*******LIBRARY HEADER RECORD!!!!!!!", "SAS transport"),
            (b"\0\0\0\0\0\0\0\0\0\0\0\0\xc2\xea\x81\x60\xb3\x14\x11\xcf\xbd\x92", "SAS table"),
            (b"[[1,2],[3,4]]", "JSON of lists"),
            (b" [\n  [\"a\", 1.5],\n", "JSON of lists"),
            (b"[1, null]\n[3, 4]\n", "JSON of lists"),
        ] {
            assert!(find(begin).is_some_and(|foreign| foreign.name.contains(name)), "{begin:?}");
        }
        let tar = [&b"rows.csv"[..], &[0; 249], b"ustar\0"].concat();
        assert!(find(&tar).is_some_and(|foreign| foreign.name.contains("tar")));
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
            "ORCID,citations,label\n",
            "FEA1,FEA2,label\n",
            "BZh,b\n",
            "rows of DUCK,b\n",
            "1 2 3\n",
            "1 12:30 x\n",
            "X\n1\n2\n",
            "A\n3\n262914\n5\n",
            "[a],[b]\n[1],[2]\n",
            "[[a]],b\n1,2\n",
            "CDF,b\n1,2\n",
        ] {
            assert_eq!(find(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn names_decide_where_content_does_not() {
        for (name, part) in [
            ("rows.PKL", "pickle"),
            ("a.rds", "saveRDS"),
            ("rows.sas7bdat", "SAS"),
            ("part.lance", "Lance"),
            ("a.xlsx", "Excel"),
            ("x.pt", "torch"),
            ("all.tgz", "tar"),
        ] {
            assert!(by_name(Path::new(name)).is_some_and(|foreign| foreign.name.contains(part)), "{name}");
        }
        assert_eq!(by_name(Path::new("rows.csv")), None);
    }

    #[test]
    fn sparse_matrices_are_known_by_their_arrays() {
        let names = |names: &str| names.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for sparse in
            ["indices indptr format shape data", "row col format shape data", "coords data shape fill_value"]
        {
            assert!(sparse_matrix(&names(sparse)).is_some(), "{sparse}");
        }
        assert_eq!(sparse_matrix(&names("data labels shape")), None);
    }
}

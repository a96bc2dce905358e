//! Files of formats that are not read: named as what they are, with the line of Python that converts them.

/// A format that is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreign {
    /// With its article, for a message.
    pub(crate) name: &'static str,
    /// The line that converts `IN` to `OUT`, without its ending.
    line: &'static str,
}

impl Foreign {
    /// The remedy for the file `path`.
    pub(crate) fn hint(self, path: &str) -> String {
        let stem = std::path::Path::new(path).with_extension("").display().to_string();
        // Names in lines of Python are in quotes already.
        let is_python = self.line.contains("python -c");
        let word = |name: String| if is_python { name } else { shell_word(&name) };
        let mut line = self.line.replace("IN", &word(path.to_owned()));
        for ending in ["-utf8.csv", ".csv", ""] {
            line = line.replace(&format!("OUT{ending}"), &word(format!("{stem}{ending}")));
        }
        let is_command = self.line.contains("IN") && !self.line.contains(" it: ");
        if is_command { format!("convert it: {line}") } else { line }
    }
}

/// A name as one word of a shell's command.
pub(crate) fn shell_word(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "._-/+:@%,=".contains(c);
    if name.chars().all(is_plain) { name.to_owned() } else { format!("'{}'", name.replace('\'', "'\\''")) }
}

macro_rules! foreign {
    ($name:literal, $line:literal) => {
        Foreign { name: $name, line: $line }
    };
}

const PICKLE: Foreign = foreign!(
    "a Python pickle, which can run any code and is never loaded",
    "python -c \"import pandas as pd; pd.DataFrame(pd.read_pickle('IN')).to_parquet('OUT.parquet')\""
);
const HDF5: Foreign = foreign!(
    "an HDF5 file",
    "python -c \"import pandas as pd; pd.read_hdf('IN').to_parquet('OUT.parquet')\", or with h5py: numpy.save('OUT.npy', h5py.File('IN')['NAME'][:])"
);
const EXCEL: Foreign = foreign!(
    "an Excel workbook",
    "python -c \"import pandas as pd; pd.read_excel('IN').to_csv('OUT.csv', index=False)\""
);
const OPEN_DOCUMENT: Foreign = foreign!(
    "an OpenDocument spreadsheet",
    "python -c \"import pandas as pd; pd.read_excel('IN', engine='odf').to_csv('OUT.csv', index=False)\""
);
const TORCH: Foreign = foreign!(
    "a file of torch.save",
    "python -c \"import torch; from safetensors.torch import save_file; save_file(torch.load('IN', weights_only=True), 'OUT.safetensors')\""
);
const ZIP: Foreign = foreign!("a zip archive", "unpack it: unzip IN");
const TAR: Foreign = foreign!("a tar archive", "unpack it: tar xf IN");
const BZIP2: Foreign = foreign!("compressed by bzip2", "unpack it: bunzip2 IN");
const XZ: Foreign = foreign!("compressed by xz", "unpack it: unxz IN");
const LZ4: Foreign = foreign!("compressed by lz4", "unpack it: unlz4 IN");
const ORC: Foreign =
    foreign!("an ORC file", "python -c \"import pandas as pd; pd.read_orc('IN').to_parquet('OUT.parquet')\"");
const AVRO: Foreign = foreign!(
    "an Avro file",
    "python -c \"import polars as pl; pl.read_avro('IN').write_parquet('OUT.parquet')\""
);
const FEATHER_1: Foreign = foreign!(
    "a Feather file of version 1",
    "python -c \"import pandas as pd; pd.read_feather('IN').to_parquet('OUT.parquet')\""
);
const MATLAB: Foreign = foreign!(
    "a MATLAB file",
    "python -c \"import numpy, scipy.io; numpy.savez('OUT.npz', **{k: v for k, v in scipy.io.loadmat('IN').items() if k[0] != '_'})\""
);
const SQLITE: Foreign =
    foreign!("an SQLite database", "sqlite3 -csv -header IN \"SELECT * FROM NAME\" > OUT.csv");
const STATA: Foreign = foreign!(
    "a Stata file",
    "python -c \"import pandas as pd; pd.read_stata('IN').to_parquet('OUT.parquet')\""
);
const SPSS: Foreign = foreign!(
    "an SPSS file",
    "python -c \"import pandas as pd; pd.read_spss('IN').to_parquet('OUT.parquet')\""
);
const UTF_16: Foreign =
    foreign!("text in UTF-16, expected UTF-8", "iconv -f UTF-16 -t UTF-8 IN > OUT-utf8.csv");
const UTF_16_LE: Foreign =
    foreign!("text in UTF-16, expected UTF-8", "iconv -f UTF-16LE -t UTF-8 IN > OUT-utf8.csv");
const UTF_16_BE: Foreign =
    foreign!("text in UTF-16, expected UTF-8", "iconv -f UTF-16BE -t UTF-8 IN > OUT-utf8.csv");
const UTF_32: Foreign =
    foreign!("text in UTF-32, expected UTF-8", "iconv -f UTF-32 -t UTF-8 IN > OUT-utf8.csv");
const JSON_COLUMNS: Foreign = foreign!(
    "one JSON object with all rows, as pandas writes it by default, expected one JSON object per line",
    "python -c \"import pandas as pd; pd.read_json('IN').to_json('OUT.jsonl', orient='records', lines=True)\", or write it so at once: df.to_json(path, orient='records', lines=True)"
);
const LIBSVM: Foreign = foreign!(
    "a file of LIBSVM (svmlight), which lists only the values that are not 0",
    "python -c \"import numpy; from sklearn.datasets import load_svmlight_file as load; X, y = load('IN'); numpy.savez('OUT.npz', X=X.toarray(), y=y)\""
);
const ARFF: Foreign = foreign!(
    "an ARFF file of Weka",
    "python -c \"import pandas as pd; from scipy.io import arff; t = pd.DataFrame(arff.loadarff('IN')[0]); t.apply(lambda c: c.str.decode('utf-8') if c.dtype == object else c).to_csv('OUT.csv', index=False)\""
);
const JSON_OBJECT: Foreign = foreign!(
    "JSON of objects over several lines, expected one JSON object per line",
    "jq -c . IN > OUT.jsonl"
);
const IMAGE: Foreign = foreign!(
    "an image",
    "a row is a vector of numbers: save the images as one array [rows, pixels] with numpy.save, and the labels as another"
);
const PDF: Foreign = foreign!("a PDF document", "export the table as CSV");
const HTML: Foreign = foreign!(
    "a page of HTML",
    "was it downloaded from a page instead of from its data link? convert the first table in it: python -c \"import pandas as pd; pd.read_html('IN')[0].to_csv('OUT.csv', index=False)\""
);

/// First bytes, and the format that they mean.
const SIGNATURES: &[(&[u8], Foreign)] = &[
    (b"\x80\x02", PICKLE),
    (b"\x80\x03", PICKLE),
    (b"\x80\x04\x95", PICKLE),
    (b"\x80\x05\x95", PICKLE),
    (b"\x89HDF\r\n\x1a\n", HDF5),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", EXCEL),
    (b"BZh", BZIP2),
    (b"\xfd7zXZ\0", XZ),
    (b"\x04\x22\x4d\x18", LZ4),
    (b"ORC", ORC),
    (b"Obj\x01", AVRO),
    (b"FEA1", FEATHER_1),
    (b"MATLAB 5.0", MATLAB),
    (b"SQLite format 3\0", SQLITE),
    (b"<stata_dta>", STATA),
    (b"$FL2", SPSS),
    (b"\xff\xfe\0\0", UTF_32),
    (b"\0\0\xfe\xff", UTF_32),
    (b"\xff\xfe", UTF_16),
    (b"\xfe\xff", UTF_16),
    (b"\x89PNG\r\n", IMAGE),
    (b"\xff\xd8\xff", IMAGE),
    (b"GIF8", IMAGE),
    (b"%PDF-", PDF),
    (b"<!DOCTYPE html", HTML),
    (b"<!doctype html", HTML),
    (b"<html", HTML),
    (b"<table", HTML),
];

/// The format of a file that begins with `begin`, if it is one of those that are not read.
pub fn find(begin: &[u8]) -> Option<Foreign> {
    if begin.starts_with(b"PK\x03\x04") {
        return Some(of_zip(begin));
    }
    let text = begin.trim_ascii_start();
    if is_json_of_columns(text) {
        return Some(JSON_COLUMNS);
    }
    if is_json_over_lines(text) {
        return Some(JSON_OBJECT);
    }
    if text.get(..9).is_some_and(|word| word.eq_ignore_ascii_case(b"@relation")) {
        return Some(ARFF);
    }
    if is_libsvm(text) {
        return Some(LIBSVM);
    }
    if let Some(of_words) = utf_16_without_mark(begin) {
        return Some(of_words);
    }
    // The bytes of a name in a header of tar, and the mark far after it, are not all in `begin`.
    let found = SIGNATURES.iter().find(|(signature, _)| begin.starts_with(signature));
    found.map(|(_, foreign)| *foreign)
}

/// Whether a text is one object per column, as `DataFrame.to_json` writes by default: `{"a":{"0":1,"1":2},...`.
fn is_json_of_columns(text: &[u8]) -> bool {
    let Some(rest) = text.strip_prefix(b"{") else { return false };
    let Some(rest) = rest.trim_ascii_start().strip_prefix(b"\"") else { return false };
    let Some(end) = rest.iter().position(|byte| *byte == b'"') else { return false };
    let value: Vec<u8> = rest[end + 1..].iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    value.starts_with(b":{\"0\":")
}

/// Whether a text begins with an object whose brace stands alone on its line.
fn is_json_over_lines(text: &[u8]) -> bool {
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.len() < text.len() && line.trim_ascii() == b"{" && text[1..].trim_ascii_start().starts_with(b"\"")
}

/// Whether the first line is a label and pairs of a column and a value: `+1 3:0.5 7:1`.
fn is_libsvm(text: &[u8]) -> bool {
    let mut lines = text.split(|byte| *byte == b'\n');
    let Some(Ok(line)) = lines.next().map(std::str::from_utf8) else { return false };
    let is_whole = lines.next().is_some();
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    let mut words = line.split_ascii_whitespace();
    if !words.next().is_some_and(|labels| labels.split(',').all(is_number)) {
        return false;
    }
    let mut pairs: Vec<&str> = words.collect();
    // The line may continue after the bytes that were read.
    if !is_whole && pairs.len() > 1 {
        pairs.pop();
    }
    let is_pair = |pair: &&str| {
        let parts = pair.split_once(':');
        parts.is_some_and(|(column, value)| {
            (column == "qid" || column.parse::<u64>().is_ok()) && is_number(value)
        })
    };
    !pairs.is_empty() && pairs.iter().all(is_pair)
}

/// Text in UTF-16 without a byte order mark: every other byte of the first ones is 0.
fn utf_16_without_mark(begin: &[u8]) -> Option<Foreign> {
    const LOOKED_AT: usize = 12;
    let begin = begin.get(..LOOKED_AT)?;
    let is_text = |byte: &u8| matches!(byte, b'\t' | b'\r' | b'\n' | b' '..=b'~');
    let (even, odd) = (|| begin.iter().step_by(2), || begin.iter().skip(1).step_by(2));
    if even().all(is_text) && odd().all(|byte| *byte == 0) {
        return Some(UTF_16_LE);
    }
    (odd().all(is_text) && even().all(|byte| *byte == 0)).then_some(UTF_16_BE)
}

/// The format of a zip archive that is not an npz, by its first entry.
fn of_zip(begin: &[u8]) -> Foreign {
    let name = String::from_utf8_lossy(begin.get(30..).unwrap_or_default());
    match &*name {
        name if ["[Content_Types].xml", "_rels/", "xl/", "docProps/"]
            .iter()
            .any(|part| name.starts_with(part)) =>
        {
            EXCEL
        }
        name if name.starts_with("mimetypeapplication/vnd.oasis.opendocument.spreadsheet") => OPEN_DOCUMENT,
        name if name.contains("/data.pkl")
            || name.contains("/byteorder")
            || name.contains("/.format_version") =>
        {
            TORCH
        }
        _ => ZIP,
    }
}

/// The format of a file by the ending of its name, for content that could be anything.
pub fn by_name(path: &std::path::Path) -> Option<Foreign> {
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

#[cfg(test)]
mod tests {
    use crate::data::errors::foreign::*;

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
            (b"{\"sepal length\":{\"0\":5.1,\"1\":4.9", "as pandas writes it"),
            (b"{\n  \"a\" : {\n    \"0\": 5.1,", "as pandas writes it"),
            (b"{\r\n  \"a\": 1,\r\n", "over several lines"),
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
    fn names_are_quoted_for_the_shell() {
        let hint = find(b"\xff\xfea\0").unwrap().hint("my data/it's.txt");
        assert_eq!(
            hint,
            "convert it: iconv -f UTF-16 -t UTF-8 'my data/it'\\''s.txt' > 'my data/it'\\''s-utf8.csv'"
        );
        let hint = find(b"BZh9").unwrap().hint("rows.csv.bz2");
        assert_eq!(hint, "unpack it: bunzip2 rows.csv.bz2");
    }

    #[test]
    fn hints_name_the_file() {
        let hint = find(b"\x80\x04\x95").unwrap().hint("data/rows.pkl");
        assert!(
            hint.contains("read_pickle('data/rows.pkl')") && hint.contains("'data/rows.parquet'"),
            "{hint}"
        );
    }
}

//! Columns in the names of folders, as Hive writes them: `rows/year=2024/city=Bern/part-0.parquet`.

use std::path::Path;

use crate::source::SourceSpec;

/// Value of a folder for rows without one.
const NO_VALUE: &str = "__HIVE_DEFAULT_PARTITION__";

/// Whether a folder is named like a column and its value.
pub fn is_partition(folder: &Path) -> bool {
    folder.file_name().and_then(|name| name.to_str()).and_then(split).is_some()
}

/// Names and values of the columns in the folders of `path`, below the folder that the config names.
pub fn columns_of(path: &Path, spec: &SourceSpec<'_>) -> Vec<(String, String)> {
    let inside = below(path, spec.source);
    let folders = inside.parent().into_iter().flat_map(Path::components);
    let columns = folders.filter_map(|folder| split(folder.as_os_str().to_str()?));
    columns
        .map(|(name, value)| (decoded(name), decoded(if value == NO_VALUE { "" } else { value })))
        .collect()
}

/// The part of `path` below what `source` names. The copies of an address lie below folders of its scheme, its bucket and its key.
fn below<'a>(path: &'a Path, source: &str) -> &'a Path {
    let after = |end: &Path| {
        let found = path.ancestors().find(|above| above.ends_with(end))?;
        path.strip_prefix(found).ok()
    };
    let found = match source.split_once("://") {
        // One file.
        Some(("http" | "https" | "hf", _)) => Some(Path::new("")),
        Some((scheme, rest)) => {
            let bucket = rest.split('/').next().unwrap_or_default();
            after(&Path::new(scheme).join(rest.trim_end_matches('/')))
                .or_else(|| after(&Path::new(scheme).join(bucket)))
        }
        None => path.strip_prefix(source).ok(),
    };
    found.unwrap_or(path)
}

fn split(folder: &str) -> Option<(&str, &str)> {
    folder.split_once('=').filter(|(name, _)| !name.is_empty())
}

/// A text without the escapes of URLs.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = bytes.get(at + 1..at + 3).and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(code) if bytes[at] == b'%' => {
                out.push(code);
                at += 3;
            }
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use ddp::config::Config;

    use super::*;

    #[test]
    fn folders_are_columns() {
        let columns = |source: &str, path: &str| {
            let config = Config::load(None, &[]).unwrap();
            let spec = SourceSpec { source, ..SourceSpec::train(&config.data) };
            columns_of(Path::new(path), &spec)
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            columns("a=1/rows", "a=1/rows/year=2024/city=San%20Jos%C3%A9/x.parquet"),
            [pair("year", "2024"), pair("city", "San Jos\u{e9}")]
        );
        assert_eq!(columns("rows/*/x", "rows/k=__HIVE_DEFAULT_PARTITION__/x"), [pair("k", "")]);
        assert_eq!(columns("rows/k=1/x.parquet", "rows/k=1/x.parquet"), []);
        assert_eq!(columns("rows", "rows/50%=a/x"), [pair("50%", "a")]);
        // Copies of objects.
        let copy = |key: &str| format!("/tmp/user=me/0123/s3/b/{key}");
        assert_eq!(columns("s3://b/rows/", &copy("rows/y=1/x.csv")), [pair("y", "1")]);
        assert_eq!(columns("s3://b/y=1/x.csv", &copy("y=1/x.csv")), []);
        assert_eq!(columns("s3://b/rows/*/x.csv", &copy("rows/y=1/x.csv")), [pair("y", "1")]);
        assert_eq!(columns("https://h/x.csv", "/tmp/user=me/0123/https/x.csv"), []);
    }
}

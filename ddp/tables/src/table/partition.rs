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
    if path == Path::new(spec.source) {
        return Vec::new();
    }
    let inside = path.strip_prefix(spec.source).unwrap_or(path);
    let folders = inside.parent().into_iter().flat_map(Path::components);
    let columns = folders.filter_map(|folder| split(folder.as_os_str().to_str()?));
    columns
        .map(|(name, value)| (decoded(name), decoded(if value == NO_VALUE { "" } else { value })))
        .collect()
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
    }
}

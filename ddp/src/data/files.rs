//! From a file, folder or pattern to the list of data files and their format.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::error::{DataError, Result};
use super::source::SourceSpec;
use crate::config::{DataFormat, format_by_name};
use crate::storage::user_file;

/// The files that `source` means, in the order of their names.
///
/// # Errors
/// [`DataError::NoFiles`] for a folder or pattern without any; what is wrong with a file's name.
pub(crate) fn files_of(source: &str) -> Result<Vec<PathBuf>> {
    let path = Path::new(source);
    let no_files = |hint: &str| DataError::NoFiles { pattern: source.to_owned(), hint: hint.to_owned() };
    if path.is_dir() {
        let unreadable = |error| DataError::Unreadable { path: path.to_owned(), source: error };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(path).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?.path();
            let is_hidden = entry.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if !is_hidden && !entry.is_dir() && format_by_name(&entry).is_some() {
                files.push(entry);
            }
        }
        files.sort();
        return if files.is_empty() {
            Err(no_files(
                "the folder holds no file whose name ends in csv, npy, npz, safetensors, parquet or -ubyte",
            ))
        } else {
            Ok(files)
        };
    }
    if path.symlink_metadata().is_ok() || !source.contains(['*', '?', '[']) {
        return Ok(vec![path.to_owned()]);
    }
    let pattern = glob::glob(source).map_err(|error| no_files(&format!("the pattern is none: {error}")))?;
    let mut files = Vec::new();
    for file in pattern {
        files.push(file.map_err(|error| DataError::Unreadable {
            path: error.path().to_owned(),
            source: error.into(),
        })?);
    }
    files.sort();
    if files.is_empty() { Err(no_files("no file's name fits the pattern")) } else { Ok(files) }
}

/// The files that `spec` names, and their format.
///
/// # Errors
/// As [`files_of`]; files of several formats.
pub(crate) fn files_and_format(spec: &SourceSpec<'_>) -> Result<(Vec<PathBuf>, DataFormat)> {
    let files = files_of(spec.source)?;
    let format = format_of_all(&files, spec)?;
    Ok((files, format))
}

pub(crate) fn format_of_all(files: &[PathBuf], spec: &SourceSpec<'_>) -> Result<DataFormat> {
    if spec.data.format != DataFormat::Auto {
        return Ok(spec.data.format);
    }
    let formats = files.iter().map(|path| format_of(path)).collect::<Result<Vec<_>>>()?;
    match formats.iter().position(|format| *format != formats[0]) {
        Some(other) => Err(DataError::MixedFormats {
            pattern: spec.source.to_owned(),
            first: files[0].clone(),
            other: files[other].clone(),
        }),
        None => Ok(formats[0]),
    }
}

/// The format of one file: by its name, else by how it begins, else CSV.
pub(crate) fn format_of(path: &Path) -> Result<DataFormat> {
    if let Some(format) = format_by_name(path) {
        return Ok(format);
    }
    let mut begin = [0; 6];
    let file = user_file::open("data file", path)?;
    // What is no file on a disk can be read once only.
    if !file.metadata().is_ok_and(|data| data.is_file()) {
        return Ok(DataFormat::Csv);
    }
    let n = file.take(6).read(&mut begin).unwrap_or(0);
    Ok(match &begin[..n] {
        b"\x93NUMPY" => DataFormat::Npy,
        [b'P', b'K', 3, 4, ..] => DataFormat::Npz,
        [b'P', b'A', b'R', b'1', ..] => DataFormat::Parquet,
        [0, 0, 8..=14, 1..=8, ..] => DataFormat::Idx,
        _ => DataFormat::Csv,
    })
}

#[cfg(test)]
mod tests {
    use super::super::compression::Compression;
    use super::*;

    #[test]
    fn names_say_format_and_compression_in_any_case() {
        for (name, format, compression) in [
            ("x.csv", DataFormat::Csv, Compression::None),
            ("x.csv.gz", DataFormat::Csv, Compression::Gzip),
            ("X.CSV.GZ", DataFormat::Csv, Compression::Gzip),
            ("X.Csv.Zst", DataFormat::Csv, Compression::Zstd),
            ("T10K-IMAGES-IDX3-UBYTE.GZ", DataFormat::Idx, Compression::Gzip),
            ("X.NPY", DataFormat::Npy, Compression::None),
        ] {
            let path = Path::new(name);
            assert_eq!((format_by_name(path), Compression::of(path)), (Some(format), compression), "{name}");
        }
    }
}

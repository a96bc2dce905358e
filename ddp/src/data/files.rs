//! Finds the data files and the format that a source string names.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::error::{DataError, Result};
use super::format::Format;
use super::formats;
use super::source::SourceSpec;
use crate::storage::user_file;

/// The files that `source` names, sorted by name.
///
/// # Errors
/// [`DataError::NoFiles`] for a folder or pattern without data files; [`DataError::Unreadable`].
pub(crate) fn files_of(source: &str) -> Result<Vec<PathBuf>> {
    let path = Path::new(source);
    let no_files = |hint: &str| DataError::NoFiles { pattern: source.to_owned(), hint: hint.to_owned() };
    if path.is_dir() {
        let unreadable = |error| DataError::Unreadable { path: path.to_owned(), source: error };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(path).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?.path();
            let is_hidden = entry.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if !is_hidden && !entry.is_dir() && formats::by_name(&entry).is_some() {
                files.push(entry);
            }
        }
        files.sort();
        if files.is_empty() {
            let endings = formats::usual_endings();
            return Err(no_files(&format!("the folder contains no file whose name ends in {endings}")));
        }
        return Ok(files);
    }
    if path.symlink_metadata().is_ok() || !source.contains(['*', '?', '[']) {
        return Ok(vec![path.to_owned()]);
    }
    let pattern =
        glob::glob(source).map_err(|error| no_files(&format!("the pattern is invalid: {error}")))?;
    let mut files = Vec::new();
    for file in pattern {
        files.push(file.map_err(|error| DataError::Unreadable {
            path: error.path().to_owned(),
            source: error.into(),
        })?);
    }
    files.sort();
    if files.is_empty() { Err(no_files("no file name matches the pattern")) } else { Ok(files) }
}

/// The files of `spec` and their format.
///
/// # Errors
/// [`DataError::MixedFormats`], and the errors of [`files_of`].
pub(crate) fn files_and_format(spec: &SourceSpec<'_>) -> Result<(Vec<PathBuf>, &'static Format)> {
    let files = files_of(spec.source)?;
    let format = format_of_all(&files, spec)?;
    Ok((files, format))
}

/// The format that the config names, or that of all `files`.
fn format_of_all(files: &[PathBuf], spec: &SourceSpec<'_>) -> Result<&'static Format> {
    if let Some(format) = formats::find(spec.data.format) {
        return Ok(format);
    }
    let formats = files.iter().map(|path| format_of(path)).collect::<Result<Vec<_>>>()?;
    match formats.iter().position(|format| format.id != formats[0].id) {
        Some(other) => Err(DataError::MixedFormats {
            pattern: spec.source.to_owned(),
            first: files[0].clone(),
            other: files[other].clone(),
        }),
        None => Ok(formats[0]),
    }
}

/// The format of one file: by its name, otherwise by its first bytes, otherwise CSV.
fn format_of(path: &Path) -> Result<&'static Format> {
    if let Some(format) = formats::by_name(path) {
        return Ok(format);
    }
    let mut begin = [0; formats::SIGNATURE_BYTES];
    let file = user_file::open("data file", path)?;
    // A pipe can be read only once, so its first bytes stay unread.
    if !file.metadata().is_ok_and(|data| data.is_file()) {
        return Ok(formats::by_signature(b""));
    }
    let n = file.take(begin.len() as u64).read(&mut begin).unwrap_or(0);
    Ok(formats::by_signature(&begin[..n]))
}

//! Finds the data files and the format that a source string names.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ddp::config::{DataFormat, Datetime, Decimal, Delimiter, Header};
use ddp::data::error::{DataError, Result};
use ddp::run_folder::folder::{CONFIG_FILE, METRICS_FILE};
use ddp::storage::fingerprint::Fingerprint;
use ddp::storage::user_file;

use crate::error::TableError;
use crate::formats::arrays::reader::{SplitSide, files_on_side};
use crate::formats::compression::Compression;
use crate::formats::error::RowsError;
use crate::formats::{Format, Reader, foreign};
use crate::open::pattern::{braces, is_pattern};
use crate::open::{folder, remote};
use crate::source::SourceSpec;
use crate::{formats, table};

/// The files that `source` names, sorted by name; those of a folder include its sub-folders. Of an address they are copies on this host.
///
/// # Errors
/// [`TableError::NoFiles`] for a folder or pattern without data files; [`RowsError::Unreadable`], [`TableError::LakeTable`],
/// [`TableError::Store`].
pub fn files_of(source: &str) -> Result<Vec<PathBuf>> {
    files_with_copies(source, None)
}

/// Same as [`files_of`], with copies that are kept in the folder of `data.cache`, if there is one.
pub(crate) fn files_with_copies(source: &str, cache: Option<&str>) -> Result<Vec<PathBuf>> {
    if remote::is_address(source) {
        return files_of(&remote::local(source, cache)?);
    }
    let path = Path::new(source);
    let no_files = |hint: &str| {
        DataError::from(TableError::NoFiles { pattern: source.to_owned(), hint: hint.to_owned() })
    };
    if path.is_dir() {
        let files = folder::files_in(path)?;
        if files.is_empty() {
            let endings = formats::usual_endings();
            return Err(no_files(&format!("the folder contains no file whose name ends in {endings}")));
        }
        return Ok(files);
    }
    if path.symlink_metadata().is_ok() || !is_pattern(source) {
        return Ok(vec![path.to_owned()]);
    }
    if let Some((before, names, after)) = braces(source) {
        let named = names.split(',').map(|name| files_of(&format!("{before}{name}{after}")));
        let mut files = named.collect::<Result<Vec<_>>>()?.concat();
        files.sort();
        return Ok(files);
    }
    let pattern =
        glob::glob(source).map_err(|error| no_files(&format!("the pattern is invalid: {error}")))?;
    let mut files = Vec::new();
    for file in pattern {
        files.push(file.map_err(|error| {
            DataError::from(RowsError::Unreadable { path: error.path().to_owned(), source: error.into() })
        })?);
    }
    files.sort();
    let mut folders: Vec<&Path> = files.iter().filter_map(|file| table_folder(file)).collect();
    folders.dedup();
    folders.into_iter().try_for_each(folder::check_table)?;
    if files.is_empty() { Err(no_files("no file name matches the pattern")) } else { Ok(files) }
}

/// The pattern that names exactly these files: by a `*` if no other file fits it, else by a list in braces.
pub fn pattern_of(files: &[&str]) -> Option<String> {
    let first = files.first()?;
    let shared = |file: &&str, at: usize, c: char| file.get(at..).is_some_and(|rest| rest.starts_with(c));
    let prefix = first.char_indices().find(|(at, c)| !files.iter().all(|file| shared(file, *at, *c)))?.0;
    let rests: Vec<&str> = files.iter().map(|file| &file[prefix..]).collect();
    let ends = |n: usize| rests.iter().all(|rest| rest.ends_with(&rests[0][rests[0].len() - n..]));
    let lengths = rests[0].char_indices().map(|(at, _)| rests[0].len() - at);
    let suffix = lengths.filter(|n| rests.iter().all(|rest| rest.len() > *n) && ends(*n)).max().unwrap_or(0);
    let (prefix, suffix) = (&first[..prefix], &first[first.len() - suffix..]);
    let star = format!("{}*{}", glob::Pattern::escape(prefix), glob::Pattern::escape(suffix));
    let mut sorted: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
    sorted.sort();
    if files_of(&star).is_ok_and(|found| found == sorted) {
        return Some(star);
    }
    let folder = prefix.rfind('/').map_or(0, |slash| slash + 1);
    let names: Vec<&str> = files.iter().map(|file| &file[folder..]).collect();
    let is_plain = !names.iter().any(|name| name.starts_with('/') || name.contains(['{', '}', ',']))
        && !prefix.contains('{');
    is_plain.then(|| format!("{}{{{}}}", &prefix[..folder], names.join(",")))
}

/// The folder of the table to which a file belongs: the nearest one that is not named like a column and its value.
fn table_folder(file: &Path) -> Option<&Path> {
    file.ancestors().skip(1).find(|folder| !table::is_partition(folder))
}

/// The files of `spec` and their format. A folder with files for training and for tests gives those of `spec.side`.
///
/// # Errors
/// [`TableError::MixedFormats`], [`RowsError::Foreign`], and the errors of [`files_of`].
pub fn files_and_format(spec: &SourceSpec<'_>) -> Result<(Vec<PathBuf>, &'static Format)> {
    files_of_format(spec, None)
}

/// [`files_and_format`] for files whose format may be known, in which case they are not opened.
///
/// # Errors
/// Same as [`files_and_format`].
pub(crate) fn files_of_format(
    spec: &SourceSpec<'_>,
    known: Option<&'static Format>,
) -> Result<(Vec<PathBuf>, &'static Format)> {
    let (files, format) = match known {
        Some(format) => (files_with_copies(spec.source, spec.data.cache.as_deref())?, format),
        None => all_files_and_format(spec)?,
    };
    check_settings(format, spec)?;
    match &format.reader {
        Reader::Arrays(reader) if files.len() > 1 => Ok((files_on_side(files, reader, spec.side), format)),
        _ => Ok((files, format)),
    }
}

/// Fails for settings that have no meaning in files of `format`. They are for the training rows: those to evaluate or to predict may be in
/// another format.
fn check_settings(format: &Format, spec: &SourceSpec<'_>) -> Result<()> {
    if spec.side != SplitSide::Train || spec.to_predict.is_some() {
        return Ok(());
    }
    let data = spec.data;
    let not_for = |key, why, hint: &str| {
        let (source_name, hint) = (spec.source.to_owned(), hint.to_owned());
        Err(DataError::from(TableError::NotForFormat { key, source_name, why, hint }))
    };
    let is_table = matches!(format.reader, Reader::Table(_));
    if data.delimiter != Delimiter::Auto && !format.has_delimiter {
        return not_for("data.delimiter", "holds no cells with delimiters", "remove the setting");
    }
    if data.header != Header::Auto && !format.has_delimiter {
        return not_for("data.header", "holds no lines of cells", "remove the setting");
    }
    if data.decimal != Decimal::Auto && !format.has_delimiter {
        return not_for("data.decimal", "marks its numbers by itself", "remove the setting");
    }
    if !data.missing_values.is_empty() && !is_table {
        let hint =
            "in arrays only NaN is a missing value: with numpy, x[x == -999] = numpy.nan; remove the setting";
        return not_for("data.missing_values", "holds arrays, not a table", hint);
    }
    if data.cache.is_some() && !is_table {
        return not_for("data.cache", "holds arrays, which are mapped as they are", "remove the setting");
    }
    if data.datetime != Datetime::Seconds && !is_table {
        return not_for("data.datetime", "holds an array, which has no dates", "remove the setting");
    }
    Ok(())
}

/// Identity of the files of `spec`, by which they differ from those that another process finds under the same names: nothing of their content.
pub(crate) fn identity(spec: &SourceSpec<'_>) -> Vec<u8> {
    let mut hash = Fingerprint::default();
    let is_builtin = spec.source.starts_with("builtin:");
    let cache = spec.data.cache.as_deref();
    let files = if is_builtin { Ok(Vec::new()) } else { files_with_copies(spec.source, cache) };
    for path in files.unwrap_or_default() {
        match std::fs::metadata(&path) {
            Ok(of) => {
                [of.dev(), of.ino(), of.len(), of.mtime() as u64].into_iter().for_each(|n| hash.number(n))
            }
            Err(_) => hash.text("missing"),
        }
    }
    hash.finish().to_le_bytes().to_vec()
}

/// All files of `spec`, and their format.
///
/// # Errors
/// Same as [`files_and_format`].
pub fn all_files_and_format(spec: &SourceSpec<'_>) -> Result<(Vec<PathBuf>, &'static Format)> {
    let files = files_with_copies(spec.source, spec.data.cache.as_deref())?;
    let format = format_of_all(&files, spec)?;
    Ok((files, format))
}

/// The format that the config names, or that of all `files`.
fn format_of_all(files: &[PathBuf], spec: &SourceSpec<'_>) -> Result<&'static Format> {
    if let Some(format) = formats::find(spec.data.format) {
        files.iter().try_for_each(|path| check_pointer(path))?;
        return Ok(format);
    }
    let folder = Path::new(spec.source);
    if folder.join(METRICS_FILE).is_file() && folder.join(CONFIG_FILE).is_file() {
        return Err(DataError::from(TableError::FolderOfRun { path: folder.to_owned() }));
    }
    let formats = files.iter().map(|path| format_of(path)).collect::<Result<Vec<_>>>()?;
    match formats.iter().position(|format| format.id != formats[0].id) {
        Some(other) => Err(DataError::from(TableError::MixedFormats {
            pattern: spec.source.to_owned(),
            first: files[0].clone(),
            other: files[other].clone(),
        })),
        None => Ok(formats[0]),
    }
}

/// Fails for a pointer of Git LFS, which no format is.
fn check_pointer(path: &Path) -> Result<()> {
    let begin = user_file::read_regular(path, formats::SIGNATURE_BYTES as u64).unwrap_or_default();
    foreign::pointer(&begin).map_or(Ok(()), |foreign| Err(foreign_file(path, foreign)))
}

fn foreign_file(path: &Path, foreign::Foreign { name, hint }: foreign::Foreign) -> DataError {
    DataError::from(RowsError::Foreign { path: path.to_owned(), name, hint })
}

/// The format of one file: by its first bytes, or by its name if they are text or mean nothing, otherwise CSV.
fn format_of(path: &Path) -> Result<&'static Format> {
    // A pipe can be read only once, so its first bytes stay unread; opening it would wait for a writer.
    if std::fs::metadata(path).is_ok_and(|data| !data.is_file() && !data.is_dir()) {
        return Ok(formats::by_name(path).unwrap_or_else(|| formats::by_signature(b"")));
    }
    let file = user_file::open("data file", path)?;
    let compression = Compression::from_opened(&file, path);
    let begin = first_bytes(file, compression, path);
    if let Some(format) = formats::by_binary_signature(&begin) {
        return Ok(format);
    }
    let named = match compression {
        Compression::Zip => return Ok(formats::by_signature(&begin)),
        _ => formats::by_name(path),
    };
    // Of an archive its name says more.
    let by_name = || foreign::by_name(path).filter(|_| named.is_none());
    let found = foreign::find(&begin);
    let foreign = if begin.starts_with(b"PK\x03\x04") { by_name().or(found) } else { found.or_else(by_name) };
    // A damaged archive is reported as what its name says.
    if let Some(foreign) = foreign.filter(|_| !named.is_some_and(|named| is_zip(named, &begin))) {
        return Err(foreign_file(path, foreign));
    }
    Ok(named.unwrap_or_else(|| formats::by_signature(&begin)))
}

/// Whether both the name and the content of a file are those of a zip archive.
fn is_zip(named: &Format, begin: &[u8]) -> bool {
    named.id == DataFormat::Npz && begin.starts_with(b"PK\x03\x04")
}

/// The first bytes of the unpacked content, or of the file if it can't be unpacked: a page or a pointer in place of an archive.
fn first_bytes(file: File, compression: Compression, path: &Path) -> Vec<u8> {
    let mut begin = Vec::new();
    if let Ok(content) = compression.reader(file, path) {
        let _ = content.take(formats::SIGNATURE_BYTES as u64).read_to_end(&mut begin);
    }
    if begin.is_empty() {
        begin = user_file::read_regular(path, formats::SIGNATURE_BYTES as u64).unwrap_or_default();
    }
    begin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_files_become_patterns() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        for name in ["part-1.csv", "part-2.csv", "part-10.csv", "other.csv"] {
            std::fs::write(path(name), "x,y\n1,2\n").unwrap();
        }
        let listed = |names: &[&str]| {
            let files: Vec<_> = names.iter().map(|name| path(name)).collect();
            let pattern = pattern_of(&files.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
            let mut files: Vec<_> = files.into_iter().map(PathBuf::from).collect();
            files.sort();
            assert_eq!(files_of(&pattern).unwrap(), files, "{pattern}");
            pattern.strip_prefix(&path("")).unwrap().to_owned()
        };
        assert_eq!(listed(&["part-2.csv", "part-1.csv", "part-10.csv"]), "part-*.csv");
        assert_eq!(listed(&["part-1.csv", "part-2.csv"]), "{part-1.csv,part-2.csv}");
        assert_eq!(listed(&["other.csv", "part-1.csv"]), "{other.csv,part-1.csv}");
        assert_eq!(pattern_of(&["a,b.csv", "c.csv"]), None);
        assert_eq!(pattern_of(&["a.csv", "/b.csv"]), None);
        assert!(files_of("{missing.csv").is_ok_and(|files| files.len() == 1));
    }
}

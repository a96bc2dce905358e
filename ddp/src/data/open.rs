//! What the config names -> a [`Dataset`]: which files, in which format, and how they are read.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::read::MultiGzDecoder;

use super::dataset::{Dataset, TargetLayout};
use super::raw::{self, RawFormat};
use super::vocabulary::Vocabulary;
use super::{DataError, builtin, table};
use crate::config::{DataConfig, DataFormat, EvalSource, Missing, format_by_name};
use crate::error::Result;
use crate::storage::user_file;

/// Which part of a built-in set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Rows to train on.
    Train,
    /// Rows to evaluate on.
    Test,
}

/// Where rows come from, and what is known of them before they are read.
#[derive(Debug, Clone, Copy)]
pub struct SourceSpec<'a> {
    /// What the config says of rows.
    pub data: &'a DataConfig,
    /// `builtin:NAME`, a file, a folder, or a pattern of files.
    pub source: &'a str,
    /// Labels in files of their own.
    pub labels: Option<&'a str>,
    /// Which rows of a built-in set.
    pub part: Part,
    /// Number of classes; `None` means largest label + 1.
    pub classes: Option<usize>,
    /// Names of the features in the model's order; `None` takes all that are there, as they are there.
    pub features: Option<KnownFeatures<'a>>,
    /// Host memory for rows that can't be read again piece by piece.
    pub memory_bytes: u64,
}

/// The columns that a model was made for.
#[derive(Debug, Clone, Copy)]
pub struct KnownFeatures<'a> {
    /// Names in their order.
    pub names: &'a [String],
    /// Vocabularies of the categorical ones.
    pub vocabularies: &'a [Vocabulary],
    /// Whose columns they are, for messages.
    pub of: &'a str,
}

impl<'a> SourceSpec<'a> {
    /// The training rows that the config names.
    pub fn train(data: &'a DataConfig) -> Self {
        SourceSpec {
            data,
            source: &data.train,
            labels: data.labels.as_deref(),
            part: Part::Train,
            classes: data.classes,
            features: None,
            memory_bytes: (data.loader_memory_mib as u64) << 20,
        }
    }

    /// Opens the rows. Large files are not read, but for labels where the number of classes is to be taken from them; tables
    /// (CSV) are.
    ///
    /// # Errors
    /// What is wrong with the name or the files.
    pub fn open(&self) -> Result<Arc<dyn Dataset>> {
        open(self)?.ready()
    }

    /// The files with the weights of `data.eval`; None for other rows.
    pub(crate) fn eval_weight(&self) -> Option<&'a str> {
        let is_eval = matches!(&self.data.eval, EvalSource::Source(eval) if eval == self.source);
        self.data.eval_weight.as_deref().filter(|_| is_eval && self.part == Part::Test)
    }

    /// Whether a missing value is no error.
    pub fn may_miss(&self) -> bool {
        self.data.missing != Missing::Error
    }
}

/// Rows whose number of classes may still be open.
#[derive(Debug)]
pub(crate) enum Opened {
    /// Rows in files, whose labels nobody has looked at.
    Raw(Box<raw::RawRows>),
    Ready(Arc<dyn Dataset>),
}

impl Opened {
    /// The rows, whose largest label is `max_label`.
    pub(crate) fn with_max_label(self, max_label: i64) -> Result<Arc<dyn Dataset>> {
        match self {
            Opened::Ready(rows) => Ok(rows),
            Opened::Raw(mut rows) => {
                if rows.layout.targets == (TargetLayout::Classes { n_classes: 0 }) {
                    if max_label == 0 {
                        let n_rows = rows.len();
                        return Err(DataError::SingleClass { source_name: rows.source, n_rows }.into());
                    }
                    rows.layout.targets = TargetLayout::Classes { n_classes: max_label as usize + 1 };
                }
                let rows: Arc<raw::RawRows> = Arc::from(rows);
                Ok(rows)
            }
        }
    }

    /// The rows, after a look at all labels where the number of classes isn't known.
    pub(crate) fn ready(self) -> Result<Arc<dyn Dataset>> {
        let max_label = self.max_label(|n_rows| 0..n_rows)?;
        self.with_max_label(max_label)
    }

    /// The largest label of this rank's part of the rows, where the number of classes is not known.
    pub(crate) fn max_label(&self, part: impl Fn(usize) -> std::ops::Range<usize>) -> Result<i64> {
        match self {
            Opened::Raw(rows) if rows.layout.targets == (TargetLayout::Classes { n_classes: 0 }) => {
                rows.max_label(part(rows.len()), None)
            }
            _ => Ok(0),
        }
    }
}

/// Opens what `spec` names. Large files are not read, tables (CSV) are.
///
/// # Errors
/// What is wrong with the name or the files.
pub(crate) fn open(spec: &SourceSpec<'_>) -> Result<Opened> {
    if let Some(name) = spec.source.strip_prefix("builtin:") {
        return Ok(Opened::Ready(Arc::new(builtin::read(name, spec)?)));
    }
    let (files, format) = files_and_format(spec)?;
    if spec.eval_weight().is_some() && !matches!(format, DataFormat::Npy | DataFormat::Idx) {
        return Err(DataError::NotForFormat {
            key: "data.eval_weight",
            source_name: spec.source.to_owned(),
            why: "has weights in a column or array of its own",
            hint: "leave it out: `data.weight` names the column or array".to_owned(),
        }
        .into());
    }
    let raw_format = match format {
        DataFormat::Npy => RawFormat::Npy,
        DataFormat::Npz => RawFormat::Npz,
        DataFormat::Safetensors => RawFormat::Safetensors,
        DataFormat::Idx => RawFormat::Idx,
        DataFormat::Csv | DataFormat::Parquet | DataFormat::Auto => {
            return Ok(Opened::Ready(table::open(&files, format, spec)?));
        }
    };
    let rows = raw::open(&files, raw_format, spec)?;
    if let Some(known) = spec.features {
        raw::same_columns(&rows, known)?;
    }
    Ok(Opened::Raw(Box::new(rows)))
}

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
            )
            .into())
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
    if files.is_empty() { Err(no_files("no file's name fits the pattern").into()) } else { Ok(files) }
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
        }
        .into()),
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

/// How a file is compressed, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    pub(crate) fn of(path: &Path) -> Self {
        // In any case, as `format_by_name`.
        let is = |ending: &str| path.extension().is_some_and(|other| other.eq_ignore_ascii_case(ending));
        match () {
            () if is("gz") => Compression::Gzip,
            () if is("zst") => Compression::Zstd,
            _ => Compression::None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Compression::None => "plain",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        }
    }

    /// The content of `file`.
    pub(crate) fn reader(self, file: File, path: &Path) -> Result<Box<dyn Read + Send>> {
        Ok(match self {
            Compression::None => Box::new(file),
            Compression::Gzip => Box::new(MultiGzDecoder::new(BufReader::with_capacity(1 << 18, file))),
            Compression::Zstd => {
                Box::new(zstd::Decoder::new(file).map_err(|error| DataError::Malformed {
                    path: path.to_owned(),
                    format: "zstd",
                    reason: error.to_string(),
                    hint: "is the file cut off?",
                })?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
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

//! Files of converted rows: one file, numbered files, or a folder of parts.

use std::path::{Path, PathBuf};

use ddp::data::DataError;
use ddp_tables::error::TableError;
use ddp_tables::formats;
use ddp_tables::formats::Reader;
use ddp_tables::formats::arrays::reader::SplitSide;
use ddp_tables::formats::error::RowsError;

use crate::cli::ConvertArgs;
use crate::error::Result;

/// Ending of the files.
const ENDING: &str = ".parquet";

/// Files to write.
#[derive(Debug, Clone)]
pub(super) enum Target {
    File(PathBuf),
    /// `rows-00000.parquet`, ... for a folder and "rows".
    Numbered(PathBuf, String),
    /// `part-00000.parquet`, ...
    Folder(PathBuf),
}

impl Target {
    /// The files given by `OUT`.
    ///
    /// # Errors
    /// [`RowsError::OutFormat`] for a name that is neither that of a Parquet file nor that of a folder.
    pub(super) fn new(args: &ConvertArgs) -> Result<Self> {
        let path = Path::new(&args.out);
        if args.out.ends_with('/') || path.is_dir() {
            return Ok(Target::Folder(path.to_owned()));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(stem) = stem(&name) else { return Err(DataError::from(refused(args)).into()) };
        let is_split = args.rows_per_file.is_some() || args.mib_per_file.is_some();
        Ok(if is_split {
            Target::Numbered(folder_of(path), stem.to_owned())
        } else {
            Target::File(path.to_owned())
        })
    }

    /// The folder of the files.
    pub(super) fn folder(&self) -> PathBuf {
        match self {
            Target::File(path) => folder_of(path),
            Target::Numbered(folder, _) | Target::Folder(folder) => folder.clone(),
        }
    }

    /// The files for rows of this side of the split; with `n_parts` of two they are next to the training files: `rows.eval.parquet`,
    /// `DIR/eval/`.
    pub(super) fn for_side(&self, side: SplitSide, n_parts: usize) -> Target {
        if side == SplitSide::Train || n_parts < 2 {
            return self.clone();
        }
        match self {
            Target::File(path) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                Target::File(path.with_file_name(format!("{}.eval{ENDING}", stem(&name).unwrap_or(&name))))
            }
            Target::Numbered(folder, stem) => Target::Numbered(folder.clone(), format!("{stem}.eval")),
            Target::Folder(folder) => Target::Folder(folder.join("eval")),
        }
    }

    /// The files, for messages.
    pub(super) fn shown(&self) -> String {
        match self {
            Target::File(path) => path.display().to_string(),
            Target::Numbered(folder, stem) => folder.join(format!("{stem}-*{ENDING}")).display().to_string(),
            Target::Folder(folder) => format!("{}/", folder.display()),
        }
    }

    /// The file with the index `index`.
    pub(super) fn file(&self, index: usize) -> PathBuf {
        match self {
            Target::File(path) => path.clone(),
            Target::Numbered(folder, stem) => folder.join(format!("{stem}-{index:05}{ENDING}")),
            Target::Folder(folder) => folder.join(format!("part-{index:05}{ENDING}")),
        }
    }

    /// Existing files that this command replaces.
    ///
    /// # Errors
    /// [`TableError::OutExists`] unless `overwrite`; [`RowsError::OutFormat`] if one of the files is among the `inputs`.
    pub(super) fn existing(&self, overwrite: bool, inputs: &[PathBuf]) -> Result<Vec<PathBuf>> {
        let found = self.found();
        match found.first() {
            Some(first) if !overwrite => {
                return Err(DataError::from(TableError::OutExists { path: first.clone() }).into());
            }
            _ => {}
        }
        let inputs: Vec<PathBuf> = inputs.iter().filter_map(|path| path.canonicalize().ok()).collect();
        let is_read = |path: &&PathBuf| path.canonicalize().is_ok_and(|path| inputs.contains(&path));
        match found.iter().find(is_read) {
            Some(read) => Err(DataError::from(RowsError::OutFormat {
                out: self.folder().display().to_string(),
                reason: format!("the new files would replace `{}`, which is an input", read.display()),
                hint: "write to another path, and remove the old files afterward".to_owned(),
            })
            .into()),
            None => Ok(found),
        }
    }

    /// Existing files whose names match this command's output, sorted.
    fn found(&self) -> Vec<PathBuf> {
        let (folder, stem) = match self {
            Target::File(path) => return path.exists().then(|| path.clone()).into_iter().collect(),
            Target::Numbered(folder, stem) => (folder, &stem[..]),
            Target::Folder(folder) => (folder, "part"),
        };
        let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let is_one = |path: &PathBuf| {
            path.is_file() && is_part(&path.file_name().unwrap_or_default().to_string_lossy(), stem)
        };
        let mut found: Vec<PathBuf> = paths.filter(is_one).collect();
        found.sort();
        found
    }
}

/// The error of a name that selects another format, with another way to that format.
fn refused(args: &ConvertArgs) -> RowsError {
    let format = formats::by_name(Path::new(&args.out));
    let hint = match format.map(|format| &format.reader) {
        Some(Reader::Arrays(_)) => {
            "; `polars.read_parquet(FILE).to_numpy()` is an array, which numpy.save or safetensors.numpy.save_file writes"
        }
        Some(Reader::Table(_)) => "; polars and DuckDB read it and write other tables",
        None => ", or in / for a folder of parts",
    };
    RowsError::OutFormat {
        out: args.out.clone(),
        reason: "rows are converted to Parquet, and to nothing else".to_owned(),
        hint: format!("end its name in {ENDING}{hint}"),
    }
}

/// Returns "rows" for `rows.parquet`.
fn stem(name: &str) -> Option<&str> {
    let (stem, ending) = name.split_at_checked(name.len().checked_sub(ENDING.len())?)?;
    ending.eq_ignore_ascii_case(ENDING).then_some(stem)
}

/// Whether a name is `rows-00012.parquet`, for "rows".
fn is_part(name: &str, stem: &str) -> bool {
    let number = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(ENDING));
    number.is_some_and(|number| number.len() >= 5 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

//! Where converted rows go: one file, numbered files, or a folder of parts.

use std::path::{Path, PathBuf};

use crate::cli::ConvertArgs;
use crate::config::{DataFormat, format_by_name};
use crate::data::{Compression, DataError};
use crate::error::Result;

/// Files to write.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) format: DataFormat,
    pub(super) compression: Compression,
    place: Place,
    /// Ending of the names.
    ending: String,
}

#[derive(Debug, Clone)]
enum Place {
    File(PathBuf),
    /// `rows-00000.npy`, ... for a folder and "rows".
    Numbered(PathBuf, String),
    /// `part-00000.npy`, ..., and labels and weights of npy in folders inside.
    Folder(PathBuf),
}

impl Target {
    /// What `OUT` and `--to` mean.
    ///
    /// # Errors
    /// [`DataError::OutFormat`]
    pub(super) fn new(args: &ConvertArgs) -> Result<Self> {
        let path = Path::new(&args.out);
        let bad = |reason: String, hint| DataError::OutFormat { out: args.out.clone(), reason, hint };
        let is_folder = args.out.ends_with('/') || path.is_dir();
        let ending = match (&args.to, is_folder) {
            (Some(to), true) => to.clone(),
            (None, true) => {
                return Err(bad(
                    "it is a folder".to_owned(),
                    "say the format of the files in it: --to safetensors",
                )
                .into());
            }
            (given, false) => {
                let ending = ending_of(path).ok_or_else(|| {
                    let hint = "name it .npy, .npz, .safetensors, .csv, .csv.gz, .csv.zst or .parquet, or write to a folder with --to";
                    bad("its name doesn't tell the format".to_owned(), hint)
                })?;
                if given.as_ref().is_some_and(|given| *given != ending) {
                    return Err(
                        bad(format!("its name says {ending}"), "leave --to out, or name a folder").into()
                    );
                }
                ending
            }
        };
        let named = format!("x.{ending}");
        let format = format_by_name(Path::new(&named)).expect("an ending of the list above");
        let compression = Compression::of(Path::new(&named));
        if compression != Compression::None && format != DataFormat::Csv || format == DataFormat::Idx {
            return Err(bad(
                format!("{ending} is only read"),
                "npy, npz, safetensors and parquet hold it as well",
            )
            .into());
        }
        let is_split = args.rows_per_file.is_some() || args.mib_per_file.is_some();
        let place = match (is_folder, is_split) {
            (true, _) => Place::Folder(path.to_owned()),
            (false, false) => Place::File(path.to_owned()),
            (false, true) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let stem = name[..name.len() - ending.len() - 1].to_owned();
                Place::Numbered(folder_of(path), stem)
            }
        };
        Ok(Target { format, compression, place, ending })
    }

    /// The folder that the files are in.
    pub(super) fn folder(&self) -> PathBuf {
        match &self.place {
            Place::File(path) => folder_of(path),
            Place::Numbered(folder, _) | Place::Folder(folder) => folder.clone(),
        }
    }

    /// File number `index`.
    pub(super) fn file(&self, index: usize) -> PathBuf {
        match &self.place {
            Place::File(path) => path.clone(),
            Place::Numbered(folder, stem) => folder.join(format!("{stem}-{index:05}.{}", self.ending)),
            Place::Folder(folder) => folder.join(format!("part-{index:05}.{}", self.ending)),
        }
    }

    /// The npy file of "labels" or "weights" that goes with file number `index`.
    pub(super) fn beside(&self, index: usize, what: &str) -> PathBuf {
        let file = self.file(index);
        match &self.place {
            Place::Folder(folder) => folder.join(what).join(file.file_name().unwrap_or_default()),
            _ => file.with_extension(format!("{what}.npy")),
        }
    }

    /// Files of former rows that this command takes the place of.
    ///
    /// # Errors
    /// [`DataError::OutExists`] if there are some and they are not to be replaced; [`DataError::OutFormat`] if one of them is
    /// among the `inputs`.
    pub(super) fn existing(&self, overwrite: bool, inputs: &[PathBuf]) -> Result<Vec<PathBuf>> {
        let found = self.found();
        match found.first() {
            Some(first) if !overwrite => return Err(DataError::OutExists { path: first.clone() }.into()),
            _ => {}
        }
        let inputs: Vec<PathBuf> = inputs.iter().filter_map(|path| path.canonicalize().ok()).collect();
        let is_read = |path: &&PathBuf| path.canonicalize().is_ok_and(|path| inputs.contains(&path));
        match found.iter().find(is_read) {
            Some(read) => Err(DataError::OutFormat {
                out: self.folder().display().to_string(),
                reason: format!("they would take the place of `{}`, which is read", read.display()),
                hint: "write to another place, and remove the old files when the new ones are there",
            }
            .into()),
            None => Ok(found),
        }
    }

    /// Files with the names that this command gives, in order.
    fn found(&self) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = match &self.place {
            Place::File(path) => {
                let beside = ["labels", "weights"].map(|what| self.beside(0, what));
                let beside = beside.into_iter().filter(|_| self.format == DataFormat::Npy);
                std::iter::once(path.clone()).chain(beside).filter(|path| path.exists()).collect()
            }
            Place::Numbered(folder, stem) => {
                let is_beside = |ending: &str| {
                    self.format == DataFormat::Npy && ["labels.npy", "weights.npy"].contains(&ending)
                };
                let is_one = |name: &str| {
                    ending_of_part(name, stem)
                        .is_some_and(|ending| ending == self.ending || is_beside(ending))
                };
                data_files(folder, is_one)
            }
            Place::Folder(folder) => {
                // Of any format, so that the folder holds rows of one format afterwards.
                let is_part = |name: &str| {
                    let ending = ending_of(Path::new(name));
                    ending.is_some() && ending.as_deref() == ending_of_part(name, "part")
                };
                let is_array = |name: &str| ending_of_part(name, "part") == Some("npy");
                let mut found = data_files(folder, is_part);
                for what in ["labels", "weights"] {
                    found.extend(data_files(&folder.join(what), is_array));
                }
                found
            }
        };
        found.sort();
        found
    }
}

/// The ending that tells the format, with that of a compression.
fn ending_of(path: &Path) -> Option<String> {
    format_by_name(path)?;
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let plain = name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(&name);
    let stem = plain.rsplit_once(['.', '-'])?.0;
    Some(name[stem.len() + 1..].to_owned())
}

/// "csv.gz" for `rows-00012.csv.gz` and "rows".
fn ending_of_part<'a>(name: &'a str, stem: &str) -> Option<&'a str> {
    let (number, ending) = name.strip_prefix(stem)?.strip_prefix('-')?.split_once('.')?;
    (number.len() >= 5 && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(ending)
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The data files of a folder whose name `is_one`; none where there is no folder.
fn data_files(folder: &Path, is_one: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_data = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        !name.starts_with('.') && format_by_name(path).is_some() && path.is_file() && is_one(&name)
    };
    paths.filter(is_data).collect()
}

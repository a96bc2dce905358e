//! Files of converted rows: one file, numbered files, or a folder of parts.

use std::path::{Path, PathBuf};

use ddp::data::DataError;
use ddp_tables::error::TableError;
use ddp_tables::formats;
use ddp_tables::formats::Format;
use ddp_tables::formats::arrays::reader::SplitSide;
use ddp_tables::formats::compression::Compression;
use ddp_tables::formats::error::RowsError;
use ddp_tables::formats::write::{OutFiles, WriteFormat, Writer};

use crate::cli::ConvertArgs;
use crate::error::Result;

/// Files to write.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) format: &'static Format,
    pub(super) writer: &'static WriteFormat,
    place: Place,
    /// Ending of the file names.
    ending: String,
}

#[derive(Debug, Clone)]
enum Place {
    File(PathBuf),
    /// `rows-00000.npy`, ... for a folder and "rows".
    Numbered(PathBuf, String),
    /// `part-00000.npy`, ..., with labels and weights of npy in subfolders.
    Folder(PathBuf),
}

impl Target {
    /// The files given by `OUT` and `--to`.
    ///
    /// # Errors
    /// [`RowsError::OutFormat`]
    pub(super) fn new(args: &ConvertArgs) -> Result<Self> {
        let path = Path::new(&args.out);
        let bad = |reason: String, hint: &str| {
            DataError::from(RowsError::OutFormat { out: args.out.clone(), reason, hint: hint.to_owned() })
        };
        // With --to, a name without the ending of a format is a folder, whether or not it exists.
        let is_named_folder = args.to.is_some() && ending_of(path).is_none() && !path.is_file();
        let is_folder = args.out.ends_with('/') || path.is_dir() || is_named_folder;
        let ending = match (&args.to, is_folder) {
            (Some(to), true) => to.clone(),
            (None, true) => {
                return Err(bad(
                    "it is a folder".to_owned(),
                    "set the format of the files in it: --to safetensors",
                )
                .into());
            }
            (given, false) => {
                let ending = ending_of(path).ok_or_else(|| {
                    let endings = formats::listed(formats::written_endings().into_iter());
                    let hint = format!("end its name in {endings}, or write to a folder with --to");
                    bad("its name doesn't determine the format".to_owned(), &hint)
                })?;
                if given.as_ref().is_some_and(|given| *given != ending) {
                    return Err(
                        bad(format!("its name ends in {ending}"), "remove --to, or name a folder").into()
                    );
                }
                ending
            }
        };
        let named = format!("x.{ending}");
        let path_of_ending = Path::new(&named);
        let format = formats::by_name(path_of_ending).expect("the ending comes from a list of formats");
        let is_plain = Compression::of(path_of_ending) == Compression::None;
        let can_write = |writer: &&WriteFormat| is_plain || writer.endings.contains(&ending.as_str());
        let Some(writer) = format.writer.as_ref().filter(can_write) else {
            let endings = formats::listed(formats::written_endings().into_iter());
            let reason = format!("{ending} files can be read but not written");
            return Err(bad(reason, &format!("choose one of {endings}")).into());
        };
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
        Ok(Target { format, writer, place, ending })
    }

    /// The folder of the files.
    pub(super) fn folder(&self) -> PathBuf {
        match &self.place {
            Place::File(path) => folder_of(path),
            Place::Numbered(folder, _) | Place::Folder(folder) => folder.clone(),
        }
    }

    /// The files for rows of this side of the split; with `n_parts` of two they are next to the training files: `rows.eval.npz`,
    /// `DIR/eval/`.
    pub(super) fn for_side(&self, side: SplitSide, n_parts: usize) -> Target {
        let mut target = self.clone();
        if side == SplitSide::Train || n_parts < 2 {
            return target;
        }
        let ending = &self.ending;
        target.place = match &self.place {
            Place::File(path) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let stem = &name[..name.len() - ending.len() - 1];
                Place::File(path.with_file_name(format!("{stem}.eval.{ending}")))
            }
            Place::Numbered(folder, stem) => Place::Numbered(folder.clone(), format!("{stem}.eval")),
            Place::Folder(folder) => Place::Folder(folder.join("eval")),
        };
        target
    }

    /// The files, for messages.
    pub(super) fn shown(&self) -> String {
        match &self.place {
            Place::File(path) => path.display().to_string(),
            Place::Numbered(folder, stem) => {
                folder.join(format!("{stem}-*.{}", self.ending)).display().to_string()
            }
            Place::Folder(folder) => format!("{}/", folder.display()),
        }
    }

    /// The file with the labels of the class indices.
    pub(super) fn labels_file(&self) -> PathBuf {
        match &self.place {
            Place::File(path) => path.with_file_name(format!(
                "{}.labels.json",
                path.file_name().unwrap_or_default().to_string_lossy()
            )),
            Place::Numbered(folder, stem) => folder.join(format!("{stem}.{}.labels.json", self.ending)),
            Place::Folder(folder) => folder.join("labels.json"),
        }
    }

    /// The files with the index `index`.
    pub(super) fn files(&self, index: usize) -> OutFiles {
        OutFiles {
            rows: self.file(index),
            labels: self.adjacent(index, "labels"),
            weights: self.adjacent(index, "weights"),
        }
    }

    fn file(&self, index: usize) -> PathBuf {
        match &self.place {
            Place::File(path) => path.clone(),
            Place::Numbered(folder, stem) => folder.join(format!("{stem}-{index:05}.{}", self.ending)),
            Place::Folder(folder) => folder.join(format!("part-{index:05}.{}", self.ending)),
        }
    }

    /// The file of "labels" or "weights" for file number `index`, for formats whose files hold a single array.
    fn adjacent(&self, index: usize, content: &str) -> PathBuf {
        let file = self.file(index);
        match &self.place {
            Place::Folder(folder) => folder.join(content).join(file.file_name().unwrap_or_default()),
            _ => file.with_extension(format!("{content}.{}", self.format.id.endings()[0])),
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
        let mut found: Vec<PathBuf> = match &self.place {
            Place::File(path) => {
                let adjacent = ["labels", "weights"].map(|content| self.adjacent(0, content));
                let adjacent = adjacent.into_iter().filter(|_| self.format.is_single_array());
                std::iter::once(path.clone()).chain(adjacent).filter(|path| path.exists()).collect()
            }
            Place::Numbered(folder, stem) => {
                let usual = self.format.id.endings()[0];
                let is_adjacent = |ending: &str| {
                    let content = ending.strip_suffix(usual).and_then(|rest| rest.strip_suffix('.'));
                    self.format.is_single_array() && matches!(content, Some("labels" | "weights"))
                };
                let is_one = |name: &str| {
                    ending_of_part(name, stem)
                        .is_some_and(|ending| ending == self.ending || is_adjacent(ending))
                };
                data_files(folder, is_one)
            }
            Place::Folder(folder) => {
                // Parts in any format, so that the folder contains a single format afterward.
                let is_part = |name: &str| {
                    let ending = ending_of(Path::new(name));
                    ending.is_some() && ending.as_deref() == ending_of_part(name, "part")
                };
                let is_array = |name: &str| {
                    let ending = ending_of_part(name, "part");
                    let of_ending = |format: &&Format| ending == Some(format.id.endings()[0]);
                    formats::all()
                        .find(of_ending)
                        .is_some_and(|format| format.is_single_array() && format.writer.is_some())
                };
                let mut found = data_files(folder, is_part);
                for content in ["labels", "weights"] {
                    found.extend(data_files(&folder.join(content), is_array));
                }
                found
            }
        };
        // The ending of this file name is used only for arrays.
        if matches!(self.writer.writer, Writer::Arrays(..)) {
            found.extend(Some(self.labels_file()).filter(|path| path.exists()));
        }
        found.sort();
        found
    }
}

/// The ending of a format, including the ending of a compression.
fn ending_of(path: &Path) -> Option<String> {
    formats::by_name(path)?;
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let plain = name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(&name);
    let stem = plain.rsplit_once(['.', '-'])?.0;
    Some(name[stem.len() + 1..].to_owned())
}

/// Returns "csv.gz" for `rows-00012.csv.gz` and "rows".
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

/// The data files of a folder whose name satisfies `is_one`; none if the folder does not exist.
fn data_files(folder: &Path, is_one: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_data = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        !name.starts_with('.') && formats::by_name(path).is_some() && path.is_file() && is_one(&name)
    };
    paths.filter(is_data).collect()
}

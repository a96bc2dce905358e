//! Source of inspected rows, and what is known about the columns in advance.

use std::path::PathBuf;

use ddp::data::Compression;
use ddp_rows::table::types::Place;
use serde::Serialize;

use super::kind::Kind;

/// A file and its size, if it is a regular file.
#[derive(Debug, Serialize)]
pub(super) struct FileSize {
    pub(super) path: String,
    pub(super) size_bytes: Option<u64>,
}

/// An array in a file.
#[derive(Debug, Serialize)]
pub(super) struct ArrayShape {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) shape: Vec<usize>,
}

/// Source of rows, and what is known about their columns in advance.
#[derive(Default)]
pub(super) struct Origin {
    pub(super) format: String,
    pub(super) files: Vec<FileSize>,
    pub(super) arrays: Vec<ArrayShape>,
    /// Whether the rows are those of a table, whose columns have names.
    pub(super) is_table: bool,
    pub(super) names: Vec<String>,
    /// Indices of the targets.
    pub(super) targets: Vec<usize>,
    /// Types of the columns; `None` if the values determine them.
    pub(super) kinds: Vec<Option<Kind>>,
    /// Types of the columns in the file, if it has them; those of folders have none.
    pub(super) types: Vec<String>,
    /// Indices of the columns that are texts by their type in the file.
    pub(super) texts: Vec<usize>,
    /// Columns that are not used unasked, with the reason: ends of sentences.
    pub(super) left_out: Vec<String>,
    /// Whether places are lines, from 1, not rows, from 0.
    pub(super) has_lines: bool,
    /// Lines of a config that name arrays.
    pub(super) keys: Vec<String>,
}

impl Origin {
    /// Source of rows in these files.
    pub(super) fn of_files(title: &str, files: &[PathBuf]) -> Self {
        let size = |path: &PathBuf| FileSize {
            path: path.display().to_string(),
            // Pipes have no size.
            size_bytes: path.metadata().ok().filter(|data| data.is_file()).map(|data| data.len()),
        };
        let format = match Compression::of_file(&files[0]) {
            Compression::None => title.to_owned(),
            compression => format!("{title}, {}", compression.name()),
        };
        Origin { format, files: files.iter().map(size).collect(), ..Origin::default() }
    }

    /// A place for messages.
    pub(super) fn place(&self, place: Place) -> String {
        let number = format!("{} {}", if self.has_lines { "line" } else { "row" }, place.number);
        if self.files.len() > 1 { format!("{number} of {}", self.files[place.file].path) } else { number }
    }
}

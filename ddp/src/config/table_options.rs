//! Formats of data files with the endings that select them, and options for reading the text of a table.
//!
//! ```
//! use ddp::config::table_options::DataFormat;
//!
//! assert_eq!(DataFormat::Arrow.endings(), ["arrow", "feather", "ipc"]);
//! ```

use std::path::Path;

ddp_kernels::named_enum! {
    /// Format of data files.
    pub enum DataFormat {
        /// Chosen by the file's name.
        Auto = "auto",
        /// Rows of text whose values are separated by commas, tabs, semicolons or vertical bars.
        Csv = "csv",
        /// NumPy file with one array.
        Npy = "npy",
        /// NumPy archive of arrays.
        Npz = "npz",
        /// Named tensors.
        Safetensors = "safetensors",
        /// Apache Parquet.
        Parquet = "parquet",
        /// Arrow IPC: Feather, and the files that Polars writes.
        Arrow = "arrow",
        /// One JSON object per line.
        JsonLines = "jsonl",
        /// IDX, the format of MNIST.
        Idx = "idx",
    }
}

impl DataFormat {
    /// Returns the endings of file names of this format; the first is the usual one.
    pub fn endings(self) -> &'static [&'static str] {
        match self {
            DataFormat::Auto => &[],
            DataFormat::Csv => &["csv", "tsv"],
            DataFormat::Npy => &["npy"],
            DataFormat::Npz => &["npz"],
            DataFormat::Safetensors => &["safetensors"],
            DataFormat::Parquet => &["parquet", "pq"],
            DataFormat::Arrow => &["arrow", "feather", "ipc"],
            DataFormat::JsonLines => &["jsonl", "ndjson"],
            DataFormat::Idx => &["ubyte", "idx"],
        }
    }
}

/// Returns the format that a file's name implies, ignoring case and the ending of a compression.
pub fn format_by_name(path: &Path) -> Option<DataFormat> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let name = name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(&name);
    let ending = name.rsplit(['.', '-']).next()?;
    DataFormat::ALL.iter().copied().find(|format| format.endings().contains(&ending))
}

/// Whether the first line of a text file names the columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// It names the columns; a line that looks like a row of data is refused.
    Auto,
    /// It names the columns.
    Present,
    /// It is a row of data, and the columns are called `column_1`, `column_2` and so on.
    Absent,
}

ddp_kernels::named_enum! {
    /// Delimiter of the cells of a text file.
    pub enum Delimiter {
        /// The delimiter that splits the first rows into the same number of cells.
        Auto = "auto",
        /// A comma.
        Comma = ",",
        /// A semicolon, used by spreadsheets if the comma is the decimal mark.
        Semicolon = ";",
        /// A tab.
        Tab = "tab",
        /// A vertical bar.
        Pipe = "|",
        /// Runs of spaces and tabs.
        Whitespace = "whitespace",
    }
}

ddp_kernels::named_enum! {
    /// Decimal mark of numbers; the other mark separates thousands.
    #[derive(Default, serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Decimal {
        /// A point in comma-separated files, else inferred from the numbers of the first rows.
        #[default]
        Auto = "auto",
        /// A point.
        Point = ".",
        /// A comma.
        Comma = ",",
    }
}

impl Decimal {
    /// Whether it is left to the numbers of a file.
    pub fn is_auto(&self) -> bool {
        *self == Decimal::Auto
    }
}

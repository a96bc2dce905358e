//! Formats of data files, and the file name endings that select them.

use std::path::Path;

use super::value::config_enum;

config_enum! {
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

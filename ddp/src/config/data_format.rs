//! Formats of data files, and the file names that mean them.

use std::path::Path;

use super::value::config_enum;

config_enum! {
    /// Format of data files.
    pub enum DataFormat {
        /// By the file's name.
        Auto = "auto",
        /// Values separated by commas, tabs, semicolons or vertical bars.
        Csv = "csv",
        /// NumPy's file of one array.
        Npy = "npy",
        /// NumPy's archive of arrays.
        Npz = "npz",
        /// Named tensors.
        Safetensors = "safetensors",
        /// Apache Parquet.
        Parquet = "parquet",
        /// Arrow IPC: Feather, and what Polars writes.
        Arrow = "arrow",
        /// One JSON object per line.
        JsonLines = "jsonl",
        /// MNIST's format.
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

/// Returns the format that a file's name means, in any case and without the ending of a compression.
pub fn format_by_name(path: &Path) -> Option<DataFormat> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let name = name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(&name);
    let ending = name.rsplit(['.', '-']).next()?;
    DataFormat::ALL.iter().copied().find(|format| format.endings().contains(&ending))
}

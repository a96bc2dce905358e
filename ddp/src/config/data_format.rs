//! Formats of data files, and the file names that mean them.

use std::path::Path;

use super::value::config_enum;

config_enum! {
    /// Format of data files.
    pub enum DataFormat {
        /// By the file's name.
        Auto = "auto",
        /// Comma-separated values.
        Csv = "csv",
        /// NumPy's file of one array.
        Npy = "npy",
        /// NumPy's archive of arrays.
        Npz = "npz",
        /// Named tensors.
        Safetensors = "safetensors",
        /// Apache Parquet.
        Parquet = "parquet",
        /// MNIST's format.
        Idx = "idx",
    }
}

/// The format that a file's name means, with or without the ending of a compression.
pub(crate) fn format_by_name(path: &Path) -> Option<DataFormat> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let name = name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(&name);
    let ending = name.rsplit(['.', '-']).next()?;
    match ending {
        "csv" => Some(DataFormat::Csv),
        "npy" => Some(DataFormat::Npy),
        "npz" => Some(DataFormat::Npz),
        "safetensors" => Some(DataFormat::Safetensors),
        "parquet" | "pq" => Some(DataFormat::Parquet),
        "idx" | "ubyte" => Some(DataFormat::Idx),
        _ => None,
    }
}

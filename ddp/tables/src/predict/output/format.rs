//! Formats of predictions, and the file names that select them.

use std::path::Path;

use crate::predict::error::{PredictError, Result};
use crate::predict::output::block::OutputColumn;
use crate::predict::output::csv::CsvEncoder;
use crate::predict::output::encoder::Encoder;
use crate::predict::output::jsonl::JsonlEncoder;
use crate::predict::output::npy::NpyEncoder;

/// Formats of predictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputFormat {
    Csv,
    JsonLines,
    Npy,
    Parquet,
}

impl OutputFormat {
    /// File name endings, for messages.
    pub(crate) const ENDINGS: &str = ".csv, .jsonl, .parquet or .npy";

    /// The format that the ending of a file's name selects.
    ///
    /// # Errors
    /// [`PredictError::Output`] for a name with another ending.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let refused = |reason: &str, hint: &str| PredictError::Output {
            out: path.display().to_string(),
            reason: reason.to_owned(),
            hint: format!("end it in {}{hint}", Self::ENDINGS),
        };
        match name.rsplit_once('.').map(|(_, ending)| ending) {
            Some("csv") => Ok(OutputFormat::Csv),
            Some("jsonl" | "ndjson") => Ok(OutputFormat::JsonLines),
            Some("npy") => Ok(OutputFormat::Npy),
            Some("parquet") => Ok(OutputFormat::Parquet),
            Some("gz" | "zst") => Err(refused(
                "predictions are written without compression",
                ": Parquet is compressed in itself, and `-` prints CSV for `gzip` or `zstd`",
            )),
            Some("safetensors") => Err(refused(
                "predictions are not written as safetensors",
                ": numpy.load reads .npy, and safetensors.numpy.save_file writes what it returns",
            )),
            _ => Err(refused(
                "its name does not determine the format of the predictions",
                ", or use `-` for CSV on stdout",
            )),
        }
    }

    /// Whether the format has named columns, so that columns of the input can be kept.
    pub(crate) fn has_columns(self) -> bool {
        self != OutputFormat::Npy
    }

    /// The encoder of a format whose blocks are bytes in a row; `None` for Parquet.
    pub(crate) fn encoder(self, columns: &[OutputColumn]) -> Option<Box<dyn Encoder>> {
        Some(match self {
            OutputFormat::Csv => Box::new(CsvEncoder::new(columns)),
            OutputFormat::JsonLines => Box::new(JsonlEncoder::new(columns)),
            OutputFormat::Npy => Box::new(NpyEncoder::new(columns)),
            OutputFormat::Parquet => return None,
        })
    }
}

//! Formats of predictions, and the file names that select them.

use std::path::Path;

use crate::formats::compression::Compression;
use crate::predict::error::{PredictError, Result};
use crate::predict::output::block::OutputColumn;
use crate::predict::output::csv::CsvEncoder;
use crate::predict::output::encoder::Encoder;
use crate::predict::output::jsonl::JsonlEncoder;
use crate::predict::output::npy::NpyEncoder;
use crate::predict::output::safetensors::SafetensorsEncoder;

/// Formats of predictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputFormat {
    Csv(Compression),
    JsonLines(Compression),
    Npy,
    Safetensors,
    Parquet,
}

impl OutputFormat {
    /// File name endings, for messages.
    pub(crate) const ENDINGS: &str = ".csv, .csv.gz, .jsonl, .parquet, .npy or .safetensors";

    /// The format that the ending of a file's name selects.
    ///
    /// # Errors
    /// [`PredictError::Output`] for a name with another ending.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let compression = Compression::of(path);
        let plain = name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(&name);
        let is_plain = compression == Compression::None;
        match plain.rsplit_once('.').map(|(_, ending)| ending) {
            Some("csv") => Ok(OutputFormat::Csv(compression)),
            Some("jsonl" | "ndjson") => Ok(OutputFormat::JsonLines(compression)),
            Some("npy") if is_plain => Ok(OutputFormat::Npy),
            Some("safetensors") if is_plain => Ok(OutputFormat::Safetensors),
            Some("parquet") if is_plain => Ok(OutputFormat::Parquet),
            _ => Err(PredictError::Output {
                out: path.display().to_string(),
                reason: "its name does not determine the format of the predictions".to_owned(),
                hint: format!("end it in {}, or use `-` for CSV on stdout", Self::ENDINGS),
            }),
        }
    }

    /// Whether the format has named columns, so that columns of the input can be kept.
    pub(crate) fn has_columns(self) -> bool {
        !matches!(self, OutputFormat::Npy | OutputFormat::Safetensors)
    }

    /// The encoder of a format that consists of streams; `None` for Parquet.
    pub(crate) fn encoder(self, columns: &[OutputColumn]) -> Option<Box<dyn Encoder>> {
        Some(match self {
            OutputFormat::Csv(compression) => Box::new(CsvEncoder::new(columns, compression)),
            OutputFormat::JsonLines(compression) => Box::new(JsonlEncoder::new(columns, compression)),
            OutputFormat::Npy => Box::new(NpyEncoder::new(columns)),
            OutputFormat::Safetensors => Box::new(SafetensorsEncoder::new(columns)),
            OutputFormat::Parquet => return None,
        })
    }
}

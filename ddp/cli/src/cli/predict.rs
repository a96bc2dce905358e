//! Arguments of `ddp-train predict` and `ddp-train eval`.

use std::ops::Range;
use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};
use ddp::config::{DataFormat, MissingTarget, UnknownLabel};

use super::local_path;

/// Keys of `--set`, which say how a file of rows for a model is written.
pub(crate) const FILE_KEYS: [&str; 6] = [
    "data.decimal",
    "data.delimiter",
    "data.header",
    "data.missing_values",
    "data.features_key",
    "data.labels_key",
];

/// `ddp-train predict`
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Model and rows may be named by place: `ddp-train predict runs/a new.csv --out predictions.csv`. After `ddp-train sweep --folds 5 --out cv`: \
`ddp-train predict cv new.csv --out predictions.csv`, and `ddp-train predict cv --out-of-fold --out out_of_fold.csv`."
)]
pub struct PredictArgs {
    /// Run folder, checkpoint folder or model.safetensors; may be repeated, or be the folder of a sweep, which stands for the runs of its best
    /// point. Several models predict together: the mean of their probabilities or values
    #[arg(long, value_name = "PATH", required = true, action = ArgAction::Append)]
    pub checkpoint: Vec<PathBuf>,

    /// Rows to predict: a file, folder, glob pattern, builtin:digits, or `-` for CSV on stdin. A column of labels is not needed
    /// and not read
    #[arg(long, value_name = "PATH", required_unless_present_any = ["serve", "out_of_fold"])]
    pub data: Option<String>,

    /// Predict the rows that the models trained on, each by those that did not train on it: the runs of a cross-validation
    #[arg(long, conflicts_with_all = ["data", "format", "rows", "serve"])]
    pub out_of_fold: bool,

    /// File of predictions, in the order of the rows; its end determines the format: .csv, .jsonl, .parquet or .npy.
    /// `-` prints CSV
    #[arg(long, value_name = "FILE", value_parser = local_path(), required_unless_present = "serve")]
    pub out: Option<PathBuf>,

    /// Keep the model in memory, and predict the rows that requests on stdin name, until it ends: a JSON object per line, such as
    /// {"data": "new.parquet", "out": "predictions.npy", "proba": true, "keep": []}, each answered by a line on stdout
    #[arg(long, conflicts_with_all = ["data", "out", "proba", "keep", "rows", "overwrite"])]
    pub serve: bool,

    /// Also write the probability of each class or label
    #[arg(long)]
    pub proba: bool,

    /// Columns of the input to write before the predictions, separated by commas, quoted if a name holds one. From Parquet or Arrow to Parquet they keep their
    /// types, else they are text
    #[arg(long, value_name = "COLUMN,...")]
    pub keep: Vec<String>,

    /// Probability from which a label applies, or the second of two classes is predicted [default: 0.5]
    #[arg(long, value_name = "P", value_parser = probability)]
    pub threshold: Option<f64>,

    /// Rows to predict, counted from 0, such as 0..1000; either end may be left out
    #[arg(long, value_name = "A..B", value_parser = row_range)]
    pub rows: Option<Range<usize>>,

    /// Stop at a column that the model does not know, instead of leaving it out with a note
    #[arg(long)]
    pub strict_columns: bool,

    /// Rows with a value that can't be used: stop with an error, or write them without a prediction
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub bad_rows: BadRows,

    /// Format of the input [default: determined by name or content]
    #[arg(long, value_name = "FORMAT", value_parser = data_format)]
    pub format: Option<DataFormat>,

    /// Set how these rows are read, where that differs from the training rows: data.decimal, data.delimiter, data.header, data.missing_values,
    /// data.features_key or data.labels_key, such as data.decimal=,; may be repeated
    #[arg(long, value_name = "data.KEY=VALUE", action = ArgAction::Append, conflicts_with = "out_of_fold")]
    pub set: Vec<String>,

    /// Replace an existing file
    #[arg(long)]
    pub overwrite: bool,

    /// Device to compute on: auto, cpu, cuda (one GPU per rank) or cuda:N
    #[arg(long, default_value = "auto", value_parser = super::device)]
    pub device: String,

    /// Let several ranks share a GPU; slow, for tests only
    #[arg(long)]
    pub share_gpu: bool,

    /// Do without all features of GPUs that docs/gpus.md lists; slower
    #[arg(long, conflicts_with = "bind")]
    pub safe: bool,

    /// Check of the GPU.
    #[command(flatten)]
    pub check: super::StartCheckArgs,

    /// Bind each rank to the CPUs near its GPU (auto), unless the launcher has bound it, or bind nothing (none)
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    pub bind: super::Bind,

    /// Threads per rank [default: the cores that it may run on, divided by the ranks that share them]
    #[arg(long, value_name = "N", value_parser = super::count)]
    pub threads: Option<usize>,
}

/// `ddp-train eval`
#[derive(Debug, Clone, Args)]
#[command(after_help = "Model and rows may be named by place: `ddp-train eval runs/a test.csv`.")]
pub struct EvalArgs {
    /// Run folder, checkpoint folder or model.safetensors
    #[arg(long, value_name = "PATH")]
    pub checkpoint: PathBuf,

    /// Rows to evaluate on: a file, folder, glob pattern or builtin:digits [default: the evaluation data of the run]
    #[arg(long, value_name = "PATH")]
    pub data: Option<String>,

    /// Labels of those rows, if they are in a separate file (npy, IDX)
    #[arg(long, value_name = "PATH")]
    pub labels: Option<String>,

    /// Set how the rows of --data are read, where that differs from the training rows: data.decimal, data.delimiter, data.header, data.missing_values,
    /// data.features_key or data.labels_key, such as data.decimal=,; may be repeated
    #[arg(long, value_name = "data.KEY=VALUE", action = ArgAction::Append, requires = "data")]
    pub set: Vec<String>,

    /// Rows whose label did not occur in training: stop with an error, or leave them out and count them [default: as in training]
    #[arg(long, value_name = "WHAT", value_parser = super::unknown_label)]
    pub unknown_label: Option<UnknownLabel>,

    /// Stop at a column that the model does not know, instead of leaving it out with a note (data.extra_columns = "error")
    #[arg(long)]
    pub strict_columns: bool,

    /// Rows of a table without a target: stop with an error, or leave them out and count them [default: as in training]
    #[arg(long, value_name = "WHAT", value_parser = super::missing_target)]
    pub missing_target: Option<MissingTarget>,

    /// Metrics to measure, such as accuracy,roc_auc,confusion_matrix; `all` for all of docs/metrics.md, `default` for the
    /// task's four [default: those of the run]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub metrics: Vec<String>,

    /// Measure how much the model relies on each column: how much worse the metric gets when the column's values are permuted over
    /// the rows. Takes one evaluation per column and repeat. The metric is that of --metrics (one name, or HEAD.NAME), by default the
    /// one that the run judged by, or accuracy or R² where that is the loss
    #[arg(long)]
    pub importance: bool,

    /// With --importance: permutations of each column
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = super::count, requires = "importance")]
    pub repeats: usize,

    /// With --importance: seed of the permutations
    #[arg(long, value_name = "N", default_value_t = 0, requires = "importance")]
    pub seed: u64,

    /// Fit the probabilities of a classifier to these rows, which it must not have been trained on, and save the model with them: its
    /// outputs are divided by a temperature. Reports log loss and calibration error (ECE) before and after
    #[arg(long, conflicts_with_all = ["importance", "metrics"])]
    pub calibrate: bool,

    /// Device to compute on: auto, cpu, cuda (one GPU per rank) or cuda:N
    #[arg(long, default_value = "auto", value_parser = super::device)]
    pub device: String,

    /// Let several ranks share a GPU; slow, for tests only
    #[arg(long)]
    pub share_gpu: bool,

    /// Do without all features of GPUs that docs/gpus.md lists; slower
    #[arg(long)]
    pub safe: bool,

    /// Check of the GPU.
    #[command(flatten)]
    pub check: super::StartCheckArgs,

    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Treatment of rows with values that can't be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum BadRows {
    /// Stop with an error.
    #[default]
    Error,
    /// Write them without a prediction.
    Null,
}

fn data_format(text: &str) -> Result<DataFormat, String> {
    let found = DataFormat::ALL.iter().find(|format| format.name() == text).copied();
    let names = || DataFormat::ALL.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| format!("expected one of {}", names()))
}

fn probability(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=1.0).contains(&number) => Ok(number),
        _ => Err("expected a number from 0 to 1\nhint: for example 0.3".to_owned()),
    }
}

pub(super) fn row_range(text: &str) -> Result<Range<usize>, String> {
    let wrong = || {
        "expected two numbers of rows, the first below the second\nhint: 0..1000 are the first thousand rows"
            .to_owned()
    };
    let (start, end) = text.split_once("..").ok_or_else(wrong)?;
    let number = |text: &str, default: usize| match text.trim() {
        "" => Ok(default),
        text => text.parse::<usize>().map_err(|_| wrong()),
    };
    let range = number(start, 0)?..number(end, usize::MAX)?;
    if range.is_empty() { Err(wrong()) } else { Ok(range) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_rows() {
        assert_eq!(row_range("3..10"), Ok(3..10));
        assert_eq!(row_range(".."), Ok(0..usize::MAX));
        assert_eq!(row_range("5.."), Ok(5..usize::MAX));
        for wrong in ["", "3", "10..3", "3..3", "a..b", "-1..2"] {
            assert!(row_range(wrong).is_err(), "{wrong}");
        }
    }
}

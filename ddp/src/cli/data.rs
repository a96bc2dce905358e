//! Arguments of `ddp-train data`.

use clap::builder::PossibleValuesParser;
use clap::{ArgAction, Args, Subcommand, ValueEnum};

use super::count;
use crate::config::DataFormat;
use crate::data::formats;
use crate::report::progress::ProgressChoice;

/// `ddp-train data`
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Describe data files and warn of problems for training
    Inspect(InspectArgs),
    /// Convert rows from any format to any other, in little memory
    Convert(Box<ConvertArgs>),
}

/// `ddp-train data inspect`
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Reads all rows once. The output ends with the section of a config that trains on them."
)]
pub struct InspectArgs {
    /// A file, a folder, a pattern or builtin:digits
    #[arg(value_name = "PATH")]
    pub path: String,

    /// Column to predict; may be repeated [default: label, if there is one]
    #[arg(long, value_name = "COLUMN", action = ArgAction::Append)]
    pub target: Vec<String>,

    /// Labels, if they are in a file of their own (npy, IDX)
    #[arg(long, value_name = "PATH")]
    pub labels: Option<String>,

    /// Format of the files; `None` to determine it.
    #[arg(long, value_name = "FORMAT", value_parser = format, help = format_help())]
    pub format: Option<DataFormat>,

    /// Show all columns of wide data, not only the first ten
    #[arg(long)]
    pub all: bool,

    /// Write what is found as one JSON object to stdout
    #[arg(long)]
    pub json: bool,
}

/// `ddp-train data convert`
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Formats by ending: .csv .csv.gz .csv.zst .npy .npz .safetensors .parquet; .npy gets its labels and \
                  weights beside it, in NAME.labels.npy and NAME.weights.npy.\n\
                  For example: `ddp-train data convert rows.csv rows.safetensors --target price --task regression`."
)]
pub struct ConvertArgs {
    /// Rows to read: a file, a folder, a pattern or builtin:digits
    #[arg(value_name = "IN")]
    pub input: String,

    /// File to write, in the format of its ending; or a folder, with --to
    #[arg(value_name = "OUT")]
    pub out: String,

    /// Column of a table that is the target, `data.target`; may be repeated [default: label]
    #[arg(long, value_name = "COL", action = ArgAction::Append)]
    pub target: Vec<String>,

    /// Type of the targets, `data.task`
    #[arg(long, value_name = "TASK", value_parser = ["classification", "regression", "multilabel"])]
    pub task: Option<String>,

    /// Labels of the rows, if they are in a file of their own (npy, IDX)
    #[arg(long, value_name = "PATH")]
    pub labels: Option<String>,

    /// Column to leave out, `data.drop`; may be repeated
    #[arg(long, value_name = "COL", action = ArgAction::Append)]
    pub drop: Vec<String>,

    /// Column, array or npy file with the weights of rows, `data.weight`
    #[arg(long, value_name = "COL")]
    pub weight: Option<String>,

    /// Column of categories rather than quantities, `data.categorical`; may be repeated
    #[arg(long, value_name = "COL", action = ArgAction::Append)]
    pub categorical: Vec<String>,

    /// Format of IN [default: by its name]
    #[arg(long, value_name = "FORMAT", value_parser = PossibleValuesParser::new(formats::names()))]
    pub format: Option<String>,

    /// Keep missing values, as NaN or an empty cell, instead of refusing them
    #[arg(long)]
    pub keep_missing: bool,

    /// Set another key of the config's `data`, such as `data.features_key=x`; may be repeated
    #[arg(long, value_name = "data.KEY=VALUE", action = ArgAction::Append)]
    pub set: Vec<String>,

    /// Format of the files in the folder OUT
    #[arg(long, value_name = "FORMAT", value_parser = PossibleValuesParser::new(formats::written_endings()))]
    pub to: Option<String>,

    /// Number format of the features [default: that of IN, f32 for tables and CSV]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub dtype: Option<ConvertDtype>,

    /// Begin a new file after this many rows
    #[arg(long, value_name = "N", value_parser = count, conflicts_with = "mib_per_file")]
    pub rows_per_file: Option<usize>,

    /// Begin a new file after this many MiB of rows, before any compression
    #[arg(long, value_name = "N", value_parser = count)]
    pub mib_per_file: Option<usize>,

    /// Replace existing files
    #[arg(long)]
    pub overwrite: bool,

    /// Progress on stderr; auto is a bar on a terminal and plain lines elsewhere
    #[arg(long, value_enum, default_value_t)]
    pub progress: ProgressChoice,
}

/// Number format of features in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ConvertDtype {
    /// Single precision.
    F32,
    /// IEEE half precision, up to 65504.
    F16,
    /// The upper half of f32.
    Bf16,
    /// Whole numbers of 0 to 255.
    U8,
}

fn format_help() -> String {
    format!(
        "Format of the files: {} [default: by their names]",
        formats::listed(formats::names().into_iter())
    )
}

fn format(text: &str) -> Result<DataFormat, String> {
    let known = DataFormat::ALL.iter().find(|format| format.name() == text);
    known.copied().ok_or_else(|| {
        let names: Vec<_> = DataFormat::ALL.iter().map(|format| format.name()).collect();
        format!("expected one of {}\nhint: for example csv", names.join(", "))
    })
}

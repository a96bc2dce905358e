//! Arguments of `ddp-train data`.

use std::ops::Range;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{ArgAction, Args, Subcommand, ValueEnum};
use ddp::config::DataFormat;
use ddp_tables::formats;

use super::count;
use super::predict::row_range;
use crate::report::progress::ProgressChoice;

/// `ddp-train data`
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Describe data files and warn of problems for training
    Inspect(InspectArgs),
    /// Print rows by their numbers, as reports of training name them
    Show(ShowArgs),
    /// Convert rows of any format to Parquet, in bounded memory
    Convert(Box<ConvertArgs>),
    /// List or remove the tables that `data.cache` keeps
    #[command(subcommand)]
    Cache(CacheCommand),
}

/// `ddp-train data cache`
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// List the tables of a folder, the oldest first
    Ls(CacheArgs),
    /// Remove the tables of a folder; runs that use one keep it until they end
    Clear(CacheArgs),
}

/// `ddp-train data cache ls` and `clear`
#[derive(Debug, Clone, Args)]
pub struct CacheArgs {
    /// Folder that `data.cache` names
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// Print a JSON object per table
    #[arg(long)]
    pub json: bool,
}

/// `ddp-train data inspect`
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Reads all rows once. The output ends with the section of a config that trains on them; --write-config saves it."
)]
pub struct InspectArgs {
    /// File, folder, glob pattern or builtin:digits
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

    /// Delimiter of text files, as `data.delimiter`: a comma, a semicolon, `|`, `tab` or `whitespace` [default: found in the first rows]
    #[arg(long, value_name = "CHARACTER", value_parser = PossibleValuesParser::new([",", ";", "|", "tab", "whitespace"]))]
    pub delimiter: Option<String>,

    /// The first line of text files is a row, not the names of the columns: `data.header = false`
    #[arg(long)]
    pub no_header: bool,

    /// Mark before the fraction of numbers in text files, as `data.decimal`: a point or a comma [default: found in the first rows]
    #[arg(long, value_name = "MARK", value_parser = PossibleValuesParser::new([".", ","]))]
    pub decimal: Option<String>,

    /// Text that marks a missing value, as `data.missing_values`; may be repeated
    #[arg(long, value_name = "TEXT", action = ArgAction::Append, allow_hyphen_values = true)]
    pub missing_value: Vec<String>,

    /// Columns to leave out, separated by commas, quoted if a name holds one; may be repeated (data.drop)
    #[arg(long, value_name = "COLUMN", action = ArgAction::Append)]
    pub drop: Vec<String>,

    /// Set another `data` key of the config, such as `data.features_key=x`; may be repeated
    #[arg(long, value_name = "data.KEY=VALUE", action = ArgAction::Append)]
    pub set: Vec<String>,

    /// Save the suggested config as this file
    #[arg(long, value_name = "PATH")]
    pub write_config: Option<PathBuf>,

    /// Replace the file of --write-config
    #[arg(long, requires = "write_config")]
    pub overwrite: bool,

    /// Show all columns, not only the first ten
    #[arg(long)]
    pub all: bool,

    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `ddp-train data show`
#[derive(Debug, Clone, Args)]
#[command(after_help = "Rows are counted from 0 over all files in their order; header lines do not count.\n\
                  For example: `ddp-train data show rows.csv --rows 3,17,100..120`.")]
pub struct ShowArgs {
    /// File, folder, glob pattern or builtin:digits
    #[arg(value_name = "PATH")]
    pub path: String,

    /// Rows to print: numbers and ranges such as 100..120, which ends before row 120, separated by commas
    #[arg(long, value_name = "ROWS", required = true, value_delimiter = ',', value_parser = row_or_range)]
    pub rows: Vec<Range<usize>>,

    /// Labels, if they are in a file of their own (npy, IDX)
    #[arg(long, value_name = "PATH")]
    pub labels: Option<String>,

    /// Format of the files; `None` to determine it.
    #[arg(long, value_name = "FORMAT", value_parser = format, help = format_help())]
    pub format: Option<DataFormat>,

    /// Set another `data` key of the config, such as `data.features_key=x`; may be repeated
    #[arg(long, value_name = "data.KEY=VALUE", action = ArgAction::Append)]
    pub set: Vec<String>,

    /// Print one JSON object per row
    #[arg(long)]
    pub json: bool,
}

/// `ddp-train data convert`
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Types stay, and missing values become null. Rows for evaluation next to training rows go to NAME.eval.parquet. polars and \
                  DuckDB convert Parquet to other formats.\n\
                  For example: `ddp-train data convert 'part-*.csv.gz' rows.parquet`."
)]
pub struct ConvertArgs {
    /// Input rows: file, folder, glob pattern or builtin:digits
    #[arg(value_name = "IN")]
    pub input: String,

    /// Output file, NAME.parquet; or a folder of parts, an existing one or FOLDER/
    #[arg(value_name = "OUT")]
    pub out: String,

    /// Target column, as `data.target`; may be repeated [default: label; tables need none]
    #[arg(long, value_name = "COL", action = ArgAction::Append)]
    pub target: Vec<String>,

    /// Type of the targets, `data.task`
    #[arg(long, value_name = "TASK", value_parser = ["classification", "regression", "multilabel"])]
    pub task: Option<String>,

    /// Labels of the rows, if they are in a file of their own (npy, IDX)
    #[arg(long, value_name = "PATH")]
    pub labels: Option<String>,

    /// Columns to drop, separated by commas, quoted if a name holds one, as `data.drop`; may be repeated
    #[arg(long, value_name = "COL", action = ArgAction::Append)]
    pub drop: Vec<String>,

    /// Column, array or npy file with row weights, as `data.weight`
    #[arg(long, value_name = "COL")]
    pub weight: Option<String>,

    /// Column of categories rather than quantities, `data.categorical`; may be repeated
    #[arg(long, value_name = "COL", action = ArgAction::Append)]
    pub categorical: Vec<String>,

    /// Format of IN [default: by its name]
    #[arg(long, value_name = "FORMAT", value_parser = PossibleValuesParser::new(formats::names()))]
    pub format: Option<String>,

    /// Set another `data` key of the config, such as `data.features_key=x`; may be repeated
    #[arg(long, value_name = "data.KEY=VALUE", action = ArgAction::Append)]
    pub set: Vec<String>,

    /// Convert only the rows for training or those for evaluation, where IN holds both [default: both]
    #[arg(long, value_enum, value_name = "SUBSET", aliases = ["split", "part"])]
    pub subset: Option<ConvertSubset>,

    /// Start a new file after this many rows
    #[arg(long, value_name = "N", value_parser = count, conflicts_with = "mib_per_file")]
    pub rows_per_file: Option<usize>,

    /// Start a new file after this many MiB of rows, before compression
    #[arg(long, value_name = "N", value_parser = count)]
    pub mib_per_file: Option<usize>,

    /// Replace existing files
    #[arg(long)]
    pub overwrite: bool,

    /// Progress on stderr; auto shows a bar on a terminal and plain lines elsewhere
    #[arg(long, value_enum, default_value_t)]
    pub progress: ProgressChoice,
}

/// Rows to convert, of files that hold both kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ConvertSubset {
    /// Rows to train on.
    Train,
    /// Rows to evaluate on.
    Eval,
}

fn row_or_range(text: &str) -> Result<Range<usize>, String> {
    match text.trim().parse::<usize>() {
        Ok(row) if row < usize::MAX => Ok(row..row + 1),
        _ => row_range(text).map_err(|_| {
            "expected row numbers and ranges\nhint: 3,17,100..120 are rows 3, 17 and 100 to 119".to_owned()
        }),
    }
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

//! Arguments that select a run: a config or a table, `--set`, and flags that are short forms of common keys.

use std::path::{Path, PathBuf};

use clap::builder::{EnumValueParser, TypedValueParser, ValueParser};
use clap::{ArgAction, Args, ValueEnum};
use ddp::config::{CommDtype, DataFormat, Overrides, ShortForm, find_key, format_by_name, is_section};
use ddp::storage::user_file::read_regular;
use ddp::train::trainer::GraphMode;
use ddp_tables::formats;
use ddp_tables::formats::foreign;
use ddp_tables::open::builtin::NAMES as BUILTIN_NAMES;
use ddp_tables::open::remote;
use toml::Value;

use crate::cli::column_names::column_names;

/// Config of a run, as typed.
#[derive(Debug, Clone, Default, Args)]
pub struct RunConfigArgs {
    /// TOML config of the run, or its training rows: a table (csv, parquet, npy, ...), a folder or a pattern of files [default:
    /// train on builtin:digits]
    #[arg(value_name = "RUN.toml|TABLE")]
    pub run: Option<PathBuf>,

    /// Override one key of the config; may be repeated. For example
    /// `--set optimizer.lr=0.01 --set model.hidden=[64,32]`; the key may also be the flag: `--optimizer.lr=0.01`, or `--seed 3` where one
    /// section has it
    #[arg(long, value_name = "SECTION.KEY=VALUE", action = ArgAction::Append)]
    pub set: Vec<String>,

    /// For a table without a config: leave the settings at their defaults, instead of those that `data inspect` writes for its rows
    #[arg(long)]
    pub plain: bool,

    /// Short forms of `--set`.
    #[command(flatten)]
    pub short: ShortFlags,
}

/// Heading of the flags in the help.
const SHORT_FLAGS: &str = "Short for keys of the config, which they override";

/// Flags that are short for keys; the config checks their values.
#[derive(Debug, Clone, Default, Args)]
pub struct ShortFlags {
    /// Training rows: a file, folder, glob pattern or builtin:digits (data.train)
    #[arg(long, help_heading = SHORT_FLAGS, value_name = "PATH")]
    pub data: Option<String>,

    /// Rows to evaluate on (data.eval)
    #[arg(long, help_heading = SHORT_FLAGS, value_name = "PATH")]
    pub eval: Option<String>,

    /// Fraction of the training rows to evaluate on instead (data.eval_fraction)
    #[arg(long, help_heading = SHORT_FLAGS, value_name = "FRACTION", allow_hyphen_values = true)]
    pub eval_fraction: Option<String>,

    /// Column of the target; may be repeated for several (data.target)
    #[arg(long, help_heading = SHORT_FLAGS, value_name = "COLUMN", action = ArgAction::Append)]
    pub target: Vec<String>,

    /// File of the labels of arrays, such as y.npy (data.labels)
    #[arg(long, help_heading = SHORT_FLAGS, value_name = "PATH")]
    pub labels: Option<String>,

    /// Columns to leave out, separated by commas, quoted if a name holds one; may be repeated (data.drop)
    #[arg(long, help_heading = SHORT_FLAGS, value_name = "COLUMN", action = ArgAction::Append)]
    pub drop: Vec<String>,

    /// Columns of categories, separated by commas, quoted if a name holds one; may be repeated (data.categorical)
    #[arg(long, help_heading = SHORT_FLAGS, value_name = "COLUMN", action = ArgAction::Append)]
    pub categorical: Vec<String>,

    /// Kind of the targets (data.task)
    #[arg(long, help_heading = SHORT_FLAGS, value_name = "TASK")]
    pub task: Option<String>,

    /// Widths of the hidden layers (model.hidden)
    #[arg(long, help_heading = SHORT_FLAGS, value_name = "N,N,...")]
    pub hidden: Option<String>,

    /// Passes over the training rows (train.epochs)
    #[arg(long, help_heading = SHORT_FLAGS, value_name = "N", allow_hyphen_values = true)]
    pub epochs: Option<String>,

    /// Learning rate (optimizer.lr)
    #[arg(long, help_heading = SHORT_FLAGS, value_name = "RATE", allow_hyphen_values = true)]
    pub lr: Option<String>,

    /// Rows per rank and micro-batch (train.batch_size)
    #[arg(long, help_heading = SHORT_FLAGS, value_name = "N", allow_hyphen_values = true)]
    pub batch_size: Option<String>,

    /// Rows per step over all ranks (train.global_batch_size)
    #[arg(long, help_heading = SHORT_FLAGS, value_name = "N", allow_hyphen_values = true)]
    pub global_batch_size: Option<String>,
}

impl RunConfigArgs {
    /// The config file; `None` if the run is given by its data, or not at all.
    pub fn file(&self) -> Option<&Path> {
        self.run.as_deref().filter(|path| !is_rows(path))
    }

    /// Whether the run is given by the files of its rows.
    pub fn names_rows(&self) -> bool {
        let run = self.run.as_deref().filter(|run| is_rows(run)).map(Path::to_string_lossy);
        let named = self.short.data.as_deref().or(run.as_deref());
        self.file().is_none() && named.is_some_and(|named| !named.starts_with("builtin:"))
    }

    /// Values that override the config file.
    pub fn overrides(&self) -> Overrides {
        let table = self.run.as_ref().filter(|path| is_rows(path)).map(|path| path.display().to_string());
        let mut shorts: Vec<_> = table
            .map(|path| short("data.train", "", path.clone(), Value::String(path)))
            .into_iter()
            .collect();
        let ShortFlags {
            data,
            eval,
            eval_fraction,
            target,
            labels,
            drop,
            categorical,
            task,
            hidden,
            epochs,
            lr,
            batch_size,
            global_batch_size,
        } = self.short.clone();
        let texts = [
            ("data.train", "--data", data),
            ("data.eval", "--eval", eval),
            ("data.labels", "--labels", labels),
            ("data.task", "--task", task),
        ];
        for (key, flag, text) in texts {
            shorts.extend(text.map(|text| short(key, flag, text.clone(), Value::String(text))));
        }
        let numbers = [
            ("data.eval_fraction", "--eval-fraction", eval_fraction),
            ("train.epochs", "--epochs", epochs),
            ("optimizer.lr", "--lr", lr),
            ("train.batch_size", "--batch-size", batch_size),
            ("train.global_batch_size", "--global-batch-size", global_batch_size),
        ];
        for (key, flag, text) in numbers {
            shorts.extend(text.map(|text| short(key, flag, text.clone(), number(&text))));
        }
        shorts.extend(hidden.map(|text| short("model.hidden", "--hidden", text.clone(), list(&text))));
        let columns = [
            ("data.target", "--target", target),
            ("data.drop", "--drop", column_names(&drop)),
            ("data.categorical", "--categorical", column_names(&categorical)),
        ];
        for (key, flag, names) in columns {
            let value = match names.as_slice() {
                [] => continue,
                [one] => Value::String(one.clone()),
                several => Value::from(several.to_vec()),
            };
            shorts.push(short(key, flag, names.join(&format!(" {flag} ")), value));
        }
        Overrides { sets: self.set.clone(), shorts, folder: None }
    }

    /// Arguments of `train` for this run with `sets`, key by value, which take the place of values given for the same keys.
    pub fn words_with(&self, sets: &[(&str, String)]) -> Vec<String> {
        let keys: Vec<&str> = sets.iter().map(|(key, _)| *key).collect();
        let Overrides { sets: typed, shorts, .. } = self.overrides().without(&keys);
        let shorts = shorts.into_iter().filter(|short| short.key != "data.train");
        let shorts = shorts.map(|short| format!("{}={}", short.key, short.value));
        // The key `data.train` would make a run without settings for its rows.
        let rows = self.short.data.iter().flat_map(|rows| ["--data".to_owned(), rows.clone()]);
        let new = sets.iter().map(|(key, value)| format!("{key}={value}"));
        let run = self.run.iter().map(|run| run.display().to_string());
        let plain = self.plain.then(|| "--plain".to_owned());
        run.chain(rows)
            .chain(plain)
            .chain(typed.into_iter().chain(shorts).chain(new).flat_map(|set| ["--set".to_owned(), set]))
            .collect()
    }
}

fn short(key: &'static str, flag: &'static str, raw: String, value: Value) -> ShortForm {
    ShortForm { key, flag, raw, value }
}

/// Parses a number; if the text is not a number, keeps it as a string, which the config refuses.
fn number(text: &str) -> Value {
    let parsed = text.parse().map(Value::Integer).or_else(|_| text.parse().map(Value::Float));
    parsed.unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Parses a list of integers; if the text is not such a list, keeps it as a string.
fn list(text: &str) -> Value {
    let items = text.trim().trim_start_matches('[').trim_end_matches(']').split(',').map(str::trim);
    let numbers: Result<Vec<i64>, _> = items.filter(|item| !item.is_empty()).map(str::parse).collect();
    numbers.map_or_else(|_| Value::String(text.to_owned()), Value::from)
}

/// Whether a path refers to data rather than a config: by its name, or because it is a folder.
pub(super) fn is_rows(path: &Path) -> bool {
    if holds_json_config(path) {
        return false;
    }
    names_data(path)
        || path.is_dir()
        || path.to_str().is_some_and(|name| BUILTIN_NAMES.contains(&name) && !path.exists())
        || holds_rows(path)
}

/// Whether a file holds keys of a config as JSON, which is then refused as a config rather than read as rows.
fn holds_json_config(path: &Path) -> bool {
    const MAX_BYTES: u64 = 1 << 16;
    let is_json = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json"));
    if !is_json || !path.metadata().is_ok_and(|data| data.is_file() && data.len() <= MAX_BYTES) {
        return false;
    }
    let parsed = read_regular(path, MAX_BYTES)
        .ok()
        .and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
    let is_key = |(name, value): (&String, &serde_json::Value)| {
        name.contains('.') && find_key(name).is_some() || value.as_object().is_some_and(|_| is_section(name))
    };
    parsed.as_ref().and_then(|value| value.as_object()).is_some_and(|keys| keys.iter().any(is_key))
}

/// Whether a word between flags refers to a config or data. Only its name counts, because it may be the value of any flag.
pub(super) fn names_run(word: &Path) -> bool {
    let is_config = word.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml"));
    is_config || names_data(word)
}

/// Whether the file name has an ending of a data format.
fn names_data(path: &Path) -> bool {
    format_by_name(path).is_some()
        || foreign::by_name(path).is_some()
        || path.to_str().is_some_and(|name| name.starts_with("builtin:") || names_objects(name))
}

/// Whether the name is an address of objects, other than a config.
fn names_objects(name: &str) -> bool {
    remote::is_address(name) && !name.ends_with(".toml")
}

/// Whether a file without a config's name contains rows. It does if it has bytes that no config has (such as a workbook's),
/// starts like another known format (which is then named in the message), or if its first line is a line of cells.
fn holds_rows(path: &Path) -> bool {
    let Ok(begin) = read_regular(path, 4096) else { return false };
    if begin.contains(&0) {
        return true;
    }
    let is_config = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml"));
    let text = String::from_utf8_lossy(&begin);
    let first = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let has_cells =
        !first.starts_with(['#', '[']) && !first.contains('=') && first.contains([',', '\t', ';', '|']);
    let is_known = || foreign::find(&begin).is_some() || formats::by_signature(&begin).id != DataFormat::Csv;
    !is_config && (has_cells || is_known())
}

/// Whether a word in place of a subcommand refers to a run: data, or a path that exists or has an ending, because no subcommand
/// has one.
pub(super) fn is_run(word: &Path) -> bool {
    word.exists() || is_rows(word) || word.extension().is_some()
}

/// Values of `--cuda-graph`.
#[derive(Clone, Copy, ValueEnum)]
enum Graph {
    /// Replay a captured graph where driver and NCCL allow it; else launch kernel by kernel.
    Auto,
    /// Like `auto`, but a failed capture ends the run with its error; an error on the CPU.
    On,
    /// Launch kernel by kernel.
    Off,
}

/// Values of `--comm-dtype`.
#[derive(Clone, Copy, ValueEnum)]
enum Gradients {
    /// Single precision.
    F32,
    /// Rounded to bf16: half the bytes, 8 bits of precision.
    Bf16,
}

/// Parses `--cuda-graph`.
pub(super) fn graph_mode() -> ValueParser {
    let mode = |graph| match graph {
        Graph::Auto => GraphMode::Auto,
        Graph::On => GraphMode::On,
        Graph::Off => GraphMode::Off,
    };
    EnumValueParser::<Graph>::new().map(mode).into()
}

/// The value of `--cuda-graph` that is parsed as `mode`.
pub fn graph_mode_name(mode: GraphMode) -> &'static str {
    match mode {
        GraphMode::Auto => "auto",
        GraphMode::On => "on",
        GraphMode::Off => "off",
    }
}

/// Parses `--comm-dtype`.
pub(super) fn comm_dtype() -> ValueParser {
    let dtype = |gradients| match gradients {
        Gradients::F32 => CommDtype::F32,
        Gradients::Bf16 => CommDtype::Bf16,
    };
    EnumValueParser::<Gradients>::new().map(dtype).into()
}

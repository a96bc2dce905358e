//! `ddp-train data convert`: converts rows from any format to any other, in chunks.
//!
//! [`source`] reads rows with their types, [`target`] names the files, and the writer of the format writes them under temporary
//! names ([`Staging`]). The files are renamed once all of them are on disk. Tables are converted to text tables cell by cell
//! ([`text_copy`]).

mod input;
mod array_source;
mod meter;
mod output;
mod table_source;
mod source;
mod target;
mod text_copy;
#[cfg(feature = "parquet")]
#[cfg(test)]
mod batch_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod typed_tests;

use std::path::{Path, PathBuf};

use ddp::config::{Config, DataFormat, Task};
use ddp::data::DataError;
use ddp_tables::formats::Reader;
use ddp_tables::formats::arrays::reader::SplitSide;
use ddp_tables::formats::error::RowsError;
use ddp_tables::formats::table::types::Destination;
use ddp_tables::formats::write::{ArrayFiles, ArrayLayout, Staging, TextFile, Writer};
use ddp_tables::open::files::{files_and_format, files_of};
use ddp_tables::source::SourceSpec;
use ddp_tables::split::own_eval::holds_eval_rows;
use ddp_tables::table::CellReader;
use ddp_tables::values::element::RawType;

use self::meter::Meter;
use self::output::Output;
use self::source::Source;
use self::target::Target;
use self::text_copy::TextCopy;
use crate::cli::{ConvertArgs, ConvertDtype, ConvertSubset};
use crate::commands::data::convert::input::Input;
use crate::error::Result;
use crate::report::log::Log;
use crate::report::stdout::print_result;

/// Converts rows and prints a summary on stdout.
///
/// # Errors
/// Errors in the arguments, the rows or the output path; no new files remain then.
pub(super) fn convert(log: &Log, args: &ConvertArgs) -> Result<()> {
    let summary = run(args, Meter::new(args.progress, log.terminal()))?;
    Ok(print_result(&format!("{summary}\n"))?)
}

/// Counts of a conversion.
#[derive(Debug, Default)]
struct Outcome {
    n_rows: usize,
    n_files: usize,
    /// Number of values that are rounded to their new type.
    n_rounded: u64,
    /// The type that they are rounded to.
    rounded_to: &'static str,
    /// Type of the features in arrays and the reason for it, unless the user chose it.
    feature_type: Option<String>,
}

/// Converts rows and returns the summary.
fn run(args: &ConvertArgs, mut meter: Meter) -> Result<String> {
    let target = Target::new(args)?;
    let mut config = Config::load(None, &sets(args))?;
    let is_array = matches!(target.writer.writer, Writer::Arrays(..));
    if !is_array && is_default_target(args) && !has_target(&config)? {
        // Tables need no target.
        config.data.target.clear();
    }
    // Types are kept, regardless of the task that the values would determine.
    if config.data.auto_task && config.data.target.len() > 1 {
        config.data.task = Task::Regression;
    }
    let sides = sides(args, &config)?;
    let targets: Vec<Target> = sides.iter().map(|side| target.for_side(*side, sides.len())).collect();
    let inputs = inputs(args, &config);
    let mut old = Vec::new();
    for target in &targets {
        old.extend(target.existing(args.overwrite, &inputs)?);
    }
    let mut staging = Staging::new(&target.folder());
    let mut outcomes = Vec::new();
    for (side, target) in sides.iter().zip(&targets) {
        outcomes.push(convert_rows(args, &config, *side, target, &mut staging, &mut meter)?);
    }
    let n_bytes = staging.commit(&old)?;
    let total = |count: fn(&Outcome) -> usize| outcomes.iter().map(count).sum();
    let mut summary = meter.end(total(|of| of.n_rows), total(|of| of.n_files), n_bytes);
    if sides.len() > 1 {
        for (target, (outcome, name)) in targets.iter().zip(outcomes.iter().zip(["train", "eval"])) {
            summary += &format!("\n{name}: {} rows in `{}`", outcome.n_rows, target.shown());
        }
    }
    if let Some(feature_type) = outcomes.iter().find_map(|outcome| outcome.feature_type.as_ref()) {
        summary += &format!("\nfeatures are {feature_type}");
    }
    for outcome in outcomes.iter().filter(|outcome| outcome.n_rounded > 0) {
        let (n, to) = (outcome.n_rounded, outcome.rounded_to);
        let values = if n == 1 { "1 value was" } else { &format!("{n} values were") };
        summary += &format!("\n{values} rounded to {to}");
    }
    Ok(summary)
}

/// Whether the user did not name a target.
fn is_default_target(args: &ConvertArgs) -> bool {
    args.target.is_empty() && !args.set.iter().any(|set| set.trim_start().starts_with("data.target"))
}

/// Whether the first file of a table has the target column; other formats always have one.
fn has_target(config: &Config) -> Result<bool> {
    let spec = SourceSpec::train(&config.data);
    if spec.source.starts_with("builtin:") {
        return Ok(true);
    }
    let (files, format) = files_and_format(&spec)?;
    let Reader::Table(format) = &format.reader else { return Ok(true) };
    // A pipe can be opened only once.
    if !files[0].metadata().is_ok_and(|data| data.is_file()) {
        return Ok(true);
    }
    let reader = CellReader::open(&files[0], format, &spec)?;
    Ok(config.data.target.iter().all(|target| reader.columns().names.contains(target)))
}

/// The rows selected by `--subset`; by default both kinds, if the files contain training and test rows.
fn sides(args: &ConvertArgs, config: &Config) -> Result<Vec<SplitSide>> {
    let is_builtin = config.data.train.starts_with("builtin:");
    let has_eval = is_builtin || holds_eval_rows(&config.data, args.labels.as_deref())?;
    match args.subset {
        Some(ConvertSubset::Train) => Ok(vec![SplitSide::Train]),
        Some(ConvertSubset::Eval) if has_eval => Ok(vec![SplitSide::Test]),
        Some(ConvertSubset::Eval) => Err(DataError::from(RowsError::OutFormat {
            out: args.out.clone(),
            reason: format!("`{}` holds no rows for evaluation next to its training rows", args.input),
            hint: "remove --subset, or name the file of those rows".to_owned(),
        })
        .into()),
        None if has_eval && !is_builtin => Ok(vec![SplitSide::Train, SplitSide::Test]),
        None => Ok(vec![SplitSide::Train]),
    }
}

/// Converts the rows of one kind to the files of `target`.
fn convert_rows(
    args: &ConvertArgs,
    config: &Config,
    side: SplitSide,
    target: &Target,
    staging: &mut Staging,
    meter: &mut Meter,
) -> Result<Outcome> {
    let is_text = matches!(target.writer.writer, Writer::Text(_));
    let is_array = matches!(target.writer.writer, Writer::Arrays(..));
    let dtype = args.dtype.map(ConvertDtype::raw);
    if let Some(dtype) = dtype.filter(|_| is_text) {
        let (title, dtype) = (target.format.title, dtype.name());
        return Err(DataError::from(RowsError::OutFormat {
            out: args.out.clone(),
            reason: format!("{title} files hold text, so that --dtype {dtype} has no meaning"),
            hint: "remove --dtype, or write to .npy, .npz, .safetensors or .parquet".to_owned(),
        })
        .into());
    }
    if dtype == Some(RawType::Bf16) && !is_array {
        let reason = format!("{} files can't hold features in bf16", target.format.title);
        let hint = "write to .safetensors, or use --dtype f32".to_owned();
        return Err(RowsError::OutFormat { out: args.out.clone(), reason, hint }.into());
    }
    let takes_numbers = is_array || dtype.is_some();
    let input = Input {
        data: &config.data,
        labels: args.labels.as_deref(),
        side,
        keeps_missing: args.keep_missing,
        has_target: !args.target.is_empty(),
        to: if takes_numbers { Destination::Arrays } else { Destination::Columns },
    };
    let rows_per_file = |row_bytes: usize| match (args.rows_per_file, args.mib_per_file) {
        (Some(rows), _) => rows,
        (None, Some(mib)) => ((mib << 20) / row_bytes.max(1)).max(1),
        (None, None) => usize::MAX,
    };
    if let Writer::Text(open) = target.writer.writer
        && let Some(copy) = TextCopy::find(&input)?
    {
        let needs_kinds = target.format.id == DataFormat::JsonLines;
        let (n_rows, n_files) = copy.run(target, open, needs_kinds, rows_per_file, staging, meter)?;
        return Ok(Outcome { n_rows, n_files, ..Outcome::default() });
    }
    let mut source = Source::open(&input)?;
    let mut output = match &target.writer.writer {
        Writer::Text(open) => Output::text(*open, source.schema()),
        Writer::Columns(open) => Output::columns(*open, source.schema(), dtype),
        Writer::Arrays(open, storage) => {
            let files = ArrayFiles { storage, title: target.format.title, out: &args.out };
            files.check_categories(source.schema())?;
            let (again, texts) = source.number_texts(&input)?;
            source = again;
            let schema = source.schema().clone();
            let layout = ArrayLayout::new(&schema, texts.categories, texts.labels, dtype, files)?;
            if let Some(labels) = &layout.labels {
                write_labels(&target.labels_file(), labels, staging)?;
            }
            Output::arrays(*open, schema, layout, texts.codes)
        }
    };
    let row_bytes = output.row_bytes();
    let rows_per_file = rows_per_file(row_bytes);
    let (mut n_rows, mut n_files, mut rows_left) = (0, 0, 0);
    while let Some(chunk) = source.next(if rows_left == 0 { rows_per_file } else { rows_left })? {
        if rows_left == 0 {
            output.open(&target.files(n_files), staging)?;
            (n_files, rows_left) = (n_files + 1, rows_per_file);
        }
        let n = chunk.n_rows;
        output.write(chunk, n_rows)?;
        (n_rows, rows_left) = (n_rows + n, rows_left - n);
        if rows_left == 0 {
            output.finish()?;
        }
        meter.advance(n_rows, n_rows * row_bytes, source.fraction());
    }
    output.finish()?;
    let n_rounded = output.n_rounded() + source.n_rounded();
    let (rounded_to, feature_type) = (output.rounded_to(), output.feature_type());
    Ok(Outcome { n_rows, n_files, n_rounded, rounded_to, feature_type })
}

/// Writes the labels of the class indices, in the same way as `predict`, because arrays can't hold strings.
fn write_labels(path: &Path, labels: &[String], staging: &mut Staging) -> Result<()> {
    let mut file = TextFile::create(path, staging)?;
    file.write(&(serde_json::Value::from(labels).to_string() + "\n"))?;
    Ok(file.finish()?)
}

/// Files of the rows, labels and weights.
fn inputs(args: &ConvertArgs, config: &Config) -> Vec<PathBuf> {
    let data = &config.data;
    let named = [Some(&data.train), args.labels.as_ref(), data.labels.as_ref(), data.weight.as_ref()];
    // Errors in a file name are reported when the file is opened; the name of a column is not a file.
    named.into_iter().flatten().filter_map(|source| files_of(source).ok()).flatten().collect()
}

/// The arguments as settings of the config.
fn sets(args: &ConvertArgs) -> Vec<String> {
    let text = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let texts =
        |all: &[String]| format!("[{}]", all.iter().map(|one| text(one)).collect::<Vec<_>>().join(", "));
    let mut sets = vec!["data.shuffle=false".to_owned(), format!("data.train={}", text(&args.input))];
    let mut set =
        |key: &str, value: Option<String>| sets.extend(value.map(|value| format!("data.{key}={value}")));
    let given = |all: &[String]| (!all.is_empty()).then(|| texts(all));
    set("target", given(&args.target));
    set("drop", given(&args.drop));
    set("categorical", given(&args.categorical));
    set("weight", args.weight.as_deref().map(text));
    set("task", args.task.as_deref().map(text));
    set("format", args.format.as_deref().map(text));
    set("missing", args.keep_missing.then(|| text("zero")));
    sets.extend(args.set.iter().cloned());
    sets
}

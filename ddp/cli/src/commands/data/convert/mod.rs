//! `ddp-train data convert`: converts rows from any format to Parquet, in chunks.
//!
//! [`source`] reads rows with their types, [`target`] names the files, and [`ParquetWriter`] writes them under temporary names
//! ([`Staging`]). The files are renamed once all of them are on disk.

mod input;
mod array_source;
mod meter;
mod table_source;
mod source;
mod target;
#[cfg(feature = "parquet")]
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use ddp::config::{Config, Task};
use ddp::data::DataError;
use ddp_tables::formats::arrays::reader::SplitSide;
use ddp_tables::formats::error::RowsError;
use ddp_tables::formats::write::Staging;
use ddp_tables::formats::{ParquetWriter, Reader};
use ddp_tables::open::files::{files_and_format, files_of};
use ddp_tables::source::SourceSpec;
use ddp_tables::split::own_eval::holds_eval_rows;
use ddp_tables::table::CellReader;

use self::meter::Meter;
use self::source::Source;
use self::target::Target;
use crate::cli::column_names::column_names;
use crate::cli::{ConvertArgs, ConvertSubset};
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
    /// Integers in text that are rounded to f64.
    n_rounded: u64,
}

/// Converts rows and returns the summary.
fn run(args: &ConvertArgs, mut meter: Meter) -> Result<String> {
    let target = Target::new(args)?;
    let mut config = Config::load(None, &sets(args))?;
    if is_default_target(args) && !has_target(&config)? {
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
    for outcome in outcomes.iter().filter(|outcome| outcome.n_rounded > 0) {
        let n = outcome.n_rounded;
        let values = if n == 1 { "1 value was" } else { &format!("{n} values were") };
        summary += &format!("\n{values} rounded to f64");
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
    let input = Input {
        data: &config.data,
        labels: args.labels.as_deref(),
        side,
        has_target: !args.target.is_empty(),
    };
    let mut source = Source::open(&input)?;
    let schema = source.schema().clone();
    let row_bytes = schema.row_bytes();
    let rows_per_file = match (args.rows_per_file, args.mib_per_file) {
        (Some(rows), _) => rows,
        (None, Some(mib)) => ((mib << 20) / row_bytes).max(1),
        (None, None) => usize::MAX,
    };
    let (mut n_rows, mut n_files) = (0, 0);
    // The open file, and the rows that it still takes.
    let mut current: Option<(ParquetWriter, usize)> = None;
    while let Some(chunk) =
        source.next(current.as_ref().map_or(rows_per_file, |(_, rows_left)| *rows_left))?
    {
        let (mut writer, rows_left) = match current.take() {
            Some(current) => current,
            None => {
                n_files += 1;
                (ParquetWriter::create(&schema, &target.file(n_files - 1), staging)?, rows_per_file)
            }
        };
        let n = chunk.n_rows;
        writer.write(chunk)?;
        n_rows += n;
        if rows_left > n {
            current = Some((writer, rows_left - n));
        } else {
            writer.finish()?;
        }
        meter.advance(n_rows, n_rows * row_bytes, source.fraction());
    }
    if let Some((writer, _)) = current {
        writer.finish()?;
    }
    Ok(Outcome { n_rows, n_files, n_rounded: source.n_rounded() })
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
    set("drop", given(&column_names(&args.drop)));
    set("categorical", given(&column_names(&args.categorical)));
    set("weight", args.weight.as_deref().map(text));
    set("task", args.task.as_deref().map(text));
    set("format", args.format.as_deref().map(text));
    sets.extend(args.set.iter().cloned());
    sets
}

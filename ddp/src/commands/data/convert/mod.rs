//! `ddp-train data convert`: converts rows from any format to any other, in chunks.
//!
//! [`source`] reads rows, [`target`] names the files, and the writer of the format writes them under temporary names
//! ([`Staging`]). The files are renamed once all of them are on disk.

mod meter;
mod source;
mod target;
mod text_copy;

use std::path::PathBuf;

use ddp_kernels::DType;

use self::meter::Meter;
use self::source::Source;
use self::target::Target;
use self::text_copy::TextCopy;
use crate::cli::{ConvertArgs, ConvertDtype};
use crate::config::{Config, Task};
use crate::data::files_of;
use crate::data::write::{RowWriter, Staging};
use crate::error::Result;
use crate::report::log::Log;
use crate::report::stdout::print_result;

/// Converts rows and prints a summary on stdout.
///
/// # Errors
/// Faults of the arguments, the rows or the output path; no new files are left then.
pub(super) fn convert(log: &Log, args: &ConvertArgs) -> Result<()> {
    let summary = run(args, Meter::new(args.progress, log.terminal()))?;
    Ok(print_result(&format!("{summary}\n"))?)
}

/// Converts rows and returns the summary.
fn run(args: &ConvertArgs, mut meter: Meter) -> Result<String> {
    let target = Target::new(args)?;
    let mut config = Config::load(None, &sets(args))?;
    // Rows are read once: their values do not decide on the task.
    if config.data.auto_task {
        config.data.auto_task = false;
        config.data.task = if config.data.target.len() > 1 { Task::Regression } else { Task::Classification };
    }
    let old = target.existing(args.overwrite, &inputs(args, &config))?;
    if args.dtype.is_none()
        && args.labels.is_none()
        && target.writer.open_text.is_some()
        && let Some(copy) = TextCopy::find(&config.data)?
    {
        let rows_per_file = |row_bytes: usize| match (args.rows_per_file, args.mib_per_file) {
            (Some(rows), _) => rows,
            (None, Some(mib)) => ((mib << 20) / row_bytes).max(1),
            (None, None) => usize::MAX,
        };
        let mut staging = Staging::new(&target.folder());
        let (n_rows, n_files) = copy.run(&target, rows_per_file, &mut staging, &mut meter)?;
        return Ok(meter.end(n_rows, n_files, staging.commit(&old)?));
    }
    let mut source = Source::open(&config.data, args.labels.as_deref())?;
    let writer = target.writer;
    let schema = source.schema().clone();
    let schema = schema.fit(&writer.storage, args.dtype.map(dtype), target.format.title, &args.out)?;
    let rows_per_file = match (args.rows_per_file, args.mib_per_file) {
        (Some(rows), _) => rows,
        (None, Some(mib)) => ((mib << 20) / schema.row_bytes()).max(1),
        (None, None) => usize::MAX,
    };
    let mut staging = Staging::new(&target.folder());
    let mut current: Option<(Box<dyn RowWriter>, usize)> = None;
    let (mut n_rows, mut n_files) = (0, 0);
    while let Some(chunk) = source.next()? {
        let mut start = 0;
        while start < chunk.n_rows {
            let (writer, rows_left) = match &mut current {
                Some(current) => current,
                None => {
                    let opened = (writer.open)(schema.clone(), &target.files(n_files), &mut staging)?;
                    n_files += 1;
                    current.insert((opened, rows_per_file))
                }
            };
            let n = (chunk.n_rows - start).min(*rows_left);
            writer.write(&chunk.rows(start..start + n), n_rows)?;
            (start, n_rows, *rows_left) = (start + n, n_rows + n, *rows_left - n);
            if *rows_left == 0
                && let Some((writer, _)) = current.take()
            {
                writer.finish()?;
            }
        }
        let row_bytes = schema.row_bytes();
        meter.advance(n_rows, n_rows * row_bytes, source.fraction());
    }
    if let Some((writer, _)) = current {
        writer.finish()?;
    }
    let n_bytes = staging.commit(&old)?;
    Ok(meter.end(n_rows, n_files, n_bytes))
}

/// Files of the rows, labels and weights.
fn inputs(args: &ConvertArgs, config: &Config) -> Vec<PathBuf> {
    let data = &config.data;
    let named = [Some(&data.train), args.labels.as_ref(), data.labels.as_ref(), data.weight.as_ref()];
    // Faults of a name are reported when it is opened; the name of a column is not a file.
    named.into_iter().flatten().filter_map(|source| files_of(source).ok()).flatten().collect()
}

/// The number format that `--dtype` names.
fn dtype(choice: ConvertDtype) -> DType {
    match choice {
        ConvertDtype::F32 => DType::F32,
        ConvertDtype::F16 => DType::F16,
        ConvertDtype::Bf16 => DType::BF16,
        ConvertDtype::U8 => DType::U8,
    }
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

#[cfg(test)]
mod tests;

//! `ddp-train data convert`: rows of any format to any other, a chunk at a time.
//!
//! [`source`] reads, [`target`] says where to, a [`writer`] for each format writes under temporary names ([`staging`]), and
//! only when all is on the disk do the files get their own.

mod chunk;
mod csv;
mod encode;
mod meter;
mod npy;
mod npz;
#[cfg(feature = "parquet")]
mod parquet;
mod safetensors;
mod source;
mod staging;
mod target;
mod writer;

use std::path::PathBuf;

use self::meter::Meter;
use self::source::Source;
use self::staging::Staging;
use self::target::Target;
use self::writer::{RowWriter, Schema};
use crate::cli::ConvertArgs;
use crate::config::Config;
use crate::data::files_of;
use crate::error::Result;
use crate::report::stdout::print_result;

/// Converts, and tells on stdout what was written.
///
/// # Errors
/// What is wrong with the arguments, the rows, or the place where they go; then nothing is left there.
pub(super) fn convert(args: &ConvertArgs) -> Result<()> {
    let summary = run(args)?;
    Ok(print_result(&format!("{summary}\n"))?)
}

/// As [`convert`]; what was written, in words.
fn run(args: &ConvertArgs) -> Result<String> {
    let target = Target::new(args)?;
    let config = Config::load(None, &sets(args))?;
    let old = target.existing(args.overwrite, &inputs(args, &config))?;
    let mut source = Source::open(&config.data, args.labels.as_deref())?;
    let schema = Schema::new(source.shape(), &target, args)?;
    let rows_per_file = match (args.rows_per_file, args.mib_per_file) {
        (Some(rows), _) => rows,
        (None, Some(mib)) => ((mib << 20) / schema.row_bytes()).max(1),
        (None, None) => usize::MAX,
    };
    let mut staging = Staging::new(&target.folder())?;
    let mut meter = Meter::new(args.progress);
    let mut current: Option<(Box<dyn RowWriter>, usize)> = None;
    let (mut n_rows, mut n_files) = (0, 0);
    while let Some(chunk) = source.next()? {
        let mut start = 0;
        while start < chunk.n_rows {
            let (writer, room) = match &mut current {
                Some(current) => current,
                None => {
                    let writer = writer::open(&schema, &target, n_files, &mut staging)?;
                    n_files += 1;
                    current.insert((writer, rows_per_file))
                }
            };
            let n = (chunk.n_rows - start).min(*room);
            writer.write(&chunk.rows(start..start + n), n_rows)?;
            (start, n_rows, *room) = (start + n, n_rows + n, *room - n);
            if *room == 0
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

/// Files that rows, labels and weights are read from.
fn inputs(args: &ConvertArgs, config: &Config) -> Vec<PathBuf> {
    let data = &config.data;
    let named = [Some(&data.train), args.labels.as_ref(), data.labels.as_ref(), data.weight.as_ref()];
    // What is wrong with a name is said when it is opened; that of a column is no file's.
    named.into_iter().flatten().filter_map(|source| files_of(source).ok()).flatten().collect()
}

/// What the arguments say, as keys of the config.
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

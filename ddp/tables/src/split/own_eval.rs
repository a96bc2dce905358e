//! Evaluation rows that lie next to the training rows, for a config that does not say where they are.

use ddp::config::{DataConfig, EvalSource};
use ddp::data::error::Result;

use crate::formats::Reader;
use crate::formats::arrays::reader::has_test_rows;
use crate::open::files::all_files_and_format;
use crate::source::SourceSpec;

/// Replaces [`EvalSource::Unset`] by the source of the training rows if it holds test rows too.
///
/// # Errors
/// [`DataError`](ddp::data::DataError) if the files cannot be found.
pub fn resolve_eval(data: &mut DataConfig) -> Result<()> {
    if data.eval != EvalSource::Unset {
        return Ok(());
    }
    if holds_eval_rows(data, None).unwrap_or(false) {
        data.eval = EvalSource::Source(data.train.clone());
    }
    Ok(())
}

/// Whether the source of the training rows holds test rows too. Those in files whose labels are `labels` do not.
///
/// # Errors
/// [`DataError`](ddp::data::DataError) if the files cannot be found.
pub fn holds_eval_rows(data: &DataConfig, labels: Option<&str>) -> Result<bool> {
    let spec = SourceSpec::train(data);
    // Labels in files of their own belong to the training rows only.
    if spec.source.starts_with("builtin:") || spec.labels.or(labels).is_some() {
        return Ok(false);
    }
    let (files, format) = all_files_and_format(&spec)?;
    match &format.reader {
        Reader::Arrays(reader) => Ok(has_test_rows(&files, reader)?),
        Reader::Table(_) => Ok(false),
    }
}

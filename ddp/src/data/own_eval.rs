//! Evaluation rows that lie next to the training rows, for a config that does not say where they are.

use super::error::Result;
use super::files::{all_files_and_format, files_of};
use super::format::Reader;
use super::raw;
use super::source::SourceSpec;
use crate::config::{DataConfig, EvalSource};

/// Replaces [`EvalSource::Unset`] by the source of the training rows if it holds test rows too.
///
/// # Errors
/// Errors of finding the files.
pub(crate) fn resolve_eval(data: &mut DataConfig) -> Result<()> {
    if data.eval != EvalSource::Unset {
        return Ok(());
    }
    let spec = SourceSpec::train(data);
    // Labels in files of their own belong to the training rows only.
    if spec.source.starts_with("builtin:") || spec.labels.is_some() || files_of(spec.source).is_err() {
        return Ok(());
    }
    let Ok((files, format)) = all_files_and_format(&spec) else { return Ok(()) };
    if let Reader::Arrays(reader) = &format.reader
        && raw::has_test_rows(&files, reader).unwrap_or(false)
    {
        data.eval = EvalSource::Source(data.train.clone());
    }
    Ok(())
}

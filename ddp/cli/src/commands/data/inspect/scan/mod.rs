//! Reads files of all formats once and in order, in chunks of rows.

mod arrays;
mod cells;

use ddp::data::{SourceSpec, files_and_format};
use ddp_rows::formats::Reader;

use super::profile::Profile;
use crate::error::Result;

/// The profile of the files that `spec` names, with the target columns `targets`.
///
/// # Errors
/// Faults of the files, or of the names in `targets`.
pub(super) fn scan(spec: &SourceSpec<'_>, targets: &[String]) -> Result<Profile> {
    let (origin, collected) = if spec.source.starts_with("builtin:") {
        arrays::scan_builtin(spec)?
    } else {
        let (files, format) = files_and_format(spec)?;
        match &format.reader {
            Reader::Arrays(reader) => arrays::scan(&files, format.title, reader, spec)?,
            Reader::Table(table) => cells::scan(&files, format.title, table, targets, spec)?,
        }
    };
    Ok(Profile::new(origin, &collected, spec))
}

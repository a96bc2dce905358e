//! The files of a table before their rows are read: those without rows are left out, and columns whose types differ get a common one.

use std::path::{Path, PathBuf};

use crate::formats::table::source::{Source, TableFormat};
use crate::shared_types::{SharedTypes, listed};
use crate::source::SourceSpec;

/// Files of text from this size on have rows.
const MAX_HEADER_BYTES: u64 = 1 << 16;

/// Files with rows, and the types of their columns.
#[derive(Debug, Clone)]
pub struct Shards {
    /// The files that have rows; all if none has.
    pub files: Vec<PathBuf>,
    /// Types that all files have in common, and notes.
    pub types: SharedTypes,
}

/// Looks at the files of a table. A file that can't be read is kept: its reader reports why.
pub fn shards(files: Vec<PathBuf>, format: &TableFormat, spec: &SourceSpec<'_>) -> Shards {
    let mut types = SharedTypes::default();
    if files.len() < 2 {
        return Shards { files, types };
    }
    let mut looked_at: Vec<(PathBuf, Look)> = files
        .into_iter()
        .map(|path| (look(&path, format, spec), path))
        .map(|(look, path)| (path, look))
        .collect();
    let empty: Vec<&Path> =
        looked_at.iter().filter(|(_, look)| look.is_empty).map(|(path, _)| path.as_path()).collect();
    if !empty.is_empty() && empty.len() < looked_at.len() {
        let (files, have) = if empty.len() == 1 { ("file", "has") } else { ("files", "have") };
        types.notes.push(format!("left out {} {files} that {have} no rows: {}", empty.len(), listed(&empty)));
        looked_at.retain(|(_, look)| !look.is_empty);
    }
    #[cfg(feature = "parquet")]
    super::batches::share_types(
        looked_at.iter().filter_map(|(path, look)| Some((path.as_path(), look.schema.as_ref()?))),
        &mut types,
    );
    Shards { files: looked_at.into_iter().map(|(path, _)| path).collect(), types }
}

/// Facts about a file, found at its start.
#[derive(Default)]
struct Look {
    is_empty: bool,
    #[cfg(feature = "parquet")]
    schema: Option<arrow_schema::SchemaRef>,
}

// Without Parquet there is one field.
#[cfg_attr(not(feature = "parquet"), allow(clippy::needless_update))]
fn look(path: &Path, format: &TableFormat, spec: &SourceSpec<'_>) -> Look {
    // A pipe can be read only once.
    let Some(n_bytes) = path.metadata().ok().filter(|data| data.is_file()).map(|data| data.len()) else {
        return Look::default();
    };
    if format.is_text && (n_bytes == 0 || n_bytes > MAX_HEADER_BYTES) {
        return Look { is_empty: n_bytes == 0, ..Look::default() };
    }
    match (format.open)(path, &spec.read_options()) {
        Ok(Source::Text(mut text)) => {
            Look { is_empty: matches!(text.next(true), Ok(None)), ..Look::default() }
        }
        #[cfg(feature = "parquet")]
        Ok(Source::Batches(batches)) => {
            use crate::formats::table::batch_source::Selection;
            let first = Selection { roots: vec![0], lists: Vec::new(), max_len: usize::MAX, batch_rows: 1 };
            let schema = batches.schema().clone();
            let is_empty = !schema.fields().is_empty()
                && batches.read(&first).is_ok_and(|mut batches| batches.next().is_none());
            Look { is_empty, schema: Some(schema) }
        }
        Err(_) => Look::default(),
    }
}

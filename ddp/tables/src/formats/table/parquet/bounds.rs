//! Bounds of a file that are checked before the library decodes it, which trusts them: a small file could have it overflow the
//! stack or take gigabytes.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use parquet::basic::Type as PhysicalType;
use parquet::file::metadata::ParquetMetaData;

use crate::formats::error::{Result, RowsError};
use crate::formats::table::parquet::thrift::{Header, Pages, SchemaShape};
use crate::formats::table::source::decode_limit;

/// Groups within groups; the library's functions for schemas call themselves.
const MAX_DEPTH: usize = 64;

/// Checks the schema in the footer of a file of `n_bytes`. The library reports a file without a footer.
///
/// # Errors
/// The reason for refusing the file.
pub(super) fn check_schema(file: &File, n_bytes: u64) -> Result<(), String> {
    let mut tail = [0; 8];
    let Some(tail_at) = n_bytes.checked_sub(8) else { return Ok(()) };
    if file.read_exact_at(&mut tail, tail_at).is_err() || tail[4..] != *b"PAR1" {
        return Ok(());
    }
    let len = u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
    let start = tail_at.checked_sub(u64::from(len));
    let start = start.ok_or_else(|| format!("its footer claims {len} bytes of {n_bytes}"))?;
    let mut footer = vec![0; len as usize];
    file.read_exact_at(&mut footer, start).map_err(|error| error.to_string())?;
    let shape = SchemaShape::read(&footer).ok_or("its footer does not begin with a schema")?;
    let SchemaShape { depth, n_elements, n_children } = shape;
    if depth > MAX_DEPTH {
        return Err(format!("its schema is nested {depth} deep, expected at most {MAX_DEPTH}"));
    }
    if u64::try_from(n_children).is_ok_and(|n| n >= n_elements.max(1)) {
        return Err(format!("a group claims {n_children} columns, and the schema has {n_elements} parts"));
    }
    Ok(())
}

/// Checks the headers of the pages of a column in a row group, whose values are decoded `batch_rows` at a time.
///
/// # Errors
/// [`RowsError::TooLarge`] for a page whose content exceeds the memory; [`RowsError::Malformed`] for one that contradicts itself.
pub(super) fn check_pages(
    (path, file): (&Path, &File),
    metadata: &ParquetMetaData,
    (group, leaf): (usize, usize),
    batch_rows: usize,
    memory_bytes: u64,
) -> Result<()> {
    let column = metadata.row_group(group).column(leaf);
    let place = || format!("row group {group}, column \"{}\"", column.column_path().string());
    let limit = decode_limit(memory_bytes);
    let too_large = |bytes: u64| RowsError::TooLarge {
        source_name: path.display().to_string(),
        what: "to decode a page",
        needed_mib: bytes.div_ceil(1 << 20),
        limit_mib: limit >> 20,
        hint: format!("{}: raise it, or write the file with smaller pages", place()),
    };
    let is_fixed = column.column_type() == PhysicalType::FIXED_LEN_BYTE_ARRAY;
    let value_bytes = u64::try_from(column.column_descr().type_length()).unwrap_or(0);
    let batch_bytes = value_bytes.saturating_mul(batch_rows as u64);
    if is_fixed && batch_bytes > limit {
        return Err(too_large(batch_bytes));
    }
    for page in Pages::of(file, column) {
        let contradiction = |reason: String| malformed(path, format!("{}: {reason}", place()));
        let (_, Header { plain_size, n_names, .. }) =
            page.ok_or_else(|| contradiction("the header of a page can't be read".to_owned()))?;
        match u64::try_from(plain_size) {
            Ok(bytes) if bytes > limit => return Err(too_large(bytes)),
            _ if n_names > plain_size => {
                let reason = format!("a page claims a dictionary of {n_names} values in {plain_size} bytes");
                return Err(contradiction(reason));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The error of a file that contradicts itself.
pub fn malformed(path: &Path, reason: String) -> RowsError {
    // The library prefixes its messages with its name.
    let reason = ["Parquet error: ", "Parquet argument error: ", "EOF: ", "External: "]
        .iter()
        .fold(reason, |reason, prefix| reason.replace(prefix, ""));
    let hint = "is the file cut off, damaged or still being written?";
    RowsError::Malformed { path: path.to_owned(), format: "Parquet", reason, hint }
}

//! Files that hold training and test rows side by side: MNIST's four files in a folder, and npz files with `x_train` and `x_test`.

use std::path::{Path, PathBuf};

use super::bytes::{MemoryBudget, bytes_of};
use super::reader::{ArrayReader, FEATURE_KEYS, LABEL_KEYS, test_key};
use crate::arrays::reader::SplitSide;
use crate::compression::Compression;
use crate::error::Result;

/// The files with rows for this side of the split, among the files of a folder or pattern; files of labels are left out.
pub fn of_side(files: Vec<PathBuf>, reader: &ArrayReader, side: SplitSide) -> Vec<PathBuf> {
    let ArrayReader::Single { labels_name, side: side_of, .. } = reader else { return files };
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    let labels: Vec<PathBuf> =
        files.iter().filter_map(|path| Some(path.with_file_name(labels_name(&name(path)?)?))).collect();
    // A file may lie next to its compressed form.
    let is_copy = |path: &PathBuf| {
        let plain = path.with_extension("");
        path.extension().is_some_and(|ending| ending == "gz") && files.contains(&plain)
    };
    let rows: Vec<PathBuf> =
        files.iter().filter(|path| !labels.contains(path) && !is_copy(path)).cloned().collect();
    let sides: Vec<Option<SplitSide>> = rows.iter().map(|path| side_of(&name(path)?)).collect();
    let has_both = sides.contains(&Some(SplitSide::Train)) && sides.contains(&Some(SplitSide::Test));
    if !has_both {
        return if rows.is_empty() { files } else { rows };
    }
    let of_side = rows.into_iter().zip(sides).filter(|(_, of)| of.is_none_or(|of| of == side));
    of_side.map(|(path, _)| path).collect()
}

/// Whether the files hold test rows next to the training rows.
pub fn has_test_rows(all: &[PathBuf], reader: &ArrayReader) -> Result<bool> {
    match reader {
        ArrayReader::Single { .. } => {
            let (train, test) = (
                of_side(all.to_vec(), reader, SplitSide::Train),
                of_side(all.to_vec(), reader, SplitSide::Test),
            );
            Ok(train != test)
        }
        ArrayReader::Named { open, .. } => {
            let [path] = all else { return Ok(false) };
            // Only the names are read, without unpacking anything.
            if Compression::of_file(path) != Compression::None {
                return Ok(false);
            }
            let budget = MemoryBudget::new(0);
            let bytes = bytes_of(path, &budget)?;
            let names = open(&bytes, &budget)?.names();
            let has_test = |usual: &[&str]| usual.iter().any(|key| names.contains(&test_key(key)));
            let has = |usual: &[&str]| usual.iter().any(|key| names.iter().any(|name| name == key));
            Ok([FEATURE_KEYS, LABEL_KEYS].iter().all(|usual| has(usual) && has_test(usual)))
        }
    }
}

//! Data files of a folder and its sub-folders.
//!
//! Hidden files and names that begin with `_` (Spark's `_SUCCESS`) are skipped, as other readers of such folders do, and so are folders
//! of runs, labels, weights, and rows to evaluate on. Folders whose files alone are not the rows, those of lake tables, are refused.

use std::path::{Path, PathBuf};

use ddp::config::EvalSource;
use ddp::data::error::{DataError, Result};
use ddp::run_folder::folder::{CONFIG_FILE, METRICS_FILE};
use walkdir::{DirEntry, WalkDir};

use crate::error::TableError;
use crate::formats;
use crate::formats::error::RowsError;

/// Names of sub-folders with rows to evaluate on.
const EVAL_NAMES: &[&str] =
    &["test", "testing", "val", "valid", "validation", "eval", "evaluation", "holdout"];
/// Names of sub-folders with arrays that go with those of their folder.
const ASIDE_NAMES: &[&str] = &["labels", "weights"];

/// The data files of a folder and its sub-folders, sorted by path.
///
/// # Errors
/// [`RowsError::Unreadable`], [`TableError::LakeTable`].
pub(super) fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let walk = WalkDir::new(folder).follow_links(true).sort_by_file_name();
    for entry in walk.into_iter().filter_entry(|entry| entry.depth() == 0 || !is_skipped(entry)) {
        let entry = entry.map_err(|error| {
            DataError::from(RowsError::Unreadable {
                path: error.path().unwrap_or(folder).to_owned(),
                source: error.into(),
            })
        })?;
        if entry.file_type().is_dir() {
            check_table(entry.path())?;
        } else if formats::by_name(entry.path()).is_some() {
            files.push(entry.into_path());
        } else {
            tracing::debug!("{}: skipped: not the name of a data file", entry.path().display());
        }
    }
    files.sort();
    Ok(files)
}

/// Whether a file or sub-folder is left out whatever it contains.
fn is_skipped(entry: &DirEntry) -> bool {
    let name = entry.file_name().as_encoded_bytes();
    let is_run = || {
        let file = |name: &str| entry.path().join(name).is_file();
        entry.file_type().is_dir() && file(CONFIG_FILE) && file(METRICS_FILE)
    };
    let reason = match name {
        [b'.', ..] => "a hidden name",
        // A column may have such a name.
        [b'_', rest @ ..] if !(entry.file_type().is_dir() && rest.contains(&b'=')) => {
            "a name that begins with `_`"
        }
        _ if is_of_eval(entry) => "a name of rows to evaluate on",
        _ if entry.file_type().is_dir() && ASIDE_NAMES.iter().any(|aside| aside.as_bytes() == name) => {
            "a name of labels or weights"
        }
        _ if is_run() => "the folder of a run",
        _ => return false,
    };
    tracing::debug!("{}: skipped: {reason}", entry.path().display());
    true
}

/// Fails for a folder that holds the files of a lake table, whose log decides which of their rows are valid.
///
/// # Errors
/// [`TableError::LakeTable`]
pub(super) fn check_table(folder: &Path) -> Result<()> {
    let parent = || match folder.file_name() {
        Some(name) if name == "data" => folder.parent().filter(|parent| !parent.as_os_str().is_empty()),
        _ => None,
    };
    let holds = |folder: PathBuf, ending: &str| {
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.into_iter().any(|name| name.to_string_lossy().ends_with(ending))
    };
    let is_iceberg = |folder: &Path| holds(folder.join("metadata"), ".metadata.json");
    let (name, root, scan) = if folder.join("_delta_log").is_dir() {
        ("Delta Lake", folder, "delta_scan")
    } else if is_iceberg(folder) {
        ("Iceberg", folder, "iceberg_scan")
    } else if let Some(root) = parent().filter(|root| is_iceberg(root)) {
        ("Iceberg", root, "iceberg_scan")
    } else if folder.join(".hoodie").is_dir() {
        ("Hudi", folder, "hudi")
    } else if holds(folder.join("_versions"), ".manifest") {
        ("Lance", folder, "lance")
    } else {
        return Ok(());
    };
    let shown = root.display();
    let export = match scan {
        "hudi" => format!("spark.read.format(\"hudi\").load(\"{shown}\").write.parquet(\"rows\")"),
        "lance" => {
            format!(
                "pyarrow.parquet.write_table(lance.dataset('{shown}').to_table(), 'rows.parquet') in Python"
            )
        }
        scan => format!("duckdb -c \"COPY (FROM {scan}('{shown}')) TO 'rows.parquet'\""),
    };
    Err(DataError::from(TableError::LakeTable { path: root.to_owned(), name, export }))
}

/// Notes on sub-folders of `source` that are left out since their names say that their rows are for evaluation.
pub fn notes_on_folders(source: &str, eval: &EvalSource) -> Vec<String> {
    if !Path::new(source).is_dir() {
        return Vec::new();
    }
    let walk = WalkDir::new(source).follow_links(true).sort_by_file_name().min_depth(1).into_iter();
    let folders = walk.filter_entry(|entry| !is_skipped(entry) || is_of_eval(entry)).flatten();
    let folders = folders.filter(is_of_eval).map(|entry| entry.path().display().to_string());
    let others =
        folders.filter(|path| !matches!(eval, EvalSource::Source(eval) if eval.starts_with(path.as_str())));
    others
        .map(|path| {
            format!("sub-folder {path} is left out: to evaluate on its rows, set `data.eval` to it (--eval)")
        })
        .collect()
}

/// Whether a sub-folder has the name of rows to evaluate on.
fn is_of_eval(entry: &DirEntry) -> bool {
    let name = entry.file_name().to_string_lossy().to_ascii_lowercase();
    entry.file_type().is_dir() && EVAL_NAMES.contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_all_sub_folders_are_found_and_others_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for name in [
            "b.csv",
            "2024/a.csv",
            "2024/01/x.csv",
            "_SUCCESS",
            "_temporary/t.csv",
            ".hidden/h.csv",
            ".b.csv.crc",
            "_b.csv",
            "_k=1/p.csv",
            "README.md",
            "Test/e.csv",
            "2024/eval/e.csv",
            "labels/l.csv",
            "run/config.toml",
            "run/metrics.jsonl",
            "train/t.csv",
        ] {
            std::fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            std::fs::write(root.join(name), "x\n").unwrap();
        }
        let found = files_in(root).unwrap();
        let names: Vec<_> =
            found.iter().map(|path| path.strip_prefix(root).unwrap().display().to_string()).collect();
        assert_eq!(names, ["2024/01/x.csv", "2024/a.csv", "_k=1/p.csv", "b.csv", "train/t.csv"]);

        let root = root.display().to_string();
        let notes = notes_on_folders(&root, &EvalSource::Source(format!("{root}/Test/*.csv")));
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].starts_with(&format!("sub-folder {root}/2024/eval is left out")), "{notes:?}");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_the_folder_itself_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("again")).unwrap();
        let error = files_in(folder.path()).expect_err("refused");
        assert!(matches!(TableError::of(&error), Some(TableError::Rows(RowsError::Unreadable { .. }))));
    }

    #[test]
    fn files_of_lake_tables_are_refused() {
        for (log, name) in [
            ("_delta_log/0.json", "Delta Lake"),
            ("metadata/v1.metadata.json", "Iceberg"),
            (".hoodie/x", "Hudi"),
            ("_versions/1.manifest", "Lance"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let log = folder.path().join("rows").join(log);
            std::fs::create_dir_all(log.parent().unwrap()).unwrap();
            std::fs::write(log, "").unwrap();
            std::fs::create_dir(folder.path().join("rows/data")).unwrap();
            let error = files_in(folder.path()).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
            let of_data = check_table(&folder.path().join("rows/data"));
            assert_eq!(of_data.is_err(), name == "Iceberg");
        }
    }
}

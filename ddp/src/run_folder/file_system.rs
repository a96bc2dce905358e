//! Checks before data is read that the file system of a run's folder has the calls that a run needs: mounts of object stores often
//! have no rename.
//!
//! ```
//! use ddp::run_folder::file_system::check_file_system;
//!
//! let folder = tempfile::tempdir()?;
//! check_file_system(&folder.path().join("run"))?;
//! assert_eq!(std::fs::read_dir(folder.path())?.count(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::path::Path;

use crate::run_folder::error::FolderError;
use crate::run_folder::run_id;
use crate::storage::probe::probe;

/// Tries the calls of a run in `out`, or, while that is missing, in the folder where it will be made. Nothing is left there. A call
/// that fails for another reason, such as a full disk, is reported where the run needs it.
///
/// # Errors
/// [`FolderError::Unsuited`]
pub fn check_file_system(out: &Path) -> Result<(), FolderError> {
    let here = Path::new(".");
    let folders = out.ancestors().map(|folder| if folder.as_os_str().is_empty() { here } else { folder });
    let Some(folder) = folders.filter(|folder| folder.exists()).find(|folder| folder.is_dir()) else {
        return Ok(());
    };
    let id = run_id::random().unwrap_or_else(|_| std::process::id().to_string());
    match probe(folder, &format!(".ddp-train-probe-{id}")) {
        Err(failed) if failed.is_unsupported() => {
            Err(FolderError::Unsuited { path: out.to_owned(), call: failed.call, source: failed.source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_where_the_folder_will_be() {
        let folder = tempfile::tempdir().unwrap();
        check_file_system(&folder.path().join("a/b")).unwrap();
        check_file_system(folder.path()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

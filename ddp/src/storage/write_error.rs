//! The error of writing a file, with the way out.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use super::user_file::is_not_regular;

/// Hint for a file that exceeds a limit.
pub const FILE_TOO_LARGE: &str =
    "a limit on the size of files applies: raise it with `ulimit -f unlimited`, or use another disk";

/// An error of writing a file.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[error("can't write `{}`: {source}", path.display())]
#[diagnostic(help("{}", write_hint(path, source)))]
pub struct WriteError {
    /// Path of the file.
    pub path: PathBuf,
    /// Error of the operating system.
    pub source: io::Error,
}

fn write_hint(path: &Path, source: &io::Error) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if is_not_regular(source) {
        return "name a file that does not exist, or a regular one".to_owned();
    }
    let hint = match source.kind() {
        io::ErrorKind::StorageFull if is_out_of_inodes(path) => {
            "the disk has no inodes left (`df -i`): delete some files and run again"
        }
        io::ErrorKind::StorageFull => "the disk is full: free some space and run again",
        io::ErrorKind::QuotaExceeded => "the disk quota is used up: free some space and run again",
        io::ErrorKind::FileTooLarge => FILE_TOO_LARGE,
        io::ErrorKind::ReadOnlyFilesystem => "the disk is mounted read-only: remount it writable",
        io::ErrorKind::PermissionDenied => "check the permissions",
        io::ErrorKind::IsADirectory => "it is a folder: name a file in it",
        io::ErrorKind::NotADirectory => "a component of the path is a file: check the spelling",
        io::ErrorKind::NotFound => match folder.filter(|folder| !folder.exists()) {
            Some(folder) => {
                return format!(
                    "the folder `{}` does not exist: create it, or choose another path",
                    folder.display()
                );
            }
            None => "its folder was deleted during the run",
        },
        _ => "check permissions and the disk",
    };
    hint.to_owned()
}

/// Whether the disk of `path` has free bytes but (almost) no free inodes. A few may have become free since the failure, because
/// partial files were deleted.
pub fn is_out_of_inodes(path: &Path) -> bool {
    const FEW: u64 = 64;
    const AMPLE_BYTES: u64 = 1 << 20;
    // The file and its folder may no longer exist.
    let stat = path.ancestors().find_map(|path| {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        statvfs(path).ok()
    });
    // File systems that create inodes on demand report 0 of 0.
    stat.is_some_and(|stat| {
        let free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
        stat.f_files > 0 && stat.f_favail < FEW && free_bytes >= AMPLE_BYTES
    })
}

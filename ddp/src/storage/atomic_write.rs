//! Atomic replacement of a file: readers see either the old or the new content, never a mixture.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use super::unfinished::is_running;
use super::user_file::{check_place, create_new, open_regular};
pub use super::write_error::WriteError;

/// Writes `bytes` to `path`, keeping the old content until the new content is safe on disk.
///
/// # Errors
/// [`WriteError`]; the old file is unchanged.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    write_atomic_with(path, |file| file.write_all(bytes))
}

/// Same as [`write_atomic`] for content that `write` produces in pieces: writes, syncs and renames a temporary file next to
/// `path`, then syncs the folder.
///
/// # Errors
/// [`WriteError`]; the old file is unchanged.
pub fn write_atomic_with(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), WriteError> {
    let failed = |source| WriteError { path: path.to_owned(), source };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = folder.join(format!(".{name}.{}.tmp", std::process::id()));
    let write_temporary = || -> io::Result<()> {
        check_place(path)?;
        let mut file = BufWriter::with_capacity(1 << 20, create_new(&temporary)?);
        write(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&temporary, path)
    };
    write_temporary().map_err(|source| {
        // The temporary file may not exist; the first error is the one to report.
        let _ = fs::remove_file(&temporary);
        failed(source)
    })?;
    open_regular(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

/// Removes temporary files of `path` that ended processes of this host left behind; returns their names.
pub(crate) fn remove_leftovers(path: &Path) -> Vec<String> {
    let (folder, name) = (path.parent().unwrap_or(Path::new(".")), path.file_name().unwrap_or_default());
    let prefix = format!(".{}.", name.to_string_lossy());
    let is_leftover = |name: &str| {
        let pid = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".tmp")?.parse::<u32>().ok());
        pid.is_some_and(|pid| pid == std::process::id() || !is_running(pid))
    };
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    // A file that can't be removed does no harm.
    names.filter(|name| is_leftover(name) && fs::remove_file(folder.join(name)).is_ok()).collect()
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    #[test]
    fn only_what_an_ended_process_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        // No process has this id: the maximum on Linux is 2^22.
        let (ended, alive) = (u32::MAX, 1);
        let left = format!(".config.toml.{ended}.tmp");
        let kept = [
            format!(".config.toml.{alive}.tmp"),
            format!(".other.toml.{ended}.tmp"),
            format!("config.toml.{ended}.tmp"),
            ".config.toml.x.tmp".to_owned(),
            "config.toml".to_owned(),
        ];
        kept.iter().chain([&left]).for_each(|name| fs::write(folder.path().join(name), "").unwrap());
        assert_eq!(remove_leftovers(&folder.path().join("config.toml")), [left]);
        assert!(kept.iter().all(|name| folder.path().join(name).exists()));
    }

    /// Root could replace `/dev/null` for all programs.
    #[test]
    fn a_file_takes_the_place_of_no_pipe_or_device() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.json");
        let pipe = rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0);
        pipe.unwrap();
        let error = ddp_kernels::hint::with_hint(&write_atomic(&path, b"new").unwrap_err());
        assert!(error.contains("it is a named pipe, expected a regular file\nhint: name a file"), "{error}");
        assert!(!fs::metadata(&path).unwrap().is_file());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    /// Whoever may write into the folder of a run can guess them.
    #[test]
    fn temporary_names_that_are_links_lead_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let [path, victim] = ["config.toml", "victim"].map(|name| folder.path().join(name));
        fs::write(&victim, "precious").unwrap();
        for name in [format!(".config.toml.{}.tmp", std::process::id()), ".config.toml.new".to_owned()] {
            std::os::unix::fs::symlink(&victim, folder.path().join(name)).unwrap();
        }
        write_atomic(&path, b"one").unwrap();
        crate::storage::disk::replace(&crate::storage::disk::OsDisk, &path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }

    #[test]
    fn files_change_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        write_atomic(&path, b"one").unwrap();
        write_atomic(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");

        let full = |_: &mut BufWriter<File>| Err(io::Error::from(io::ErrorKind::StorageFull));
        let error =
            write_atomic_with(&path, |file| file.write_all(b"half").and_then(|()| full(file))).unwrap_err();
        let message = ddp_kernels::hint::with_hint(&error);
        assert!(message.contains("config.toml`") && message.contains("hint: the disk is full"), "{message}");
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no half file is left");

        let error = write_atomic(&folder.path().join("gone/x"), b"").unwrap_err();
        assert!(error.to_string().contains("gone/x`"), "{error}");
    }
}

//! Tries the calls that a run needs on a file system, since mounts of object stores do not have all of them.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::disk::{Disk as _, OsDisk};

/// Held while a probe has files.
static UNDER_WAY: Mutex<()> = Mutex::new(());

/// Waits until no probe of this process is under way, for a second at most.
pub(crate) fn wait_until_over() {
    for _ in 0..200 {
        if UNDER_WAY.try_lock().is_ok() {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// A call that failed.
#[derive(Debug)]
pub(crate) struct FailedCall {
    /// The call in words, such as "rename a folder".
    pub(crate) call: &'static str,
    /// Error of the operating system.
    pub(crate) source: io::Error,
}

impl FailedCall {
    /// Whether the file system does not have the call, or not as POSIX demands it; otherwise it has failed.
    pub(crate) fn is_unsupported(&self) -> bool {
        const UNSUPPORTED: [Errno; 6] =
            [Errno::NOSYS, Errno::PERM, Errno::OPNOTSUPP, Errno::NOTTY, Errno::INVAL, Errno::XDEV];
        Errno::from_io_error(&self.source).is_some_and(|errno| UNSUPPORTED.contains(&errno))
    }
}

/// Tries the calls in `folder`, in a temporary folder of this name, which is removed again.
///
/// # Errors
/// The first call that failed.
pub(crate) fn probe(folder: &Path, name: &str) -> Result<(), FailedCall> {
    let (before, after) = (folder.join(name), folder.join(format!("{name}.renamed")));
    let _under_way = UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner);
    let probed = try_calls(&before, &after);
    // At most one of them is there.
    let _ = fs::remove_dir_all(&before);
    let _ = fs::remove_dir_all(&after);
    probed
}

fn try_calls(before: &Path, after: &Path) -> Result<(), FailedCall> {
    let at = |call: &'static str| move |source| FailedCall { call, source };
    fs::create_dir(before).map_err(at("make a folder"))?;
    let (new, file) = (before.join("new"), before.join("file"));
    let mut opened = OsDisk.create(&new).map_err(at("make a file"))?;
    OsDisk.write(&mut opened, b"1\n").map_err(at("write a file"))?;
    OsDisk.sync(&opened).map_err(at("sync a file"))?;
    drop(opened);
    fs::write(&file, "0\n").map_err(at("write a file"))?;
    OsDisk.rename(&new, &file).map_err(at("rename a file over another one"))?;
    // Events are appended, and the lease is renewed in place.
    let appended = OpenOptions::new().append(true).open(&file);
    appended.and_then(|mut file| file.write_all(b"2\n")).map_err(at("append to a file"))?;
    let opened = OpenOptions::new().write(true).open(&file);
    opened.and_then(|file| file.write_all_at(b"3", 0)).map_err(at("write into a file"))?;
    OsDisk.sync_dir(before).map_err(at("sync a folder"))?;
    OsDisk.rename(before, after).map_err(at("rename a folder"))?;
    let text = fs::read(after.join("file")).map_err(at("read a file of a renamed folder"))?;
    if text == b"3\n2\n" {
        Ok(())
    } else {
        Err(at("read what was written")(io::ErrorKind::InvalidData.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usual_file_system_has_all_calls() {
        let folder = tempfile::tempdir().unwrap();
        probe(folder.path(), ".probe").unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
        let failed = probe(&folder.path().join("missing"), ".probe").unwrap_err();
        assert!(failed.call == "make a folder" && !failed.is_unsupported());
        let none = FailedCall { call: "", source: Errno::NOSYS.into() };
        assert!(none.is_unsupported());
    }
}

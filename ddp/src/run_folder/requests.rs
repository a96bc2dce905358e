//! Requests to a running job, as files in its folder: they work over ssh and on shared disks.
//!
//! A command writes `.requests/NAME.json` and waits for `.requests/NAME.answer`. The thread that renews the lease of the folder looks for
//! requests when it does so, once per second. All of it goes through the opened folder and never through a link, because whoever may write
//! into the folder of a run could make it read, replace or remove files elsewhere.
//!
//! ```
//! use ddp::run_folder::requests::{Question, Request, answer, take};
//!
//! let run = tempfile::tempdir()?;
//! let question = Question::ask(run.path(), &Request::Trace { steps: 20 })?;
//! let asked = take(run.path()).pop().expect("one request");
//! assert_eq!(asked.request, Request::Trace { steps: 20 });
//! answer(run.path(), &asked.name, "\"done\"")?;
//! assert_eq!(question.answer().as_deref(), Some("\"done\""));
//! # Ok::<(), std::io::Error>(())
//! ```

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, open, openat, renameat, unlinkat};
use serde::{Deserialize, Serialize};

/// Folder of requests and their answers.
pub const REQUESTS: &str = ".requests";
/// Maximum size of a request.
const MAX_REQUEST: u64 = 4096;
/// Maximum size of an answer: thousands of ranks.
const MAX_ANSWER: u64 = 16 << 20;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// A trace of the next steps.
    Trace {
        /// Their number.
        steps: u64,
    },
    /// The places of all ranks.
    Stacks,
}

/// A request that the run has taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The request.
    pub request: Request,
    /// Its name, for the answer.
    pub name: String,
}

/// Takes the requests to the run in the folder `run`: nobody else finds them then.
pub fn take(run: &Path) -> Vec<Asked> {
    let Ok(folder) = open_folder(&run.join(REQUESTS)) else { return Vec::new() };
    let entries = Dir::read_from(&folder).into_iter().flatten().flatten();
    let names: Vec<String> = entries
        .filter_map(|entry| Some(entry.file_name().to_str().ok()?.strip_suffix(".json")?.to_owned()))
        .collect();
    let take_one = |name: String| {
        let file = format!("{name}.json");
        let bytes = read(&folder, &file, MAX_REQUEST).ok()?;
        unlinkat(&folder, &file, AtFlags::empty()).ok()?;
        Some(Asked { request: serde_json::from_slice(&bytes).ok()?, name })
    };
    names.into_iter().filter_map(take_one).collect()
}

/// Answers the request `name`.
///
/// # Errors
/// The error of the system.
pub fn answer(run: &Path, name: &str, text: &str) -> io::Result<()> {
    write(&open_folder(&run.join(REQUESTS))?, name, "answer", text)
}

/// Removes requests and answers that an ended process left.
pub(super) fn remove_leftovers(run: &Path) {
    // A leftover that can't be removed does no harm; of a link this removes the link.
    let _ = fs::remove_dir_all(run.join(REQUESTS));
}

/// A request that waits for its answer. Dropping it withdraws the request.
#[derive(Debug)]
pub struct Question {
    folder: PathBuf,
    name: String,
}

impl Question {
    /// Asks the run in the folder `run`.
    ///
    /// # Errors
    /// The error of the system.
    pub fn ask(run: &Path, request: &Request) -> io::Result<Self> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("{}-{}", std::process::id(), since_epoch.as_nanos());
        let question = Question { folder: run.join(REQUESTS), name };
        fs::create_dir_all(&question.folder)?;
        let text = serde_json::to_string(request).expect("numbers and names");
        write(&open_folder(&question.folder)?, &question.name, "json", &text)?;
        Ok(question)
    }

    /// The answer, if it is there.
    pub fn answer(&self) -> Option<String> {
        let bytes =
            read(&open_folder(&self.folder).ok()?, &format!("{}.answer", self.name), MAX_ANSWER).ok()?;
        String::from_utf8(bytes).ok()
    }

    /// Whether the run has taken the request.
    pub fn is_taken(&self) -> bool {
        !self.file("json").exists()
    }

    fn file(&self, extension: &str) -> PathBuf {
        self.folder.join(format!("{}.{extension}", self.name))
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        for extension in ["json", "answer"] {
            let _ = fs::remove_file(self.file(extension));
        }
        // Unless others ask, too.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Opens a folder that is no link.
fn open_folder(folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(open(folder, flags, Mode::empty())?)
}

/// Reads at most `max_bytes` of a regular file of the folder.
fn read(folder: &OwnedFd, file: &str, max_bytes: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(folder, file, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    file.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes a new file under another name first: nobody reads half of it.
fn write(folder: &OwnedFd, name: &str, extension: &str, text: &str) -> io::Result<()> {
    let temporary = format!("{name}.{extension}.tmp");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Whatever has that name is not of this request.
    let _ = unlinkat(folder, &temporary, AtFlags::empty());
    let mut file = File::from(openat(folder, &temporary, flags, Mode::from_raw_mode(0o666))?);
    file.write_all(text.as_bytes())?;
    Ok(renameat(folder, &temporary, folder, format!("{name}.{extension}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_taken_once_and_leaves_nothing() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(take(run.path()), []);
        let question = Question::ask(run.path(), &Request::Stacks).unwrap();
        assert!(!question.is_taken());
        let asked = take(run.path());
        assert_eq!(asked.len(), 1);
        assert!(question.is_taken() && take(run.path()).is_empty());
        assert_eq!(question.answer(), None);
        answer(run.path(), &asked[0].name, "{}").unwrap();
        assert_eq!(question.answer().as_deref(), Some("{}"));
        drop(question);
        assert!(!run.path().join(REQUESTS).exists());
    }

    #[test]
    fn what_is_no_request_is_ignored() {
        let run = tempfile::tempdir().unwrap();
        let folder = run.path().join(REQUESTS);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a.json"), "{\"trace\":{}}").unwrap();
        fs::write(folder.join("b.json"), vec![b'x'; 5000]).unwrap();
        fs::write(folder.join("c.answer"), "{}").unwrap();
        assert_eq!(take(run.path()), []);
    }

    #[test]
    fn links_lead_nowhere() {
        use std::os::unix::fs::symlink;

        let (run, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (victim, notes) = (other.path().join("victim"), other.path().join("notes.json"));
        fs::write(&victim, "precious").unwrap();
        fs::write(&notes, "\"stacks\"").unwrap();
        let folder = run.path().join(REQUESTS);
        fs::create_dir(&folder).unwrap();
        symlink(&victim, folder.join("x.answer.tmp")).unwrap();
        symlink(&notes, folder.join("x.json")).unwrap();
        assert_eq!(take(run.path()), [], "a link is no request");
        answer(run.path(), "x", "{}").unwrap();
        assert_eq!(fs::read_to_string(folder.join("x.answer")).unwrap(), "{}");

        fs::remove_dir_all(&folder).unwrap();
        symlink(other.path(), &folder).unwrap();
        assert_eq!(take(run.path()), []);
        assert!(answer(run.path(), "x", "{}").is_err());
        remove_leftovers(run.path());
        assert!(fs::read_to_string(&victim).unwrap() == "precious" && notes.exists());
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 2);
    }
}

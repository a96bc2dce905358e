//! Opening files: those that the user named, and those of the program, whose names others can predict. A test keeps all other code from
//! opening files by itself.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

/// First bytes of a pointer of Git LFS in place of a file, what it is, and the way to the file.
pub const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";
/// See [`LFS_POINTER`].
pub const LFS_NAME: &str = "a Git LFS pointer, not the data";
/// See [`LFS_POINTER`].
pub const LFS_HINT: &str = "`git lfs pull` in its repository downloads the data";

/// An error of opening or reading a file that the user named.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
pub enum FileError {
    /// The named file does not exist.
    #[error("{what} `{}` does not exist", path.display())]
    #[diagnostic(help("{}", missing_hint(path)))]
    Missing {
        /// Purpose of the file, such as "config file".
        what: &'static str,
        /// Path as the user wrote it.
        path: PathBuf,
    },
    /// The path names a folder.
    #[error("{what} `{}` is a folder, expected a file", path.display())]
    #[diagnostic(help("name the file inside it"))]
    IsFolder {
        /// Purpose of the file.
        what: &'static str,
        /// Path as the user wrote it.
        path: PathBuf,
    },
    /// The path names a device, a socket, or a pipe that another program has yet to open.
    #[error("{what} `{}` is {kind}, expected a regular file", path.display())]
    #[diagnostic(help("write what it gives to a file first, and name that"))]
    NotRegular {
        /// Purpose of the file.
        what: &'static str,
        /// Path as the user wrote it.
        path: PathBuf,
        /// Kind of file, with its article.
        kind: &'static str,
    },
    /// The file is not a whole safetensors file.
    #[error("`{}` can't be read as tensors: {reason}", path.display())]
    #[diagnostic(help("{}", if *is_pointer { LFS_HINT } else { "expected a whole safetensors file: is it cut off, or still being written?" }))]
    NotTensors {
        /// Path as the user wrote it.
        path: PathBuf,
        /// The fault found in it.
        reason: String,
        /// Whether it is a pointer of Git LFS.
        is_pointer: bool,
    },
    /// The system refused to open or read the file.
    #[error("{what} `{}` can't be read: {source}", path.display())]
    #[diagnostic(help("check its permissions and the disk"))]
    Unreadable {
        /// Purpose of the file.
        what: &'static str,
        /// Path as the user wrote it.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Opens `path` for reading; `what` names its purpose in error messages, such as "data file".
///
/// A pipe that this process inherited, such as `<(zcat rows.csv.gz)` in a shell, is opened as well.
pub fn open(what: &'static str, path: &Path) -> Result<File, FileError> {
    let unreadable = |source| FileError::Unreadable { what, path: path.to_owned(), source };
    let opened = if is_inherited_pipe(path) { File::open(path) } else { open_regular(path) };
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(FileError::Missing { what, path: path.to_owned() });
        }
        Err(error) => {
            return Err(match error.downcast::<NotRegular>() {
                Ok(NotRegular(kind)) => FileError::NotRegular { what, path: path.to_owned(), kind },
                Err(error) => unreadable(error),
            });
        }
    };
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(FileError::IsFolder { what, path: path.to_owned() });
    }
    Ok(file)
}

/// Reads a regular file, but at most its first `max_bytes` bytes.
pub fn read_regular(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads all of `path`; `what` names its purpose in error messages.
pub fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let read = open(what, path)?.read_to_end(&mut bytes);
    read.map_err(|source| FileError::Unreadable { what, path: path.to_owned(), source })?;
    Ok(bytes)
}

/// Opens a regular file or a folder. Anything else is not opened, because opening a named pipe waits for a writer, and reading a
/// device may never end.
///
/// # Errors
/// I/O errors, and an error that names the kind of file if it is neither a regular file nor a folder.
pub fn open_regular(path: &Path) -> io::Result<File> {
    check_regular(path.metadata()?.file_type())?;
    // Another program may replace the file in the meantime. The flag has no effect on regular files.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    check_regular(file.metadata()?.file_type())?;
    Ok(file)
}

/// Opens a regular file under a name of the program's, such as one of a run folder. A link in its place is refused, because through it a run
/// could write to any file of the user; a pipe, a socket or a device is refused before it blocks.
///
/// # Errors
/// I/O errors, and an error that names the kind of file if it is not a regular file.
pub fn open_unlinked(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => io::Error::other(NotRegular("a link")),
        Some(Errno::NXIO) => io::Error::other(NotRegular("a pipe or a socket")),
        _ => error,
    })?;
    check_regular(file.metadata()?.file_type())?;
    Ok(file)
}

/// Creates a file under a name of the program's, to write and to read. What has that name is removed and never opened: it may be a link, or
/// a pipe.
///
/// # Errors
/// I/O errors.
pub fn create_new(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => OpenOptions::new().read(true).write(true).create_new(true).open(path),
    }
}

/// Checks that a new file may take the name `path`: nothing or a regular file has it. A device or a pipe keeps its name, which other programs
/// use too.
///
/// # Errors
/// An error that names the kind of file.
pub fn check_place(path: &Path) -> io::Result<()> {
    path.metadata().map_or(Ok(()), |data| check_regular(data.file_type()))
}

/// Whether an error says that a path names something else than a regular file.
pub(crate) fn is_not_regular(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NotRegular>())
}

/// Kind of file that a path names instead of a regular file.
#[derive(Debug, thiserror::Error)]
#[error("it is {0}, expected a regular file")]
struct NotRegular(&'static str);

/// Returns an error if it is neither a file nor a folder.
pub(crate) fn check_regular(kind: FileType) -> io::Result<()> {
    special_kind(kind).map_or(Ok(()), |name| Err(io::Error::other(NotRegular(name))))
}

/// Name of the kind of file, if it is neither a regular file nor a folder.
pub fn special_kind(kind: FileType) -> Option<&'static str> {
    match kind {
        kind if kind.is_file() || kind.is_dir() => None,
        kind if kind.is_fifo() => Some("a named pipe"),
        kind if kind.is_socket() => Some("a socket"),
        _ => Some("a device"),
    }
}

/// Whether the path is a pipe among the open files of this process.
fn is_inherited_pipe(path: &Path) -> bool {
    let is_open =
        path == Path::new("/dev/stdin") || path.starts_with("/dev/fd") || path.starts_with("/proc/self/fd");
    is_open && path.metadata().is_ok_and(|data| data.file_type().is_fifo())
}

/// The hint for a path that does not exist.
pub fn missing_hint(path: &Path) -> String {
    if path.to_str().is_some_and(|path| path.contains("://")) {
        return "addresses (s3://, gs://, az://, https://, hf://) name rows and models; download other files, or mount the store"
            .to_owned();
    }
    if let Ok(target) = fs::read_link(path) {
        let at = if target.is_relative() { path.with_file_name("").join(&target) } else { target };
        return format!("it is a link to a file that is not there: `{}`", at.display());
    }
    if path == Path::new("-") {
        return "the rows are read several times, and by all ranks; stdin can be read once: save it first, \
                `cat > rows.csv`"
            .to_owned();
    }
    if let Some(near) = near_entry(path) {
        return format!("did you mean `{}`?", near.display());
    }
    match std::env::current_dir() {
        Ok(folder) if path.is_relative() => {
            let folder = folder.display();
            format!("relative paths start at the current folder, {folder}")
        }
        _ => "check the spelling; with several hosts, check that each has the file".to_owned(),
    }
}

/// The entry of the same folder whose name differs by at most a few letters.
fn near_entry(path: &Path) -> Option<PathBuf> {
    /// Maximum number of names that are compared; a folder may contain millions.
    const MAX_ENTRIES: usize = 10_000;
    let name = path.file_name()?.to_str()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let entries = fs::read_dir(folder.unwrap_or(Path::new("."))).ok()?;
    let names = entries.take(MAX_ENTRIES).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let most = (name.chars().count() / 5).clamp(1, 3);
    let distances = names.map(|other| (strsim::damerau_levenshtein(name, &other), other));
    let (_, near) = distances.filter(|(distance, _)| *distance <= most).min()?;
    Some(path.with_file_name(near))
}

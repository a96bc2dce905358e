//! Runs the program in its own folder and checks its messages and the files that it leaves.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::common::ddp_train;

/// Eight rows, two features, labels 0 and 1: the minimum that trains.
pub(crate) const GOOD_CSV: &str = "x,y,label\n0,1,0\n1,0,1\n0,2,0\n2,0,1\n0,3,0\n3,0,1\n0,4,0\n4,0,1\n";

/// A folder in which the program runs.
pub(crate) struct Place {
    folder: TempDir,
}

/// Visible results of a run of the program.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// Makes a place with `files`, each a name and its content.
    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let place = Self::new();
        for (name, content) in files {
            place.write(name, content.as_bytes());
        }
        place
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) {
        let path = self.file(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Runs the program to its end, on one thread so that tests don't fight for cores.
    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        self.end(Command::new(ddp_train()).args(args))
    }

    /// Runs any command in this folder to its end.
    pub(crate) fn end(&self, command: &mut Command) -> Ended {
        let output = command
            .current_dir(self.path())
            .stdin(Stdio::null())
            .env("RAYON_NUM_THREADS", "1")
            // A GPU of the machine must not affect the tests.
            .env("CUDA_VISIBLE_DEVICES", "")
            .output()
            .unwrap();
        Ended {
            status: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs the program, which must refuse: status 2, one message with all `parts`, and no file created, changed or removed.
    #[track_caller]
    pub(crate) fn refuses(&self, args: &[&str], parts: &[&str]) {
        self.refuses_with(2, args, parts);
    }

    /// Same as [`Place::refuses`], with a different exit status.
    #[track_caller]
    pub(crate) fn refuses_with(&self, status: i32, args: &[&str], parts: &[&str]) {
        let before = self.files();
        let ended = self.run(args);
        ended.is_error(status, parts);
        let after = self.files();
        assert!(after == before, "files changed by a refused run: {:?} -> {:?}", before.keys(), after.keys());
    }

    /// Every file and folder in the place, with the files' contents.
    pub(crate) fn files(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let is_folder = path.is_dir();
                // A broken link has no content.
                found.insert(path.clone(), (!is_folder).then(|| fs::read(&path).unwrap_or_default()));
                if is_folder {
                    folders.push(path);
                }
            }
        }
        found
    }
}

impl Ended {
    /// Asserts that the program ended with `status`, one message on stderr that contains all `parts` and a hint, and empty
    /// stdout.
    #[track_caller]
    pub(crate) fn is_error(&self, status: i32, parts: &[&str]) {
        assert_eq!(self.status, Some(status), "{self:#?}");
        assert_eq!(self.stdout, "", "{self:#?}");
        self.says_once(parts);
        assert!(self.stderr.ends_with('\n'), "{self:#?}");
        let last = self.stderr.lines().rfind(|line| !line.is_empty()).unwrap();
        // clap's own messages end in one of two forms.
        let is_way_out = last.starts_with("hint: ")
            || last.starts_with("For more information, try '--help'")
            || last.contains("[possible values: ");
        assert!(is_way_out, "no way out at the end: {self:#?}");
    }

    /// Asserts that stderr, which may contain a launcher's messages too, contains one message, with all `parts`.
    #[track_caller]
    pub(crate) fn says_once(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.stderr.contains(part), "no {part:?} in {self:#?}");
        }
        let n_messages = self.stderr.matches("error: ").count();
        assert_eq!(n_messages, 1, "{self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
    }

    #[track_caller]
    pub(crate) fn is_good(&self) {
        assert_eq!(self.status, Some(0), "{self:#?}");
    }
}

/// Runs `command` with a private tmpfs, mounted with the options `mount`, over the folder `disk`; at the end, prints the names of
/// the files in `disk` on stdout. Returns `None` if this machine does not allow mounting.
pub(crate) fn with_mount(place: &Place, mount: &str, command: &[&str]) -> Option<Ended> {
    const MOUNT: &str = "mount -t tmpfs \"$0\" tmpfs disk";
    // A user is root in a user namespace, but does not own the files that mpirun has left in /tmp for root.
    const LIST: &str = "TMPDIR=$(mktemp -d) && export TMPDIR && \
                        { \"$@\"; status=$?; rm -rf \"$TMPDIR\"; ls -A disk disk/*; exit $status; }";
    fs::create_dir_all(place.file("disk")).unwrap();
    let is_root = is_root();
    let namespace = |script: &str| {
        let mut command = Command::new("unshare");
        // A regular user also needs a user namespace, if the system allows it.
        command.args(if is_root { ["-m"].as_slice() } else { &["-m", "-U", "-r"] });
        command.args(["sh", "-c", script, mount]).current_dir(place.path());
        command
    };
    if !namespace(MOUNT).output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: needs root or user namespaces, to mount a small disk");
        return None;
    }
    Some(place.end(namespace(&format!("{MOUNT} && {LIST}")).args(command)))
}

/// Whether file modes are ignored, because this is root.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

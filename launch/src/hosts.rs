//! Hosts of a job, as the user lists them, and the number of ranks that each accepts.

use std::fmt;
use std::path::Path;

use crate::error::LaunchError;

/// Maximum size of a host file.
const MAX_HOSTS_BYTES: u64 = 1 << 20;

type Result<T> = std::result::Result<T, LaunchError>;

/// A host of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) name: String,
    /// Number of ranks that the host accepts; `None` if the user gives no number.
    pub(crate) slots: Option<usize>,
}

impl Host {
    /// Whether it is the host `own`, where this process runs.
    pub(crate) fn is_local(&self, own: &str) -> bool {
        let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        ["localhost", "127.0.0.1", "::1"].contains(&self.name.as_str()) || short(&self.name) == short(own)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Names of hosts for a message.
pub(crate) fn names(hosts: &[Host]) -> String {
    hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Reads the value of `--hosts`: the name of a file, or the list itself.
pub(crate) fn read(text: &str) -> Result<Vec<Host>> {
    let path = Path::new(text);
    let is_list = text.contains([',', ':']) || !path.exists();
    let hosts = if is_list && !path.is_file() {
        text.split(',').map(|word| entry(word, || "the list".to_owned())).collect::<Result<Vec<_>>>()?
    } else {
        let failed = |source| LaunchError::HostFile { path: path.to_owned(), source };
        let text = ddp_rows::user_file::read_regular(path, MAX_HOSTS_BYTES).map_err(failed)?;
        lines(&String::from_utf8_lossy(&text), path)?
    };
    if hosts.is_empty() {
        Err(LaunchError::BadHost { place: text.to_owned(), got: String::new() })
    } else {
        Ok(hosts)
    }
}

/// Reads the hosts of a file: `node1 slots=8` (Open MPI), `node1:8` (MPICH) or `node1`; comments start with `#`.
fn lines(text: &str, path: &Path) -> Result<Vec<Host>> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let numbered = lines.enumerate().filter(|(_, line)| !line.is_empty());
    numbered.map(|(index, line)| entry(line, || format!("{} line {}", path.display(), index + 1))).collect()
}

fn entry(text: &str, place: impl Fn() -> String) -> Result<Host> {
    let bad = || LaunchError::BadHost { place: place(), got: text.trim().to_owned() };
    let mut words = text.split_whitespace();
    let first = words.next().ok_or_else(bad)?;
    let (name, mut slots) = match first.split_once(':') {
        Some((name, slots)) => (name, Some(slots)),
        None => (first, None),
    };
    for word in words {
        match word.split_once('=') {
            Some(("slots", number)) if slots.is_none() => slots = Some(number),
            // Of Open MPI's other keywords only this one is common, and --bind-to none makes it irrelevant.
            Some(("max_slots" | "max-slots", _)) => {}
            _ => return Err(bad()),
        }
    }
    let slots = slots.map(|slots| slots.parse().ok().filter(|n| (1..=1 << 20).contains(n)).ok_or_else(bad));
    // The remote shell would read a name that begins with a dash as an option.
    let is_plain = |c: char| c.is_alphanumeric() || "._-@".contains(c);
    if name.is_empty() || name.starts_with('-') || !name.chars().all(is_plain) {
        return Err(bad());
    }
    Ok(Host { name: name.to_owned(), slots: slots.transpose()? })
}

/// Number of slots of all hosts; a host without a number counts as one.
pub(crate) fn n_slots(hosts: &[Host]) -> usize {
    hosts.iter().map(|host| host.slots.unwrap_or(1)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, slots: impl Into<Option<usize>>) -> Host {
        Host { name: name.to_owned(), slots: slots.into() }
    }

    #[test]
    fn lists_and_files_say_the_same() {
        assert_eq!(read("a:2,b:3").unwrap(), [host("a", 2), host("b", 3)]);
        assert_eq!(read("node1").unwrap(), [host("node1", None)]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hosts");
        std::fs::write(&file, "# two\na slots=2\n\nb:3 # the other\nc max_slots=4\n").unwrap();
        let hosts = read(file.to_str().unwrap()).unwrap();
        assert_eq!(hosts, [host("a", 2), host("b", 3), host("c", None)]);
        assert_eq!((n_slots(&hosts), names(&hosts).as_str()), (6, "a, b, c"));
    }

    #[test]
    fn what_is_no_host_is_refused_with_its_place() {
        for text in ["", "a,", "a:0", "a:x", "-oProxyCommand=x", "a b", "a;b"] {
            let error = read(text).unwrap_err();
            assert!(matches!(error, LaunchError::BadHost { .. }), "{text}: {error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hosts");
        std::fs::write(&file, "a slots=2\nb slot=2\n").unwrap();
        let error = read(file.to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("hosts line 2") && error.contains("`b slot=2`"), "{error}");
    }

    #[test]
    fn this_host_is_known_by_its_names() {
        for name in ["localhost", "127.0.0.1", "node1", "node1.cluster.local"] {
            assert!(host(name, None).is_local("node1"), "{name}");
        }
        assert!(
            host("node1", None).is_local("node1.cluster.local") && !host("node2", None).is_local("node1")
        );
    }
}

//! Memory that this process may use: the limits of its control groups, of which a container is one, and of the machine.
//!
//! A process that exceeds the limit of a group is killed, and can say nothing. The group counts such kills, so that others can.
//!
//! ```
//! use ddp::host_memory::{MemoryKills, container_share, limit};
//!
//! let kills = MemoryKills::watch();
//! if let Some(limit) = limit() {
//!     println!("{limit}; {:?} bytes of a container for this rank", container_share());
//! }
//! // After a process has ended by SIGKILL.
//! if let Some(limit) = kills.since() {
//!     println!("killed for memory ({limit})");
//! }
//! ```
//!
//! Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use ddp_comm::local_ranks;
use rustix::process::{Resource, getrlimit};

use crate::control_group::{ControlGroup, read_entry, read_number};

/// Way out for a run that was killed for want of memory.
pub const MEMORY_HINT: &str = "lower `data.loader_memory_mib` or `train.batch_size`, start fewer ranks on this host, or raise the \
     limit";

/// Limit on memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit in bytes.
    pub bytes: u64,
    /// Whether a control group has it, rather than the machine.
    pub is_container: bool,
}

impl MemoryLimit {
    /// Whether processes that together hold `bytes` are close to the limit of their container.
    pub fn is_near(&self, bytes: u64) -> bool {
        self.is_container && bytes >= self.bytes / 10 * 9
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.is_container { "limit" } else { "the machine has" };
        write!(f, "{whose} {}", size(self.bytes))
    }
}

/// Formats a number of bytes, such as `40 MiB` or `3.1 GiB`.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1_073_741_824 => format!("{:.0} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

/// The lowest limit on the memory of this process, read at most once per second; `None` if the system reports none.
pub fn limit() -> Option<MemoryLimit> {
    static LAST: Mutex<Option<(Instant, Option<MemoryLimit>)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    match *last {
        Some((read, limit)) if read.elapsed() < Duration::from_secs(1) => limit,
        _ => {
            let limit = MemoryGroup::own().limit(Path::new("/"));
            *last = Some((Instant::now(), limit));
            limit
        }
    }
}

/// This rank's share of the limit of its container, which all ranks of this host have together; `None` outside of a container.
pub fn container_share() -> Option<u64> {
    share_of(limit().filter(|limit| limit.is_container))
}

/// This rank's share of the memory of its container or machine.
pub fn host_share() -> Option<u64> {
    share_of(limit())
}

/// Bytes of addresses that this process may have (`ulimit -v`).
pub fn address_space() -> u64 {
    getrlimit(Resource::As).current.unwrap_or(u64::MAX)
}

fn share_of(limit: Option<MemoryLimit>) -> Option<u64> {
    Some(limit?.bytes / local_ranks() as u64)
}

/// Memory of the machine that processes can still take, in bytes; `None` if the system does not report it.
pub fn available() -> Option<u64> {
    machine_total(Path::new("/"), "MemAvailable:")
}

/// Kills for want of memory in the control groups of this process, from the start of this value on.
#[derive(Debug, Clone)]
pub struct MemoryKills {
    group: MemoryGroup,
    before: Kills,
}

/// Number of processes that were killed for want of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kills {
    /// In each group, from that of the process up.
    OfGroups(Vec<u64>),
    /// On the machine, where no group counts them.
    OfMachine(Option<u64>),
}

impl MemoryKills {
    /// Starts to count.
    pub fn watch() -> Self {
        Self::of(MemoryGroup::own().clone(), Path::new("/"))
    }

    fn of(group: MemoryGroup, root: &Path) -> Self {
        let before = group.kills(root);
        MemoryKills { group, before }
    }

    /// Number of processes of this container that were killed for want of memory before this value; 0 outside of a container.
    pub fn before(&self) -> u64 {
        match &self.before {
            Kills::OfGroups(before) if limit().is_some_and(|limit| limit.is_container) => {
                before.first().copied().unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// The limit for which a process was killed since then, if one was.
    pub fn since(&self) -> Option<MemoryLimit> {
        self.since_at(Path::new("/"))
    }

    fn since_at(&self, root: &Path) -> Option<MemoryLimit> {
        match (&self.before, self.group.kills(root)) {
            (Kills::OfGroups(before), Kills::OfGroups(now)) => {
                let has_killed = before.iter().zip(&now).any(|(before, now)| now > before);
                has_killed.then(|| self.group.limit(root)).flatten()
            }
            (Kills::OfMachine(Some(before)), Kills::OfMachine(Some(now))) if now > *before => {
                self.group.limit(root)
            }
            _ => None,
        }
    }
}

/// The control groups that limit the memory of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct MemoryGroup(ControlGroup);

impl MemoryGroup {
    /// The groups of this process, which it stays in: the limit is asked for several times with each block of rows.
    fn own() -> &'static Self {
        static OWN: OnceLock<MemoryGroup> = OnceLock::new();
        OWN.get_or_init(|| MemoryGroup::find(Path::new("/")))
    }

    fn find(root: &Path) -> Self {
        MemoryGroup(ControlGroup::find(root, "memory", "memory.max"))
    }

    fn limit(&self, root: &Path) -> Option<MemoryLimit> {
        let name = if self.0.is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        // "max" and, in version 1, a number beyond all machines mean none.
        let limits = self.0.folders.iter().filter_map(|folder| read_number(&folder.join(name)));
        let machine = machine_total(root, "MemTotal:");
        let of_group = limits.min().filter(|bytes| machine.is_none_or(|machine| *bytes < machine));
        of_group
            .map(|bytes| MemoryLimit { bytes, is_container: true })
            .or(machine.map(|bytes| MemoryLimit { bytes, is_container: false }))
    }

    fn kills(&self, root: &Path) -> Kills {
        let name = if self.0.is_v2 { "memory.events" } else { "memory.oom_control" };
        let of = |folder: &PathBuf| read_entry(&folder.join(name), "oom_kill");
        let of_groups: Option<Vec<u64>> = self.0.folders.iter().map(of).collect();
        match of_groups {
            Some(kills) if !kills.is_empty() => Kills::OfGroups(kills),
            _ => Kills::OfMachine(read_entry(&root.join("proc/vmstat"), "oom_kill")),
        }
    }
}

/// A row of `/proc/meminfo`, in bytes.
fn machine_total(root: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A file system with these files.
    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files.iter().chain(&[("proc/meminfo", "MemTotal: 1048576 kB\n")]) {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn limit_of(root: &tempfile::TempDir) -> Option<(u64, bool)> {
        let limit = MemoryGroup::find(root.path()).limit(root.path())?;
        Some((limit.bytes / MIB, limit.is_container))
    }

    const V2: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n";
    const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:5 - cgroup cgroup rw,memory\n";

    #[test]
    fn the_lowest_limit_of_all_groups_counts() {
        let root = system(&[
            ("proc/self/cgroup", "0::/pod/box\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/cgroup.procs", ""),
            ("sys/fs/cgroup/pod/cgroup.procs", ""),
            ("sys/fs/cgroup/pod/memory.max", "104857600\n"),
            ("sys/fs/cgroup/pod/box/cgroup.procs", ""),
            ("sys/fs/cgroup/pod/box/memory.max", "max\n"),
        ]);
        assert_eq!(limit_of(&root), Some((100, true)));
        fs::write(root.path().join("sys/fs/cgroup/pod/box/memory.max"), "41943040\n").unwrap();
        assert_eq!(limit_of(&root), Some((40, true)));
        for name in ["pod", "pod/box"] {
            fs::write(root.path().join("sys/fs/cgroup").join(name).join("memory.max"), "max\n").unwrap();
        }
        assert_eq!(limit_of(&root), Some((1024, false)), "the machine's memory");
    }

    #[test]
    fn version_1_has_other_names() {
        let none = "9223372036854771712\n";
        let root = system(&[
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/a/b\n0::/\n"),
            ("proc/self/mountinfo", &format!("{V1}{V2}")),
            ("sys/fs/cgroup/memory/cgroup.procs", ""),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", none),
            ("sys/fs/cgroup/memory/a/cgroup.procs", ""),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "83886080\n"),
            ("sys/fs/cgroup/memory/a/b/cgroup.procs", ""),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", none),
        ]);
        assert_eq!(limit_of(&root), Some((80, true)));
        fs::write(root.path().join("sys/fs/cgroup/memory/a/memory.limit_in_bytes"), none).unwrap();
        assert_eq!(limit_of(&root), Some((1024, false)));
    }

    /// Docker without a namespace of groups: the path is the host's, and the mount is the container's own group.
    #[test]
    fn a_container_that_sees_only_its_own_group_is_limited_by_it() {
        let own = V1.replace("0:32 / ", "0:32 /docker/1 ");
        for path in ["/docker/1", "/docker/2", "/../.."] {
            let root = system(&[
                ("proc/self/cgroup", &format!("4:memory:{path}\n")),
                ("proc/self/mountinfo", &own),
                ("sys/fs/cgroup/memory/cgroup.procs", ""),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "83886080\n"),
            ]);
            assert_eq!(limit_of(&root), Some((80, true)), "{path}");
        }
        assert_eq!(limit_of(&system(&[])), Some((1024, false)), "no groups");
    }

    #[test]
    fn kills_are_counted_by_the_group_or_else_the_machine() {
        let events = "sys/fs/cgroup/pod/memory.events";
        let root = system(&[
            ("proc/self/cgroup", "0::/pod\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/pod/cgroup.procs", ""),
            ("sys/fs/cgroup/pod/memory.max", "41943040\n"),
            (events, "low 0\noom 3\noom_kill 1\noom_group_kill 0\n"),
            ("proc/vmstat", "nr_free 1\noom_kill 7\n"),
        ]);
        let kills = MemoryKills::of(MemoryGroup::find(root.path()), root.path());
        assert_eq!(kills.since_at(root.path()), None);
        fs::write(root.path().join("proc/vmstat"), "oom_kill 8\n").unwrap();
        assert_eq!(kills.since_at(root.path()), None, "of another container");
        fs::write(root.path().join(events), "oom 4\noom_kill 2\n").unwrap();
        let limit = kills.since_at(root.path()).unwrap();
        assert_eq!((limit.bytes, limit.to_string().as_str()), (40 * MIB, "limit 40 MiB"));
        assert!(limit.is_near(38 * MIB) && !limit.is_near(20 * MIB));

        let root = system(&[("proc/vmstat", "oom_kill 7\n")]);
        let kills = MemoryKills::of(MemoryGroup::find(root.path()), root.path());
        fs::write(root.path().join("proc/vmstat"), "oom_kill 8\n").unwrap();
        let machine = MemoryLimit { bytes: 1024 * MIB, is_container: false };
        assert_eq!(kills.since_at(root.path()), Some(machine));
        assert_eq!(machine.to_string(), "the machine has 1.0 GiB");
    }
}

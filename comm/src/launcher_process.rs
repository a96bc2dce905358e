//! The processes that started this rank, and whether they still run.
//!
//! A launcher that is killed cannot end its ranks, and ranks that stay behind hold memory and GPUs. Only the parents in `/proc` are
//! read, because they work with every launcher.

use std::fs;
use std::io;
use std::os::unix::process::parent_id;
use std::path::PathBuf;

/// Programs that start ranks on a host, as `/proc/PID/comm` shows them: at most 15 characters.
const NAMES: [&str; 14] = [
    "mpirun",
    "mpiexec",
    "orterun",
    "orted",
    "prterun",
    "prte",
    "prted",
    "mpiexec.hydra",
    "hydra_pmi_proxy",
    "hydra_bstrap_pr",
    "pmi_proxy",
    "slurmstepd",
    "torchrun",
    "pt_elastic",
];

/// Programs whose end does not end what they have started in the background: shells, and those that start sessions. Of a parent of
/// another name, such as a Python program that sets `RANK` for each rank, the ranks are nothing without it.
const LEFT_BEHIND: &str = "sh bash dash zsh ksh fish csh tcsh ash busybox nu pwsh xonsh sshd dropbear mosh-server login su sudo screen \
                           tmux zellij init systemd tini dumb-init docker-init catatonit";

/// The processes above this one that started it: mpirun or its daemon on this host, and this same program as their supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LauncherProcess {
    pids: Vec<u32>,
}

impl LauncherProcess {
    /// Finds them among the ancestors of this process. With `is_rank`, a launcher of unknown name is the parent, unless that is a shell or
    /// the like, which ranks in its background outlive; otherwise `None`.
    pub fn find(is_rank: bool) -> Option<Self> {
        let own = fs::read_link("/proc/self/exe").ok();
        let is_one = |pid: &u32| {
            let is_own = || fs::read_link(format!("/proc/{pid}/exe")).ok() == own;
            name_of(*pid).is_some() || (own.is_some() && is_own())
        };
        let ancestors: Vec<u32> = ancestors(parent_id()).map_while(Result::ok).collect();
        let mut pids: Vec<u32> = ancestors.iter().copied().filter(is_one).collect();
        if pids.is_empty() && is_rank {
            pids.extend(ancestors.first().filter(|pid| !is_left_behind(&comm(**pid).unwrap_or_default())));
        }
        (!pids.is_empty()).then_some(LauncherProcess { pids })
    }

    /// Whether one of them has ended. Its children then have another parent, which is one of their earlier ancestors or the first process:
    /// an id that a new process has taken does not come up among them, so ids are enough and no pidfd needs to be held.
    pub fn is_gone(&self) -> bool {
        // A process between may end while its parent is read: the next call finds out.
        let now: io::Result<Vec<u32>> = ancestors(parent_id()).collect();
        now.is_ok_and(|now| self.pids.iter().any(|pid| !now.contains(pid)))
    }
}

/// Name of the launcher among the ancestors of this process, whatever the environment says. A batch script of Slurm has none: its
/// parent starts no ranks.
pub fn launcher_above() -> Option<&'static str> {
    let names = ancestors(parent_id()).map_while(Result::ok).filter_map(name_of);
    names.into_iter().find(|name| *name != "slurmstepd")
}

/// Whether the parent of `pid`, a rank on this host, has also started a rank 0 that meets others at `port`, and is not the parent of this
/// process: then the two are of different jobs.
pub(crate) fn has_own_rank_0(pid: u32, port: u16) -> bool {
    let Ok(parent) = parent_of(pid) else { return false };
    let expected = ["RANK=0".to_owned(), format!("MASTER_PORT={port}")];
    let is_rank_0 = |pid: u32| {
        // Of another user, it can't be read.
        let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let has = |of: &String| variables.split(|byte| *byte == 0).any(|variable| variable == of.as_bytes());
        expected.iter().all(has)
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    parent != parent_id() && pids.any(|pid| parent_of(pid).is_ok_and(|of| of == parent) && is_rank_0(pid))
}

/// The folder of the program of the nearest launcher among the ancestors of this process.
pub(crate) fn launcher_folder() -> Option<PathBuf> {
    let pid = ancestors(parent_id()).map_while(Result::ok).find(|pid| name_of(*pid).is_some())?;
    Some(fs::read_link(format!("/proc/{pid}/exe")).ok()?.parent()?.to_owned())
}

/// The name of the process, if it is one that starts ranks.
fn name_of(pid: u32) -> Option<&'static str> {
    let name = comm(pid)?;
    NAMES.into_iter().find(|known| *known == name)
}

fn comm(pid: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

/// Whether a process of this name starts others that outlive it, such as `bash`, `-bash`, `sshd-session` or `tmux: server`.
fn is_left_behind(name: &str) -> bool {
    let name = name.trim_start_matches('-');
    let word = name.split([':', ' ']).next().unwrap_or_default();
    LEFT_BEHIND.split(' ').any(|known| known == word) || name.starts_with("sshd-")
}

/// The processes from `first` up to the first one of the system or container, without that one: it ends with all others.
fn ancestors(first: u32) -> impl Iterator<Item = io::Result<u32>> {
    let is_below_init = |pid: &u32| *pid > 1;
    let first = Some(first).filter(is_below_init).map(Ok);
    std::iter::successors(first, move |pid| {
        let pid = pid.as_ref().ok()?;
        parent_of(*pid).map(|parent| Some(parent).filter(is_below_init)).transpose()
    })
}

fn parent_of(pid: u32) -> io::Result<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The parent follows the name, which may contain anything, and the state.
    let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
    parent.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_of_a_rank_is_its_launcher_while_it_lives() {
        let launcher = LauncherProcess::find(true);
        // Where this process is the first one of a container, it has no parent.
        if let Some(launcher) = launcher {
            assert!(!launcher.is_gone());
            let others = LauncherProcess { pids: vec![std::process::id()] };
            assert!(others.is_gone(), "no process is its own ancestor");
        }
    }

    #[test]
    fn shells_and_sessions_are_no_launchers() {
        let names = ["bash", "-zsh", "sh", "sshd", "sshd-session", "tmux: server", "systemd", "tini"];
        assert!(names.iter().all(|name| is_left_behind(name)));
        let others = ["python3", "pt_elastic", "bash-launcher"];
        assert!(!others.iter().any(|name| is_left_behind(name)));
    }

    #[test]
    fn ancestors_end_below_the_first_process() {
        assert_eq!(ancestors(1).count(), 0);
        assert_eq!(ancestors(0).count(), 0);
        let parent = parent_of(std::process::id()).unwrap();
        assert_eq!(parent, parent_id());
        assert!(ancestors(u32::MAX).nth(1).unwrap().is_err(), "no such process");
    }
}

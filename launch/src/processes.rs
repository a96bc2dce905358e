//! Processes that this one has started, and their descendants, from `/proc`: finds the ranks among them, and ends those that outlive their
//! launcher.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};

use crate::decision::{Ended, SIGNALED};

/// Interval at which processes that should end are checked.
const POLL: Duration = Duration::from_millis(20);

/// A process of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    /// Time of its start in ticks since the host's, which tells it from a later process of the same id.
    started: u64,
    /// Whether it has ended but its parent has not yet collected its status.
    is_zombie: bool,
    /// Whether a signal has stopped it (SIGSTOP); a debugger's stop does not count.
    is_frozen: bool,
}

/// Descendants of this process that belong to its job.
#[derive(Debug, Clone, Default)]
pub(crate) struct Below {
    /// Ids and start times of processes that a shell had started before it became this process; their descendants do not belong either.
    others: BTreeSet<(i32, u64)>,
}

impl Below {
    /// Leaves out all descendants that this process has now, before it starts the job.
    pub(crate) fn new() -> Self {
        let before = Below::default().all();
        Below { others: before.iter().map(|process| (process.pid, process.started)).collect() }
    }

    /// Those that run `program`.
    pub(crate) fn running(&self, program: &Path) -> Vec<i32> {
        let runs = |pid: &i32| program_of(&pid.to_string()).is_some_and(|path| path == program);
        let alive = self.all().into_iter().filter(|process| !process.is_zombie);
        alive.map(|process| process.pid).filter(runs).collect()
    }

    /// Those that a signal has stopped.
    pub(crate) fn frozen(&self) -> Vec<i32> {
        self.all().into_iter().filter(|process| process.is_frozen).map(|process| process.pid).collect()
    }

    /// Number of those that ran `program` and have ended, but whose status their parent has not collected: a launcher that
    /// hangs leaves such processes.
    pub(crate) fn n_unreaped(&self, program: &Path) -> usize {
        /// Number of bytes of a process name that the system keeps.
        const NAME_LEN: usize = 15;
        let Some(name) = program.file_name().map(|name| name.as_encoded_bytes()) else { return 0 };
        let name = &name[..name.len().min(NAME_LEN)];
        let is_one =
            |pid: i32| fs::read(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_ascii_end() == name);
        self.all().into_iter().filter(|process| process.is_zombie && is_one(process.pid)).count()
    }

    /// Kills all of them, whose subreaper this process must be, and waits for their end. Returns the number that are
    /// left after `deadline`: processes that wait for a device or a file system can't be killed.
    pub(crate) fn kill_all(&self, deadline: Duration) -> usize {
        let started = Instant::now();
        loop {
            let processes = self.all();
            for process in &processes {
                let Some(pid) = Pid::from_raw(process.pid) else { continue };
                if process.is_zombie {
                    // A process whose parent is alive is reaped by it, or adopted by this process once the parent has ended.
                    let _ = waitpid(Some(pid), WaitOptions::NOHANG);
                } else {
                    // The process may have ended in the meantime.
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            let n_alive = processes.iter().filter(|process| !process.is_zombie).count();
            if processes.is_empty() || started.elapsed() > deadline {
                return n_alive;
            }
            std::thread::sleep(POLL);
        }
    }

    /// The processes of the job.
    fn all(&self) -> Vec<Process> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let all: Vec<Process> = pids.filter_map(read).collect();
        below(std::process::id().cast_signed(), &all, &self.others)
    }
}

/// Path of this program, without the note that its file was replaced.
pub(crate) fn own_program() -> PathBuf {
    program_of("self").unwrap_or_default()
}

fn program_of(pid: &str) -> Option<PathBuf> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let text = path.to_str().and_then(|text| text.strip_suffix(" (deleted)"));
    Some(text.map_or_else(|| path.clone(), PathBuf::from))
}

/// Memory of these processes that is in no file, in bytes: their own, and the most that one of them has in common with others. 0 where the
/// system does not report it.
pub(crate) fn resident_bytes(pids: &[i32]) -> u64 {
    let (mut own, mut in_common) = (0, 0);
    for pid in pids {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
            kib.unwrap_or(0) << 10
        };
        own += bytes("RssAnon:");
        in_common = bytes("RssShmem:").max(in_common);
    }
    own + in_common
}

/// Sends `signal` to process `pid`, unless the signal would end it; returns whether it was sent.
pub(crate) fn notify(pid: i32, signal: Signal) -> bool {
    let has = |mask| has_signal(&pid.to_string(), mask, signal.as_raw());
    // The C library blocks all signals for moments, as while it starts a thread.
    let is_blocked = || {
        let stays = |_| {
            std::thread::sleep(POLL);
            has("SigBlk:")
        };
        has("SigBlk:") && (0..2).all(stays)
    };
    let is_safe = has("SigCgt:") || is_blocked();
    is_safe && Pid::from_raw(pid).is_some_and(|pid| kill_process(pid, signal).is_ok())
}

fn has_signal(pid: &str, mask: &str, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(mask));
    let bits = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    bits & (1 << (signal - 1)) != 0
}

/// The descendants of `root`, at any depth, without `others` and theirs.
fn below(root: i32, all: &[Process], others: &BTreeSet<(i32, u64)>) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let mut parents = BTreeSet::from([root]);
    while !parents.is_empty() {
        let is_child = |process: &&Process| {
            parents.contains(&process.parent) && !others.contains(&(process.pid, process.started))
        };
        let children: Vec<Process> = all.iter().filter(is_child).copied().collect();
        parents = children.iter().map(|process| process.pid).collect();
        found.extend(children);
    }
    found
}

fn read(pid: i32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // State, parent and, as field 22, the start follow the name, which may contain anything.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    let state = words.next()?;
    let (is_zombie, is_frozen) = (matches!(state, "Z" | "X"), state == "T");
    let parent = words.next()?.parse().ok()?;
    Some(Process { pid, parent, started: words.nth(17)?.parse().ok()?, is_zombie, is_frozen })
}

/// Time limit for the launcher to exit after SIGTERM.
const TERM_DEADLINE: Duration = Duration::from_secs(3);
/// Time limit for the other ranks to end after one has failed, beside that for a save: they end each other within three seconds.
const FAILED_DEADLINE: Duration = Duration::from_secs(5);

/// The processes, and how they ended.
#[derive(Debug)]
pub(crate) struct Started {
    /// Whether they are the ranks of a job.
    are_ranks: bool,
    running: Vec<Child>,
    /// The first end of a rank that was not a success.
    failed: Option<(i32, Instant)>,
    /// The end of a launcher, or of ranks without a failure.
    ended: Option<Ended>,
}

impl Started {
    /// None yet. With `are_ranks`, the ranks of a job that join by their environment; otherwise a launcher, or a rank alone.
    pub(crate) fn new(are_ranks: bool) -> Self {
        Started { are_ranks, running: Vec::new(), failed: None, ended: None }
    }

    /// Starts one more.
    ///
    /// # Errors
    /// The system's error, after which no process is left.
    pub(crate) fn spawn(&mut self, mut command: Command) -> io::Result<()> {
        let child = command.spawn().inspect_err(|_| self.end())?;
        self.running.push(child);
        Ok(())
    }

    /// Process ids of those that run.
    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> {
        self.running.iter().map(|child| child.id().cast_signed())
    }

    /// How they ended, once all have: the launcher, or the first rank that failed.
    ///
    /// - `save`: time that the other ranks may take for a save
    pub(crate) fn ended(&mut self, save: impl Fn() -> Duration) -> Option<Ended> {
        let mut is_hung = false;
        let mut ends = Vec::new();
        self.running.retain_mut(|child| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                ends.push(status);
                false
            }
            // Another part of the process has already collected the status.
            Err(_) => {
                is_hung = true;
                false
            }
        });
        for status in ends {
            self.note(status);
        }
        if is_hung {
            self.ended.get_or_insert(Ended::Hung);
        }
        let is_late = |since: Instant| {
            since.elapsed() > FAILED_DEADLINE && since.elapsed() > FAILED_DEADLINE + save()
                || self.are_frozen()
        };
        if self.failed.is_some_and(|(_, since)| is_late(since)) {
            self.end();
        }
        if !self.running.is_empty() {
            return None;
        }
        self.failed.map(|(code, _)| Ended::Code(code)).or(self.ended)
    }

    /// Whether a signal has stopped all that are left: they cannot end by themselves.
    fn are_frozen(&self) -> bool {
        self.pids().all(|pid| read(pid).is_some_and(|process| process.is_frozen))
    }

    fn note(&mut self, status: ExitStatus) {
        let ended = match (status.code(), status.signal()) {
            (Some(code), _) => Ended::Code(code),
            // As mpirun returns the status of a rank.
            (None, Some(signal)) if self.are_ranks => Ended::Code(SIGNALED + signal),
            (None, Some(signal)) => Ended::Signal(signal),
            (None, None) => Ended::Hung,
        };
        match ended {
            Ended::Code(code) if self.are_ranks && code != 0 => {
                self.failed.get_or_insert((code, Instant::now()));
            }
            ended => self.ended = Some(ended),
        }
    }

    /// Ends the launcher with SIGTERM, on which it ends the ranks of all hosts, then with SIGKILL to its group; ranks of this process with
    /// SIGKILL, since they would save a checkpoint on SIGTERM.
    pub(crate) fn end(&mut self) {
        let pids: Vec<_> = self.pids().filter_map(Pid::from_raw).collect();
        if !self.are_ranks {
            pids.iter().for_each(|pid| _ = kill_process(*pid, Signal::TERM));
            let asked = Instant::now();
            while asked.elapsed() < TERM_DEADLINE {
                if self.running.iter_mut().all(|child| !matches!(child.try_wait(), Ok(None))) {
                    return;
                }
                std::thread::sleep(POLL);
            }
        }
        pids.iter().for_each(|pid| _ = kill_process_group(*pid, Signal::KILL));
        self.running.iter_mut().for_each(|child| _ = child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_of_children_count() {
        let process = |pid, parent| Process { pid, parent, started: 7, is_zombie: false, is_frozen: false };
        let all = [process(9, 5), process(2, 1), process(5, 2), process(3, 1), process(7, 3)];
        let pids = |root, others: &[(i32, u64)]| {
            let others = others.iter().copied().collect();
            below(root, &all, &others).iter().map(|process| process.pid).collect::<Vec<_>>()
        };
        assert_eq!(pids(2, &[]), [5, 9]);
        assert_eq!(pids(1, &[]), [2, 3, 5, 7, 9]);
        assert!(pids(9, &[]).is_empty());
        // Process 3 has the id of one that has ended.
        assert_eq!(pids(1, &[(2, 7), (3, 6)]), [3, 7]);
    }

    #[test]
    fn the_state_of_signals_is_read() {
        assert!(resident_bytes(&[std::process::id().cast_signed()]) > 0);
        // The runtime of Rust handles SIGSEGV.
        let own = std::process::id().cast_signed();
        assert!(has_signal("self", "SigCgt:", 11) && !notify(own, Signal::USR2));
        assert!(!own_program().as_os_str().is_empty());
    }

    fn ended(are_ranks: bool, scripts: &[&str]) -> Ended {
        let mut started = Started::new(are_ranks);
        for script in scripts {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            started.spawn(command).unwrap();
        }
        loop {
            match started.ended(Duration::default) {
                Some(ended) => return ended,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    #[test]
    fn ranks_end_as_the_first_one_that_fails() {
        assert_eq!(ended(true, &["exit 0", "exit 0"]), Ended::Code(0));
        // The second one ends by itself before the first one fails.
        assert_eq!(ended(true, &["kill -KILL $$", "exit 0", "exit 0"]), Ended::Code(137));
        let fifo = tempfile::tempdir().unwrap();
        let path = fifo.path().join("f").display().to_string();
        let (first, second) = (format!("exec 3>{path}; exit 75"), format!("cat {path}; sleep 0.2; exit 3"));
        Command::new("mkfifo").arg(&path).status().unwrap();
        assert_eq!(ended(true, &[&second, &first]), Ended::Code(75));
        assert_eq!(ended(false, &["kill -KILL $$"]), Ended::Signal(9));
    }
}

//! Threads, and the limit that keeps the system from starting one.
//!
//! ```
//! use ddp_kernels::cpu::start_thread::start_thread;
//!
//! let thread = start_thread("sum", || 1 + 1)?;
//! assert_eq!(thread.join().unwrap(), 2);
//! # Ok::<(), std::io::Error>(())
//! ```

use std::fs;
use std::io;
use std::path::Path;
use std::thread::{Builder, JoinHandle};

/// Address space that a thread takes at least: its stack.
const STACK_BYTES: u64 = 4 << 20;

/// Starts a thread.
///
/// # Errors
/// The system's error, whose text names the limit that is reached.
pub fn start_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let started = Builder::new().name(name.to_owned()).spawn(work);
    started.map_err(|error| io::Error::new(error.kind(), with_limit(&error)))
}

/// The text of an error of starting a thread, with the limit that is reached: the system's own is `Resource temporarily unavailable` for each.
pub(super) fn with_limit(error: &impl std::fmt::Display) -> String {
    format!("no further thread can be started: {error}; {}", reached())
}

fn reached() -> String {
    let of_group = groups().find_map(|folder| {
        let read = |name| fs::read_to_string(format!("{folder}/{name}")).ok()?.trim().parse::<u64>().ok();
        let (max, current) = (read("pids.max")?, read("pids.current")?);
        (current >= max).then(|| format!("pids.max of the cgroup {folder} is {max}: raise that limit"))
    });
    let limit = |name: &str| {
        let limits = fs::read_to_string("/proc/self/limits").ok()?;
        let rest = limits.lines().find_map(|line| line.strip_prefix(name))?;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    };
    let in_use = || {
        let pages = fs::read_to_string("/proc/self/statm").ok()?;
        Some(pages.split(' ').next()?.parse::<u64>().ok()? * 4096)
    };
    let of_memory = || {
        let (max, used) = (limit("Max address space")?, in_use()?);
        let [max_mib, used_mib] = [max, used].map(|bytes| bytes >> 20);
        (used + STACK_BYTES > max).then(|| {
            format!(
                "RLIMIT_AS is {max_mib} MiB, of which {used_mib} MiB are in use: raise it with `ulimit -v`"
            )
        })
    };
    let of_user = || {
        limit("Max processes").map(|max| {
            format!("RLIMIT_NPROC is {max}, for all threads of this user: raise it with `ulimit -u`")
        })
    };
    let of_system = || "memory or kernel.threads-max is used up".to_owned();
    of_group.or_else(of_memory).or_else(of_user).unwrap_or_else(of_system)
}

/// Folders of the control groups of this process and of those above.
fn groups() -> impl Iterator<Item = String> {
    let lines = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let paths: Vec<_> =
        lines.lines().filter_map(|line| Some(line.splitn(3, ':').nth(2)?.to_owned())).collect();
    let above = |path: String| {
        Path::new(&path).ancestors().map(|path| path.display().to_string()).collect::<Vec<_>>()
    };
    // Of version 2, and of version 1. A container may see its own group as the first one.
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/pids"];
    let paths: Vec<_> = paths.into_iter().flat_map(above).collect();
    roots.into_iter().flat_map(move |root| paths.clone().into_iter().map(move |path| format!("{root}{path}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_started_by_its_name_and_a_limit_is_named() {
        let name = || std::thread::current().name().map(str::to_owned);
        assert_eq!(start_thread("worker", name).unwrap().join().unwrap().as_deref(), Some("worker"));
        let text = with_limit(&io::Error::from_raw_os_error(libc::EAGAIN));
        assert!(
            text.starts_with("no further thread can be started: Resource temporarily unavailable"),
            "{text}"
        );
        assert!(
            ["pids.max", "RLIMIT_AS", "RLIMIT_NPROC", "threads-max"].iter().any(|limit| text.contains(limit)),
            "{text}"
        );
    }
}

//! This host and what it allows a process: its name, its last start, the number of open files.

use std::io;

/// Connections of rank 0 per rank: for collectives, for the end of the job, and of the watchdog.
const FILES_PER_RANK: u64 = 3;
/// Files that a rank opens besides.
const OTHER_FILES: u64 = 64;
/// Limit that a process raises its own one to, if it may: some programs that it starts look at each number below the limit.
const USUAL_LIMIT: u64 = 1 << 16;

/// The host's name, or `localhost` if the system does not report one.
pub(crate) fn hostname() -> String {
    // POSIX allows 255 bytes.
    let mut buffer = [0u8; 256];
    // SAFETY: the buffer is writable for one byte less than its length, so it ends in a zero byte in any case.
    let status = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) };
    let name = buffer.split(|&byte| byte == 0).next().unwrap_or_default();
    match std::str::from_utf8(name) {
        Ok(name) if status == 0 && !name.is_empty() => name.to_owned(),
        _ => "localhost".to_owned(),
    }
}

/// Differs between hosts, and between two starts of one; empty if the system does not report it.
pub(crate) fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// Whether a listener of IPv6 is also one of IPv4, as is usual.
pub(crate) fn takes_both() -> bool {
    std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|text| text.trim() == "0")
}

/// Lets this process open the files that connections to `n_ranks` ranks take, if the system allows it.
///
/// # Errors
/// `EMFILE` if it does not.
pub(crate) fn allow_files(n_ranks: usize) -> io::Result<()> {
    let needed = FILES_PER_RANK * n_ranks as u64 + OTHER_FILES;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is writable.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Ok(());
    }
    let wanted = limit.rlim_max.min(needed.max(USUAL_LIMIT));
    if wanted > limit.rlim_cur {
        let raised = libc::rlimit { rlim_cur: wanted, ..limit };
        // SAFETY: the limit is readable.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0 {
            limit = raised;
        }
    }
    if needed <= limit.rlim_cur { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EMFILE)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_for_more_ranks_than_the_system_allows_are_refused() {
        allow_files(2).unwrap();
        assert_eq!(allow_files(1 << 40).unwrap_err().raw_os_error(), Some(libc::EMFILE));
        assert!(!hostname().is_empty() && boot_id() == boot_id());
    }
}

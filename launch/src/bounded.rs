//! Runs a short command, such as `mpirun --version`, within a time limit.

use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

const POLL: Duration = Duration::from_millis(20);
/// Number of bytes of output that are kept.
const MAX_OUTPUT: usize = 1 << 20;
/// Time for the last output of a command that has ended. A process that it left behind may keep the pipe open.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// The end of a command.
#[derive(Debug)]
pub(crate) struct Answer {
    /// `None` if it did not end within the limit and was killed, with all processes of its group.
    pub(crate) status: Option<ExitStatus>,
    /// Its stdout, and its stderr too if that was not set.
    pub(crate) text: String,
}

/// Runs `command` for at most `limit`; `both` adds its stderr to the text.
///
/// # Errors
/// Errors of the operating system, such as for a program that does not exist.
pub(crate) fn run(mut command: Command, both: bool, limit: Duration) -> io::Result<Answer> {
    let (mut from, to) = io::pipe()?;
    command.stdin(Stdio::null()).process_group(0);
    command.stderr(if both { to.try_clone()?.into() } else { Stdio::null() });
    let started = Instant::now();
    let mut child = command.stdout(to).spawn()?;
    // It holds the pipe's other end.
    drop(command);
    let kept = Arc::new(Mutex::new(Vec::new()));
    let (reading, is_read) = mpsc::channel::<()>();
    let buffer = kept.clone();
    let read = move || {
        let _reading = reading;
        let mut bytes = [0; 1 << 12];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            let mut kept = lock(&buffer);
            let n_kept = n.min(MAX_OUTPUT - kept.len());
            kept.extend_from_slice(&bytes[..n_kept]);
        }
    };
    let reader = std::thread::Builder::new().name("output".to_owned()).spawn(read);
    let status = if reader.is_ok() { end_of(&mut child, started, limit) } else { None };
    if let (None, Some(group)) = (status, Pid::from_raw(child.id().cast_signed())) {
        let _ = kill_process_group(group, Signal::KILL);
        let _ = child.wait();
    }
    reader?;
    // An error says that all was read.
    let _ = is_read.recv_timeout(LAST_OUTPUT);
    let text = String::from_utf8_lossy(&lock(&kept)).into_owned();
    Ok(Answer { status, text })
}

fn end_of(child: &mut Child, started: Instant, limit: Duration) -> Option<ExitStatus> {
    while started.elapsed() < limit {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) => std::thread::sleep(POLL),
            Err(_) => return None,
        }
    }
    None
}

fn lock(bytes: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, both: bool, limit: Duration) -> Answer {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, both, limit).unwrap()
    }

    #[test]
    fn a_command_that_does_not_end_is_killed() {
        const LONG: Duration = Duration::from_secs(60);
        let answer = shell("echo a; echo b >&2", true, LONG);
        assert_eq!((answer.text.as_str(), answer.status.unwrap().code()), ("a\nb\n", Some(0)));
        assert_eq!(shell("echo a; echo b >&2", false, LONG).text, "a\n");
        let started = Instant::now();
        for script in ["echo a; sleep 100 & sleep 100", "while :; do echo yes; done"] {
            let answer = shell(script, true, Duration::from_millis(200));
            assert!(answer.status.is_none() && !answer.text.is_empty(), "{script}");
        }
        // A process in the background keeps the pipe.
        assert_eq!(shell("echo a; sleep 3 & exit 3", true, LONG).status.unwrap().code(), Some(3));
        assert!(started.elapsed() < Duration::from_secs(20));
        assert!(run(Command::new("/nonexistent"), true, LONG).is_err());
    }
}

//! Lines on stderr that a process writes before it ends.

use std::io::Write as _;
use std::sync::mpsc;
use std::time::Duration;

/// Time limit of writing the report of a failure to a stderr that nobody reads.
const STDERR_WAIT: Duration = Duration::from_secs(2);

/// Writes to stderr in one call, so that lines of several ranks do not mix, and returns after 2 s in any case: a pipe that nobody
/// reads must not keep a job from its end. An error of stderr is ignored: there is no other place to report it.
pub(crate) fn write_stderr(text: &str) {
    let (done, is_done) = mpsc::channel();
    let owned = text.to_owned();
    let write = move || {
        let _ = std::io::stderr().write_all(owned.as_bytes());
        let _ = done.send(());
    };
    match std::thread::Builder::new().name("report".to_owned()).spawn(write) {
        Ok(_) => _ = is_done.recv_timeout(STDERR_WAIT),
        Err(_) => _ = std::io::stderr().write_all(text.as_bytes()),
    }
}

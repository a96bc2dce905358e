//! Writes events to stdout from a separate thread, so that a pipe that nobody reads does not block the run.
//!
//! A slow reader still receives all events: if more than [`MAX_BYTES`] are waiting, the run waits for it, as for any pipe. If it
//! reads nothing for [`PATIENCE`] meanwhile, the stream ends with a warning; the event file contains all events.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ddp_kernels::cpu::start_thread::start_thread;
use tracing::warn;

/// Number of bytes of waiting events above which the run waits for the reader.
const MAX_BYTES: usize = 256 << 10;
/// Maximum time to wait for a reader that reads nothing.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum time to wait for the last events.
const LAST_EVENTS: Duration = Duration::from_secs(5);

/// Queue of lines for stdout, in the order of [`EventStream::write`]. Clones share it.
#[derive(Debug, Clone)]
pub struct EventStream(Arc<Handle>);

/// Ends the thread when the last clone is dropped.
#[derive(Debug)]
struct Handle(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<String>,
    /// Number of bytes that are not yet written.
    n_bytes: usize,
    n_written: u64,
    /// Whether the stream has ended and ignores further lines.
    has_ended: bool,
    /// The error that ended the stream, until it is reported.
    fault: Option<io::Error>,
    is_closed: bool,
}

impl EventStream {
    /// The stream to stdout. It bypasses the buffer of the standard library, whose lock a blocked write would hold.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn stdout() -> io::Result<Self> {
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        Self::new(File::from(stdout))
    }

    fn new(out: impl Write + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        start_thread("stdout", move || of_thread.write_all(out))?;
        Ok(EventStream(Arc::new(Handle(shared))))
    }

    /// Adds a line, which is written as a whole. An error of stdout, or a reader that has stopped, ends the stream. This is
    /// reported once; a closed pipe is not reported.
    pub fn write(&self, line: &str) {
        let shared = &self.0.0;
        let mut state =
            shared.wait(PATIENCE, None, |state| state.n_bytes > 0 && state.n_bytes + line.len() > MAX_BYTES);
        if !state.has_ended {
            state.n_bytes += line.len();
            state.waiting.push_back(line.to_owned());
            shared.changed.notify_all();
        }
        report(state);
    }

    /// Waits until all lines are written, unless the reader has stopped.
    pub fn flush(&self) {
        let deadline = Instant::now() + LAST_EVENTS;
        report(self.0.0.wait(PATIENCE, Some(deadline), |state| state.n_bytes > 0));
    }
}

/// Reports the error that ended the stream, at most once.
fn report(mut state: MutexGuard<'_, State>) {
    let fault = state.fault.take();
    drop(state);
    if let Some(fault) = fault.filter(|fault| fault.kind() != io::ErrorKind::BrokenPipe) {
        warn!("stopped writing events to stdout: {fault}; metrics.jsonl has all of them");
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `is_early` holds. Ends the stream if nothing is written for `patience`, or at the deadline.
    fn wait(
        &self,
        patience: Duration,
        deadline: Option<Instant>,
        is_early: impl Fn(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while is_early(&state) && !state.has_ended {
            let n_written = state.n_written;
            let is_same = |state: &mut State| state.n_written == n_written && !state.has_ended;
            let waited = self.changed.wait_timeout_while(state, patience, is_same);
            let (after, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = after;
            if timeout.timed_out() || deadline.is_some_and(|deadline| Instant::now() > deadline) {
                state.end(io::Error::other("nothing reads it"));
            }
        }
        state
    }

    /// Writes lines until the stream is closed and empty, or ends.
    fn write_all(&self, mut out: impl Write) {
        loop {
            let is_early =
                |state: &mut State| state.waiting.is_empty() && !state.is_closed && !state.has_ended;
            let state = self.changed.wait_while(self.lock(), is_early);
            let mut state = state.unwrap_or_else(PoisonError::into_inner);
            let Some(line) = state.waiting.pop_front() else { return };
            drop(state);
            let written = out.write_all(line.as_bytes());
            let mut state = self.lock();
            state.n_bytes = state.n_bytes.saturating_sub(line.len());
            state.n_written += 1;
            if let Err(fault) = written {
                state.end(fault);
            }
            drop(state);
            self.changed.notify_all();
        }
    }
}

impl State {
    fn end(&mut self, fault: io::Error) {
        if !self.has_ended {
            self.has_ended = true;
            self.fault = Some(fault);
            self.waiting.clear();
            self.n_bytes = 0;
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reader_gets_all_lines_in_order() {
        let (mut reader, writer) = io::pipe().unwrap();
        let stream = EventStream::new(writer).unwrap();
        let lines: Vec<String> =
            (0..20_000).map(|n| format!("{{\"line\":{n},\"more\":\"{}\"}}\n", "x".repeat(20))).collect();
        let read = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            let mut text = String::new();
            io::Read::read_to_string(&mut reader, &mut text).unwrap();
            text
        });
        assert!(lines.concat().len() > 2 * MAX_BYTES);
        lines.iter().for_each(|line| stream.write(line));
        stream.flush();
        drop(stream);
        assert!(read.join().unwrap() == lines.concat());
    }

    #[test]
    fn a_reader_that_stopped_is_waited_for_once() {
        let (reader, writer) = io::pipe().unwrap();
        let stream = EventStream::new(writer).unwrap();
        let since = Instant::now();
        let line = "x".repeat(1000) + "\n";
        (0..2000).for_each(|_| stream.write(&line));
        stream.flush();
        assert!(since.elapsed() >= PATIENCE && since.elapsed() < 4 * PATIENCE, "{:?}", since.elapsed());
        let state = stream.0.0.lock();
        assert!(state.has_ended && state.waiting.is_empty() && state.fault.is_none(), "{state:?}");
        drop(state);
        drop(reader);
    }

    #[test]
    fn a_closed_pipe_ends_the_stream() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let stream = EventStream::new(writer).unwrap();
        stream.write("a\n");
        stream.flush();
        stream.write("b\n");
        assert!(stream.0.0.lock().has_ended);
    }
}

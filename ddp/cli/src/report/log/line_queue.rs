//! Lines on their way to stderr. A thread of their own writes them, so that a terminal or a pipe that nobody reads does not stop
//! the run: mpirun, for example, reads nothing from its ranks while it answers Ctrl-C.
//!
//! Stderr stays blocking: `O_NONBLOCK` would hold for all processes that share it. In order:
//!
//! - a line returns when it is written, or after [`PATIENCE`], or at once while nothing is being read (a stall);
//! - a line of progress only waits for room in the queue; without room it is left out, and a note says how many were;
//! - a frame of a bar is left out unless it can be written at once.

use std::collections::VecDeque;
use std::fmt::{self, Debug, Formatter};
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// Longest wait of a single line. A rank that mpirun ends has half a second for its step.
const PATIENCE: Duration = Duration::from_millis(200);
/// Bytes of waiting lines above which lines of progress have no room.
const PROGRESS_BYTES: usize = 64 << 10;
/// Bytes of waiting lines above which no line has room.
const MAX_BYTES: usize = 1 << 20;

/// Importance of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Importance {
    /// A line that may be left out only after a megabyte of others.
    Line,
    /// A line that may be left out.
    Progress,
    /// A picture that the next one replaces.
    Frame,
}

/// Stderr, or what stands for it.
type Out = Box<dyn Write + Send>;
/// The line about a number of lines that were left out.
type Note = Box<dyn Fn(u64) -> String + Send>;

/// Texts that wait to be written.
pub(super) struct LineQueue {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    out: Mutex<Out>,
}

struct State {
    waiting: VecDeque<String>,
    n_bytes: usize,
    /// Texts that were accepted, and those of them that are written.
    n_added: u64,
    n_written: u64,
    /// Whether a wait has ended without any progress of the writer since.
    is_stalled: bool,
    /// Lines left out since the last note.
    n_left_out: u64,
    note: Note,
    has_writer: bool,
    is_closed: bool,
}

impl LineQueue {
    pub(super) fn new(out: Out, note: impl Fn(u64) -> String + Send + 'static) -> Self {
        let state = State {
            waiting: VecDeque::new(),
            n_bytes: 0,
            n_added: 0,
            n_written: 0,
            is_stalled: false,
            n_left_out: 0,
            note: Box::new(note),
            has_writer: false,
            is_closed: false,
        };
        let (state, out) = (Mutex::new(state), Mutex::new(out));
        LineQueue { shared: Arc::new(Shared { state, changed: Condvar::new(), out }) }
    }

    /// Adds a text, which is written with a single call so that lines of several ranks don't mix. Returns the number for
    /// [`wait`](Self::wait).
    pub(super) fn add(&self, text: String, importance: Importance) -> u64 {
        let mut state = self.shared.lock();
        let has_room = |state: &State, limit: usize| state.n_bytes + text.len() <= limit;
        match importance {
            Importance::Frame if !state.is_idle() => return state.n_added,
            Importance::Progress if !has_room(&state, PROGRESS_BYTES) => {
                state = self.shared.wait(state, PATIENCE, |state| !has_room(state, PROGRESS_BYTES));
                if !has_room(&state, PROGRESS_BYTES) {
                    state.n_left_out += 1;
                    return state.n_added;
                }
            }
            _ if !has_room(&state, MAX_BYTES) => {
                state.n_left_out += 1;
                return state.n_added;
            }
            _ => {}
        }
        if state.n_left_out > 0 {
            let note = (state.note)(state.n_left_out);
            state.n_left_out = 0;
            state.push(note);
        }
        state.push(text);
        self.start_writer(&mut state);
        self.shared.changed.notify_all();
        state.n_added
    }

    /// Waits until text `number` and all before it are written, but not long.
    pub(super) fn wait(&self, number: u64) {
        self.wait_for(number, PATIENCE);
    }

    /// Waits until all texts are written, but not long.
    pub(super) fn wait_for_all(&self) {
        let number = self.shared.lock().n_added;
        self.wait(number);
    }

    /// Waits for at most `limit` until all texts are written.
    pub(super) fn flush(&self, limit: Duration) {
        let mut state = self.shared.lock();
        let number = state.n_added;
        // The last chance of these lines.
        state.is_stalled = false;
        drop(state);
        self.wait_for(number, limit);
    }

    fn wait_for(&self, number: u64, limit: Duration) {
        let state = self.shared.lock();
        drop(self.shared.wait(state, limit, |state| state.n_written < number));
    }

    fn start_writer(&self, state: &mut State) {
        if state.has_writer {
            return;
        }
        let shared = self.shared.clone();
        let writer = Builder::new().name("stderr".to_owned()).spawn(move || shared.write_all());
        state.has_writer = writer.is_ok();
        // Without a thread, the caller writes.
        while !state.has_writer && state.write_next(|text| self.shared.write(text)) {}
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `is_early`, for at most `limit`, and not during a stall. A wait in which nothing was written begins a stall.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        limit: Duration,
        mut is_early: impl FnMut(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let n_written = state.n_written;
        let is_early = |state: &mut State| !state.is_stalled && is_early(state);
        let waited = self.changed.wait_timeout_while(state, limit, is_early);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_stalled |= timeout.timed_out() && state.n_written == n_written;
        state
    }

    /// Writes texts until the queue is closed and empty.
    fn write_all(&self) {
        loop {
            let is_early = |state: &mut State| state.waiting.is_empty() && !state.is_closed;
            let state = self.changed.wait_while(self.lock(), is_early);
            let mut state = state.unwrap_or_else(PoisonError::into_inner);
            let Some(text) = state.waiting.pop_front() else { return };
            drop(state);
            self.write(&text);
            self.lock().written(&text);
            self.changed.notify_all();
        }
    }

    /// A closed stderr does not stop a run.
    fn write(&self, text: &str) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl State {
    /// Whether all texts are written.
    fn is_idle(&self) -> bool {
        self.n_written == self.n_added
    }

    fn push(&mut self, text: String) {
        self.n_bytes += text.len();
        self.n_added += 1;
        self.waiting.push_back(text);
    }

    fn written(&mut self, text: &str) {
        self.n_bytes -= text.len();
        self.n_written += 1;
        self.is_stalled = false;
    }

    /// Writes the next text with `write`; false if there is none.
    fn write_next(&mut self, write: impl Fn(&str)) -> bool {
        let Some(text) = self.waiting.pop_front() else { return false };
        write(&text);
        self.written(&text);
        true
    }
}

impl Drop for LineQueue {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Debug for LineQueue {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("LineQueue").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;

    const NEVER: Duration = Duration::from_secs(600);

    /// A pipe whose reader takes a text on request.
    struct Pipe {
        texts: Sender<String>,
        turns: Receiver<()>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // A reader that is gone takes everything.
            let _ = self.turns.recv();
            let _ = self.texts.send(String::from_utf8(bytes.to_vec()).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn pipe() -> (LineQueue, Sender<()>, Receiver<String>) {
        let ((give_turn, turns), (texts, got)) = (mpsc::channel(), mpsc::channel());
        let note = |n: u64| format!("{n} left out\n");
        (LineQueue::new(Box::new(Pipe { texts, turns }), note), give_turn, got)
    }

    #[test]
    fn lines_keep_their_order() {
        let (queue, turn, got) = pipe();
        (0..9).for_each(|_| turn.send(()).unwrap());
        for i in 0..9 {
            let importance = if i % 2 == 0 { Importance::Progress } else { Importance::Line };
            queue.add(format!("{i}"), importance);
        }
        queue.flush(NEVER);
        assert_eq!(got.try_iter().collect::<String>(), "012345678");
    }

    #[test]
    fn nobody_reads_and_no_caller_waits_for_ever() {
        let (queue, turn, got) = pipe();
        let number = queue.add("begin\n".to_owned(), Importance::Line);
        queue.wait(number);
        // More than has room, and more than could wait one by one.
        let long = format!("{}\n", "x".repeat(1023));
        for _ in 0..100_000 {
            queue.add(long.clone(), Importance::Progress);
        }
        let number = queue.add("warning\n".to_owned(), Importance::Line);
        queue.wait(number);
        assert_eq!(got.try_recv().ok(), None);
        // Somebody reads again.
        (0..200).for_each(|_| turn.send(()).unwrap());
        queue.flush(NEVER);
        queue.add("end\n".to_owned(), Importance::Line);
        queue.flush(NEVER);
        let texts: Vec<String> = got.try_iter().collect();
        assert_eq!(texts.first().unwrap(), "begin\n");
        let n_kept = texts.iter().filter(|text| **text == long).count();
        assert!((60..65).contains(&n_kept), "{n_kept}");
        let last = [format!("{} left out\n", 100_000 - n_kept), "warning\n".to_owned(), "end\n".to_owned()];
        assert_eq!(texts[texts.len() - 3..], last);
    }

    #[test]
    fn a_frame_never_waits() {
        let (queue, turn, got) = pipe();
        queue.add("line\n".to_owned(), Importance::Progress);
        queue.add("frame".to_owned(), Importance::Frame);
        turn.send(()).unwrap();
        queue.flush(NEVER);
        queue.add("second".to_owned(), Importance::Frame);
        turn.send(()).unwrap();
        queue.flush(NEVER);
        assert_eq!(got.try_iter().collect::<Vec<_>>(), ["line\n", "second"]);
    }

    #[test]
    fn warnings_are_bounded_too() {
        let (queue, turn, got) = pipe();
        let number = queue.add("first\n".to_owned(), Importance::Line);
        queue.wait(number);
        let long = format!("{}\n", "x".repeat((1 << 16) - 1));
        for _ in 0..50 {
            queue.wait(queue.add(long.clone(), Importance::Line));
        }
        (0..60).for_each(|_| turn.send(()).unwrap());
        queue.flush(NEVER);
        queue.add("end\n".to_owned(), Importance::Line);
        queue.flush(NEVER);
        let texts: Vec<String> = got.try_iter().collect();
        assert_eq!(texts.len(), 1 + 15 + 2, "{}", texts.len());
        assert_eq!(texts[16..], ["35 left out\n", "end\n"]);
    }
}

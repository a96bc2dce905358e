//! Stderr: lines, and below them a progress bar if there is one. A separate thread writes everything, so that a terminal or pipe
//! that nobody reads does not block the run. For example, mpirun reads nothing from its ranks while it handles Ctrl-C.
//!
//! Stderr stays blocking: `O_NONBLOCK` would hold for all processes that share it. A line finds room, or waits for it at most
//! [`PATIENCE`], and not at all while nothing is being read (a stall); else it is left out, and a note says how many were. The caller
//! waits as long for a line to be written, unless it is one of progress.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use ddp::exit_code;
use ddp_comm::failure;
use ddp_kernels::cpu::start_thread::start_thread;
use indicatif::{ProgressBar, ProgressDrawTarget};
use tracing::Level;

use super::line::LineFormat;

/// Maximum time that a single line waits. A rank that mpirun ends has half a second for its step.
const PATIENCE: Duration = Duration::from_millis(200);
/// Polling interval of a caller that waits.
const POLL: Duration = Duration::from_micros(100);
/// Number of waiting items above which progress lines are dropped.
const MAX_PROGRESS: usize = 1_000;
/// Number of waiting items above which all items are dropped.
const MAX_ITEMS: usize = 10_000;

/// Items for the writing thread.
#[derive(Debug)]
pub(super) enum Item {
    /// Whole lines, written with a single call so that lines of several ranks don't mix.
    Lines(String),
    /// Lines that may be dropped.
    Progress(String),
    /// Shows a bar, which replaces the previous one.
    Show(ProgressBar),
    /// Changes the text of the bar.
    Message(String),
    /// Removes the bar.
    End,
}

/// Queue of the writing thread.
#[derive(Debug)]
pub(super) struct LineQueue {
    items: Sender<Item>,
    state: Arc<State>,
    format: LineFormat,
}

#[derive(Debug, Default)]
struct State {
    /// Number of items that are not written yet.
    n_waiting: AtomicUsize,
    /// Whether a wait has timed out since the last item was written.
    is_stalled: AtomicBool,
    /// Number of lines dropped since the last note.
    n_left_out: AtomicU64,
}

impl LineQueue {
    /// Creates the queue that writes lines to `out` and bars to `target`; `format` is the format of the note.
    pub(super) fn new(
        mut out: impl Write + Send + 'static,
        target: fn() -> ProgressDrawTarget,
        format: LineFormat,
    ) -> Self {
        let (items, received) = mpsc::channel();
        let state = Arc::<State>::default();
        let queue = LineQueue { items, state: state.clone(), format };
        let write = move || {
            let mut bar = None;
            for item in received {
                item.write(&mut out, target, &mut bar);
                state.is_stalled.store(false, Relaxed);
                state.n_waiting.fetch_sub(1, Release);
            }
        };
        if let Err(error) = start_thread("stderr", write) {
            // Nothing has begun yet, and no line could be written.
            failure::end_unjoined(exit_code::FAILED.into(), format!("error: {error}"));
        }
        queue
    }

    pub(super) fn add(&self, item: Item) {
        let is_line = matches!(item, Item::Lines(_) | Item::Progress(_));
        let limit =
            if matches!(item, Item::Progress(_) | Item::Message(_)) { MAX_PROGRESS } else { MAX_ITEMS };
        if !self.has_room(limit, if is_line { PATIENCE } else { Duration::ZERO }) {
            self.state.n_left_out.fetch_add(is_line.into(), Relaxed);
            return;
        }
        let n_left_out = self.state.n_left_out.swap(0, Relaxed);
        if n_left_out > 0 {
            let lines = if n_left_out == 1 { "line" } else { "lines" };
            let note = format!("[{n_left_out} {lines} left out: nobody read stderr]");
            self.send(Item::Lines(self.format.write_message(Level::INFO, &note)));
        }
        let is_awaited = matches!(item, Item::Lines(_));
        self.send(item);
        if is_awaited {
            // The process may end with this line, as by a signal.
            self.has_room(1, PATIENCE);
        }
    }

    /// Waits for at most `limit` until everything is written.
    pub(super) fn flush(&self, limit: Duration) {
        // This is the last chance to write these lines.
        self.state.is_stalled.store(false, Relaxed);
        self.has_room(1, limit);
    }

    fn send(&self, item: Item) {
        self.state.n_waiting.fetch_add(1, Relaxed);
        // The writer ends after processing this queue.
        let _ = self.items.send(item);
    }

    /// Waits for at most `patience` until fewer than `limit` items wait; does not wait during a stall.
    fn has_room(&self, limit: usize, patience: Duration) -> bool {
        let began = Instant::now();
        while self.state.n_waiting.load(Acquire) >= limit {
            if self.state.is_stalled.load(Relaxed) || patience.is_zero() {
                return false;
            }
            self.state.is_stalled.store(began.elapsed() >= patience, Relaxed);
            std::thread::sleep(POLL);
        }
        true
    }
}

impl Item {
    /// Writes this item above the bar, or to the bar itself. A closed stderr does not stop a run.
    fn write(
        self,
        out: &mut impl Write,
        target: fn() -> ProgressDrawTarget,
        shown: &mut Option<ProgressBar>,
    ) {
        match self {
            Item::Lines(lines) | Item::Progress(lines) => {
                let mut write = || out.write_all(lines.as_bytes()).and_then(|()| out.flush());
                let _ = if let Some(bar) = shown { bar.suspend(write) } else { write() };
            }
            Item::Show(bar) => {
                bar.set_draw_target(target());
                bar.force_draw();
                *shown = Some(bar);
            }
            Item::Message(text) => shown.iter().for_each(|bar| bar.set_message(text.clone())),
            Item::End => shown.take().iter().for_each(ProgressBar::finish_and_clear),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::Receiver;

    use super::*;
    use crate::report::log::line::Form;

    const NEVER: Duration = Duration::from_secs(600);

    /// A pipe whose reader reads one text at a time on request.
    struct Pipe {
        texts: Sender<String>,
        turns: Receiver<()>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // A reader that is gone accepts everything.
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
        let form = Form::Terminal { colors: false };
        let format = LineFormat { form, rank: 0, host: String::new(), prefix: String::new() };
        (LineQueue::new(Pipe { texts, turns }, ProgressDrawTarget::hidden, format), give_turn, got)
    }

    #[test]
    fn lines_keep_their_order() {
        let (queue, turn, got) = pipe();
        (0..9).for_each(|_| turn.send(()).unwrap());
        for i in 0..9 {
            queue.add(if i % 2 == 0 { Item::Progress(i.to_string()) } else { Item::Lines(i.to_string()) });
        }
        queue.flush(NEVER);
        assert_eq!(got.try_iter().collect::<String>(), "012345678");
    }

    #[test]
    fn nobody_reads_and_no_caller_waits_for_ever() {
        let (queue, turn, got) = pipe();
        queue.add(Item::Lines("begin\n".to_owned()));
        // More lines than there is room for, and more than could wait one by one.
        for _ in 0..100_000 {
            queue.add(Item::Progress("step\n".to_owned()));
        }
        queue.add(Item::Lines("warning\n".to_owned()));
        assert_eq!(got.try_recv().ok(), None);
        // The reader continues to read.
        (0..1100).for_each(|_| turn.send(()).unwrap());
        queue.flush(NEVER);
        queue.add(Item::Lines("end\n".to_owned()));
        queue.flush(NEVER);
        let texts: Vec<String> = got.try_iter().collect();
        assert_eq!(texts.first().unwrap(), "begin\n");
        assert_eq!(texts.iter().filter(|text| *text == "step\n").count(), 999);
        assert_eq!(texts[1000..], ["[99001 lines left out: nobody read stderr]\n", "warning\n", "end\n"]);
    }

    #[test]
    fn warnings_are_bounded_too() {
        let (queue, turn, got) = pipe();
        for _ in 0..10_035 {
            queue.add(Item::Lines("warning\n".to_owned()));
        }
        (0..10_100).for_each(|_| turn.send(()).unwrap());
        queue.flush(NEVER);
        queue.add(Item::Lines("end\n".to_owned()));
        queue.flush(NEVER);
        let texts: Vec<String> = got.try_iter().collect();
        assert_eq!(texts[10_000..], ["[35 lines left out: nobody read stderr]\n", "end\n"]);
    }
}

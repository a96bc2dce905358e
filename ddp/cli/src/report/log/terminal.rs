//! The terminal: lines on stderr, above a progress bar if there is one.
//!
//! The cursor rests on the first column of the bar, so that clearing from there to the end of the screen removes all of the bar
//! even if the terminal has become narrower and has wrapped it.

use std::fmt::{self, Debug, Formatter};
use std::io::{self, IsTerminal as _, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ddp::report::notes::PROGRESS;
use ddp_comm::World;
use tracing::Level;

use super::line::{Origin, Record};
use super::line_queue::{Importance, LineQueue};
use super::options::{LogFormat, LogOptions};
use crate::report::bar::Bar;

/// Time between two frames of a bar that advances: it must not slow the run.
const FRAME: Duration = Duration::from_millis(100);
/// Time between two frames of a bar that stands still.
const TICK: Duration = Duration::from_millis(500);
/// Time for which the end of a process waits for its last lines.
const LAST_LINES: Duration = Duration::from_secs(2);
/// Width of a terminal that does not report it.
const USUAL_WIDTH: usize = 80;
/// To the first column, and clear to the end of the screen.
const CLEAR: &str = "\r\x1b[J";

/// Stderr of this process.
pub struct Terminal {
    inner: Mutex<Inner>,
    lines: LineQueue,
    format: LogFormat,
    /// Whether warnings are shown.
    shows_warnings: AtomicBool,
    origin: Origin,
    is_terminal: bool,
    has_colours: bool,
    /// Whether lines of progress are printed.
    prints_progress: AtomicBool,
}

struct Inner {
    width: fn() -> usize,
    bar: Option<(Bar, Instant)>,
}

/// A bar on the terminal, until this value is dropped.
#[derive(Debug)]
pub struct ShownBar {
    terminal: Arc<Terminal>,
    position: Arc<AtomicU64>,
    /// Dropped, it ends the thread that redraws.
    _ticker: Sender<()>,
}

impl Terminal {
    /// Stderr of this rank.
    pub(super) fn stderr(world: &World, options: &LogOptions) -> Self {
        let rank = world.rank().0;
        let prefix = if rank == 0 { String::new() } else { world.prefix() };
        let origin = Origin { rank, host: world.hostname().to_owned(), prefix };
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let is_terminal = io::stderr().is_terminal() && !is_dumb;
        Terminal {
            inner: Mutex::new(Inner { width: stderr_width, bar: None }),
            lines: queue(Box::new(io::stderr()), options.format, &origin),
            format: options.format,
            shows_warnings: AtomicBool::new(!options.quiet),
            origin,
            is_terminal,
            has_colours: is_terminal && colours(),
            prints_progress: AtomicBool::new(true),
        }
    }

    /// Takes no bar and shows no warnings of the log.
    pub(super) fn silent(world: &World) -> Self {
        let options = LogOptions { quiet: true, ..LogOptions::default() };
        Terminal { is_terminal: false, ..Self::stderr(world, &options) }
    }

    /// Whether a bar can be shown.
    pub(crate) fn takes_bar(&self) -> bool {
        self.is_terminal && self.format == LogFormat::Text
    }

    /// Sets whether lines of progress are printed.
    pub(crate) fn set_prints_progress(&self, prints: bool) {
        self.prints_progress.store(prints, Ordering::Relaxed);
    }

    pub(crate) fn prints_progress(&self) -> bool {
        self.prints_progress.load(Ordering::Relaxed)
    }

    /// The rank that writes here.
    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Shows a bar over `total` rows, from `position`; `has_speed` if it shows the speed and the time left. `message` is its text.
    pub(crate) fn show_bar(
        self: &Arc<Self>,
        total: u64,
        position: u64,
        has_speed: bool,
        message: &str,
    ) -> ShownBar {
        let position = Arc::new(AtomicU64::new(position));
        let mut bar = Bar::new(total, position.clone(), has_speed);
        bar.message = message.to_owned();
        let mut inner = self.inner();
        inner.bar = Some((bar, Instant::now()));
        self.draw_in(&mut inner, Importance::Progress);
        drop(inner);
        let (ticker, ticks) = mpsc::channel::<()>();
        let terminal = Arc::downgrade(self);
        let redraw = move || {
            while ticks.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let Some(terminal) = terminal.upgrade() else { return };
                terminal.draw();
            }
        };
        // Without the thread, the bar is redrawn when it advances.
        let _ = std::thread::Builder::new().name("progress".to_owned()).spawn(redraw);
        ShownBar { terminal: self.clone(), position, _ticker: ticker }
    }

    /// Removes the bar.
    pub(super) fn end_bar(&self) {
        let mut inner = self.inner();
        if inner.bar.take().is_some() {
            self.lines.add(CLEAR.to_owned(), Importance::Line);
        }
    }

    /// Prints an event.
    pub(super) fn print(&self, record: &Record) {
        let line = match self.format {
            LogFormat::Text => record.to_terminal(&self.origin, self.has_colours),
            LogFormat::Json => record.to_json(&self.origin),
        };
        let is_progress = record.target == PROGRESS || record.level > Level::INFO;
        let importance = if is_progress { Importance::Progress } else { Importance::Line };
        // Held, so that the bar is drawn below the line.
        let mut inner = self.inner();
        let text = match inner.bar_line(self.has_colours) {
            Some(bar) => format!("{CLEAR}{line}\n{bar}\r"),
            None => format!("{line}\n"),
        };
        let number = self.lines.add(text, importance);
        drop(inner);
        if importance == Importance::Line {
            self.lines.wait(number);
        }
    }

    /// Waits until all lines are written, but not for ever: the end of a process.
    pub fn flush(&self) {
        self.lines.flush(LAST_LINES);
    }

    /// Draws the next frame of the bar, if there is one.
    fn draw(&self) {
        self.draw_in(&mut self.inner(), Importance::Frame);
    }

    fn draw_in(&self, inner: &mut Inner, importance: Importance) {
        if let Some(bar) = inner.bar_line(self.has_colours) {
            self.lines.add(format!("{CLEAR}{bar}\r"), importance);
        }
    }

    /// Prints a warning that cannot be an event.
    pub(super) fn warn(&self, message: &str) {
        if self.shows_warnings.load(Ordering::Relaxed) {
            self.print(&Record::of_message(Level::WARN, message));
        }
    }

    /// Keeps the terminal free for the message of a failure, which is its last one: faults of the log are no longer shown.
    pub fn begin_failure(&self) {
        self.shows_warnings.store(false, Ordering::Relaxed);
        self.lines.wait_for_all();
    }

    /// The last line of a failed command; `prefix` names the rank, if it is not obvious.
    pub fn failure(&self, prefix: &str, message: &str) -> String {
        let record = Record::of_message(Level::ERROR, message);
        let origin = Origin { prefix: prefix.to_owned(), ..self.origin.clone() };
        match self.format {
            LogFormat::Text => record.to_terminal(&origin, self.has_colours),
            LogFormat::Json => record.to_json(&origin),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Debug for Terminal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terminal").field("format", &self.format).finish_non_exhaustive()
    }
}

impl Inner {
    fn bar_line(&mut self, colours: bool) -> Option<String> {
        let (width, now) = ((self.width)(), Instant::now());
        let (bar, drawn) = self.bar.as_mut()?;
        *drawn = now;
        Some(bar.line(width, colours, now))
    }
}

impl ShownBar {
    /// Moves the bar by `n` rows. Cheap enough for every step.
    #[inline]
    pub(crate) fn advance(&self, n: u64) {
        self.position.fetch_add(n, Ordering::Relaxed);
        self.draw_if_due();
    }

    /// Moves the bar to row `position`.
    pub(crate) fn set_position(&self, position: u64) {
        self.position.store(position, Ordering::Relaxed);
        self.draw_if_due();
    }

    /// Sets the text after the bar.
    pub(crate) fn set_message(&self, message: String) {
        if let Some((bar, _)) = &mut self.terminal.inner().bar {
            bar.message = message;
        }
        self.draw_if_due();
    }

    fn draw_if_due(&self) {
        let mut inner = self.terminal.inner();
        if inner.bar.as_ref().is_some_and(|(_, drawn)| drawn.elapsed() >= FRAME) {
            self.terminal.draw_in(&mut inner, Importance::Frame);
        }
    }
}

impl Drop for ShownBar {
    fn drop(&mut self) {
        self.terminal.end_bar();
    }
}

/// The queue before `out`, with lines of `origin`.
fn queue(out: Box<dyn Write + Send>, format: LogFormat, origin: &Origin) -> LineQueue {
    let origin = origin.clone();
    let note = move |n: u64| {
        let lines = if n == 1 { "line" } else { "lines" };
        let record = Record::of_message(Level::INFO, &format!("[{n} {lines} left out: nobody read stderr]"));
        let line = match format {
            LogFormat::Text => record.to_terminal(&origin, false),
            LogFormat::Json => record.to_json(&origin),
        };
        line + "\n"
    };
    LineQueue::new(out, note)
}

/// The line of an error outside of any run: in colours on a terminal.
pub fn error_line(message: &str) -> String {
    let origin = Origin { rank: 0, host: String::new(), prefix: String::new() };
    Record::of_message(Level::ERROR, message).to_terminal(&origin, io::stderr().is_terminal() && colours())
}

/// Whether to use colours on a terminal: not if `NO_COLOR` is set and not empty. Source: <https://no-color.org>.
fn colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn stderr_width() -> usize {
    match rustix::termios::tcgetwinsize(io::stderr()) {
        Ok(size) if size.ws_col > 0 => size.ws_col.into(),
        _ => USUAL_WIDTH,
    }
}

#[cfg(test)]
impl Terminal {
    /// Draws the next frame of the bar.
    pub(crate) fn redraw(&self) {
        self.flush();
        self.draw();
    }

    /// A terminal of 60 columns, and what is written to it.
    pub(crate) fn in_memory(is_terminal: bool) -> (Arc<Self>, impl Fn() -> String) {
        const ALL: Duration = Duration::from_secs(600);
        #[derive(Clone, Default)]
        struct Shared(Arc<Mutex<Vec<u8>>>);
        impl Write for Shared {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let written = Shared::default();
        let origin = Origin { rank: 0, host: "here".to_owned(), prefix: String::new() };
        let terminal = Terminal {
            inner: Mutex::new(Inner { width: || 60, bar: None }),
            lines: queue(Box::new(written.clone()), LogFormat::Text, &origin),
            format: LogFormat::Text,
            shows_warnings: AtomicBool::new(true),
            origin,
            is_terminal,
            has_colours: false,
            prints_progress: AtomicBool::new(true),
        };
        let terminal = Arc::new(terminal);
        let shown = terminal.clone();
        let text = move || {
            shown.lines.flush(ALL);
            String::from_utf8(written.0.lock().unwrap().clone()).unwrap()
        };
        (terminal, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stand_above_the_bar() {
        let (terminal, text) = Terminal::in_memory(true);
        terminal.warn("before");
        assert_eq!(text(), "warning: before\n");
        let bar = terminal.show_bar(10, 0, true, "starting");
        let empty = format!("{}   0%  starting\r", "░".repeat(30));
        assert_eq!(text(), format!("warning: before\n{CLEAR}{empty}"));
        terminal.warn("during");
        assert!(text().ends_with(&format!("{CLEAR}warning: during\n{empty}")), "{}", text());
        bar.advance(5);
        bar.set_message("epoch 1".to_owned());
        drop(bar);
        terminal.warn("after");
        assert!(text().ends_with(&format!("{CLEAR}warning: after\n")), "{}", text());
    }

    #[test]
    fn a_bar_that_has_ended_is_not_drawn_again() {
        let (terminal, text) = Terminal::in_memory(true);
        let bar = terminal.show_bar(10, 0, true, "starting");
        terminal.end_bar();
        let before = text();
        bar.set_message("epoch 2".to_owned());
        bar.advance(1);
        drop(bar);
        assert_eq!(text(), before);
    }
}

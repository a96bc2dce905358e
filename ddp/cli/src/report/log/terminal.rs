//! The terminal, as used by the log and the commands.

use std::fmt;
use std::io::{self, IsTerminal as _, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ddp::report::notes::{PROGRESS, STOPPING};
use ddp::report::units::rate;
use ddp_comm::World;
use indicatif::{FormattedDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::line::{Form, LineFormat, LogFormat, LogOptions};
use super::line_queue::{Item, LineQueue};

/// Maximum time to wait until lines are written before other output follows. A rank that mpirun ends has half a second.
const BEFORE_OTHERS: Duration = Duration::from_millis(200);
/// Maximum time to wait for the last lines at the end of the process.
const LAST_LINES: Duration = Duration::from_secs(2);
/// Time between two frames of a bar, long enough not to slow down the run.
const TICK: Duration = Duration::from_millis(100);
/// Width of a terminal that does not report it.
const USUAL_WIDTH: u16 = 80;
/// Number of columns below which a bar shows neither speed nor time left.
const ROOM_FOR_SPEED: u16 = 80;
const ROOM_FOR_TIME: u16 = 60;
/// Number of columns reserved next to a message for a narrow bar and its percentage, or for a time.
const BESIDE_MESSAGE: usize = 14;
const BESIDE_TIME: usize = 16;
/// Time after which work of unknown length is shown.
const BUSY: Duration = Duration::from_millis(500);

/// Stderr of this process.
#[derive(Debug)]
pub struct Terminal {
    lines: Arc<LineQueue>,
    format: LineFormat,
    takes_bar: bool,
    /// Whether warnings are shown.
    shows_warnings: AtomicBool,
    /// Whether lines of progress are printed.
    prints_progress: AtomicBool,
}

/// A bar on the terminal, until this value is dropped.
#[derive(Debug)]
pub struct ShownBar {
    bar: ProgressBar,
    lines: Arc<LineQueue>,
}

impl Terminal {
    /// The stderr of this rank.
    pub(super) fn stderr(world: &World, options: &LogOptions) -> Self {
        let rank = world.rank().0;
        let prefix = if rank == 0 { String::new() } else { world.prefix() };
        let has_bars = !stderr_bars().is_hidden();
        let form = match options.format {
            LogFormat::Text => Form::Terminal { colors: has_bars && colors() },
            LogFormat::Json => Form::Json,
        };
        let format = LineFormat { form, rank, host: world.hostname().to_owned(), prefix };
        let takes_bar = has_bars && rank == 0 && form != Form::Json && !options.quiet;
        Self::new(io::stderr(), stderr_bars, format, takes_bar, !options.quiet)
    }

    fn new(
        out: impl Write + Send + 'static,
        target: fn() -> ProgressDrawTarget,
        format: LineFormat,
        takes_bar: bool,
        shows_warnings: bool,
    ) -> Self {
        let lines = Arc::new(LineQueue::new(out, target, format.clone()));
        let (shows_warnings, prints_progress) = (AtomicBool::new(shows_warnings), AtomicBool::new(true));
        Terminal { lines, format, takes_bar, shows_warnings, prints_progress }
    }

    /// A terminal that shows neither bars nor warnings of the log.
    pub(super) fn silent(world: &World) -> Self {
        let options = LogOptions { quiet: true, ..LogOptions::default() };
        Terminal { takes_bar: false, ..Self::stderr(world, &options) }
    }

    /// Form of the lines.
    pub(super) fn format(&self) -> &LineFormat {
        &self.format
    }

    /// Whether a bar can be shown.
    pub(crate) fn takes_bar(&self) -> bool {
        self.takes_bar
    }

    /// Sets whether lines of progress are printed.
    pub(crate) fn set_prints_progress(&self, prints: bool) {
        self.prints_progress.store(prints, Ordering::Relaxed);
    }

    /// Shows a bar over `total` rows, starting at `position`; `has_speed` adds the speed and the time left. `message` is its
    /// text.
    pub(crate) fn show_bar(
        &self,
        total: u64,
        position: u64,
        has_speed: bool,
        message: &'static str,
    ) -> ShownBar {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        let bar = bar.with_style(bar_style(self.format.form, has_speed)).with_message(message);
        // Rows before a resumed run do not count for the speed.
        bar.set_position(position);
        bar.reset_eta();
        self.show(bar)
    }

    /// Shows the name and duration of work of unknown length, such as reading files, once it has lasted a moment; `None` without a
    /// terminal.
    pub(crate) fn show_busy(&self, work: String) -> Option<ShownBar> {
        let text = move |state: &ProgressState, text: &mut dyn fmt::Write| {
            if state.elapsed() >= BUSY {
                let work = cut(&work, BESIDE_TIME);
                let _ = write!(text, "{work}  {}", FormattedDuration(state.elapsed()));
            }
        };
        let style = template("{busy}").with_key("busy", text);
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()).with_style(style);
        self.takes_bar.then(|| self.show(bar))
    }

    fn show(&self, bar: ProgressBar) -> ShownBar {
        // From now on a thread of the bar draws it, never the thread that advances it.
        bar.enable_steady_tick(TICK);
        self.lines.add(Item::Show(bar.clone()));
        ShownBar { bar, lines: self.lines.clone() }
    }

    /// Waits for a limited time until all lines are written, at the end of a process.
    pub fn flush(&self) {
        self.lines.flush(LAST_LINES);
    }

    /// Prints a warning that cannot be an event.
    pub(super) fn warn(&self, message: &str) {
        if self.shows_warnings.load(Ordering::Relaxed) {
            self.lines.add(Item::Lines(self.format.write_message(Level::WARN, message)));
        }
    }

    /// Reserves the terminal for the message of a failure, which comes last: faults of the log are no longer shown.
    pub fn begin_failure(&self) {
        self.shows_warnings.store(false, Ordering::Relaxed);
        self.lines.flush(BEFORE_OTHERS);
    }

    /// Formats the last line of a failed command; `prefix` names the rank if it is not obvious.
    pub fn failure(&self, prefix: &str, message: &str) -> String {
        let format = LineFormat { prefix: prefix.to_owned(), ..self.format.clone() };
        format.write_message(Level::ERROR, message).trim_end().to_owned()
    }
}

/// The terminal as the destination of events.
#[derive(Debug)]
pub(super) struct Shown(pub(super) Arc<Terminal>);

/// Prints an event as an item of this kind; `None` hides it.
pub(super) struct ShownLine<'a>(&'a Terminal, Option<fn(String) -> Item>);

impl<'a> MakeWriter<'a> for Shown {
    type Writer = ShownLine<'a>;

    fn make_writer(&'a self) -> ShownLine<'a> {
        ShownLine(&self.0, Some(Item::Lines))
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> ShownLine<'a> {
        match metadata.target() {
            PROGRESS if !self.0.prints_progress.load(Ordering::Relaxed) => ShownLine(&self.0, None),
            PROGRESS => ShownLine(&self.0, Some(Item::Progress)),
            _ if *metadata.level() > Level::INFO => ShownLine(&self.0, Some(Item::Progress)),
            target => {
                if target == STOPPING {
                    self.0.lines.add(Item::End);
                }
                self.make_writer()
            }
        }
    }
}

impl Write for ShownLine<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let ShownLine(terminal, Some(item)) = self {
            terminal.lines.add(item(String::from_utf8_lossy(line).into_owned()));
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ShownBar {
    /// Moves the bar by `n` rows. Cheap enough for every step.
    #[inline]
    pub(crate) fn advance(&self, n: u64) {
        self.bar.inc(n);
    }

    /// Moves the bar to row `position`.
    pub(crate) fn set_position(&self, position: u64) {
        self.bar.set_position(position);
    }

    /// Sets the text next to the bar, which is truncated if it would leave no room for the bar.
    pub(crate) fn set_message(&self, message: &str) {
        self.lines.add(Item::Message(cut(message, BESIDE_MESSAGE)));
    }
}

impl Drop for ShownBar {
    fn drop(&mut self) {
        self.lines.add(Item::End);
        // The next output may go to stdout.
        self.lines.flush(BEFORE_OTHERS);
    }
}

/// Target on which `indicatif` draws bars, at most ten times per second; hidden if stderr is not a terminal.
fn stderr_bars() -> ProgressDrawTarget {
    ProgressDrawTarget::stderr_with_hz(10)
}

fn bar_style(form: Form, has_speed: bool) -> ProgressStyle {
    let (on, off) =
        if form == (Form::Terminal { colors: true }) { ("\x1b[36m", "\x1b[0m") } else { ("", "") };
    let shows =
        move |state: &ProgressState, room| has_speed && stderr_width() >= room && state.per_sec() > 0.0;
    template(&format!("{on}{{wide_bar}}{off} {{percent:>3}}%{{speed}}{{left}}  {{msg}}"))
        .with_key("speed", move |state: &ProgressState, text: &mut dyn fmt::Write| {
            if shows(state, ROOM_FOR_SPEED) {
                let _ = write!(text, "  {} samples/s", rate(state.per_sec()));
            }
        })
        .with_key("left", move |state: &ProgressState, text: &mut dyn fmt::Write| {
            if shows(state, ROOM_FOR_TIME) {
                let _ = write!(text, "  {} left", FormattedDuration(state.eta()));
            }
        })
}

fn template(text: &str) -> ProgressStyle {
    ProgressStyle::with_template(text).expect("the template is constant and valid")
}

/// The beginning of a text, truncated so that `rest` columns of the terminal remain.
fn cut(text: &str, rest: usize) -> String {
    text.chars().take(usize::from(stderr_width()).saturating_sub(rest)).collect()
}

/// The line of an error outside of any run, in color on a terminal.
pub fn error_line(message: &str) -> String {
    let form = Form::Terminal { colors: io::stderr().is_terminal() && colors() };
    let format = LineFormat { form, rank: 0, host: String::new(), prefix: String::new() };
    format.write_message(Level::ERROR, message).trim_end().to_owned()
}

/// Whether to use colors on a terminal: not if `NO_COLOR` is set and not empty. Source: <https://no-color.org>.
fn colors() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn stderr_width() -> u16 {
    match rustix::termios::tcgetwinsize(io::stderr()) {
        Ok(size) if size.ws_col > 0 => size.ws_col,
        _ => USUAL_WIDTH,
    }
}

#[cfg(test)]
impl Terminal {
    pub(crate) fn prints_progress(&self) -> bool {
        self.prints_progress.load(Ordering::Relaxed)
    }

    /// A terminal that draws no bars, and a function that returns its output.
    pub(crate) fn in_memory(takes_bar: bool) -> (Arc<Self>, impl Fn() -> String) {
        use std::sync::Mutex;
        const ALL: Duration = Duration::from_secs(600);
        #[derive(Clone, Default)]
        struct Written(Arc<Mutex<Vec<u8>>>);
        impl Write for Written {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let written = Written::default();
        let form = Form::Terminal { colors: false };
        let format = LineFormat { form, rank: 0, host: "here".to_owned(), prefix: String::new() };
        let terminal = Terminal::new(written.clone(), ProgressDrawTarget::hidden, format, takes_bar, true);
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
impl ShownBar {
    /// Position and text.
    pub(crate) fn state(&self) -> (u64, String) {
        (self.bar.position(), self.bar.message())
    }
}

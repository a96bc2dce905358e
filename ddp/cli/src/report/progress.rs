//! Progress of a run on stderr of rank 0: a bar or plain lines.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ddp::report::EvalMetrics;
use ddp::report::metrics::{EndEvent, EpochEvent, EvalEvent, StepEvent};
use ddp::report::notes::PROGRESS;
use ddp::report::progress::Standing;
use ddp::report::times::Part;
use ddp::report::units::rate;
use tracing::info;

use crate::report::kubeflow::Posts;
use crate::report::live::{Live, TIME};
use crate::report::log::{ShownBar, Terminal};
use crate::report::progress_text::{Columns, Evaluated, LINE_WIDTH, end_lines, short};
use crate::report::prometheus::{RunInfo, Server};

/// Least time between two lines of evaluations, and from any line to that of a step.
const EVAL_LINE: Duration = Duration::from_secs(1);
const STEP_LINE: Duration = Duration::from_secs(10);

/// Form of the progress report on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum ProgressChoice {
    /// A bar if stderr is a terminal, else lines as time passes.
    #[default]
    Auto,
    /// A bar; lines as time passes without a terminal.
    Bar,
    /// A line for each logged step and each evaluation.
    Plain,
    /// Nothing.
    None,
}

impl ProgressChoice {
    /// Whether a bar is shown if there is a terminal.
    pub(crate) fn may_have_bar(self) -> bool {
        matches!(self, ProgressChoice::Bar | ProgressChoice::Auto)
    }
}

/// Progress report of a run, on rank 0.
#[derive(Debug)]
pub(crate) struct Progress {
    /// `None` if no bar is shown.
    bar: Option<ShownBar>,
    /// `None` unless somebody follows the run from outside.
    live: Option<Arc<Live>>,
    /// `None` unless a Kubeflow TrainJob wants the progress.
    posts: Option<Posts>,
    /// `None` unless metrics are served.
    server: Option<Server>,
    /// Chooses the lines of steps and evaluations that are printed.
    pace: RefCell<Pace>,
    n_epochs: Option<u64>,
}

impl Progress {
    /// Progress over `total_rows` rows of all ranks and epochs, of which `first_row` are already done; `n_epochs` if it is known.
    /// With `quiet` no bar is shown; the terminal then shows no lines either. Metrics for Prometheus are served at `metrics_addr`.
    ///
    /// # Errors
    /// The address is in use or not one of this host.
    pub(crate) fn new(
        terminal: &Arc<Terminal>,
        choice: ProgressChoice,
        quiet: bool,
        metrics_addr: Option<(SocketAddr, RunInfo)>,
        rows: Range<u64>,
        n_epochs: Option<u64>,
    ) -> io::Result<Self> {
        let has_bar = choice.may_have_bar() && !quiet && terminal.takes_bar();
        terminal.set_prints_progress(!has_bar && choice != ProgressChoice::None);
        let bar = has_bar.then(|| terminal.show_bar(rows.end, rows.start, true, "starting"));
        let live = Arc::new(Live::new(rows));
        let posts = Posts::start(&live);
        let server = metrics_addr.map(|(address, info)| Server::start(&live, address, info)).transpose()?;
        let live = (posts.is_some() || server.is_some()).then_some(live);
        let pace = RefCell::new(Pace::new(choice == ProgressChoice::Plain, has_bar));
        Ok(Self { bar, live, posts, server, pace, n_epochs })
    }

    fn set_eval(&self, eval: &EvalMetrics) {
        if let Some(live) = &self.live {
            live.set(eval.iter().map(|(metric, value)| (metric.name(), value)));
        }
    }

    fn epoch(&self, epoch: u64) -> String {
        match self.n_epochs {
            Some(n_epochs) => format!("{epoch}/{n_epochs}"),
            None => epoch.to_string(),
        }
    }

    fn step_line(&self, event: &StepEvent) -> String {
        let StepEvent { step, epoch, loss, lr, grad_norm, samples_per_s, .. } = event;
        format!(
            "step {step}  epoch {}  loss {}  lr {lr}  grad_norm {}  {} samples/s",
            self.epoch(*epoch),
            short(*loss),
            short(*grad_norm),
            rate(*samples_per_s),
        )
    }

    /// Prints an evaluation after `step`, or keeps it until one is due.
    fn evaluated(
        &self,
        epoch: u64,
        step: u64,
        train_loss: Option<f64>,
        event: Evaluated<'_>,
        standing: Standing,
    ) {
        self.set_eval(event.eval);
        let mut pace = self.pace.borrow_mut();
        let place = format!("step {step}  epoch {}", self.epoch(epoch));
        let place = if train_loss.is_some() { format!("epoch {}", self.epoch(epoch)) } else { place };
        let text = match &mut pace.columns {
            Some(columns) => columns.row(&self.epoch(epoch), step, train_loss, &event),
            None => event.line(place, train_loss, if pace.prints_all { usize::MAX } else { LINE_WIDTH }),
        };
        let line = Line { epoch, step, train_loss, text, has_bar: self.bar.is_some() };
        pace.add(line, standing, Instant::now());
    }
}

/// A line of an evaluation.
#[derive(Debug)]
struct Line {
    epoch: u64,
    step: u64,
    train_loss: Option<f64>,
    text: String,
    has_bar: bool,
}

impl Line {
    fn print(self) {
        let Line { epoch, step, train_loss, text, has_bar } = self;
        // A bar takes the place of the lines of steps, not of these.
        match (has_bar, train_loss) {
            (true, Some(train_loss)) => info!(epoch, step, train_loss, "{text}"),
            (true, None) => info!(epoch, step, "{text}"),
            (false, Some(train_loss)) => info!(target: PROGRESS, epoch, step, train_loss, "{text}"),
            (false, None) => info!(target: PROGRESS, epoch, step, "{text}"),
        }
    }
}

/// Decides by time which lines are printed: of evaluations the first, one per [`EVAL_LINE`], the best and the last one; of steps one
/// per [`STEP_LINE`] without another line.
#[derive(Debug)]
struct Pace {
    /// Whether all are printed.
    prints_all: bool,
    /// On a terminal, evaluations are rows of a table.
    columns: Option<Columns>,
    last_line: Instant,
    last_eval: Option<Instant>,
    /// The newest line that was not printed, and before it the newest best one.
    held: Option<Line>,
    held_best: Option<Line>,
}

impl Pace {
    fn new(prints_all: bool, has_bar: bool) -> Self {
        let columns = has_bar.then(Columns::default);
        Pace { prints_all, columns, last_line: Instant::now(), last_eval: None, held: None, held_best: None }
    }

    /// Whether the line of a step is printed now.
    fn takes_step(&mut self, now: Instant) -> bool {
        let is_due = self.prints_all || now.duration_since(self.last_line) >= STEP_LINE;
        self.last_line = if is_due { now } else { self.last_line };
        is_due
    }

    fn add(&mut self, line: Line, standing: Standing, now: Instant) {
        let Standing { is_best, is_last } = standing;
        if is_best {
            (self.held_best, self.held) = (None, None);
        }
        if self.prints_all
            || is_last
            || self.last_eval.is_none_or(|last| now.duration_since(last) >= EVAL_LINE)
        {
            self.held = None;
            self.held_best.take().into_iter().for_each(Line::print);
            line.print();
            (self.last_line, self.last_eval) = (now, Some(now));
        } else if is_best {
            self.held_best = Some(line);
        } else {
            self.held = Some(line);
        }
    }

    /// Prints the lines that were kept, at the end of the run.
    fn flush(&mut self) {
        self.held_best.take().into_iter().chain(self.held.take()).for_each(Line::print);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.pace.get_mut().flush();
    }
}

impl ddp::report::progress::Progress for Progress {
    fn advance(&self, n_rows: u64) {
        if let Some(bar) = &self.bar {
            bar.advance(n_rows);
        }
        if let Some(live) = &self.live {
            live.advance(n_rows);
        }
    }

    fn step(&self, event: &StepEvent) {
        if let Some(bar) = &self.bar {
            bar.set_message(&format!("epoch {}, loss {}", self.epoch(event.epoch), short(event.loss)));
        }
        let StepEvent { step, epoch, loss, lr, grad_norm, samples_per_s, .. } = *event;
        if let Some(live) = &self.live {
            live.set([("step", step as f64), ("epoch", epoch as f64), ("loss", loss), ("lr", lr)]);
            live.set([("grad_norm", grad_norm), ("samples_per_s", samples_per_s)]);
            let times = event.time.iter().flat_map(|ms| Part::ALL.map(|part| (part, ms.get(part) * 1e-3)));
            live.set(times.map(|(part, s)| (format!("{TIME}{}", part.name()), s)));
        }
        if self.pace.borrow_mut().takes_step(Instant::now()) {
            info!(target: PROGRESS, step, epoch, loss, lr, grad_norm, samples_per_s, "{}", self.step_line(event));
        }
    }

    fn epoch_end(&self, event: &EpochEvent, standing: Standing) {
        let EpochEvent { epoch, step, train_loss, eval, train, last } = event;
        if let Some(bar) = &self.bar {
            bar.set_message(&format!("epoch {}, loss {}", self.epoch(*epoch), short(*train_loss)));
        }
        self.evaluated(
            *epoch,
            *step,
            Some(*train_loss),
            Evaluated { train: Some(train), eval, last },
            standing,
        );
    }

    fn eval(&self, event: &EvalEvent, standing: Standing) {
        let EvalEvent { epoch, step, eval, last } = event;
        self.evaluated(*epoch, *step, None, Evaluated { train: None, eval, last }, standing);
    }

    fn end(&mut self, event: &EndEvent, folder: Option<&Path>) {
        self.pace.get_mut().flush();
        self.bar = None;
        self.set_eval(&event.eval);
        self.posts = None;
        self.server = None;
        let EndEvent { steps, samples, train_loss, elapsed_s, train_s, .. } = *event;
        info!(steps, samples, train_loss, elapsed_s, train_s, "{}", end_lines(event, folder));
    }
}

#[cfg(test)]
mod tests {
    use ddp::report::metrics::{LastMetrics, TrainMetrics};
    use ddp::report::progress::Progress as _;

    use std::sync::Mutex;
    use tracing::field::{Field, Visit};
    use tracing::span;

    use super::*;

    /// Records the field `step` of each event.
    struct Recorded(Arc<Mutex<Vec<u64>>>);

    impl Recorded {
        fn new() -> (Self, Arc<Mutex<Vec<u64>>>) {
            let events = Arc::default();
            (Recorded(Arc::clone(&events)), events)
        }
    }

    impl Visit for &Recorded {
        fn record_u64(&mut self, field: &Field, value: u64) {
            if field.name() == "step" {
                self.0.lock().unwrap().push(value);
            }
        }

        fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
    }

    impl tracing::Subscriber for Recorded {
        fn enabled(&self, _metadata: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _attributes: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}
        fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            event.record(&mut &*self);
        }
        fn enter(&self, _span: &span::Id) {}
        fn exit(&self, _span: &span::Id) {}
    }

    fn progress(n_epochs: Option<u64>) -> Progress {
        let pace = RefCell::new(Pace::new(false, false));
        Progress { live: None, posts: None, server: None, bar: None, pace, n_epochs }
    }

    #[test]
    fn lines_tell_names_and_units() {
        let step = StepEvent {
            step: 50,
            epoch: 2,
            loss: 0.51234,
            lr: 0.001,
            grad_norm: 1.5e-7,
            samples_per_s: 1_234_567.8,
            h2d_ms: 0.0,
            time: None,
        };
        assert_eq!(
            progress(Some(30)).step_line(&step),
            "step 50  epoch 2/30  loss 0.5123  lr 0.001  grad_norm 1.500e-7  1,234,568 samples/s"
        );
    }

    #[test]
    fn a_bar_needs_a_terminal_and_a_listener() {
        for (choice, quiet, is_terminal, has_bar, prints) in [
            (ProgressChoice::Auto, false, true, true, false),
            (ProgressChoice::Bar, false, true, true, false),
            (ProgressChoice::Bar, false, false, false, true),
            (ProgressChoice::Bar, true, true, false, true),
            (ProgressChoice::Plain, false, true, false, true),
            (ProgressChoice::None, false, true, false, false),
        ] {
            let (terminal, _) = Terminal::in_memory(is_terminal);
            let progress = Progress::new(&terminal, choice, quiet, None, 0..10, None).unwrap();
            let got = (progress.bar.is_some(), terminal.prints_progress());
            assert_eq!(got, (has_bar, prints), "{choice:?}, quiet {quiet}, terminal {is_terminal}");
        }
    }

    #[test]
    fn the_bar_shows_epoch_and_loss() {
        let (terminal, text) = Terminal::in_memory(true);
        let progress = Progress::new(&terminal, ProgressChoice::Auto, false, None, 0..100, Some(2)).unwrap();
        let state = || (text(), progress.bar.as_ref().unwrap().state());
        assert_eq!(state(), (String::new(), (0, "starting".to_owned())));
        progress.advance(10);
        let event = EpochEvent {
            epoch: 1,
            step: 9,
            train_loss: 1.0,
            train: TrainMetrics::default(),
            eval: EvalMetrics::default(),
            last: LastMetrics::default(),
        };
        progress.epoch_end(&event, Standing::default());
        assert_eq!(state().1, (10, "epoch 1/2, loss 1.0000".to_owned()));
    }

    /// Steps of the lines that are printed of evaluations at these seconds, with those that are the best so far.
    fn printed(prints_all: bool, evaluations: &[(f64, bool)]) -> Vec<u64> {
        let (log, events) = Recorded::new();
        tracing::subscriber::with_default(log, || {
            let mut pace = Pace::new(prints_all, false);
            let start = Instant::now();
            for (i, (at, is_best)) in evaluations.iter().enumerate() {
                let step = i as u64;
                let line = Line { epoch: 1, step, train_loss: None, text: String::new(), has_bar: false };
                let standing = Standing { is_best: *is_best, is_last: false };
                pace.add(line, standing, start + Duration::from_secs_f64(*at));
            }
            pace.flush();
        });
        events.lock().unwrap().clone()
    }

    #[test]
    fn the_first_the_best_and_the_last_evaluation_are_printed() {
        let fast = [(0.1, true), (0.2, true), (0.3, true), (0.4, false), (0.5, false)];
        assert_eq!(printed(false, &fast), [0, 2, 4]);
        assert_eq!(printed(true, &fast), [0, 1, 2, 3, 4]);
        // The best one appears before the next line.
        assert_eq!(printed(false, &[(0.1, true), (0.2, true), (0.3, false), (1.2, false)]), [0, 1, 3]);
        assert_eq!(printed(false, &[(0.1, true), (2.0, false), (4.0, true)]), [0, 1, 2]);
        assert_eq!(printed(false, &[(0.1, true)]), [0]);
    }

    #[test]
    fn steps_are_printed_after_ten_seconds_without_a_line() {
        let mut pace = Pace::new(false, false);
        let start = pace.last_line;
        let at = |s| start + Duration::from_secs(s);
        let taken = [1, 9, 10, 19, 20].map(|s| pace.takes_step(at(s)));
        assert_eq!(taken, [false, false, true, false, true]);
        assert!(Pace::new(true, false).takes_step(start));
    }
}

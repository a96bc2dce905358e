//! Progress of a run on stderr of rank 0: a bar or plain lines.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::report::EvalMetrics;
use crate::report::metrics::{BestEvent, EndEvent, EpochEvent, EvalEvent, StepEvent};

/// Form of the progress report on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum ProgressChoice {
    /// A bar if stderr is a terminal, else plain lines.
    #[default]
    Auto,
    /// A bar; plain lines without a terminal.
    Bar,
    /// Plain lines.
    Plain,
    /// Nothing.
    None,
}

/// Minimum time between two lines above a bar; plain lines are never dropped.
const BETWEEN_LINES: Duration = Duration::from_millis(100);

/// Progress report of a run. Ranks other than 0 use [`Progress::none`].
#[derive(Debug)]
pub struct Progress {
    view: View,
    /// Whether to report the end of the run: not on other ranks, nor with `--quiet`.
    reports_end: bool,
    n_epochs: Option<u64>,
    /// Time of the last line above the bar.
    line_above_bar: Cell<Option<Instant>>,
}

#[derive(Debug)]
enum View {
    None,
    Plain,
    Bar(ProgressBar),
}

impl Progress {
    /// Progress over `total_rows` rows of all ranks and epochs; `n_epochs` if it is known. `quiet` shows nothing.
    pub fn new(choice: ProgressChoice, quiet: bool, total_rows: u64, n_epochs: Option<u64>) -> Self {
        let view = match choice {
            _ if quiet => View::None,
            ProgressChoice::None => View::None,
            ProgressChoice::Plain => View::Plain,
            // A bar needs a terminal.
            ProgressChoice::Bar | ProgressChoice::Auto if io::stderr().is_terminal() => {
                View::Bar(bar(total_rows))
            }
            ProgressChoice::Bar | ProgressChoice::Auto => View::Plain,
        };
        Self { view, reports_end: !quiet, n_epochs, line_above_bar: Cell::default() }
    }

    /// Shows nothing.
    pub fn none() -> Self {
        Self { view: View::None, reports_end: false, n_epochs: None, line_above_bar: Cell::default() }
    }

    /// Adds the rows that a step has used on all ranks. Cheap enough for every step.
    #[inline]
    pub fn advance(&self, n_rows: u64) {
        if let View::Bar(bar) = &self.view {
            bar.inc(n_rows);
        }
    }

    /// Reports a logged step.
    pub fn step(&self, event: &StepEvent) {
        match &self.view {
            View::None => {}
            View::Plain => line(&self.step_line(event)),
            View::Bar(bar) => {
                let epoch = self.epoch(event.epoch);
                bar.set_message(format!("epoch {epoch}, loss {}", short(event.loss)));
            }
        }
    }

    /// Reports the end of an epoch.
    pub fn epoch_end(&self, event: &EpochEvent) {
        match &self.view {
            View::None => {}
            View::Plain => line(&self.epoch_line(event)),
            View::Bar(bar) => {
                bar.set_message(format!(
                    "epoch {}, loss {}",
                    self.epoch(event.epoch),
                    short(event.train_loss)
                ));
                // Each line redraws the bar, which would dominate epochs of a millisecond.
                let now = Instant::now();
                let last = self.line_above_bar.get();
                if self.n_epochs == Some(event.epoch) || last.is_none_or(|last| now - last >= BETWEEN_LINES) {
                    bar.println(self.epoch_line(event));
                    self.line_above_bar.set(Some(now));
                }
            }
        }
    }

    /// Reports an evaluation within an epoch.
    pub fn eval(&self, event: &EvalEvent) {
        let text = || {
            let mut text = format!("step {}  epoch {}", event.step, self.epoch(event.epoch));
            append_eval(&mut text, &event.eval);
            text
        };
        match &self.view {
            View::None => {}
            View::Plain => line(&text()),
            View::Bar(bar) => bar.println(text()),
        }
    }

    /// Prints a line of text.
    pub fn note(&self, text: &str) {
        match &self.view {
            View::None if !self.reports_end => {}
            View::None | View::Plain => line(text),
            View::Bar(bar) => bar.println(text),
        }
    }

    /// Reports the end of a successful run and the folder of its files.
    pub fn end(&self, event: &EndEvent, folder: Option<&Path>) {
        if let View::Bar(bar) = &self.view {
            bar.finish_and_clear();
        }
        if self.reports_end {
            line(&end_lines(event, folder));
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

    fn epoch_line(&self, event: &EpochEvent) -> String {
        let mut text = format!("epoch {}  train_loss {}", self.epoch(event.epoch), short(event.train_loss));
        for (name, value) in event.train.iter() {
            let _ = write!(text, "  {name} {}", short(value));
        }
        append_eval(&mut text, &event.eval);
        text
    }
}

impl Drop for Progress {
    /// Clears an unfinished bar, so that a following error is on a line of its own.
    fn drop(&mut self) {
        if let View::Bar(bar) = &self.view {
            bar.finish_and_clear();
        }
    }
}

fn bar(total_rows: u64) -> ProgressBar {
    // At most 10 frames per second: the bar must not slow the run.
    let bar = ProgressBar::with_draw_target(Some(total_rows), ProgressDrawTarget::stderr_with_hz(10));
    let template = if colours() {
        "{bar:30.cyan/blue} {percent:>3}%  {per_sec}  {eta} left  {msg}"
    } else {
        "{bar:30} {percent:>3}%  {per_sec}  {eta} left  {msg}"
    };
    let style = ProgressStyle::with_template(template).expect("the template is constant and valid");
    let style =
        style.with_key("per_sec", |state: &indicatif::ProgressState, text: &mut dyn std::fmt::Write| {
            let _ = write!(text, "{} rows/s", rate(state.per_sec()));
        });
    bar.set_style(style);
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Whether to use colours: not if `NO_COLOR` is set and not empty. Source: <https://no-color.org>.
pub(crate) fn colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn end_lines(event: &EndEvent, folder: Option<&Path>) -> String {
    let EndEvent { steps, samples, world_size, elapsed_s, samples_per_s, .. } = event;
    let ranks = if *world_size == 1 { "rank" } else { "ranks" };
    let mut text = format!("done  train_loss {}", short(event.train_loss));
    append_eval(&mut text, &event.eval);
    let _ = write!(
        text,
        "\n      {steps} steps, {samples} samples in {elapsed_s:.2} s on {world_size} {ranks}, \
         {} samples/s",
        rate(*samples_per_s)
    );
    if let Some(BestEvent { metric, value, step, epoch }) = &event.best {
        let _ = write!(
            text,
            "\n      best {metric} {} after step {step}, epoch {epoch}: its weights are the model",
            short(*value)
        );
    }
    if let Some(folder) = folder {
        let _ = write!(text, "\n      files in {}", folder.display());
    }
    text
}

fn append_eval(text: &mut String, eval: &EvalMetrics) {
    for (metric, value) in eval.iter() {
        let _ = write!(text, "  {} {}", metric.name(), short(value));
    }
}

/// Formats with four decimals where those are significant, else with an exponent.
fn short(number: f64) -> String {
    if number == 0.0 || !number.is_finite() || (1e-3..1e5).contains(&number.abs()) {
        format!("{number:.4}")
    } else {
        format!("{number:.3e}")
    }
}

/// Formats a rate as a whole number, in groups of three digits.
pub(crate) fn rate(per_s: f64) -> String {
    let digits = format!("{:.0}", per_s.max(0.0));
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Prints a line to stderr; a closed stderr does not stop a run.
pub(crate) fn line(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EvalMetric;
    use crate::report::metrics::TrainMetrics;

    fn progress(n_epochs: Option<u64>) -> Progress {
        Progress { view: View::Plain, reports_end: true, n_epochs, line_above_bar: Cell::default() }
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
            data_wait_ms: 0.0,
            h2d_ms: 0.0,
        };
        assert_eq!(
            progress(Some(30)).step_line(&step),
            "step 50  epoch 2/30  loss 0.5123  lr 0.001  grad_norm 1.500e-7  1 234 568 samples/s"
        );
        let eval = [(EvalMetric::Loss, 0.25), (EvalMetric::Accuracy, 0.97)].into_iter().collect();
        assert_eq!(
            progress(None).epoch_line(&EpochEvent {
                epoch: 3,
                step: 9,
                train_loss: 0.5,
                train: TrainMetrics::default(),
                eval
            }),
            "epoch 3  train_loss 0.5000  eval_loss 0.2500  eval_accuracy 0.9700"
        );
    }

    #[test]
    fn end_tells_accuracy_and_folder() {
        let event = EndEvent {
            steps: 10,
            samples: 3200,
            world_size: 2,
            train_loss: f64::NAN,
            eval: EvalMetrics::default().with(EvalMetric::Accuracy, 0.97),
            best: Some(BestEvent { metric: "eval_loss".to_owned(), value: 0.125, step: 8, epoch: 4 }),
            elapsed_s: 2.0,
            train_s: 1.0,
            samples_per_s: 3200.0,
            startup_s: 0.1,
            data_wait_s: 0.0,
        };
        let text = end_lines(&event, Some(Path::new("runs/x")));
        for part in [
            "train_loss NaN",
            "eval_accuracy 0.9700",
            "best eval_loss 0.1250 after step 8, epoch 4",
            "10 steps",
            "2 ranks",
            "3 200 samples/s",
            "files in runs/x",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn none_and_quiet_show_nothing() {
        for progress in [Progress::none(), Progress::new(ProgressChoice::Bar, true, 10, None)] {
            assert!(matches!(progress.view, View::None) && !progress.reports_end);
            progress.advance(3);
            progress.note("hidden");
        }
        let progress = Progress::new(ProgressChoice::None, false, 10, None);
        assert!(matches!(progress.view, View::None) && progress.reports_end);
    }

    #[test]
    fn without_a_terminal_there_are_lines() {
        let progress = Progress::new(ProgressChoice::Bar, false, 100, Some(2));
        // Someone who runs the tests by hand may sit at a terminal.
        assert!(io::stderr().is_terminal() || matches!(progress.view, View::Plain));
    }

    #[test]
    fn bar_counts_rows() {
        let progress = Progress {
            view: View::Bar(bar(100)),
            reports_end: true,
            n_epochs: Some(2),
            line_above_bar: Cell::default(),
        };
        progress.advance(10);
        progress.step(&StepEvent {
            step: 1,
            epoch: 1,
            loss: 1.0,
            lr: 0.1,
            grad_norm: 1.0,
            samples_per_s: 1.0,
            data_wait_ms: 0.0,
            h2d_ms: 0.0,
        });
        progress.epoch_end(&EpochEvent {
            epoch: 1,
            step: 9,
            train_loss: 1.0,
            train: TrainMetrics::default(),
            eval: EvalMetrics::default(),
        });
        let View::Bar(bar) = &progress.view else { panic!() };
        assert_eq!(bar.position(), 10);
        assert_eq!(bar.message(), "epoch 1/2, loss 1.0000");
    }

    #[test]
    fn numbers_stay_short() {
        assert_eq!(
            [short(0.0), short(123_456.0), short(-0.5), short(f64::INFINITY)],
            ["0.0000", "1.235e5", "-0.5000", "inf"]
        );
        assert_eq!([rate(999.6), rate(12.3), rate(-1.0)], ["1 000", "12", "0"]);
    }
}

//! Progress of a run on stderr of rank 0: a bar or plain lines.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ddp::config::EvalMetric;
use ddp::report::EvalMetrics;
use ddp::report::metrics::{BestEvent, EndEvent, EndTime, EpochEvent, EvalEvent, LastMetrics, StepEvent};
use ddp::report::notes::PROGRESS;
use ddp::report::times::Part;
use ddp::report::units::{flop_rate, rate};
use tracing::info;

use crate::report::kubeflow::Posts;
use crate::report::live::{Live, TIME};
use crate::report::log::{ShownBar, Terminal};
use crate::report::prometheus::{RunInfo, Server};

/// Least training time, in s, of a run whose time is reported: the first steps of a run are slower than the others.
const MIN_TRAIN_S: f64 = 5.0;

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
        Ok(Self { bar, live, posts, server, n_epochs })
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

    fn epoch_line(&self, event: &EpochEvent) -> String {
        let mut text = format!("epoch {}  train_loss {}", self.epoch(event.epoch), short(event.train_loss));
        for (name, value) in event.train.iter() {
            let _ = write!(text, "  {name} {}", short(value));
        }
        append_eval(&mut text, &event.eval);
        append_last(&mut text, &event.last);
        text
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
        info!(target: PROGRESS, step, epoch, loss, lr, grad_norm, samples_per_s, "{}", self.step_line(event));
    }

    fn epoch_end(&self, event: &EpochEvent) {
        let EpochEvent { epoch, step, train_loss, .. } = *event;
        let text = self.epoch_line(event);
        self.set_eval(&event.eval);
        match &self.bar {
            Some(bar) => {
                bar.set_message(&format!("epoch {}, loss {}", self.epoch(epoch), short(train_loss)));
                info!(epoch, step, train_loss, "{text}");
            }
            None => info!(target: PROGRESS, epoch, step, train_loss, "{text}"),
        }
    }

    fn eval(&self, event: &EvalEvent) {
        let (step, epoch) = (event.step, event.epoch);
        self.set_eval(&event.eval);
        let mut text = format!("step {step}  epoch {}", self.epoch(epoch));
        append_eval(&mut text, &event.eval);
        append_last(&mut text, &event.last);
        match &self.bar {
            Some(_) => info!(epoch, step, "{text}"),
            None => info!(target: PROGRESS, epoch, step, "{text}"),
        }
    }

    fn end(&mut self, event: &EndEvent, folder: Option<&Path>) {
        self.bar = None;
        self.set_eval(&event.eval);
        self.posts = None;
        self.server = None;
        let EndEvent { steps, samples, train_loss, elapsed_s, train_s, .. } = *event;
        info!(steps, samples, train_loss, elapsed_s, train_s, "{}", end_lines(event, folder));
    }
}

fn end_lines(event: &EndEvent, folder: Option<&Path>) -> String {
    let EndEvent { steps, samples, world_size, elapsed_s, train_s, samples_per_s, gflops_per_s, .. } = event;
    let ranks = if *world_size == 1 { "rank" } else { "ranks" };
    let mut text = format!("done  train_loss {}", short(event.train_loss));
    append_eval(&mut text, &event.eval);
    append_last(&mut text, &event.last);
    let _ = write!(
        text,
        "\n      {steps} steps; {samples} samples in {} of training on {world_size} {ranks}, {} samples/s, {}; {} in all",
        duration(*train_s),
        rate(*samples_per_s),
        flop_rate(*gflops_per_s * 1e9),
        duration(*elapsed_s)
    );
    if let Some(BestEvent { metric, value, step, epoch, is_last }) = &event.best {
        let of = if *is_last { "its weights, without averaging, are" } else { "its weights are" };
        let _ = write!(
            text,
            "\n      best {metric} {} after step {step}, epoch {epoch}: {of} the model",
            short(*value)
        );
    }
    if let Some(EndTime { split, bound, .. }) = &event.time
        && *train_s >= MIN_TRAIN_S
    {
        let _ = write!(text, "\n      time: {}\n      {bound}", split.shares());
    }
    if let Some(folder) = folder {
        let _ = write!(text, "\n      files in {}", folder.display());
    }
    text
}

/// Appends the two most telling metrics of the last weights, next to those of averaged ones.
fn append_last(text: &mut String, last: &LastMetrics) {
    for (name, value) in last.iter() {
        if ["last_loss", "last_accuracy", "last_r2"].contains(&name.as_str()) {
            let _ = write!(text, "  {name} {}", short(value));
        }
    }
}

fn append_eval(text: &mut String, eval: &EvalMetrics) {
    for (metric, value) in eval.iter() {
        let _ = write!(text, "  {} {}", metric.name(), short(value));
    }
    for (name, metrics) in eval.heads() {
        let of_head = || metrics.iter().filter(|(metric, _)| *metric != EvalMetric::Loss);
        let shown = of_head().find(|(metric, _)| *metric == EvalMetric::R2).or_else(|| of_head().next());
        if let Some((metric, value)) = shown {
            let _ = write!(text, "  {name}.{} {}", metric.name(), short(value));
        }
    }
}

/// Formats a time, with its unit.
fn duration(seconds: f64) -> String {
    if seconds < 0.1 { format!("{:.1} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

/// Formats a number with four decimals if these are significant, else with an exponent.
fn short(number: f64) -> String {
    if number == 0.0 || !number.is_finite() || (1e-3..1e5).contains(&number.abs()) {
        format!("{number:.4}")
    } else {
        format!("{number:.3e}")
    }
}

#[cfg(test)]
mod tests {
    use ddp::config::EvalMetric;
    use ddp::report::metrics::TrainMetrics;
    use ddp::report::progress::Progress as _;
    use ddp::report::times::TimeSplit;

    use super::*;

    fn progress(n_epochs: Option<u64>) -> Progress {
        Progress { live: None, posts: None, server: None, bar: None, n_epochs }
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
        let eval = [(EvalMetric::Loss, 0.25), (EvalMetric::Accuracy, 0.97)].into_iter().collect();
        assert_eq!(
            progress(None).epoch_line(&EpochEvent {
                epoch: 3,
                step: 9,
                train_loss: 0.5,
                train: TrainMetrics::default(),
                eval,
                last: LastMetrics::default(),
            }),
            "epoch 3  train_loss 0.5000  eval_loss 0.2500  eval_accuracy 0.9700"
        );
    }

    #[test]
    fn end_tells_accuracy_and_folder() {
        let event = EndEvent {
            target_shift: None,
            target_scale: None,
            steps: 10,
            samples: 3200,
            world_size: 2,
            train_loss: f64::NAN,
            eval: EvalMetrics::default().with(EvalMetric::Accuracy, 0.97),
            last: LastMetrics(EvalMetrics::default().with(EvalMetric::Accuracy, 0.75)),
            best: Some(BestEvent {
                metric: "eval_loss".to_owned(),
                value: 0.125,
                step: 8,
                epoch: 4,
                is_last: false,
            }),
            elapsed_s: 2.5,
            train_s: 1.0,
            samples_per_s: 3200.0,
            gflops_per_s: 1.6e-3,
            startup_s: 0.1,
            time: Some(EndTime {
                split: TimeSplit { forward: 1.0, backward: 4.0, total: 5.0, ..TimeSplit::default() },
                bound: "bound by computing".to_owned(),
                ranks: Vec::new(),
            }),
            warnings: Vec::new(),
        };
        assert!(!end_lines(&event, None).contains("bound"), "a short run is not judged");
        let event = EndEvent { train_s: 5.0, samples_per_s: 640.0, ..event };
        let text = end_lines(&event, Some(Path::new("runs/x")));
        for part in [
            "train_loss NaN",
            "eval_accuracy 0.9700  last_accuracy 0.7500",
            "10 steps; 3200 samples in 5.00 s of training on 2 ranks, 640 samples/s, 1.60 MFLOP/s; 2.50 s in all",
            "time: backward 80%, forward 20%\n      bound by computing",
            "best eval_loss 0.1250 after step 8, epoch 4",
            "files in runs/x",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
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
        progress.epoch_end(&event);
        assert_eq!(state().1, (10, "epoch 1/2, loss 1.0000".to_owned()));
    }

    #[test]
    fn numbers_stay_short() {
        assert_eq!([duration(0.0034), duration(0.1), duration(75.0)], ["3.4 ms", "0.10 s", "75.00 s"]);
        assert_eq!(
            [short(0.0), short(123_456.0), short(-0.5), short(f64::INFINITY)],
            ["0.0000", "1.235e5", "-0.5000", "inf"]
        );
    }
}

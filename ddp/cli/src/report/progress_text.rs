//! Text of a run's progress: lines of evaluations, rows of a table on a terminal, and the summary at the end. No line is wider than
//! [`LINE_WIDTH`].

use std::fmt::Write as _;
use std::path::Path;

use ddp::config::EvalMetric;
use ddp::report::EvalMetrics;
use ddp::report::metrics::{BestEvent, EndEvent, EndTime, LastMetrics, TrainMetrics};
use ddp::report::units::{flop_rate, rate};

/// Characters of a line.
pub(super) const LINE_WIDTH: usize = 80;
/// Least training time, in s, of a run whose time is reported: the first steps of a run are slower than the others.
const MIN_TRAIN_S: f64 = 5.0;
/// Narrowest column of numbers.
const MIN_COLUMN: usize = 8;
/// Space before each line of the summary but the first.
const INDENT: &str = "      ";

/// Metrics of an evaluation.
pub(super) struct Evaluated<'a> {
    pub(super) train: Option<&'a TrainMetrics>,
    pub(super) eval: &'a EvalMetrics,
    pub(super) last: &'a LastMetrics,
}

impl Evaluated<'_> {
    /// Names and values, the most telling ones first.
    fn values(&self) -> Vec<(String, f64)> {
        let train = self.train.into_iter().flat_map(TrainMetrics::iter);
        named(self.eval).into_iter().chain(named_last(self.last)).chain(train).collect()
    }

    /// A line that begins with `place`, with as many metrics as fit in `width` characters.
    pub(super) fn line(&self, place: String, train_loss: Option<f64>, width: usize) -> String {
        let train_loss = train_loss.map(|loss| ("train_loss".to_owned(), loss));
        let items = train_loss.into_iter().chain(self.values());
        items.fold(place, |line, (name, value)| {
            let item = format!("  {name} {}", short(value));
            if line.len() + item.len() <= width { line + &item } else { line }
        })
    }
}

/// The columns of the table of evaluations, which are chosen by the first one.
#[derive(Debug, Default)]
pub(super) struct Columns {
    names: Vec<String>,
}

impl Columns {
    /// The row of an evaluation, below the header where the columns are new ones.
    pub(super) fn row(
        &mut self,
        epoch: &str,
        step: u64,
        train_loss: Option<f64>,
        event: &Evaluated<'_>,
    ) -> String {
        let values = event.values();
        let mut text = String::new();
        let is_known = |name: &String| values.iter().any(|(of, _)| of == name);
        if self.names.is_empty() || !self.names.iter().all(is_known) {
            self.names.clear();
            let mut width = 9 + 9 + 12;
            for (name, _) in &values {
                width += 2 + column_width(name);
                if width <= LINE_WIDTH {
                    self.names.push(name.clone());
                }
            }
            text = format!("{:>9}{:>9}{:>12}", "epoch", "step", "train_loss");
            for name in &self.names {
                let _ = write!(text, "  {:>1$}", title(name), column_width(name));
            }
            text.push('\n');
        }
        let train_loss = train_loss.map_or_else(String::new, short);
        let _ = write!(text, "{epoch:>9}{step:>9}{train_loss:>12}");
        for name in &self.names {
            let value = values.iter().find(|(of, _)| of == name).map_or(f64::NAN, |(_, value)| *value);
            let _ = write!(text, "  {:>1$}", short(value), column_width(name));
        }
        text
    }
}

/// The name of a metric above its column: the loss is not that of the training rows.
fn title(name: &str) -> &str {
    if name == EvalMetric::Loss.name() { name } else { name.strip_prefix("eval_").unwrap_or(name) }
}

fn column_width(name: &str) -> usize {
    title(name).len().max(MIN_COLUMN)
}

/// The summary of a complete run: first the metrics of the weights that are its model.
pub(super) fn end_lines(event: &EndEvent, folder: Option<&Path>) -> String {
    let EndEvent { steps, samples, world_size, elapsed_s, train_s, samples_per_s, gflops_per_s, .. } = event;
    let item = |(name, value): (String, f64)| format!("{name} {}", short(value));
    let mut first: Vec<String> = named(&event.eval).into_iter().map(item).collect();
    let train_loss = item(("train_loss".to_owned(), event.train_loss));
    let last: Vec<String> = named_last(&event.last).into_iter().map(item).collect();
    let mut lines = Vec::new();
    if last.is_empty() {
        first.push(train_loss.clone());
    }
    lines.push(fill(&first, "  "));
    if let Some(BestEvent { metric, step, epoch, is_last, .. }) = &event.best {
        let of = if *is_last { "without averaging, are" } else { "are" };
        lines.push(fill_words(&format!(
            "best {metric}: the weights after step {step}, epoch {epoch}, {of} the model"
        )));
    }
    if !last.is_empty() {
        lines.push(fill(&[vec!["last weights:".to_owned()], last, vec![train_loss]].concat(), "  "));
    }
    let ranks = if *world_size == 1 { "rank" } else { "ranks" };
    let mut work = vec![format!("{} steps", rate(*steps as f64))];
    if *samples > 0 {
        work.extend([
            format!(
                "{} samples in {} of training on {world_size} {ranks}",
                rate(*samples as f64),
                duration(*train_s)
            ),
            format!("{} samples/s", rate(*samples_per_s)),
            flop_rate(*gflops_per_s * 1e9),
        ]);
    }
    work.push(format!("{} in all", duration(*elapsed_s)));
    lines.push(fill(&work, ", "));
    if let Some(EndTime { split, bound, .. }) = &event.time
        && *train_s >= MIN_TRAIN_S
    {
        lines.push(fill_words(&format!("time: {}", split.shares())));
        lines.extend(bound.lines().map(fill_words));
    }
    lines.extend(folder.map(|folder| format!("files in {}", folder.display())));
    format!("done  {}", lines.join("\n").replace('\n', &format!("\n{INDENT}")))
}

/// Joins items by `separator` to lines that are short enough.
fn fill<T: AsRef<str>>(items: &[T], separator: &str) -> String {
    let mut text = String::new();
    let mut width = INDENT.len();
    for (i, item) in items.iter().map(AsRef::as_ref).enumerate() {
        let n = item.chars().count();
        if i > 0 && width + separator.len() + n <= LINE_WIDTH {
            text += separator;
            width += separator.len();
        } else if i > 0 {
            text += separator.trim_end();
            text.push('\n');
            width = INDENT.len();
        }
        text += item;
        width += n;
    }
    text
}

fn fill_words(text: &str) -> String {
    fill(&text.split(' ').collect::<Vec<_>>(), " ")
}

/// Metrics of the evaluation rows, and the most telling one of each head.
fn named(eval: &EvalMetrics) -> Vec<(String, f64)> {
    let mut named: Vec<_> = eval.iter().map(|(metric, value)| (metric.name().to_owned(), value)).collect();
    for (name, metrics) in eval.heads() {
        let of_head = || metrics.iter().filter(|(metric, _)| *metric != EvalMetric::Loss);
        let shown = of_head().find(|(metric, _)| *metric == EvalMetric::R2).or_else(|| of_head().next());
        named.extend(shown.map(|(metric, value)| (format!("{name}.{}", metric.name()), value)));
    }
    named
}

/// The two most telling metrics of the last weights.
fn named_last(last: &LastMetrics) -> Vec<(String, f64)> {
    let is_telling = |name: &str| ["last_loss", "last_accuracy", "last_r2"].contains(&name);
    last.iter().filter(|(name, _)| is_telling(name)).collect()
}

/// Formats a time, with its unit.
fn duration(seconds: f64) -> String {
    if seconds < 0.1 { format!("{:.1} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

/// Formats a number with four decimals if these are significant, else with an exponent.
pub(super) fn short(number: f64) -> String {
    if number == 0.0 || !number.is_finite() || (1e-3..1e5).contains(&number.abs()) {
        format!("{number:.4}")
    } else {
        format!("{number:.3e}")
    }
}

#[cfg(test)]
mod tests {
    use ddp::report::times::TimeSplit;

    use super::*;

    fn metrics() -> EvalMetrics {
        [(EvalMetric::Loss, 0.25), (EvalMetric::Accuracy, 0.97), (EvalMetric::BalancedAccuracy, 0.5)]
            .into_iter()
            .collect()
    }

    #[test]
    fn lines_have_as_many_metrics_as_fit() {
        let (eval, last) = (metrics(), LastMetrics::default());
        let event = Evaluated { train: None, eval: &eval, last: &last };
        assert_eq!(
            event.line("epoch 3".to_owned(), Some(0.5), LINE_WIDTH),
            "epoch 3  train_loss 0.5000  eval_loss 0.2500  eval_accuracy 0.9700"
        );
        assert!(
            event.line("epoch 3".to_owned(), None, usize::MAX).ends_with("  eval_balanced_accuracy 0.5000")
        );
    }

    #[test]
    fn evaluations_stand_in_columns_below_one_header() {
        let (eval, last) = (metrics(), LastMetrics::default());
        let event = Evaluated { train: None, eval: &eval, last: &last };
        let mut columns = Columns::default();
        assert_eq!(
            columns.row("1/30", 75, Some(0.5681), &event),
            "    epoch     step  train_loss  eval_loss  accuracy  balanced_accuracy
     1/30       75      0.5681     0.2500    0.9700             0.5000"
        );
        assert_eq!(
            columns.row("2/30", 100, None, &event),
            "     2/30      100                 0.2500    0.9700             0.5000"
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
            proposal: None,
        };
        assert!(!end_lines(&event, None).contains("bound"), "a short run is not judged");
        let event = EndEvent { train_s: 5.0, samples_per_s: 640.0, ..event };
        let text = end_lines(&event, Some(Path::new("runs/x")));
        assert_eq!(
            text,
            "done  eval_accuracy 0.9700
      best eval_loss: the weights after step 8, epoch 4, are the model
      last weights:  last_accuracy 0.7500  train_loss NaN
      10 steps, 3,200 samples in 5.00 s of training on 2 ranks, 640 samples/s,
      1.60 MFLOP/s, 2.50 s in all
      time: backward 80%, forward 20%
      bound by computing
      files in runs/x"
        );
        // A run that was complete before.
        let event = EndEvent { samples: 0, train_s: 0.0, best: None, last: LastMetrics::default(), ..event };
        assert_eq!(
            end_lines(&event, None),
            "done  eval_accuracy 0.9700  train_loss NaN\n      10 steps, 2.50 s in all"
        );
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

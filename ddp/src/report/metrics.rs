//! Events of a run, as JSON lines in `metrics.jsonl` and on stdout.
//!
//! A run that resumes from a checkpoint removes the events after it:
//!
//! ```
//! use ddp::report::metrics::{CheckpointEvent, Event, MetricsSink};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("metrics.jsonl");
//! let mut metrics = MetricsSink::create(&path, None)?;
//! for step in [10, 20, 30] {
//!     metrics.write(&Event::Checkpoint(CheckpointEvent { step, bytes: 4096, pause_ms: 0.5, write_s: 0.1 }))?;
//! }
//! drop(metrics);
//!
//! let (_metrics, loss) = MetricsSink::resume(&path, None, 20, &[], false)?;
//! assert_eq!(loss, None);
//! assert_eq!(std::fs::read_to_string(&path)?.lines().count(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use crate::config::EvalMetric;
use crate::exit_code::RESTARTABLE;
use crate::report::kept_lines::keep_until;
use crate::report::times::{RankTime, TimeSplit};
use crate::report::{EvalMetrics, EventStream, ReportError};
use crate::storage::atomic_write::WriteError;
use crate::storage::user_file::open_unlinked;

type Result<T, E = ReportError> = std::result::Result<T, E>;

/// An event: one line of JSON. Non-finite numbers are written as `null`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// Every `log.every_steps` steps.
    Step(StepEvent),
    /// After each epoch.
    Epoch(EpochEvent),
    /// After an evaluation within an epoch.
    Eval(EvalEvent),
    /// A checkpoint is durable on disk.
    Checkpoint(CheckpointEvent),
    /// A run resumes from a checkpoint.
    Resume(ResumeEvent),
    /// A resumed run has other learning rates than the checkpoint's run would have had.
    Schedule(ScheduleEvent),
    /// A run stops early, on a signal or `train.stop_after_steps`.
    Stop(StopEvent),
    /// A run is complete.
    End(EndEvent),
    /// A run failed.
    Failed(FailedEvent),
}

impl Event {
    /// The completed steps of an event that a step or its evaluation ends with.
    pub(crate) fn step_of_training(&self) -> Option<u64> {
        match self {
            Event::Step(event) => Some(event.step),
            Event::Epoch(event) => Some(event.step),
            Event::Eval(event) => Some(event.step),
            _ => None,
        }
    }
}

/// A checkpoint was written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckpointEvent {
    /// Steps completed at its snapshot.
    pub step: u64,
    /// Bytes written by rank 0.
    pub bytes: u64,
    /// Pause of training for the snapshot, in ms.
    pub pause_ms: f64,
    /// Time from the snapshot until the checkpoint is durable on disk, in s; training continues meanwhile.
    pub write_s: f64,
}

/// A run was resumed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResumeEvent {
    /// Steps completed.
    pub step: u64,
    /// Current number of ranks.
    pub world_size: usize,
    /// Number of ranks when the checkpoint was written.
    pub world_size_before: usize,
    /// The loss that ended the run before, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<Loss>,
}

/// The loss of a rank, as the run that continues sees it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Loss {
    /// The rank that was lost.
    pub rank: usize,
    /// Steps that run again.
    pub steps: u64,
    /// Time from the report of the loss to this event in s.
    pub down_s: f64,
}

/// The learning-rate schedule spans other steps than before.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScheduleEvent {
    /// Steps completed.
    pub step: u64,
    /// Learning rate of the next step by the schedule before.
    pub lr_before: f64,
    /// Learning rate of the next step.
    pub lr: f64,
    /// Steps that the schedule spans.
    pub schedule_steps: u64,
}

/// A run stopped early.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StopEvent {
    /// Steps completed.
    pub step: u64,
    /// Signal or config key that stopped it.
    pub reason: String,
}

/// One optimizer step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepEvent {
    /// Steps completed, from 1.
    pub step: u64,
    /// Epoch of the step, from 1.
    pub epoch: u64,
    /// Mean loss over the rows of the step's global batch.
    pub loss: f64,
    /// Base learning rate of the step.
    pub lr: f64,
    /// 2-norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Rows per second over all ranks since the last step event.
    pub samples_per_s: f64,
    /// Mean time per step to copy rows to the GPU since the last step event, in ms, hidden or not; 0 without a GPU.
    pub h2d_ms: f64,
    /// Mean time per step on rank 0 since the last step event, in ms; absent on a GPU before a step was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeSplit>,
}

/// An epoch is complete.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EpochEvent {
    /// Epochs completed, from 1.
    pub epoch: u64,
    /// Steps completed.
    pub step: u64,
    /// Mean training loss over the rows of the epoch.
    pub train_loss: f64,
    /// Metrics of the training rows, if they are evaluated.
    #[serde(flatten)]
    pub train: TrainMetrics,
    /// Metrics of the evaluation rows.
    #[serde(flatten)]
    pub eval: EvalMetrics,
    /// Metrics of the last weights, where `eval` is of averaged ones.
    #[serde(flatten)]
    pub last: LastMetrics,
}

/// An evaluation within an epoch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvalEvent {
    /// Steps completed.
    pub step: u64,
    /// Current epoch, from 1.
    pub epoch: u64,
    /// Metrics of the evaluation rows.
    #[serde(flatten)]
    pub eval: EvalMetrics,
    /// Metrics of the last weights, where `eval` is of averaged ones.
    #[serde(flatten)]
    pub last: LastMetrics,
}

/// Metrics of the training rows, with names such as `train_accuracy`. The loss is not among them, because `train_loss` is the
/// mean over the training steps.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TrainMetrics(pub EvalMetrics);

impl TrainMetrics {
    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (String, f64)> {
        let metrics = self.0.iter().filter(|(metric, _)| *metric != EvalMetric::Loss);
        metrics.map(|(metric, value)| (metric.name().replacen("eval_", "train_", 1), value))
    }
}

impl Serialize for TrainMetrics {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// Metrics of the evaluation rows by the last weights, where others come first, with names such as `last_accuracy`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LastMetrics(pub EvalMetrics);

impl LastMetrics {
    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (String, f64)> {
        self.0.iter().map(|(metric, value)| (metric.name().replacen("eval_", "last_", 1), value))
    }
}

impl Serialize for LastMetrics {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// The best evaluation of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BestEvent {
    /// Name of the metric.
    pub metric: String,
    /// Value of the metric at the best evaluation.
    pub value: f64,
    /// Number of steps completed at the best evaluation.
    pub step: u64,
    /// Epoch of that step, from 1.
    pub epoch: u64,
    /// Whether it is of the last weights rather than of averaged ones.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_last: bool,
}

/// Summary of a complete run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EndEvent {
    /// Number of optimizer steps.
    pub steps: u64,
    /// Rows that all ranks trained on since the start of the process, which may have resumed the run; a row counts once per epoch.
    pub samples: u64,
    /// Number of ranks.
    pub world_size: usize,
    /// Mean loss over the last epoch's rows.
    pub train_loss: f64,
    /// Metrics of the evaluation rows by the weights that are the run's model.
    #[serde(flatten)]
    pub eval: EvalMetrics,
    /// Metrics of the weights after the last step, where they are not the model: of `last.safetensors` if there is one.
    #[serde(flatten)]
    pub last: LastMetrics,
    /// The best evaluation, whose weights are the run's model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<BestEvent>,
    /// Mean of each target over the training rows if targets are standardized; losses are then those of
    /// `(target - target_shift) / target_scale`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_shift: Option<Vec<f64>>,
    /// Standard deviation of each target over the training rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_scale: Option<Vec<f64>>,
    /// Time since the start of the process, in s.
    pub elapsed_s: f64,
    /// Time in training steps, in s.
    pub train_s: f64,
    /// `samples / train_s`
    pub samples_per_s: f64,
    /// 10^9 floating-point operations of matmuls per second, of all ranks together; `bench addmm` measures those of one rank.
    pub gflops_per_s: f64,
    /// Time from the start of the process to the end of the first step, in s.
    pub startup_s: f64,
    /// Where the time went, from the first step on; absent where no step was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<EndTime>,
    /// Signs that the model is worse than it should be, as on the terminal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// A setting that may make the next run better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposal: Option<String>,
}

/// Where the time of a complete run went, of the process that completed it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EndTime {
    /// Mean over the ranks, in s.
    #[serde(flatten)]
    pub split: TimeSplit,
    /// The bottleneck of the run in a sentence, with what to try.
    pub bound: String,
    /// Steps of each rank, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RankTime>,
}

/// A run failed: the last line, written by the rank that reports the failure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FailedEvent {
    /// Exit status of the command.
    pub exit_code: u8,
    /// Rank that reports the failure.
    pub rank: usize,
    /// Step that failed, if `error` names one, else the number of completed steps; absent before training.
    pub step: Option<u64>,
    /// Message of the failure.
    pub error: String,
    /// Suggested fix, if one is known.
    pub hint: Option<String>,
}

/// Another destination of events, such as a file of another format.
pub trait EventObserver: std::fmt::Debug {
    /// Called for each event. Must not take long, and reports its failures itself.
    fn event(&mut self, event: &Event);
}

/// Destination of events. Ranks other than 0 use [`MetricsSink::none`].
#[derive(Debug)]
pub struct MetricsSink {
    file: Option<(PathBuf, File)>,
    stdout: Option<EventStream>,
    observer: Option<Box<dyn EventObserver>>,
}

impl MetricsSink {
    /// Writes to the new file `path` and to `stdout`.
    ///
    /// # Errors
    /// [`ReportError::Write`] if the file can't be created.
    pub fn create(path: &Path, stdout: Option<EventStream>) -> Result<Self> {
        let failed = |source| WriteError { path: path.to_owned(), source };
        // Opened for appending, because a failed rank may write the last line.
        let file = open_unlinked(OpenOptions::new().append(true).create(true), path).map_err(failed)?;
        file.set_len(0).map_err(failed)?;
        Ok(Self { file: Some((path.to_owned(), file)), stdout, observer: None })
    }

    /// Appends to the file of a run that resumes after step `step`, and removes the lines of later steps, because these steps run
    /// again, and of the evaluations of that step if they are made again. Of the events `last_events` of that step it adds those that are missing. Returns the loss of a rank by which the run has
    /// ended before, if the file says so.
    ///
    /// # Errors
    /// [`ReportError::Write`] if the file can't be read or written.
    pub fn resume(
        path: &Path,
        stdout: Option<EventStream>,
        step: u64,
        last_events: &[String],
        evaluates_again: bool,
    ) -> Result<(Self, Option<Loss>)> {
        let failed = |source| WriteError { path: path.to_owned(), source };
        let since = std::fs::metadata(path).and_then(|data| data.modified()).ok();
        let before = keep_until(path, step, last_events, evaluates_again)?;
        let loss = before.failed.filter(|(code, _)| *code == RESTARTABLE).map(|(_, rank)| Loss {
            rank,
            steps: before.step.saturating_sub(step),
            down_s: since.and_then(|since| since.elapsed().ok()).unwrap_or_default().as_secs_f64(),
        });
        let file = open_unlinked(OpenOptions::new().append(true), path).map_err(failed)?;
        Ok((Self { file: Some((path.to_owned(), file)), stdout, observer: None }, loss))
    }

    /// A sink that writes nothing.
    pub fn none() -> Self {
        Self { file: None, stdout: None, observer: None }
    }

    /// The same sink, whose events go to `observer` too.
    pub fn with_observer(mut self, observer: Box<dyn EventObserver>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Writes one line in a single call, so that a reader never sees half a line.
    ///
    /// # Errors
    /// [`ReportError::Write`] the first time that the file can't be written; later events skip the file. An error of stdout does
    /// not end the run, because the file has all events; see [`EventStream::write`].
    pub fn write(&mut self, event: &Event) -> Result<()> {
        self.observer.iter_mut().for_each(|observer| observer.event(event));
        if self.file.is_none() && self.stdout.is_none() {
            return Ok(());
        }
        let line = json_line(event);
        if let Some(stdout) = &self.stdout {
            stdout.write(&line);
        }
        if let Some((path, mut file)) = self.file.take() {
            file.write_all(line.as_bytes()).map_err(|source| WriteError { path: path.clone(), source })?;
            self.file = Some((path, file));
        }
        Ok(())
    }
}

impl Drop for MetricsSink {
    fn drop(&mut self) {
        if let Some(stdout) = &self.stdout {
            stdout.flush();
        }
    }
}

/// Formats `value` as one line of JSON, including the newline.
pub fn json_line(value: &impl Serialize) -> String {
    let mut line = serde_json::to_string(value).expect("metrics are plain numbers under text keys");
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(loss: f64) -> Event {
        let time = Some(TimeSplit { forward: 0.123456, total: 0.25, ..TimeSplit::default() });
        Event::Step(StepEvent {
            step: 50,
            epoch: 2,
            loss,
            lr: 1e-3,
            grad_norm: 0.25,
            samples_per_s: 1e6,
            h2d_ms: 0.0,
            time,
        })
    }

    fn end() -> EndEvent {
        EndEvent {
            steps: 10,
            samples: 320,
            world_size: 2,
            train_loss: 0.5,
            eval: [(EvalMetric::Loss, 0.75), (EvalMetric::R2, 0.5)].into_iter().collect(),
            last: LastMetrics::default(),
            target_shift: Some(vec![3.0]),
            target_scale: Some(vec![0.5]),
            best: None,
            elapsed_s: 2.0,
            train_s: 1.0,
            samples_per_s: 320.0,
            gflops_per_s: 0.5,
            startup_s: 0.25,
            time: Some(EndTime {
                split: TimeSplit { data: 0.5, total: 1.0, ..TimeSplit::default() }.with_other(),
                bound: "bound by data".to_owned(),
                ranks: vec![RankTime {
                    rank: 0,
                    host: "n".to_owned(),
                    busy_ms: 1.5,
                    late_ms: 0.0,
                    cause: None,
                }],
            }),
            warnings: Vec::new(),
            proposal: None,
        }
    }

    #[test]
    fn lines_are_as_specified() {
        assert_eq!(
            json_line(&step(0.5)),
            r#"{"event":"step","step":50,"epoch":2,"loss":0.5,"lr":0.001,"grad_norm":0.25,"#.to_owned()
                + r#""samples_per_s":1000000.0,"h2d_ms":0.0,"time":{"data":0.0,"h2d":0.0,"forward":0.1235,"backward":0.0,"#
                + r#""exchange":0.0,"update":0.0,"evaluation":0.0,"checkpoint":0.0,"other":0.0,"total":0.25}}"#
                + "\n"
        );
        let eval = [(EvalMetric::Loss, 0.25), (EvalMetric::Accuracy, 0.5)].into_iter().collect();
        assert_eq!(
            json_line(&Event::Epoch(EpochEvent {
                epoch: 1,
                step: 45,
                train_loss: 1.5,
                train: TrainMetrics::default(),
                eval,
                last: LastMetrics::default(),
            })),
            r#"{"event":"epoch","epoch":1,"step":45,"train_loss":1.5,"eval_loss":0.25,"eval_accuracy":0.5}"#
                .to_owned()
                + "\n"
        );
        let eval = EvalMetrics::default().with(EvalMetric::Mae, 2.0);
        assert_eq!(
            json_line(&Event::Eval(EvalEvent {
                step: 7,
                epoch: 2,
                eval: eval.clone(),
                last: LastMetrics(eval.clone())
            })),
            "{\"event\":\"eval\",\"step\":7,\"epoch\":2,\"eval_mae\":2.0,\"last_mae\":2.0}\n"
        );
        let train = TrainMetrics(eval.with(EvalMetric::Loss, 1.0));
        let (eval, last) = (EvalMetrics::default(), LastMetrics::default());
        assert_eq!(
            json_line(&Event::Epoch(EpochEvent { epoch: 1, step: 45, train_loss: 1.5, train, eval, last })),
            "{\"event\":\"epoch\",\"epoch\":1,\"step\":45,\"train_loss\":1.5,\"train_mae\":2.0}\n"
        );
        assert_eq!(
            json_line(&Event::End(end())),
            r#"{"event":"end","steps":10,"samples":320,"world_size":2,"train_loss":0.5,"#.to_owned()
                + r#""eval_loss":0.75,"eval_r2":0.5,"target_shift":[3.0],"target_scale":[0.5],"elapsed_s":2.0,"train_s":1.0,"#
                + r#""samples_per_s":320.0,"gflops_per_s":0.5,"startup_s":0.25,"time":{"data":0.5,"h2d":0.0,"forward":0.0,"backward":0.0,"#
                + r#""exchange":0.0,"update":0.0,"evaluation":0.0,"checkpoint":0.0,"other":0.5,"total":1.0,"#
                + r#""bound":"bound by data","ranks":[{"rank":0,"host":"n","busy_ms":1.5,"late_ms":0.0}]}}"#
                + "\n"
        );
    }

    #[test]
    fn non_finite_numbers_are_null() {
        for loss in [f64::NAN, f64::INFINITY] {
            assert!(json_line(&step(loss)).contains("\"loss\":null"));
        }
        let eval = EvalMetrics::default().with(EvalMetric::Loss, f64::NAN);
        assert!(json_line(&eval).contains("\"eval_loss\":null"));
    }

    #[test]
    fn file_holds_each_line_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut sink = MetricsSink::create(&path, None).unwrap();
        sink.write(&step(1.0)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), json_line(&step(1.0)));
        sink.write(&Event::End(end())).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
        MetricsSink::none().write(&step(1.0)).unwrap();
    }

    #[test]
    fn a_resumed_run_reports_no_step_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let (mut sink, _) = MetricsSink::resume(&path, None, 0, &[], false).unwrap();
        let epoch = |epoch, step| {
            json_line(&Event::Epoch(EpochEvent {
                epoch,
                step,
                train_loss: 1.5,
                train: TrainMetrics::default(),
                eval: EvalMetrics::default(),
                last: LastMetrics::default(),
            }))
        };
        sink.write(&step(1.0)).unwrap();
        let mut text = json_line(&step(1.0)) + &epoch(1, 60) + &epoch(2, 61) + &json_line(&Event::End(end()));
        text += "{\"event\":\"step\",\"step\":3";
        std::fs::write(&path, &text).unwrap();
        let (mut sink, _) = MetricsSink::resume(&path, None, 60, &[], false).unwrap();
        let kept = json_line(&step(1.0)) + &epoch(1, 60);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), kept);
        sink.write(&step(2.0)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), kept + &json_line(&step(2.0)));
    }

    #[test]
    fn full_disk_is_reported_once() {
        let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let mut sink = MetricsSink::none();
        sink.file = Some(("/dev/full".into(), full));
        let error = sink.write(&step(1.0)).unwrap_err();
        let message = ddp_kernels::hint::with_hint(&error);
        assert!(message.contains("`/dev/full`") && message.contains("hint: the disk is full"), "{message}");
        sink.write(&step(1.0)).unwrap();
    }

    #[test]
    fn folder_that_is_gone_is_an_error() {
        let error = MetricsSink::create(Path::new("/nowhere/metrics.jsonl"), None).unwrap_err();
        let message = ddp_kernels::hint::with_hint(&error);
        assert!(message.contains("`/nowhere/metrics.jsonl`") && message.contains("hint: "), "{message}");
    }
}

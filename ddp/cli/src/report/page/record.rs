//! A run as its folder shows it: the events of `metrics.jsonl`, the saved config, the start line of the log.
//!
//! Events are read line by line and kept in bounded memory, so that a run of millions of steps is no matter.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use ddp::config::EvalMetric;
use ddp::report::visible::visible;
use ddp::run_folder::folder::{CHECKPOINTS, CONFIG_FILE, METRICS_FILE, check_free};
use ddp::run_folder::logs::RANK_0;
use ddp::storage::user_file::{open_regular, read_regular};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::calibration_note;
use super::parts::duration;
use super::series::Series;

/// Longest line that is read; a longer one is damaged.
const MAX_LINE_BYTES: u64 = 64 << 20;
/// Largest of the other files that are read.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Number of metrics that are kept.
const MAX_METRICS: usize = 48;
/// Keys of step events that are curves.
pub(super) const STEP_KEYS: [&str; 4] = ["loss", "lr", "grad_norm", "samples_per_s"];

/// State of a run, by its last event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Status {
    /// It has ended, and nothing is missing.
    Complete,
    /// It was stopped, and can be resumed.
    Stopped { reason: String },
    /// It failed.
    Failed { error: String, hint: Option<String> },
    /// A process is running it.
    Running,
    /// It has no last event: it was killed, or is a copy of a run that was running.
    Unfinished,
}

/// A checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    pub(crate) step: u64,
    pub(crate) bytes: f64,
    pub(super) pause_ms: f64,
    pub(super) write_s: f64,
}

/// Restart of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Restart {
    pub(crate) step: u64,
    pub(crate) world_size: u64,
    pub(crate) world_size_before: u64,
    /// The loss that made it necessary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lost: Option<Loss>,
}

/// Loss of a rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Loss {
    pub(crate) rank: u64,
    pub(crate) steps: u64,
    pub(crate) down_s: f64,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loss { rank, steps, down_s } = self;
        let noun = if *steps == 1 { "step" } else { "steps" };
        let down = duration(*down_s);
        write!(f, "rank {rank} was lost: {steps} {noun} to repeat, {down} until training went on")
    }
}

/// The run of a folder.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) path: PathBuf,
    /// Name in the config, else that of the folder.
    pub(crate) name: String,
    pub(crate) status: Status,
    /// Completed steps.
    pub(crate) step: u64,
    /// Step of the last event with times.
    timed_step: u64,
    pub(crate) epoch: Option<u64>,
    pub(crate) world_size: Option<u64>,
    /// Curves of step events, in the order of [`STEP_KEYS`].
    pub(crate) steps: [Series; 4],
    /// Curves of epochs and evaluations by key; the metrics of a head are `HEAD.eval_...`.
    pub(crate) metrics: BTreeMap<String, Series>,
    /// Milliseconds of all steps by kind, from step events.
    step_ms: BTreeMap<String, f64>,
    /// The last event that holds tables of classes or targets.
    pub(super) evaluated: Map<String, Value>,
    /// The event `end`.
    pub(crate) end: Map<String, Value>,
    pub(crate) restarts: Vec<Restart>,
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// Number of lines that are no events.
    pub(crate) n_damaged: u64,
    /// The saved config.
    pub(crate) config: String,
    /// The line of the log that names rows, layers, ranks and devices.
    pub(crate) start: Option<String>,
    /// Program that wrote the newest checkpoint.
    pub(crate) program: Option<String>,
    /// The best evaluation up to that checkpoint.
    checkpointed_best: Option<Value>,
    /// Warnings of the log since its last start.
    logged_warnings: Vec<String>,
    /// The note of `eval --calibrate`.
    pub(super) calibration: Option<Value>,
}

/// Bytes at the end of `metrics.jsonl` that hold the event `end`.
const END_BYTES: u64 = 1 << 16;
/// Begin of that event.
const END: &[u8] = br#"{"event":"end""#;

/// A line of `metrics.jsonl`, as far as steps need it.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    event: Cow<'a, str>,
    step: Option<u64>,
    epoch: Option<u64>,
    loss: Option<f64>,
    lr: Option<f64>,
    grad_norm: Option<f64>,
    samples_per_s: Option<f64>,
    /// Milliseconds by kind, which runs of earlier versions lack.
    #[serde(borrow)]
    time: Option<&'a RawValue>,
}

impl Record {
    /// Reads the run in the folder `path`; a curve has at most `max_points` points.
    ///
    /// # Errors
    /// The error of the operating system for `metrics.jsonl`. Everything else may be missing or damaged.
    pub(crate) fn read(path: &Path, max_points: usize) -> io::Result<Self> {
        let events = BufReader::with_capacity(1 << 18, open_regular(&path.join(METRICS_FILE))?);
        Self::read_events(path, max_points, events)
    }

    /// Same as [`Record::read`], of a complete run by its last events alone: without its curves and what came before them.
    ///
    /// # Errors
    /// Same as [`Record::read`].
    pub(crate) fn read_end(path: &Path, max_points: usize) -> io::Result<Self> {
        let mut file = open_regular(&path.join(METRICS_FILE))?;
        let begin = file.metadata()?.len().saturating_sub(END_BYTES);
        file.seek(SeekFrom::Start(begin))?;
        let mut tail = Vec::new();
        (&file).take(END_BYTES).read_to_end(&mut tail)?;
        // The first line is cut, and an event `end` is the last one.
        let at = if begin == 0 { Some(0) } else { memchr::memchr(b'\n', &tail).map(|at| at + 1) };
        let last = tail.strip_suffix(b"\n").map(|lines| memchr::memrchr(b'\n', lines).map_or(0, |at| at + 1));
        match (at, last) {
            (Some(at), Some(last)) if at <= last && tail[last..].starts_with(END) => {
                Self::read_events(path, max_points, &tail[at..])
            }
            _ => {
                file.seek(SeekFrom::Start(0))?;
                Self::read_events(path, max_points, BufReader::with_capacity(1 << 18, file))
            }
        }
    }

    fn read_events(path: &Path, max_points: usize, mut events: impl BufRead) -> io::Result<Self> {
        let path = &std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let text = |file: &str| {
            let bytes = read_regular(&path.join(file), MAX_FILE_BYTES).ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        let config = text(CONFIG_FILE).unwrap_or_default();
        let name = config
            .parse::<toml::Table>()
            .ok()
            .and_then(|table| Some(table.get("name")?.as_str()?.to_owned()));
        let name = name.unwrap_or_else(|| folder_name(path));
        let log = format!("{RANK_0}.1");
        let started = [RANK_0, &log].iter().find_map(|log| {
            let log = text(log)?;
            Some((start_line(&log, &name)?, warnings(&log, &name)))
        });
        let (start, logged_warnings) = started.unzip();
        let manifest = text(&format!("{CHECKPOINTS}/latest"))
            .and_then(|latest| text(&format!("{CHECKPOINTS}/{}/manifest.json", plain_name(latest.trim())?)));
        let json = |text: Option<String>| serde_json::from_str::<Value>(&text?).ok();
        let manifest = json(manifest);
        let program = manifest.as_ref().and_then(|manifest| Some(manifest["program"].as_str()?.to_owned()));
        let checkpointed_best =
            manifest.and_then(|mut manifest| Some(manifest.pointer_mut("/run/best")?.take()));
        let mut record = Record {
            path: path.to_owned(),
            name,
            status: Status::Unfinished,
            step: 0,
            timed_step: 0,
            epoch: None,
            world_size: None,
            steps: std::array::from_fn(|_| Series::new(max_points)),
            metrics: BTreeMap::new(),
            step_ms: BTreeMap::new(),
            evaluated: Map::new(),
            end: Map::new(),
            restarts: Vec::new(),
            checkpoints: Vec::new(),
            n_damaged: 0,
            config,
            start,
            program,
            checkpointed_best,
            logged_warnings: logged_warnings.unwrap_or_default(),
            calibration: json(text(calibration_note::FILE)),
        };
        let mut line = Vec::new();
        while read_line(&mut events, &mut line)? {
            if record.add(&line, max_points).is_none() {
                record.n_damaged += 1;
            }
        }
        if record.status == Status::Unfinished && check_free(path).is_err() {
            record.status = Status::Running;
        }
        Ok(record)
    }

    /// Adds one line; `None` if it is damaged.
    fn add(&mut self, bytes: &[u8], max_points: usize) -> Option<()> {
        let Line { event, step, epoch, loss, lr, grad_norm, samples_per_s, time } =
            serde_json::from_slice(bytes.strip_suffix(b"\n")?).ok()?;
        if event == "step" {
            let step = step?;
            // Events of other kinds come in between.
            let n_steps = step.saturating_sub(std::mem::replace(&mut self.timed_step, step)).max(1) as f64;
            for (series, value) in self.steps.iter_mut().zip([loss, lr, grad_norm, samples_per_s]) {
                series.push(step, value);
            }
            let times: BTreeMap<&str, Option<f64>> = match time {
                Some(time) => serde_json::from_str(time.get()).ok()?,
                None => BTreeMap::new(),
            };
            for (kind, ms) in times {
                let is_full = self.step_ms.len() >= MAX_METRICS;
                match self.step_ms.get_mut(kind) {
                    Some(sum) => *sum += ms.unwrap_or(0.0) * n_steps,
                    None if !is_full => {
                        self.step_ms.insert(kind.to_owned(), ms.unwrap_or(0.0) * n_steps);
                    }
                    None => {}
                }
            }
            self.step = step;
            self.epoch = epoch.or(self.epoch);
            self.status = Status::Unfinished;
            return Some(());
        }
        let fields: Map<String, Value> = serde_json::from_slice(bytes).ok()?;
        let word = |key: &str| fields.get(key).and_then(Value::as_str).map(str::to_owned);
        if event != "checkpoint" {
            // Which may be reported after later steps.
            self.step = step.or_else(|| fields.get("steps")?.as_u64()).unwrap_or(self.step);
        }
        self.epoch = epoch.or(self.epoch);
        self.world_size = fields.get("world_size").and_then(Value::as_u64).or(self.world_size);
        match &*event {
            "epoch" | "eval" => {
                self.status = Status::Unfinished;
                add_metrics(&mut self.metrics, None, &fields, (self.step, max_points));
            }
            "checkpoint" => self.checkpoints.push(serde_json::from_slice(bytes).ok()?),
            "resume" => {
                self.status = Status::Unfinished;
                self.timed_step = self.step;
                self.restarts.push(serde_json::from_slice(bytes).ok()?);
            }
            "stop" => self.status = Status::Stopped { reason: word("reason").unwrap_or_default() },
            "failed" => {
                self.status = Status::Failed { error: word("error").unwrap_or_default(), hint: word("hint") }
            }
            "end" => self.status = Status::Complete,
            // Of a later version.
            _ => {}
        }
        if fields.keys().any(|key| key.starts_with("eval_")) {
            self.evaluated = fields.clone();
        }
        if event == "end" {
            self.end = fields;
        }
        Some(())
    }

    /// Numbers of the weights that are the run's model, then those of its last weights, by name; of a run without an end those of its last
    /// evaluation.
    pub(crate) fn figures(&self) -> Vec<(String, f64)> {
        let mut of_end: BTreeMap<String, Series> = BTreeMap::new();
        add_metrics(&mut of_end, None, &self.end, (self.step, 1));
        let of_train = |name: &String| name.rsplit('.').next().is_some_and(|name| name.starts_with("train_"));
        let is_shown = |name: &String| of_end.is_empty() || of_train(name);
        let earlier = self.metrics.iter().filter(|(name, _)| is_shown(name) && !of_end.contains_key(*name));
        let mut figures: Vec<_> = of_end.iter().chain(earlier).collect();
        let place = |name: &str| {
            let name = name.rsplit('.').next().unwrap_or(name);
            ["eval_", "last_", "train_"].iter().position(|prefix| name.starts_with(prefix))
        };
        figures.sort_by_key(|(name, _)| (place(name), *name));
        figures.into_iter().filter_map(|(name, series)| Some((name.clone(), series.last()?))).collect()
    }

    /// A number of the event `end`.
    pub(crate) fn end_number(&self, key: &str) -> Option<f64> {
        self.end.get(key)?.as_f64()
    }

    /// The value of a metric at the end, else the last finite one of the evaluations: `Some(None)` if there is none, `None` if it was
    /// not measured.
    pub(crate) fn last_of(&self, metric: &str) -> Option<Option<f64>> {
        let mut of_end: BTreeMap<String, Series> = BTreeMap::new();
        add_metrics(&mut of_end, None, &self.end, (self.step, 1));
        of_end.get(metric).or_else(|| self.metrics.get(metric)).map(Series::last)
    }

    /// Time by kind and in all: seconds of the whole run where its `end` event has them, else of its steps.
    pub(super) fn times(&self) -> (Vec<(String, f64)>, f64) {
        let of_end = self.end.get("time").and_then(Value::as_object);
        let numbers: BTreeMap<String, f64> = match of_end {
            Some(times) => times.iter().filter_map(|(kind, s)| Some((kind.clone(), s.as_f64()?))).collect(),
            None => self.step_ms.iter().map(|(kind, ms)| (kind.clone(), ms / 1e3)).collect(),
        };
        let total = numbers.get("total").copied();
        let times: Vec<_> = numbers.into_iter().filter(|(kind, s)| kind != "total" && *s > 0.0).collect();
        let sum = times.iter().map(|(_, s)| s).sum::<f64>();
        (times, total.map_or(sum, |total| total.max(sum)))
    }

    /// The best evaluation as `(key, step, value)`: of a run that is not complete, up to its newest checkpoint.
    pub(crate) fn best(&self) -> Option<(&str, u64, f64)> {
        let best = self.end.get("best").or(self.checkpointed_best.as_ref())?;
        Some((best["metric"].as_str()?, best["step"].as_u64()?, best["value"].as_f64()?))
    }

    /// The saved config as values by key, such as `optimizer.lr`; empty if it can't be read.
    pub(crate) fn settings(&self) -> BTreeMap<String, toml::Value> {
        fn add(prefix: &str, table: toml::Table, flat: &mut BTreeMap<String, toml::Value>) {
            for (key, value) in table {
                let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
                match value {
                    toml::Value::Table(table) => add(&key, table, flat),
                    value => drop(flat.insert(key, value)),
                }
            }
        }
        let mut flat = BTreeMap::new();
        add("", self.config.parse().unwrap_or_default(), &mut flat);
        flat
    }

    /// The lines of the saved config that are not defaults, by section.
    pub(crate) fn chosen_settings(&self) -> String {
        let mut chosen = String::new();
        let mut section = None;
        let is_chosen = |line: &&str| {
            !(line.is_empty() || line.starts_with('#') || line.trim_end().ends_with("# default"))
        };
        for line in self.config.lines().filter(is_chosen) {
            if line.starts_with('[') {
                section = Some(line);
                continue;
            }
            section.take().iter().for_each(|section| chosen += &format!("\n{section}\n"));
            chosen += &format!("{line}\n");
        }
        chosen
    }

    /// Findings of the review at the end of the run, its proposal, and the warnings of its log.
    pub(crate) fn findings(&self) -> Vec<&str> {
        let warnings = self.end.get("warnings").and_then(Value::as_array);
        let proposal = self.end.get("proposal").and_then(Value::as_str);
        let mut findings: Vec<_> =
            warnings.into_iter().flatten().filter_map(Value::as_str).chain(proposal).collect();
        let logged = self.logged_warnings.iter().map(String::as_str);
        findings.extend(logged.filter(|logged| !findings.contains(logged)).collect::<Vec<_>>());
        findings
    }
}

/// Adds the numbers of an evaluation after `step` to their curves.
fn add_metrics(
    metrics: &mut BTreeMap<String, Series>,
    head: Option<&str>,
    fields: &Map<String, Value>,
    (step, max_points): (u64, usize),
) {
    for (key, value) in fields {
        match value {
            Value::Object(heads) if key == "eval_heads" && head.is_none() => {
                for (head, fields) in heads {
                    fields
                        .as_object()
                        .iter()
                        .for_each(|fields| add_metrics(metrics, Some(head), fields, (step, max_points)));
                }
            }
            Value::Number(_) | Value::Null
                if key != "train_s" && ["eval_", "train_", "last_"].iter().any(|p| key.starts_with(p)) =>
            {
                let key = head.map_or_else(|| key.clone(), |head| format!("{head}.{key}"));
                let is_known = metrics.contains_key(&key);
                if is_known || metrics.len() < MAX_METRICS {
                    let series = metrics.entry(key).or_insert_with(|| Series::new(max_points));
                    series.push(step, value.as_f64());
                }
            }
            _ => {}
        }
    }
}

/// Title of a metric by its key, such as `HEAD.eval_loss`, and its place among the others.
pub(crate) fn metric_title(key: &str) -> (usize, String) {
    let (head, name) = key.rsplit_once('.').map_or((None, key), |(head, name)| (Some(head), name));
    let name = name.trim_start_matches("eval_");
    let place = EvalMetric::ALL.iter().position(|metric| metric.name().trim_start_matches("eval_") == name);
    let title = place.map_or_else(|| name.to_owned(), |place| EvalMetric::ALL[place].title().to_owned());
    let title = head.map_or_else(|| title.clone(), |head| format!("{title} of {head}"));
    (place.unwrap_or(usize::MAX), visible(&title).into_owned())
}

/// The last component of a path.
pub(crate) fn folder_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// Reads one line, or what is left of the file, into `line`; `false` at the end. Of a line that is too long the begin is kept.
fn read_line(events: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let n = events.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', line)? as u64;
    if n == MAX_LINE_BYTES && line.last() != Some(&b'\n') {
        events.skip_until(b'\n')?;
    }
    Ok(n > 0)
}

/// The last line of the log with which the run reported rows, layers, ranks and devices.
fn start_line(log: &str, name: &str) -> Option<String> {
    let of_run = format!(" {name}: ");
    let line = log.lines().rev().find(|line| line.contains(&of_run) && line.contains(" layers ("))?;
    Some(line.split_once(&of_run)?.1.to_owned())
}

/// The distinct warnings since the last start of the run, each with its hint.
fn warnings(log: &str, name: &str) -> Vec<String> {
    let of_run = format!(" {name}: ");
    let lines: Vec<&str> = log.lines().collect();
    let is_start = |line: &&str| line.contains(&of_run) && line.contains(" layers (");
    let start = lines.iter().rposition(is_start).unwrap_or(0);
    let mut found: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in &lines[start..] {
        match (line.strip_prefix("    "), line.split_once(" WARN  rank=0 host=")) {
            (Some(more), _) if is_open => {
                found.last_mut().into_iter().for_each(|last| *last += &format!("\n{}", more.trim_end()));
            }
            (_, Some((_, text))) => {
                let text = text.split_once(' ').map_or("", |(_, text)| text);
                is_open = !text.starts_with("this program is a quick build");
                found.extend(is_open.then(|| text.to_owned()));
            }
            _ => is_open = false,
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|warning| seen.insert(warning.clone()));
    found
}

/// A name of a file that leads nowhere else.
fn plain_name(name: &str) -> Option<&str> {
    (!name.contains('/') && !name.starts_with('.')).then_some(name)
}

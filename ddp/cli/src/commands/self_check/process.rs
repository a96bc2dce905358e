//! Both ends of the process of a check: starts it and reads what it finds; and `devices --check-child`, the process itself.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{io, thread};

use clap::ValueEnum as _;
use ddp::config::examples::examples;
use ddp::config::{Config, Precision};
use ddp::report::metrics::json_line;
use ddp::train::TrainError;
use ddp::train::self_check::{Comparison, compare_with_cpu};
use ddp::train::trainer::GraphMode;
use ddp_kernels::cuda::{self, Gpu};
use ddp_kernels::hint::with_hint;
use ddp_kernels::{Device, KernelError, Tensor};
use serde::{Deserialize, Serialize};

use crate::cli::{Checked, graph_mode_name};
use crate::error::Result;
use crate::report::stdout::print_result;

/// Lines of stderr that a report of a crash ends with.
const LAST_LINES: usize = 4;
/// Time that a killed process may take to end: one that is stuck in the driver never does.
const KILLED: Duration = Duration::from_secs(2);

/// A check to be run in a process of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) gpu: u32,
    pub(super) graph: GraphMode,
    /// The run's config as TOML; without one, everything is checked.
    pub(super) config: Option<&'a str>,
    /// Longest time without a further result.
    pub(super) limit: Duration,
}

/// Findings of the process of a check.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) checks: Vec<Check>,
    /// Reason why nothing can be said about the GPU.
    pub(super) impossible: Option<String>,
}

impl Outcome {
    pub(super) fn agrees(&self) -> bool {
        self.impossible.is_none() && self.checks.iter().all(|check| check.agrees)
    }
}

impl Request<'_> {
    /// Runs the check. A crash or a hang is the error of the check that had begun.
    pub(super) fn run(self) -> Outcome {
        match self.spawn() {
            Ok(child) => self.watch(child),
            Err(error) => {
                let impossible = Some(format!("the process of the check can't be started: {error}"));
                Outcome { impossible, ..Outcome::default() }
            }
        }
    }

    fn spawn(self) -> io::Result<Child> {
        let checked = if self.config.is_some() { Checked::Run } else { Checked::All };
        let checked = checked.to_possible_value().expect("no value is skipped");
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["devices", "--check-child", checked.get_name(), "--gpu", &self.gpu.to_string()]);
        command.args(["--cuda-graph", graph_mode_name(self.graph)]);
        // It is no rank of the job.
        ddp_comm::without_launcher(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    }

    fn watch(self, mut child: Child) -> Outcome {
        let (Some(mut stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            unreachable!("all three are piped")
        };
        // It fits the pipe, or the process reads it; if it has ended, its status says why.
        let _ = stdin.write_all(self.config.unwrap_or_default().as_bytes());
        drop(stdin);
        let (to, lines) = mpsc::channel();
        thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.map_while(|line| to.send(line).ok()).for_each(drop);
        });
        let words = thread::spawn(move || {
            let mut last = VecDeque::new();
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                last.push_back(line);
                if last.len() > LAST_LINES {
                    last.pop_front();
                }
            }
            Vec::from(last).join("\n")
        });
        let (mut outcome, mut begun) = (Outcome::default(), None);
        let mut since = Instant::now();
        loop {
            match lines.recv_timeout(self.limit) {
                Ok(line) => match serde_json::from_str(&line) {
                    Ok(Line::Begins(name)) => (begun, since) = (Some(name), Instant::now()),
                    Ok(Line::Done(check)) => {
                        outcome.checks.push(check);
                        begun = None;
                    }
                    Ok(Line::Impossible(reason)) => {
                        outcome.impossible = Some(reason);
                        end(&mut child);
                        return outcome;
                    }
                    Ok(Line::Complete) => {
                        end(&mut child);
                        return outcome;
                    }
                    // Something else wrote there.
                    Err(_) => {}
                },
                Err(RecvTimeoutError::Timeout) => {
                    end(&mut child);
                    let limit_s = self.limit.as_secs_f64();
                    outcome.fail(
                        begun,
                        since,
                        format!("no result within {limit_s} s: the GPU hangs, or is very slow"),
                    );
                    return outcome;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status =
                        child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                    let words = words.join().unwrap_or_default();
                    outcome.fail(
                        begun,
                        since,
                        format!("its process ended: {status}\n{words}").trim_end().to_owned(),
                    );
                    return outcome;
                }
            }
        }
    }
}

impl Outcome {
    /// Records the failure of the check `begun`; before the first one, nothing is known about the GPU.
    fn fail(&mut self, begun: Option<String>, since: Instant, why: String) {
        match begun {
            Some(name) => self.checks.push(Check::new(name, since.elapsed().as_secs_f64(), Err(why))),
            None => self.impossible = Some(why),
        }
    }
}

/// Ends the process, which has nothing more to say, as soon as the system allows it.
fn end(child: &mut Child) {
    let _ = child.kill();
    let since = Instant::now();
    while since.elapsed() < KILLED && matches!(child.try_wait(), Ok(None)) {
        thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes of a copy between GPUs: odd, and more than one block of any copy.
const COPIED: usize = (1 << 20) + 13;

/// Checks GPU `index` and writes a [`Line`] for each step of that.
///
/// # Errors
/// [`ReportError::Stdout`](ddp::report::ReportError::Stdout).
pub(in super::super) fn child(checked: Checked, index: u32, graph: GraphMode) -> Result<()> {
    // On a GPU that hangs it would outlive its parent.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let device = Device::Cuda(index);
    let gpu = Gpu::get(index).map_err(|error| with_hint(&error));
    let configs = gpu.and_then(|_| configs(checked, index));
    let configs = match configs {
        Ok(configs) => configs,
        Err(reason) => return write(&Line::Impossible(reason)),
    };
    for (name, config) in configs {
        let found = check(&name, || compare_with_cpu(&config, device, graph))?;
        if !found {
            return Ok(());
        }
    }
    let n_gpus =
        if checked == Checked::Run { 0 } else { cuda::devices().map_or(0, |gpus| gpus.len() as u32) };
    for to in (0..n_gpus).filter(|to| *to != index) {
        if !check(&format!("copy to cuda:{to}"), || copied(device, Device::Cuda(to)))? {
            return Ok(());
        }
    }
    write(&Line::Complete)
}

fn write(line: &Line) -> Result<()> {
    Ok(print_result(&json_line(line))?)
}

/// Runs a check and writes its result. Returns false if the device can't be used any more.
fn check(name: &str, body: impl FnOnce() -> Result<Vec<Comparison>, TrainError>) -> Result<bool> {
    write(&Line::Begins(name.to_owned()))?;
    let started = Instant::now();
    let found = body();
    if let Err(TrainError::Kernel(
        error @ (KernelError::OutOfMemory { .. } | KernelError::DeviceUnavailable { .. }),
    )) = &found
    {
        write(&Line::Impossible(with_hint(error)))?;
        return Ok(false);
    }
    let found = found.map_err(|error| error.to_string());
    let is_usable = found.is_ok();
    write(&Line::Done(Check::new(name.to_owned(), started.elapsed().as_secs_f64(), found)))?;
    if !is_usable {
        write(&Line::Complete)?;
    }
    Ok(is_usable)
}

/// The names of the models to check and their configs; turns off the features that a run does without.
fn configs(checked: Checked, index: u32) -> Result<Vec<(String, Config)>, String> {
    match checked {
        Checked::Run => {
            let text = io::read_to_string(io::stdin()).map_err(|error| error.to_string())?;
            let config = Config::from_saved(&text, "stdin".as_ref()).map_err(|error| with_hint(&error))?;
            let gpu = Gpu::get(index).map_err(|error| with_hint(&error))?;
            config.train.gpu_without.iter().for_each(|feature| gpu.turn_off(*feature));
            Ok(vec![("the model of the run".to_owned(), config)])
        }
        Checked::All => {
            let device = Device::Cuda(index);
            let is_there = |precision: &Precision| {
                precision.ensure_on(device).is_ok() && matches!(precision.replaced_on(device), Ok(None))
            };
            let precisions: Vec<_> = Precision::ALL.into_iter().filter(is_there).collect();
            let examples = examples(&precisions).map_err(|error| with_hint(&error))?;
            Ok(examples.into_iter().map(|example| (example.name, example.config)).collect())
        }
    }
}

/// Copies bytes from one GPU to another, and compares them.
///
/// # Errors
/// [`TrainError::Kernel`].
pub(in super::super) fn copied(from: Device, to: Device) -> Result<Vec<Comparison>, TrainError> {
    let bytes: Vec<u8> = (0..COPIED).map(|n| (n * 31 + n / 251) as u8).collect();
    let there = Tensor::from_slice(&bytes, &[COPIED], from)?.to(to)?.to_vec::<u8>()?;
    let n_wrong = bytes.iter().zip(&there).filter(|(sent, got)| sent != got).count();
    let relative_difference = n_wrong as f64 / COPIED as f64;
    Ok(vec![Comparison { result: "bytes".to_owned(), relative_difference, tolerance: 0.0 }])
}

/// A model that was trained on both devices, or another group of comparisons.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Check {
    pub(super) check: String,
    pub(super) agrees: bool,
    pub(super) seconds: f64,
    /// The error that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    pub(super) results: Vec<Comparison>,
}

impl Check {
    pub(super) fn new(check: String, seconds: f64, results: Result<Vec<Comparison>, String>) -> Self {
        let (results, error) = match results {
            Ok(results) => (results, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let agrees = error.is_none() && results.iter().all(Comparison::agrees);
        Check { check, agrees, seconds, error, results }
    }

    /// The result that comes closest to its tolerance.
    pub(super) fn closest(&self) -> Option<&Comparison> {
        closest([self])
    }

    /// The error of the check, or its first result that differs, in the order in which a step computes; None if it agrees.
    pub(super) fn difference(&self) -> Option<String> {
        if let Some(error) = &self.error {
            return Some(error.clone());
        }
        let first = self.results.iter().find(|result| !result.agrees())?;
        let Comparison { result, relative_difference, tolerance } = first;
        let n_more = self.results.iter().filter(|result| !result.agrees()).count() - 1;
        let more = if n_more > 0 {
            format!(", and {n_more} more of {} results", self.results.len())
        } else {
            String::new()
        };
        let by = if *relative_difference < f64::MAX {
            format!("differs by {relative_difference:.1e} (tolerance {tolerance:.0e})")
        } else {
            "is not a number, or infinitely far off".to_owned()
        };
        Some(format!("{result} {by}{more}"))
    }
}

/// The result of all `checks` that comes closest to its tolerance.
pub(super) fn closest<'a>(checks: impl IntoIterator<Item = &'a Check>) -> Option<&'a Comparison> {
    let all = checks.into_iter().flat_map(|check| &check.results);
    all.max_by(|a, b| a.part_of_tolerance().total_cmp(&b.part_of_tolerance()))
}

/// A line on the stdout of the process of a check.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// The check of this name begins.
    Begins(String),
    Done(Check),
    /// Nothing can be said about the GPU: it is in use, lacks memory, or a library is missing.
    Impossible(String),
    /// Nothing follows.
    Complete,
}

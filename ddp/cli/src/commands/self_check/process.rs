//! Starts the process of a check, and reads what it finds.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use ddp::train::trainer::GraphMode;

use super::check::{Check, Line};
use crate::cli::{Checked, graph_mode_name};

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

    fn spawn(self) -> std::io::Result<Child> {
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

//! The runs of a sweep as child processes, some side by side, each in a place of its own: GPUs, or threads of the host.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ddp::exit_code;
use ddp::run_folder::FolderError;
use ddp::run_folder::done::Done;
use ddp::run_folder::folder::{CONFIG_FILE, check_free};
use ddp::storage::user_file::{create_new, read_regular};
use ddp::train::stop_signals::StopSignals;
use ddp_comm::{KeptMemory, World};
use ddp_kernels::cuda::Gpu;
use ddp_launch::LaunchError;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::SIGTERM;
use tracing::{debug, info, warn};

use super::points::{Points, Run};
use crate::cli::SweepArgs;
use crate::commands::launch::TrainCommand;
use crate::commands::runs::{STOP_AFTER_EPOCHS, Summary};
use crate::error::Result;
use crate::error::command::CommandError;
use crate::report::log::ShownBar;
use crate::report::page::chart::figure;
use crate::report::page::parts::duration;
use crate::report::stdout::count;

const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// Interval at which the children are looked at.
const POLL: Duration = Duration::from_millis(20);
/// Interval at which a folder that another process uses is looked at.
const BUSY_POLL: Duration = Duration::from_secs(1);
/// Most bytes of a run's stderr that are searched for its error.
const MAX_STDERR: u64 = 1 << 20;

/// Places for runs and their common arguments.
pub(super) struct Jobs<'a> {
    args: &'a SweepArgs,
    /// Arguments of `train` that all points share.
    words: Vec<OsString>,
    /// GPUs of each place, as `CUDA_VISIBLE_DEVICES` names them; `None` for all of the host.
    places: Vec<Option<String>>,
    /// Threads of each rank, where places share the host.
    n_threads: Option<usize>,
    program: PathBuf,
    /// Memory in which the first run keeps the table that it has read, for the others.
    kept: Option<KeptMemory>,
}

/// A run in progress.
struct Started {
    run: usize,
    place: usize,
    child: Child,
    stderr: PathBuf,
    since: Instant,
}

/// The end of the runs.
pub(super) struct Ended {
    /// First line of the error of each run that failed, by its number.
    pub(super) failures: BTreeMap<usize, String>,
    /// The signal that stopped the sweep.
    pub(super) stopped_by: Option<&'static str>,
}

impl<'a> Jobs<'a> {
    /// # Errors
    /// [`CommandError::TooManyJobs`].
    pub(super) fn new(
        world: &World,
        args: &'a SweepArgs,
        base: &TrainCommand,
        shares_rows: bool,
    ) -> Result<Self> {
        let device = &base.args.device;
        let n_gpus = if device == "cpu" { 0 } else { Gpu::count() };
        let places = if n_gpus == 0 {
            vec![None; args.jobs.unwrap_or(1)]
        } else if device.starts_with("cuda:") {
            vec![None]
        } else {
            let all = std::env::var(VISIBLE).ok().filter(|list| !list.is_empty());
            let all = all.unwrap_or_else(|| (0..n_gpus).map(|i| i.to_string()).collect::<Vec<_>>().join(","));
            let all: Vec<&str> = all.split(',').take(n_gpus).collect();
            all.chunks_exact(args.ranks).map(|gpus| Some(gpus.join(","))).collect()
        };
        let n = args.jobs.unwrap_or(places.len());
        if n > places.len() || n == 0 {
            return Err(
                CommandError::TooManyJobs { jobs: n.max(1), max: places.len(), ranks: args.ranks }.into()
            );
        }
        let shares_host = n > 1 && base.args.threads.is_none();
        let n_cores = world.cores_per_rank()?;
        let program = std::env::current_exe().map_err(not_run)?;
        Ok(Jobs {
            args,
            words: base.words.clone(),
            places: places.into_iter().take(n).collect(),
            n_threads: shares_host.then(|| (n_cores / (n * args.ranks)).max(1)),
            program,
            // Rows that no other run has would only take memory.
            kept: if shares_rows { KeptMemory::create().ok() } else { None },
        })
    }

    /// Runs side by side.
    pub(super) fn n(&self) -> usize {
        self.places.len()
    }

    /// Trains the runs `active` that are not complete until all have ended, or a signal stops them. With a `rung` they stop after this
    /// epoch.
    ///
    /// # Errors
    /// The system's error if a run can't be started; those in progress go on without this process.
    pub(super) fn train(
        &self,
        signals: &StopSignals,
        points: &Points,
        active: &[usize],
        rung: Option<u64>,
        bar: Option<&ShownBar>,
    ) -> Result<Ended> {
        let is_done = |run: usize| self.is_done(&points.runs[run], rung);
        let (n, n_left_out) = (active.len(), points.runs.len() - active.len());
        let mut waiting: VecDeque<usize> = active.iter().copied().filter(|run| !is_done(*run)).collect();
        let mut n_ended = n - waiting.len();
        match rung {
            _ if n_ended == 0 => {}
            None => info!("{n_ended} of {n} are complete already"),
            Some(rung) => info!("{n_ended} of {n} have reached epoch {rung} already"),
        }
        let mut free: Vec<usize> = (0..self.n()).rev().collect();
        let mut started: Vec<Started> = Vec::new();
        let mut ended = Ended { failures: BTreeMap::new(), stopped_by: None };
        let mut next_look = Instant::now();
        loop {
            if ended.stopped_by.is_none()
                && let Some(signal) = signals.received()
            {
                ended.stopped_by = Some(signal);
                info!("{} in progress; each saves a checkpoint and ends", count(started.len(), "run"));
                started.iter().for_each(Started::stop);
                waiting.clear();
            }
            while let (Some(place), true) = (free.last().copied(), Instant::now() >= next_look) {
                // A process of a sweep that was killed may still train one.
                let Some(at) =
                    waiting.iter().position(|run| check_free(&self.folder(&points.runs[*run])).is_ok())
                else {
                    next_look = Instant::now() + BUSY_POLL;
                    break;
                };
                let run = waiting.remove(at).expect("a position in the queue");
                if is_done(run) {
                    n_ended += 1;
                    continue;
                }
                let (child, stderr) = self.start(&points.runs[run], rung, place)?;
                started.push(Started { run, place, child, stderr, since: Instant::now() });
                free.pop();
            }
            let mut running = Vec::new();
            for mut of in started {
                let Some(status) = of.child.try_wait().map_err(not_run)? else {
                    running.push(of);
                    continue;
                };
                free.push(of.place);
                n_ended += 1;
                let run = &points.runs[of.run];
                let progress = format!("{n_ended} of {n}: {}", run.name);
                if let Some(error) = self.end(&of, run, rung, status, &progress) {
                    ended.failures.insert(of.run, error);
                }
            }
            started = running;
            bar.iter().for_each(|bar| bar.set_position((n_left_out + n_ended) as u64));
            if started.is_empty() && waiting.is_empty() {
                return Ok(ended);
            }
            std::thread::sleep(POLL);
        }
    }

    fn folder(&self, run: &Run) -> PathBuf {
        self.args.out.join(&run.name)
    }

    /// Whether a run is complete, or has reached the rung.
    pub(super) fn is_done(&self, run: &Run, rung: Option<u64>) -> bool {
        let folder = self.folder(run);
        let has_reached = |rung| Summary::read(&folder).has_reached(rung);
        Done::read(&folder).is_some() || rung.is_some_and(has_reached)
    }

    /// Starts a run in a place; returns it with the file of its stderr.
    fn start(&self, run: &Run, rung: Option<u64>, place: usize) -> Result<(Child, PathBuf)> {
        let SweepArgs { out, ranks, .. } = self.args;
        let (folder, path) = (self.folder(run), out.join(format!("{}.stderr", run.name)));
        let mut command = Command::new(&self.program);
        if *ranks > 1 {
            command.args(["launch", "-n", &ranks.to_string(), "--"]);
        }
        command.arg("train").args(&self.words);
        run.sets().iter().for_each(|set| _ = command.args(["--set", set]));
        rung.iter().for_each(|rung| _ = command.args(["--set", &format!("{STOP_AFTER_EPOCHS}={rung}")]));
        command.arg("--out").arg(&folder);
        if folder.join(CONFIG_FILE).exists() {
            command.args(["--resume", "auto"]);
        }
        self.n_threads.iter().for_each(|n| _ = command.args(["--threads", &n.to_string()]));
        command.envs(self.kept.as_ref().map(KeptMemory::variable));
        self.places[place].iter().for_each(|gpus| _ = command.env(VISIBLE, gpus));
        debug!("{command:?}");
        let unwritable = |source| FolderError::Unwritable { path: path.clone(), source };
        let stderr = create_new(&path).map_err(unwritable)?;
        // In a group of its own, because the terminal sends SIGINT to all of this one.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).process_group(0);
        Ok((command.spawn().map_err(not_run)?, path))
    }

    /// Reports the end of a run; returns the first line of its error if it failed.
    fn end(
        &self,
        of: &Started,
        run: &Run,
        rung: Option<u64>,
        status: ExitStatus,
        progress: &str,
    ) -> Option<String> {
        let took = duration(of.since.elapsed().as_secs_f64());
        if self.is_done(run, rung) {
            let summary = Summary::read(&self.folder(run));
            let value = summary.metric.zip(summary.value);
            let value =
                value.map_or(String::new(), |(metric, value)| format!(", {metric} {}", figure(value)));
            match rung.filter(|_| !self.is_done(run, None)) {
                Some(rung) => info!("{progress} has reached epoch {rung}{value} ({took})"),
                None => info!("{progress} is complete{value} ({took})"),
            }
        } else if status.code() == Some(exit_code::SAVED.into()) || status.signal() == Some(SIGTERM) {
            info!("{progress} has stopped ({took})");
        } else {
            let text = read_regular(&of.stderr, MAX_STDERR).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            // Ranks other than 0 say which they are.
            let without_rank = |line| {
                let rest = str::strip_prefix(line, "[rank ").and_then(|line| line.split_once("] "));
                rest.map_or(line, |(_, line)| line).trim_start()
            };
            let mut lines = text.lines().map(without_rank);
            let mut after = |mark| lines.find_map(|line| line.strip_prefix(mark)).map(str::to_owned);
            // A hint before the error is that of a warning.
            let error = after("error: ");
            let hint = error.as_ref().and_then(|_| after("hint: "));
            let how = || match status.signal() {
                Some(signal) => format!("ended by signal {signal}"),
                None => format!("ended with status {}", status.code().unwrap_or_default()),
            };
            let error = error.unwrap_or_else(how);
            let hint = hint.map_or(String::new(), |hint| format!("{hint}; "));
            warn!("{progress} failed: {error}\nhint: {hint}its output is in {}", of.stderr.display());
            return Some(error);
        }
        let _ = fs::remove_file(&of.stderr);
        None
    }
}

impl Started {
    /// Lets the run save a checkpoint and end. A process that is not yet ready to answer the signal ends, and has nothing to save.
    fn stop(&self) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            // It may have ended.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

fn not_run(source: std::io::Error) -> LaunchError {
    LaunchError::NotRun { program: "ddp-train".to_owned(), source }
}

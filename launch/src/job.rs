//! One attempt: the launcher in its own process group, or the ranks that this process starts itself, each in its own, watched until all
//! processes have ended.
//!
//! Waiting for the launcher is bounded, because mpirun may hang after its ranks have ended. Its end is not sufficient either: a
//! launcher that was killed leaves ranks behind, in their own process groups. So this process is their subreaper and adopts them.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::io::{self, PipeReader, PipeWriter};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use ddp::host_memory::MemoryKills;
use ddp::train::stop_handlers::stop_signals;
use ddp::train::stop_signals::{StopSignals, name};
use ddp_comm::{HostPlace, rank_variables};
use rustix::process::{Pid, Signal, set_child_subreaper};
use signal_hook::consts::{SIGINT, SIGQUIT};
use signal_hook::iterator::Signals;
use tracing::{info, warn};

use crate::decision::Ended;
use crate::output::{JOINED, Output};
use crate::processes::{Below, Started};
use crate::run_watch::RunWatch;
use crate::starter::{CommandLine, Starter};
use crate::{messages, processes};

/// Interval at which the launcher and signals are polled.
const POLL: Duration = Duration::from_millis(20);
/// Interval at which the ranks and the run folder are checked.
const LOOK: Duration = Duration::from_secs(1);
/// Time limit for the launcher to exit once its ranks have ended, or have reported a failure or the end of the run.
const GRACE: Duration = Duration::from_secs(5);
/// Number of checks after which a job that has not started is reported.
const REPORT_LOOKS: usize = 20;
/// Number of checks after which a launcher that has started no rank on this host, where all ranks should be, is ended.
const IDLE_LOOKS: usize = 30;
/// Time limit for the last output to be copied.
const COPY_DEADLINE: Duration = Duration::from_secs(2);
/// Number of consecutive checks after which a process that a signal has stopped counts as lost. If the whole job is suspended, no
/// checks take place.
const FROZEN_LOOKS: usize = 10;
/// Time limit for processes to end after SIGKILL.
const KILL_DEADLINE: Duration = Duration::from_secs(5);
/// Time limit for ranks to save and end by themselves when their launcher was killed.
const SAVE_DEADLINE: Duration = Duration::from_secs(10);
/// Interval at which a stop signal is repeated: the first may arrive before any ranks exist to forward it to.
const RESEND: Duration = Duration::from_secs(1);

/// Time before a loss within which a kill for want of memory may be its cause.
const KILLS_WINDOW: Duration = Duration::from_secs(30);

/// A launcher and its ranks, or ranks without one.
#[derive(Debug)]
pub(crate) struct Job {
    started_here: Started,
    below: Below,
    /// Name of the launcher.
    name: &'static str,
    /// Whether all ranks should run on this host.
    is_local: bool,
    /// The output of the launcher or of the ranks; `None` for a rank alone, which has that of this process.
    output: Option<Output>,
    /// Path of this program, which the ranks run.
    program: PathBuf,
    started: Instant,
}

/// The end of a job.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) ended: Ended,
    /// Whether a signal stopped the ranks.
    pub(crate) was_stopped: bool,
    /// Whether the ranks had joined.
    pub(crate) has_joined: bool,
    /// Whether the launcher or a rank has written to stderr.
    pub(crate) has_said: bool,
    /// The launcher's own last lines, which were held back.
    pub(crate) held: Vec<String>,
    /// Largest memory of all ranks on this host that was seen, in bytes.
    pub(crate) resident_bytes: u64,
    /// Kills for want of memory on this host since shortly before the end or the loss.
    pub(crate) kills: MemoryKills,
}

/// Where the ranks of a job are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    /// This host, where each host of the job starts its own ranks.
    pub(crate) of_host: Option<&'a HostPlace>,
    /// Whether all ranks should run on this host.
    pub(crate) is_local: bool,
    /// The GPUs that they may use, as CUDA_VISIBLE_DEVICES names them; `None` for all.
    pub(crate) visible: Option<&'a str>,
    /// The processes of this host among which they are.
    pub(crate) below: &'a Below,
}

impl Job {
    /// Starts `line`, the command line of `starter`, for the `n_ranks` ranks of the job `id`, or for as many on this host.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn start(
        starter: &Starter,
        line: &CommandLine,
        n_ranks: usize,
        id: &str,
        place: Place<'_>,
    ) -> io::Result<Self> {
        let Place { of_host, is_local, visible, below } = place;
        // Any process id but 0 makes this process a subreaper.
        set_child_subreaper(Some(Pid::INIT))?;
        let of_processes = match (starter, of_host) {
            (_, Some(of_host)) => of_host.rank_variables(n_ranks),
            (Starter::Itself, None) => rank_variables(n_ranks)?,
            _ => vec![Vec::new()],
        };
        let joined = format!("ddp-train-launch-{id}-joined");
        let pipes =
            starter.is_copied().then(|| Ok::<_, io::Error>([io::pipe()?, io::pipe()?])).transpose()?;
        let mut started_here = Started::new(*starter == Starter::Itself);
        for variables in of_processes {
            let mut command = Command::new(&line.program);
            command.args(&line.args).stdin(Stdio::null()).process_group(0);
            for (name, value) in line.env.iter().filter(|(name, _)| std::env::var_os(name).is_none()) {
                command.env(name, value);
            }
            if !variables.is_empty() {
                ddp_comm::without_launcher(&mut command);
            }
            command.envs(variables).envs(visible.map(|visible| ("CUDA_VISIBLE_DEVICES", visible)));
            if let Some([(_, stdout), (_, stderr)]) = &pipes {
                command.env(JOINED, &joined).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
            }
            started_here.spawn(command)?;
        }
        let copy = |[(stdout, _), (stderr, _)]: [(PipeReader, PipeWriter); 2]| {
            Output::copy(stdout, stderr, &joined, starter.has_blocks())
        };
        let output = pipes.map(copy).transpose()?;
        let program = processes::own_program();
        let (below, name, started) = (below.clone(), starter.name(), Instant::now());
        Ok(Job { started_here, below, name, is_local, output, program, started })
    }

    /// Waits until the launcher and all its processes on this host have ended. Signals to this process stop the ranks.
    pub(crate) fn wait(mut self, requests: &mut StopRequests, watch: &RunWatch) -> Finished {
        let mut last_sent: Option<Instant> = None;
        let (mut over, mut frozen) = (Over::default(), Frozen::default());
        let (mut last_look, mut n_looks, mut resident_bytes) = (self.started, 0, 0);
        let (mut kills, mut most_ranks) = (Recent::new(MemoryKills::watch, Instant::now()), 0);
        let (save_limit, loss_limit) = (OnceCell::new(), OnceCell::new());
        let save = || *save_limit.get_or_init(|| watch.save_limit());
        let loss = || *loss_limit.get_or_init(|| watch.loss_limit());
        let ended = loop {
            if let Some(ended) = self.started_here.ended(save) {
                break ended;
            }
            match requests.poll() {
                Some(Request::Stop(name)) => info!("received {name}; the ranks save a checkpoint and stop"),
                Some(Request::EndNow(name)) => {
                    warn!("received {name}: ending the ranks at once, without saving");
                    self.started_here.end();
                    break Ended::Interrupted;
                }
                None => {}
            }
            let is_due = last_sent.is_none_or(|sent| sent.elapsed() >= RESEND);
            if requests.stop().is_some() && is_due && self.ask_to_stop() {
                last_sent = Some(Instant::now());
            }
            if last_look.elapsed() >= LOOK {
                last_look = Instant::now();
                let ranks = self.below.running(&self.program);
                let n_ranks = ranks.len();
                let n_ended = if n_ranks == 0 { self.below.n_unreaped(&self.program) } else { 0 };
                // Ranks on other hosts may be saving.
                let has_none = n_ranks == 0 && (self.is_local || watch.is_done());
                let is_late = |since: Instant| is_late(since.elapsed(), has_none, save);
                let over_since = over.since(n_ranks, n_ended, watch);
                most_ranks = most_ranks.max(n_ranks);
                if over_since.is_none() && n_ranks == most_ranks {
                    kills.renew(MemoryKills::watch, Instant::now());
                }
                if over_since.is_some_and(is_late) && !watch.is_uploading() {
                    self.started_here.end();
                    break Ended::Hung;
                }
                resident_bytes = resident_bytes.max(processes::resident_bytes(&ranks));
                n_looks += 1;
                let is_waiting = !self.has_joined() && requests.stop().is_none();
                if is_waiting && n_looks == REPORT_LOOKS {
                    warn!("{}", messages::not_started(self.name, n_looks, n_ranks, &self.held()));
                }
                if is_waiting && self.is_local && !over.had_ranks && n_looks >= IDLE_LOOKS {
                    self.started_here.end();
                    break Ended::Idle;
                }
                // Ranks that train have a watchdog; a single rank, or one that is still starting, has none. Ranks that train need
                // no launcher.
                let is_needed = |pid: &i32| ranks.contains(pid) || !watch.has_events();
                // The watchdog of other ranks comes first, since they save what they have.
                let has_watchdog = watch.has_events() && (n_ranks > 1 || !self.is_local);
                let patience = if has_watchdog { loss() } else { Duration::ZERO };
                if frozen.is_lost(self.below.frozen().into_iter().filter(is_needed).collect(), patience) {
                    self.started_here.end();
                    break Ended::Frozen;
                }
            }
            std::thread::sleep(POLL);
        };
        if matches!(ended, Ended::Signal(_)) && watch.has_events() {
            self.wait_until_saved(requests, watch);
        }
        let n_left = self.below.kill_all(KILL_DEADLINE);
        if n_left > 0 {
            warn!("{n_left} processes of the job did not end within {KILL_DEADLINE:?} of SIGKILL");
        }
        if let Some(output) = &self.output {
            output.wait(COPY_DEADLINE);
        }
        let (has_joined, held) = (self.has_joined(), self.held());
        let has_said = self.output.as_ref().is_none_or(Output::has_said);
        let was_stopped = requests.stop().is_some();
        Finished { ended, was_stopped, has_joined, has_said, held, resident_bytes, kills: kills.earlier }
    }

    fn has_joined(&self) -> bool {
        self.output.as_ref().is_none_or(Output::has_joined)
    }

    fn held(&self) -> Vec<String> {
        self.output.as_ref().map(Output::held).unwrap_or_default()
    }

    /// Waits for the ranks, which notice that their launcher has ended.
    fn wait_until_saved(&self, requests: &mut StopRequests, watch: &RunWatch) {
        let started = Instant::now();
        let is_in_time = || started.elapsed() < SAVE_DEADLINE || watch.is_uploading();
        while !self.below.running(&self.program).is_empty() && is_in_time() {
            if let Some(Request::EndNow(_)) = requests.poll() {
                return;
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends SIGUSR1 to the launcher, which forwards it to the ranks; or directly to the ranks of this host if the signal would
    /// end the launcher, as it would a script. One rank suffices. Returns false if no process handles the signal yet.
    fn ask_to_stop(&self) -> bool {
        let notify = |pid| processes::notify(pid, Signal::USR1);
        let ranks = || self.below.running(&self.program).into_iter().filter(|pid| notify(*pid)).count();
        self.started_here.pids().filter(|pid| notify(*pid)).count() > 0 || ranks() > 0
    }
}

/// Whether a launcher has not ended `elapsed` after its job appears to be over. Ranks may save meanwhile, unless it `has_none` left.
fn is_late(elapsed: Duration, has_none: bool, save: impl Fn() -> Duration) -> bool {
    elapsed > GRACE && (has_none || elapsed > GRACE + save())
}

/// Time since which the job appears to be over although its launcher still runs.
#[derive(Debug, Default)]
struct Over {
    /// Whether any ranks were seen on this host.
    had_ranks: bool,
    since: Option<Instant>,
}

impl Over {
    /// Updates the state: `n_ranks` are alive on this host, and `n_ended` have ended unnoticed by the launcher.
    fn since(&mut self, n_ranks: usize, n_ended: usize, watch: &RunWatch) -> Option<Instant> {
        self.had_ranks |= n_ranks + n_ended > 0;
        let is_over = (self.had_ranks && n_ranks == 0) || watch.is_done() || watch.reported().is_some();
        self.since = self.since.filter(|_| is_over).or_else(|| is_over.then(Instant::now));
        self.since
    }
}

/// A sample from once to twice [`KILLS_WINDOW`] before its last renewal, or from the start.
#[derive(Debug)]
struct Recent<T> {
    earlier: T,
    later: T,
    taken: Instant,
}

impl<T> Recent<T> {
    fn new(sample: impl Fn() -> T, now: Instant) -> Self {
        Recent { earlier: sample(), later: sample(), taken: now }
    }

    /// Takes another sample if it is due.
    fn renew(&mut self, sample: impl FnOnce() -> T, now: Instant) {
        if now.duration_since(self.taken) >= KILLS_WINDOW {
            self.earlier = std::mem::replace(&mut self.later, sample());
            self.taken = now;
        }
    }
}

/// Processes that a signal has stopped, with the number of consecutive checks.
#[derive(Debug, Default)]
struct Frozen {
    pids: BTreeSet<i32>,
    n_looks: usize,
}

impl Frozen {
    /// Whether one of `pids`, the processes that are frozen now, has been frozen in too many consecutive checks, those of the time
    /// `patience` not counted.
    fn is_lost(&mut self, pids: BTreeSet<i32>, patience: Duration) -> bool {
        self.pids = match self.n_looks {
            0 => pids,
            _ => self.pids.intersection(&pids).copied().collect(),
        };
        self.n_looks = if self.pids.is_empty() { 0 } else { self.n_looks + 1 };
        self.n_looks > FROZEN_LOOKS + (patience.as_secs_f64() / LOOK.as_secs_f64()).ceil() as usize
    }
}

/// Name of a stop that the file of `--notice-file` requests.
const NOTICE: &str = "a notice (--notice-file)";

/// A request of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// Save a checkpoint and stop.
    Stop(&'static str),
    /// End immediately, because of this signal.
    EndNow(&'static str),
}

/// Signals that have arrived, and the receiver of further ones.
#[derive(Debug)]
pub(crate) struct StopRequests {
    signals: Signals,
    /// Name of the first signal.
    stop: Option<&'static str>,
    is_interrupted: bool,
    /// A file whose appearance requests a stop, and the time of one that was there before.
    notice: Option<(PathBuf, Option<SystemTime>)>,
}

impl StopRequests {
    /// Takes over from `earlier`, which has received the signals since the start of the process. The appearance of the file `notice`, or a
    /// change of one that is there, counts as a signal.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn listen(earlier: &StopSignals, notice: Option<&Path>) -> io::Result<Self> {
        let signals = Signals::new(stop_signals())?;
        signals.add_signal(SIGQUIT)?;
        let stop = earlier.received();
        let notice = notice.map(|path| (path.to_owned(), modified(path)));
        if let Some((path, Some(_))) = &notice {
            warn!(
                "`{}` is of an earlier notice and does not count until it is written again",
                path.display()
            );
        }
        Ok(StopRequests { signals, stop, is_interrupted: stop == Some("SIGINT"), notice })
    }

    /// The next request, if a signal has arrived since the last call.
    pub(crate) fn poll(&mut self) -> Option<Request> {
        let mut request = None;
        for signal in self.signals.pending() {
            if signal == SIGQUIT || (signal == SIGINT && std::mem::replace(&mut self.is_interrupted, true)) {
                self.stop.get_or_insert(name(signal));
                return Some(Request::EndNow(name(signal)));
            }
            if self.stop.is_none() {
                let name = name(signal);
                self.stop = Some(name);
                request = Some(Request::Stop(name));
            }
        }
        let is_new = |(path, before): &(PathBuf, _)| modified(path).is_some_and(|time| Some(time) != *before);
        if self.stop.is_none() && self.notice.as_ref().is_some_and(is_new) {
            self.stop = Some(NOTICE);
            request = Some(Request::Stop(NOTICE));
        }
        request
    }

    /// The signal that requested the stop, if any.
    pub(crate) fn stop(&self) -> Option<&'static str> {
        self.stop
    }
}

/// Time of the last change of a file, if it is there.
fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|data| data.modified()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That of another program, hours ago, forbids no restart.
    #[test]
    fn kills_long_before_a_loss_are_forgotten() {
        let start = Instant::now();
        let mut recent = Recent::new(|| 0, start);
        let mut earlier = |s| {
            recent.renew(|| s, start + Duration::from_secs(s));
            recent.earlier
        };
        assert_eq!([1, 29, 30, 31, 59, 60, 89, 90].map(&mut earlier), [0, 0, 0, 0, 0, 30, 30, 60]);
    }

    /// Those of mpirun that runs where none of them is may be on any host.
    #[test]
    fn ranks_elsewhere_have_time_to_save() {
        let save = || Duration::from_secs(60);
        let is_late = |s, has_none| is_late(Duration::from_secs(s), has_none, save);
        assert!(!is_late(4, true) && is_late(6, true));
        assert!(!is_late(64, false) && is_late(66, false));
    }

    #[test]
    fn a_process_is_lost_when_it_was_frozen_at_many_looks_in_a_row() {
        let looks = |frozen: &mut Frozen, pids: &[i32], n: usize| {
            (0..n)
                .map(|_| frozen.is_lost(pids.iter().copied().collect(), Duration::ZERO))
                .filter(|lost| *lost)
                .count()
        };
        let mut frozen = Frozen::default();
        assert_eq!(looks(&mut frozen, &[1, 2], FROZEN_LOOKS), 0);
        assert_eq!(looks(&mut frozen, &[2, 3], 1), 1, "process 2");
        let mut frozen = Frozen::default();
        assert_eq!(looks(&mut frozen, &[1], FROZEN_LOOKS), 0);
        assert_eq!(looks(&mut frozen, &[], 1), 0, "it continues");
        assert_eq!(looks(&mut frozen, &[1], FROZEN_LOOKS), 0);
        assert_eq!(looks(&mut frozen, &[2], FROZEN_LOOKS), 0, "another one");
        let mut frozen = Frozen::default();
        let with_watchdog = |_| frozen.is_lost(BTreeSet::from([2]), 3 * LOOK);
        assert_eq!(
            (0..FROZEN_LOOKS + 4).position(with_watchdog),
            Some(FROZEN_LOOKS + 3),
            "its watchdog is gone too"
        );
    }
}

//! The handlers of stop signals ([`StopSignals`]), for the program that has the process to itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io};

use ddp_comm::{Launcher, LauncherProcess, Watchdog, World, failure};
use ddp_kernels::cpu::start_thread::start_thread;
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, SIGXFSZ};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::{flag, low_level};
use tracing::{info, warn};

use crate::exit_code;
use crate::report::notes::{LOG_FILE, STOPPING};
use crate::storage::probe;
use crate::storage::unfinished::Unfinished;
use crate::train::stop_signals::{LAUNCHER_ENDED, Stage, StopSignals, name, unsaved};

/// It is unknown to `signal_hook`.
const SIGPWR: i32 = Signal::POWER.as_raw();
/// Interval at which a run looks for its launcher.
const LAUNCHER_POLL: Duration = Duration::from_millis(100);
/// Half of the time between mpirun's SIGTERM and its SIGKILL (`odls_base_sigkill_timeout`).
const GRACE: Duration = Duration::from_millis(500);
/// A shell reports a process that was ended by a signal with this status plus the signal's number.
const SIGNALED: i32 = 128;
/// Time by which mpirun's SIGTERM may arrive before the report of the lost rank that caused it.
const REPORT_DELAY: Duration = Duration::from_millis(100);
/// Time for which a rank other than 0 leaves it to rank 0 to report that a signal ended the job.
const REPORTER_GRACE: Duration = Duration::from_secs(1);
/// Environment variable of a process that stops with its parent, as by SIGTERM.
const WITH_PARENT: &str = "DDP_TRAIN_STOPS_WITH_PARENT";

/// Starts a thread that sends this process SIGTERM when its parent has ended, where `DDP_TRAIN_STOPS_WITH_PARENT` is set: for a program that
/// starts runs of its own. A parent that is a shell may end without its jobs.
///
/// # Errors
/// The system's error, if it has no thread.
pub fn stop_with_parent() -> io::Result<()> {
    let parent = std::env::var_os(WITH_PARENT).and_then(|_| LauncherProcess::find(true));
    let Some(parent) = parent else { return Ok(()) };
    let watch = move || {
        while !parent.is_gone() {
            std::thread::sleep(LAUNCHER_POLL);
        }
        // It can't fail: a process may always signal itself.
        let _ = kill_process(getpid(), Signal::TERM);
    };
    start_thread("parent", watch).map(drop)
}

impl StopSignals {
    /// Installs the signal handlers. A second SIGINT ends the process at once; a SIGTERM from mpirun does if no step finishes
    /// soon. Call it first in `main`.
    ///
    /// # Errors
    /// The system's error for a handler or a thread.
    pub fn listen(launcher: Option<Launcher>) -> io::Result<Self> {
        let mut signals = StopSignals::default();
        let is_interrupted = Arc::new(AtomicBool::new(false));
        // In this order: the first SIGINT finds the flag down and puts it up.
        let shutdown = flag::register_conditional_shutdown(
            SIGINT,
            exit_code::INTERRUPTED.into(),
            is_interrupted.clone(),
        )?;
        signals.second_interrupt = Some(shutdown);
        flag::register(SIGINT, is_interrupted)?;
        for signal in stop_signals() {
            let ends_at_once = signals.ends_at_once.clone();
            match signal {
                SIGPWR => flag::register_conditional_shutdown(signal, SIGNALED + signal, ends_at_once)?,
                _ => flag::register_conditional_default(signal, ends_at_once)?,
            };
            flag::register_usize(signal, signals.last.clone(), signal as usize)?;
        }
        // A write beyond the limit on the size of files (`ulimit -f`) then fails, as on a full disk, instead of ending the process.
        flag::register(SIGXFSZ, Arc::default())?;
        signals.answer(launcher == Some(Launcher::OpenMpi))?;
        Ok(signals)
    }

    /// From now on signals end this process as they end any other: for commands that are not runs.
    pub fn end_at_once(&self) {
        self.ends_at_once.store(true, Ordering::SeqCst);
        if let Some(signal) = self.last() {
            end_by(signal);
        }
    }

    /// From now on signals remove the `unfinished` files and then end this process as they end any other: for commands that write
    /// under temporary names.
    pub fn end_without(&self, unfinished: &Unfinished) {
        let _ = self.stage.unfinished.set(unfinished.clone());
        if let Some(signal) = self.last() {
            self.end_like_any_program(signal, unfinished);
        }
    }

    /// From now on a signal ends this process with status 85, or its launcher's end does: for a run, whose ranks are about to meet.
    pub fn meet(&self, launcher: Option<Launcher>) {
        if let Some(launcher) = LauncherProcess::find(launcher.is_some()) {
            let _ = self.is_watched.set(self.watch(launcher));
        }
        self.stage.set(Stage::Meeting);
    }

    /// The ranks are joined: a signal that ends this rank is announced to the others, which then do not report its death.
    pub fn joined(&self, world: &World) {
        let _ = self.stage.watchdog.set(world.watchdog().clone());
    }

    /// From now on signals are only recorded: for a process that passes them on to the ranks it has started.
    pub fn only_record(&self) {
        self.second_interrupt.map(low_level::unregister);
    }

    /// From now on a signal to this rank ends the job with status 85, since nothing is saved yet.
    pub fn prepare(&self, world: &World) {
        self.joined(world);
        match self.is_watched.get() {
            Some(Ok(())) => world.outlive_launcher(),
            Some(Err(error)) => {
                warn!(target: LOG_FILE, "this rank ends with its launcher, without saving: {error}")
            }
            None => {}
        }
        self.stage.set(Stage::Preparing { rank: world.rank().0, world_size: world.world_size() });
    }

    /// Starts the thread that answers signals at once; `ends_with_mpirun` if mpirun's SIGTERM ends a rank that finishes no step.
    fn answer(&self, ends_with_mpirun: bool) -> io::Result<()> {
        let mut received = SignalsInfo::<WithOrigin>::new(stop_signals())?;
        let signals = self.clone();
        let watch = move || {
            for origin in &mut received {
                if let Some(unfinished) = signals.stage.unfinished.get() {
                    signals.end_like_any_program(origin.signal, unfinished);
                }
                // mpirun, or its daemon on this host.
                let parent = std::os::unix::process::parent_id();
                let is_from_parent =
                    origin.process.is_some_and(|sender| u32::try_from(sender.pid) == Ok(parent));
                if ends_with_mpirun && origin.signal == SIGTERM && is_from_parent {
                    // On the terminal it could hide the message of the rank whose death is the reason.
                    signals.say_once(SIGTERM);
                    std::thread::sleep(GRACE);
                    // The watchdog ends the process in its own way.
                    let watchdog = signals.stage.watchdog.get();
                    if !signals.is_seen.load(Ordering::Relaxed) && !watchdog.is_some_and(Watchdog::is_ending)
                    {
                        if let Some(watchdog) = watchdog {
                            watchdog.announce_failure("ended by mpirun's SIGTERM");
                        }
                        warn!(target: LOG_FILE, "ended by mpirun's SIGTERM: no step finished within {GRACE:?}");
                        low_level::exit(exit_code::TERMINATED.into());
                    }
                    continue;
                }
                // The guard is kept until the process has ended or the answer is given, so that a run begins before or not at all.
                let stage = signals.stage.wait_for_run();
                match (*stage, origin.signal) {
                    (Stage::Meeting, signal) => end_unjoined(signal),
                    (Stage::Preparing { rank, world_size }, signal) => {
                        signals.end_unsaved(signal, rank, world_size)
                    }
                    (_, signal) => signals.say_once(signal),
                }
            }
        };
        start_thread("signals", watch).map(drop)
    }

    /// Starts the thread that watches the processes that started this rank.
    fn watch(&self, launcher: LauncherProcess) -> io::Result<()> {
        let signals = self.clone();
        let watch = move || {
            while !launcher.is_gone() {
                std::thread::sleep(LAUNCHER_POLL);
            }
            signals.last.store(LAUNCHER_ENDED as usize, Ordering::SeqCst);
            match *signals.stage.wait_for_run() {
                Stage::Meeting => end_unjoined(LAUNCHER_ENDED),
                // Without asking the launcher to end the other ranks: each of them finds out by itself.
                Stage::Preparing { .. } => {
                    warn!(target: STOPPING, "{}", unsaved(name(LAUNCHER_ENDED)));
                    low_level::exit(exit_code::SAVED.into());
                }
                _ => signals.say_once(LAUNCHER_ENDED),
            }
        };
        start_thread("launcher", watch).map(drop)
    }

    /// Ends all ranks of a run that has not taken a step.
    fn end_unsaved(&self, signal: i32, rank: usize, world_size: usize) -> ! {
        let reason = unsaved(name(signal));
        // Of the main thread, which leaves its files where the process ends meanwhile.
        probe::wait_until_over();
        if rank == 0 {
            info!(target: STOPPING, "{reason}");
        } else {
            // Rank 0 mostly has received it too: it reports, and mpirun's SIGTERM follows.
            self.last.store(0, Ordering::SeqCst);
            let started = Instant::now();
            while started.elapsed() < REPORTER_GRACE {
                let is_ended = self.last() == Some(SIGTERM);
                std::thread::sleep(if is_ended { REPORT_DELAY } else { Duration::from_millis(5) });
                if let Some(watchdog) = self.stage.watchdog.get() {
                    watchdog.yield_to_end();
                }
                if is_ended {
                    low_level::exit(exit_code::SAVED.into());
                }
            }
            warn!(target: STOPPING, "{reason}");
        }
        if let Some(watchdog) = self.stage.watchdog.get() {
            watchdog.announce_failure(&reason);
        }
        match world_size {
            // Without the exit handlers of libraries, which the main thread may be using.
            1 => low_level::exit(exit_code::SAVED.into()),
            _ => failure::end_job(exit_code::SAVED.into()),
        }
    }

    fn end_like_any_program(&self, signal: i32, unfinished: &Unfinished) {
        if let Some(watchdog) = self.stage.watchdog.get() {
            watchdog.announce_failure(&format!("ended by {}", name(signal)));
        }
        unfinished.end();
        failure::end_others(SIGNALED + signal);
        end_by(signal);
    }
}

/// Ends a rank that has not joined the others, each of which is told by whatever told this one.
fn end_unjoined(signal: i32) -> ! {
    failure::end_unjoined(exit_code::SAVED.into(), unsaved(name(signal)))
}

/// Signals that request a process to save and stop. A closed terminal does, unless SIGHUP is ignored, as under `nohup`.
pub fn stop_signals() -> Vec<i32> {
    let mut signals = vec![SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGXCPU, SIGPWR];
    if !is_ignored(SIGHUP) {
        signals.push(SIGHUP);
    }
    signals
}

/// Whether this process ignores `signal`.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let bits = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    bits & (1 << (signal - 1)) != 0
}

/// Ends this process as `signal` ends any program.
fn end_by(signal: i32) -> ! {
    let _ = low_level::emulate_default_handler(signal);
    // A signal that the library does not know.
    low_level::exit(SIGNALED + signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_recorded_and_the_process_continues() {
        let signals = StopSignals::listen(None).unwrap();
        assert_eq!(signals.received(), None);
        low_level::raise(SIGUSR1).unwrap();
        assert_eq!(signals.received(), Some("SIGUSR1"));
        let reason = signals.begin_run(&World::single()).unwrap();
        assert_eq!(reason.as_deref(), Some("SIGUSR1"));
    }

    #[test]
    fn signals_have_names_and_those_that_are_ignored_are_known() {
        let names: Vec<_> = stop_signals().into_iter().map(name).collect();
        assert_eq!(names[..6], ["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGPWR"]);
        // The runtime of Rust ignores SIGPIPE.
        assert!(is_ignored(13) && !is_ignored(SIGUSR2));
    }
}

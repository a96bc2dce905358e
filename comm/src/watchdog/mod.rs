//! Notices a rank that died, froze, was cut off or is stuck, says which one and where, and ends all ranks with status 75.
//!
//! Ranks wait for each other in collectives, so one lost rank would hang the job in silence. Each rank has a thread that exchanges
//! heartbeats with rank 0, the hub, and with a deputy that reports if rank 0 is lost; over TCP, on the loopback interface where all
//! ranks are on one host. A rank is lost if its connection closes without a goodbye (it died), if nothing is heard of it for the
//! timeout (it is frozen or cut off), or if no rank makes progress (it is stuck). The rank that notices writes a [`Certificate`]
//! and sends its text to the others.
//!
//! The thread that trains writes its progress to atomics (`progress.rs` of this crate) and does nothing else. The thread of the watchdog calls
//! neither MPI nor CUDA.
//!
//! ```
//! use std::time::Duration;
//!
//! use ddp_comm::watchdog::{Certificate, LossReport};
//! use ddp_comm::{Phase, WatchdogOptions, World};
//!
//! struct Report;
//!
//! impl LossReport for Report {
//!     fn message(&self, certificate: &Certificate) -> String {
//!         certificate.text.clone()
//!     }
//!
//!     fn record(&self, _: &Certificate) {}
//! }
//!
//! let world = World::init()?;
//! let options = WatchdogOptions {
//!     interval: Duration::from_secs(1),
//!     timeout: Duration::from_secs(60),
//!     exit_code: 75,
//! };
//! if let Some(warning) = world.start_watchdog(options, Report)? {
//!     eprintln!("{warning}");
//! }
//! for step in 0..3 {
//!     world.watchdog().step(step);
//! }
//! let _evaluates = world.watchdog().during(Phase::Evaluation);
//! # Ok::<(), ddp_comm::CommError>(())
//! ```

mod frame;
mod nccl_status;
mod link;
mod monitor;
mod flight;
mod certificate;
mod place;
mod connect;
mod survivors;
mod watch;

use std::fmt;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub use certificate::Certificate;
use certificate::Identity;
pub use connect::interface_addresses;
use connect::{addresses_from_bytes, addresses_to_bytes};
use ddp_kernels::cpu::start_thread::start_thread;
pub use flight::FlightOperation;
#[doc(hidden)]
pub use frame::frames_in;
use monitor::{Limits, Monitor, Role};
pub use nccl_status::nccl_status;
pub use place::RankPlace;
use watch::{Command, Watch};

use crate::offer::{Offer, SaveAfterLoss};
use crate::phase::Phase;
use crate::progress::Progress;
use crate::this_host::allow_files;
use crate::token::random_token;
use crate::{Group, Result};

/// Name of its thread.
pub(crate) const THREAD: &str = "watchdog";
/// Time for which a failing rank waits until the others know.
const FAILURE_SENT: Duration = Duration::from_millis(300);
/// Time for which a leaving rank waits for the others; a bound in case its thread is gone.
const LEFT: Duration = Duration::from_secs(5);
/// Time for which the caller of [`Watchdog::places`] waits; a bound in case the thread is gone.
const PLACES: Duration = Duration::from_secs(1);
/// Time for which a failing thread waits while the watchdog ends the process.
const ENDING: Duration = Duration::from_secs(5);

/// Options of [`World::start_watchdog`](crate::World::start_watchdog).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WatchdogOptions {
    /// Time between two heartbeats of a rank.
    pub interval: Duration,
    /// Silence after which a rank is lost, in addition to two intervals.
    pub timeout: Duration,
    /// Exit status of all ranks after one was lost.
    pub exit_code: i32,
}

/// Writes the certificate where the caller keeps such things, on a thread of its own. It calls no MPI, CUDA or collective.
pub trait LossReport: Send + 'static {
    /// The message for stderr, on the rank that reports for all. It waits for nothing.
    fn message(&self, certificate: &Certificate) -> String;

    /// Records the certificate in files, on each rank.
    fn record(&self, certificate: &Certificate);
}

/// Ranks that the watchdog does not watch; as text, a warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unwatched {
    /// Number of these ranks.
    pub n_unwatched: usize,
    /// Number of all ranks.
    pub n_ranks: usize,
    /// The first of these ranks.
    pub first: usize,
    /// The rank that it can't connect to, and why.
    pub problem: String,
}

impl Unwatched {
    /// From each rank's problem, empty for none.
    fn new(problems: &[Vec<u8>]) -> Option<Self> {
        let with_problem = || problems.iter().enumerate().filter(|(_, problem)| !problem.is_empty());
        let (first, problem) = with_problem().next()?;
        let problem = String::from_utf8_lossy(problem).into_owned();
        Some(Unwatched { n_unwatched: with_problem().count(), n_ranks: problems.len(), first, problem })
    }
}

impl std::error::Error for Unwatched {}

impl miette::Diagnostic for Unwatched {
    fn help(&self) -> Option<Box<dyn fmt::Display + '_>> {
        Some(Box::new("let the hosts connect to each other on any TCP port"))
    }
}

impl fmt::Display for Unwatched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unwatched { n_unwatched, n_ranks, first, problem } = self;
        write!(
            f,
            "the watchdog does not watch {n_unwatched} of {n_ranks} ranks (rank {first} can't connect to {problem}): if one of \
             them freezes, the job may hang"
        )
    }
}

/// A handle on this rank's watchdog. Before it is started every function does nothing.
#[derive(Debug, Clone, Default)]
pub struct Watchdog(Arc<OnceLock<Running>>);

#[derive(Debug)]
struct Running {
    progress: Arc<Progress>,
    commands: Sender<Command>,
    bell: UnixStream,
}

/// Restores the phase before it when it is dropped.
#[derive(Debug)]
pub struct PhaseGuard<'a>(&'a Watchdog, Phase);

impl Drop for PhaseGuard<'_> {
    fn drop(&mut self) {
        self.0.enter(self.1);
    }
}

impl Watchdog {
    /// This rank begins a phase.
    pub fn enter(&self, phase: Phase) {
        if let Some(running) = self.0.get() {
            running.progress.set_phase(phase);
        }
    }

    /// This rank is in a phase until the guard is dropped.
    pub fn during(&self, phase: Phase) -> PhaseGuard<'_> {
        let before = self.0.get().map_or(Phase::Start, |running| running.progress.phase());
        self.enter(phase);
        PhaseGuard(self, before)
    }

    /// This rank begins a training step, counted from 1. Costs a few stores to memory.
    #[inline]
    pub fn step(&self, step: u64) {
        if let Some(running) = self.0.get() {
            running.progress.set_step(step);
        }
    }

    /// This rank makes progress of another kind, such as a batch of an evaluation.
    #[inline]
    pub fn tick(&self) {
        if let Some(running) = self.0.get() {
            running.progress.tick();
        }
    }

    /// Returns at once, unless this process was frozen for more than a second: then as soon as the watchdog has heard whether the
    /// other ranks lost this one meanwhile. Where the watchdog ends the process, it does not return for 5 s.
    ///
    /// Call it before writing to a file whose last line may be the report of a loss.
    pub fn wait_until_current(&self) {
        if let Some(running) = self.0.get() {
            running.progress.hold_now();
        }
    }

    /// Names the device of this rank in reports.
    pub fn set_device(&self, device: &str) {
        if let Some(running) = self.0.get() {
            running.progress.set_device(device.to_owned());
        }
    }

    /// Tells the other ranks that this one ends the job because of `error`, so that they do not report its death. Returns once it
    /// is sent, within 0.3 s. Of a rank that has [withdrawn](Watchdog::withdraw) they know.
    pub fn announce_failure(&self, error: &str) {
        if self.has_withdrawn() {
            return;
        }
        self.request(|done| Command::Fail(error.to_owned(), done), FAILURE_SENT);
    }

    /// Tells the other ranks that this one is to end the job because of an error that they don't have, and that they may
    /// [save](Watchdog::saves_for) before; false where they are to save nothing. They then wait for its end, after
    /// [`Watchdog::wait_for_release`].
    pub fn withdraw(&self, error: &str) -> bool {
        self.0.get().is_some_and(|running| running.progress.withdraw(error, false))
    }

    /// Whether this rank has withdrawn.
    pub fn has_withdrawn(&self) -> bool {
        self.0.get().is_some_and(|running| running.progress.withdrawal().is_some())
    }

    /// Waits until the others have saved, if this rank has withdrawn.
    pub fn wait_for_release(&self) {
        if let Some(running) = self.0.get() {
            running.progress.wait_for_release();
        }
    }

    /// Whether the watchdog of this rank has found a lost rank and ends the process, perhaps after a [save](Watchdog::saves_for).
    pub fn is_ending(&self) -> bool {
        self.0.get().is_some_and(|running| running.progress.is_lost())
    }

    /// Set once a rank is lost, for threads that wait for one.
    pub fn loss(&self) -> Arc<AtomicBool> {
        self.0.get().map(|running| running.progress.loss()).unwrap_or_default()
    }

    /// Waits for the end if the watchdog ends the process: what fails then follows from the lost rank, which is reported.
    pub fn yield_to_end(&self) {
        if let Some(running) = self.0.get().filter(|_| self.is_ending()) {
            running
                .progress
                .released_within(ENDING + running.progress.survivor().limit().unwrap_or_default());
        }
    }

    /// From now on the loss of a rank is followed by a save: collectives in host memory return [`RankLost`](crate::CommError::RankLost), the training
    /// threads [offer](Watchdog::offer_save) what they hold, and all ranks end after one has saved, or this time. None ends them at once. After a
    /// loss nothing changes any more, and this returns false: a rank waits for the save of the others as long as it would have saved itself.
    pub fn saves_for(&self, limit: Option<Duration>) -> bool {
        let Some(running) = self.0.get() else { return true };
        if running.progress.is_lost() {
            return false;
        }
        let survivor = running.progress.survivor();
        let before = survivor.limit();
        survivor.set_limit(limit);
        if running.progress.is_lost() {
            // A loss that was noticed meanwhile may have found either limit: this rank waits for the longer one.
            survivor.set_limit(before.max(limit));
            return false;
        }
        true
    }

    /// Says whether this rank offers states that it keeps in host memory, perhaps of steps before the last one. The same on all ranks.
    pub fn keeps_states_in_host_memory(&self, keeps: bool) {
        if let Some(running) = self.0.get() {
            running.progress.survivor().set_in_host_memory(keeps);
        }
    }

    /// After a failure: waits a moment for the loss that it may follow from, and returns whether a rank was lost and a save is to follow.
    pub fn is_after_loss(&self) -> bool {
        self.0.get().is_some_and(|running| running.progress.awaits_loss())
    }

    /// After a failure: waits a moment for the loss that it may follow from. Then offers to save this state, or, with none, nothing, and
    /// returns the save on the ranks that are to save and then call [`Watchdog::end_save`]. None if no rank was lost; the other
    /// ranks end meanwhile.
    pub fn offer_save(&self, offer: Option<Offer>) -> Option<SaveAfterLoss> {
        let running = self.0.get().filter(|running| running.progress.awaits_loss())?;
        running.progress.survivor().offer(offer)
    }

    /// Set once another rank of a save after a loss is lost, or has failed.
    pub fn loss_in_save(&self) -> Arc<AtomicBool> {
        self.0.get().map(|running| running.progress.survivor().loss_in_save()).unwrap_or_default()
    }

    /// Tells the others that the save has ended.
    pub fn end_save(&self, is_saved: bool) {
        if let Some(running) = self.0.get() {
            running.progress.survivor().end(is_saved);
        }
    }

    /// Says goodbye and ends the thread: from now on this rank may end at any moment, and judges no other. Returns when all ranks
    /// that are connected to this one have said goodbye too, or after 3 s. Further calls do nothing.
    pub fn leave(&self) {
        self.request(Command::Leave, LEFT);
    }

    /// The places of all ranks at this moment, as far as this rank knows them: rank 0 knows all. None without a running watchdog. Works on
    /// any thread, also while the training thread hangs; the thread of the watchdog answers.
    pub fn places(&self) -> Option<Vec<RankPlace>> {
        let (answer, answered) = mpsc::channel();
        self.0.get()?.send(Command::Places(answer));
        answered.recv_timeout(PLACES).ok()
    }

    /// Starts the thread of this rank. Collective over `group`, all ranks of the job.
    ///
    /// # Errors
    /// The errors of [`Group::all_gather_bytes`].
    pub(crate) fn start(
        &self,
        group: &Group,
        hostname: &str,
        is_one_host: bool,
        options: WatchdogOptions,
        report: impl LossReport,
    ) -> Result<Option<Unwatched>> {
        let (rank, world_size) = (group.rank().0, group.world_size());
        let identity = format!("{} {hostname}", std::process::id());
        let identities = group.all_gather_bytes(identity.as_bytes())?;
        let identities: Vec<_> = identities.iter().map(|bytes| identity_of(bytes)).collect();
        let deputy = connect::deputy(&identities);
        let role = match rank {
            0 => Role::Hub,
            rank if rank == deputy => Role::Deputy,
            _ => Role::Leaf,
        };
        let listening = match role {
            Role::Hub | Role::Deputy if world_size > 1 => {
                // It takes a connection per rank, and says so if there are too few.
                let _ = allow_files(world_size);
                connect::listen(is_one_host).map(Some)
            }
            _ => Ok(None),
        };
        let (listening, deaf) =
            listening.map_or_else(|error| (None, format!("the others: {error}")), |of| (of, String::new()));
        let token = if rank == 0 { random_token().unwrap_or_default() } else { Default::default() };
        let addresses =
            listening.as_ref().map_or_else(Vec::new, |(_, addresses)| addresses_to_bytes(addresses));
        let offers = group.all_gather_bytes(&[&token[..], &addresses[..]].concat())?;
        let (token, _) = offers[0].split_first_chunk().expect("every offer begins with a token");
        let token = *token;
        let addresses = |of: usize| addresses_from_bytes(&offers[of][token.len()..]);
        // Without a token anybody could end the job.
        let is_possible = token != [0; 16];

        let limits = Limits { interval: options.interval, timeout: options.timeout };
        let (progress, now) = (Arc::new(Progress::new()), Instant::now());
        progress.set_exit_code(options.exit_code);
        let (commands, received) = mpsc::channel();
        let watch = |(bell, commands): (UnixStream, Receiver<Command>)| Watch {
            rank,
            token,
            identities: identities.clone(),
            interval: options.interval,
            progress: progress.clone(),
            monitor: Monitor::new(role, limits, progress.standing(), now),
            listener: listening.map(|(listener, _)| listener),
            commands,
            bell,
            exit_code: options.exit_code,
            report: Box::new(report),
            links: Default::default(),
            strangers: Vec::new(),
            leaving: None,
            has_failed: false,
            withdrawn_at: None,
        };
        let started = is_possible.then(|| spawn(|bell| watch((bell, received)))).transpose();
        let mut problem = match &started {
            Ok(Some(_)) => deaf,
            Ok(None) => "no random bytes on rank 0".to_owned(),
            Err(error) => error.to_string(),
        };
        if let Ok(Some(bell)) = started {
            let running = Running { progress: progress.clone(), commands, bell };
            for hub in
                [0, deputy].into_iter().filter(|hub| *hub < rank || (*hub != rank && role == Role::Leaf))
            {
                match connect::connect(&addresses(hub), rank, progress.standing(), &token, world_size) {
                    Ok(stream) => running.send(Command::Join(hub, stream)),
                    Err(error) => problem = format!("rank {hub}: {error}"),
                }
            }
            let _ = self.0.set(running);
        }
        let problems = group.all_gather_bytes(problem.as_bytes())?;
        if let Some(running) = self.0.get() {
            running.send(Command::StopListening);
        }
        Ok(Unwatched::new(&problems))
    }

    pub(crate) fn progress(&self) -> Option<&Arc<Progress>> {
        self.0.get().map(|running| &running.progress)
    }

    fn request(&self, command: impl FnOnce(Sender<()>) -> Command, wait: Duration) {
        let Some(running) = self.0.get() else { return };
        let (done, is_done) = mpsc::channel();
        running.send(command(done));
        let _ = is_done.recv_timeout(wait);
    }
}

impl Running {
    fn send(&self, command: Command) {
        // The thread has ended if nobody listens.
        let _ = self.commands.send(command);
        let _ = (&self.bell).write(&[1]);
    }
}

/// Starts the thread, and returns the other end of its bell.
fn spawn(watch: impl FnOnce(UnixStream) -> Watch) -> std::io::Result<UnixStream> {
    let (own, bell) = UnixStream::pair()?;
    own.set_nonblocking(true)?;
    bell.set_nonblocking(true)?;
    let watch = watch(bell);
    start_thread(THREAD, move || watch.run())?;
    Ok(own)
}

fn identity_of(bytes: &[u8]) -> Identity {
    let text = String::from_utf8_lossy(bytes);
    let (pid, host) = text.split_once(' ').unwrap_or_default();
    Identity { host: host.to_owned(), pid: pid.parse().unwrap_or_default() }
}

//! The supervisor of a job: starts the ranks, watches the run's folder, and decides what follows when they end.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ddp::config::{Batch, Config, Determinism};
use ddp::run_folder::Existing;
use ddp::train::claimed_folder::claim_folder;
use ddp::train::stop_signals::{StopSignals, unsaved};
use ddp::{exit_code, host_memory};
use ddp_comm::{CommError, HostPlace, KeptMemory, World};
use ddp_kernels::cuda::{self, Gpu};
use tracing::{debug, error, info, warn};

use crate::decision::{Attempt, Decision, Ended, Reason, backoff_s, decide};
use crate::error::{LaunchError, Result};
use crate::faulty_gpus::FaultyGpus;
use crate::hosts::{self, Agent, Host, n_slots, names};
use crate::job::{Finished, Job, Place, Request, StopRequests};
use crate::messages::{self, Restart};
use crate::processes::Below;
use crate::run_watch::{Newest, RunWatch};
use crate::starter::{JobSpec, LauncherChoice, Machine, Starter};
use crate::training::Training;

/// Longest time between two probes of hosts, in seconds.
const MAX_PROBE_S: u64 = 8;
const POLL: Duration = Duration::from_millis(20);

/// A job to supervise.
#[derive(Debug)]
pub struct JobOptions<'a> {
    /// Number of ranks; `None` for one per slot of the hosts, or per GPU of this host.
    pub n_ranks: Option<usize>,
    /// A file of hosts or a list of them; `None` for this host, or those of the Slurm job.
    pub hosts: Option<&'a str>,
    /// Minimum number of hosts to start with; `None` for all.
    pub min_hosts: Option<usize>,
    /// Time to wait before each start while too few hosts respond, because a host may come back.
    pub host_wait: Duration,
    /// Minimum number of ranks with which the job continues when GPUs of this host are left out; `None` for all.
    pub min_ranks: Option<usize>,
    /// The starter of several ranks.
    pub launcher: LauncherChoice,
    /// Maximum number of restarts.
    pub max_restarts: usize,
    /// A file whose appearance asks the run to stop.
    pub notice_file: Option<&'a Path>,
    /// The training run.
    pub training: Training<'a>,
}

/// Runs a job to its end and returns the exit status of its run.
///
/// # Errors
/// [`LaunchError`] before the ranks start.
pub fn supervise(world: &World, signals: &StopSignals, options: &JobOptions<'_>) -> Result<u8> {
    let failed = |source| LaunchError::Supervision { source };
    let mut requests = StopRequests::listen(signals, options.notice_file).map_err(failed)?;
    Supervisor::prepare(world, options)?.run(&mut requests)
}

/// Refuses to supervise as one of several ranks.
///
/// # Errors
/// [`LaunchError::UnderLauncher`]
pub fn refuse_launcher(world: &World) -> Result<()> {
    world.launcher().map_or(Ok(()), |launcher| Err(LaunchError::UnderLauncher { launcher }))
}

/// A job that is restarted until it is complete or given up.
struct Supervisor<'a> {
    options: &'a JobOptions<'a>,
    watch: RunWatch,
    /// Hosts as named by the user, with their slots; empty if all ranks run on this host, or on those of the Slurm job.
    hosts: Vec<Host>,
    /// Name of this host.
    own_host: String,
    agent: Agent,
    machine: Machine,
    binary: PathBuf,
    /// Number of ranks on all hosts; on this one where each host starts its own.
    n_ranks: usize,
    /// This host, where each host of the job starts its own ranks and whatever started the hosts restarts them.
    place: Option<HostPlace>,
    /// Whether the launcher that was found can't start here, so that this program starts the ranks.
    is_without_launcher: bool,
    /// Batch settings of the run as configured, read before its first restart.
    batches: Option<Batches>,
    /// Memory in which the ranks of this host keep the table that they have read, for the next start.
    kept: Option<KeptMemory>,
    faulty_gpus: FaultyGpus,
    below: Below,
}

impl<'a> Supervisor<'a> {
    fn prepare(world: &World, options: &'a JobOptions<'a>) -> Result<Self> {
        let below = Below::new();
        let agent = Agent::new(|name| std::env::var(name).ok());
        let machine = Machine::new();
        let failed = |source| LaunchError::NotRun { program: "ddp-train".to_owned(), source };
        let binary = std::env::current_exe().map_err(failed)?;
        let own_host = world.hostname().to_owned();
        let mut hosts = options.hosts.map(hosts::read).transpose()?.unwrap_or_default();
        if let Some(min_hosts) = options.min_hosts.filter(|min| *min > hosts.len()) {
            return Err(LaunchError::TooManyMinHosts { min_hosts, n_hosts: hosts.len() });
        }
        let place = match options.hosts {
            None => HostPlace::detect().map_err(|bad| ddp::Error::from(CommError::from(bad)))?,
            Some(_) => None,
        };
        if let (Some(place), false) = (&place, options.training.resumes_named_folder()) {
            return Err(LaunchError::NoSharedFolder { n_hosts: place.n_hosts });
        }
        if options.n_ranks.is_none() {
            for host in hosts.iter_mut().filter(|host| host.slots.is_none()) {
                let n_gpus =
                    if host.is_local(&own_host) { Some(Gpu::count()) } else { agent.n_gpus(host, &binary) };
                host.slots = n_gpus.filter(|n| *n > 0);
            }
        }
        let stated = || HostPlace::stated_ranks().filter(|_| options.hosts.is_none());
        let n_ranks = match options.n_ranks.or_else(stated) {
            Some(n_ranks) => n_ranks,
            None if hosts.is_empty() => ranks_of_this_host(options.training.may_use_gpus, &machine),
            None => {
                let n_ranks = n_slots(&hosts);
                info!("-n auto: {n_ranks} ranks on {}", names(&hosts));
                n_ranks
            }
        };
        if let Some(min_ranks) = options.min_ranks.filter(|min| *min > n_ranks) {
            return Err(LaunchError::TooManyMinRanks { min_ranks, n_ranks });
        }
        if !hosts.is_empty() && n_ranks > n_slots(&hosts) {
            return Err(LaunchError::TooFewSlots { n_ranks, n_slots: n_slots(&hosts) });
        }
        if hosts.iter().all(|host| host.is_local(&own_host)) {
            hosts.clear();
        }
        // Checked before the folder is created, and again before each start.
        if place.is_none() {
            let starter = Starter::find(n_ranks, hosts.is_empty(), options.launcher, &machine)?;
            debug!("{}", starter.reason(options.launcher));
        }
        let mut faulty_gpus = FaultyGpus::default();
        if options.min_ranks.is_some() && hosts.is_empty() && options.training.may_use_gpus {
            // Before one is broken and not listed any more.
            faulty_gpus.n_listed(gpus_of_this_host);
        }
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
        let job_id = place.as_ref().map(|place| place.address.chars().filter(is_plain).take(64).collect());
        let watch = RunWatch::new(&(options.training.open_folder)()?, job_id);
        Ok(Supervisor {
            options,
            watch,
            hosts,
            own_host,
            agent,
            machine,
            binary,
            n_ranks,
            place,
            is_without_launcher: false,
            batches: None,
            // That of a sweep holds the table of all of its runs.
            kept: KeptMemory::from_launcher().map_or_else(|| KeptMemory::create().ok(), |_| None),
            faulty_gpus,
            below,
        })
    }

    /// Starts the job repeatedly until it is complete or given up; returns the exit status.
    fn run(&mut self, requests: &mut StopRequests) -> Result<u8> {
        let mut n_restarts = 0;
        let mut hosts = self.hosts.clone();
        if !hosts.is_empty() {
            hosts = self.wait_for_hosts(self.answering(), "", requests)?;
        }
        loop {
            while requests.poll().is_some() {}
            if let Some(name) = requests.stop() {
                return Ok(self.stopped_between_attempts(name));
            }
            let (
                launcher,
                Finished { ended, was_stopped, has_joined, has_said, held, resident_bytes, kills },
            ) = self.attempt(&hosts, requests)?;
            // The other hosts may see the file of the first one later.
            let is_of_first_host = self.place.as_ref().is_none_or(|place| place.rank == 0);
            let is_done = self.watch.is_done() || (!is_of_first_host && ended == Ended::Code(0));
            let is_over = is_done || was_stopped || ended == Ended::Interrupted;
            let before = hosts.clone();
            if !is_over && !self.hosts.is_empty() {
                hosts = self.answering();
            }
            let newest = self.watch.newest();
            let reported = self.watch.reported();
            let how = messages::ended(launcher, ended, reported);
            // A kernel that does not count such kills leaves the size of the ranks.
            let memory = kills.since().or_else(|| {
                host_memory::limit().filter(|limit| ended.is_kill() && limit.is_near(resident_bytes))
            });
            let may_restart = !is_over
                && reported == Some(exit_code::RESTARTABLE)
                && n_restarts < self.options.max_restarts;
            let attempt = Attempt {
                is_done,
                ended,
                has_joined,
                is_explained: has_said,
                was_killed_for_memory: memory.is_some(),
                reported,
                was_stopped,
                has_lost_hosts: before.iter().any(|host| !hosts.contains(host)),
                // Without a GPU that fails the next attempt is another one.
                has_gained: (may_restart && self.leave_out_faulty_gpu()) || self.watch.has_saved(),
                n_restarts,
                max_restarts: if self.place.is_some() { 0 } else { self.options.max_restarts },
            };
            let decision = decide(&attempt);
            if let (false, false, Some(cause)) = (has_joined, is_over, messages::shortage(&held))
                && self.may_start_itself(&hosts)
            {
                self.is_without_launcher = true;
                warn!("{}", messages::without_launcher(&how, launcher, cause));
                continue;
            }
            if !has_joined && !is_over {
                let message = messages::failed_to_start(&how, launcher, &held);
                if decision == Decision::Restart { warn!("{message}") } else { error!("{message}") }
            }
            if let Decision::End(status, reason) = decision {
                if reason == Reason::Complete && !matches!(ended, Ended::Code(0)) {
                    warn!("{how}, but the run is complete");
                }
                if let (Reason::Stopped, Ended::Signal(_), false, Newest::Step(step)) =
                    (reason, ended, was_stopped, newest)
                {
                    info!("{how}; the ranks saved a checkpoint of step {step} and stopped");
                }
                let resume = self.options.training.resume_words(self.watch.out());
                if let Some(message) = messages::given_up(&how, reason, n_restarts, newest, memory, &resume) {
                    error!("{message}");
                }
                return Ok(status);
            }
            hosts = self.wait_for_hosts(hosts, &format!("{how}; "), requests)?;
            if requests.stop().is_some() {
                continue;
            }
            n_restarts += 1;
            // What has come further may go on at once.
            let wait_s = if attempt.has_gained { 0 } else { backoff_s(n_restarts) };
            let n_ranks = self.n_ranks_on(&hosts);
            let next = Restart {
                number: n_restarts,
                max: self.options.max_restarts,
                newest,
                n_ranks,
                hosts: &hosts,
                wait_s,
            };
            warn!("{}", messages::restart(&how, &next));
            wait(Duration::from_secs(wait_s), requests);
        }
    }

    /// Whether this program may start the ranks in place of a launcher that can't.
    fn may_start_itself(&self, hosts: &[Host]) -> bool {
        let is_here = hosts.is_empty() && self.place.is_none() && !self.machine.is_in_slurm;
        is_here && self.options.launcher == LauncherChoice::Auto && !self.is_without_launcher
    }

    /// Starts the ranks once and waits until they end; returns the launcher's name and how it ended.
    fn attempt(&mut self, hosts: &[Host], requests: &mut StopRequests) -> Result<(&'static str, Finished)> {
        let n_ranks = self.n_ranks_on(hosts);
        let starter = match self.place {
            Some(_) => Starter::Itself,
            None if self.is_without_launcher && n_ranks > 1 => Starter::Itself,
            None => Starter::find(n_ranks, hosts.is_empty(), self.options.launcher, &self.machine)?,
        };
        let is_restart = self.watch.is_claimed();
        if is_restart && self.batches.is_none() {
            self.batches = self.watch.config().map(|config| Batches::of(&config));
        }
        let n_micro = self.batches.and_then(|batches| batches.n_micro(self.n_ranks, n_ranks));
        let (out, id) = (self.watch.out(), self.watch.job_id());
        let args = match (is_restart, self.watch.newest()) {
            (true, Newest::Nothing) => {
                // A run that was killed before its first checkpoint starts over.
                drop(claim_folder(Some(out), "", Existing::Overwrite).map_err(ddp::Error::from)?);
                self.options.training.first(out, id, n_ranks)
            }
            // Where none can be used, --resume auto reports why: they may be repairable.
            (true, _) => self.options.training.resumed(out, id, n_ranks, n_micro),
            (false, _) => {
                let n_hosts = self.place.as_ref().map_or(1, |place| place.n_hosts);
                self.options.training.first(out, id, n_ranks * n_hosts)
            }
        };
        let job = JobSpec { n_ranks, hosts, binary: &self.binary, args: &args };
        let mut line = starter.command_line(&job, &self.machine, &self.agent);
        line.env.extend(self.kept.as_ref().map(KeptMemory::variable));
        let visible = self.faulty_gpus.remaining().map(|(visible, _)| visible);
        self.watch.begin_attempt();
        let program = line.program.to_string_lossy().into_owned();
        let is_local = hosts.is_empty() && !self.machine.is_in_slurm;
        let (of_host, visible) = (self.place.as_ref(), visible.as_deref());
        let place = Place { of_host, is_local, visible, below: &self.below };
        let job = Job::start(&starter, &line, n_ranks, self.watch.job_id(), place);
        let job = job.map_err(|source| LaunchError::NotRun { program, source })?;
        Ok((starter.name(), job.wait(requests, &self.watch)))
    }

    /// Number of ranks of a job on `hosts`: all ranks, limited by the slots of these hosts, and on this host by the GPUs that remain.
    fn n_ranks_on(&self, hosts: &[Host]) -> usize {
        match self.faulty_gpus.remaining() {
            Some((_, n_left)) => self.n_ranks.min(n_left),
            None if hosts.is_empty() => self.n_ranks,
            None => self.n_ranks.min(n_slots(hosts)),
        }
    }

    /// Leaves out the GPU of this host whose fault the run has reported, after the second one: where it is not needed, or as many ranks
    /// remain as the user wants at least. Returns whether it did.
    fn leave_out_faulty_gpu(&mut self) -> bool {
        let is_here = self.hosts.is_empty() && self.place.is_none() && !self.machine.is_in_slurm;
        let chooses = is_here && !self.options.training.names_gpu;
        let Some(uuid) = self.watch.failed_gpu().filter(|_| chooses) else { return false };
        // More ranks than GPUs share them, and none is left out.
        if self.n_ranks > self.faulty_gpus.n_listed(gpus_of_this_host) {
            return false;
        }
        let least = self.options.min_ranks.unwrap_or(self.n_ranks).min(self.n_ranks);
        let is_left_out = self.faulty_gpus.has_failed(&uuid, least);
        if is_left_out {
            warn!("{uuid} has failed twice and is left out; nvidia-smi -q -i {uuid} may show why");
        }
        is_left_out
    }

    fn probe(&self) -> Vec<Host> {
        let answers = self.agent.answering(&self.hosts, &self.own_host);
        let answering = self.hosts.iter().zip(answers).filter(|(_, answers)| *answers);
        answering.map(|(host, _)| host.clone()).collect()
    }

    fn silent(&self, answering: &[Host]) -> Vec<Host> {
        self.hosts.iter().filter(|host| !answering.contains(host)).cloned().collect()
    }

    /// The hosts that respond; the others are named.
    fn answering(&self) -> Vec<Host> {
        let answering = self.probe();
        let silent = self.silent(&answering);
        if !silent.is_empty() {
            warn!("no answer from {}", names(&silent));
        }
        answering
    }

    fn min_hosts(&self) -> usize {
        self.options.min_hosts.unwrap_or(self.hosts.len())
    }

    /// Probes the hosts again, for at most the time of `--host-wait`, while too few of them respond, and reports that after `why`.
    ///
    /// # Errors
    /// [`LaunchError::TooFewHosts`]
    fn wait_for_hosts(
        &self,
        mut answering: Vec<Host>,
        why: &str,
        requests: &mut StopRequests,
    ) -> Result<Vec<Host>> {
        let (n_hosts, min_hosts, limit) = (self.hosts.len(), self.min_hosts(), self.options.host_wait);
        let began = Instant::now();
        let has_too_few = |answering: &[Host]| answering.len() < min_hosts;
        if has_too_few(&answering) {
            let n_answering = answering.len();
            warn!(
                "{why}{n_answering} of {n_hosts} hosts answer, {min_hosts} are needed; waiting up to {limit:?}"
            );
        }
        for number in 1.. {
            let left = limit.saturating_sub(began.elapsed());
            if !has_too_few(&answering) || left.is_zero() || requests.stop().is_some() {
                break;
            }
            wait(Duration::from_secs(backoff_s(number).min(MAX_PROBE_S)).min(left), requests);
            answering = self.probe();
        }
        if has_too_few(&answering) && requests.stop().is_none() {
            return Err(LaunchError::TooFewHosts {
                n_answering: answering.len(),
                n_hosts,
                min_hosts,
                silent: self.silent(&answering).into_iter().map(|host| host.name).collect(),
                agent: self.agent.text().to_owned(),
            });
        }
        Ok(answering)
    }

    /// Reports a stop that was requested while no ranks run; returns the exit status.
    fn stopped_between_attempts(&self, signal: &str) -> u8 {
        match self.watch.newest() {
            Newest::Step(step) if self.watch.is_claimed() => {
                info!("stopped by {signal}; the newest checkpoint is of step {step}");
            }
            _ => info!("{}", unsaved(signal)),
        }
        exit_code::SAVED
    }
}

/// UUIDs of the GPUs of this host that this process sees; none without a driver.
fn gpus_of_this_host() -> Vec<String> {
    cuda::devices().map_or_else(|_| Vec::new(), |gpus| gpus.into_iter().map(|gpu| gpu.uuid).collect())
}

/// The number of ranks for `-n auto` without `--hosts`.
fn ranks_of_this_host(may_use_gpus: bool, machine: &Machine) -> usize {
    let tasks = std::env::var("SLURM_NTASKS").ok().and_then(|tasks| tasks.parse().ok());
    let tasks = tasks.filter(|_| machine.is_in_slurm);
    let n_gpus = if may_use_gpus { Gpu::count() } else { 0 };
    let (n_ranks, why) = match (tasks, n_gpus) {
        (Some(tasks), _) => (tasks, "the tasks of the Slurm job".to_owned()),
        (None, 0) => (1, "no GPU is used on this host".to_owned()),
        (None, n_gpus) => (n_gpus, "one for each GPU of this host".to_owned()),
    };
    info!("-n auto: {n_ranks} {}, {why}", if n_ranks == 1 { "rank" } else { "ranks" });
    n_ranks
}

/// Waits for this time, or until a signal requests to stop.
fn wait(time: Duration, requests: &mut StopRequests) {
    let started = Instant::now();
    while started.elapsed() < time {
        match requests.poll() {
            Some(Request::Stop(_) | Request::EndNow(_)) => return,
            None => std::thread::sleep(POLL),
        }
    }
}

// Keeps the size of micro-batches if fewer ranks remain: each rank then processes more rows of the global batch, but has memory
// for only as many rows at a time as before.

/// Batch settings of a run as it was configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Batches {
    /// Rows of a global batch if the config sets them; otherwise a rank's micro-batch has a fixed size anyway.
    global_rows: Option<usize>,
    n_micro: usize,
}

impl Batches {
    pub(crate) fn of(config: &Config) -> Self {
        let train = &config.train;
        // Micro-shards divide the batch in the same way for any number of ranks. Layers that mix rows do so within each micro-batch,
        // which all ranks share: another number of them is another run.
        let global_rows = match (train.batch, train.deterministic) {
            (Batch::Global(rows), Determinism::Off | Determinism::On) if !config.model.mixes_rows() => {
                Some(rows)
            }
            _ => None,
        };
        Batches { global_rows, n_micro: train.grad_accum_steps }
    }

    /// Micro-batches per rank on `n_ranks` of `n_before` ranks, if the number differs from the configured one.
    pub(crate) fn n_micro(&self, n_before: usize, n_ranks: usize) -> Option<usize> {
        let rows = self.global_rows.filter(|_| n_ranks < n_before)?;
        Some((self.n_micro * n_before).div_ceil(n_ranks).min(rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_ranks_take_more_micro_batches() {
        let global = Batches { global_rows: Some(64), n_micro: 2 };
        assert_eq!([4, 3, 2, 1].map(|n_ranks| global.n_micro(4, n_ranks)), [None, Some(3), Some(4), Some(8)]);
        assert_eq!(Batches { global_rows: Some(5), ..global }.n_micro(4, 1), Some(5), "a row is the least");
        assert_eq!(Batches { global_rows: None, ..global }.n_micro(4, 1), None);
    }

    /// Batch norm over other micro-batches would not resume.
    #[test]
    fn shared_micro_batches_stay() {
        let n_micro = |more: &[&str]| {
            let set = ["train.global_batch_size=64", "train.grad_accum_steps=2"];
            let set: Vec<_> = set.iter().chain(more).map(|&set| set.to_owned()).collect();
            Batches::of(&Config::load(None, &set).unwrap()).n_micro(4, 2)
        };
        assert_eq!(n_micro(&[]), Some(4));
        let layers = "model.layers=[{kind = \"linear\", out_features = 8}, {kind = \"batch_norm\"}]";
        assert_eq!(n_micro(&[layers]), None);
    }
}

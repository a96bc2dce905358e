//! `ddp-train launch`: starts the ranks of a training run, and starts them again when a rank or a host is lost.
//!
//! hosts that answer -> number of ranks -> launcher's command line -> its process group -> how it ended -> decision: the end, or
//! the same again from the newest valid checkpoint. Whether the run is complete is read from its folder
//! ([`done.json`](ddp::run_folder::done)), not from the launcher's status. The supervisor is outside the job: it starts mpirun
//! and this program again.

mod batches;
mod decision;
mod hosts;
mod messages;
mod probe;
mod processes;
mod run_watch;
mod starter;
mod stop_requests;
mod job;
mod train_command;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ddp::exit_code;
use ddp::run_folder::Existing;
use ddp::train::stop_signals::{StopSignals, unsaved};
use ddp_comm::World;
use ddp_kernels::cuda::Gpu;
use tracing::{error, info, warn};

use self::batches::Batches;
use self::decision::{Attempt, Decision, Ended, Reason, backoff_s, decide};
use self::hosts::{Host, n_slots, names};
use self::job::Job;
use self::messages::Restart;
use self::probe::Agent;
use self::run_watch::RunWatch;
use self::starter::{JobSpec, Machine, Starter};
use self::stop_requests::{Request, StopRequests};
use self::train_command::TrainCommand;
use crate::cli::{LaunchArgs, RankCount};
use crate::commands::train::claim_folder;
use crate::error::Result;
use crate::error::launch::LaunchError;
use crate::exit::Stop;

/// Number of times that hosts are probed before a restart, if too few answer: a host may come back.
const N_PROBES: usize = 5;
const POLL: Duration = Duration::from_millis(20);

/// Runs a job to its end.
///
/// # Errors
/// [`Stop::Reported`] with the status of the run; errors before the ranks start.
pub fn launch(world: &World, signals: &StopSignals, args: &LaunchArgs) -> Result<(), Stop> {
    if let Some(launcher) = world.launcher() {
        return Err(LaunchError::UnderLauncher { launcher }.into());
    }
    let failed = |source| LaunchError::Supervision { source };
    let mut requests = StopRequests::listen(signals).map_err(failed)?;
    let train = TrainCommand::parse(&args.train)?;
    let mut supervisor = Supervisor::prepare(world, args, train)?;
    match supervisor.run(&mut requests)? {
        exit_code::DONE => Ok(()),
        status => Err(Stop::Reported(status)),
    }
}

/// A job that is started until it is complete or given up.
struct Supervisor<'a> {
    args: &'a LaunchArgs,
    train: TrainCommand,
    watch: RunWatch,
    /// Hosts as named, with slots for each; empty if all ranks run on this host, or on those of the Slurm job.
    hosts: Vec<Host>,
    /// Name of this host.
    own_host: String,
    agent: Agent,
    machine: Machine,
    binary: PathBuf,
    /// Ranks on all hosts.
    n_ranks: usize,
    /// Batches of the run as it was configured, read before its first restart.
    batches: Option<Batches>,
}

impl<'a> Supervisor<'a> {
    fn prepare(world: &World, args: &'a LaunchArgs, train: TrainCommand) -> Result<Self> {
        let agent = Agent::new(|name| std::env::var(name).ok());
        let machine = Machine::new();
        let failed = |source| LaunchError::NotRun { program: "ddp-train".to_owned(), source };
        let binary = std::env::current_exe().map_err(failed)?;
        let own_host = world.hostname().to_owned();
        let mut hosts = args.hosts.as_deref().map(hosts::read).transpose()?.unwrap_or_default();
        if let Some(min_hosts) = args.min_hosts.filter(|min| *min > hosts.len()) {
            return Err(LaunchError::TooManyMinHosts { min_hosts, n_hosts: hosts.len() }.into());
        }
        if args.ranks == RankCount::Auto {
            for host in hosts.iter_mut().filter(|host| host.slots.is_none()) {
                let n_gpus =
                    if host.is_local(&own_host) { Some(Gpu::count()) } else { agent.n_gpus(host, &binary) };
                host.slots = n_gpus.filter(|n| *n > 0);
            }
        }
        let n_ranks = match args.ranks {
            RankCount::Exactly(n_ranks) => n_ranks,
            RankCount::Auto if hosts.is_empty() => ranks_of_this_host(&train, &machine),
            RankCount::Auto => {
                let n_ranks = n_slots(&hosts);
                info!("-n auto: {n_ranks} ranks on {}", names(&hosts));
                n_ranks
            }
        };
        if !hosts.is_empty() && n_ranks > n_slots(&hosts) {
            return Err(LaunchError::TooFewSlots { n_ranks, n_slots: n_slots(&hosts) }.into());
        }
        if hosts.iter().all(|host| host.is_local(&own_host)) {
            hosts.clear();
        }
        // Before the folder is created, and again before each start.
        Starter::find(n_ranks, hosts.is_empty(), &machine)?;
        let watch = RunWatch::new(&train.run_folder()?);
        Ok(Supervisor { args, train, watch, hosts, own_host, agent, machine, binary, n_ranks, batches: None })
    }

    /// Starts the job until it is complete or given up; returns the exit status.
    fn run(&mut self, requests: &mut StopRequests) -> Result<u8> {
        let mut n_restarts = 0;
        let mut hosts = self.hosts.clone();
        if !hosts.is_empty() {
            hosts = self.answering();
            self.check_answering(&hosts)?;
        }
        loop {
            while requests.poll().is_some() {}
            if let Some(name) = requests.stop() {
                return Ok(self.stopped_between_attempts(name));
            }
            let step_before = self.watch.newest_step();
            let (launcher, ended, was_stopped) = self.attempt(&hosts, requests)?;
            let is_done = self.watch.is_done();
            let is_over = is_done || was_stopped || ended == Ended::Interrupted;
            if !is_over && !self.hosts.is_empty() {
                hosts = self.answering();
            }
            let step = self.watch.newest_step();
            let reported = self.watch.reported();
            let how = messages::ended(launcher, ended, reported);
            let attempt = Attempt {
                is_done,
                ended,
                reported,
                was_stopped,
                has_lost_hosts: hosts.len() < self.hosts.len(),
                has_gained: step > step_before,
                n_restarts,
                max_restarts: self.args.max_restarts,
            };
            if let Decision::End(status, reason) = decide(&attempt) {
                if reason == Reason::Complete && !matches!(ended, Ended::Code(0)) {
                    warn!("{how}, but the run is complete");
                }
                if let Some(message) = messages::given_up(&how, reason, n_restarts, step) {
                    error!("{message}");
                }
                return Ok(status);
            }
            n_restarts += 1;
            let wait_s = backoff_s(n_restarts);
            let n_ranks = self.n_ranks_on(&hosts);
            let next = Restart {
                number: n_restarts,
                max: self.args.max_restarts,
                step,
                n_ranks,
                hosts: &hosts,
                wait_s,
            };
            warn!("{}", messages::restart(&how, &next));
            wait(Duration::from_secs(wait_s), requests);
            hosts = self.wait_for_hosts(hosts, requests)?;
        }
    }

    /// Starts the ranks once and waits for their end; returns the launcher's name, how it ended, and whether a signal stopped it.
    fn attempt(
        &mut self,
        hosts: &[Host],
        requests: &mut StopRequests,
    ) -> Result<(&'static str, Ended, bool)> {
        let n_ranks = self.n_ranks_on(hosts);
        let starter = Starter::find(n_ranks, hosts.is_empty(), &self.machine)?;
        let is_restart = self.watch.is_claimed();
        if is_restart && self.batches.is_none() {
            self.batches = self.watch.config().map(|config| Batches::of(&config));
        }
        let n_micro = self.batches.and_then(|batches| batches.n_micro(self.n_ranks, n_ranks));
        let (out, id) = (self.watch.out(), self.watch.job_id());
        let args = match (is_restart, self.watch.newest_step()) {
            (true, Some(_)) => self.train.resumed(out, id, n_ranks, n_micro),
            (true, None) => {
                // Killed before its first checkpoint, it starts over.
                drop(claim_folder(Some(out), "", Existing::Overwrite)?);
                self.train.first(out, id, n_ranks)
            }
            (false, _) => self.train.first(out, id, n_ranks),
        };
        let job = JobSpec { n_ranks, hosts, binary: &self.binary, args: &args };
        let line = starter.command_line(&job, &self.machine, &self.agent);
        self.watch.begin_attempt();
        let program = line.program.to_string_lossy().into_owned();
        let job = Job::start(&line).map_err(|source| LaunchError::NotRun { program, source })?;
        let (ended, was_stopped) = job.wait(requests, &self.watch);
        Ok((starter.name(), ended, was_stopped))
    }

    /// Ranks of a job on `hosts`: all of them, as far as the slots of these hosts go.
    fn n_ranks_on(&self, hosts: &[Host]) -> usize {
        if hosts.is_empty() { self.n_ranks } else { self.n_ranks.min(n_slots(hosts)) }
    }

    /// The hosts that answer.
    fn answering(&self) -> Vec<Host> {
        let answers = self.agent.answering(&self.hosts, &self.own_host);
        let (answering, silent): (Vec<_>, Vec<_>) =
            self.hosts.iter().cloned().zip(answers).partition(|(_, answers)| *answers);
        let hosts = |of: Vec<(Host, bool)>| of.into_iter().map(|(host, _)| host).collect::<Vec<_>>();
        let (answering, silent) = (hosts(answering), hosts(silent));
        if !silent.is_empty() {
            warn!("no answer from {}", names(&silent));
        }
        answering
    }

    fn min_hosts(&self) -> usize {
        self.args.min_hosts.unwrap_or(self.hosts.len())
    }

    fn check_answering(&self, answering: &[Host]) -> Result<()> {
        if answering.len() >= self.min_hosts() {
            return Ok(());
        }
        let is_silent = |host: &&Host| !answering.contains(host);
        Err(LaunchError::TooFewHosts {
            n_answering: answering.len(),
            n_hosts: self.hosts.len(),
            min_hosts: self.min_hosts(),
            silent: self.hosts.iter().filter(is_silent).map(|host| host.name.clone()).collect(),
            agent: self.agent.text().to_owned(),
        }
        .into())
    }

    /// Probes the hosts again while too few of them answer.
    fn wait_for_hosts(&self, mut answering: Vec<Host>, requests: &mut StopRequests) -> Result<Vec<Host>> {
        for number in 1..N_PROBES {
            if answering.len() >= self.min_hosts() || requests.stop().is_some() {
                return Ok(answering);
            }
            wait(Duration::from_secs(backoff_s(number)), requests);
            answering = self.answering();
        }
        self.check_answering(&answering)?;
        Ok(answering)
    }

    /// Reports a stop while no ranks run; returns the exit status.
    fn stopped_between_attempts(&self, signal: &str) -> u8 {
        match self.watch.newest_step() {
            Some(step) if self.watch.is_claimed() => {
                info!("stopped by {signal}; the newest checkpoint is of step {step}");
            }
            _ => info!("{}", unsaved(signal)),
        }
        exit_code::SAVED
    }
}

/// The number of ranks for `-n auto` without `--hosts`.
fn ranks_of_this_host(train: &TrainCommand, machine: &Machine) -> usize {
    let tasks = std::env::var("SLURM_NTASKS").ok().and_then(|tasks| tasks.parse().ok());
    let tasks = tasks.filter(|_| machine.is_in_slurm);
    let n_gpus = if train.args().device == "cpu" { 0 } else { Gpu::count() };
    let (n_ranks, why) = match (tasks, n_gpus) {
        (Some(tasks), _) => (tasks, "the tasks of the Slurm job".to_owned()),
        (None, 0) => (1, "no GPU is used on this host".to_owned()),
        (None, n_gpus) => (n_gpus, "one for each GPU of this host".to_owned()),
    };
    info!("-n auto: {n_ranks} {}, {why}", if n_ranks == 1 { "rank" } else { "ranks" });
    n_ranks
}

/// Waits, or until a signal asks to stop.
fn wait(time: Duration, requests: &mut StopRequests) {
    let started = Instant::now();
    while started.elapsed() < time {
        match requests.poll() {
            Some(Request::Stop(_) | Request::EndNow) => return,
            None => std::thread::sleep(POLL),
        }
    }
}

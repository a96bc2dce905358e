//! Errors of `ddp-train launch`, before the ranks run.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ddp::exit_code;

/// Result of this crate's functions.
pub(crate) type Result<T, E = LaunchError> = std::result::Result<T, E>;

/// The reason why the ranks of a job can't be started.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum LaunchError {
    /// The supervisor itself was started as one of several ranks.
    #[error("`ddp-train launch` starts the ranks itself, but {launcher} has started it")]
    #[diagnostic(help(
        "run `ddp-train launch -n N -- ...` without mpirun and srun, or `mpirun -n N ddp-train train ...`"
    ))]
    UnderLauncher { launcher: ddp_comm::Launcher },
    /// The arguments after `--` name another command, or only check a run instead of training it.
    #[error("`ddp-train launch` starts training runs, got `{got}` after --")]
    #[diagnostic(help("{hint}"))]
    NoRun { got: String, hint: String },
    /// Several ranks are requested, but no program can start them.
    #[error("{n_ranks} ranks need mpirun or mpiexec, and neither is on the PATH")]
    #[diagnostic(help(
        "install Open MPI (Debian and Ubuntu: apt-get install openmpi-bin openssh-client); ranks of this host alone need none: \
         --launcher env without --hosts"
    ))]
    NoLauncher { n_ranks: usize },
    /// A program with the launcher's name is neither Open MPI's nor MPICH's.
    #[error("`{program} --version` names neither Open MPI nor MPICH: {version}")]
    #[diagnostic(help("put the bin folder of Open MPI 4 or 5, MPICH or Intel MPI first on the PATH"))]
    UnknownLauncher {
        program: String,
        /// The first line of its output, or that there is none.
        version: String,
    },
    /// A program that was asked for its version did not end.
    #[error("`{program}` did not end within {limit:?} and was killed")]
    #[diagnostic(help(
        "run it by hand to see where it hangs; `type -a mpirun` lists the programs of that name: put the right one first on the PATH"
    ))]
    NoVersion {
        /// The program and its argument.
        program: String,
        limit: Duration,
    },
    /// Other hosts are named, but this program starts ranks on this host only.
    #[error("--launcher env starts ranks on this host only, and --hosts names others")]
    #[diagnostic(help("leave out --launcher: mpirun starts ranks on other hosts"))]
    OtherHosts,
    /// Each host of a job starts its own ranks, but their folder is not one that they share and resume.
    #[error(
        "PET_NNODES={n_hosts}: {n_hosts} hosts train one run, and the arguments after -- lack --out DIR or --resume auto"
    )]
    #[diagnostic(help(
        "add both, with a folder that all hosts see: whatever starts the hosts again then continues the run"
    ))]
    NoSharedFolder { n_hosts: usize },
    /// A program could not be run.
    #[error("can't run `{program}`: {source}")]
    #[diagnostic(help("check that it is installed and may be run"))]
    NotRun { program: String, source: io::Error },
    /// Signals ended a program that was asked for its version.
    #[error("`{program}` was started {n_tries} times and always ended by {signal}")]
    #[diagnostic(help(
        "something on this host ends processes, such as a limit of memory; the same command may work later"
    ))]
    Killed {
        /// The program and its argument.
        program: String,
        n_tries: usize,
        /// The last signal.
        signal: String,
    },
    /// The host file can't be read.
    #[error("host file `{}`: {source}", path.display())]
    #[diagnostic(help("one host per line, such as `node1 slots=8`"))]
    HostFile { path: PathBuf, source: io::Error },
    /// A host is not in the expected form.
    #[error("--hosts: {place}: got `{got}`, expected a host with its slots")]
    #[diagnostic(help("node1:8,node2:8, or lines such as `node1 slots=8`"))]
    BadHost {
        /// The list, or the file and line.
        place: String,
        got: String,
    },
    /// There are more ranks than slots.
    #[error("-n {n_ranks}: the hosts have {n_slots} slot{}", if *n_slots == 1 { "" } else { "s" })]
    #[diagnostic(help("raise the slots of hosts, add hosts, or use -n {n_slots}"))]
    TooFewSlots {
        n_ranks: usize,
        /// Number of slots of all hosts.
        n_slots: usize,
    },
    /// More hosts are required than named.
    #[error("--min-hosts {min_hosts}: --hosts names only {n_hosts}")]
    #[diagnostic(help("use --min-hosts {n_hosts} or less"))]
    TooManyMinHosts {
        /// The flag's value.
        min_hosts: usize,
        n_hosts: usize,
    },
    /// More ranks are required than the job has.
    #[error("--min-ranks {min_ranks}: the job has {n_ranks} {}", if *n_ranks == 1 { "rank" } else { "ranks" })]
    #[diagnostic(help("use --min-ranks {n_ranks} or less"))]
    TooManyMinRanks {
        /// The flag's value.
        min_ranks: usize,
        n_ranks: usize,
    },
    /// Too few hosts respond.
    #[error(
        "{n_answering} of {n_hosts} hosts answer, and {min_hosts} are needed; no answer from {}", silent.join(", ")
    )]
    #[diagnostic(help(
        "try `{agent} {} true`; start on fewer hosts with --min-hosts, or wait longer with --host-wait",
        silent.first().map_or("HOST", String::as_str)
    ))]
    TooFewHosts {
        n_answering: usize,
        /// Number of hosts that are named.
        n_hosts: usize,
        /// Number of hosts that are required.
        min_hosts: usize,
        /// Hosts that do not respond.
        silent: Vec<String>,
        /// The remote shell.
        agent: String,
    },
    /// The run's folder or config cannot be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Run(Box<ddp::Error>),
    /// The process can't supervise others.
    #[error("can't supervise processes: {source}")]
    #[diagnostic(help("start the ranks with mpirun instead"))]
    Supervision { source: io::Error },
}

impl LaunchError {
    /// Exit status of a process that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            LaunchError::Run(error) => error.exit_code(),
            LaunchError::NoRun { .. }
            | LaunchError::HostFile { .. }
            | LaunchError::BadHost { .. }
            | LaunchError::TooFewSlots { .. }
            | LaunchError::OtherHosts
            | LaunchError::NoSharedFolder { .. }
            | LaunchError::TooManyMinHosts { .. }
            | LaunchError::TooManyMinRanks { .. } => exit_code::USAGE,
            LaunchError::TooFewHosts { .. } | LaunchError::Killed { .. } => exit_code::RESTARTABLE,
            LaunchError::UnderLauncher { .. }
            | LaunchError::NoLauncher { .. }
            | LaunchError::UnknownLauncher { .. }
            | LaunchError::NoVersion { .. }
            | LaunchError::NotRun { .. }
            | LaunchError::Supervision { .. } => exit_code::ENVIRONMENT,
        }
    }
}

impl From<ddp::Error> for LaunchError {
    fn from(error: ddp::Error) -> Self {
        LaunchError::Run(Box::new(error))
    }
}

//! The program that starts the ranks, and its command line.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::LaunchError;
use crate::hosts;
use crate::hosts::{Agent, Host};
use crate::messages::{ITSELF, signal_name};
use crate::output::JOINED;

/// Number of attempts to get a program's version if a signal ends it.
const N_TRIES: usize = 3;
/// Time limit for a program to name its version.
const VERSION_LIMIT: Duration = Duration::from_secs(10);

/// A program that starts ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Starter {
    /// No launcher: a single rank on this host is a process of this program.
    Alone,
    /// No launcher: the ranks on this host are processes of this program, which join by their environment.
    Itself,
    /// Open MPI's mpirun, or PRRTE's prterun.
    OpenMpi {
        /// Name of the program.
        program: &'static str,
        /// Major version: since version 5 PRRTE starts the ranks, and it has its own settings.
        major: u32,
        /// Installation prefix, if other hosts would not find it by themselves.
        prefix: Option<PathBuf>,
    },
    /// MPICH's or Intel MPI's mpiexec (Hydra).
    Mpich {
        /// Name of the program.
        program: &'static str,
    },
    /// Slurm's srun.
    Srun,
}

/// The user's choice of what starts several ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LauncherChoice {
    /// MPI's launcher where there is one, else this program for ranks of this host.
    #[default]
    Auto,
    /// MPI's launcher.
    Mpi,
    /// This program, for ranks of this host, which join by their environment and need no MPI.
    Environment,
}

/// The job to start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JobSpec<'a> {
    pub(crate) n_ranks: usize,
    /// Other hosts; empty if all ranks run on this one, or on those of the Slurm job.
    pub(crate) hosts: &'a [Host],
    /// Path of this program.
    pub(crate) binary: &'a Path,
    /// Arguments of this program.
    pub(crate) args: &'a [OsString],
}

/// Properties of this host that determine the launcher's arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) is_root: bool,
    pub(crate) has_remote_shell: bool,
    /// Whether a seccomp filter keeps ranks from reading each other's memory, as in most containers.
    pub(crate) has_seccomp: bool,
    pub(crate) is_in_slurm: bool,
    /// Cores of each task of the Slurm job, unless srun is told by a variable of its own.
    pub(crate) cpus_per_task: Option<String>,
    /// Tasks of the Slurm job.
    pub(crate) n_tasks: Option<usize>,
    /// Names of environment variables that ranks on other hosts need.
    pub(crate) forwarded: Vec<String>,
}

/// A program with its arguments and additional environment variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandLine {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    /// Variables to set unless the user has set them.
    pub(crate) env: Vec<(&'static str, String)>,
}

impl Starter {
    /// Finds the program that can start `n_ranks` ranks.
    ///
    /// # Errors
    /// [`LaunchError::NoLauncher`], [`LaunchError::UnknownLauncher`], [`LaunchError::OtherHosts`];
    /// [`LaunchError::NoVersion`] if the program does not end, [`LaunchError::Killed`] if signals end it in each attempt.
    pub(crate) fn find(
        n_ranks: usize,
        is_local: bool,
        choice: LauncherChoice,
        machine: &Machine,
    ) -> Result<Self, LaunchError> {
        if choice == LauncherChoice::Environment && !is_local {
            return Err(LaunchError::OtherHosts);
        }
        if n_ranks == 1 && is_local {
            return Ok(Starter::Alone);
        }
        // In a Slurm job the ranks may belong on several hosts.
        let may_start_itself = choice == LauncherChoice::Auto && is_local && !machine.is_in_slurm;
        match choice {
            LauncherChoice::Environment => return Ok(Starter::Itself),
            // Its MPI may be one that cannot be opened.
            _ if may_start_itself && cfg!(not(feature = "mpi")) => return Ok(Starter::Itself),
            _ => {}
        }
        // Without the plugin every task would start its own world.
        if machine.is_in_slurm && output("srun", "--mpi=list")?.is_some_and(|list| list.contains("pmix")) {
            return Ok(Starter::Srun);
        }
        for program in ["mpirun", "mpiexec"] {
            if let Some(version) = output(program, "--version")? {
                return Self::for_version(program, &version, prefix(program));
            }
        }
        if may_start_itself { Ok(Starter::Itself) } else { Err(LaunchError::NoLauncher { n_ranks }) }
    }

    /// Identifies the program by its version output.
    fn for_version(
        program: &'static str,
        version: &str,
        prefix: Option<PathBuf>,
    ) -> Result<Self, LaunchError> {
        let is_named = |names: &[&str]| names.iter().any(|name| version.contains(name));
        if is_named(&["Open MPI", "OpenRTE", "PRRTE", "OpenPMIx"]) {
            let number = version.split_once(") ").map_or("", |(_, rest)| rest);
            let major = number.split('.').next().and_then(|major| major.trim().parse().ok());
            // The versions of prterun start from 1.
            let is_prrte = is_named(&["PRRTE", "OpenPMIx"]) && !is_named(&["Open MPI"]);
            let major = if is_prrte { 5 } else { major.unwrap_or(4) };
            return Ok(Starter::OpenMpi { program, major, prefix });
        }
        if is_named(&["HYDRA", "MPICH", "Intel(R) MPI"]) {
            return Ok(Starter::Mpich { program });
        }
        let version = match version.lines().map(str::trim).find(|line| !line.is_empty()) {
            Some(line) => format!("`{line}`"),
            None => "it printed nothing".to_owned(),
        };
        Err(LaunchError::UnknownLauncher { program: program.to_owned(), version })
    }

    /// Whether the output is copied, and not that of this process: there are several ranks, or a launcher with output of its own.
    pub(crate) fn is_copied(&self) -> bool {
        *self != Starter::Alone
    }

    /// Whether the processes that it starts are the ranks.
    pub(crate) fn starts_ranks(&self) -> bool {
        matches!(self, Starter::Alone | Starter::Itself)
    }

    /// Whether its own lines are blocks between rows of dashes.
    pub(crate) fn has_blocks(&self) -> bool {
        matches!(self, Starter::OpenMpi { .. })
    }

    /// Name of the program, for messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Starter::Alone => "the rank",
            Starter::Itself => ITSELF,
            Starter::OpenMpi { program, .. } | Starter::Mpich { program } => program,
            Starter::Srun => "srun",
        }
    }

    /// Names the starter of the ranks, and why it is the one.
    pub(crate) fn reason(&self, choice: LauncherChoice) -> String {
        let name = if self.starts_ranks() { "this program" } else { self.name() };
        let why = match (choice, self) {
            (_, Starter::Alone) => "there is one, on this host",
            (LauncherChoice::Auto, Starter::Itself) if cfg!(not(feature = "mpi")) => "they need no MPI",
            (LauncherChoice::Auto, Starter::Itself) => "--launcher auto found no mpirun",
            (LauncherChoice::Auto, _) => "--launcher auto found it",
            (LauncherChoice::Mpi, _) => "--launcher mpi",
            (LauncherChoice::Environment, _) => "--launcher env",
        };
        format!("the ranks are started by {name}: {why}")
    }

    /// The command line that starts `job`: a launcher, or each of the ranks.
    pub(crate) fn command_line(&self, job: &JobSpec<'_>, machine: &Machine, agent: &Agent) -> CommandLine {
        let n_ranks = job.n_ranks.to_string();
        let list = |separator: &str| {
            let words = job.hosts.iter().map(|host| match host.slots {
                _ if separator.is_empty() => host.name.clone(),
                slots => format!("{}{separator}{}", host.name, slots.unwrap_or(1)),
            });
            words.collect::<Vec<_>>().join(",")
        };
        let mut args: Vec<String> = Vec::new();
        let mut env = Vec::new();
        match self {
            Starter::Alone | Starter::Itself => {
                let (program, args) = (job.binary.into(), job.args.to_vec());
                return CommandLine { program, args, env };
            }
            Starter::OpenMpi { major, prefix, .. } => {
                // Not --quiet, which also silences why a job does not start.
                // This program counts the host's cores itself when it divides them among the ranks' threads.
                args.extend(["-n", &n_ranks, "--bind-to", "none"].map(str::to_owned));
                if job.hosts.is_empty() {
                    // Allow two ranks on one core.
                    args.push("--oversubscribe".to_owned());
                } else {
                    args.extend(["--host", &list(":"), "--map-by", "slot"].map(str::to_owned));
                    let prefix = prefix.as_ref().map(|prefix| prefix.display().to_string());
                    args.extend(prefix.into_iter().flat_map(|prefix| ["--prefix".to_owned(), prefix]));
                    args.extend(machine.forwarded.iter().flat_map(|name| ["-x".to_owned(), name.clone()]));
                }
                env = open_mpi_env(*major, job, machine, agent);
            }
            Starter::Mpich { .. } => {
                args.extend(["-n".to_owned(), n_ranks]);
                if !job.hosts.is_empty() {
                    // Intel MPI takes `a:8` for a name where it is the only host.
                    args.extend(["-hosts".to_owned(), list(if job.hosts.len() > 1 { ":" } else { "" })]);
                }
            }
            Starter::Srun => {
                args.extend(["--mpi=pmix", "--kill-on-bad-exit=1"].map(str::to_owned));
                args.push(format!("--ntasks={n_ranks}"));
                // Since Slurm 22.05 srun does not take the job's own number, which is for the tasks of the job and for no more of them.
                let cpus =
                    machine.cpus_per_task.iter().filter(|_| machine.n_tasks.is_none_or(|n| job.n_ranks <= n));
                args.extend(cpus.map(|n| format!("--cpus-per-task={n}")));
                if !job.hosts.is_empty() {
                    args.push(format!("--nodes={}", job.hosts.len()));
                    args.push(format!("--nodelist={}", list("")));
                }
            }
        }
        let mut args: Vec<OsString> = args.into_iter().map(OsString::from).collect();
        args.push(job.binary.into());
        args.extend(job.args.iter().cloned());
        CommandLine { program: self.name().into(), args, env }
    }
}

/// Settings of Open MPI, the same as in `launch/mpi-env`; without network transports if all ranks are on this host.
fn open_mpi_env(
    major: u32,
    job: &JobSpec<'_>,
    machine: &Machine,
    agent: &Agent,
) -> Vec<(&'static str, String)> {
    let mut env = Vec::new();
    let mut set = |name, value: &str| env.push((name, value.to_owned()));
    if machine.is_root {
        // Open MPI refuses to run as root unless allowed by two variables; a container often has no other user.
        set("OMPI_ALLOW_RUN_AS_ROOT", "1");
        set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    }
    if machine.has_seccomp {
        set("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
    }
    if !job.hosts.is_empty() {
        set(if major < 5 { "OMPI_MCA_plm_rsh_agent" } else { "PRTE_MCA_plm_ssh_agent" }, agent.text());
    } else if !machine.is_in_slurm {
        // Shared memory only: with its TCP and libfabric transports, each rank listens on all interfaces. (`if_include = lo`
        // changes which addresses are announced, not those that are listened on, and Open MPI 5 does not start with it.)
        set("OMPI_MCA_btl", if major < 5 { "self,vader" } else { "self,sm" });
        set("OMPI_MCA_pml", "ob1");
        // Even on a single host, Open MPI 4 fails if it finds no remote shell.
        if major < 5 && !machine.has_remote_shell {
            set("OMPI_MCA_plm", "isolated");
        }
    }
    env
}

/// Output of `program` with `flag`; `None` if it is not installed. Output is ignored if a signal ended the program, or if it did not
/// end in time.
fn output(program: &str, flag: &str) -> Result<Option<String>, LaunchError> {
    let mut last = 0;
    for _ in 0..N_TRIES {
        let mut command = Command::new(program);
        command.arg(flag);
        let Ok(answer) = hosts::run_bounded(command, true, VERSION_LIMIT) else { return Ok(None) };
        let Some(status) = answer.status else {
            let program = format!("{program} {flag}");
            return Err(LaunchError::NoVersion { program, limit: VERSION_LIMIT });
        };
        last = match status.signal() {
            Some(signal) => signal,
            None => return Ok(Some(answer.text)),
        };
    }
    let program = format!("{program} {flag}");
    Err(LaunchError::Killed { program, n_tries: N_TRIES, signal: signal_name(last) })
}

/// Path of the first program with one of these names on the PATH, if any.
pub(crate) fn on_path(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders
        .iter()
        .flat_map(|folder| names.iter().map(move |name| folder.join(name)))
        .find(|path| path.is_file())
}

/// Installation prefix of `program`, unless it is a system directory.
fn prefix(program: &str) -> Option<PathBuf> {
    let folder = on_path(&[program])?.parent()?.to_owned();
    let is_system = [Path::new("/usr/bin"), Path::new("/bin")].contains(&folder.as_path());
    folder.parent().filter(|_| !is_system).map(Path::to_owned)
}

/// Whether ranks on other hosts need the variable `name`, which may be among the `own` names of the user.
fn is_forwarded(name: &str, own: &str) -> bool {
    const NAMES: [&str; 4] = ["LD_LIBRARY_PATH", "RUST_BACKTRACE", "RUST_LOG", "NO_COLOR"];
    // Also of EFA's transport, of stores and of proxies.
    const STARTS: [&str; 9] = ["DDP_", "NCCL_", "CUDA_", "UCX_", "FI_", "AWS_", "GOOGLE_", "AZURE_", "HF_"];
    const ENDS: [&str; 2] = ["_proxy", "_PROXY"];
    NAMES.contains(&name)
        || STARTS.iter().any(|start| name.starts_with(start))
        || ENDS.iter().any(|end| name.ends_with(end))
        || own.split_whitespace().any(|own| own == name)
}

impl Machine {
    /// Detects the properties of this host.
    pub(crate) fn new() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let seccomp = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
        let own = std::env::var("DDP_FORWARD").unwrap_or_default();
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let mut forwarded: Vec<String> =
            names.filter(|name| is_forwarded(name, &own)).chain([JOINED.to_owned()]).collect();
        forwarded.sort();
        Machine {
            is_root: rustix::process::geteuid().is_root(),
            has_remote_shell: on_path(&["ssh", "rsh"]).is_some(),
            has_seccomp: seccomp.is_some_and(|mode| mode.trim() == "2"),
            is_in_slurm: std::env::var_os("SLURM_JOB_ID").is_some(),
            cpus_per_task: std::env::var("SLURM_CPUS_PER_TASK")
                .ok()
                .filter(|_| std::env::var_os("SRUN_CPUS_PER_TASK").is_none()),
            n_tasks: std::env::var("SLURM_NTASKS").ok().and_then(|n| n.parse().ok()),
            forwarded,
        }
    }
}

#[cfg(test)]
#[path = "starter_tests.rs"]
mod tests;

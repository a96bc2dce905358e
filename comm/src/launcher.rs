//! Detects the launcher that started this process, if any.
//!
//! Detection uses the environment alone, before MPI is initialized: a program started by hand must not pay for MPI (0.2 to
//! 0.4 s) and must run where MPI's daemons cannot.

use std::fmt;

use crate::environment::{self, BadVariable, Meeting};
use crate::slurm;

/// A program that starts the ranks of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Launcher {
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH's or Intel MPI's `mpiexec`, or another launcher with PMI-1 or PMI-2.
    Pmi,
    /// A launcher with PMIx, such as `prterun`.
    Pmix,
    /// Slurm's `srun`.
    Slurm,
    /// torchrun, or anything else that sets `RANK` and `WORLD_SIZE` for each rank, as a person may do: the ranks need no MPI.
    Environment,
}

impl Launcher {
    /// The launcher that started this process, if any; it may have started it alone. MPI is not initialized.
    pub fn detect() -> Option<Self> {
        let found = detect(|name| std::env::var(name).ok());
        // Variables that do not fit describe several ranks in some way; joining them says which one it is.
        found.map_or(Some(Launcher::Environment), |found| found.map(|found| found.launcher))
    }

    /// Whether MPI joins the ranks of this process's job, which takes seconds; it is not initialized.
    pub fn joins_by_mpi() -> bool {
        let found = detect(|name| std::env::var(name).ok());
        matches!(found, Ok(Some(found)) if found.meeting.is_none() && found.n_ranks != Some(1))
    }

    pub(crate) fn mismatch_hint(self) -> &'static str {
        match self {
            Launcher::Slurm => {
                "use srun --mpi=pmix (srun --mpi=list shows the available ones), or start mpirun inside sbatch"
            }
            _ => "use the mpirun of the MPI library that this program was linked to or has opened",
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Launcher::OpenMpi => "Open MPI's mpirun",
            Launcher::Pmi => "mpiexec (PMI)",
            Launcher::Pmix => "a PMIx launcher",
            Launcher::Slurm => "srun",
            Launcher::Environment => "a launcher that sets RANK and WORLD_SIZE",
        })
    }
}

/// Number of ranks on this host, as the environment states it; 1 where it does not. MPI is not initialized.
pub fn local_ranks() -> usize {
    ranks_on_this_host(|name| std::env::var(name).ok())
}

/// Number of this process among those of its launcher, as the environment states it; `None` without a launcher. MPI is not
/// initialized.
pub fn stated_rank() -> Option<usize> {
    Launcher::detect()?;
    let number = |name: &str| std::env::var(name).ok()?.trim().parse().ok();
    ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "PMIX_RANK"].into_iter().find_map(number)
}

fn ranks_on_this_host(lookup: impl Fn(&str) -> Option<String>) -> usize {
    // Slurm's list of hosts, such as `4(x2),3`, of which the largest counts.
    let largest = |list: String| {
        let numbers = list.split(',').map(|of| of.split('(').next().unwrap_or_default().trim().parse().ok());
        numbers.collect::<Option<Vec<usize>>>()?.into_iter().max()
    };
    let Ok(Some(found)) = detect(&lookup) else { return 1 };
    let name = match found.launcher {
        Launcher::Environment => "LOCAL_WORLD_SIZE",
        Launcher::Slurm => "SLURM_STEP_TASKS_PER_NODE",
        Launcher::Pmi => "MPI_LOCALNRANKS",
        Launcher::OpenMpi | Launcher::Pmix => "OMPI_COMM_WORLD_LOCAL_SIZE",
    };
    let all_here = found.meeting.filter(|meeting| meeting.is_one_host).map(|meeting| meeting.world_size);
    lookup(name).and_then(largest).or(all_here).unwrap_or(1).max(1)
}

/// A launcher found in the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) launcher: Launcher,
    /// Ranks of the job; `None` under PMIx, whose variables do not contain it.
    pub(crate) n_ranks: Option<usize>,
    /// Where the ranks meet without MPI; `None` if MPI joins them.
    pub(crate) meeting: Option<Meeting>,
}

/// Step ids from here up are reserved by Slurm: the batch script, the interactive shell of `salloc`.
const SLURM_FIRST_SPECIAL_STEP: u64 = 0xffff_fff0;

/// Removes the variables by which `command` would take itself for a rank of this process's job.
pub fn without_launcher(command: &mut std::process::Command) {
    let names = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "SLURM_STEP_ID", "PMIX_RANK"];
    names.into_iter().chain(environment::NAMES).for_each(|name| _ = command.env_remove(name));
}

/// Detects the launcher from the environment variables that `lookup` returns.
///
/// The variables of a batch script or an `salloc` shell do not count: only `srun` starts ranks, and only `srun` sets a step with
/// an ordinary id and more than one task. Each of `srun`'s tasks may be a torchrun, which then counts.
///
/// # Errors
/// The first variable that does not fit, where no launcher of MPI is found; or one that contradicts such a launcher.
pub(crate) fn detect(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Found>, BadVariable> {
    let meeting = Meeting::find(&lookup);
    match (find_mpi(&lookup), meeting) {
        (Some(found), Ok(Some(meeting))) if found.launcher != Launcher::Slurm => {
            agree(&found, &meeting, lookup)?;
            Ok(Some(found))
        }
        (_, Ok(Some(mut meeting))) => {
            // A script that gives the tasks of a step of srun their ranks itself.
            let place = (meeting.rank, meeting.world_size);
            let of_step =
                slurm::meeting(&lookup).filter(|of_step| (of_step.rank, of_step.world_size) == place);
            if let Some(of_step) = of_step.filter(|_| !meeting.is_named) {
                (meeting.token, meeting.is_named) = (of_step.token, true);
            }
            let n_ranks = Some(meeting.world_size);
            Ok(Some(Found { launcher: Launcher::Environment, n_ranks, meeting: Some(meeting) }))
        }
        (Some(found), _) => Ok(Some(found)),
        (None, Err(bad)) => Err(bad),
        (None, Ok(None)) => Ok(None),
    }
}

/// Checks that a meeting has the same ranks as a launcher of MPI.
fn agree(
    found: &Found,
    meeting: &Meeting,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<(), BadVariable> {
    let [size_name, rank_name] = match found.launcher {
        Launcher::OpenMpi => ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"],
        Launcher::Pmi => ["PMI_SIZE", "PMI_RANK"],
        _ => ["", "PMIX_RANK"],
    };
    for (name, own, value) in
        [("WORLD_SIZE", size_name, meeting.world_size), ("RANK", rank_name, meeting.rank)]
    {
        let other = lookup(own).and_then(|other| other.trim().parse::<usize>().ok());
        if let Some(other) = other.filter(|other| *other != value) {
            return Err(BadVariable::contradiction(name, value, &format!("{own}={other}")));
        }
    }
    Ok(())
}

/// Detects a launcher whose ranks MPI joins; those of `srun` only where it has a plugin for that.
fn find_mpi(lookup: impl Fn(&str) -> Option<String>) -> Option<Found> {
    let number = |name: &str| lookup(name)?.trim().parse::<u64>().ok();
    let count = |name: &str| number(name).map(|n| n as usize);
    let found = |launcher, n_ranks| Some(Found { launcher, n_ranks, meeting: None });
    if let Some(n) = count("OMPI_COMM_WORLD_SIZE") {
        return found(Launcher::OpenMpi, Some(n));
    }
    if let (Some(n), Some(_)) = (count("PMI_SIZE"), number("PMI_RANK")) {
        return found(Launcher::Pmi, Some(n));
    }
    let n_tasks = count("SLURM_STEP_NUM_TASKS").or_else(|| count("SLURM_NTASKS"));
    let in_step = number("SLURM_STEP_ID").is_some_and(|id| id < SLURM_FIRST_SPECIAL_STEP);
    if in_step && number("SLURM_PROCID").is_some() {
        let n_ranks = n_tasks.filter(|&n| n > 1)?;
        let meeting = slurm::meeting(&lookup);
        return Some(Found { launcher: Launcher::Slurm, n_ranks: Some(n_ranks), meeting });
    }
    number("PMIX_RANK").and_then(|_| found(Launcher::Pmix, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(vars: &[(&str, &str)]) -> Option<(Launcher, Option<usize>)> {
        let lookup = |name: &str| vars.iter().find(|v| v.0 == name).map(|v| v.1.to_owned());
        detect(lookup).unwrap().map(|f| (f.launcher, f.n_ranks))
    }

    #[test]
    fn launchers_are_known_by_their_variables() {
        assert_eq!(found(&[("OMPI_COMM_WORLD_SIZE", "4")]), Some((Launcher::OpenMpi, Some(4))));
        assert_eq!(found(&[("PMI_SIZE", "2"), ("PMI_RANK", "0")]), Some((Launcher::Pmi, Some(2))));
        assert_eq!(found(&[("PMIX_RANK", "1")]), Some((Launcher::Pmix, None)));
        let srun = [("SLURM_PROCID", "3"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "8")];
        assert_eq!(found(&srun), Some((Launcher::Slurm, Some(8))));
        // mpirun inside a Slurm job: the inner launcher counts.
        let both = [&srun[..], &[("OMPI_COMM_WORLD_SIZE", "2")]].concat();
        assert_eq!(found(&both), Some((Launcher::OpenMpi, Some(2))));
        assert_eq!(detect(|_| None), Ok(None));
        // srun --mpi=pmix sets both; Slurm knows the size.
        let pmix = [&srun[..], &[("PMIX_RANK", "3")]].concat();
        assert_eq!(found(&pmix), Some((Launcher::Slurm, Some(8))));
    }

    #[test]
    fn tasks_of_srun_meet_without_mpi_where_no_plugin_joins_them() {
        let srun =
            [("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "7")];
        let all = [&srun[..], &[("SLURM_NNODES", "1"), ("SLURM_STEP_NODELIST", "a")]].concat();
        let meets = |more: &[(&str, &str)]| {
            let vars = [&all[..], more].concat();
            let lookup = |name: &str| vars.iter().find(|v| v.0 == name).map(|v| v.1.to_owned());
            let found = detect(lookup).unwrap().unwrap();
            assert_eq!((found.launcher, found.n_ranks), (Launcher::Slurm, Some(2)));
            found.meeting.is_some()
        };
        assert!(meets(&[]));
        assert!(!meets(&[("PMIX_RANK", "1")]));
    }

    #[test]
    fn variables_of_torchrun_describe_ranks_without_mpi() {
        let ours = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")];
        assert_eq!(found(&ours), Some((Launcher::Environment, Some(2))));
        // torchrun as a task of srun.
        let srun = [("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "4")];
        assert_eq!(found(&[&srun[..], &ours].concat()), Some((Launcher::Environment, Some(2))));
        // A script that gives the tasks of srun their ranks: the step tells the job from others.
        let of_step = |job: &'static str| {
            let srun =
                [("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", job)];
            let vars = [&srun[..], &ours].concat();
            let lookup = |name: &str| vars.iter().find(|v| v.0 == name).map(|v| v.1.to_owned());
            detect(lookup).unwrap().unwrap().meeting.unwrap()
        };
        assert!(of_step("7").is_named && of_step("7").token != of_step("8").token);
        // A script under mpirun that sets what mpirun does.
        let same = [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "1")];
        assert_eq!(found(&[&same[..], &ours].concat()), Some((Launcher::OpenMpi, Some(2))));
        for (other, text) in [
            (
                &[("OMPI_COMM_WORLD_SIZE", "3")][..],
                "WORLD_SIZE=2: expected the same as OMPI_COMM_WORLD_SIZE=3",
            ),
            (&[("PMI_SIZE", "2"), ("PMI_RANK", "0")], "RANK=1: expected the same as PMI_RANK=0"),
            (&[("PMIX_RANK", "0")], "RANK=1: expected the same as PMIX_RANK=0"),
        ] {
            let all = [other, &ours].concat();
            let lookup = |name: &str| all.iter().find(|v| v.0 == name).map(|v| v.1.to_owned());
            let error = detect(lookup).unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
        // Variables that describe nothing have no meaning under mpirun.
        assert_eq!(
            found(&[("OMPI_COMM_WORLD_SIZE", "4"), ("RANK", "7")]),
            Some((Launcher::OpenMpi, Some(4)))
        );
    }

    #[test]
    fn the_ranks_of_a_host_are_known_before_mpi() {
        let of = |vars: &[(&str, &str)]| {
            ranks_on_this_host(|name| vars.iter().find(|var| var.0 == name).map(|var| var.1.to_owned()))
        };
        assert_eq!(of(&[]), 1);
        assert_eq!(of(&[("OMPI_COMM_WORLD_SIZE", "8"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "4")]), 4);
        assert_eq!(of(&[("OMPI_COMM_WORLD_SIZE", "8")]), 1);
        assert_eq!(of(&[("PMI_SIZE", "6"), ("PMI_RANK", "1"), ("MPI_LOCALNRANKS", "3")]), 3);
        let ours = [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "1")];
        assert_eq!(of(&ours), 4);
        assert_eq!(of(&[&ours[..], &[("LOCAL_WORLD_SIZE", "2")]].concat()), 2);
        let srun = [("SLURM_PROCID", "3"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "11")];
        assert_eq!(of(&[&srun[..], &[("SLURM_STEP_TASKS_PER_NODE", "4(x2),3")]].concat()), 4);
    }

    #[test]
    fn a_shell_in_an_allocation_is_no_launcher() {
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[("PMI_SIZE", "2")]), None);
        assert_eq!(found(&[("OMPI_COMM_WORLD_SIZE", "")]), None);
        let batch = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")];
        assert_eq!(found(&batch), None);
        let batch_step = [&batch[..], &[("SLURM_STEP_ID", "4294967291")]].concat();
        assert_eq!(found(&batch_step), None);
        let salloc = [&batch[..], &[("SLURM_STEP_ID", "4294967290"), ("SLURM_STEP_NUM_TASKS", "1")]].concat();
        assert_eq!(found(&salloc), None);
        let one_task_shell = [&batch[..], &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]].concat();
        assert_eq!(found(&one_task_shell), None);
    }
}

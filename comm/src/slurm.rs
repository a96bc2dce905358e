//! Ranks that `srun` starts without a plugin for MPI: they meet on the first host of their job step.
//!
//! Source: Slurm, `srun`, "OUTPUT ENVIRONMENT VARIABLES"; JAX, `jax/_src/clusters/slurm_cluster.py`, for the port.

use std::net::Ipv4Addr;

use crate::environment::Meeting;
use crate::fnv1a::fnv1a_128;

/// Ports above those that Linux gives to connections; each job step has 16 of them.
const FIRST_PORT: u64 = 61_440;
const N_STEPS: u64 = 256;
const PORTS_PER_STEP: u16 = 16;

/// Variables of the plugins that join MPI's ranks, of which one is set where there is such a plugin.
const OF_MPI: [&str; 6] =
    ["PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD", "PMI_CONTROL_PORT", "I_MPI_PMI_LIBRARY"];

/// The meeting of this task with the others of its step, given the environment of a step of several tasks; `None` if a plugin joins them,
/// or if variables are missing.
///
/// `MASTER_ADDR` and `MASTER_PORT`, if both are set, replace the place.
pub(crate) fn meeting(lookup: impl Fn(&str) -> Option<String>) -> Option<Meeting> {
    if OF_MPI.iter().any(|name| lookup(name).is_some()) {
        return None;
    }
    let number = |name: &str| lookup(name)?.trim().parse::<u64>().ok();
    let either = |names: [&str; 2]| names.into_iter().find_map(number);
    let rank = number("SLURM_PROCID")? as usize;
    let world_size = either(["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"])? as usize;
    let [job, step] = [number("SLURM_JOB_ID")?, number("SLURM_STEP_ID")?];
    let is_one_host = either(["SLURM_STEP_NUM_NODES", "SLURM_NNODES"]) == Some(1);
    let port = (FIRST_PORT + (job + step) % N_STEPS * u64::from(PORTS_PER_STEP)) as u16;
    let own = || {
        let list = ["SLURM_STEP_NODELIST", "SLURM_NODELIST"].into_iter().find_map(&lookup)?;
        let host = if is_one_host { Ipv4Addr::LOCALHOST.to_string() } else { first_host(&list)? };
        Some((host, port..=port + (PORTS_PER_STEP - 1)))
    };
    let given = || {
        let port = u16::try_from(number("MASTER_PORT")?).ok()?;
        Some((lookup("MASTER_ADDR").filter(|host| !host.is_empty())?, port..=port))
    };
    let (host, ports) = given().or_else(own)?;
    let local_rank = number("SLURM_LOCALID").map(|rank| rank as usize);
    let token = fnv1a_128(format!("slurm {job} {step}").as_bytes()).to_le_bytes();
    let is_named = true;
    (rank < world_size).then_some(Meeting {
        rank,
        world_size,
        local_rank,
        is_one_host,
        host,
        ports,
        token,
        is_named,
    })
}

/// The first host of a list such as `node[01-04,07],other`.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    while let Some(at) = rest.find(['[', ',']) {
        host += &rest[..at];
        if rest[at..].starts_with(',') {
            return Some(host);
        }
        let (range, after) = rest[at + 1..].split_once(']')?;
        host += range.split(['-', ',']).next()?;
        rest = after;
    }
    host += rest;
    (!host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: [(&str, &str); 7] = [
        ("SLURM_PROCID", "3"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_JOB_ID", "1234"),
        ("SLURM_STEP_ID", "2"),
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_STEP_NODELIST", "gpu[07-08]"),
    ];

    fn with(changed: &[(&str, &str)]) -> Option<Meeting> {
        meeting(|name| {
            let found = changed.iter().chain(&STEP).find(|variable| variable.0 == name);
            found.map(|variable| variable.1.to_owned())
        })
    }

    #[test]
    fn the_tasks_of_a_step_meet_on_its_first_host() {
        let of_step = with(&[]).unwrap();
        assert_eq!((of_step.rank, of_step.world_size, of_step.local_rank), (3, 4, Some(1)));
        assert_eq!(
            (of_step.host.as_str(), of_step.ports.clone(), of_step.is_one_host),
            ("gpu07", 64_832..=64_847, false)
        );
        let of_other = with(&[("SLURM_STEP_ID", "3")]).unwrap();
        assert!(of_other.token != of_step.token && of_other.ports != of_step.ports);
        let on_one = with(&[("SLURM_STEP_NUM_NODES", "1")]).unwrap();
        assert_eq!((on_one.host.as_str(), on_one.is_one_host), ("127.0.0.1", true));
        let chosen = with(&[("MASTER_ADDR", "b"), ("MASTER_PORT", "5")]).unwrap();
        assert_eq!((chosen.host.as_str(), chosen.ports), ("b", 5..=5));
        // The last ports that there are.
        assert_eq!(*with(&[("SLURM_JOB_ID", "253")]).unwrap().ports.end(), u16::MAX);
    }

    #[test]
    fn a_plugin_for_mpi_joins_them_by_mpi() {
        assert_eq!(with(&[("PMIX_RANK", "3")]), None);
        assert_eq!(with(&[("PMI_FD", "7")]), None);
    }

    #[test]
    fn the_first_host_of_a_list_is_known() {
        for (list, first) in [
            ("a", "a"),
            ("a,b", "a"),
            ("n[01-04]", "n01"),
            ("n[3,5-7],m", "n3"),
            ("r[1-2]n[8-9]-ib", "r1n8-ib"),
            ("n[1-2]x,m", "n1x"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        assert_eq!((first_host(""), first_host("n[1-")), (None, None));
    }
}

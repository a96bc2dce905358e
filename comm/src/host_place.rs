//! The place of this host in a job whose hosts each start their own ranks, as variables state it.
//!
//! `PET_NNODES`, `PET_NODE_RANK`, `PET_NPROC_PER_NODE`, `PET_MASTER_ADDR` and `PET_MASTER_PORT` are the arguments of torchrun; Kubeflow
//! Trainer sets them in each pod.
//!
//! Source: PyTorch, `torch/distributed/argparse_util.py`; Kubeflow Trainer, `pkg/runtime/framework/plugins/torch`.

use crate::environment::{self, BadVariable};

const N_HOSTS: &str = "PET_NNODES";
const HOST_RANK: &str = "PET_NODE_RANK";
const RANKS_PER_HOST: &str = "PET_NPROC_PER_NODE";
const ADDRESS: &str = "PET_MASTER_ADDR";
const PORT: &str = "PET_MASTER_PORT";

/// Position of this host in its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPlace {
    /// Its number, from 0.
    pub rank: usize,
    /// Number of hosts, at least 2.
    pub n_hosts: usize,
    /// Name or address of the first host.
    pub address: String,
    port: String,
}

impl HostPlace {
    /// The place that the environment states; `None` if it states none, or a single host.
    ///
    /// # Errors
    /// The first variable that does not fit.
    pub fn detect() -> Result<Option<Self>, BadVariable> {
        Self::find(|name| std::env::var(name).ok())
    }

    /// Number of ranks of this host, one of several or alone, if the environment states it with the number of hosts.
    pub fn stated_ranks() -> Option<usize> {
        Self::ranks(|name| std::env::var(name).ok())
    }

    fn ranks(lookup: impl Fn(&str) -> Option<String>) -> Option<usize> {
        set(&lookup, N_HOSTS)?;
        // `auto`, `gpu` and `cpu` are for torchrun to count.
        set(&lookup, RANKS_PER_HOST)?.parse().ok().filter(|n| *n > 0)
    }

    fn find(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, BadVariable> {
        let set = |name| set(&lookup, name);
        let bad = |name, expected: &str| BadVariable::for_host(name, set(name).as_deref(), expected);
        // An elastic job has a range.
        let Some(n_hosts) = set(N_HOSTS) else { return Ok(None) };
        let n_hosts: usize = n_hosts.parse().map_err(|_| bad(N_HOSTS, "a number of hosts, not a range"))?;
        if n_hosts <= 1 {
            return Ok(None);
        }
        let rank = set(HOST_RANK).and_then(|rank| rank.parse().ok()).filter(|rank| *rank < n_hosts);
        Ok(Some(HostPlace {
            rank: rank.ok_or_else(|| bad(HOST_RANK, "the number of this host, below that of hosts"))?,
            n_hosts,
            address: set(ADDRESS).ok_or_else(|| bad(ADDRESS, "the first host"))?,
            port: set(PORT).ok_or_else(|| bad(PORT, "a port of the first host"))?,
        }))
    }

    /// Refuses a process that is to be a rank and is none of several: each host would train alone.
    pub(crate) fn refuse_alone() -> Result<(), BadVariable> {
        match Self::detect()? {
            None => Ok(()),
            Some(place) => Err(BadVariable::for_host(
                N_HOSTS,
                Some(&place.n_hosts.to_string()),
                "RANK and WORLD_SIZE too: each host would train alone",
            )),
        }
    }

    /// Environment of each of the `n_ranks` processes of this host. Every other host must start as many.
    pub fn rank_variables(&self, n_ranks: usize) -> Vec<Vec<(&'static str, String)>> {
        let first = self.rank * n_ranks;
        let of_rank = |local_rank| {
            let (rank, world_size) = (first + local_rank, self.n_hosts * n_ranks);
            environment::variables([rank, world_size, local_rank, n_ranks], &self.address, &self.port)
        };
        (0..n_ranks).map(of_rank).collect()
    }
}

/// Value of a variable, unless it is blank.
fn set(lookup: impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    lookup(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The variables of the second of three hosts, with some changed.
    fn lookup(changed: &[(&str, &str)], name: &str) -> Option<String> {
        let all = [
            (N_HOSTS, "3"),
            (HOST_RANK, "1"),
            (RANKS_PER_HOST, "2"),
            (ADDRESS, "job-node-0-0.job"),
            (PORT, "29400"),
        ];
        changed.iter().chain(&all).find(|variable| variable.0 == name).map(|variable| variable.1.to_owned())
    }

    fn find(changed: &[(&str, &str)]) -> Result<Option<HostPlace>, BadVariable> {
        HostPlace::find(|name| lookup(changed, name))
    }

    #[test]
    fn the_ranks_of_a_host_follow_those_of_the_hosts_before_it() {
        let place = find(&[]).unwrap().unwrap();
        assert_eq!((place.rank, place.n_hosts), (1, 3));
        let variables = place.rank_variables(2);
        for variable in
            [("RANK", "3"), ("WORLD_SIZE", "6"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "job-node-0-0.job")]
        {
            assert!(
                variables[1].contains(&(variable.0, variable.1.to_owned())),
                "{variable:?} in {variables:?}"
            );
        }
        assert_eq!((find(&[(N_HOSTS, "1")]), find(&[(N_HOSTS, "")])), (Ok(None), Ok(None)));
    }

    /// A single host has ranks too.
    #[test]
    fn ranks_are_stated_for_any_number_of_hosts() {
        let ranks = |changed: &[(&str, &str)]| HostPlace::ranks(|name| lookup(changed, name));
        assert_eq!([ranks(&[]), ranks(&[(N_HOSTS, "1")])], [Some(2); 2]);
        for other in [(N_HOSTS, ""), (RANKS_PER_HOST, "auto"), (RANKS_PER_HOST, "0")] {
            assert_eq!(ranks(&[other]), None, "{other:?}");
        }
    }

    #[test]
    fn the_variable_at_fault_is_named() {
        for (name, value) in [(N_HOSTS, "1:4"), (HOST_RANK, "3"), (HOST_RANK, ""), (ADDRESS, ""), (PORT, " ")]
        {
            assert_eq!(find(&[(name, value)]).unwrap_err().variable, name);
        }
    }
}

//! Ranks that the environment describes, without MPI: each process has its rank, their number, and the place where they meet.
//!
//! `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` are set by torchrun, by launchers like it
//! and by [`rank_variables`].
//!
//! Source: PyTorch, `torch.distributed.run`, "Environment Variables".

use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::ops::RangeInclusive;

use crate::fnv1a::fnv1a_128;
use crate::token::{Token, random_token};

const RANK: &str = "RANK";
const WORLD_SIZE: &str = "WORLD_SIZE";
const LOCAL_RANK: &str = "LOCAL_RANK";
const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
const MASTER_ADDR: &str = "MASTER_ADDR";
const MASTER_PORT: &str = "MASTER_PORT";
/// A secret of the job, without which no process is taken for a rank.
const SECRET: &str = "DDP_RANKS_SECRET";
/// Name of a torchrun job.
const RUN_ID: &str = "TORCHELASTIC_RUN_ID";
/// `True` if a store of torchrun itself listens at `MASTER_PORT`.
const USES_AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";
/// Number of ports after `MASTER_PORT` at which rank 0 may listen where that one is taken.
const N_PORTS: u16 = 16;

/// Variables by which a process takes itself for a rank.
pub(crate) const NAMES: [&str; 2] = [RANK, WORLD_SIZE];

/// A variable of the environment that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, miette::Diagnostic)]
#[error("{variable}{got}: expected {expected}")]
#[diagnostic(help("{hint}"))]
pub struct BadVariable {
    /// Its name.
    pub variable: &'static str,
    /// `=` and its value, or ` is not set`.
    pub got: String,
    /// A value that would fit.
    pub expected: String,
    /// The way out.
    pub hint: &'static str,
}

impl BadVariable {
    fn new(variable: &'static str, value: Option<&str>, expected: impl Into<String>) -> Self {
        let got = value.map_or_else(|| " is not set".to_owned(), |value| format!("={value}"));
        let hint = "torchrun and launchers like it set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for each rank; \
                    unset RANK and WORLD_SIZE to start one process alone";
        BadVariable { variable, got, expected: expected.into(), hint }
    }

    /// A variable about the hosts of a job.
    pub(crate) fn for_host(variable: &'static str, value: Option<&str>, expected: &str) -> Self {
        let hint = "start `ddp-train launch -- ...` on each host, which starts its ranks, or torchrun; unset PET_NNODES to start one \
                    process alone";
        BadVariable { hint, ..Self::new(variable, value, expected) }
    }

    /// Two launchers describe this process differently: `other` names a variable of MPI's, with its value.
    pub(crate) fn contradiction(variable: &'static str, value: usize, other: &str) -> Self {
        let hint = "unset RANK, WORLD_SIZE and MASTER_ADDR where mpirun starts the ranks; or start them without mpirun";
        let expected = format!("the same as {other}, which MPI's launcher has set");
        BadVariable { hint, ..Self::new(variable, Some(&value.to_string()), expected) }
    }
}

/// A rank's place in a job, and the place where the ranks meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Meeting {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// Its number among the ranks of its host, if the environment says.
    pub(crate) local_rank: Option<usize>,
    /// Whether all ranks are certainly on this host, so that rank 0 listens on the loopback interface.
    pub(crate) is_one_host: bool,
    /// Name or address of the host of rank 0.
    pub(crate) host: String,
    /// Ports of which rank 0 listens at the first that is free.
    pub(crate) ports: RangeInclusive<u16>,
    /// The first words of each rank, so that processes of other jobs are not taken for ranks.
    pub(crate) token: Token,
    /// Whether the token tells the job from every other one: there is a secret, or a launcher has given the job a name.
    pub(crate) is_named: bool,
}

impl Meeting {
    /// The meeting of a job of several ranks, if the variables that `lookup` returns describe one.
    ///
    /// # Errors
    /// The first variable that does not fit, if there is a rank or a number of ranks.
    pub(crate) fn find(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, BadVariable> {
        let set = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        if NAMES.iter().all(|name| set(name).is_none()) {
            return Ok(None);
        }
        let number = |variable, expected: &str| match set(variable) {
            None => Ok(None),
            Some(value) => match value.trim().parse::<usize>() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(BadVariable::new(variable, Some(&value), expected)),
            },
        };
        let world_size = number(WORLD_SIZE, "the number of ranks")?;
        let rank = number(RANK, "the number of this rank, from 0")?;
        let (world_size, rank) = match (world_size, rank) {
            (Some(0), _) => return Err(BadVariable::new(WORLD_SIZE, Some("0"), "at least 1")),
            // Some systems set it for every process.
            (Some(1), None | Some(0)) => return Ok(None),
            (Some(world_size), Some(rank)) => (world_size, rank),
            (Some(world_size), None) => {
                let expected = format!("this rank's number, since {WORLD_SIZE}={world_size}");
                return Err(BadVariable::new(RANK, None, expected));
            }
            (None, rank) => {
                let expected = format!("the number of ranks, since {RANK}={}", rank.unwrap_or_default());
                return Err(BadVariable::new(WORLD_SIZE, None, expected));
            }
        };
        let below = |variable, limit: &str, number: usize, of: usize| {
            let bad = || {
                BadVariable::new(variable, Some(&number.to_string()), format!("a number below {limit}={of}"))
            };
            if number < of { Ok(()) } else { Err(bad()) }
        };
        below(RANK, WORLD_SIZE, rank, world_size)?;
        let local_size = number(LOCAL_WORLD_SIZE, "the number of ranks on this host")?;
        let local_rank = number(LOCAL_RANK, "the number of this rank on its host, from 0")?;
        if let Some(local_size) = local_size.filter(|size| *size > world_size) {
            let expected = format!("at most {WORLD_SIZE}={world_size}");
            return Err(BadVariable::new(LOCAL_WORLD_SIZE, Some(&local_size.to_string()), expected));
        }
        if let Some(local_rank) = local_rank {
            let (limit, of) = local_size.map_or((WORLD_SIZE, world_size), |size| (LOCAL_WORLD_SIZE, size));
            below(LOCAL_RANK, limit, local_rank, of)?;
        }
        let host = set(MASTER_ADDR).map(|host| host.trim().to_owned());
        let host = host.ok_or_else(|| BadVariable::new(MASTER_ADDR, None, "the host of rank 0"))?;
        let port = set(MASTER_PORT);
        let parsed =
            port.as_deref().and_then(|port| port.trim().parse::<u16>().ok()).filter(|port| *port > 0);
        let port = parsed.ok_or_else(|| {
            BadVariable::new(MASTER_PORT, port.as_deref(), "a port of that host, from 1 to 65535")
        })?;
        let is_taken = set(USES_AGENT_STORE).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let ports =
            if is_taken { port.saturating_add(1)..=port.saturating_add(N_PORTS) } else { port..=port };
        let is_one_host = local_size.map_or_else(|| is_loopback(&host), |size| size == world_size);
        // torchrun's default.
        let run_id = set(RUN_ID).filter(|id| id != "none");
        let is_named = set(SECRET).is_some() || run_id.is_some();
        let token = token(&[set(SECRET), run_id].map(Option::unwrap_or_default));
        Ok(Some(Meeting { rank, world_size, local_rank, is_one_host, host, ports, token, is_named }))
    }

    /// The same meeting, of the job that `job` names where the environment names none.
    pub(crate) fn for_job(&self, job: u128) -> Self {
        let parts = [self.token, job.to_le_bytes()].concat();
        let token = if self.is_named { self.token } else { fnv1a_128(&parts).to_le_bytes() };
        Meeting { token, ..self.clone() }
    }
}

/// Variables for each of `n_ranks` processes, by which they join as the ranks of this host; set them in place of those that are there.
///
/// ```
/// let of_ranks = ddp_comm::rank_variables(2)?;
/// assert_eq!(of_ranks[1][0], ("RANK", "1".to_owned()));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The system's error: for a port that is free, or for a secret of the job.
pub fn rank_variables(n_ranks: usize) -> io::Result<Vec<Vec<(&'static str, String)>>> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let secret: String = random_token()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let host = Ipv4Addr::LOCALHOST.to_string();
    let of_rank = |rank: usize| {
        let mut variables = variables([rank, n_ranks, rank, n_ranks], &host, &port.to_string());
        variables.push((SECRET, secret.clone()));
        variables
    };
    Ok((0..n_ranks).map(of_rank).collect())
}

/// Variables of one rank; `numbers` are its rank, their number, and the same on its host.
pub(crate) fn variables(numbers: [usize; 4], host: &str, port: &str) -> Vec<(&'static str, String)> {
    let names = [RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE];
    let numbers = names.into_iter().zip(numbers.map(|number| number.to_string()));
    let place = [(MASTER_ADDR, host), (MASTER_PORT, port), (USES_AGENT_STORE, "False")];
    numbers.chain(place.map(|(name, value)| (name, value.to_owned()))).collect()
}

/// Whether accelerate has started this process alone although it was asked for several: without `--multi_gpu` it sets the place where
/// they meet, but no ranks.
///
/// Source: Accelerate 1.15, `accelerate/utils/launch.py`, `prepare_simple_launcher_cmd_env`.
pub(crate) fn is_alone_by_accelerate(lookup: impl Fn(&str) -> Option<String>) -> bool {
    ["ACCELERATE_MIXED_PRECISION", MASTER_ADDR, MASTER_PORT].iter().all(|name| lookup(name).is_some())
        && NAMES.iter().all(|name| lookup(name).is_none())
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn token(parts: &[String]) -> Token {
    fnv1a_128(parts.join("\n").as_bytes()).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(&str, &str); 6] = [
        ("RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("MASTER_ADDR", "node7"),
        ("MASTER_PORT", "29500"),
    ];

    /// The meeting that [`ALL`] describes with some variables changed; an empty one counts as not set.
    fn find(changed: &[(&str, &str)]) -> Result<Option<Meeting>, BadVariable> {
        Meeting::find(|name| {
            let found = changed.iter().chain(&ALL).find(|variable| variable.0 == name);
            found.map(|variable| variable.1.to_owned())
        })
    }

    fn problem(changed: &[(&str, &str)]) -> String {
        find(changed).unwrap_err().to_string()
    }

    #[test]
    fn a_rank_knows_its_place_and_where_to_meet() {
        let meeting = find(&[]).unwrap().unwrap();
        assert_eq!((meeting.rank, meeting.world_size, meeting.local_rank), (1, 4, Some(1)));
        assert_eq!(
            (meeting.host.as_str(), meeting.ports, meeting.is_one_host),
            ("node7", 29500..=29500, true)
        );
        assert_eq!(Meeting::find(|_| None), Ok(None));
        let own: Vec<_> = rank_variables(3).unwrap();
        let meeting = Meeting::find(|name| own[2].iter().find(|var| var.0 == name).map(|var| var.1.clone()));
        let meeting = meeting.unwrap().unwrap();
        assert_eq!((meeting.rank, meeting.world_size, meeting.is_one_host), (2, 3, true));
    }

    #[test]
    fn a_world_of_one_needs_no_meeting() {
        assert_eq!(find(&[("WORLD_SIZE", "1"), ("RANK", "0"), ("MASTER_ADDR", "")]), Ok(None));
        assert_eq!(find(&[("WORLD_SIZE", "1"), ("RANK", "")]), Ok(None));
        assert_eq!(problem(&[("WORLD_SIZE", "1")]), "RANK=1: expected a number below WORLD_SIZE=1");
    }

    #[test]
    fn all_ranks_on_this_host_meet_on_the_loopback_interface() {
        let is_one_host = |changed: &[(&str, &str)]| find(changed).unwrap().unwrap().is_one_host;
        assert!(!is_one_host(&[("LOCAL_WORLD_SIZE", "2")]));
        assert!(!is_one_host(&[("LOCAL_WORLD_SIZE", "")]));
        assert!(is_one_host(&[("LOCAL_WORLD_SIZE", ""), ("MASTER_ADDR", "localhost")]));
        assert!(is_one_host(&[("LOCAL_WORLD_SIZE", ""), ("MASTER_ADDR", "::1")]));
    }

    #[test]
    fn the_store_of_torchrun_keeps_its_port() {
        let ports = |value| find(&[(USES_AGENT_STORE, value)]).unwrap().unwrap().ports;
        assert_eq!((ports("True"), ports("False")), (29501..=29516, 29500..=29500));
    }

    #[test]
    fn jobs_have_their_own_tokens() {
        let token = |changed: &[(&str, &str)]| find(changed).unwrap().unwrap().token;
        assert_ne!(token(&[(RUN_ID, "a")]), token(&[(RUN_ID, "b")]));
        assert_ne!(token(&[(SECRET, "a")]), token(&[(RUN_ID, "a")]));
        let of_job = |id, job: &[u8]| find(&[(RUN_ID, id)]).unwrap().unwrap().for_job(fnv1a_128(job)).token;
        assert_ne!(of_job("none", b"a"), of_job("none", b"b"));
        assert_eq!(of_job("7", b"a"), of_job("7", b"b"));
    }

    #[test]
    fn the_variable_at_fault_is_named() {
        for (changed, expected) in [
            (&[("RANK", "4")][..], "RANK=4: expected a number below WORLD_SIZE=4"),
            (&[("RANK", "")], "RANK is not set: expected this rank's number, since WORLD_SIZE=4"),
            (&[("RANK", "one")], "RANK=one: expected the number of this rank, from 0"),
            (&[("WORLD_SIZE", "")], "WORLD_SIZE is not set: expected the number of ranks, since RANK=1"),
            (&[("WORLD_SIZE", "0")], "WORLD_SIZE=0: expected at least 1"),
            (&[("WORLD_SIZE", "2x")], "WORLD_SIZE=2x: expected the number of ranks"),
            (&[("LOCAL_RANK", "4")], "LOCAL_RANK=4: expected a number below LOCAL_WORLD_SIZE=4"),
            (&[("LOCAL_WORLD_SIZE", "5")], "LOCAL_WORLD_SIZE=5: expected at most WORLD_SIZE=4"),
            (&[("MASTER_ADDR", " ")], "MASTER_ADDR is not set: expected the host of rank 0"),
            (&[("MASTER_PORT", "")], "MASTER_PORT is not set: expected a port of that host, from 1 to 65535"),
            (&[("MASTER_PORT", "0")], "MASTER_PORT=0: expected a port of that host, from 1 to 65535"),
        ] {
            assert_eq!(problem(changed), expected);
        }
    }
}

//! Ranks that are processes, joined by what their environment says and without MPI.
//!
//! The ranks of one host exchange data through shared memory ([`lockstep`](super::lockstep)), as they do under MPI; their connections to rank 0 then only
//! start and end the job. Ranks of several hosts exchange only what they agree on through rank 0, and the tensors of their GPUs by NCCL.

mod collectives;
mod greeting;
mod peer_user;
mod meeting;

pub(super) use collectives::Star;

use super::host::{Joined, Place};
use super::{host, program};
use crate::environment::Meeting;
use crate::lifeline::{self, Peer};
use crate::this_host::boot_id;
use crate::{CommError, Result, WorldOptions};

/// Joins all ranks of the job.
///
/// - `hostname`: of this host
///
/// # Errors
/// Errors of a meeting that fails; [`CommError::DifferentPrograms`]; [`CommError::PeerLeft`] if a rank ends meanwhile.
pub(crate) fn join(meeting: &Meeting, options: WorldOptions, hostname: &str) -> Result<Joined<Star>> {
    let WorldOptions { shared_memory, timeout, program, join_limit, lost_exit_code, .. } = options;
    let Meeting { rank, world_size, .. } = *meeting;
    let links = meeting::meet(&meeting.for_job(options.job), hostname, join_limit)?;
    let mut star = Star::new(rank, world_size, links.streams);
    let identity = format!("{} {hostname} {}", std::process::id(), boot_id());
    let identities = star.exchange(identity.as_bytes())?;
    let identities: Vec<_> = identities.iter().map(|bytes| identity_of(bytes)).collect();
    let others = if rank == 0 { 1..world_size } else { 0..1 };
    let peer = |(rank, stream)| {
        let Identity { pid, host, .. } = &identities[rank];
        Peer { rank, host: host.clone(), pid: *pid, stream }
    };
    let peers = others.zip(links.lifelines).map(peer).collect();
    lifeline::start(rank, hostname, peers, lost_exit_code).map_err(|source| CommError::NotJoined {
        rank,
        text: source.to_string(),
        misses_others: false,
    })?;
    program::agree(|words| star.gather_words(words), rank, program, hostname)?;
    let is_here = |other: &usize| identities[*other].place() == identities[rank].place();
    let local_size = (0..world_size).filter(is_here).count();
    let local_rank = meeting.local_rank.unwrap_or_else(|| (0..rank).filter(is_here).count());
    let shared = if local_size < world_size {
        Err(None)
    } else if !shared_memory {
        Err(Some("it is switched off".to_owned()))
    } else {
        host::join(|words| star.gather_words(words), rank, world_size, timeout)?.map_err(Some)
    };
    star.set_timeout(timeout);
    let place = Place { rank, world_size, local_rank, local_size };
    Ok(Joined { transport: star, shared, place })
}

/// A rank's process and host.
struct Identity {
    pid: u32,
    host: String,
    boot_id: String,
}

impl Identity {
    /// The same for ranks of one host, also if two hosts have one name.
    fn place(&self) -> (&str, &str) {
        (&self.host, &self.boot_id)
    }
}

fn identity_of(bytes: &[u8]) -> Identity {
    let text = String::from_utf8_lossy(bytes);
    let mut words = text.split(' ');
    let pid = words.next().and_then(|pid| pid.parse().ok()).unwrap_or_default();
    let mut word = || words.next().unwrap_or_default().to_owned();
    Identity { pid, host: word(), boot_id: word() }
}

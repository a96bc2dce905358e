//! Opens `logs/rank-<r>.log` in the run's folder, on every rank that sees rank 0's folder.

use std::path::Path;

use ddp::run_folder::logs::{self, Probe};
use ddp_comm::World;
use tracing::warn;

use crate::error::Result;
use crate::report::log::Log;

/// Opens the log files of all ranks in the folder `run`, which is the same path on all of them. Collective. A rank without a
/// file continues without a log, and rank 0 says so.
///
/// # Errors
/// [`Error::Comm`](crate::Error::Comm).
pub(super) fn open(world: &World, log: &Log, run: &Path) -> Result<()> {
    let rank = world.rank().0;
    let probe = match rank {
        0 => Probe::leave(run)
            .inspect_err(|error| {
                let folder = run.join(logs::LOGS);
                warn!("can't write logs in `{}`: {error}; the run continues without them", folder.display());
            })
            .ok(),
        _ => None,
    };
    let is_seen = sees(world, probe.as_ref(), run)?;
    // The host of each rank that does not see the folder.
    let blind = if is_seen { "" } else { world.hostname() };
    let hosts = world.group().all_gather_bytes(blind.as_bytes())?;
    if is_seen {
        log.open_file(&logs::file(run, rank));
    } else {
        log.close_file();
    }
    if probe.is_some()
        && let Some(message) = blind_ranks(&hosts, world.hostname(), run)
    {
        warn!("{message}");
    }
    Ok(())
}

/// Whether this rank sees the folder `run` of rank 0, which has left `probe` there and keeps it until all have looked. Collective.
///
/// # Errors
/// [`Error::Comm`](crate::Error::Comm).
pub(crate) fn sees(world: &World, probe: Option<&Probe>, run: &Path) -> Result<bool> {
    let name = probe.map(Probe::name).unwrap_or_default();
    let name = world.group().all_gather_bytes(name.as_bytes())?.swap_remove(0);
    Ok(Probe::is_seen(run, &String::from_utf8_lossy(&name)))
}

/// The message about ranks that do not see the folder; `hosts` has the name of each one's host.
fn blind_ranks(hosts: &[Vec<u8>], host_of_rank_0: &str, run: &Path) -> Option<String> {
    let blind = || hosts.iter().enumerate().filter(|(_, host)| !host.is_empty());
    let (first, host) = blind().next()?;
    let (n_ranks, host) = (blind().count(), String::from_utf8_lossy(host));
    let (ranks, these) = if n_ranks == 1 { ("rank", "it writes") } else { ("ranks", "they write") };
    Some(format!(
        "{n_ranks} {ranks} of {} (first rank {first} on {host}) can't see `{}` of {host_of_rank_0}, so {these} no log file\n\
         hint: put the run's folder on a file system that all hosts share",
        hosts.len(),
        run.display(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blind_ranks_are_named_together() {
        let hosts = |hosts: &[&str]| hosts.iter().map(|host| host.as_bytes().to_vec()).collect::<Vec<_>>();
        let message = |all: &[&str]| blind_ranks(&hosts(all), "a", Path::new("/runs/x"));
        assert_eq!(message(&["", "", ""]), None);
        let one = message(&["", "", "b"]).unwrap();
        assert!(
            one.starts_with("1 rank of 3 (first rank 2 on b) can't see `/runs/x` of a, so it writes"),
            "{one}"
        );
        let two = message(&["", "b", "c"]).unwrap();
        assert!(two.starts_with("2 ranks of 3 (first rank 1 on b)") && two.contains("\nhint: "), "{two}");
    }
}

//! Starts the watchdog of a command, and the thread that names late ranks: the report of a lost rank is written to stderr, to each
//! rank's log file and to the events of a run.

use std::sync::Arc;
use std::time::Duration;

use ddp::config::WatchdogConfig;
use ddp::exit_code;
use ddp::host_memory::{MEMORY_HINT, MemoryKills};
use ddp::report::notes::LOG_FILE;
use ddp::storage::unfinished::Unfinished;
use ddp_comm::watchdog::{Certificate, LossReport, Unwatched, nccl_status};
use ddp_comm::{WatchdogOptions, World};
use ddp_kernels::hint::joined;
use tracing::{error, warn};

use super::late_ranks::name_late_ranks;
use crate::error::{Result, unwatched_warning};
use crate::report::FailedRun;
use crate::report::log::{Log, Terminal};

/// Time limit for NCCL's report, because the process ends one second after the loss was noticed.
const NCCL_ANSWERS: Duration = Duration::from_millis(700);

/// Reaction of a command to a lost rank.
#[derive(Debug, Clone)]
pub(crate) enum Watched {
    /// A run, which has events and can resume from a checkpoint.
    Run(FailedRun),
    /// A command that must be repeated. Its temporary files are removed.
    Other(Unfinished),
    /// The checks of a machine, of which a lost rank is a result.
    Checks,
}

impl Watched {
    /// The next command, after the words `before` unless the run is complete.
    fn hint(&self, before: &str) -> String {
        let next = match self {
            Watched::Run(run) if run.is_complete() => {
                return "the run is complete, and its model is saved".to_owned();
            }
            Watched::Run(run) => &run.resume_hint(),
            Watched::Other(_) => "start the same command again",
            Watched::Checks => {
                "start `ddp-train doctor` on that host alone to see which check it does not end"
            }
        };
        format!("{before}{next}")
    }

    fn exit_code(&self) -> u8 {
        match self {
            Watched::Run(_) | Watched::Other(_) => exit_code::RESTARTABLE,
            Watched::Checks => exit_code::FAILED,
        }
    }
}

/// Starts the watchdog unless the config turns it off. Collective.
///
/// # Errors
/// [`Error::Comm`](crate::Error::Comm).
pub(super) fn start(world: &World, log: &Log, config: &WatchdogConfig, watched: Watched) -> Result<()> {
    if !config.enabled {
        return Ok(());
    }
    if let Some(unwatched) = start_unreported(world, log, config, watched)? {
        warn!("{}", unwatched_warning(&unwatched));
    }
    name_late_ranks(world);
    Ok(())
}

/// Starts the watchdog; returns, on rank 0, the ranks that it does not watch. Collective.
///
/// # Errors
/// [`Error::Comm`](crate::Error::Comm).
pub(super) fn start_unreported(
    world: &World,
    log: &Log,
    config: &WatchdogConfig,
    watched: Watched,
) -> Result<Option<Unwatched>> {
    let options = WatchdogOptions {
        interval: config.interval(),
        timeout: config.timeout(),
        exit_code: watched.exit_code().into(),
    };
    let kills = MemoryKills::watch();
    let report = Report { terminal: log.terminal().clone(), prefix: world.prefix(), watched, kills };
    Ok(world.start_watchdog(options, report)?)
}

/// Destinations of this rank's report of a lost rank.
struct Report {
    terminal: Arc<Terminal>,
    prefix: String,
    watched: Watched,
    /// Kills for want of memory since the watchdog started.
    kills: MemoryKills,
}

impl Report {
    /// The text of the certificate and a hint. A rank that was killed for memory would be again.
    fn words(&self, certificate: &Certificate) -> (String, String) {
        match self.kills.since() {
            Some(limit) => {
                let text = format!("{} A process here was killed for memory ({limit}).", certificate.text);
                (text, self.watched.hint(&format!("{MEMORY_HINT}; then ")))
            }
            None => (certificate.text.clone(), self.watched.hint("")),
        }
    }
}

impl LossReport for Report {
    fn message(&self, certificate: &Certificate) -> String {
        self.terminal.begin_failure();
        let (text, hint) = self.words(certificate);
        self.terminal.failure(&self.prefix, &joined(text, Some(&hint)))
    }

    fn record(&self, certificate: &Certificate) {
        let Certificate { device, last_operations, reports, step, .. } = certificate;
        let (text, hint) = self.words(certificate);
        match (&self.watched, *reports) {
            (Watched::Run(failed), Some(rank)) => {
                failed.at(*step).write(exit_code::RESTARTABLE, rank, &text, Some(&hint));
                failed.write_flight(&certificate.flight);
            }
            (Watched::Run(_), None) | (Watched::Checks, _) => {}
            (Watched::Other(unfinished), _) => unfinished.end(),
        }
        error!(target: LOG_FILE, "{text}\nlast operations of this rank, oldest first:{last_operations}");
        if reports.is_some()
            && device.starts_with("cuda")
            && let Some(status) = nccl_status(NCCL_ANSWERS)
        {
            error!(target: LOG_FILE, "NCCL's own report of the job (RAS):\n{status}");
        }
    }
}

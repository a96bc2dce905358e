//! Starts the watchdog of a run: the death certificate of a lost rank goes to stderr, to each rank's log file and to the run's events.

use std::sync::Arc;

use ddp_comm::watchdog::{Certificate, LossReport};
use ddp_comm::{WatchdogOptions, World};
use tracing::{error, warn};

use crate::config::WatchdogConfig;
use crate::error::Result;
use crate::exit_code;
use crate::report::FailedRun;
use crate::report::log::{LOG_FILE, Log, Terminal};

const HINT: &str = "\nhint: the same command with `--resume auto` continues from the newest checkpoint";

/// Starts the watchdog unless the config turns it off. Collective.
///
/// # Errors
/// [`Error::Comm`](crate::Error::Comm).
pub(crate) fn start(world: &World, log: &Log, config: &WatchdogConfig, failed: &FailedRun) -> Result<()> {
    if !config.enabled {
        return Ok(());
    }
    let options = WatchdogOptions {
        interval: config.interval(),
        timeout: config.timeout(),
        exit_code: exit_code::RESTARTABLE.into(),
    };
    let report = Report { terminal: log.terminal().clone(), prefix: world.prefix(), failed: failed.clone() };
    if let Some(warning) = world.start_watchdog(options, report)? {
        warn!("{warning}");
    }
    Ok(())
}

/// Where this rank reports a lost rank.
struct Report {
    terminal: Arc<Terminal>,
    prefix: String,
    failed: FailedRun,
}

impl LossReport for Report {
    fn message(&self, certificate: &Certificate) -> String {
        self.terminal.begin_failure();
        self.terminal.failure(&self.prefix, &format!("{}{HINT}", certificate.text))
    }

    fn record(&self, certificate: &Certificate) {
        let Certificate { text, last_operations, reports, step } = certificate;
        if let Some(rank) = *reports {
            let step = step.map(|under_way| under_way - 1);
            let failed = FailedRun { step, ..self.failed.clone() };
            failed.write(exit_code::RESTARTABLE, rank, &format!("{text}{HINT}"));
        }
        error!(target: LOG_FILE, "{text}\nlast operations of this rank, oldest first:{last_operations}");
    }
}

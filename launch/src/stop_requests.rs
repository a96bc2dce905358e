//! Signals to the supervisor: the first requests the ranks to save and stop, a second SIGINT ends the job immediately.

use std::io;

use ddp::train::stop_signals::StopSignals;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::processes;

/// A request of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// Save a checkpoint and stop.
    Stop(&'static str),
    /// End immediately.
    EndNow,
}

/// Signals that have arrived, and the receiver of further ones.
#[derive(Debug)]
pub(crate) struct StopRequests {
    signals: Signals,
    /// Name of the first signal.
    stop: Option<&'static str>,
    is_interrupted: bool,
}

impl StopRequests {
    /// Takes over from `earlier`, which has received the signals since the start of the process.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn listen(earlier: &StopSignals) -> io::Result<Self> {
        let signals = Signals::new([SIGTERM, SIGINT, SIGUSR1])?;
        // Closing the terminal stops the run, unless `nohup` prevents it.
        if !processes::is_ignored(SIGHUP) {
            signals.add_signal(SIGHUP)?;
        }
        let stop = earlier.received();
        Ok(StopRequests { signals, stop, is_interrupted: stop == Some("SIGINT") })
    }

    /// The next request, if a signal has arrived since the last call.
    pub(crate) fn poll(&mut self) -> Option<Request> {
        let mut request = None;
        for signal in self.signals.pending() {
            if signal == SIGINT && std::mem::replace(&mut self.is_interrupted, true) {
                return Some(Request::EndNow);
            }
            if self.stop.is_none() {
                let name = name(signal);
                self.stop = Some(name);
                request = Some(Request::Stop(name));
            }
        }
        request
    }

    /// The signal that requested the stop, if any.
    pub(crate) fn stop(&self) -> Option<&'static str> {
        self.stop
    }
}

fn name(signal: i32) -> &'static str {
    match signal {
        SIGTERM => "SIGTERM",
        SIGINT => "SIGINT",
        SIGHUP => "SIGHUP",
        _ => "SIGUSR1",
    }
}

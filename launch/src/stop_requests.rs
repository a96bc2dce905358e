//! Signals to the supervisor: the first requests the ranks to save and stop; a second SIGINT, and SIGQUIT, end the job immediately.

use std::io;

use ddp::train::stop_signals::{StopSignals, name, stop_signals};
use signal_hook::consts::{SIGINT, SIGQUIT};
use signal_hook::iterator::Signals;

/// A request of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// Save a checkpoint and stop.
    Stop(&'static str),
    /// End immediately, because of this signal.
    EndNow(&'static str),
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
        let signals = Signals::new(stop_signals())?;
        signals.add_signal(SIGQUIT)?;
        let stop = earlier.received();
        Ok(StopRequests { signals, stop, is_interrupted: stop == Some("SIGINT") })
    }

    /// The next request, if a signal has arrived since the last call.
    pub(crate) fn poll(&mut self) -> Option<Request> {
        let mut request = None;
        for signal in self.signals.pending() {
            if signal == SIGQUIT || (signal == SIGINT && std::mem::replace(&mut self.is_interrupted, true)) {
                self.stop.get_or_insert(name(signal));
                return Some(Request::EndNow(name(signal)));
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

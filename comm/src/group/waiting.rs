//! Time that a rank spends in a collective: added to its counter, reported to the watchdog, and recorded while a trace is on.

use std::time::Instant;

use super::traffic::Counter;
use crate::Call;
use crate::recorder::Track;

/// A rank that waits for others, until this value is dropped.
pub(super) struct Waiting<'a> {
    counter: &'a Counter,
    since: Instant,
    /// Its name in a trace, and the bytes of the buffer of a collective.
    name: &'static str,
    n_bytes: Option<u64>,
    /// The collective that it runs, by its number among the operations of the watchdog's progress.
    operation: Option<u64>,
}

impl<'a> Waiting<'a> {
    /// Records that the rank of `counter`, one of `world_size`, runs `call`, or else waits.
    pub(super) fn new(
        counter: &'a Counter,
        call: Option<Call>,
        name: &'static str,
        world_size: usize,
    ) -> Self {
        let operation = counter.progress().and_then(|progress| match call {
            Some(call) => Some(progress.enter(call)),
            None => {
                progress.wait();
                None
            }
        });
        let n_bytes = call.map(|call| call.n_bytes(world_size));
        Waiting { counter, since: Instant::now(), name, n_bytes, operation }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Waiting { counter, since, name, n_bytes, operation } = self;
        let now = Instant::now();
        counter.add_time(now - *since);
        if let Some(progress) = counter.progress() {
            operation.iter().for_each(|operation| progress.end_operation(*operation));
            progress.leave();
        }
        if let Some(recorder) = counter.recorder() {
            recorder.add(Track::Exchange, *name, (*since, now), *n_bytes);
        }
    }
}

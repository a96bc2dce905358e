//! State of a rank that survives the loss of another one: the training thread offers what it holds, and the watchdog's thread, which asks
//! the other ranks, lets one rank save.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::offer::{Offer, SaveAfterLoss};

/// Time beyond the limit for which a training thread waits: a bound in case the watchdog's thread is gone.
const BEYOND: Duration = Duration::from_secs(10);

/// The state of one rank after a loss, shared by its two threads.
#[derive(Debug, Default)]
pub(crate) struct Survivor {
    /// Longest time for a save, in ms; 0 while this rank holds nothing that is worth one.
    limit_ms: AtomicU64,
    /// Whether the updates of this rank's GPU are stopped, so that the communicators of other ranks may be aborted.
    is_closed: AtomicBool,
    /// Whether the updates of all ranks are stopped.
    may_abort: AtomicBool,
    /// Whether an abort of another rank may have reached this one's sums before.
    is_spoiled: AtomicBool,
    /// Whether this rank offers states that it keeps in host memory, which may be of steps before the last one.
    is_in_host_memory: AtomicBool,
    /// Whether a save together with others can't be completed.
    loss_in_save: Arc<AtomicBool>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum State {
    #[default]
    Training,
    /// The state that this rank could save; none if it can't.
    Offered(Option<Offer>),
    Chosen(SaveAfterLoss),
    /// Nothing is left to wait for.
    Over,
    /// Whether the save has succeeded.
    Saved(bool),
}

impl Survivor {
    /// From now on a loss is followed by a save of at most this time; none for no save.
    pub(crate) fn set_limit(&self, limit: Option<Duration>) {
        let limit_ms = limit.map_or(0, |limit| limit.as_millis().max(1) as u64);
        self.limit_ms.store(limit_ms, Relaxed);
    }

    /// The longest time for a save, if there is to be one.
    pub(crate) fn limit(&self) -> Option<Duration> {
        match self.limit_ms.load(Relaxed) {
            0 => None,
            ms => Some(Duration::from_millis(ms)),
        }
    }

    /// From now on this rank offers states that it keeps in host memory, or again what its device holds.
    pub(crate) fn set_in_host_memory(&self, is_in_host_memory: bool) {
        self.is_in_host_memory.store(is_in_host_memory, SeqCst);
    }

    /// Whether this rank offers states that it keeps in host memory.
    pub(crate) fn is_in_host_memory(&self) -> bool {
        self.is_in_host_memory.load(SeqCst)
    }

    /// On a GPU: the updates of this rank are stopped, or, if not `is_closed`, its state must not be saved. Waits until all ranks have said
    /// so, for at most `limit`: the abort of a communicator completes collectives of other ranks with undefined sums.
    pub(crate) fn close(&self, is_closed: bool, limit: Duration) {
        self.is_closed.store(is_closed, SeqCst);
        let may_abort = self.may_abort_within(limit);
        self.is_spoiled.store(!is_closed || !may_abort, SeqCst);
    }

    /// Waits until this rank may abort its communicator, for at most `limit`; returns whether it may.
    pub(crate) fn may_abort_within(&self, limit: Duration) -> bool {
        let since = Instant::now();
        while !self.may_abort.load(SeqCst) && since.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.may_abort.load(SeqCst)
    }

    /// Whether the updates of this rank are stopped.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(SeqCst)
    }

    /// Lets this rank abort its communicator.
    pub(crate) fn let_abort(&self) {
        self.may_abort.store(true, SeqCst);
    }

    /// Offers to save a state, or says that this rank has none to save; returns what to save if this rank is chosen. Otherwise
    /// the process ends meanwhile, or this returns None in the end.
    pub(crate) fn offer(&self, offer: Option<Offer>) -> Option<SaveAfterLoss> {
        let limit = self.limit().unwrap_or_default() + BEYOND;
        let offer = offer.filter(|_| !self.is_spoiled.load(SeqCst));
        let mut state = self.state();
        if *state != State::Training {
            return None;
        }
        *state = State::Offered(offer);
        let is_waiting = |state: &mut State| matches!(state, State::Offered(_));
        let waited = self.changed.wait_timeout_while(state, limit, is_waiting);
        match &*waited.unwrap_or_else(PoisonError::into_inner).0 {
            State::Chosen(save) => Some(save.clone()),
            _ => None,
        }
    }

    /// The offer of this rank.
    pub(crate) fn offered(&self) -> Option<Option<Offer>> {
        match *self.state() {
            State::Offered(offer) => Some(offer),
            _ => None,
        }
    }

    /// Lets this rank save what it has offered.
    pub(crate) fn choose(&self, save: SaveAfterLoss) {
        *self.state() = State::Chosen(save);
        self.changed.notify_all();
    }

    /// Lets the training thread go that has offered a state and was not chosen.
    pub(crate) fn stop_waiting(&self) {
        let mut state = self.state();
        if matches!(*state, State::Training | State::Offered(_)) {
            *state = State::Over;
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The save has ended.
    pub(crate) fn end(&self, is_saved: bool) {
        *self.state() = State::Saved(is_saved);
    }

    /// Set once another rank of the save is lost, or has failed.
    pub(crate) fn loss_in_save(&self) -> Arc<AtomicBool> {
        self.loss_in_save.clone()
    }

    /// Whether the save has succeeded, once it has ended.
    pub(crate) fn is_saved(&self) -> Option<bool> {
        match *self.state() {
            State::Saved(is_saved) => Some(is_saved),
            _ => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone() -> SaveAfterLoss {
        SaveAfterLoss { step: 7, ranks: vec![0], lacks_weights: false }
    }

    /// The state that the abort of another rank may have reached is not offered.
    #[test]
    fn a_rank_that_aborts_before_the_others_have_stopped_offers_nothing() {
        for (is_closed, may_abort, offered) in [
            (true, true, Some(Offer::whole(7))),
            (true, false, None),
            (false, true, None),
            (false, false, None),
        ] {
            let survivor = Survivor::default();
            survivor.set_limit(Some(Duration::from_secs(1)));
            if may_abort {
                survivor.let_abort();
            }
            survivor.close(is_closed, Duration::from_millis(5));
            assert_eq!(survivor.is_closed(), is_closed);
            std::thread::scope(|scope| {
                scope.spawn(|| survivor.offer(Some(Offer::whole(7))));
                while survivor.offered().is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(survivor.offered(), Some(offered), "{is_closed}, {may_abort}");
                survivor.choose(alone());
            });
        }
    }

    #[test]
    fn a_rank_saves_once_it_is_chosen() {
        let survivor = Survivor::default();
        assert_eq!((survivor.limit(), survivor.offered()), (None, None));
        survivor.set_limit(Some(Duration::from_secs(1)));
        std::thread::scope(|scope| {
            let training = scope.spawn(|| {
                let save = survivor.offer(Some(Offer::whole(7)));
                survivor.end(save == Some(alone()));
            });
            while survivor.offered().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!((survivor.offered(), survivor.is_saved()), (Some(Some(Offer::whole(7))), None));
            survivor.choose(alone());
            training.join().unwrap();
        });
        assert_eq!(survivor.is_saved(), Some(true));
    }
}

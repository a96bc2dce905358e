//! The watchdog: if a caller waits while nothing moves, it prints what each stream waits for and aborts the process, in a
//! situation in which hardware would hang for ever.

use crate::abi::lock;
use crate::config::CONFIG;
use crate::report::{report, say};
use crate::stream::{self, PROGRESS};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Interval at which a waiter polls.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// Time since which nothing has moved, as observed by one waiter.
pub(crate) struct Patience {
    progress: u64,
    since: Instant,
}

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience { progress: PROGRESS.load(Relaxed), since: Instant::now() }
    }

    /// Ends the process if no operation of any stream has ended for `VGPU_TIMEOUT` seconds.
    pub(crate) fn check(&mut self, who: &str) {
        let progress = PROGRESS.load(Relaxed);
        if progress != self.progress {
            *self = Patience::new();
        } else if self.since.elapsed().as_secs() >= CONFIG.timeout_s {
            give_up(who);
        }
    }
}

/// Records that a caller polled for work that is not done. Polling without a pause counts as waiting.
pub(crate) fn poll() {
    static POLLING: Mutex<Option<(Patience, Instant)>> = Mutex::new(None);
    let mut polling = lock(&POLLING);
    let now = Instant::now();
    match &mut *polling {
        Some((patience, last)) if now.duration_since(*last) < Duration::from_secs(5) => {
            *last = now;
            patience.check("the host asks again and again whether a stream or an event is done");
        }
        other => *other = Some((Patience::new(), now)),
    }
}

/// Current work of each busy stream, as one line.
fn state() -> String {
    let states: Vec<String> = stream::all().iter().filter_map(|stream| stream.state()).collect();
    if states.is_empty() { "no stream has work".into() } else { states.join("; ") }
}

/// Prints the current work of each stream.
pub(crate) fn say_state() {
    say(&state());
}

fn give_up(who: &str) -> ! {
    report(&format!("no progress for {} s while {who}: {}", CONFIG.timeout_s, state()));
    std::process::abort();
}

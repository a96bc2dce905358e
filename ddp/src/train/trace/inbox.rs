//! Requests to a running job that rank 0 serves: places of the ranks at once, traces by the training loop.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ddp_comm::Watchdog;
use ddp_comm::watchdog::RankPlace;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::warn;

use crate::run_folder::requests::{self, Asked, Request};

/// Answer to a request for a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceAnswer {
    /// The trace is in this file.
    Written {
        /// Its path, as the run knows it.
        path: PathBuf,
    },
    /// The trace could not be written.
    Failed {
        /// The reason.
        reason: String,
    },
}

/// Requests for traces that wait for the training loop.
#[derive(Debug)]
pub struct Inbox {
    run: PathBuf,
    watchdog: Watchdog,
    /// Whether there are some: all that a step looks at.
    is_waiting: AtomicBool,
    waiting: Mutex<VecDeque<(u64, String)>>,
}

impl Inbox {
    /// Creates the inbox of the run in the folder `run`, whose ranks `watchdog` knows.
    pub fn new(run: PathBuf, watchdog: Watchdog) -> Self {
        Inbox { run, watchdog, is_waiting: AtomicBool::new(false), waiting: Mutex::default() }
    }

    /// Serves a request, on any thread: the training thread may hang.
    pub fn serve(&self, asked: Asked) {
        match asked.request {
            Request::Trace { steps } => {
                self.lock().push_back((steps, asked.name));
                self.is_waiting.store(true, Relaxed);
            }
            Request::Stacks => {
                let places = self.watchdog.places();
                let ranks: Option<Vec<_>> = places.map(|places| places.iter().map(place_json).collect());
                self.write(&asked.name, &json!({ "ranks": ranks }).to_string());
            }
        }
    }

    /// Whether a request for a trace waits.
    pub(super) fn is_waiting(&self) -> bool {
        self.is_waiting.load(Relaxed)
    }

    /// The steps and the name of the next request for a trace.
    pub(super) fn next(&self) -> Option<(u64, String)> {
        let mut waiting = self.lock();
        let next = waiting.pop_front();
        self.is_waiting.store(!waiting.is_empty(), Relaxed);
        next
    }

    /// Answers a request for a trace.
    pub(super) fn answer(&self, name: &str, answer: &TraceAnswer) {
        self.write(name, &serde_json::to_string(answer).expect("texts"));
    }

    fn write(&self, name: &str, text: &str) {
        if let Err(error) = requests::answer(&self.run, name, text) {
            // Whoever asked may have given up, with the folder.
            warn!("a request to the run could not be answered in `{}`: {error}", self.run.display());
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, String)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place_json(place: &RankPlace) -> Value {
    let RankPlace {
        rank,
        host,
        pid,
        device,
        phase,
        step,
        n_collectives,
        collective,
        is_inside,
        still,
        silent,
    } = place;
    json!({
        "rank": rank,
        "host": host,
        "pid": pid,
        "device": device,
        "phase": phase.map(|phase| phase.to_string()),
        "step": step,
        "n_collectives": n_collectives,
        "collective": collective,
        "is_inside": is_inside,
        "still_s": still.as_secs_f64(),
        "silent_s": silent.as_secs_f64(),
    })
}

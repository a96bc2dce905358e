//! State of a run while it trains, for those that follow it from outside: [`super::kubeflow`] and [`super::prometheus`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Beginning of the names of metrics that are times of parts of a step, in s.
pub(super) const TIME: &str = "time.";

/// Rows and metrics of a run so far.
#[derive(Debug)]
pub(super) struct Live {
    rows: Range<u64>,
    n_done: AtomicU64,
    /// Microseconds since 1970; 0 before the first step.
    last_step: AtomicU64,
    metrics: Mutex<BTreeMap<String, f64>>,
    since: Instant,
}

impl Live {
    /// A run over `rows`: from those that are done to all.
    pub(super) fn new(rows: Range<u64>) -> Self {
        let n_done = AtomicU64::new(rows.start);
        Live { rows, n_done, last_step: AtomicU64::new(0), metrics: Mutex::default(), since: Instant::now() }
    }

    /// Counts the rows of a step.
    pub(super) fn advance(&self, n_rows: u64) {
        self.n_done.fetch_add(n_rows, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_step.store(now.as_micros() as u64, Ordering::Relaxed);
    }

    /// Sets the latest value of each metric.
    pub(super) fn set<N: Into<String>>(&self, metrics: impl IntoIterator<Item = (N, f64)>) {
        let metrics = metrics.into_iter().map(|(name, value)| (name.into(), value));
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner).extend(metrics);
    }

    /// Latest value of each metric.
    pub(super) fn metrics(&self) -> BTreeMap<String, f64> {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Rows used so far, by this process and by those before it.
    pub(super) fn n_done(&self) -> u64 {
        self.n_done.load(Ordering::Relaxed)
    }

    /// Share of the rows of the run, 0 to 1.
    pub(super) fn done(&self) -> f64 {
        (self.n_done() as f64 / self.rows.end.max(1) as f64).min(1.0)
    }

    /// Estimated seconds until the end; `None` before the first step.
    pub(super) fn left_s(&self) -> Option<f64> {
        let here = self.n_done().saturating_sub(self.rows.start);
        let left = self.rows.end.saturating_sub(self.n_done());
        (here > 0).then(|| self.since.elapsed().as_secs_f64() / here as f64 * left as f64)
    }

    /// End of the last step, in seconds since 1970; `None` before the first one.
    pub(super) fn last_step_s(&self) -> Option<f64> {
        let micros = self.last_step.load(Ordering::Relaxed);
        (micros > 0).then_some(micros as f64 * 1e-6)
    }
}

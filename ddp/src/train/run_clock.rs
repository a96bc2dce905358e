//! Times of a run: start-up, steps, waiting for data.

use ddp_kernels::DType;

use crate::config::{DataConfig, ShuffleMode};
use crate::data::Dataset;
use crate::data::loader::{DataLoader, LoaderTimes};

/// Least training time, in s, after which waiting for data is reported: the first batches of a run are always waited for.
const MIN_TRAIN_S: f64 = 5.0;
/// Share of the training time from which waiting for data is reported.
const DATA_BOUND_SHARE: f64 = 0.1;

/// Times of a run, or of this process's leg of it.
#[derive(Debug, Default)]
pub(crate) struct RunClock {
    /// Time from process start to the end of the first step, in s.
    pub(crate) startup_s: Option<f64>,
    /// Time in steps, in s.
    pub(crate) train_s: f64,
    /// Rows of all ranks in those steps.
    pub(crate) samples: u64,
    /// Values at the last lap.
    last: (f64, u64, LoaderTimes),
    /// The last known time of copying a step's rows to the GPU, in ms.
    h2d_ms: f64,
}

/// Rates since the last lap.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecentRates {
    /// Rows of all ranks per second.
    pub(crate) samples_per_s: f64,
    /// Time that a step waited for its rows, in ms.
    pub(crate) data_wait_ms: f64,
    /// Time of copying a step's rows to the GPU, in ms, in the last steps of which it is known.
    pub(crate) h2d_ms: f64,
}

impl RunClock {
    /// Returns the rates since the last call.
    pub(crate) fn lap(&mut self, times: LoaderTimes) -> RecentRates {
        let RunClock { train_s, samples, last, h2d_ms, .. } = self;
        let (last_s, last_samples, last_times) = std::mem::replace(last, (*train_s, *samples, times));
        let n_batches = (times.n_batches - last_times.n_batches).max(1) as f64;
        let n_timed = times.n_timed - last_times.n_timed;
        if n_timed > 0 {
            *h2d_ms = (times.h2d_ms - last_times.h2d_ms) / n_timed as f64;
        }
        RecentRates {
            samples_per_s: (*samples - last_samples) as f64 / (*train_s - last_s),
            data_wait_ms: (times.wait - last_times.wait).as_secs_f64() * 1e3 / n_batches,
            h2d_ms: *h2d_ms,
        }
    }

    /// The share of the training time that was spent waiting for data, if it is worth a report.
    fn share_of(&self, times: LoaderTimes) -> Option<f64> {
        let share = times.wait.as_secs_f64() / self.train_s;
        (self.train_s >= MIN_TRAIN_S && share >= DATA_BOUND_SHARE).then_some(share)
    }

    /// Returns advice if the run was bound by data loading.
    pub(crate) fn data_bound(
        &self,
        loader: &DataLoader,
        train: &dyn Dataset,
        data: &DataConfig,
    ) -> Option<String> {
        let share = self.share_of(loader.times())?;
        let mut advice = Vec::from_iter(train.advice());
        if loader.n_threads() > 0 {
            advice.push(format!("`data.loader_threads` above {}", loader.n_threads()));
        }
        if loader.is_host_to_gpu() && train.layout().dtype == DType::F32 {
            advice.push("features stored as f16, bf16 or u8".to_owned());
        }
        if train.resident_bytes() == 0 && data.shuffle && data.shuffle_mode == ShuffleMode::Full {
            advice.push("`data.shuffle_mode = \"blocks\"` if the disk is slow".to_owned());
        }
        if advice.is_empty() {
            advice.push("a larger `train.batch_size`".to_owned());
        }
        Some(format!(
            "data-bound: {:.0}% of the training time was spent waiting for data; try {}",
            share * 100.0,
            advice.join(", or ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_short_run_gets_no_advice() {
        let share = |train_s, wait_s| {
            let wait = Duration::from_secs_f64(wait_s);
            RunClock { train_s, ..RunClock::default() }
                .share_of(LoaderTimes { wait, ..LoaderTimes::default() })
        };
        assert_eq!(share(0.05, 0.05), None);
        assert_eq!(share(0.0, 0.0), None);
        assert_eq!(share(10.0, 0.5), None);
        assert_eq!(share(10.0, 5.0), Some(0.5));
    }
}

//! Clocks: the host clock for synchronous work, GPU events for enqueued work.
//!
//! The first call is not timed: it compiles, plans and allocates. Short operations are repeated within one measurement. On a GPU
//! they are captured as a graph and replayed, so that launch overhead on the host does not count; training steps do the same.

use std::time::Instant;

use ddp_kernels::KernelError;
use ddp_kernels::cuda::{Gpu, Graph, Timer};

use super::place::Place;
use crate::cli::BenchTimingArgs;

type Result<T, E = KernelError> = std::result::Result<T, E>;

/// A call of the timed work. Not generic, because compiling a copy of the clock for each of the fifty benchmarks takes long.
type Work<'a> = dyn FnMut(usize) -> Result<()> + 'a;

/// Calls per graph: enough to hide the launch of a graph of tiny kernels.
const MAX_CALLS_PER_GRAPH: usize = 256;
/// Maximum calls per measurement.
const MAX_CALLS: usize = 100_000;

/// Number and length of measurements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effort {
    pub(super) repeats: usize,
    pub(super) repeat_ms: f64,
}

impl Effort {
    pub(super) fn new(args: BenchTimingArgs) -> Self {
        Effort { repeats: args.repeats, repeat_ms: f64::from(args.repeat_ms) }
    }

    /// Number of calls per measurement for an operation that takes `once_ms`.
    pub(super) fn n_calls(self, once_ms: f64) -> usize {
        ((self.repeat_ms / once_ms.max(1e-4)).ceil() as usize).clamp(1, MAX_CALLS)
    }

    /// Times of one call of `n_calls`, whose ms together `time` returns.
    pub(super) fn times<E>(
        self,
        n_calls: usize,
        mut time: impl FnMut() -> Result<f64, E>,
    ) -> Result<Times, E> {
        let one = || Ok(time()? / n_calls as f64);
        std::iter::repeat_with(one).take(self.repeats).collect::<Result<_, E>>().map(Times::of)
    }
}

/// Statistics of several measurements of one call, in ms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Times {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Times {
    /// Computes the statistics; NaN without measurements.
    pub(super) fn of(mut ms: Vec<f64>) -> Self {
        ms.sort_by(f64::total_cmp);
        let n = ms.len();
        let at = |i: usize| ms.get(i).copied().unwrap_or(f64::NAN);
        Times {
            median: (at(n / 2) + at(n.saturating_sub(1) / 2)) / 2.0,
            min: at(0),
            max: at(n.wrapping_sub(1)),
        }
    }

    /// `amount` divided by the median time, in 10^9 per second.
    pub(super) fn giga_per_s(&self, amount: f64) -> f64 {
        amount / self.median * 1e-6
    }
}

/// Clock of a measurement.
pub(super) enum Clock {
    Host,
    Gpu(&'static Gpu, Timer),
}

impl Clock {
    /// The clock for work on this device.
    pub(super) fn of(place: &Place) -> Result<Self> {
        match place.gpu()? {
            None => Ok(Clock::Host),
            Some(gpu) => Ok(Clock::Gpu(gpu, Timer::new(gpu)?)),
        }
    }

    /// Times of one call of `work`, which receives the index of the call; on a GPU, calls are replayed as a graph.
    pub(super) fn time(&self, effort: Effort, mut work: impl FnMut(usize) -> Result<()>) -> Result<Times> {
        match self {
            Clock::Host => self.time_calls(effort, &mut work),
            Clock::Gpu(gpu, _) => self.time_graph(gpu, effort, &mut work),
        }
    }

    /// Same as [`Clock::time`], without a graph.
    pub(super) fn time_eagerly(
        &self,
        effort: Effort,
        mut work: impl FnMut(usize) -> Result<()>,
    ) -> Result<Times> {
        self.time_calls(effort, &mut work)
    }

    fn time_graph(&self, gpu: &'static Gpu, effort: Effort, work: &mut Work<'_>) -> Result<Times> {
        let n_calls = effort.n_calls(self.warm_up(work)?);
        let n_captured = n_calls.min(MAX_CALLS_PER_GRAPH);
        let mut graph = Graph::capture(gpu, || (0..n_captured).try_for_each(work))?;
        let n_launches = n_calls.div_ceil(n_captured);
        let mut replay = || (0..n_launches).try_for_each(|_| graph.launch());
        replay()?;
        effort.times(n_launches * n_captured, || self.measure(&mut replay))
    }

    fn time_calls(&self, effort: Effort, work: &mut Work<'_>) -> Result<Times> {
        let n_calls = effort.n_calls(self.warm_up(work)?);
        effort.times(n_calls, || self.measure(|| (0..n_calls).try_for_each(&mut *work)))
    }

    /// Calls `work` once or twice to warm up and returns the ms of the last call.
    fn warm_up(&self, work: &mut Work<'_>) -> Result<f64> {
        let first = self.measure(|| work(0))?;
        // A long first call is representative; a short one may be dominated by one-time work.
        if matches!(self, Clock::Host) && first > 1e3 { Ok(first) } else { self.measure(|| work(1)) }
    }

    /// Times `work` in ms; on a GPU by events in its compute stream.
    fn measure(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        match self {
            Clock::Host => {
                let started = Instant::now();
                work()?;
                Ok(started.elapsed().as_secs_f64() * 1e3)
            }
            Clock::Gpu(gpu, timer) => {
                timer.start(gpu.compute())?;
                work()?;
                timer.stop(gpu.compute())?;
                timer.elapsed_ms()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_reported_by_median_and_range() {
        let times = Times::of(vec![4.0, 1.0, 2.0, 8.0]);
        assert_eq!(times, Times { median: 3.0, min: 1.0, max: 8.0 });
        assert_eq!(Times::of(vec![5.0]), Times { median: 5.0, min: 5.0, max: 5.0 });
        assert!(Times::of(Vec::new()).median.is_nan());
        // 6e9 in 3 ms.
        assert!((times.giga_per_s(6e9) - 2000.0).abs() < 1e-9);
    }

    #[test]
    fn short_calls_are_repeated() {
        let effort = Effort { repeats: 1, repeat_ms: 20.0 };
        assert_eq!((effort.n_calls(50.0), effort.n_calls(3.0), effort.n_calls(0.0)), (1, 7, MAX_CALLS));
        let mut calls = Vec::new();
        let times = Clock::Host.time(Effort { repeats: 3, repeat_ms: 0.0 }, |call| {
            calls.push(call);
            Ok(())
        });
        assert_eq!(calls, [0, 1, 0, 0, 0], "a warm-up of two calls, then three measurements of one");
        assert!(times.unwrap().min >= 0.0);
    }
}

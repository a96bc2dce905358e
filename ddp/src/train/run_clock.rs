//! Times of a run: start-up, steps, evaluations, checkpoints, and the parts of steps.

use std::time::Instant;

use crate::data::loader::LoaderTimes;
use crate::report::times::TimeSplit;
use crate::train::step_times::{StepPart, StepTimes};

/// Times of a run, or of this process's leg of it.
#[derive(Debug, Default)]
pub(crate) struct RunClock {
    /// Time from process start to the end of the first step, in s.
    pub(crate) startup_s: Option<f64>,
    /// Rows of all ranks in completed steps.
    pub(crate) samples: u64,
    /// Begin of the first step.
    began: Option<Instant>,
    spent: Spent,
    /// Values at the last lap.
    last: Lap,
    /// The last known time of copying a step's rows to the GPU, in ms.
    h2d_ms: f64,
}

/// Time so far on this rank, in s.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spent {
    /// Steps.
    pub(crate) n_steps: u64,
    /// Time in steps.
    pub(crate) steps: f64,
    evaluation: f64,
    checkpoint: f64,
    total: f64,
}

/// Values at a point of the run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Lap {
    spent: Spent,
    samples: u64,
    loader: LoaderTimes,
    parts: StepTimes,
}

/// Work between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    Evaluation,
    Checkpoint,
}

/// Rates since the last lap.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecentRates {
    /// Rows of all ranks per second.
    pub(crate) samples_per_s: f64,
    /// Time of copying a step's rows to the GPU, in ms, in the last steps of which it is known.
    pub(crate) h2d_ms: f64,
    /// Mean time per step, in ms; None on a GPU before a step was measured.
    pub(crate) time: Option<TimeSplit>,
}

impl RunClock {
    /// A step begins.
    pub(crate) fn begin_step(&mut self) {
        self.began.get_or_insert_with(Instant::now);
        self.spent.n_steps += 1;
    }

    /// Adds the time since `since` to that of steps.
    pub(crate) fn add_step(&mut self, since: Instant) {
        self.spent.steps += since.elapsed().as_secs_f64();
    }

    /// Adds the time since `since` to that of pauses.
    pub(crate) fn add_pause(&mut self, pause: Pause, since: Instant) {
        let time = match pause {
            Pause::Evaluation => &mut self.spent.evaluation,
            Pause::Checkpoint => &mut self.spent.checkpoint,
        };
        *time += since.elapsed().as_secs_f64();
    }

    /// Time in steps, in s.
    pub(crate) fn train_s(&self) -> f64 {
        self.spent.steps
    }

    /// Steps of this process.
    pub(crate) fn n_steps(&self) -> u64 {
        self.spent.n_steps
    }

    /// Values at this point.
    pub(crate) fn now(&self, loader: LoaderTimes, parts: StepTimes) -> Lap {
        let total = self.began.map_or(0.0, |began| began.elapsed().as_secs_f64());
        Lap { spent: Spent { total, ..self.spent }, samples: self.samples, loader, parts }
    }

    /// Returns the rates since the last call.
    pub(crate) fn lap(&mut self, loader: LoaderTimes, parts: StepTimes) -> RecentRates {
        let now = self.now(loader, parts);
        let last = std::mem::replace(&mut self.last, now);
        let n_timed = loader.n_timed - last.loader.n_timed;
        if n_timed > 0 {
            self.h2d_ms = (loader.h2d_ms - last.loader.h2d_ms) / n_timed as f64;
        }
        let n_steps = (now.spent.n_steps - last.spent.n_steps).max(1) as f64;
        RecentRates {
            samples_per_s: (now.samples - last.samples) as f64 / (now.spent.steps - last.spent.steps),
            h2d_ms: self.h2d_ms,
            time: now.since(&last).map(|time| time.times(1e3 / n_steps)),
        }
    }
}

impl Lap {
    /// Steps up to this point.
    pub(crate) fn n_steps(&self) -> u64 {
        self.spent.n_steps
    }

    /// The steps between `earlier` and this point, and the time in them, in s.
    pub(crate) fn steps_since(&self, earlier: &Lap) -> (u64, f64) {
        (self.spent.n_steps - earlier.spent.n_steps, self.spent.steps - earlier.spent.steps)
    }

    /// Where the time between `earlier` and this point went, in s. The parts of steps are those of the measured ones, in which a GPU may have
    /// been slower than in the others: they take no more than the time in all steps. What is left of that is time for which
    /// the device waited for rows, as far as the host did.
    pub(crate) fn since(&self, earlier: &Lap) -> Option<TimeSplit> {
        let recent = self.parts.since(&earlier.parts);
        let parts = if recent.n_steps > 0 { recent } else { self.parts };
        let (n_steps, steps) = self.steps_since(earlier);
        let busy: f64 =
            StepPart::ALL.iter().map(|part| parts.mean(*part)).sum::<Option<f64>>()? * n_steps as f64;
        let scale = if busy > steps { steps / busy } else { 1.0 } * n_steps as f64;
        let part = |part| parts.mean(part).unwrap_or_default() * scale;
        let waited = (self.loader.wait - earlier.loader.wait).as_secs_f64();
        let split = TimeSplit {
            data: part(StepPart::Data) + waited.min((steps - busy).max(0.0)),
            h2d: part(StepPart::CopyToGpu),
            forward: part(StepPart::Forward),
            backward: part(StepPart::Backward),
            exchange: part(StepPart::Exchange),
            update: part(StepPart::Update),
            evaluation: self.spent.evaluation - earlier.spent.evaluation,
            checkpoint: self.spent.checkpoint - earlier.spent.checkpoint,
            other: 0.0,
            total: self.spent.total - earlier.spent.total,
        };
        Some(split.with_other())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::times::Part;

    /// 10 steps in 2 s, of which the loader was waited for `wait` s; one measured step of these parts.
    fn lap(wait: f64, parts: [f64; 6]) -> Lap {
        let mut times = StepTimes::default();
        times.add_step(parts);
        let spent = Spent { n_steps: 10, steps: 2.0, evaluation: 0.5, checkpoint: 0.25, total: 3.0 };
        let loader = LoaderTimes { wait: Duration::from_secs_f64(wait), ..LoaderTimes::default() };
        Lap { spent, samples: 320, loader, parts: times }
    }

    #[test]
    fn the_parts_add_up_to_the_total() {
        for (wait, parts, data, other) in [
            // The device computes for 1.5 s; the loader explains 0.25 s of the rest.
            (0.25, [0.0, 0.01, 0.04, 0.06, 0.03, 0.01], 0.25, 0.5),
            // It waits for the loader, which also waits while it computes.
            (1.0, [0.0, 0.01, 0.04, 0.06, 0.03, 0.01], 0.5, 0.25),
            // The measured step was slower than the others.
            (1.0, [0.0, 0.1, 0.1, 0.1, 0.05, 0.05], 0.0, 0.25),
        ] {
            let split = lap(wait, parts).since(&Lap::default()).unwrap();
            let sum: f64 = Part::ALL.iter().map(|part| split.get(*part)).sum();
            assert!((sum - split.total).abs() < 1e-9 && split.total == 3.0, "{split:?}");
            assert!((split.data - data).abs() < 1e-9 && (split.other - other).abs() < 1e-9, "{split:?}");
        }
    }

    #[test]
    fn a_run_without_measured_steps_has_no_split() {
        assert_eq!(Lap { parts: StepTimes::default(), ..lap(0.0, [0.0; 6]) }.since(&Lap::default()), None);
    }

    #[test]
    fn a_lap_without_measured_steps_is_split_as_the_run_so_far() {
        let mut clock = RunClock { spent: lap(0.0, [0.0; 6]).spent, samples: 320, ..RunClock::default() };
        let parts = lap(0.0, [0.0, 0.0, 0.1, 0.0, 0.0, 0.0]).parts;
        clock.lap(LoaderTimes::default(), parts);
        clock.spent.n_steps += 10;
        clock.spent.steps += 2.0;
        let time = clock.lap(LoaderTimes::default(), parts).time.unwrap();
        assert!((time.forward - 100.0).abs() < 1e-9, "{time:?}");
    }
}

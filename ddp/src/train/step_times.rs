//! Where the time of steps goes: its parts, measured by the host's clock on the CPU and by events of the device on a GPU.
//!
//! On the CPU each step is measured. The exchange is what the rank cannot hide: its time in collectives, mostly waiting for other ranks;
//! what backward advances on the way counts as backward. On a GPU the steps that [`StepRequest`](crate::train::step_info::StepRequest)
//! names are measured, by points of the compute stream; the exchange is the time for which that stream waits for collectives.
//!
//! ```
//! use ddp::train::step_times::{StepPart, StepTimes};
//!
//! let mut times = StepTimes::default();
//! times.add_step([0.0, 0.0, 1.0, 2.0, 0.5, 0.5]);
//! times.add_step([0.0, 0.0, 3.0, 2.0, 0.5, 0.5]);
//! assert_eq!(times.mean(StepPart::Forward), Some(2.0));
//! assert_eq!(StepTimes::default().mean(StepPart::Forward), None);
//! ```

use std::time::{Duration, Instant};

use ddp_comm::{Track, World};
use ddp_kernels::cuda::WAITING;

/// A part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepPart {
    /// Taking the rows from the loader on the CPU; the wait before the step is not part of it.
    Data,
    /// Waiting for the copy of the rows to a GPU.
    CopyToGpu,
    /// Outputs and loss.
    Forward,
    /// Gradients, and what the exchange advances meanwhile.
    Backward,
    /// Collectives that no computation hides.
    Exchange,
    /// Clipping and the optimizer.
    Update,
}

impl StepPart {
    /// All parts, in the order of a step.
    pub const ALL: [StepPart; 6] = [
        StepPart::Data,
        StepPart::CopyToGpu,
        StepPart::Forward,
        StepPart::Backward,
        StepPart::Exchange,
        StepPart::Update,
    ];

    /// Its name in a trace.
    pub fn name(self) -> &'static str {
        match self {
            StepPart::Data => "take rows",
            StepPart::CopyToGpu => "host to device",
            StepPart::Forward => "forward",
            StepPart::Backward => "backward",
            StepPart::Exchange => "exposed communication",
            StepPart::Update => "update",
        }
    }
}

/// Label of the mark at the end of a step on a GPU; the others are parts, and [`WAITING`] for the exchange.
pub(crate) const STEP_END: u8 = StepPart::ALL.len() as u8;

/// Name in a trace of the work after a mark of a GPU.
pub(crate) fn name_of_mark(label: u8) -> &'static str {
    let part = if label == WAITING { StepPart::Exchange as u8 } else { label };
    StepPart::ALL.get(usize::from(part)).map_or("end", |part| part.name())
}

/// Times of the parts of measured steps, summed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepTimes {
    /// Measured steps.
    pub n_steps: u64,
    /// Time of each part, in s, in the order of [`StepPart::ALL`].
    seconds: [f64; StepPart::ALL.len()],
}

impl StepTimes {
    /// Adds a step, by the time of each part in s, in the order of [`StepPart::ALL`].
    pub fn add_step(&mut self, seconds: [f64; StepPart::ALL.len()]) {
        self.n_steps += 1;
        self.seconds.iter_mut().zip(seconds).for_each(|(sum, part)| *sum += part);
    }

    /// Adds a step by the marks of a GPU: labels and the time after each, in ms.
    pub(crate) fn add_marks(&mut self, marks: &[(u8, f64)]) {
        let mut seconds = [0.0; StepPart::ALL.len()];
        for &(label, ms) in marks {
            let part = if label == WAITING { StepPart::Exchange as u8 } else { label };
            if let Some(sum) = seconds.get_mut(usize::from(part)) {
                *sum += ms * 1e-3;
            }
        }
        self.add_step(seconds);
    }

    /// Mean time of a part per measured step, in s; None if no step was measured.
    pub fn mean(&self, part: StepPart) -> Option<f64> {
        (self.n_steps > 0).then(|| self.seconds[part as usize] / self.n_steps as f64)
    }

    /// The times since `earlier`, a value of the same steps.
    pub fn since(&self, earlier: &StepTimes) -> StepTimes {
        StepTimes {
            n_steps: self.n_steps - earlier.n_steps,
            seconds: std::array::from_fn(|part| self.seconds[part] - earlier.seconds[part]),
        }
    }
}

/// Measures the parts of the steps of a rank on the CPU.
#[derive(Debug)]
pub(crate) struct HostClock {
    times: StepTimes,
    /// The part under way.
    part: Option<StepPart>,
    since: Instant,
    /// Time in collectives before it.
    in_collectives: Duration,
}

impl HostClock {
    pub(crate) fn new() -> Self {
        HostClock {
            times: StepTimes::default(),
            part: None,
            since: Instant::now(),
            in_collectives: Duration::ZERO,
        }
    }

    /// The times so far.
    pub(crate) fn times(&self) -> StepTimes {
        self.times
    }

    /// Begins a part of a step, and ends the one before.
    pub(crate) fn begin(&mut self, part: StepPart, world: &World) {
        self.switch(Some(part), world);
    }

    /// Ends the last part of a step.
    pub(crate) fn end_step(&mut self, world: &World) {
        self.switch(None, world);
        self.times.n_steps += 1;
    }

    fn switch(&mut self, next: Option<StepPart>, world: &World) {
        let (now, in_collectives) = (Instant::now(), world.tensor_group().time_in_collectives());
        if let Some(part) = self.part {
            let exchange = in_collectives - self.in_collectives;
            let own = (now - self.since).saturating_sub(exchange);
            self.times.seconds[part as usize] += own.as_secs_f64();
            self.times.seconds[StepPart::Exchange as usize] += exchange.as_secs_f64();
            world.recorder().add(Track::Host, part.name(), (self.since, now), None);
        }
        (self.part, self.since, self.in_collectives) = (next, now, in_collectives);
    }
}

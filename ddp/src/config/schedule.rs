//! `[schedule]`: how the learning rate changes from step to step. The formulas are in [`crate::optim::schedule`].

/// `[schedule]`
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScheduleConfig {
    /// How the learning rate begins.
    pub warmup: Warmup,
    /// What comes then.
    pub shape: ScheduleShape,
}

/// How the learning rate rises to `optimizer.lr`: in a line, or along a cosine for [`ScheduleShape::OneCycle`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Warmup {
    /// Steps that it takes; 0 for none.
    pub length: Span,
    /// The first step's learning rate over `optimizer.lr`, in [0, 1]; `None` is `1 / (steps + 1)`, so that the rise is even
    /// and no step is lost.
    pub start: Option<f64>,
}

/// What follows the warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScheduleShape {
    /// `optimizer.lr` to the end.
    Constant,
    /// A line down to `final_fraction` of `optimizer.lr` at the end of the run.
    Linear {
        /// In [0, 1].
        final_fraction: f64,
    },
    /// Half a cosine down to `final_fraction` of `optimizer.lr` at the end of the run.
    Cosine {
        /// In [0, 1].
        final_fraction: f64,
    },
    /// Up along a cosine in the warm-up, down along another one.
    OneCycle {
        /// In [0, 1].
        final_fraction: f64,
    },
    /// Down by `factor` now and then.
    Step {
        /// How often, at least one step.
        every: Span,
        /// In (0, 1].
        factor: f64,
    },
    /// Warm-up, stable, decay: a line down to `final_fraction` of `optimizer.lr` over the last steps of the run.
    Wsd {
        /// Length of the decay.
        decay: Span,
        /// In [0, 1].
        final_fraction: f64,
    },
}

/// A number of steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Span {
    /// As such.
    Steps(u64),
    /// As a part of the run's, in [0, 1].
    Fraction(f64),
}

impl ScheduleConfig {
    /// `optimizer.lr` from the first step to the last.
    pub const CONSTANT: Self = ScheduleConfig {
        warmup: Warmup { length: Span::Steps(0), start: None },
        shape: ScheduleShape::Constant,
    };
}

impl ScheduleShape {
    /// The name in the config.
    pub fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Linear { .. } => "linear",
            Self::Cosine { .. } => "cosine",
            Self::OneCycle { .. } => "one_cycle",
            Self::Step { .. } => "step",
            Self::Wsd { .. } => "wsd",
        }
    }
}

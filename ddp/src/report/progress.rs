//! Progress of a training run, as its loop reports it. The program draws it.

use std::path::Path;

use crate::report::metrics::{EndEvent, EpochEvent, EvalEvent, StepEvent};

/// Place of an evaluation among those of its run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standing {
    /// Whether it is the best so far.
    pub is_best: bool,
    /// Whether the run is complete.
    pub is_last: bool,
}

/// Receives the progress of a run on one rank. `()` shows nothing.
pub trait Progress {
    /// Adds the rows that a step has used on all ranks. Cheap enough for every step.
    fn advance(&self, _n_rows: u64) {}

    /// Reports a logged step.
    fn step(&self, _event: &StepEvent) {}

    /// Reports the end of an epoch.
    fn epoch_end(&self, _event: &EpochEvent, _standing: Standing) {}

    /// Reports an evaluation within an epoch.
    fn eval(&self, _event: &EvalEvent, _standing: Standing) {}

    /// Reports the end of a successful run and the folder of its files.
    fn end(&mut self, _event: &EndEvent, _folder: Option<&Path>) {}
}

impl Progress for () {}

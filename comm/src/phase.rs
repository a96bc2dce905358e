//! The phases of a job.

use std::fmt;

/// A part of a job, each with its own limit for the time without progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Before the first step: data are read and the model is built.
    Start,
    /// A training step.
    Step,
    /// An evaluation.
    Evaluation,
    /// A checkpoint is taken or waited for.
    Checkpoint,
    /// After the last step: files are written and the ranks leave.
    End,
    /// The ranks compare their replicas of the model.
    ReplicaCheck,
    /// Rows are predicted.
    Prediction,
    /// The host, its devices and the ranks are checked before a run.
    Doctor,
}

impl Phase {
    const ALL: [Phase; 8] = [
        Phase::Start,
        Phase::Step,
        Phase::Evaluation,
        Phase::Checkpoint,
        Phase::End,
        Phase::ReplicaCheck,
        Phase::Prediction,
        Phase::Doctor,
    ];

    pub(crate) fn to_code(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Phase::Start => "start",
            Phase::Step => "training",
            Phase::Evaluation => "evaluation",
            Phase::Checkpoint => "checkpoint",
            Phase::End => "end",
            Phase::ReplicaCheck => "comparison of replicas",
            Phase::Prediction => "prediction",
            Phase::Doctor => "checks of the machine",
        })
    }
}

//! Where the time of a run goes, as events report it.
//!
//! ```
//! use ddp::report::times::{Part, TimeSplit};
//!
//! let split = TimeSplit { forward: 1.0, backward: 2.0, exchange: 1.0, total: 5.0, ..TimeSplit::default() };
//! assert_eq!(split.with_other().get(Part::Other), 1.0);
//! assert_eq!(split.share(Part::Backward), 0.4);
//! assert_eq!(split.with_other().shares(), "backward 40%, forward 20%, exchange 20%, other 20%");
//! ```

use serde::{Deserialize, Serialize, Serializer};

/// A part of the time of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Waiting for rows.
    Data,
    /// Waiting for rows to be copied to the GPU.
    CopyToGpu,
    /// Outputs and loss.
    Forward,
    /// Gradients.
    Backward,
    /// Collectives that no computation hides.
    Exchange,
    /// Clipping and the optimizer.
    Update,
    /// Evaluations.
    Evaluation,
    /// Pauses for checkpoints.
    Checkpoint,
    /// The rest: events, launches of kernels, idle time of the GPU.
    Other,
}

impl Part {
    /// All parts.
    pub const ALL: [Part; 9] = [
        Part::Data,
        Part::CopyToGpu,
        Part::Forward,
        Part::Backward,
        Part::Exchange,
        Part::Update,
        Part::Evaluation,
        Part::Checkpoint,
        Part::Other,
    ];

    /// Its name on the terminal.
    pub fn name(self) -> &'static str {
        match self {
            Part::Data => "data",
            Part::CopyToGpu => "copy to GPU",
            Part::Forward => "forward",
            Part::Backward => "backward",
            Part::Exchange => "exchange",
            Part::Update => "update",
            Part::Evaluation => "evaluation",
            Part::Checkpoint => "checkpoint",
            Part::Other => "other",
        }
    }
}

/// Time by what it was spent on, in one unit.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TimeSplit {
    /// See [`Part::Data`].
    #[serde(serialize_with = "rounded")]
    pub data: f64,
    /// See [`Part::CopyToGpu`].
    #[serde(serialize_with = "rounded")]
    pub h2d: f64,
    /// See [`Part::Forward`].
    #[serde(serialize_with = "rounded")]
    pub forward: f64,
    /// See [`Part::Backward`].
    #[serde(serialize_with = "rounded")]
    pub backward: f64,
    /// See [`Part::Exchange`].
    #[serde(serialize_with = "rounded")]
    pub exchange: f64,
    /// See [`Part::Update`].
    #[serde(serialize_with = "rounded")]
    pub update: f64,
    /// See [`Part::Evaluation`].
    #[serde(serialize_with = "rounded")]
    pub evaluation: f64,
    /// See [`Part::Checkpoint`].
    #[serde(serialize_with = "rounded")]
    pub checkpoint: f64,
    /// See [`Part::Other`].
    #[serde(serialize_with = "rounded")]
    pub other: f64,
    /// The sum of all parts.
    #[serde(serialize_with = "rounded")]
    pub total: f64,
}

impl TimeSplit {
    /// The time of a part.
    pub fn get(&self, part: Part) -> f64 {
        match part {
            Part::Data => self.data,
            Part::CopyToGpu => self.h2d,
            Part::Forward => self.forward,
            Part::Backward => self.backward,
            Part::Exchange => self.exchange,
            Part::Update => self.update,
            Part::Evaluation => self.evaluation,
            Part::Checkpoint => self.checkpoint,
            Part::Other => self.other,
        }
    }

    /// Share of a part in the total; 0 without time.
    pub fn share(&self, part: Part) -> f64 {
        if self.total > 0.0 { self.get(part) / self.total } else { 0.0 }
    }

    /// The parts in descending order, such as `forward 41%, backward 38%`, without those below 1%.
    pub fn shares(&self) -> String {
        let mut parts = Part::ALL;
        parts.sort_by(|a, b| self.get(*b).total_cmp(&self.get(*a)));
        let shown = parts.into_iter().filter(|part| self.share(*part) >= 0.01);
        let shares = shown.map(|part| format!("{} {:.0}%", part.name(), self.share(part) * 100.0));
        shares.collect::<Vec<_>>().join(", ")
    }

    /// Sets what is left of the total as the other time.
    #[must_use]
    pub fn with_other(self) -> Self {
        let known: f64 =
            Part::ALL.iter().filter(|part| **part != Part::Other).map(|part| self.get(*part)).sum();
        TimeSplit { other: (self.total - known).max(0.0), ..self }
    }

    /// Applies `f` to the times of this and of another split.
    #[must_use]
    pub fn zip(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Self {
        TimeSplit {
            data: f(self.data, other.data),
            h2d: f(self.h2d, other.h2d),
            forward: f(self.forward, other.forward),
            backward: f(self.backward, other.backward),
            exchange: f(self.exchange, other.exchange),
            update: f(self.update, other.update),
            evaluation: f(self.evaluation, other.evaluation),
            checkpoint: f(self.checkpoint, other.checkpoint),
            other: f(self.other, other.other),
            total: f(self.total, other.total),
        }
    }

    /// All times multiplied by a number.
    #[must_use]
    pub fn times(&self, factor: f64) -> Self {
        self.zip(self, |time, _| time * factor)
    }
}

/// Time of the steps of one rank next to that of the others.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankTime {
    /// The rank.
    pub rank: usize,
    /// Its host.
    pub host: String,
    /// Mean time per step that the rank computes, loads or copies, in ms: what the other ranks wait for.
    #[serde(serialize_with = "rounded")]
    pub busy_ms: f64,
    /// Mean time per step that it needs more than the median rank, in ms.
    #[serde(serialize_with = "rounded")]
    pub late_ms: f64,
    /// Why the rank is late, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// Rounds to a ten-thousandth, so that lines stay short.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn rounded<S: Serializer>(time: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((time * 1e4).round() / 1e4)
}

//! Treatment of steps whose loss or gradient is not finite, and of steps whose loss is far above the recent ones: keys of
//! `[train]`.

use super::error::Result;
use super::raw::RawConfig;
use super::value::config_enum;
use super::writer::Writer;

config_enum! {
    /// Treatment of a step whose update is withheld.
    pub enum BadStep {
        /// The run ends and reports the ranks, layers and rows.
        Stop = "stop",
        /// The run continues without the step's update.
        Skip = "skip",
        /// The run continues from its newest checkpoint, without this step's update.
        Rollback = "rollback",
    }
}

config_enum! {
    /// Treatment of a step whose loss is far above the recent ones.
    pub enum Spike {
        /// Losses are not compared.
        Off = "off",
        /// Same as [`BadStep::Stop`].
        Stop = "stop",
        /// Same as [`BadStep::Skip`].
        Skip = "skip",
        /// Same as [`BadStep::Rollback`].
        Rollback = "rollback",
    }
}

/// Policies for steps that go wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BadSteps {
    /// Steps whose loss or gradient is not finite.
    pub on_nonfinite: BadStep,
    /// Steps whose loss is far above the recent ones.
    pub on_spike: Spike,
    /// Recent steps whose losses are compared.
    pub spike_window: usize,
    /// Robust z-score of a loss above which it is a spike.
    pub spike_threshold: f64,
}

impl Spike {
    /// Treatment of a spike; `None` if losses are not compared.
    pub fn treatment(self) -> Option<BadStep> {
        match self {
            Spike::Off => None,
            Spike::Stop => Some(BadStep::Stop),
            Spike::Skip => Some(BadStep::Skip),
            Spike::Rollback => Some(BadStep::Rollback),
        }
    }
}

impl BadSteps {
    pub(super) fn read(raw: &RawConfig) -> Result<Self> {
        Ok(BadSteps {
            on_nonfinite: raw.get("train.on_nonfinite")?,
            on_spike: raw.get("train.on_spike")?,
            spike_window: raw.get("train.spike_window")?,
            spike_threshold: raw.get("train.spike_threshold")?,
        })
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        let BadSteps { on_nonfinite, on_spike, spike_window, spike_threshold } = self;
        writer.put("train.on_nonfinite", on_nonfinite);
        writer.put("train.on_spike", on_spike);
        writer.put("train.spike_window", spike_window);
        writer.put("train.spike_threshold", spike_threshold);
    }
}

//! Flags about checks of GPUs against the CPU.

use std::time::Duration;

use clap::{Args, ValueEnum};

/// When a run checks its GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CheckMode {
    /// At the first start of such a model with a GPU model, driver, libraries and program.
    Auto,
    /// At each start.
    Always,
    /// Never.
    Off,
}

/// Check of the GPU before a command computes on it.
#[derive(Debug, Clone, Copy, Args)]
pub struct StartCheckArgs {
    /// Check of the GPU against the CPU before the data are read: auto at the first start of such a model with a GPU model, driver,
    /// libraries and program, always at each start, off never [default: DDP_TRAIN_CHECK of the environment, else auto]
    #[arg(long, value_enum, value_name = "MODE")]
    pub check: Option<CheckMode>,

    /// Its time limit.
    #[command(flatten)]
    pub limit: CheckArgs,
}

/// Models that the process of a check trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Checked {
    /// That of the config on stdin.
    Run,
    /// Examples of all kinds.
    All,
}

/// Time limit of a check.
#[derive(Debug, Clone, Copy, Args)]
pub struct CheckArgs {
    /// Seconds without a result after which a check of a GPU, or the trial of the collectives of several, is ended
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = seconds)]
    pub check_timeout: f64,
}

impl CheckArgs {
    /// The limit.
    pub fn limit(&self) -> Duration {
        Duration::from_secs_f64(self.check_timeout)
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 1e6 => Ok(seconds),
        _ => Err("expected a number above 0\nhint: for example 120".to_owned()),
    }
}

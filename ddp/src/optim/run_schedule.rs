//! The learning-rate schedules of a run: one for all parameters, and those of groups.
//!
//! ```
//! use ddp::optim::{OptimizerConfig, OptimizerKind, ParamGroup, ScheduleConfig, ScheduleShape};
//! use ddp::optim::run_schedule::RunSchedule;
//!
//! let shape = ScheduleShape::Linear { final_fraction: 0.0 };
//! let decay = Some(ScheduleConfig { shape, ..ScheduleConfig::CONSTANT });
//! let head = ParamGroup { pattern: "layers.1.*".to_owned(), lr_scale: 1.0, weight_decay: None, schedule: decay };
//! let sgd = OptimizerConfig { groups: vec![head], ..OptimizerConfig::new(OptimizerKind::Sgd, 0.5) };
//!
//! // Halfway through a run of 10 steps.
//! let schedule = RunSchedule::new(&ScheduleConfig::CONSTANT, &sgd, Some(10))?;
//! assert_eq!((schedule.lr(5), schedule.group_lrs(5)), (0.5, vec![0.25]));
//! # Ok::<(), ddp::optim::OptimError>(())
//! ```

use super::schedule::Schedule;
use crate::config::{OptimizerConfig, ScheduleConfig};
use crate::optim::error::Result;

/// The learning rates of each step of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSchedule {
    all: Schedule,
    groups: Vec<Schedule>,
    /// Step before the update whose rates later updates repeat.
    last_step: u64,
}

impl RunSchedule {
    /// Creates the schedules of a run of `total_steps` optimizer steps: the one in `config`, and those of the groups of
    /// `optimizer`.
    ///
    /// # Errors
    /// See [`Schedule::new`].
    pub fn new(
        config: &ScheduleConfig,
        optimizer: &OptimizerConfig,
        total_steps: Option<u64>,
    ) -> Result<Self> {
        let groups = optimizer.groups.iter().filter_map(|group| group.schedule.as_ref());
        Ok(RunSchedule {
            all: Schedule::new(config, optimizer.lr, total_steps)?,
            groups: groups
                .map(|schedule| Schedule::new(schedule, optimizer.lr, total_steps))
                .collect::<Result<_>>()?,
            last_step: u64::MAX,
        })
    }

    /// Repeats the rates of update `n_steps` in all later ones.
    #[must_use]
    pub fn held_after(self, n_steps: u64) -> Self {
        RunSchedule { last_step: n_steps.saturating_sub(1), ..self }
    }

    /// Learning rate of the update after `step` earlier ones, for parameters without a schedule of their own.
    pub fn lr(&self, step: u64) -> f64 {
        self.all.lr(step.min(self.last_step))
    }

    /// Learning rates by the schedules of the groups that have one, in the order of the groups, without the groups' factors.
    pub fn group_lrs(&self, step: u64) -> Vec<f64> {
        self.groups.iter().map(|schedule| schedule.lr(step.min(self.last_step))).collect()
    }

    /// Factor of the rates of parameters without a schedule of their own after `n_reductions` on plateaus.
    pub fn plateau_factor(&self, n_reductions: u64) -> f64 {
        self.all.plateau_factor(n_reductions)
    }

    /// Whether the run ends before the warm-up does.
    pub fn ends_in_warmup(&self) -> bool {
        self.all.ends_in_warmup() || self.groups.iter().any(Schedule::ends_in_warmup)
    }
}

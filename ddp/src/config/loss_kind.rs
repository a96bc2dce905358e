//! The names of losses, and the tasks that they fit.

use super::data_values::Task;
use super::error::Result;
use super::raw::RawConfig;
use super::value::config_enum;

/// The values of `loss.kind`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum LossKind {
    Auto,
    CrossEntropy,
    Bce,
    Focal,
    Mse,
    Huber,
    LogCosh,
    Quantile,
    Poisson,
    Ordinal,
}

config_enum!(impl LossKind {
    Auto = "auto",
    CrossEntropy = "cross_entropy",
    Bce = "bce",
    Focal = "focal",
    Mse = "mse",
    Huber = "huber",
    LogCosh = "log_cosh",
    Quantile = "quantile",
    Poisson = "poisson",
    Ordinal = "ordinal",
});

/// The task that the loss implies, if only one fits it. A task's default loss implies none: it follows from the task.
pub(super) fn task_of_loss(raw: &RawConfig) -> Result<Option<Task>> {
    let kind = raw.get_or("loss.kind", LossKind::Auto)?;
    let mut tasks = Task::ALL.iter().filter(|task| losses_of(**task)[1..].contains(&kind));
    let task = tasks.next().copied();
    Ok(task.filter(|_| tasks.next().is_none()))
}

/// The losses of a task, the default first.
pub(super) fn losses_of(task: Task) -> &'static [LossKind] {
    use LossKind::{Auto, Bce, CrossEntropy, Focal, Huber, LogCosh, Mse, Ordinal, Poisson, Quantile};
    match task {
        Task::Classification => &[CrossEntropy, Focal, Ordinal],
        Task::Multilabel => &[Bce, Focal],
        Task::Regression => &[Mse, Huber, LogCosh, Quantile, Poisson],
        // Each head has a loss of its own.
        Task::Heads => &[Auto],
    }
}

//! The names of the losses, and the tasks that each loss fits.

use super::data_values::Task;
use super::error::Result;
use super::raw::RawConfig;
use super::setting::Setting;

/// Selects the default loss of the task.
pub(super) const AUTO: &str = "auto";

/// The values of `loss.kind`.
pub(super) const NAMES: &[&str] =
    &[AUTO, "cross_entropy", "bce", "focal", "mse", "huber", "log_cosh", "quantile", "poisson", "ordinal"];

/// The value of `loss.kind`.
pub(super) fn loss_name(raw: &RawConfig) -> Result<&'static str> {
    raw.setting("loss.kind").as_ref().map_or(Ok(AUTO), Setting::name)
}

/// The task that the loss implies, if it fits only one task. A task's default loss implies none, because it follows from the
/// task.
pub(super) fn task_of_loss(raw: &RawConfig) -> Result<Option<Task>> {
    let name = loss_name(raw)?;
    let mut tasks = Task::ALL.iter().filter(|task| losses_of(**task)[1..].contains(&name));
    let task = tasks.next().copied();
    Ok(task.filter(|_| tasks.next().is_none()))
}

/// The losses of a task; the first is the default.
pub(super) fn losses_of(task: Task) -> &'static [&'static str] {
    match task {
        Task::Classification => &["cross_entropy", "focal", "ordinal"],
        Task::Multilabel => &["bce", "focal"],
        Task::Regression => &["mse", "huber", "log_cosh", "quantile", "poisson"],
        // Each head has a loss of its own.
        Task::Heads => &[AUTO],
    }
}

//! The decision whether targets are classes or quantities.

use crate::config::Task;

/// The task of `data.task = "auto"`, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskChoice {
    /// Task that fits the targets.
    pub task: Task,
    /// The reason as the end of a sentence: "because ...".
    pub reason: String,
}

//! The labels of rows that are read: which ones there are, and the classes that they become.

pub mod task;
pub(crate) mod survey;
pub(crate) mod label_classes;
pub(crate) mod head_rows;

//! Class labels: what the data hold, and the class indices of a model.
//!
//! Label columns and arrays hold texts, truth values or integers. The distinct labels of the training rows, sorted, are the
//! [`LabelVocabulary`] of a model; a label's position is its class index. It is saved with the model, so that evaluation and
//! prediction use the same classes.
//!
//! Data flow: values of the target -> labels and task (`ddp-tables`, or a program) -> `vocabulary` -> class indices.

pub mod label;
pub mod task_choice;
pub mod vocabulary;
pub mod head_targets;

pub use label::{Label, bool_text};
pub use task_choice::TaskChoice;
pub use vocabulary::{LabelVocabulary, MAX_CLASSES, similar};

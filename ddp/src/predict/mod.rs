//! Predicting with a trained model.
//!
//! Data flow: model file -> [`SavedModel`] -> [`Predictor`]; rows -> blocks -> forward -> [`Predictions`] -> output. Rows keep
//! their order, and memory does not grow with their number: a block of rows is read, predicted and written at a time. Each rank
//! takes every N-th block and writes its own part.

mod columns;
mod error;
pub(crate) mod input;
pub(crate) mod observed_rows;
pub(crate) mod output;
mod predictions;
mod predictor;
pub(crate) mod run;
mod saved_model;

pub use error::{PredictError, Result};
pub use predictions::Predictions;
pub use predictor::Predictor;
pub use saved_model::SavedModel;
pub(crate) use saved_model::is_active;

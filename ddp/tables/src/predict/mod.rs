//! Predicting with a trained model.
//!
//! Data flow: model file -> [`SavedModel`] -> [`Predictor`]; rows -> blocks -> forward -> [`Predictions`] -> output. Rows keep
//! their order, and memory does not grow with the number of rows, because blocks of rows are read, predicted and written one at a
//! time. Each rank processes every N-th block and writes its own shard.
//!
//! ```
//! let run = "../tests/fixtures/saved_runs/regression/finished"; // a run's folder
//! let mut model = ddp_tables::Predictor::open(run)?;
//! assert_eq!(model.columns(), ["bmi", "blood_pressure", "s1", "s5"]);
//!
//! let rows = [[-0.18_f32, -0.11, 0.85, -0.37], [0.06, 1.21, f32::NAN, 0.09]];
//! let progress = model.predict(rows.as_flattened())?.values();
//! assert!(progress[0].is_finite() && progress[1].is_nan());
//! # Ok::<(), ddp_tables::predict::PredictError>(())
//! ```

mod error;
pub(crate) mod output;
mod predictions;
mod columns;
mod saved_model;
#[doc(hidden)]
pub mod input;
#[doc(hidden)]
pub mod observed_rows;
mod predictor;
mod pass;
mod scale;
#[doc(hidden)]
pub mod ensemble;
#[doc(hidden)]
pub mod run;

pub use self::error::PredictError;
pub use self::predictions::Predictions;
pub use self::predictor::Predictor;
pub use self::saved_model::SavedModel;
#[doc(hidden)]
pub use self::{
    ensemble::Ensemble, error::Result, pass::Model, saved_model::has_gone_on, saved_model::is_active,
};

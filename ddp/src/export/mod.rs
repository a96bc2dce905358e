//! A trained model as an ONNX file, from the columns of the data to labels or quantities.
//!
//! The graph takes what the data hold (`inputs.rs`: normalisation, missing values, categories), runs the layers (`layers.rs`) and
//! gives probabilities and labels or predictions (`outputs.rs`). It uses operators of ONNX (opset 20) and, for the texts of
//! categories, `LabelEncoder` of `ai.onnx.ml` (version 2), and nothing else. All weights are f32, also those of a model that was
//! trained in bf16 or f16.
//!
//! Source: <https://onnx.ai/onnx/operators/>.

mod error;
mod external;
mod graph;
mod inputs;
mod layers;
mod onnx;
mod outputs;
mod proto;
#[cfg(test)]
mod tests;

pub use error::ExportError;
pub use external::WeightsPlace;
pub use layers::TrainedParam;
pub use onnx::{OnnxModel, Trained};

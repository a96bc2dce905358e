//! A trained model as an ONNX file, from the columns of the data to labels or quantities.
//!
//! The graph takes the columns of the data as input (`inputs.rs`: normalization, missing values, categories), applies the layers
//! (`layers.rs`) and outputs probabilities and labels, or predictions (`outputs.rs`). It uses only operators of ONNX (opset 20)
//! and, for the strings of categories, `LabelEncoder` of `ai.onnx.ml` (version 2). All weights are f32, including those of a
//! model that was trained in bf16 or f16.
//!
//! Source: <https://onnx.ai/onnx/operators/>.
//!
//! ```
//! use ddp_tables::Preprocessor;
//! use ddp_tables::export::{OnnxModel, Trained, TrainedParam, WeightsPlace};
//! use ddp::nn::{Activation, ElementLoss, Loss, Precision, Sequential, Sizes};
//! use ddp::prelude::*;
//! use ddp::train::Task;
//!
//! let sizes = Sizes { max_rows: 1, device: Device::Cpu, precision: Precision::F32 };
//! let network = Sequential::new(2).linear(8).activation(Activation::Relu).linear(1).build(sizes, 0)?;
//!
//! let model = OnnxModel::new(Trained {
//!     preprocessor: &Preprocessor::identity(vec!["height".into(), "weight".into()]),
//!     missing_values: &[],
//!     layers: &network.layers().collect::<Vec<_>>(),
//!     parameters: TrainedParam::from_network(&network)?,
//!     task: Task::Regression,
//!     loss: &Loss::Element(ElementLoss::Mse),
//!     targets: &["age".to_owned()],
//!     config: "",
//!     origin: "no training",
//! })?;
//! assert_eq!(model.signature(), "x [N, 2] float32 -> prediction [N, 1] float64");
//!
//! let folder = tempfile::tempdir()?;
//! model.write(&folder.path().join("model.onnx"), WeightsPlace::default())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod proto;
mod graph;
mod inputs;
mod layers;
mod outputs;
mod onnx;
mod external;
#[cfg(test)]
mod tests;

pub use error::ExportError;
pub use external::WeightsPlace;
pub use layers::TrainedParam;
pub use onnx::{OnnxModel, Trained};

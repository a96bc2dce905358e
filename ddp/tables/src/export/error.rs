//! Errors of exporting a model.

use std::path::PathBuf;

use ddp::storage::write_error::WriteError;

/// The result of this room's functions.
pub(super) type Result<T, E = ExportError> = std::result::Result<T, E>;

/// A model that has no ONNX form, or a file that can't be written.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
pub enum ExportError {
    /// A layer of a custom kind, for which no ONNX form is known.
    #[error(
        "layer {index} of the model ({layer}) has no ONNX form; expected linear, activation, layer norm, dropout, embedding or \
         residual layers"
    )]
    #[diagnostic(help(
        "implement `Layer::operators`, or write the weights alone: `ddp::io::write_safetensors` of `Network::state_dict`"
    ))]
    UnknownLayer {
        /// Position in the model, from 0.
        index: usize,
        /// The layer's description of itself.
        layer: String,
    },
    /// A layer's parameter is missing among the weights, or has a different shape.
    #[error("parameter {name} is {got} among the weights, expected {expected:?}")]
    #[diagnostic(help("the file was changed, or belongs to a different model"))]
    Parameter {
        /// Name of the parameter, as in the model file.
        name: String,
        /// Shape of the parameter, or "missing".
        got: String,
        /// The shape that the layer declares.
        expected: Vec<usize>,
    },
    /// The layers expect different features than the preprocessing produces.
    #[error("the columns give {got}, but the layers expect {expected}")]
    #[diagnostic(help("the file was changed, or belongs to a different model"))]
    Features {
        /// Number of features from the columns.
        got: String,
        /// Number of features that the layers expect.
        expected: String,
    },
    /// A column of integers that only u64 holds: ONNX runtimes can't subtract them.
    #[error("column \"{0}\" has numbers that int64 lacks and float64 rounds")]
    #[diagnostic(help("train on the column less a number near its mean"))]
    Unsigned(String),
    /// The number of classes differs from the number of outputs.
    #[error("the model has {got} labels for {expected} outputs")]
    #[diagnostic(help("the file was changed, or belongs to a different model"))]
    Labels {
        /// Number of class labels.
        got: usize,
        /// Number of outputs of the last layer.
        expected: usize,
    },
    /// A second file for the weights is possible only in ONNX.
    #[error("--external-data is for ONNX, and the output is safetensors")]
    #[diagnostic(help("add --format onnx, or remove --external-data"))]
    ExternalDataOfSafetensors,
    /// The name of the output does not select a format.
    #[error("`{}` ends in neither .onnx nor .safetensors", path.display())]
    #[diagnostic(help(
        "choose such a name, or add --format onnx or --format safetensors; for PyTorch, examples/load_in_pytorch.py loads \
         safetensors"
    ))]
    UnknownEnding {
        /// Requested output, as the user gave it.
        path: PathBuf,
    },
    /// The file can't be written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Write(#[from] WriteError),
}

//! Errors of building a model and of reading its file.

use std::path::PathBuf;

use ddp_kernels::KernelError;

use crate::config::precision::Precision;
use crate::storage::user_file::FileError;

/// The result of this room's functions.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;

/// A model file that can't be used, or a failed operation.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum ModelError {
    /// A device, tensor or operation failed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Kernel(#[from] KernelError),
    /// The file can't be read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    File(#[from] FileError),
    /// The file is not a model file.
    #[error("model file `{}` can't be used: {reason}", path.display())]
    #[diagnostic(help("expected the model.safetensors of a run, or one with the same names and shapes"))]
    ModelFile { path: PathBuf, reason: String },
    /// The file holds another model.
    #[error("model file `{}` belongs to a different model:\n  {differences}", path.display())]
    #[diagnostic(help("{}", mismatch_hint(*.is_only_head)))]
    ModelMismatch {
        path: PathBuf,
        /// Every difference, one per line.
        differences: String,
        /// Whether only the output layer has different shapes.
        is_only_head: bool,
    },
    /// A state dict does not fit the model.
    #[error("the state dict does not fit the model:\n  {faults}")]
    #[diagnostic(help(
        "compare the names and shapes with those of `Network::named_parameters`, or load it with strict = false to skip names that only one side has"
    ))]
    StateDict {
        /// All mismatches, one per line.
        faults: String,
    },
    /// A gradient differs from its difference quotient.
    #[error(
        "gradient check: {name}, element {element}: the gradient is {gradient:e}, the difference quotient {quotient:e}"
    )]
    #[diagnostic(help(
        "compare the layer's backward with the derivative of its forward; at kinks, such as ReLU at 0, choose other rows or a smaller step"
    ))]
    Gradcheck {
        /// The parameter.
        name: String,
        /// Index of the element in the parameter.
        element: usize,
        /// The gradient of the backward pass.
        gradient: f64,
        /// The central difference quotient.
        quotient: f64,
    },
    /// A backward pass that was to add to the gradients of the one before did something else.
    #[error(
        "gradient of `{name}`, element {element}: {once} in one backward pass, and {twice} after a second one that accumulates, expected \
         {}", 2.0 * once
    )]
    #[diagnostic(help(
        "where `accumulate` is set, the layer's backward adds its gradient to what is there instead of replacing it"
    ))]
    GradcheckAccumulated {
        /// The parameter.
        name: String,
        /// Index of the element in the parameter.
        element: usize,
        /// The gradient of the first pass.
        once: f64,
        /// After the second one.
        twice: f64,
    },
    /// A gradient check of a model in a short number format.
    #[error("a gradient check needs a model in f32 or f64, got one in {}", precision.name())]
    #[diagnostic(help("create the network with Precision::F64"))]
    GradcheckPrecision { precision: Precision },
}

fn mismatch_hint(is_only_head: bool) -> &'static str {
    if is_only_head {
        "for other labels or targets `--init-from ... --new-head` keeps all layers but the output layer"
    } else {
        "compare `model` and the data's columns with those of the run that wrote it"
    }
}

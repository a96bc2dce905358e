//! What can go wrong in this crate, each with the operation, the operands and a way out.

use crate::{DType, Device, Shape};

/// Result of every fallible function of this crate.
pub type Result<T> = std::result::Result<T, KernelError>;

/// One operand as error messages show it: its name in the operation's formula, shape, dtype and device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// The operand's name in the operation's documentation.
    pub name: &'static str,
    /// Its shape.
    pub shape: Shape,
    /// Its element type.
    pub dtype: DType,
    /// Where it lives.
    pub device: Device,
}

impl std::fmt::Display for Operand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} on {}", self.name, self.shape, self.dtype, self.device)
    }
}

/// Errors of devices, tensors and operations.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// Two operands of one operation live on different devices.
    #[error(
        "{op}: {a} and {b} are on different devices; nothing is moved implicitly\n\
         hint: move one of them first: {}.to({})", b.name, a.device
    )]
    DeviceMismatch {
        /// The operation.
        op: &'static str,
        /// The first operand.
        a: Box<Operand>,
        /// The one that differs from it.
        b: Box<Operand>,
    },

    /// Two operands of one operation have different element types.
    #[error("{op}: {a} and {b} have different dtypes; nothing is cast implicitly")]
    DTypeMismatch {
        /// The operation.
        op: &'static str,
        /// The first operand.
        a: Box<Operand>,
        /// The one that differs from it.
        b: Box<Operand>,
    },

    /// The operation is not defined for this element type.
    #[error("{op}: {operand} has a dtype that this operation does not take; it takes {takes}")]
    DTypeUnsupported {
        /// The operation.
        op: &'static str,
        /// The operand.
        operand: Box<Operand>,
        /// The dtypes it takes.
        takes: &'static str,
    },

    /// An operand has another shape than the other operands ask for.
    #[error("{op}: {operand} should be {expected}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The operand whose shape is wrong.
        operand: Box<Operand>,
        /// The shape that the other operands ask for.
        expected: Shape,
    },

    /// Data and shape hold different numbers of elements.
    #[error("{op}: {got} elements cannot fill the shape {shape}, which holds {}", shape.numel())]
    ElementCount {
        /// The operation.
        op: &'static str,
        /// Elements that there are.
        got: usize,
        /// The shape asked for.
        shape: Shape,
    },

    /// More than [`crate::shape::MAX_DIMS`] dimensions, or more elements than `usize` counts.
    #[error(
        "the shape {dims:?} cannot be a tensor's: at most {} dimensions, and the product must fit in usize",
        crate::shape::MAX_DIMS
    )]
    BadShape {
        /// The dimensions asked for.
        dims: Vec<usize>,
    },

    /// A range reaches beyond the tensor's end.
    #[error("{op}: the range {start}..{end} reaches beyond the {len} elements that are there")]
    OutOfRange {
        /// The operation.
        op: &'static str,
        /// First element of the range.
        start: usize,
        /// One past its last.
        end: usize,
        /// Elements that there are.
        len: usize,
    },

    /// A class index outside `0..n_classes` that is not the ignored one.
    #[error("{op}: the label of row {row} is {label}, outside 0..{n_classes}")]
    Label {
        /// The operation.
        op: &'static str,
        /// Row of the batch.
        row: usize,
        /// The label.
        label: i64,
        /// Number of classes.
        n_classes: usize,
    },

    /// The device cannot be used: the reason and what to do are in the text.
    #[error("the device {device} cannot be used: {reason}\nhint: {hint}")]
    DeviceUnavailable {
        /// The device asked for.
        device: Device,
        /// Why not.
        reason: &'static str,
        /// What to do.
        hint: &'static str,
    },

    /// A device's name that nobody knows.
    #[error("'{name}' names no device\nhint: cpu, cuda, cuda:N (N from 0), or auto")]
    UnknownDevice {
        /// The text that was given.
        name: String,
    },

    /// The memory could not be had.
    #[error(
        "out of memory on {device}: {bytes} bytes ({:.1} GiB) were asked for\nhint: a smaller model or batch",
        *bytes as f64 / f64::from(1u32 << 30)
    )]
    OutOfMemory {
        /// Where.
        device: Device,
        /// What was asked.
        bytes: usize,
    },

    /// The thread pool could not be started.
    #[error("cannot start {threads} compute threads: {reason}\nhint: --threads takes a smaller number")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// What the system said.
        reason: String,
    },
}

//! What can go wrong in this crate, each with the operation, the operands and a way out.

use crate::cuda::{MemoryInUse, MemoryUse};
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

    /// Pinned memory would be written to while a copy may still read it.
    #[error(
        "the pinned tensor {shape} {dtype} may still be on its way to the GPU\n\
         hint: `is_sent` or `wait_sent` must have said that it has arrived"
    )]
    StillSending {
        /// Its shape.
        shape: Shape,
        /// Its element type.
        dtype: DType,
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

    /// A code of a categorical feature that its table has no row for.
    #[error("{op}: the code of row {row} in column {column} is {code}, not a whole number in 0..{n_codes}")]
    Code {
        /// The operation.
        op: &'static str,
        /// Row of the batch.
        row: usize,
        /// Column of the input.
        column: usize,
        /// The code.
        code: f64,
        /// Number of codes.
        n_codes: usize,
    },

    /// The device cannot be used: the reason and what to do are in the text.
    #[error("the device {device} cannot be used: {reason}\nhint: {hint}")]
    DeviceUnavailable {
        /// The device asked for.
        device: Device,
        /// Why not.
        reason: String,
        /// What to do.
        hint: String,
    },

    /// A device's name that nobody knows.
    #[error("'{name}' names no device\nhint: cpu, cuda, cuda:N (N from 0), or auto")]
    UnknownDevice {
        /// The text that was given.
        name: String,
    },

    /// The memory could not be had.
    #[error(
        "out of memory on {device}: {bytes} bytes ({:.1} GiB) were asked for{}\nhint: {}",
        *bytes as f64 / f64::from(1u32 << 30),
        in_use.as_ref().map_or(String::new(), |in_use| format!("; {in_use}")),
        memory_hint(in_use.as_deref()),
    )]
    OutOfMemory {
        /// Where.
        device: Device,
        /// What was asked.
        bytes: usize,
        /// Who uses how much, where that is known.
        in_use: Option<Box<MemoryInUse>>,
    },

    /// A call of CUDA's driver failed.
    #[error("{device}: {call}: {text} ({code})\nhint: {}", cuda_hint(code))]
    Cuda {
        /// The device.
        device: Device,
        /// The function.
        call: &'static str,
        /// The error's name.
        code: String,
        /// What the driver says of it.
        text: String,
    },

    /// A call of cuBLASLt failed.
    #[error("{device}: {call}: {code}\nhint: CUBLASLT_LOG_LEVEL=1 has cuBLASLt say more")]
    Cublas {
        /// The device.
        device: Device,
        /// The function.
        call: &'static str,
        /// The error's name.
        code: String,
    },

    /// A kernel of this program does not compile with the NVRTC that is there.
    #[error(
        "{device}: the kernels of {kernel} do not compile: {log}\n\
         hint: is the CUDA of NVRTC 12.8 or newer?"
    )]
    Compile {
        /// The device.
        device: Device,
        /// The operation.
        kernel: &'static str,
        /// The compiler's log.
        log: String,
    },

    /// An operand lies in a GPU's memory, where this function cannot reach it, or in the host's and should not.
    #[error("{op}: {operand} is not in the memory that this takes: {takes}\nhint: move it with .to(...)")]
    WrongMemory {
        /// The operation.
        op: &'static str,
        /// The operand.
        operand: Box<Operand>,
        /// What it takes.
        takes: &'static str,
    },

    /// The thread pool could not be started.
    #[error("cannot start {threads} compute threads: {reason}")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// What the system said.
        reason: String,
    },
}

/// How to save memory, by its largest use.
fn memory_hint(in_use: Option<&MemoryInUse>) -> &'static str {
    match in_use {
        None => "a smaller model or batch",
        Some(in_use) if in_use.is_held_by_others() => {
            "other programs hold most of the device's memory: nvidia-smi lists them"
        }
        Some(in_use) => match in_use.largest() {
            MemoryUse::Activations | MemoryUse::Workspace => "smaller micro-batches",
            MemoryUse::Data => "fewer rows on the device at a time",
            MemoryUse::Optimizer => "an optimiser with less state (sgd), or a smaller model",
            _ => "a smaller model, or a device with more memory",
        },
    }
}

/// Errors of a driver that cannot load what this NVRTC compiles.
const DRIVER_MISMATCH: [&str; 3] =
    ["CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_INVALID_PTX", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"];

impl KernelError {
    /// Whether the driver cannot load what the installed NVRTC compiles.
    pub fn is_driver_mismatch(&self) -> bool {
        matches!(self, KernelError::Cuda { code, .. } if DRIVER_MISMATCH.contains(&code.as_str()))
    }
}

fn cuda_hint(code: &str) -> &'static str {
    match code {
        "CUDA_ERROR_ILLEGAL_ADDRESS" | "CUDA_ERROR_LAUNCH_FAILED" | "CUDA_ERROR_MISALIGNED_ADDRESS" => {
            "an earlier kernel on this device failed; CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer shows which one"
        }
        "CUDA_ERROR_ECC_UNCORRECTABLE" => {
            "the device's memory is faulty: nvidia-smi -q -d ECC, then take the device out of service"
        }
        "CUDA_ERROR_DEVICE_UNAVAILABLE" => {
            "another process holds the device (exclusive compute mode?): nvidia-smi lists it"
        }
        _ if DRIVER_MISMATCH.contains(&code) => "the driver and NVRTC are of incompatible versions",
        _ => "dmesg and nvidia-smi may show more",
    }
}

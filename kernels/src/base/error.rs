//! The error type of this crate: each error names the operation, its operands and a fix.

use super::device::Device;
use super::dtype::DType;
use super::hint::with_hint;
use super::memory_use::{MemoryInUse, MemoryUse};
use super::shape::{BadShape, Shape};

/// Result of every fallible function of this crate.
pub type Result<T> = std::result::Result<T, KernelError>;

/// One operand as error messages show it: its name in the operation's formula, shape, dtype and device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// The operand's name in the operation's documentation.
    pub name: &'static str,
    /// Dimensions of the view that was passed.
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
    /// Device that holds its memory.
    pub device: Device,
}

impl std::fmt::Display for Operand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} on {}", self.name, self.shape, self.dtype, self.device)
    }
}

/// Errors of devices, tensors and operations.
/// `{:?}` shows message and hint, as `main` prints them.
#[derive(Clone, PartialEq, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum KernelError {
    /// An operation of a part of a model failed.
    #[error("{part}: {error}")]
    Within {
        /// Name of the part.
        part: Box<str>,
        /// The error of the operation.
        error: Box<KernelError>,
        #[help]
        hint: Option<String>,
    },

    /// Two operands of one operation live on different devices.
    #[error("{op}: {a} and {b} are on different devices; nothing is moved implicitly")]
    #[diagnostic(help("move one of them first: {}.to(\"{}\")", b.name, a.device))]
    DeviceMismatch {
        op: &'static str,
        a: Box<Operand>,
        /// The operand that differs from it.
        b: Box<Operand>,
    },

    /// Two operands of one operation have different element types.
    #[error("{op}: {a} and {b} have different dtypes; nothing is cast implicitly")]
    #[diagnostic(help("cast one of them first: {}.to_dtype(DType::{:?})", b.name, a.dtype))]
    DTypeMismatch {
        op: &'static str,
        a: Box<Operand>,
        /// The operand that differs from it.
        b: Box<Operand>,
    },

    /// Two operands of one operation have shapes that do not fit each other.
    #[error("{op}: {a} and {b} have shapes that do not {rule}; nothing is reshaped implicitly")]
    #[diagnostic(help("{fix}"))]
    ShapeMismatch {
        op: &'static str,
        a: Box<Operand>,
        /// The operand that does not fit it.
        b: Box<Operand>,
        /// Relation that the shapes would need: broadcast, multiply, ...
        rule: &'static str,
        /// The call that makes them fit.
        fix: Box<str>,
    },

    /// A scalar that is not a value of the dtype of the tensor next to it.
    #[error("{op}: the scalar {scalar} is not a value of {operand}; nothing is cast implicitly")]
    #[diagnostic(help("cast the tensor first: {}.to_dtype(DType::F32)", operand.name))]
    Scalar { op: &'static str, scalar: f64, operand: Box<Operand> },

    /// The operation is not defined for this element type.
    #[error("{op}: {operand} has an unsupported dtype; supported: {takes}")]
    DTypeUnsupported { op: &'static str, operand: Box<Operand>, takes: &'static str },

    /// The shape of an operand does not match the other operands.
    #[error("{op}: {operand} should be {expected}")]
    Shape {
        op: &'static str,
        /// The operand whose shape is wrong.
        operand: Box<Operand>,
        /// The shape that the other operands imply.
        expected: Shape,
    },

    /// A backward pass over a different number of rows than the forward pass before it.
    #[error("backward over {n_rows} rows, but the last forward pass had {forward_rows}")]
    #[diagnostic(help("call `forward` on the same rows before `backward`"))]
    Backward { n_rows: usize, forward_rows: usize },

    /// A forward pass over more rows than the model has memory for.
    #[error("a pass over {n_rows} rows, but the model was built for at most {max_rows}")]
    #[diagnostic(help(
        "build it with a larger `max_rows`: a rank's share of the rows of a step, divided by its micro-batches"
    ))]
    PassRows { n_rows: usize, max_rows: usize },

    /// A layer did not write the gradients of all of its parameters.
    #[error(
        "the backward pass of the layer `{layer}` took {n_taken} of {n_params} gradients of its parameters"
    )]
    #[diagnostic(help("call `pass.grads.take()` once for each parameter, and write the gradient to it"))]
    GradientsNotTaken {
        /// The layer's description.
        layer: String,
        n_taken: usize,
        n_params: usize,
    },

    /// Peers could not exchange the sums of an operation that covers all of their rows; the exchange keeps the cause.
    #[error("{op}: the exchange failed")]
    Exchange { op: &'static str },

    /// A write to pinned memory that a copy may still read.
    #[error("the pinned tensor {shape} {dtype} may still be in use by a copy to the GPU")]
    #[diagnostic(help("call `wait_sent`, or wait until `is_sent` returns true"))]
    StillSending { shape: Shape, dtype: DType },

    /// An axis that the operand does not have, or one that is given twice.
    #[error("{op}: {operand} {problem} {axis}")]
    #[diagnostic(help("{}", axis_hint(*n_axes)))]
    Axis {
        op: &'static str,
        operand: Box<Operand>,
        /// The axis as given.
        axis: isize,
        problem: &'static str,
        /// Number of axes to choose from.
        n_axes: usize,
    },

    /// A maximum or minimum over zero elements.
    #[error("{op}: {operand} has no element along this axis")]
    EmptyReduction { op: &'static str, operand: Box<Operand> },

    /// Data and shape hold different numbers of elements.
    #[error("{op}: {got} elements cannot fill the shape {shape}, which holds {}", shape.numel())]
    ElementCount {
        op: &'static str,
        /// Number of elements.
        got: usize,
        /// The requested shape.
        shape: Shape,
    },

    /// Dimensions that no tensor can have.
    #[error(transparent)]
    BadShape(#[from] BadShape),

    /// A range exceeds the tensor.
    #[error("{op}: the range {}..{} exceeds the length {len}", *start as isize, *end as isize)]
    OutOfRange {
        op: &'static str,
        /// First element of the range.
        start: usize,
        /// End of the range, exclusive.
        end: usize,
        len: usize,
    },

    /// An index that the axis does not have.
    #[error("{op}: index {index} is outside 0..{len}")]
    #[diagnostic(help("indices count from 0, and none from the end"))]
    Index {
        op: &'static str,
        index: i64,
        /// Length of the axis.
        len: usize,
    },

    /// A call that would compute something else than it seems to.
    #[error("{op}: {problem}")]
    #[diagnostic(help("{remedy}"))]
    Misuse { op: &'static str, problem: Box<str>, remedy: Box<str> },

    /// A range of numbers without a number.
    #[error("{op}: no whole number is in {low}..{high}")]
    #[diagnostic(help("the upper end is exclusive: {low}..{} has one number", low.saturating_add(1)))]
    EmptyRange { op: &'static str, low: i64, high: i64 },

    /// A class index outside `0..n_classes` that is not the ignored one.
    #[error("{op}: the label of row {row} is {label}, outside 0..{n_classes}")]
    Label {
        op: &'static str,
        /// Row of the batch.
        row: usize,
        label: i64,
        n_classes: usize,
    },

    /// A code of a categorical feature for which its table has no row.
    #[error("{op}: the code of row {row} in column {column} is {code}, not a whole number in 0..{n_codes}")]
    Code {
        op: &'static str,
        /// Row of the batch.
        row: usize,
        /// Column of the input.
        column: usize,
        code: f64,
        n_codes: usize,
    },

    /// The device cannot be used.
    #[error("the device {device} cannot be used: {reason}")]
    #[diagnostic(help("{hint}"))]
    DeviceUnavailable { device: Device, reason: String, hint: String },

    /// An unknown device name.
    #[error("unknown device '{name}'")]
    #[diagnostic(help("cpu, cuda, cuda:N (N from 0), or auto"))]
    UnknownDevice { name: String },

    /// A device of a kind that this crate does not compute on.
    #[error(
        "the device '{name}' is not supported by this build, which computes on CPUs and on NVIDIA's GPUs"
    )]
    #[diagnostic(help("cpu, cuda, cuda:N (N from 0), or auto"))]
    UnsupportedDevice { name: String },

    /// An allocation failed.
    #[error(
        "out of memory on {device}: requested {bytes} bytes ({:.1} GiB){}",
        *bytes as f64 / f64::from(1u32 << 30),
        in_use.as_ref().map_or(String::new(), |in_use| format!("; {in_use}"))
    )]
    #[diagnostic(help("{}", memory_hint(in_use.as_deref())))]
    OutOfMemory {
        device: Device,
        bytes: usize,
        /// Memory in use by kind, if known.
        in_use: Option<Box<MemoryInUse>>,
    },

    /// A CUDA driver call failed.
    #[error("{device}: {call}: {text} ({code})")]
    #[diagnostic(help("{}", cuda_hint(code)))]
    Cuda {
        device: Device,
        call: &'static str,
        /// The error's name.
        code: String,
        /// The driver's description.
        text: String,
    },

    /// A cuBLASLt call failed.
    #[error("{device}: {call}: {code}")]
    #[diagnostic(help("set CUBLASLT_LOG_LEVEL=1 for more detail"))]
    Cublas {
        device: Device,
        call: &'static str,
        /// The error's name.
        code: String,
    },

    /// A kernel does not compile with the installed NVRTC.
    #[error("{device}: the kernels of {kernel} do not compile: {log}")]
    #[diagnostic(help(
        "`ddp-train devices` names the NVRTC in use: CUDA 12 or 13 has to know this GPU; please report the message above otherwise"
    ))]
    Compile { device: Device, kernel: &'static str, log: String },

    /// An operand is in host memory where GPU memory is required, or the reverse.
    #[error("{op}: {operand} must be in {takes}")]
    #[diagnostic(help("move it with .to(...)"))]
    WrongMemory {
        op: &'static str,
        operand: Box<Operand>,
        /// The required memory.
        takes: &'static str,
    },

    /// A tensor of another library that no tensor here can copy.
    #[error("from_dlpack: {problem}")]
    #[diagnostic(help(
        "contiguous tensors on a CPU or NVIDIA GPU, of the dtypes in DType::ALL: x.contiguous() in PyTorch, np.ascontiguousarray(x) in NumPy"
    ))]
    Dlpack {
        /// The difference, in the words of DLPack.
        problem: String,
    },

    /// The thread pool could not be started.
    #[error("cannot start {threads} compute threads: {reason}")]
    Threads {
        threads: usize,
        /// The system's message.
        reason: String,
    },
}

impl std::fmt::Debug for KernelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&with_hint(self))
    }
}

impl KernelError {
    /// [`KernelError::Misuse`].
    pub fn misuse(op: &'static str, problem: impl Into<Box<str>>, remedy: impl Into<Box<str>>) -> Self {
        KernelError::Misuse { op, problem: problem.into(), remedy: remedy.into() }
    }
}

/// Advice on saving memory, by its largest use.
fn memory_hint(in_use: Option<&MemoryInUse>) -> &'static str {
    match in_use {
        None => "a smaller model or batch",
        Some(in_use) if in_use.is_held_by_others() => {
            "other programs hold most of the device's memory: nvidia-smi lists them"
        }
        Some(in_use) => match in_use.largest() {
            MemoryUse::Activations | MemoryUse::Workspace => "smaller micro-batches",
            MemoryUse::Data => "fewer rows on the device at a time",
            MemoryUse::Optimizer => "an optimizer with less state (sgd), or a smaller model",
            _ => "a smaller model, or a device with more memory",
        },
    }
}

/// The axes that there are.
fn axis_hint(n_axes: usize) -> String {
    match n_axes {
        0 => "a tensor without dimensions has no axis; None stands for all".to_owned(),
        1 => "the only axis is 0, or -1 from the end".to_owned(),
        n => format!("axes are 0 to {}, or -{n} to -1 from the end, each once", n - 1),
    }
}

/// Errors of a driver that cannot load what this NVRTC compiles.
const DRIVER_MISMATCH: [&str; 3] =
    ["CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_INVALID_PTX", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"];

/// Faults of a device or of its connections, after which a new process may work: by another device, or by the same one once it was reset.
/// An address that a kernel got wrong is among them: a bit that flipped looks the same.
const DEVICE_FAULTS: [&str; 10] = [
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "CUDA_ERROR_CONTAINED",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_SYSTEM_NOT_READY",
    "CUDA_ERROR_UNKNOWN",
];

impl KernelError {
    /// The error, with the name of the part of a model whose operation failed.
    #[must_use]
    pub fn within(self, part: &str) -> Self {
        let hint = miette::Diagnostic::help(&self).map(|hint| hint.to_string());
        KernelError::Within { part: part.into(), error: Box::new(self), hint }
    }

    /// Whether a device failed in a way that a new start may mend.
    pub fn is_device_fault(&self) -> bool {
        match self {
            KernelError::Within { error, .. } => error.is_device_fault(),
            KernelError::Cuda { code, .. } => KernelError::is_fault_code(code),
            _ => false,
        }
    }

    /// Whether an error of CUDA of this name is such a failure.
    pub(crate) fn is_fault_code(code: &str) -> bool {
        DEVICE_FAULTS.contains(&code)
    }

    /// Whether the driver cannot load what the installed NVRTC compiles.
    pub fn is_driver_mismatch(&self) -> bool {
        matches!(self, KernelError::Cuda { code, .. } if DRIVER_MISMATCH.contains(&code.as_str()))
    }
}

fn cuda_hint(code: &str) -> &'static str {
    match code {
        "CUDA_ERROR_ILLEGAL_ADDRESS" | "CUDA_ERROR_LAUNCH_FAILED" | "CUDA_ERROR_MISALIGNED_ADDRESS" => {
            "an earlier kernel on this device failed: run with `--cuda-graph off`, then also with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer, \
             which show which one"
        }
        "CUDA_ERROR_ECC_UNCORRECTABLE" => {
            "the device's memory is faulty: nvidia-smi -q -d ECC, then take the device out of service"
        }
        "CUDA_ERROR_DEVICE_UNAVAILABLE" => {
            "another process holds the device in exclusive mode: nvidia-smi lists it; nvidia-smi -c DEFAULT, as root, lets \
             processes share it"
        }
        _ if DRIVER_MISMATCH.contains(&code) => "the driver and NVRTC are of incompatible versions",
        _ => "dmesg and nvidia-smi may show more",
    }
}

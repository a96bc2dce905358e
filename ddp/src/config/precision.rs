//! Number formats of training: one policy for all devices.
//!
//! | | f32 | f32x3 | tf32 | bf16 | f16 |
//! |---|---|---|---|---|---|
//! | weights that are updated, optimizer state, averages of weights | f32 | f32 | f32 | f32 | f32 |
//! | gradients of weights | f32 | f32 | f32 | f32 | f32 |
//! | gradients of weights as sent between GPUs in bf16 | bf16 | bf16 | bf16 | bf16 | bf16 |
//! | weights in matmuls, activations, gradients of activations | f32 | f32 | f32 | bf16 | f16 |
//! | scale and shift of norms, tables of embeddings, bias of the last layer | f32 | f32 | f32 | f32 | f32 |
//! | factors of matmuls | f32 | f32, or two numbers of 11 bits | 11 bits of f32 | bf16 | f16 |
//! | sums in matmuls, norms, losses, outputs of the model | f32 | f32 | f32 | f32 | f32 |
//! | sums of losses, of weights and of squares | f64 | f64 | f64 | f64 | f64 |
//! | scale of the loss in backward | 1 | 1 | 1 | 1 | dynamic |
//!
//! Values read in a short format are widened, and values stored in one are rounded to nearest, ties to even, once. The update reads
//! f32 gradients, writes f32 weights and rounds the copy that matmuls read. With `comm.dtype = "bf16"` the ranks' gradients are
//! rounded to bf16 once, from f32, and their sums over the ranks, which the update reads, are in bf16. Matmuls of the column `bf16`
//! round them as they write them, if a step has one micro-batch; else a pass over f32 gradients does. Matmuls whose results are bf16 or
//! f16 keep all partial sums in f32.
//!
//! bf16 has the range of f32 and 8 bits; f16 has 11 bits, a largest value of 65,504 and, but for subnormal numbers, a smallest one of
//! 6e-5. So f16 alone needs scaled gradients (the room `optim`, `loss_scaler.rs`). The CPU widens and multiplies in f32: there, short
//! formats serve tests and save no time, and `tf32` and `f32x3` are f32.
//!
//! A network built through the library can also use f64 throughout, on one rank: as a reference for gradient checks, and for
//! custom training loops. Runs and trainers do not support this format.
//!
//! ```
//! use ddp::nn::Precision;
//! use ddp::prelude::*;
//!
//! assert_eq!((Precision::Bf16.master(), Precision::Bf16.activations()), (DType::F32, DType::BF16));
//! assert!(Precision::F16.scales_loss() && !Precision::Bf16.scales_loss());
//! ```

use ddp_kernels::cuda::Gpu;
use ddp_kernels::ops::MatmulMode;
use ddp_kernels::{DType, Device, KernelError};

/// Number formats of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// IEEE single precision throughout.
    #[default]
    F32,
    /// Single precision; the factors of large matmuls are sums of two numbers of 11 bits on the matrix units of GPUs.
    F32x3,
    /// Single precision; matmuls read 11 bits of their factors and run on the matrix units of GPUs.
    Tf32,
    /// Matmuls, activations and their gradients in bf16; weights, their gradients and the update in single precision.
    Bf16,
    /// Same as `Bf16` in IEEE half precision, with the loss scaled so that gradients stay within its range.
    F16,
    /// IEEE double precision throughout, for a [`Network`](crate::model::Network) without a trainer; not available in configs.
    F64,
}

impl Precision {
    /// Number formats of runs.
    pub const ALL: [Precision; 5] =
        [Precision::F32, Precision::F32x3, Precision::Tf32, Precision::Bf16, Precision::F16];

    /// Name of the format in configs and reports.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::F32x3 => "f32x3",
            Precision::Tf32 => "tf32",
            Precision::Bf16 => "bf16",
            Precision::F16 => "f16",
            Precision::F64 => "f64",
        }
    }

    /// Format of weights that are updated, of sums, and of outputs.
    pub fn master(self) -> DType {
        if self == Precision::F64 { DType::F64 } else { DType::F32 }
    }

    /// Whether activations have fewer bits than the weights that are updated.
    pub fn is_short(self) -> bool {
        self.activations() != self.master()
    }

    /// Format of activations and their gradients.
    pub fn activations(self) -> DType {
        match self {
            Precision::F32 | Precision::F32x3 | Precision::Tf32 => DType::F32,
            Precision::Bf16 => DType::BF16,
            Precision::F16 => DType::F16,
            Precision::F64 => DType::F64,
        }
    }

    /// Whether the gradient of the loss must be scaled because the format has a smaller range than f32.
    pub fn scales_loss(self) -> bool {
        self == Precision::F16
    }

    /// Checks that `device` has matmuls of this format.
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`] for bf16 on a GPU before Ampere, and if the device does not exist.
    pub fn ensure_on(self, device: Device) -> Result<(), KernelError> {
        let Some(gpu) = self.lacking(device)?.filter(|_| self == Precision::Bf16) else { return Ok(()) };
        let reason = format!("{gpu} has no matmuls in bf16, which need compute capability 8.0");
        let hint = "train.precision = \"f16\" (with a scaled loss), or \"f32\"".to_owned();
        Err(KernelError::DeviceUnavailable { device, reason, hint })
    }

    /// Warns if `device` computes in another format in place of this one: tf32 and f32x3 on a GPU before Ampere.
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`] if the device does not exist.
    pub fn replaced_on(self, device: Device) -> Result<Option<String>, KernelError> {
        let gpu = self.lacking(device)?.filter(|_| matches!(self, Precision::Tf32 | Precision::F32x3));
        Ok(gpu.map(|gpu| {
            format!(
                "{gpu} has no tf32, which needs compute capability 8.0: matmuls are in f32; train.precision = \"f16\" is faster there"
            )
        }))
    }

    /// Name and compute capability of `device`, if it is a GPU whose matrix units do not take this format.
    fn lacking(self, device: Device) -> Result<Option<String>, KernelError> {
        let (Device::Cuda(index), Precision::Tf32 | Precision::F32x3 | Precision::Bf16) = (device, self)
        else {
            return Ok(None);
        };
        let info = Gpu::get(index)?.info();
        let (major, minor) = info.compute_capability;
        let words = format!("{} (compute capability {major}.{minor})", info.name);
        Ok(Some(words).filter(|_| !info.has_bf16_matmuls()))
    }

    /// Mode of f32 matmuls.
    pub fn matmul_mode(self) -> MatmulMode {
        match self {
            Precision::Tf32 => MatmulMode::Tf32,
            Precision::F32x3 => MatmulMode::F32x3,
            Precision::F32 | Precision::Bf16 | Precision::F16 | Precision::F64 => MatmulMode::Strict,
        }
    }
}

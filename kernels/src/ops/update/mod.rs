//! Updates of a flat range of parameters: operands, checks, threads or launch, and compute weights, alike for all optimizers.
//!
//! An update is its formula for the CPU, which implements [`Update`], and for GPUs; [`run`] does the rest, and moves the moving
//! average of the weights ([`Average`]) while they are at hand.

mod average;
mod decision;
mod report;
mod inputs;
mod segments;
mod cpu;
mod cuda;
mod optimizer;

#[cfg(test)]
mod testing;

pub use average::Average;
pub use decision::{StepNumbers, Withheld};
pub use inputs::UpdateInputs;
pub use optimizer::{
    FirstPassTensors, OptimizerDefaults, OptimizerKind, OptimizerParams, OptimizerTensors, WholeNeed,
    optimizer_first_pass, optimizer_step, optimizer_step_by_segment,
};
pub use report::StepReport;
pub use segments::{MAX_SEGMENTS, UpdateSegment};

pub(crate) use optimizer::SOURCES as OPTIMIZER_SOURCES;

use half::bf16;

use super::step_scalars::StepScalars;
use crate::base::check;
use crate::cpu::Float;
use crate::cuda::launch::{Argument, Source};
use crate::{DType, Operand, Result, Shape, TensorMut, TensorRef};

/// The most state tensors of an update.
const MAX_STATE: usize = 2;

/// The hyper-parameters of an update with `N_STATE` state tensors, and its formula on each kind of device.
trait Update<const N_STATE: usize>: Copy + Sync {
    /// Name of the operation in errors.
    const OP: &'static str;
    /// Names of the state tensors.
    const STATE: [&'static str; N_STATE];
    /// Elements on the CPU from which a second thread is worth its start.
    const MIN_PART: usize = 1 << 15;
    /// The kernels.
    const KERNELS: cuda::Kernels;

    /// `struct Params` of its kernels, field by field.
    type Params: Argument;
    fn params(&self) -> Self::Params;

    /// The same update with the numbers of a step that an optimizer step reads from its [`UpdateInputs`].
    fn at_step(self, scalars: &StepScalars, grad_scale: f64) -> Self;

    /// The same update with the settings of a segment; an update that is not divided into segments has none.
    fn in_segment(self, _segment: &UpdateSegment) -> Self {
        self
    }

    /// The formula, element by element, on slices of equal length; state that was not given is empty.
    ///
    /// The caller compiles it for the widest vectors of the processor: it must be `#[inline(always)]`, its loops plain.
    fn apply<T: Float>(&self, w: &mut [T], g: &[T], state: [&mut [T]; N_STATE]);
}

/// The tensors of an update, all of one shape.
struct Tensors<'a, const N_STATE: usize> {
    /// Updated in place: f32 or f64.
    target: TensorMut<'a>,
    /// Drives the update: of the target's dtype, or bf16 for f32.
    source: TensorRef<'a>,
    state: [Option<TensorMut<'a>>; N_STATE],
    average: Option<Average<'a>>,
    /// bf16 or f16: receives `target`, first rounded to f32, then to nearest, ties to even.
    compute_weights: Option<TensorMut<'a>>,
    /// Parts with settings of their own, which end with the tensors; none: those of the update.
    segments: &'a [UpdateSegment],
}

/// Checks the operands and runs one update; with `inputs` that withhold it, nothing is written.
fn run<U: Update<N>, const N: usize>(
    update: U,
    tensors: Tensors<'_, N>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    let Tensors { target, source, state, mut average, compute_weights, segments } = tensors;
    let [target_name, source_name] = ["master_weights", "grads"];
    let target_op = target.operand(target_name);
    let state_ops = state.iter().zip(U::STATE).filter_map(|(s, name)| Some(s.as_ref()?.operand(name)));
    let average_op = average.iter().map(|average| average.ema.operand("ema"));
    let source_op = source.operand(source_name);
    let is_rounded = source_op.dtype == DType::BF16 && target_op.dtype == DType::F32;
    let beside_target = if is_rounded { Operand { dtype: DType::F32, ..source_op } } else { source_op };
    for operand in std::iter::once(beside_target).chain(state_ops).chain(average_op) {
        check::same_kind(U::OP, &[target_op, operand])?;
        check::shape(U::OP, operand, target.shape())?;
    }
    if let Some(copy_op) = compute_weights.as_ref().map(|copy| copy.operand("compute_weights")) {
        check::same_device(U::OP, &[target_op, copy_op])?;
        check::dtype(U::OP, copy_op, &[DType::BF16, DType::F16], "bf16 and f16")?;
        check::shape(U::OP, copy_op, target.shape())?;
    }
    if let Some(inputs) = inputs {
        inputs.check(U::OP, target_op)?;
    }
    if let Some(last) = segments.last() {
        check::shape(U::OP, target_op, Shape::vector(last.end))?;
    }
    if let Some(gpu) = target.gpu() {
        check::dtype(U::OP, target_op, &[DType::F32, DType::F64], "f32 and f64")?;
        let tensors = Tensors { target, source, state, average, compute_weights, segments };
        return cuda::launch(gpu, update, tensors, inputs);
    }
    let mut update = update;
    if let Some(inputs) = inputs {
        let numbers = inputs.on_host(U::OP)?;
        if numbers.withheld(inputs.max_norm).is_some() {
            return Ok(());
        }
        update = update.at_step(&numbers.scalars, numbers.grad_scale(inputs.max_norm));
        average = average.map(|average| Average { step: numbers.scalars.step, ..average });
    }
    check::float_dispatch!(U::OP, target_op, T => {
        let mut named = state.into_iter().zip(U::STATE).map(|(s, name)| {
            s.map(|s| s.into_slice::<T>(U::OP, name)).transpose()
        });
        let mut slices: [Option<&mut [T]>; N] = [const { None }; N];
        for slice in &mut slices {
            *slice = named.next().expect("there are as many names as state tensors")?;
        }
        let w = target.into_slice(U::OP, target_name)?;
        let g = if is_rounded {
            cpu::Grads::Rounded(source.as_slice(U::OP, source_name)?)
        } else {
            cpu::Grads::Same(source.as_slice(U::OP, source_name)?)
        };
        let average = average.map(|average| average.on_cpu::<T>(U::OP)).transpose()?;
        let Some(copy) = compute_weights else {
            cpu::walk::<U, T, bf16, N>(&update, segments, w, g, slices, average, None);
            return Ok(());
        };
        let copy_op = copy.operand("compute_weights");
        check::short_dispatch!(U::OP, copy_op, S => {
            let copy = copy.into_slice::<S>(U::OP, "compute_weights")?;
            cpu::walk::<U, T, S, N>(&update, segments, w, g, slices, average, Some(copy));
            Ok(())
        })
    })
}

/// The kernels that `UPDATES(name)` instantiates in the caller's source.
macro_rules! kernels {
    ($name:literal) => {
        $crate::ops::update::cuda::Kernels {
            source: &SOURCE,
            f32: concat!($name, "_f32"),
            f64: concat!($name, "_f64"),
            f32_bf16: concat!($name, "_f32_bf16"),
            f64_bf16: concat!($name, "_f64_bf16"),
            f32_f16: concat!($name, "_f32_f16"),
            f64_f16: concat!($name, "_f64_f16"),
            f32_grads_bf16: concat!($name, "_f32_grads_bf16"),
            f32_bf16_grads_bf16: concat!($name, "_f32_bf16_grads_bf16"),
            f32_f16_grads_bf16: concat!($name, "_f32_f16_grads_bf16"),
        }
    };
}
use kernels;

/// The source of an update's kernels: the skeleton, then the formula.
const fn source(name: &'static str, formula: &'static str) -> Source {
    Source::with_preamble(name, include_str!("update.cuh"), formula)
}

/// An update whose kernels are those of the skeleton alone: `SOURCE` from its formula in CUDA, and its hyper-parameters as a struct
/// that its kernels take as `Params`. Those in `per_step` are replaced by the numbers of `UpdateInputs` that have their names, those in
/// `per_segment` by those of a segment.
///
/// `update.cuh` says what the formula consists of.
macro_rules! update_kernels {
    (
        $name:literal,
        $params:ident { $($field:ident: $type:ident),* $(,)? },
        per_step: [$($input:ident),*],
        per_segment: [$($setting:ident),*],
        $formula:literal $(,)?
    ) => {
        #[doc = concat!("`Params` of the kernels of `", $name, "`.")]
        #[repr(C)]
        #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
        pub(in $crate::ops::update) struct $params {
            $($field: $type,)*
        }

        impl $crate::cuda::launch::Argument for $params {}

        pub(super) static SOURCE: $crate::cuda::launch::Source = $crate::ops::update::source($name, concat!(
            "struct Params {\n",
            $("    ", $crate::ops::update::cuda_type!($type), " ", stringify!($field), ";\n",)*
            "    __device__ __forceinline__ void set(const UpdateInputs& inputs) {\n",
            $("        ", stringify!($input), " = inputs.", stringify!($input), ";\n",)*
            "    }\n    __device__ __forceinline__ void set_segment(const Segments& segments, u32 k) {\n",
            $("        ", stringify!($setting), " = segments.", stringify!($setting), "[k];\n",)*
            "    }\n};\n",
            $formula,
            "\nUPDATES(", $name, ")\n",
        ));
    };
}
use update_kernels;

/// The name in CUDA of a type of the same size.
macro_rules! cuda_type {
    (f64) => {
        "double"
    };
    (u64) => {
        "u64"
    };
}
use cuda_type;

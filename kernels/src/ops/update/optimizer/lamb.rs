//! LAMB: 32 bytes per element in f32 for the norms, 20 for the step.
//!
//! The first pass moves the moments: `g = grad_scale·grad`; `m = β1·m + (1-β1)·g`, `v = β2·v + (1-β2)·g²`. With
//! `u = m/c1 / (sqrt(v)/sqrt(c2) + eps) + wd·w`, `ci = 1 - βi^step`, it then sums `w²` and `u²`. The second pass, after the sums of
//! all ranges of a parameter were added: `w -= lr_scale·lr · ‖w‖/‖u‖ · u`. The ratio is 1 where one of the norms is 0.
//!
//! Source: arXiv:1904.00962, algorithm 2, with `φ(z) = z`.

use super::super::{StepScalars, Tensors, Update, UpdateInputs, UpdateSegment, cuda, kernels, run, source};
use super::adam::Adam;
use super::moments::Moments;
use super::step::update_first;
use super::{FirstPassTensors, OptimizerDefaults, OptimizerParams, OptimizerTensors, Rule, WholeNeed};
use crate::base::check;
use crate::cpu::Float;
use crate::cpu::simd::vectorize;
use crate::cuda::launch::{Argument, BLOCK, Launch, Source};
use crate::cuda::{Gpu, PARTIAL_SUMS};
use crate::ops::sum_of_squares;
use crate::{DType, Operand, Result, Shape, TensorMut, TensorRef};

pub(super) static SOURCE: Source = source("lamb", include_str!("lamb.cu"));

/// The defaults are those of its paper.
pub(super) const RULE: Rule = Rule {
    name: "lamb",
    defaults: OptimizerDefaults { eps: 1e-6, weight_decay: 0.01, ..OptimizerDefaults::USUAL },
    whole_need: Some(WholeNeed::Norms),
    state_names: |_| &Adam::STATE,
    first_pass: Some(first_pass),
    step,
};

/// Elements whose squares are computed at a time.
const CHUNK: usize = 128;
/// Number of blocks on every device, so that the order of summation depends only on the length.
const MAX_BLOCKS: usize = 512;
const _: () = assert!(2 * MAX_BLOCKS <= PARTIAL_SUMS);

fn first_pass(
    params: &OptimizerParams,
    mut tensors: FirstPassTensors<'_>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    update_first(Moments(*params), &mut tensors, inputs)?;
    let FirstPassTensors { master_weights, state: [m, v], norms, accumulate, .. } = tensors;
    let Some(norms) = norms else { return Ok(()) };
    check_norms(master_weights.operand("master_weights"), norms.operand("norms"))?;
    let (m, v) = (m.as_ref(), v.as_ref());
    if let Some(gpu) = master_weights.gpu() {
        return sum_on_gpu(gpu, params, [master_weights, m, v], inputs, norms, accumulate);
    }
    let (of_weights, of_direction) = norms.split_at(1)?;
    sum_of_squares(master_weights, of_weights, accumulate)?;
    sum_direction(params, master_weights, m, v, inputs, of_direction, accumulate)
}

fn step(
    params: &OptimizerParams,
    _segments: &[UpdateSegment],
    tensors: OptimizerTensors<'_>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    let OptimizerTensors { master_weights: target, grads, state: [m, v], average, compute_weights, norms } =
        tensors;
    let sums = match norms {
        Some(norms) => {
            check_norms(target.operand("master_weights"), norms.operand("norms"))?;
            Sums::of(norms)?
        }
        None => Sums::Host([0.0; 2]),
    };
    let source = m.as_ref().map_or(grads, |m| m.as_ref());
    let tensors = Tensors { target, source, state: [v], average, compute_weights, segments: &[] };
    run(Lamb { params: *params, sums }, tensors, inputs)
}

fn check_norms(weights: Operand, norms: Operand) -> Result<()> {
    check::same_device(Lamb::OP, &[weights, norms])?;
    check::dtype(Lamb::OP, norms, &[DType::F64], "f64")?;
    check::shape(Lamb::OP, norms, Shape::vector(2))
}

/// The second pass: its source is `m`, its state is `v`.
#[derive(Clone, Copy)]
pub(super) struct Lamb {
    params: OptimizerParams,
    sums: Sums,
}

/// `Σw²` and `Σu²` of the whole parameter.
#[derive(Clone, Copy)]
enum Sums {
    Host([f64; 2]),
    /// Address on the device.
    Device(u64),
}

impl Sums {
    /// The sums in a tensor `[2]` f64, which outlives the update.
    fn of(tensor: TensorRef<'_>) -> Result<Self> {
        match tensor.gpu() {
            Some(_) => Ok(Sums::Device(tensor.cuda()?.ptr())),
            None => {
                let sums = tensor.as_slice::<f64>(Lamb::OP, "norms")?;
                Ok(Sums::Host([sums[0], sums[1]]))
            }
        }
    }
}

/// `Params` of `lamb.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(in super::super) struct LambParams {
    lr: f64,
    lr_scale: f64,
    powers: [f64; 2],
    eps: f64,
    weight_decay: f64,
    /// Device address of the sums; 0 in the kernel that computes them.
    sums: u64,
}

impl Argument for LambParams {}

/// The numbers of `u`.
#[derive(Clone, Copy)]
struct Direction<T> {
    m_scale: T,
    root_scale: T,
    eps: T,
    weight_decay: T,
}

impl<T: Float> Direction<T> {
    fn new(params: &OptimizerParams) -> Self {
        let [c1, c2] = params.beta_powers(params.step).map(|power| 1.0 - power);
        let [m_scale, root_scale, eps, weight_decay] =
            [1.0 / c1, 1.0 / c2.sqrt(), params.eps, params.weight_decay].map(T::from_f64);
        Direction { m_scale, root_scale, eps, weight_decay }
    }

    #[inline(always)]
    fn at(&self, w: T, m: T, v: T) -> T {
        m * self.m_scale / (v.sqrt() * self.root_scale + self.eps) + self.weight_decay * w
    }
}

impl Update<1> for Lamb {
    const OP: &'static str = "optimizer_step (lamb)";
    const STATE: [&'static str; 1] = ["v"];
    const MIN_PART: usize = 1 << 14;
    const KERNELS: cuda::Kernels = kernels!("lamb");
    type Params = LambParams;

    fn params(&self) -> LambParams {
        let OptimizerParams { lr, lr_scale, eps, weight_decay, step, .. } = self.params;
        let powers = self.params.beta_powers(step);
        let sums = match self.sums {
            Sums::Device(address) => address,
            Sums::Host(_) => 0,
        };
        LambParams { lr, lr_scale, powers, eps, weight_decay, sums }
    }

    fn at_step(self, scalars: &StepScalars, grad_scale: f64) -> Self {
        Lamb { params: self.params.at_step(scalars, grad_scale), ..self }
    }

    #[inline(always)]
    fn apply<T: Float>(&self, w: &mut [T], m: &[T], [v]: [&mut [T]; 1]) {
        let ratio = match self.sums {
            Sums::Host([w, u]) if w > 0.0 && u > 0.0 => (w / u).sqrt(),
            _ => 1.0,
        };
        let step_size = T::from_f64(self.params.lr_scale * self.params.lr * ratio);
        let direction = Direction::<T>::new(&self.params);
        for ((w, &m), &mut v) in w.iter_mut().zip(m).zip(v) {
            *w = *w - step_size * direction.at(*w, m, v);
        }
    }
}

/// `sum = Σu²` in f64, or `+=`, on the CPU; the tensors were checked.
fn sum_direction(
    params: &OptimizerParams,
    w: TensorRef<'_>,
    m: TensorRef<'_>,
    v: TensorRef<'_>,
    inputs: Option<&UpdateInputs<'_>>,
    sum: TensorMut<'_>,
    accumulate: bool,
) -> Result<()> {
    let mut params = *params;
    if let Some(inputs) = inputs {
        params = params.at_step(&inputs.on_host(Lamb::OP)?.scalars, 1.0);
    }
    check::float_dispatch!(Lamb::OP, w.operand("master_weights"), T => {
        let w = w.as_slice::<T>(Lamb::OP, "master_weights")?;
        let (m, v) = (m.as_slice::<T>(Lamb::OP, "m")?, v.as_slice::<T>(Lamb::OP, "v")?);
        let total = sum_on_cpu::<T>(Direction::new(&params), w, m, v);
        let sum = &mut sum.into_slice::<f64>(Lamb::OP, "norms")?[0];
        *sum = if accumulate { *sum + total } else { total };
        Ok(())
    })
}

fn sum_on_cpu<T: Float>(direction: Direction<T>, w: &[T], m: &[T], v: &[T]) -> f64 {
    vectorize(
        #[inline(always)]
        || {
            let chunks = w.chunks(CHUNK).zip(m.chunks(CHUNK)).zip(v.chunks(CHUNK));
            let of_chunk = chunks.map(|((w, m), v)| {
                let mut lanes = [T::from_f64(0.0); CHUNK];
                for (((lane, &w), &m), &v) in lanes.iter_mut().zip(w).zip(m).zip(v) {
                    let u = direction.at(w, m, v);
                    *lane = u * u;
                }
                lanes.iter().map(|lane| lane.to_f64()).sum::<f64>()
            });
            of_chunk.sum::<f64>()
        },
    )
}

/// `sums = [Σw², Σu²]` in f64, or `+=`, in one launch; the tensors were checked.
fn sum_on_gpu(
    gpu: &'static Gpu,
    params: &OptimizerParams,
    [w, m, v]: [TensorRef<'_>; 3],
    inputs: Option<&UpdateInputs<'_>>,
    sums: TensorMut<'_>,
    accumulate: bool,
) -> Result<()> {
    let kernel = if w.dtype() == DType::F64 { "lamb_norms_f64" } else { "lamb_norms_f32" };
    let n = w.shape().numel();
    let scratch = gpu.scratch()?;
    let launch = Launch::new(gpu, &SOURCE, kernel)?
        .blocks(n.div_ceil(BLOCK as usize * 4).min(MAX_BLOCKS))
        .read(w.cuda()?)
        .read(m.cuda()?)
        .read(v.cuda()?)
        .arg(n)
        .arg(Lamb { params: *params, sums: Sums::Device(0) }.params())
        .read_opt(inputs.map(|i| i.scalars.cuda()).transpose()?)
        .write(&mut sums.into_cuda()?)
        .arg(i32::from(accumulate));
    // SAFETY: lamb_norms(const T* w, const T* m, const T* v, size_t n, Params params, const double* scalars, double* sums, int
    // accumulate, u32* counters, double* partials); w, m and v hold n elements, scalars what `UpdateInputs::check` requires, sums two;
    // there are two counters, and partials two for each block.
    unsafe { launch.arg(scratch.counter).arg(scratch.partials).run() }
}

//! Adafactor: in f32 12 to 16 bytes per element for the second moments and the norm of the direction, 12 for the step.
//!
//! With `g = grad_scale·grad`, `ρ = step^beta2_decay`: of a matrix the means of `g²` over each row and over each column move,
//! `R += ρ·(mean_cols(g²) - R)`, `C += ρ·(mean_rows(g²) - C)`, and `V = R·C / max(mean(R), eps)`; of a vector `V += ρ·(g² - V)`. Then
//! `u = g / sqrt(max(V, eps²))`, `α = max(eps2, rms(w)) · min(lr_scale·lr, 1/sqrt(step))`, and
//! `w = (1 - lr_scale·lr·wd)·w - α / max(1, rms(u)/clip_threshold) · u`, `rms` over the whole parameter.
//!
//! The caller completes over all ranges of a parameter, in this order: [`adafactor_sums`] of each range, [`adafactor_factors`] once,
//! [`adafactor_norm`] of each range; then each range takes its step. Sums and factors are in f64.
//!
//! Source: `torch.optim.Adafactor`; arXiv:1804.04235.

use super::super::{StepScalars, Tensors, Update, UpdateInputs, cuda, kernels, run, source};
use super::{OptimizerDefaults, OptimizerParams, OptimizerTensors, Rule, WholeNeed, WholeNumbers};
use crate::base::check;
use crate::cpu::Float;
use crate::cuda::PARTIAL_SUMS;
use crate::cuda::launch::{Argument, BLOCK, Launch, Source};
use crate::ops::sum_of_squares;
use crate::{DType, Operand, Result, Shape, TensorMut, TensorRef};

pub(super) static SOURCE: Source = source("adafactor", include_str!("adafactor.cu"));

pub(super) const RULE: Rule = Rule {
    name: "adafactor",
    defaults: OptimizerDefaults { lr: 0.01, eps: f32::EPSILON as f64, ..OptimizerDefaults::USUAL },
    whole_need: Some(WholeNeed::SecondMoments),
    state_names: |_| &[],
    first_pass: None,
    step,
};

fn step(
    params: &OptimizerParams,
    tensors: OptimizerTensors<'_>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    let OptimizerTensors { master_weights: target, grads: source, average, compute_weights, whole, .. } =
        tensors;
    let Some(WholeNumbers::Adafactor(factors)) = whole else {
        panic!("adafactor's step needs the factors of the second moments");
    };
    let update = Adafactor::new(*params, target.operand("master_weights"), factors)?;
    run(update, Tensors { target, source, state: [], average, compute_weights }, inputs)
}

const OP: &str = "optimizer_step (adafactor)";
/// Number of blocks on every device, so that the order of summation depends only on the length.
const MAX_BLOCKS: usize = 512;
const _: () = assert!(MAX_BLOCKS <= PARTIAL_SUMS);

/// Shape of a parameter, by which its second moments are factored: one number per row and per column of a matrix, one per element
/// of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FactoredShape {
    /// 0 for a vector.
    rows: usize,
    cols: usize,
}

impl FactoredShape {
    /// The shape of a parameter of these dimensions; all but the last of three or more count as rows.
    pub fn new(dims: &[usize]) -> Self {
        match dims {
            [] => FactoredShape { rows: 0, cols: 1 },
            [len] => FactoredShape { rows: 0, cols: *len },
            [rows @ .., cols] => FactoredShape { rows: rows.iter().product(), cols: *cols },
        }
    }

    /// Whether the moments are those of rows and columns.
    pub fn is_matrix(self) -> bool {
        self.rows > 0
    }

    /// Elements of the parameter.
    pub fn numel(self) -> usize {
        self.rows.max(1) * self.cols
    }

    /// Numbers of its second moments: those of the rows, then those of the columns.
    pub fn n_moments(self) -> usize {
        self.rows + self.cols
    }

    /// Row, if it is a matrix, and column of an element.
    #[inline(always)]
    fn place(self, index: usize) -> (Option<usize>, usize) {
        if self.rows == 0 { (None, index) } else { (Some(index / self.cols), index % self.cols) }
    }
}

/// Statistics of the whole parameter that the step on a range of it reads.
#[derive(Debug, Clone, Copy)]
pub struct AdafactorFactors<'a> {
    /// Shape of the parameter.
    pub shape: FactoredShape,
    /// First element of the range in the parameter.
    pub start: usize,
    /// From [`adafactor_factors`], `[1 + n_moments]` f64.
    pub factors: TensorRef<'a>,
    /// From [`adafactor_norm`], `[1]` f64.
    pub norm: TensorRef<'a>,
}

/// Adds the squares of elements `start..` of a parameter of this shape to `sums`: `[Σw², Σg² of each row, Σg² of each column]`,
/// `[1 + n_moments]` f64, of a vector `[Σw², g²]`; `g` are the gradients without their factor.
///
/// - `weights`: `[n]`, f32 or f64
/// - `grads`: `[n]`, of the same dtype, or bf16 for f32
///
/// # Errors
/// Same as [`super::optimizer_step`].
pub fn adafactor_sums(
    shape: FactoredShape,
    start: usize,
    weights: TensorRef<'_>,
    grads: TensorRef<'_>,
    sums: TensorMut<'_>,
) -> Result<()> {
    check_range(shape, start, weights.operand("weights"), grads)?;
    check_numbers(weights.operand("weights"), sums.operand("sums"), 1 + shape.n_moments())?;
    let (of_weights, of_grads) = sums.split_at(1)?;
    sum_of_squares(weights, of_weights, true)?;
    let n = grads.shape().numel();
    if n == 0 {
        return Ok(());
    }
    let FactoredShape { rows, cols } = shape;
    if let Some(gpu) = grads.gpu() {
        // A warp per row, then columns in tiles of up to a warp's width.
        let first_row = start / cols;
        let own_rows = if rows == 0 { 0 } else { (start + n - 1) / cols + 1 - first_row };
        let row_blocks = own_rows.div_ceil(BLOCK as usize / 32);
        let width = cols.next_power_of_two().min(32);
        let launch = Launch::new(
            gpu,
            &SOURCE,
            kernel(["adafactor_sums_f32", "adafactor_sums_f64", "adafactor_sums_bf16"], grads.dtype()),
        )?
        .blocks(row_blocks + cols.div_ceil(width))
        .read(grads.cuda()?)
        .arg(start)
        .arg(n)
        .arg(rows)
        .arg(cols)
        .arg(row_blocks)
        .arg(width)
        .write(&mut of_grads.into_cuda()?);
        // SAFETY: adafactor_sums(const G* g, size_t start, size_t n, size_t rows, size_t cols, size_t row_blocks, size_t width, double* sums); g
        // holds n elements that lie in the parameter, sums rows + cols, and the blocks cover the rows of the range and all columns.
        return unsafe { launch.run() };
    }
    let sums = of_grads.into_slice::<f64>(OP, "sums")?;
    let mut add = |start: usize, grads: &[f64]| add_squares(shape, start, grads, sums);
    in_f64(grads, start, &mut add)
}

/// Moves the second moments `[n_moments]` of a parameter, f32 or f64, by the sums of all of its ranges, and replaces these by the
/// factors of the estimate `V`: those of the rows, then those of the columns. With `inputs` that withhold the update nothing is written.
///
/// - `params`, `inputs`: as in [`super::optimizer_step`]
///
/// # Errors
/// Same as [`super::optimizer_step`].
pub fn adafactor_factors(
    shape: FactoredShape,
    params: &OptimizerParams,
    moments: TensorMut<'_>,
    sums: TensorMut<'_>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    let op = moments.operand("moments");
    check::shape(OP, op, Shape::vector(shape.n_moments()))?;
    check_numbers(op, sums.operand("sums"), 1 + shape.n_moments())?;
    if let Some(inputs) = inputs {
        inputs.check(OP, op)?;
    }
    let FactoredShape { rows, cols } = shape;
    if let Some(gpu) = moments.gpu() {
        check::dtype(OP, op, &[DType::F32, DType::F64], "f32 and f64")?;
        let launch = Launch::new(
            gpu,
            &SOURCE,
            kernel(["adafactor_factors_f32", "adafactor_factors_f64", ""], op.dtype),
        )?
        .write(&mut moments.into_cuda()?)
        .write(&mut sums.range(1, 1 + shape.n_moments())?.into_cuda()?)
        .arg(rows)
        .arg(cols)
        .arg(params.step as f64)
        .arg(params.grad_scale)
        .arg(params.beta2_decay)
        .arg(params.eps)
        .read_opt(inputs.map(|i| i.scalars.cuda()).transpose()?)
        .read_opt(inputs.map(|i| i.sums.cuda()).transpose()?)
        .read_opt(inputs.and_then(|i| i.sum_of_squares).map(|s| s.cuda()).transpose()?)
        .arg(inputs.map_or(0.0, |i| i.max_norm));
        // SAFETY: adafactor_factors(T* moments, double* sums, size_t rows, size_t cols, double step, double scale, double decay, double eps, const
        // double* scalars, const float* step_sums, const double* sum_of_squares, double max_norm); moments and sums hold rows + cols
        // elements, the inputs what `UpdateInputs::check` requires.
        return unsafe { launch.run() };
    }
    let mut params = *params;
    if let Some(inputs) = inputs {
        let (scalars, grads) = inputs.on_host(OP)?;
        if !grads.applies {
            return Ok(());
        }
        params = params.at_step(&scalars, grads.scale);
    }
    let sums = &mut sums.into_slice::<f64>(OP, "sums")?[1..];
    check::float_dispatch!(OP, op, T => {
        move_moments::<T>(shape, &params, moments.into_slice::<T>(OP, "moments")?, sums);
        Ok(())
    })
}

/// Adds `Σg²/max(V, eps²)` over elements `start..` of a parameter to `norm`, `[1]` f64; `g` are the gradients without their factor.
///
/// # Errors
/// Same as [`super::optimizer_step`].
pub fn adafactor_norm(
    shape: FactoredShape,
    start: usize,
    eps: f64,
    grads: TensorRef<'_>,
    factors: TensorRef<'_>,
    norm: TensorMut<'_>,
) -> Result<()> {
    let op = grads.operand("grads");
    check_numbers(op, factors.operand("factors"), 1 + shape.n_moments())?;
    check_numbers(op, norm.operand("norm"), 1)?;
    let n = grads.shape().numel();
    if let Some(gpu) = grads.gpu() {
        let scratch = gpu.scratch()?;
        let launch = Launch::new(
            gpu,
            &SOURCE,
            kernel(["adafactor_norm_f32", "adafactor_norm_f64", "adafactor_norm_bf16"], op.dtype),
        )?
        .blocks(n.div_ceil(BLOCK as usize * 4).min(MAX_BLOCKS))
        .read(grads.cuda()?)
        .arg(start)
        .arg(n)
        .arg(shape.rows)
        .arg(shape.cols)
        .arg(eps)
        .read(factors.cuda()?)
        .write(&mut norm.into_cuda()?)
        .arg(scratch.counter)
        .arg(scratch.partials);
        // SAFETY: adafactor_norm(const G* g, size_t start, size_t n, size_t rows, size_t cols, double eps, const double* factors, double* norm, u32*
        // counter, double* partials); g holds n elements that lie in the parameter, factors 1 + rows + cols, norm one, partials one for
        // each block.
        return unsafe { launch.run() };
    }
    let factors = &factors.as_slice::<f64>(OP, "factors")?[1..];
    let mut total = 0.0;
    let mut add = |start: usize, grads: &[f64]| total += sum_direction(shape, start, eps, grads, factors);
    in_f64(grads, start, &mut add)?;
    norm.into_slice::<f64>(OP, "norm")?[0] += total;
    Ok(())
}

fn check_range(shape: FactoredShape, start: usize, weights: Operand, grads: TensorRef<'_>) -> Result<()> {
    let grads = grads.operand("grads");
    check::same_device(OP, &[weights, grads])?;
    check::dtype(OP, weights, &[DType::F32, DType::F64], "f32 and f64")?;
    if grads.dtype != DType::BF16 || weights.dtype != DType::F32 {
        check::same_dtype(OP, &[weights, grads])?;
    }
    check::shape(OP, grads, weights.shape)?;
    check::shape(OP, weights, Shape::vector(weights.shape.numel().min(shape.numel() - start)))
}

/// Checks numbers of a whole parameter.
fn check_numbers(beside: Operand, numbers: Operand, len: usize) -> Result<()> {
    check::same_device(OP, &[beside, numbers])?;
    check::dtype(OP, numbers, &[DType::F64], "f64")?;
    check::shape(OP, numbers, Shape::vector(len))
}

fn kernel([f32, f64, bf16]: [&'static str; 3], dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => f64,
        DType::BF16 => bf16,
        _ => f32,
    }
}

/// Calls `body` with chunks of `grads` and the place of each.
fn in_f64(grads: TensorRef<'_>, start: usize, body: &mut dyn FnMut(usize, &[f64])) -> Result<()> {
    const CHUNK: usize = 1024;
    let mut values = [0.0; CHUNK];
    check::stored_dispatch!(OP, grads.operand("grads"), T => {
        for (i, chunk) in grads.as_slice::<T>(OP, "grads")?.chunks(CHUNK).enumerate() {
            for (value, g) in values.iter_mut().zip(chunk) {
                *value = crate::Element::to_f64(*g);
            }
            body(start + i * CHUNK, &values[..chunk.len()]);
        }
        Ok(())
    })
}

/// Calls `body` with the row, the first column and the range in a slice of `len` elements, for each row that elements `start..` touch.
#[inline(always)]
fn for_rows(
    shape: FactoredShape,
    start: usize,
    len: usize,
    mut body: impl FnMut(Option<usize>, usize, std::ops::Range<usize>),
) {
    let mut at = 0;
    while at < len {
        let (row, col) = shape.place(start + at);
        let end = len.min(at + shape.cols - col);
        body(row, col, at..end);
        at = end;
    }
}

fn add_squares(shape: FactoredShape, start: usize, grads: &[f64], sums: &mut [f64]) {
    let (of_rows, of_cols) = sums.split_at_mut(shape.rows);
    for_rows(shape, start, grads.len(), |row, col, at| {
        let grads = &grads[at];
        for (sum, g) in of_cols[col..].iter_mut().zip(grads) {
            *sum += g * g;
        }
        if let Some(row) = row {
            of_rows[row] += grads.iter().map(|g| g * g).sum::<f64>();
        }
    });
}

fn move_moments<T: Float>(
    shape: FactoredShape,
    params: &OptimizerParams,
    moments: &mut [T],
    sums: &mut [f64],
) {
    let FactoredShape { rows, cols } = shape;
    let weight = (params.step as f64).powf(params.beta2_decay);
    let squared_scale = params.grad_scale * params.grad_scale;
    for (k, (moment, sum)) in moments.iter_mut().zip(&mut *sums).enumerate() {
        let n = if k < rows { cols } else { rows.max(1) };
        *moment = T::from_f64(lerp(moment.to_f64(), *sum * squared_scale / n as f64, weight));
        *sum = moment.to_f64();
    }
    let (of_rows, _) = sums.split_at_mut(rows);
    let mean = (of_rows.iter().sum::<f64>() / rows as f64).max(params.eps);
    for factor in of_rows {
        *factor /= mean;
    }
}

/// Same as `torch.lerp`.
fn lerp(from: f64, to: f64, weight: f64) -> f64 {
    if weight < 0.5 { from + weight * (to - from) } else { to - (to - from) * (1.0 - weight) }
}

fn sum_direction(shape: FactoredShape, start: usize, eps: f64, grads: &[f64], factors: &[f64]) -> f64 {
    let (of_rows, of_cols) = factors.split_at(shape.rows);
    let (floor, mut total) = (eps * eps, 0.0);
    for_rows(shape, start, grads.len(), |row, col, at| {
        let of_row = row.map_or(1.0, |row| of_rows[row]);
        let terms = grads[at].iter().zip(&of_cols[col..]).map(|(g, c)| g * g / (of_row * c).max(floor));
        total += terms.sum::<f64>();
    });
    total
}

/// The step; its source are the gradients.
#[derive(Clone, Copy)]
pub(super) struct Adafactor<'a> {
    params: OptimizerParams,
    shape: FactoredShape,
    start: usize,
    numbers: Numbers<'a>,
}

/// The factors with `Σw²` in front, and `Σu²`.
#[derive(Clone, Copy)]
enum Numbers<'a> {
    Host(&'a [f64], f64),
    /// Addresses on the device.
    Device(u64, u64),
}

impl<'a> Adafactor<'a> {
    /// The step on a range of `weights`.
    pub(super) fn new(
        params: OptimizerParams,
        weights: Operand,
        of_parameter: AdafactorFactors<'a>,
    ) -> Result<Self> {
        let AdafactorFactors { shape, start, factors, norm } = of_parameter;
        check_numbers(weights, factors.operand("factors"), 1 + shape.n_moments())?;
        check_numbers(weights, norm.operand("norm"), 1)?;
        check::shape(OP, weights, Shape::vector(weights.shape.numel().min(shape.numel() - start)))?;
        let numbers = match factors.gpu() {
            Some(_) => Numbers::Device(factors.cuda()?.ptr(), norm.cuda()?.ptr()),
            None => Numbers::Host(factors.as_slice(OP, "factors")?, norm.as_slice::<f64>(OP, "norm")?[0]),
        };
        Ok(Adafactor { params, shape, start, numbers })
    }
}

/// `Params` of `adafactor.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(in super::super) struct AdafactorParams {
    lr: f64,
    lr_scale: f64,
    step: f64,
    scale: f64,
    weight_decay: f64,
    eps: f64,
    eps2: f64,
    clip_threshold: f64,
    rows: u64,
    cols: u64,
    start: u64,
    factors: u64,
    norm: u64,
}

impl Argument for AdafactorParams {}

impl Update<0> for Adafactor<'_> {
    const OP: &'static str = OP;
    const STATE: [&'static str; 0] = [];
    const MIN_PART: usize = 1 << 14;
    const KERNELS: cuda::Kernels = kernels!("adafactor");
    type Params = AdafactorParams;

    fn params(&self) -> AdafactorParams {
        let FactoredShape { rows, cols } = self.shape;
        let (factors, norm) = match self.numbers {
            Numbers::Device(factors, norm) => (factors, norm),
            Numbers::Host(..) => (0, 0),
        };
        AdafactorParams {
            lr: self.params.lr,
            lr_scale: self.params.lr_scale,
            step: self.params.step as f64,
            scale: self.params.grad_scale,
            weight_decay: self.params.weight_decay,
            eps: self.params.eps,
            eps2: self.params.eps2,
            clip_threshold: self.params.clip_threshold,
            rows: rows as u64,
            cols: cols as u64,
            start: self.start as u64,
            factors,
            norm,
        }
    }

    fn at_step(self, scalars: &StepScalars, grad_scale: f64) -> Self {
        Adafactor { params: self.params.at_step(scalars, grad_scale), ..self }
    }

    #[inline(always)]
    fn apply<T: Float>(&self, w: &mut [T], g: &[T], []: [&mut [T]; 0], first: usize) {
        let Numbers::Host(factors, squares) = self.numbers else { return };
        let p = &self.params;
        let lr = p.lr_scale * p.lr;
        let n = self.shape.numel() as f64;
        let alpha = (factors[0] / n).sqrt().max(p.eps2) * lr.min(1.0 / (p.step as f64).sqrt());
        let clip = (p.grad_scale * (squares / n).sqrt() / p.clip_threshold).max(1.0);
        let [keep, step_size, floor] =
            [1.0 - lr * p.weight_decay, alpha / clip * p.grad_scale, p.eps * p.eps].map(T::from_f64);
        let (of_rows, of_cols) = factors[1..].split_at(self.shape.rows);
        for_rows(self.shape, self.start + first, w.len(), |row, col, at| {
            let of_row = T::from_f64(row.map_or(1.0, |row| of_rows[row]));
            for ((w, &g), &of_col) in w[at.clone()].iter_mut().zip(&g[at]).zip(&of_cols[col..]) {
                let estimate = (of_row * T::from_f64(of_col)).at_least(floor);
                *w = keep * *w - step_size * g / estimate.sqrt();
            }
        });
    }
}

//! Products of f32 factors on the TF32 matrix units of GPUs: each factor is split into two numbers of 11 bits, and
//! `a·b ≈ a_lo·b_hi + a_hi·b_lo + a_hi·b_hi`, with an error near that of f32.
//!
//! The three sums run as one matmul of three times the inner dimension, of `(lo, hi, hi)` and `(hi, lo, hi)`, the small terms first. So
//! its epilogue and `beta` are those of any other matmul, C is read once, and its algorithm is chosen by time as all are.
//!
//! Source: CUTLASS, "3xTF32" (`examples/27_ampere_3xtf32_fast_accurate_tensorop_gemm`); arXiv:2203.03341.

#[cfg(test)]
mod tests;

use super::addmm::{addmm, matmul, shape_of};
use crate::base::check;
use crate::base::matmul_mode::MatmulMode;
use crate::cuda::blas::{MAX_ALIGNMENT, Matmul, Operands, Scales};
use crate::cuda::launch::{Launch, RowTiles, Source};
use crate::cuda::{CudaSlice, Gpu};
use crate::{DType, KernelError, MemoryUse, Result, Shape, Tensor, TensorMut, TensorRef};

pub(crate) static SOURCE: Source = Source::new("split", include_str!("kernel.cu"));

/// Numbers of a split factor per number.
const PARTS: usize = 3;
/// The fixed rule for products that were not timed: at least so many multiplications, and so many per number that is split. Estimated
/// for an H100, whose product of 1,024 rows, columns and terms gains nothing.
const LEAST_PRODUCTS: usize = 1 << 31;
const LEAST_PER_NUMBER: usize = 512;

/// Length in f32 of the scratch for the split factors of `[m, k]·[k, n]`.
#[doc(hidden)]
pub fn split_factors_len(m: usize, n: usize, k: usize) -> usize {
    start_of_b(m, k) + PARTS * k * n
}

/// The element of the scratch at which B begins.
fn start_of_b(m: usize, k: usize) -> usize {
    (PARTS * m * k).next_multiple_of(MAX_ALIGNMENT / DType::F32.size_bytes())
}

/// Factors of a product, as they are or split.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Factors<'a> {
    /// The matmul of these factors.
    pub(crate) product: Matmul,
    pub(crate) a: CudaSlice<'a>,
    pub(crate) b: CudaSlice<'a>,
}

impl<'a> Factors<'a> {
    /// The factors as they are, multiplied in f32 if `product` is to be of split ones.
    pub(crate) fn whole(product: Matmul, a: CudaSlice<'a>, b: CudaSlice<'a>) -> Self {
        Factors { product: Matmul { mode: product.mode.of_whole_factors(), ..product }, a, b }
    }

    /// The factors in `scratch`, which has [`split_factors_len`] numbers, not yet written.
    fn split(product: Matmul, scratch: CudaSlice<'a>) -> Self {
        let Matmul { m, n, k, .. } = product;
        let start = start_of_b(m, k);
        let (a, b) = (scratch.range(0, PARTS * m * k), scratch.range(start, start + PARTS * k * n));
        Factors { product: Matmul { k: PARTS * k, ..product }, a, b }
    }

    /// The factors of `product`, split in `scratch` where it is there and this was measured to be faster, or else by a fixed rule.
    ///
    /// The caller checked shapes, dtypes and the length of the scratch, which nothing else uses until the product is complete.
    pub(crate) fn of(
        gpu: &'static Gpu,
        product: Matmul,
        a: CudaSlice<'a>,
        b: CudaSlice<'a>,
        scratch: Option<CudaSlice<'a>>,
    ) -> Result<Self> {
        let whole = Factors::whole(product, a, b);
        let is_wanted = product.mode == MatmulMode::F32x3 && product.inputs == DType::F32;
        let is_possible = gpu.info().has_bf16_matmuls() && ![product.m, product.n, product.k].contains(&0);
        let Some(scratch) = scratch.filter(|_| is_wanted && is_possible) else { return Ok(whole) };
        let split = Factors::split(product, scratch);
        let operands = Operands { a: a.ptr(), b: b.ptr(), c: 0, bias: 0, aux: 0 };
        let by_rule = pays_off(gpu.info().has_fast_tf32(), &product);
        let is_split = gpu.prefers_split(product, operands, by_rule, |is_split| {
            let mut c =
                Tensor::zeros_for(MemoryUse::Workspace, &[product.m * product.n], DType::F32, gpu.device())?;
            gpu.time_us(|| {
                let factors = if is_split { split.write(gpu, a, b)? } else { whole };
                let c = c.view_mut().into_cuda()?;
                matmul(gpu, factors.product, Scales::overwrite(), factors.a, factors.b, c, None, None)
                    .map(|_| ())
            })
        })?;
        if is_split { split.write(gpu, a, b) } else { Ok(whole) }
    }

    /// Whether the factors are split.
    pub(crate) fn are_split(&self) -> bool {
        self.product.mode == MatmulMode::F32x3
    }

    /// Splits the factors `a` and `b` of the product into these, in two launches.
    fn write(self, gpu: &'static Gpu, a: CudaSlice<'_>, b: CudaSlice<'_>) -> Result<Self> {
        let Matmul { m, n, k, transpose_a, transpose_b, .. } = self.product;
        let k = k / PARTS;
        // Where the inner dimension is that of the rows, the parts follow each other.
        let a_rows = if transpose_a { (1, k * m) } else { (m, k) };
        let b_rows = if transpose_b { (n, k) } else { (1, k * n) };
        split(gpu, a, self.a, a_rows, true)?;
        split(gpu, b, self.b, b_rows, false)?;
        Ok(self)
    }
}

/// Whether a product of split factors takes less time than one in f32, by its size, on a GPU whose TF32 rate is far above that of f32.
fn pays_off(has_fast_tf32: bool, product: &Matmul) -> bool {
    let Matmul { m, n, k, .. } = *product;
    has_fast_tf32
        && m.saturating_mul(n).saturating_mul(k) >= LEAST_PRODUCTS
        && m.saturating_mul(n) / (m + n) >= LEAST_PER_NUMBER
}

/// `to[r] = (lo, hi, hi)` if `lo_first`, else `(hi, lo, hi)`, of the numbers in row `r` of `from`.
fn split(
    gpu: &'static Gpu,
    from: CudaSlice<'_>,
    to: CudaSlice<'_>,
    (rows, cols): (usize, usize),
    lo_first: bool,
) -> Result<()> {
    let is_packed = cols.is_multiple_of(4) && (from.ptr() | to.ptr()).is_multiple_of(16);
    let (kernel, per_access) = if is_packed { ("split_packed_f32", 4) } else { ("split_f32", 1) };
    let tiles = RowTiles::new(gpu, rows, cols / per_access);
    let launch = tiles.grid(Launch::new(gpu, &SOURCE, kernel)?);
    let launch =
        launch.read(from).read(to).arg(rows).arg(cols).arg(i32::from(lo_first)).arg(tiles.log2_width());
    // SAFETY: split(const float* from, float* to, size_t rows, size_t cols, int lo_first, u32 log2_width); `from` holds rows · cols
    // elements, `to` three times as many of scratch that is the caller's alone; the packed one has rows and addresses of 16 bytes.
    unsafe { launch.run() }
}

/// [`addmm`] of f32 factors that a GPU splits; elsewhere the same as [`addmm`].
///
/// - `workspace`: f32 scratch of at least [`split_factors_len`] elements
///
/// # Errors
/// Same as [`addmm`]; [`KernelError::DTypeUnsupported`] for other factors than f32; [`KernelError::ElementCount`] for too small a
/// workspace.
#[doc(hidden)]
#[allow(clippy::too_many_arguments)] // GEMM has that many, and scratch.
pub fn addmm_f32x3(
    alpha: f64,
    a: TensorRef<'_>,
    transpose_a: bool,
    b: TensorRef<'_>,
    transpose_b: bool,
    beta: f64,
    c: TensorMut<'_>,
    workspace: TensorMut<'_>,
) -> Result<()> {
    const OP: &str = "addmm_f32x3";
    check::dtype(OP, a.operand("a"), &[DType::F32], "f32")?;
    let Some(gpu) = c.gpu() else { return addmm(alpha, a, transpose_a, b, transpose_b, beta, c) };
    let product = shape_of(MatmulMode::F32x3, a, transpose_a, b, transpose_b, c.operand("c"))?;
    let scratch =
        checked_scratch(OP, a, workspace.as_ref(), split_factors_len(product.m, product.n, product.k))?;
    let (a, b) = (a.cuda()?, b.cuda()?);
    let is_empty = [product.m, product.n, product.k].contains(&0);
    let factors = if is_empty {
        Factors::whole(product, a, b)
    } else {
        Factors::split(product, scratch).write(gpu, a, b)?
    };
    let scales = Scales { alpha, beta };
    matmul(gpu, factors.product, scales, factors.a, factors.b, c.into_cuda()?, None, None).map(|_| ())
}

/// The scratch next to the factor `a`, of at least `needed` f32.
pub(crate) fn checked_scratch<'a>(
    op: &'static str,
    a: TensorRef<'_>,
    workspace: TensorRef<'a>,
    needed: usize,
) -> Result<CudaSlice<'a>> {
    check::same_kind(op, &[a.operand("a"), workspace.operand("workspace")])?;
    let got = workspace.numel();
    if got < needed {
        return Err(KernelError::ElementCount { op, got, shape: Shape::vector(needed) });
    }
    workspace.cuda()
}

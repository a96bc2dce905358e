//! Ordinal loss: classes in an order, predicted by cumulative logits.

use crate::base::check;
use crate::cpu::{Float, Stored};
use crate::cuda::launch::Launch;
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::loss::cpu::Blocks;
use crate::ops::loss::cuda::{Kernels, SOURCE, element_blocks, kernels};
use crate::ops::loss::formulas::Bce;
use crate::ops::loss::sums::{LossSums, SumsOutput};
use crate::{DType, Element, KernelError, Result, Shape, TensorMut, TensorRef};

const OP: &str = "ordinal";

/// Writes the sums of the elements' losses and weights to `sums`, and `d_logits = scale · ∂(sum)/∂logits`.
///
/// Logit `k` of a row says whether its class is above `k`: the loss is [`ElementLoss::Bce`](super::ElementLoss::Bce) with the
/// target `labels[n] > k`, so that an error counts by the number of classes between.
///
/// - `logits`: `[N, C - 1]` of a float dtype, for `C` classes; `labels`: `[N]` i64, from 0 to `C - 1`; `d_logits`: `[N, C - 1]` of the
///   same, or bf16 or f16 for f32; optional
/// - `row_weights`: `[N]` f32, finite, not negative, default 1; multiplies the losses and gradients of a row's elements, and
///   each element adds it to the sum of weights; rows of weight 0 are ignored
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured. On a GPU, a label outside `0..C`
/// makes the loss NaN and its gradient row 0.
///
/// # Errors
/// On the CPU [`KernelError::Label`] for such a label, before anything is written; [`KernelError::DeviceMismatch`],
/// [`KernelError::DTypeMismatch`], [`KernelError::DTypeUnsupported`], [`KernelError::Shape`].
///
/// Source: Cheng, Wang and Pollastri, A Neural Network Approach to Ordinal Regression, arXiv:0704.1028, with cross-entropy for its
/// squared error; the cumulative targets are those of CORAL, arXiv:1901.07884, which shares one weight vector between the logits.
#[doc(hidden)]
pub fn ordinal(
    logits: TensorRef<'_>,
    labels: TensorRef<'_>,
    row_weights: Option<TensorRef<'_>>,
    scale: f64,
    d_logits: Option<TensorMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    let (logits_op, labels_op) = (logits.operand("logits"), labels.operand("labels"));
    check::same_device(OP, &[logits_op, labels_op])?;
    let (n_rows, n_cols) = check::matrix(OP, logits_op)?;
    check::dtype(OP, labels_op, &[DType::I64], "i64")?;
    check::shape(OP, labels_op, Shape::vector(n_rows))?;
    if let Some(d_logits) = &d_logits {
        check::gradient_kind(OP, logits_op, d_logits.operand("d_logits"))?;
        check::shape(OP, d_logits.operand("d_logits"), logits.shape())?;
    }
    check::row_weights(OP, row_weights.map(|w| w.operand("row_weights")), n_rows, logits_op)?;
    sums.check(OP, logits_op)?;
    check::dtype(OP, logits_op, check::FLOATS, check::FLOATS_NAMES)?;
    if let Some(gpu) = logits.gpu() {
        let d_logits = d_logits.map(TensorMut::into_cuda).transpose()?;
        return sum_and_gradient_cuda(
            gpu,
            logits.cuda()?,
            labels.cuda()?,
            row_weights,
            scale,
            d_logits,
            sums,
        );
    }
    let labels = labels.as_slice::<i64>(OP, "labels")?;
    let row_weights = row_weights.map(|w| w.as_slice::<f32>(OP, "row_weights")).transpose()?;
    let counts = |row: usize| row_weights.is_none_or(|weights| weights[row] != 0.0);
    let is_bad = |(row, label): &(usize, i64)| !(0..=n_cols as i64).contains(label) && counts(*row);
    if let Some((row, label)) = labels.iter().copied().enumerate().find(is_bad) {
        return Err(KernelError::Label { op: OP, row, label, n_classes: n_cols + 1 });
    }
    let d_op = d_logits.as_ref().map_or(logits_op, |d| d.operand("d_logits"));
    check::gradient_dispatch!(OP, logits_op, d_op, T, D => {
        let logits = logits.as_slice::<T>(OP, "logits")?;
        let d_logits = d_logits.map(|d| d.into_slice::<D>(OP, "d_logits")).transpose()?;
        sums.write(OP, sum_and_gradient_cpu(logits, labels, row_weights, scale as _, d_logits))
    })
}

/// Binary cross-entropy of each element; its target is 1 if the label is above the column, else 0.
///
/// Labels are at most `n_cols`.
fn sum_and_gradient_cpu<T: Stored, D: Stored<Real = T::Real>>(
    logits: &[T],
    labels: &[i64],
    row_weights: Option<&[f32]>,
    scale: T::Real,
    d_logits: Option<&mut [D]>,
) -> LossSums {
    let n_cols = logits.len() / labels.len().max(1);
    let blocks = Blocks { x: logits, n_cols, row_weights, scale };
    blocks.sum_and_gradient(&Bce, d_logits, |range, memory| {
        let (mut row, mut column) = (range.start / n_cols, range.start % n_cols);
        for target in memory.first(range.len()) {
            *target = if labels[row] > column as i64 { T::Real::ONE } else { T::Real::ZERO };
            column += 1;
            if column == n_cols {
                (row, column) = (row + 1, 0);
            }
        }
        None
    })
}

const KERNELS: Kernels = kernels!("ordinal");

/// Loss, gradient and sums in one launch, by a kernel next to binary cross-entropy in `kernel.cu`.
///
/// Same as `sum_and_gradient_cpu`; the caller checked the operands.
fn sum_and_gradient_cuda(
    gpu: &'static Gpu,
    logits: CudaSlice<'_>,
    labels: CudaSlice<'_>,
    row_weights: Option<TensorRef<'_>>,
    scale: f64,
    mut d: Option<CudaSliceMut<'_>>,
    sums: SumsOutput<'_>,
) -> Result<()> {
    let extra = sums.extra.map(TensorRef::cuda).transpose()?;
    let kernel = KERNELS.of(logits.dtype(), d.as_ref().map(CudaSliceMut::dtype));
    let (scratch, n, accumulate) = (gpu.scratch()?, logits.len(), i32::from(sums.accumulate));
    let n_cols = n / labels.len().max(1);
    let launch = Launch::new(gpu, &SOURCE, kernel)?;
    let launch = launch.blocks(element_blocks(gpu, n, logits.dtype())).read(logits);
    let launch = launch.read(labels).read_opt(row_weights.map(TensorRef::cuda).transpose()?);
    let launch = launch.write_opt(d.as_mut()).arg(n).arg(n_cols).arg(scale);
    let launch = launch.write(&mut sums.tail.into_cuda()?).arg(accumulate).read_opt(extra);
    let launch = launch.arg(scratch.counter).arg(scratch.partials);
    // SAFETY: ordinal(const T* x, const i64* labels, const float* row_weights, D* d, size_t n, size_t cols, double scale, float* tail,
    // int accumulate, const double* extra, u32* counter, double* partials); x and d hold n elements, labels and row_weights one for
    // each `cols` of them, the tail STEP_SUMS_LEN, partials two a block.
    unsafe { launch.run() }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::Tensor;
    use crate::ops::loss::testing::{assert_loss, sums_after};
    use crate::ops::testing::{devices, tensor};
    use crate::ops::{ElementLoss, element_loss};

    /// The ordinal loss with labels that follow from `targets`, `[N, C - 1]`, in 0..=1.
    fn by_targets(
        x: TensorRef<'_>,
        targets: TensorRef<'_>,
        weights: Option<TensorRef<'_>>,
        scale: f64,
        d: Option<TensorMut<'_>>,
        sums: SumsOutput<'_>,
    ) -> Result<()> {
        let n_cols = x.shape().rows_cols().1;
        let targets: Vec<f64> = match targets.dtype() {
            DType::F64 => targets.to_vec()?,
            DType::BF16 => targets.to_vec::<bf16>()?.into_iter().map(f64::from).collect(),
            DType::F16 => targets.to_vec::<f16>()?.into_iter().map(f64::from).collect(),
            _ => targets.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
        };
        // The first column alone decides, so that each row has some label.
        let label = |row: &[f64]| (row[0] * (n_cols as f64 + 0.99)) as i64;
        let labels: Vec<i64> = targets.chunks_exact(n_cols).map(label).collect();
        let labels = Tensor::from_slice(&labels, &[labels.len()], x.device())?;
        ordinal(x, labels.view(), weights, scale, d, sums)
    }

    #[test]
    fn gradient_matches_central_differences_and_dtypes_agree() {
        assert_loss(by_targets, 10.0, |v| 0.5 * (v + 1.0));
    }

    #[test]
    fn it_is_binary_cross_entropy_on_cumulative_targets() {
        let (logits, labels) = ([0.5f32, -1.0, 2.0, -3.0, 0.25, 1.5, 4.0, -0.5, 0.0], [0i64, 3, 1]);
        let cumulative = [0.0f32, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0];
        for device in devices() {
            let x = tensor(&logits, &[3, 3], device);
            let (labels, targets) = (tensor(&labels, &[3], device), tensor(&cumulative, &[3, 3], device));
            let mut d = [x.zeros_like().unwrap(), x.zeros_like().unwrap()];
            let [got_d, want_d] = &mut d;
            let got = sums_after(device, None, |sums| {
                ordinal(x.view(), labels.view(), None, 0.5, Some(got_d.view_mut()), sums)
            });
            let want = sums_after(device, None, |sums| {
                element_loss(
                    ElementLoss::Bce,
                    x.view(),
                    targets.view(),
                    None,
                    0.5,
                    Some(want_d.view_mut()),
                    sums,
                )
            });
            assert_eq!(got.unwrap(), want.unwrap());
            assert_eq!(got_d.to_vec::<f32>().unwrap(), want_d.to_vec::<f32>().unwrap());
        }
    }

    #[test]
    fn a_label_beyond_the_classes_is_refused_or_makes_the_loss_nan() {
        for device in devices() {
            let x = tensor(&[0.5f32; 4], &[2, 2], device);
            for label in [-1i64, 3] {
                let labels = tensor(&[2, label], &[2], device);
                let mut d = x.zeros_like().unwrap();
                let got = sums_after(device, None, |sums| {
                    ordinal(x.view(), labels.view(), None, 1.0, Some(d.view_mut()), sums)
                });
                match device {
                    crate::Device::Cpu => {
                        assert_eq!(
                            got.unwrap_err(),
                            KernelError::Label { op: OP, row: 1, label, n_classes: 3 }
                        );
                    }
                    crate::Device::Cuda(_) => {
                        assert!(got.unwrap().loss.is_nan());
                        assert_eq!(d.to_vec::<f32>().unwrap()[2..], [0.0, 0.0]);
                    }
                }
            }
        }
    }
}

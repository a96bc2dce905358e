//! Counts rows whose largest output is at the label (top-1 accuracy).

use crate::base::check;
use crate::cuda::launch::{BLOCK, Launch, Source, float_kernel};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu, PARTIAL_SUMS};
use crate::{DType, Element, Result, Shape, TensorMut, TensorRef};

/// `count =` the number of rows whose first largest output is at the label, or `+=` if `accumulate`; with row weights, the sum
/// of the weights of those rows.
///
/// - `outputs`: `[N, C]` of a float dtype; `labels`: `[N]` i64; `count`: `[1]` f64
/// - `row_weights`: `[N]` f32, finite, not negative
/// - a row with NaN or with a label outside `0..C` counts as wrong
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeUnsupported`], [`crate::KernelError::Shape`].
///
/// Source: `torch.argmax` compared with the labels.
#[doc(hidden)]
pub fn count_correct(
    outputs: TensorRef<'_>,
    labels: TensorRef<'_>,
    row_weights: Option<TensorRef<'_>>,
    count: TensorMut<'_>,
    accumulate: bool,
) -> Result<()> {
    const OP: &str = "count_correct";
    let (outputs_op, labels_op, count_op) =
        (outputs.operand("outputs"), labels.operand("labels"), count.operand("count"));
    check::same_device(OP, &[outputs_op, labels_op, count_op])?;
    let (n_rows, n_classes) = check::matrix(OP, outputs_op)?;
    check::dtype(OP, labels_op, &[DType::I64], "i64")?;
    check::shape(OP, labels_op, Shape::vector(n_rows))?;
    check::row_weights(OP, row_weights.map(|w| w.operand("row_weights")), n_rows, outputs_op)?;
    check::dtype(OP, count_op, &[DType::F64], "f64")?;
    check::shape(OP, count_op, Shape::vector(1))?;
    if let Some(gpu) = outputs.gpu() {
        check::dtype(OP, outputs_op, check::FLOATS, check::FLOATS_NAMES)?;
        return count_cuda(
            gpu,
            outputs.cuda()?,
            n_classes,
            labels.cuda()?,
            row_weights.map(TensorRef::cuda).transpose()?,
            &mut count.into_cuda()?,
            accumulate,
        );
    }
    let labels = labels.as_slice::<i64>(OP, "labels")?;
    let row_weights = row_weights.map(|w| w.as_slice::<f32>(OP, "row_weights")).transpose()?;
    check::stored_dispatch!(OP, outputs_op, T => {
        let correct = count_cpu::<T>(outputs.as_slice(OP, "outputs")?, n_classes, labels, row_weights);
        let count = &mut count.into_slice::<f64>(OP, "count")?[0];
        *count = if accumulate { *count + correct } else { correct };
        Ok(())
    })
}

/// Row by row.
fn count_cpu<T: Element>(logits: &[T], n_classes: usize, labels: &[i64], row_weights: Option<&[f32]>) -> f64 {
    let is_correct = |(row, &label): (&[T], &i64)| match usize::try_from(label).ok().and_then(|l| row.get(l))
    {
        Some(at_label) => {
            let before = &row[..label as usize];
            before.iter().all(|v| v < at_label) && row.iter().all(|v| v <= at_label)
        }
        None => false,
    };
    let rows = logits.chunks_exact(n_classes.max(1)).zip(labels);
    match row_weights {
        None => rows.filter(|&row| is_correct(row)).count() as f64,
        Some(weights) => {
            rows.zip(weights).filter(|&(row, _)| is_correct(row)).map(|(_, &weight)| f64::from(weight)).sum()
        }
    }
}

pub(crate) static SOURCE: Source = Source::new("count_correct", include_str!("kernel.cu"));
pub(crate) static WEIGHTED_SOURCE: Source =
    Source::with_row_weights("count_correct_weighted", include_str!("kernel.cu"));

/// Maximum number of blocks.
const MAX_BLOCKS: usize = 1024;
const _: () = assert!(MAX_BLOCKS <= PARTIAL_SUMS);
/// Number of classes from which a block shares a row.
const WIDE: usize = 1024;

/// Several rows per warp or one row per block, by the number of classes.
///
/// Counts rows of `n_classes` float logits whose first largest one is at the label, or sums their weights; labels i64, weights
/// f32, count one f64, all on this device.
fn count_cuda(
    gpu: &'static Gpu,
    logits: CudaSlice<'_>,
    n_classes: usize,
    labels: CudaSlice<'_>,
    row_weights: Option<CudaSlice<'_>>,
    count: &mut CudaSliceMut<'_>,
    accumulate: bool,
) -> Result<()> {
    let kernel = float_kernel!("count_correct"; logits.dtype());
    let block = BLOCK as usize;
    let width = if n_classes >= WIDE { block } else { n_classes.clamp(1, 32).next_power_of_two() };
    let source = if row_weights.is_some() { &WEIGHTED_SOURCE } else { &SOURCE };
    let (rows, scratch) = (labels.len(), gpu.scratch()?);
    let launch = Launch::new(gpu, source, kernel)?.blocks(rows.div_ceil(block / width).min(MAX_BLOCKS));
    let launch = launch.read(logits).read(labels).read_opt(row_weights).write(count);
    let launch = launch.arg(rows).arg(n_classes).arg(i32::from(accumulate));
    // SAFETY: count_correct(const T* logits, const i64* labels, const float* row_weights, double* count, size_t rows, size_t
    // cols, int accumulate, u32 log2_width, u32* counter, double* partials); logits holds rows · cols elements, labels and
    // row_weights `rows`, count one, partials one for each block.
    unsafe { launch.arg(width.ilog2()).arg(scratch.counter).arg(scratch.partials).run() }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::ops::testing::{assert_close, devices, random, rounded, tensor};
    use crate::{Device, Element, Philox, Tensor};

    /// The count, added to `before` if given.
    fn run<T: Element>(outputs: &[T], labels: &[i64], before: Option<f64>, device: Device) -> f64 {
        run_weighted(outputs, labels, None, before, device)
    }

    fn run_weighted<T: Element>(
        outputs: &[T],
        labels: &[i64],
        row_weights: Option<&[f32]>,
        before: Option<f64>,
        device: Device,
    ) -> f64 {
        let outputs = tensor(outputs, &[labels.len(), outputs.len() / labels.len().max(1)], device);
        let labels = tensor(labels, &[labels.len()], device);
        let mut count = tensor(&[before.unwrap_or(f64::NAN)], &[1], device);
        let row_weights = row_weights.map(|w| tensor(w, &[w.len()], device));
        let row_weights = row_weights.as_ref().map(Tensor::view);
        count_correct(outputs.view(), labels.view(), row_weights, count.view_mut(), before.is_some())
            .unwrap();
        count.to_vec::<f64>().unwrap()[0]
    }

    #[test]
    fn counts_the_first_of_equal_maxima_and_no_nan() {
        let outputs = [1.0f32, 2.0, 2.0, 5.0, f32::NAN, 0.0, 0.0, 0.0, 7.0];
        for device in devices() {
            let count = |labels: [i64; 3]| run(&outputs, &labels, None, device);
            assert_eq!((count([1, 0, 2]), count([2, 0, 2]), count([1, 0, -100])), (2.0, 1.0, 1.0));
            assert_eq!((count([1, 1, 3]), count([1, 2, i64::MAX])), (1.0, 1.0));
            assert_eq!(run(&outputs, &[1, 0, 2], Some(40.0), device), 42.0);
            assert_eq!(run::<f32>(&[], &[], Some(40.0), device), 40.0);
            assert_eq!(run::<f32>(&[], &[], None, device), 0.0);
            let weighted = |labels: [i64; 3], weights: [f32; 3], before| {
                run_weighted(&outputs, &labels, Some(&weights), before, device)
            };
            assert_eq!(weighted([1, 0, 2], [0.25, 8.0, 3.0], None), 3.25);
            assert_eq!(weighted([1, 0, 2], [0.0, 8.0, 3.0], Some(40.0)), 43.0);
            assert_eq!(weighted([1, 0, 2], [1.0; 3], None), 2.0);
        }
    }

    /// Few distinct values, so that ties are common; rows for part of a warp, a warp and a block.
    #[test]
    fn every_device_counts_as_the_cpu_for_any_number_of_classes() {
        for (n_rows, n_classes) in
            [(1, 1), (2100, 2), (999, 3), (5000, 10), (77, 32), (78, 33), (9, 1023), (7, 1024), (5, 2500)]
        {
            let outputs: Vec<f32> =
                random::<f32>(n_rows * n_classes, 1).iter().map(|v| (v * 6.0).round()).collect();
            let words = Philox::new(2);
            // With many classes a random label is never right: every other row gets its argmax as label, and every other one of those its
            // last maximum, which is not the first if there are several.
            let labels: Vec<i64> = (0..n_rows)
                .map(|n| {
                    let row = &outputs[n * n_classes..][..n_classes];
                    let largest = row.iter().copied().fold(f32::MIN, f32::max);
                    let place = match n % 4 {
                        0 => row.iter().position(|&v| v == largest).unwrap(),
                        1 => row.iter().rposition(|&v| v == largest).unwrap(),
                        _ => words.block([n as u32, 0, 0, 0])[0] as usize % n_classes,
                    };
                    place as i64
                })
                .collect();
            let want = run(&outputs, &labels, None, Device::Cpu);
            assert!(want >= 1.0, "{n_rows} x {n_classes}");
            let weights: Vec<f32> = random::<f32>(n_rows, 3).iter().map(|v| v + 1.0).collect();
            let weighted = |device| run_weighted(&outputs, &labels, Some(&weights), None, device);
            let row_by_row = outputs.chunks_exact(n_classes).zip(labels.chunks_exact(1)).zip(&weights);
            let want_weighted: f64 =
                row_by_row.map(|((row, label), &w)| f64::from(w) * run(row, label, None, Device::Cpu)).sum();
            assert_close(&[weighted(Device::Cpu)], &[want_weighted], 0.0, 1e-12);
            for device in devices() {
                assert_eq!(
                    run(&outputs, &labels, None, device),
                    want,
                    "f32 {n_rows} x {n_classes} on {device}"
                );
                // Sums of f64 in another order.
                assert_close(&[weighted(device)], &[want_weighted], 0.0, 1e-12);
                let wide = rounded::<f32, f64>(&outputs);
                assert_eq!(run(&wide, &labels, None, device), want, "f64 {n_rows} x {n_classes} on {device}");
                let counts = [
                    run(&rounded::<f32, bf16>(&outputs), &labels, None, device),
                    run(&rounded::<f32, f16>(&outputs), &labels, None, device),
                ];
                assert_eq!(counts, [want; 2], "bf16, f16 {n_rows} x {n_classes} on {device}");
            }
        }
    }
}

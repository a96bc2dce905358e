//! Dropout whose mask is a pure function of seed, step, layer and global row.

use super::step_scalars::{STEP_SCALARS_LEN, StepScalars};
use crate::base::check;
use crate::base::rng::Philox;
use crate::cpu::Stored;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cuda::launch::{Launch, RowTiles, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Element, Result, Shape, TensorMut, TensorRef};

/// Share of the elements that are dropped.
#[derive(Debug, Clone, Copy)]
struct Rate {
    /// Random words below it drop their element.
    threshold: u32,
    /// Factor of the elements that stay.
    keep: f64,
}

/// Key of a dropout mask: equal keys drop the same elements on every device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub struct DropoutKey {
    /// Seed of the run.
    pub seed: u64,
    /// Optimizer step, from 0.
    pub step: u64,
    /// Index of the layer.
    pub layer: u16,
    /// Index in the global batch of the first row of `x`.
    pub first_row: u64,
}

impl DropoutKey {
    /// The key with seed, step and first-row offset of `scalars`.
    fn at_step(self, scalars: StepScalars) -> Self {
        DropoutKey {
            seed: scalars.seed,
            step: scalars.step.wrapping_sub(1),
            first_row: scalars.first_row.wrapping_add(self.first_row),
            ..self
        }
    }
}

/// `x[n, c] = x[n, c] / (1 - p)` with probability `1 - p`, else 0, in place.
///
/// - `x`: `[N, C]` of a float dtype; element `(n, c)` is dropped if word `c mod 4` of Philox4x32-10 with key `seed` and counter
///   `(c / 4, row, step, layer and row's upper bits)`, `row = first_row + n`, is below `p · 2^32`
/// - `scalars`: [`StepScalars`], `[STEP_SCALARS_LEN]` f64 on the device of `x`, which a captured graph reads anew at each replay:
///   seed and step (counted from 1 there) replace the values in `key`, and `first_row` is added to the one in `key`
/// - the backward pass is the same function with the same key on the gradient
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`crate::KernelError::DTypeUnsupported`] for integers; [`crate::KernelError::DeviceMismatch`] or
/// [`crate::KernelError::Shape`] for `scalars`.
///
/// Source: `torch.nn.functional.dropout`.
#[doc(hidden)]
pub fn dropout(x: TensorMut<'_>, p: f64, key: DropoutKey, scalars: Option<TensorRef<'_>>) -> Result<()> {
    const OP: &str = "dropout";
    let x_op = x.operand("x");
    if let Some(scalars) = scalars {
        let scalars_op = scalars.operand("scalars");
        check::same_device(OP, &[x_op, scalars_op])?;
        check::dtype(OP, scalars_op, &[DType::F64], "f64")?;
        check::shape(OP, scalars_op, Shape::vector(STEP_SCALARS_LEN))?;
    }
    let (_, cols) = x.shape().rows_cols();
    let rate = Rate { threshold: (p * 2f64.powi(32)) as u32, keep: 1.0 / (1.0 - p) };
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        if p == 0.0 {
            return Ok(());
        }
        let scalars = scalars.map(TensorRef::cuda).transpose()?;
        return apply_cuda(gpu, &mut x.into_cuda()?, cols, rate, key, scalars);
    }
    let key = match scalars {
        Some(scalars) => key.at_step(StepScalars::from_slice(scalars.as_slice(OP, "scalars")?)),
        None => key,
    };
    check::stored_dispatch!(OP, x_op, T => {
        let x = x.into_slice::<T>(OP, "x")?;
        if p != 0.0 {
            apply_cpu::<T>(x, cols, rate, key);
        }
        Ok(())
    })
}

/// Columns of sixteen blocks.
const CHUNK: usize = 64;
/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 13;

/// Row by row, four columns per Philox block, sixteen blocks in parallel.
fn apply_cpu<T: Stored>(x: &mut [T], cols: usize, Rate { threshold, keep }: Rate, key: DropoutKey) {
    if cols == 0 {
        return;
    }
    let philox = Philox::new(key.seed);
    let keep = T::Real::from_f64(keep);
    let rows = x.len() / cols;
    let out = SharedMut::new(x);
    for_parts(rows, MIN_PART / cols, 1, |part| {
        for n in part {
            let row = key.first_row + n as u64;
            let tag = u32::from(key.layer) | ((row >> 32) as u32) << 16;
            // SAFETY: row `n` of `x`, which is in this thread's part alone.
            let values = unsafe { out.slice(n * cols..(n + 1) * cols) };
            vectorize(
                #[inline(always)]
                || {
                    for (chunk, values) in values.chunks_mut(CHUNK).enumerate() {
                        let words = philox.blocks_16(
                            #[inline(always)]
                            |b| [(16 * chunk + b) as u32, row as u32, key.step as u32, tag],
                        );
                        for (v, &word) in values.iter_mut().zip(&words) {
                            *v = if word < threshold { T::ZERO } else { T::store(v.load() * keep) };
                        }
                    }
                },
            );
        }
    });
}

pub(crate) static SOURCE: Source = Source::new("dropout", include_str!("kernel.cu"));

/// Each thread takes four columns at a time, or 16 bytes if that is more.
///
/// Drops elements of `x`, rows of `cols` floats on this device, whose random word is below `threshold`; multiplies the others by
/// `keep`.
///
/// `scalars`: [`crate::ops::STEP_SCALARS_LEN`] f64 that hold seed, step and first row, or none.
fn apply_cuda(
    gpu: &'static Gpu,
    x: &mut CudaSliceMut<'_>,
    cols: usize,
    Rate { threshold, keep }: Rate,
    key: DropoutKey,
    scalars: Option<CudaSlice<'_>>,
) -> Result<()> {
    if x.is_empty() {
        return Ok(());
    }
    let (kernel, item) = match x.dtype() {
        DType::F64 => ("dropout_f64", 4),
        DType::BF16 => ("dropout_bf16", 8),
        DType::F16 => ("dropout_f16", 8),
        DType::F32 | DType::I64 | DType::U8 | DType::I32 | DType::Bool => ("dropout_f32", 4),
    };
    let rows = x.len() / cols;
    let tiles = RowTiles::new(gpu, rows, cols.div_ceil(item));
    let launch =
        tiles.grid(Launch::new(gpu, &SOURCE, kernel)?).write(x).arg(rows).arg(cols).arg(threshold).arg(keep);
    let launch = launch.arg(key.seed).arg(key.step).arg(u32::from(key.layer)).arg(key.first_row);
    let launch = launch.read_opt(scalars).arg(tiles.log2_width());
    // SAFETY: dropout(T* x, size_t rows, size_t cols, u32 threshold, double keep, u64 seed, u64 step, u32 layer, u64 first_row,
    // const double* scalars, u32 log2_width); x holds rows · cols elements, scalars eight or it is null.
    unsafe { launch.run() }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::ops::testing::{assert_gradient, devices, dot, random, rounded, tensor};
    use crate::{Device, Element, Tensor};

    const KEY: DropoutKey = DropoutKey { seed: 3, step: 5, layer: 1, first_row: 0 };

    fn run<T: Element>(x: &[T], cols: usize, p: f64, key: DropoutKey, device: Device) -> Vec<T> {
        let mut x = tensor(x, &[x.len() / cols, cols], device);
        dropout(x.view_mut(), p, key, None).unwrap();
        x.to_vec().unwrap()
    }

    fn mask(rows: usize, cols: usize, p: f64, key: DropoutKey, device: Device) -> Vec<f32> {
        run(&vec![1.0; rows * cols], cols, p, key, device)
    }

    #[test]
    fn rows_of_a_shard_get_the_mask_of_the_global_batch() {
        let (rows, cols) = (12, 7);
        let whole = mask(rows, cols, 0.4, KEY, Device::Cpu);
        for device in devices() {
            for split in [0, 1, 5, 12] {
                let mut parts = mask(split, cols, 0.4, KEY, device);
                parts.extend(mask(
                    rows - split,
                    cols,
                    0.4,
                    DropoutKey { first_row: split as u64, ..KEY },
                    device,
                ));
                assert_eq!(parts, whole, "{device}");
            }
        }
    }

    #[test]
    fn every_part_of_the_key_counts_and_the_mean_is_kept() {
        let (rows, cols) = (1000, 50);
        for device in devices() {
            let base = mask(rows, cols, 0.3, KEY, device);
            for key in [
                DropoutKey { seed: 4, ..KEY },
                DropoutKey { step: 6, ..KEY },
                DropoutKey { layer: 2, ..KEY },
                DropoutKey { first_row: 1 << 33, ..KEY },
            ] {
                assert_ne!(mask(rows, cols, 0.3, key, device), base);
            }
            let dropped = base.iter().filter(|&&v| v == 0.0).count() as f64 / base.len() as f64;
            // Five standard errors of a fraction of 0.3 among 50,000.
            assert!((dropped - 0.3).abs() < 0.0103, "{dropped}");
            assert!(base.iter().all(|&v| v == 0.0 || v == (1.0 / 0.7) as f32));
            assert_eq!(mask(2, 9, 0.0, KEY, device), [1.0; 18]);
        }
    }

    fn check_short<S: Element>(x: &[f32], cols: usize, key: DropoutKey, device: Device) {
        let x: Vec<S> = rounded(x);
        let want = rounded::<f32, S>(&run(&rounded::<S, f32>(&x), cols, 0.25, key, Device::Cpu));
        assert!(run(&x, cols, 0.25, key, device) == want, "{:?} rows of {cols} on {device}", S::DTYPE);
    }

    /// The mask equals the CPU's, and a kept element is one rounded multiplication: all bits agree.
    #[test]
    fn every_device_gives_the_same_bits() {
        // The upper bits of the row matter too; the last rows are beyond 2^32.
        let key = DropoutKey { seed: 7 << 33 | 5, step: (1 << 32) + 2, layer: 900, first_row: (1 << 32) - 9 };
        for (rows, cols) in [(1, 1), (21, 6), (21, 10), (300, 64), (3, 2500), (2, 12_000)] {
            let x = random::<f32>(rows * cols, 1);
            let wide = rounded::<f32, f64>(&x);
            let want = run(&x, cols, 0.25, key, Device::Cpu);
            let want_wide = run(&wide, cols, 0.25, key, Device::Cpu);
            for device in devices() {
                assert!(run(&x, cols, 0.25, key, device) == want, "f32 {rows} x {cols} on {device}");
                assert!(run(&wide, cols, 0.25, key, device) == want_wide, "f64 {rows} x {cols} on {device}");
                check_short::<bf16>(&x, cols, key, device);
                check_short::<f16>(&x, cols, key, device);
            }
        }
    }

    #[test]
    fn addresses_that_are_no_multiples_of_16_do_as_well() {
        for device in devices() {
            let mut x = Tensor::ones(&[8 * 16 + 1], DType::F32, device).unwrap();
            dropout(x.view_mut().range(1, 129).unwrap().reshape(&[8, 16]).unwrap(), 0.5, KEY, None).unwrap();
            let got = x.to_vec::<f32>().unwrap();
            assert!(got[0] == 1.0 && got[1..] == mask(8, 16, 0.5, KEY, Device::Cpu), "{device}");
        }
    }

    #[test]
    fn a_steps_scalars_take_the_place_of_the_key() {
        let key = DropoutKey { seed: 9 << 35 | 1, step: 41, layer: 3, first_row: 1030 };
        let scalars =
            StepScalars { lr: 0.1, step: 42, seed: key.seed, first_row: 1000, ..StepScalars::default() };
        for device in devices() {
            let scalars = tensor(&scalars.to_array(), &[STEP_SCALARS_LEN], device);
            let mut x = Tensor::ones(&[20, 9], DType::F32, device).unwrap();
            // Rows 30 and later of the batch: a later micro-batch.
            let other = DropoutKey { seed: 0, step: 0, layer: 3, first_row: 30 };
            dropout(x.view_mut(), 0.5, other, Some(scalars.view())).unwrap();
            assert_eq!(x.to_vec::<f32>().unwrap(), mask(20, 9, 0.5, key, Device::Cpu), "{device}");
            assert!(dropout(x.view_mut(), 0.5, KEY, Some(scalars.view().range(0, 5).unwrap())).is_err());
        }
    }

    /// The mask is linear in x, so the gradient is the mask itself applied to the gradient of the output.
    #[test]
    fn gradient_matches_central_differences() {
        let (x, d_y) = (random::<f64>(15, 1), random::<f64>(15, 2));
        for device in devices() {
            let d = run(&d_y, 5, 0.5, KEY, device);
            assert_gradient(&x, &d, |x| dot(&run(x, 5, 0.5, KEY, Device::Cpu), &d_y));
        }
    }
}

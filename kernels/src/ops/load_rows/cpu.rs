//! Row by row, split over the threads; conversions by hand, so that the loop vectorizes.

use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::{KernelError, Result};

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

/// A storage format of rows, whose values f32 holds exactly.
pub(super) trait Kept: Copy + Sync {
    fn value(self) -> f32;
}

impl Kept for f32 {
    #[inline(always)]
    fn value(self) -> f32 {
        self
    }
}

impl Kept for u8 {
    #[inline(always)]
    fn value(self) -> f32 {
        f32::from(self)
    }
}

impl Kept for half::bf16 {
    #[inline(always)]
    fn value(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

impl Kept for half::f16 {
    /// The conversion of `half` queries the processor's features for each number.
    #[inline(always)]
    fn value(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let (sign, rest) = ((bits & 0x8000) << 16, bits & 0x7fff);
        // Subnormal numbers are multiples of 2^-24.
        let small = (rest as f32 * f32::from_bits(0x3380_0000)).to_bits();
        let normal = (rest << 13) + (112 << 23);
        let special = rest << 13 | 0x7f80_0000;
        let finite = if rest < 0x400 { small } else { normal };
        f32::from_bits(sign | if rest < 0x7c00 { finite } else { special })
    }
}

/// A format of results, rounded from f32.
pub(super) trait Loaded: Copy + Send + Sync {
    fn of(value: f32) -> Self;
}

impl Loaded for f32 {
    #[inline(always)]
    fn of(value: f32) -> Self {
        value
    }
}

impl Loaded for half::bf16 {
    #[inline(always)]
    fn of(value: f32) -> Self {
        half::bf16::from_f32(value)
    }
}

impl Loaded for half::f16 {
    #[inline(always)]
    fn of(value: f32) -> Self {
        half::f16::from_f32(value)
    }
}

/// `out[n, :] = (x[indices[n], :] - shift) · scale`, or the exact value.
pub(super) fn load<T: Kept, O: Loaded>(
    op: &'static str,
    x: &[T],
    [n_rows, cols]: [usize; 2],
    indices: Option<&[i64]>,
    normalizer: Option<(&[f64], &[f64])>,
    out: &mut [O],
) -> Result<()> {
    let wrong = indices.and_then(|all| all.iter().find(|&&index| index < 0 || index as usize >= n_rows));
    if let Some(&wrong) = wrong {
        let start = wrong as usize;
        return Err(KernelError::OutOfRange { op, start, end: start.saturating_add(1), len: n_rows });
    }
    if cols == 0 {
        return Ok(());
    }
    let (rows, out) = (out.len() / cols, SharedMut::new(out));
    for_parts(rows, MIN_PART.div_ceil(cols), 1, |part| {
        vectorize(
            #[inline(always)]
            || {
                for n in part {
                    let row = indices.map_or(n, |indices| indices[n] as usize);
                    let from = &x[row * cols..][..cols];
                    // SAFETY: row `n` of `out`, which is in this thread's part alone.
                    let to = unsafe { out.slice(n * cols..(n + 1) * cols) };
                    match normalizer {
                        Some((shift, scale)) => {
                            for (((to, &x), &shift), &scale) in to.iter_mut().zip(from).zip(shift).zip(scale)
                            {
                                *to = O::of(((f64::from(x.value()) - shift) * scale) as f32);
                            }
                        }
                        None => {
                            for (to, &x) in to.iter_mut().zip(from) {
                                *to = O::of(x.value());
                            }
                        }
                    }
                }
            },
        );
    });
    Ok(())
}

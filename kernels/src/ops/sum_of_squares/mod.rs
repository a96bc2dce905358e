//! The sum of squares of a buffer, for norms.

use super::check;
use crate::cpu::Float;
use crate::cpu::simd::vectorize;
use crate::{Result, TensorRef};

/// Elements whose squares are summed in the tensor's own precision before they join the sum in f64.
const CHUNK: usize = 4096;
/// Interleaved partial sums of a chunk.
const LANES: usize = 32;

/// `Σ x²` in f64; the order of summation depends on the length alone, so that equal buffers give equal bits.
///
/// # Errors
/// [`crate::KernelError::DTypeUnsupported`] for integers.
pub fn sum_of_squares(x: TensorRef<'_>) -> Result<f64> {
    const OP: &str = "sum_of_squares";
    let x_op = x.operand("x");
    check::float_dispatch!(OP, x_op, T => Ok(sum::<T>(x.as_slice(OP, "x")?)))
}

fn sum<T: Float>(x: &[T]) -> f64 {
    vectorize(
        #[inline(always)]
        || {
            let mut total = 0.0;
            for chunk in x.chunks(CHUNK) {
                let mut lanes = [T::ZERO; LANES];
                let (blocks, rest) = chunk.as_chunks::<LANES>();
                for block in blocks {
                    for (lane, &v) in lanes.iter_mut().zip(block) {
                        *lane = v.mul_add(v, *lane);
                    }
                }
                total +=
                    lanes.iter().chain([&rest.iter().map(|&v| v * v).sum()]).map(|v| v.to_f64()).sum::<f64>();
            }
            total
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::random;

    #[test]
    fn agrees_with_f64() {
        for n in [0, 1, 31, 4096, 100_003] {
            let x = random::<f32>(n, 1);
            let want: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
            let got = sum_of_squares(TensorRef::from_slice(&x, &[n]).unwrap()).unwrap();
            assert!((got - want).abs() <= 1e-6 * want, "{got} against {want}");
        }
    }
}

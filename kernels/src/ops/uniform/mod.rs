//! Uniform random numbers, as a function of key, stream and place.

mod cpu;

use super::check;
use crate::{Result, TensorMut};

/// Which numbers are drawn; equal streams draw the same ones on every device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UniformStream {
    /// The key of Philox.
    pub seed: u64,
    /// The upper half of its counter: separates uses of one seed.
    pub stream: [u32; 2],
}

/// `x[i]` uniform in `low..high`: word `i mod 4` of Philox4x32-10 under the counter `(i / 4, stream)`, its upper 24 bits
/// as a multiple of 2^-24.
///
/// - `x`: any shape, f32 or f64; computed in f32
///
/// # Errors
/// [`crate::KernelError::DTypeUnsupported`] for integers.
pub fn uniform(x: TensorMut<'_>, low: f32, high: f32, stream: UniformStream) -> Result<()> {
    const OP: &str = "uniform";
    let x_op = x.operand("x");
    check::float_dispatch!(OP, x_op, T => {
        cpu::fill::<T>(x.into_slice(OP, "x")?, low, high, stream);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Philox, to_unit_f32};

    #[test]
    fn each_number_is_the_word_of_its_place() {
        let stream = UniformStream { seed: 9, stream: [3, 4] };
        let mut x = vec![0.0f32; 1003];
        uniform(TensorMut::from_slice(&mut x, &[1003]).unwrap(), -2.0, 2.0, stream).unwrap();
        for (i, &v) in x.iter().enumerate() {
            let word = Philox::new(9).block([(i / 4) as u32, 0, 3, 4])[i % 4];
            assert_eq!(v, to_unit_f32(word) * 4.0 - 2.0);
        }
    }
}

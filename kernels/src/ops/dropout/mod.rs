//! Dropout whose mask is a pure function of seed, step, layer and global row.

mod cpu;

use super::check;
use crate::{Result, TensorMut};

/// What decides which elements are dropped; equal keys drop the same ones on every device and for every world size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropoutKey {
    /// The run's seed.
    pub seed: u64,
    /// Optimiser step, from 0.
    pub step: u64,
    /// Index of the layer.
    pub layer: u16,
    /// Index in the global batch of the first row given.
    pub first_row: u64,
}

/// `x[n, c] = x[n, c] / (1 - p)` with probability `1 - p`, else 0, in place.
///
/// - `x`: `[N, C]`; element `(n, c)` is dropped where word `c mod 4` of Philox4x32-10 under the key `seed` and the
///   counter `(c / 4, row, step, layer and row's upper bits)`, `row = first_row + n`, is below `p · 2^32`
/// - the backward pass is the same function with the same key on the gradient
///
/// # Errors
/// [`crate::KernelError::DTypeUnsupported`] for integers.
///
/// Source: `torch.nn.functional.dropout`.
pub fn dropout(x: TensorMut<'_>, p: f64, key: DropoutKey) -> Result<()> {
    const OP: &str = "dropout";
    let x_op = x.operand("x");
    let (_, cols) = x.shape().rows_cols();
    check::float_dispatch!(OP, x_op, T => {
        cpu::apply::<T>(x.into_slice(OP, "x")?, cols, p, key);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: DropoutKey = DropoutKey { seed: 3, step: 5, layer: 1, first_row: 0 };

    fn mask(rows: usize, cols: usize, p: f64, key: DropoutKey) -> Vec<f32> {
        let mut x = vec![1.0f32; rows * cols];
        dropout(TensorMut::from_slice(&mut x, &[rows, cols]).unwrap(), p, key).unwrap();
        x
    }

    #[test]
    fn rows_of_a_shard_get_the_mask_of_the_global_batch() {
        let (rows, cols) = (12, 7);
        let whole = mask(rows, cols, 0.4, KEY);
        for split in [0, 1, 5, 12] {
            let mut parts = mask(split, cols, 0.4, KEY);
            parts.extend(mask(rows - split, cols, 0.4, DropoutKey { first_row: split as u64, ..KEY }));
            assert_eq!(parts, whole);
        }
    }

    #[test]
    fn every_part_of_the_key_counts_and_the_mean_is_kept() {
        let (rows, cols) = (1000, 50);
        let base = mask(rows, cols, 0.3, KEY);
        for key in [
            DropoutKey { seed: 4, ..KEY },
            DropoutKey { step: 6, ..KEY },
            DropoutKey { layer: 2, ..KEY },
            DropoutKey { first_row: 1 << 33, ..KEY },
        ] {
            assert_ne!(mask(rows, cols, 0.3, key), base);
        }
        let dropped = base.iter().filter(|&&v| v == 0.0).count() as f64 / base.len() as f64;
        // Five standard errors of a share of 0.3 among 50,000.
        assert!((dropped - 0.3).abs() < 0.0103, "{dropped}");
        assert!(base.iter().all(|&v| v == 0.0 || v == (1.0 / 0.7) as f32));
        assert_eq!(mask(2, 9, 0.0, KEY), [1.0; 18]);
    }

    /// The mask is linear in x, so the gradient is the mask itself applied to the gradient of the output.
    #[test]
    fn gradient_matches_central_differences() {
        use crate::ops::testing::{assert_gradient, dot, random};
        let (rows, cols) = (3, 5);
        let (x, d_y) = (random::<f64>(15, 1), random::<f64>(15, 2));
        let run = |v: &[f64]| {
            let mut v = v.to_vec();
            dropout(TensorMut::from_slice(&mut v, &[rows, cols]).unwrap(), 0.5, KEY).unwrap();
            v
        };
        assert_gradient(&x, &run(&d_y), |x| dot(&run(x), &d_y));
    }
}

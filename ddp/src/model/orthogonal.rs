//! Matrices with orthonormal rows or columns, for initial weights.

/// Number of partial sums of a dot product, added in a fixed order so that all processors give the same bits.
const LANES: usize = 8;

/// Makes the `rows` rows of `values`, or its columns if they are fewer, orthonormal by the modified Gram-Schmidt process in f64,
/// which takes `2 · rows · columns · min(rows, columns)` operations.
///
/// The result is the factor Q of the QR decomposition with a positive diagonal of R, as in `torch.nn.init.orthogonal_`.
///
/// # Panics
/// If `rows` is 0 or does not divide the number of values, or if the vectors are linearly dependent; random ones are not.
pub(super) fn orthonormalize(values: &[f32], rows: usize) -> Vec<f32> {
    let columns = values.len() / rows;
    assert_eq!(rows * columns, values.len(), "a matrix");
    let (n_vectors, len) = (rows.min(columns), rows.max(columns));
    // Index of element `k` of vector `i`; vectors are rows or columns of the matrix.
    let position = |i: usize, k: usize| if rows <= columns { i * columns + k } else { k * columns + i };
    let mut vectors: Vec<Vec<f64>> =
        (0..n_vectors).map(|i| (0..len).map(|k| f64::from(values[position(i, k)])).collect()).collect();
    for i in 0..n_vectors {
        let (done, rest) = vectors.split_at_mut(i + 1);
        let unit = &mut done[i];
        let norm = dot(unit, unit).sqrt();
        assert!(norm > 0.0, "linearly dependent vectors");
        unit.iter_mut().for_each(|value| *value /= norm);
        for other in rest {
            let share = dot(unit, other);
            for (value, &along) in other.iter_mut().zip(&*unit) {
                *value -= share * along;
            }
        }
    }
    let mut matrix = vec![0.0; values.len()];
    for (i, vector) in vectors.iter().enumerate() {
        for (k, &value) in vector.iter().enumerate() {
            matrix[position(i, k)] = value as f32;
        }
    }
    matrix
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut lanes = [0.0; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail: f64 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    lanes.iter().sum::<f64>() + tail
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_numpys_qr_with_a_positive_diagonal() {
        // numpy 2.4: q, r = numpy.linalg.qr(a); q *= numpy.sign(numpy.diag(r))
        let tall = [1.0, 2.0, 3.0, 4.0, 5.0, -6.0];
        let want = [0.169_031, 0.352_152, 0.507_093, 0.769_820, 0.845_154, -0.532_322];
        let got = orthonormalize(&tall, 3);
        assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{got:?}");
        // The transposed matrix has the transposed result.
        let wide = orthonormalize(&[1.0, 3.0, 5.0, 2.0, 4.0, -6.0], 2);
        assert_eq!(wide, [got[0], got[2], got[4], got[1], got[3], got[5]]);
    }

    #[test]
    fn columns_and_rows_are_orthonormal() {
        for (rows, columns) in [(1, 1), (1, 9), (9, 1), (17, 17), (33, 20), (20, 33)] {
            let values: Vec<f32> =
                (0..rows * columns).map(|i| ((i * i * 7919 + i) % 1009) as f32 - 504.0).collect();
            let q = orthonormalize(&values, rows);
            let at = |i: usize, k: usize| {
                f64::from(if rows <= columns { q[i * columns + k] } else { q[k * columns + i] })
            };
            for i in 0..rows.min(columns) {
                for j in 0..rows.min(columns) {
                    let dot: f64 = (0..rows.max(columns)).map(|k| at(i, k) * at(j, k)).sum();
                    // Values below 1 are rounded to f32.
                    assert!(
                        (dot - f64::from(u8::from(i == j))).abs() < 1e-6,
                        "{rows}x{columns}: {i} {j} {dot}"
                    );
                }
            }
        }
    }
}

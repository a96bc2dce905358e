//! Broadcasting of shapes, as far as one division and one remainder per element can follow it.

use crate::Shape;
use crate::base::shape::MAX_DIMS;

/// Position of a broadcast operand's element: `(i / div) % len` for element `i` of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cycle {
    /// Elements of the result that share one element of the operand.
    pub(super) div: usize,
    /// Elements of the operand.
    pub(super) len: usize,
}

/// The dimensions of `shape`, with leading ones.
fn padded(shape: Shape) -> [usize; MAX_DIMS] {
    let mut dims = [1; MAX_DIMS];
    let own = shape.dims();
    dims[MAX_DIMS - own.len()..].copy_from_slice(own);
    dims
}

/// The shape to which both broadcast, as in PyTorch: dimensions, from the last on, are equal or one of them is 1 or absent.
pub(crate) fn broadcast_shape(a: Shape, b: Shape) -> Option<Shape> {
    let (x, y) = (padded(a), padded(b));
    let mut dims = [1; MAX_DIMS];
    for i in 0..MAX_DIMS {
        dims[i] = match (x[i], y[i]) {
            (x, y) if x == y => x,
            (1, y) => y,
            (x, 1) => x,
            _ => return None,
        };
    }
    let n_dims = a.dims().len().max(b.dims().len());
    Shape::new(&dims[MAX_DIMS - n_dims..]).ok()
}

/// The cycle of an operand of shape `x` in a result of shape `out`; None if it does not broadcast to it, or is repeated along
/// dimensions on both sides of which it varies (such as `[2, 1, 3]` in `[2, 5, 3]`).
pub(super) fn cycle(x: Shape, out: Shape) -> Option<Cycle> {
    let (from, to) = (padded(x), padded(out));
    let (mut div, mut len) = (1, 1);
    // Whether the operand varied along a later dimension, and was repeated before that.
    let (mut varied, mut repeated) = (false, false);
    for i in (0..MAX_DIMS).rev() {
        match (from[i], to[i]) {
            (1, 1) => {}
            (x, n) if x == n && !repeated => {
                varied = true;
                len *= n;
            }
            (1, n) if varied => repeated |= n != 1,
            (1, n) => div *= n,
            _ => return None,
        }
    }
    Some(Cycle { div: div.max(1), len })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[usize]) -> Shape {
        Shape::new(dims).unwrap()
    }

    #[test]
    fn shapes_broadcast_as_in_pytorch() {
        let both = |a: &[usize], b: &[usize]| broadcast_shape(shape(a), shape(b)).map(|s| s.dims().to_vec());
        assert_eq!(both(&[2, 3], &[3]), Some(vec![2, 3]));
        assert_eq!(both(&[2, 1], &[3]), Some(vec![2, 3]));
        assert_eq!(both(&[], &[4]), Some(vec![4]));
        assert_eq!(both(&[1], &[0, 5]), Some(vec![0, 5]));
        assert_eq!(both(&[2, 3], &[2]), None);
    }

    #[test]
    fn a_cycle_follows_the_definition() {
        for (x, out) in [
            (vec![3], vec![2, 3]),
            (vec![2, 1], vec![2, 3]),
            (vec![1], vec![2, 3]),
            (vec![4, 1, 1], vec![2, 4, 3, 5]),
            (vec![2, 3], vec![2, 3]),
            (vec![1, 3, 1], vec![2, 3, 4]),
        ] {
            let (x, out) = (shape(&x), shape(&out));
            let Cycle { div, len } = cycle(x, out).unwrap();
            assert_eq!(len, x.numel());
            let (from, to) = (padded(x), padded(out));
            for i in 0..out.numel() {
                // The indices of element i, and their element of x.
                let (mut rest, mut at, mut stride) = (i, 0, 1);
                for d in (0..MAX_DIMS).rev() {
                    let index = rest % to[d];
                    rest /= to[d];
                    at += if from[d] == 1 { 0 } else { index * stride };
                    stride *= from[d];
                }
                assert_eq!((i / div) % len, at, "{x} in {out}");
            }
        }
        assert_eq!(cycle(shape(&[2, 1, 3]), shape(&[2, 5, 3])), None);
        assert_eq!(cycle(shape(&[2]), shape(&[2, 3])), None);
    }
}

//! Broadcasting of shapes: PyTorch's, up to four dimensions.
//!
//! Dimensions along which an operand varies and those along which it is repeated alternate in at most four runs, so two cycles name
//! the element of an operand that belongs to an element of the result.

use crate::Shape;
use crate::base::shape::MAX_DIMS;

/// Position of a broadcast operand's element for element `i` of the result: `(i / div) % len + (i / outer_div) % outer_len * len`.
///
/// Most operands have no outer cycle (`outer_len` 1); `[2, 1, 3]` in `[2, 5, 3]` has one of length 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cycle {
    /// Elements of the result that share one element of the operand.
    pub(super) div: usize,
    /// Adjacent elements of the operand that the result goes through in turn.
    pub(super) len: usize,
    /// Elements of the result until the next `len` elements of the operand: a multiple of `div * len`.
    pub(super) outer_div: usize,
    /// Number of times that there are `len` elements.
    pub(super) outer_len: usize,
}

impl Cycle {
    /// The operand's element for element `i` of the result.
    #[inline(always)]
    pub(super) fn at(self, i: usize) -> usize {
        self.outer(i) + self.inner(i)
    }

    /// The first of the `len` adjacent elements among which that element is.
    #[inline(always)]
    pub(super) fn outer(self, i: usize) -> usize {
        if self.outer_len == 1 { 0 } else { i / self.outer_div % self.outer_len * self.len }
    }

    /// Its index among them.
    #[inline(always)]
    pub(super) fn inner(self, i: usize) -> usize {
        i / self.div % self.len
    }

    /// Whether element `i` of a result of `n` elements reads element `i` of the operand.
    #[inline(always)]
    pub(super) fn is_identity(self, n: usize) -> bool {
        self.div == 1 && self.len == n
    }
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

/// The cycle of an operand of shape `x` in a result of shape `out`; None if it does not broadcast to it.
pub(super) fn cycle(x: Shape, out: Shape) -> Option<Cycle> {
    let (from, to) = (padded(x), padded(out));
    let mut cycle = Cycle { div: 1, len: 1, outer_div: 1, outer_len: 1 };
    // Elements of the result within the dimensions gone through so far, from the last on.
    let mut inner = 1;
    // Whether the operand varied along one of them, was repeated before that, and varied before that.
    let (mut varied, mut repeated, mut varied_again) = (false, false, false);
    for i in (0..MAX_DIMS).rev() {
        match (from[i], to[i]) {
            (1, 1) => {}
            (x, n) if x == n && !repeated => {
                varied = true;
                cycle.len *= n;
            }
            (x, n) if x == n => {
                if !varied_again {
                    cycle.outer_div = inner;
                }
                varied_again = true;
                cycle.outer_len *= n;
            }
            (1, _) if varied => repeated = true,
            (1, n) => cycle.div *= n,
            _ => return None,
        }
        inner *= to[i];
    }
    // Where the result is empty.
    (cycle.div, cycle.outer_div) = (cycle.div.max(1), cycle.outer_div.max(1));
    Some(cycle)
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
            (vec![2, 1, 3], vec![2, 5, 3]),
            (vec![2, 1, 1, 3], vec![2, 4, 3, 3]),
            (vec![2, 1, 3, 1], vec![2, 4, 3, 5]),
            (vec![2, 1, 4], vec![3, 2, 5, 4]),
            (vec![2, 3, 1, 4], vec![2, 3, 5, 4]),
            (vec![2, 1, 3, 4], vec![2, 5, 3, 4]),
        ] {
            let (x, out) = (shape(&x), shape(&out));
            let cycle = cycle(x, out).unwrap();
            assert_eq!(cycle.len * cycle.outer_len, x.numel());
            assert_eq!(cycle.is_identity(out.numel()), x == out);
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
                assert_eq!(cycle.at(i), at, "{x} in {out}");
            }
        }
        assert_eq!(cycle(shape(&[2]), shape(&[2, 3])), None);
    }
}

//! Shapes of broadcast and reduced operands.

use std::ops::Range;

/// Most dimensions that an elementwise kernel takes.
pub(super) const MAX_DIMS: usize = ddp_kernels::MAX_DIMS;

/// Number of elements.
pub(super) fn numel(dims: &[usize]) -> usize {
    dims.iter().product()
}

/// `dims` with leading ones, `n` in all.
pub(super) fn padded(dims: &[usize], n: usize) -> Vec<usize> {
    let mut all = vec![1; n.saturating_sub(dims.len())];
    all.extend(dims);
    all
}

/// The shape to which both broadcast, as in PyTorch.
pub(super) fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let n = a.len().max(b.len());
    let both = padded(a, n).into_iter().zip(padded(b, n));
    both.map(|sides| match sides {
        (a, b) if a == b => Some(a),
        (1, n) | (n, 1) => Some(n),
        _ => None,
    })
    .collect()
}

/// Whether kernels can repeat an operand of `from` in a result of `to`: not along dimensions between two along which it varies.
pub(super) fn is_cyclic(from: &[usize], to: &[usize]) -> bool {
    let (mut varied, mut repeated) = (false, false);
    for (&own, &n) in padded(from, to.len()).iter().zip(to).rev() {
        if own != 1 {
            if repeated {
                return false;
            }
            varied = true;
        } else if n != 1 && varied {
            repeated = true;
        }
    }
    to.len() <= MAX_DIMS
}

/// Runs of neighboring axes along which `small` has length 1 and `large` has not, from the last to the first; both have as many
/// dimensions.
pub(super) fn repeated_axes(small: &[usize], large: &[usize]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for axis in (0..large.len()).rev() {
        if small[axis] != 1 || large[axis] == 1 {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.start == axis + 1 => run.start = axis,
            _ => runs.push(axis..axis + 1),
        }
    }
    runs
}

/// Number of elements before, along and after these axes.
pub(super) fn around(dims: &[usize], axes: Range<usize>) -> [usize; 3] {
    [numel(&dims[..axes.start]), numel(&dims[axes.clone()]), numel(&dims[axes.end..])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_broadcast_as_in_pytorch() {
        assert_eq!(broadcast(&[2, 1, 3], &[5, 1]), Some(vec![2, 5, 3]));
        assert_eq!(broadcast(&[], &[4]), Some(vec![4]));
        assert_eq!(broadcast(&[2, 3], &[2]), None);
    }

    #[test]
    fn operands_are_repeated_outside_or_inside() {
        assert!(is_cyclic(&[3], &[2, 3]) && is_cyclic(&[2, 1], &[2, 3]) && is_cyclic(&[1, 3, 1], &[2, 3, 4]));
        assert!(!is_cyclic(&[2, 1, 3], &[2, 5, 3]));
        assert!(!is_cyclic(&[3], &[1, 1, 1, 2, 3]), "five dimensions");
    }

    #[test]
    fn repeated_axes_come_in_runs() {
        assert_eq!(repeated_axes(&[1, 1, 3, 1], &[2, 5, 3, 4]), [3..4, 0..2]);
        assert_eq!(repeated_axes(&[2, 3], &[2, 3]), []);
        assert_eq!(around(&[2, 5, 3, 4], 1..3), [2, 15, 4]);
    }
}

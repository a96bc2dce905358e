//! Shapes: up to four dimensions, kept inline so that a view costs no allocation.
//!
//! ```
//! use ddp_kernels::Shape;
//!
//! let shape = Shape::new(&[2, 3])?;
//! assert_eq!((shape.dims(), shape.numel()), (&[2, 3][..], 6));
//! assert_eq!(shape.to_string(), "[2, 3]");
//! # Ok::<(), ddp_kernels::KernelError>(())
//! ```

use std::fmt;
use std::ops::Index;

/// Maximum number of dimensions of a tensor.
pub const MAX_DIMS: usize = 4;

/// Dimensions that no tensor can have: more than [`MAX_DIMS`], or more elements than `usize` counts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid tensor shape {dims:?}: at most {MAX_DIMS} dimensions, and the number of elements must fit in usize"
)]
pub struct BadShape {
    /// The requested dimensions.
    pub dims: Vec<usize>,
}

/// Dimensions of a contiguous row-major tensor; a scalar has none.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; MAX_DIMS],
    n_dims: usize,
}

impl Shape {
    /// Creates a shape with these dimensions.
    ///
    /// # Errors
    /// [`BadShape`] for more than [`MAX_DIMS`] dimensions or more elements than `usize` counts.
    #[inline]
    pub fn new(dims: &[usize]) -> Result<Self, BadShape> {
        let fits = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).is_some();
        if dims.len() > MAX_DIMS || !fits {
            return Err(BadShape { dims: dims.to_vec() });
        }
        let mut shape = Shape { dims: [1; MAX_DIMS], n_dims: dims.len() };
        shape.dims[..dims.len()].copy_from_slice(dims);
        Ok(shape)
    }

    /// `[n]`.
    #[inline]
    pub fn vector(n: usize) -> Self {
        Shape { dims: [n, 1, 1, 1], n_dims: 1 }
    }

    /// `[rows, cols]`; the number of elements must fit in `usize`.
    #[inline]
    pub fn matrix(rows: usize, cols: usize) -> Self {
        Shape { dims: [rows, cols, 1, 1], n_dims: 2 }
    }

    /// The same shape with another first dimension.
    #[inline]
    pub(crate) fn with_rows(mut self, n_rows: usize) -> Self {
        self.dims[0] = n_rows;
        self
    }

    /// The dimensions.
    #[inline]
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.n_dims]
    }

    /// Number of elements.
    #[inline]
    pub fn numel(&self) -> usize {
        self.dims.iter().product()
    }

    /// Rows and columns of the tensor as a matrix: the last dimension is the columns, all others are rows.
    #[inline]
    pub fn rows_cols(&self) -> (usize, usize) {
        let cols = if self.n_dims == 0 { 1 } else { self.dims[self.n_dims - 1] };
        (self.dims[..self.n_dims.saturating_sub(1)].iter().product(), cols)
    }
}

/// The length of a dimension.
///
/// ```
/// use ddp_kernels::Shape;
/// assert_eq!(Shape::matrix(2, 3)[1], 3);
/// ```
///
/// # Panics
/// If there is no such dimension.
impl Index<usize> for Shape {
    type Output = usize;

    fn index(&self, axis: usize) -> &usize {
        &self.dims()[axis]
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_prints() {
        let s = Shape::new(&[2, 3, 4]).unwrap();
        assert_eq!((s.numel(), s.rows_cols(), s.to_string()), (24, (6, 4), "[2, 3, 4]".into()));
        let scalar = Shape::new(&[]).unwrap();
        assert_eq!((scalar.numel(), scalar.rows_cols()), (1, (1, 1)));
    }

    #[test]
    fn refuses_what_overflows() {
        assert!(Shape::new(&[usize::MAX, 2]).is_err());
        assert!(Shape::new(&[1; 5]).is_err());
    }
}

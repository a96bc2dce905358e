//! Axes as people name them: `None`, `1`, `-1`, `[0, 2]`.

use crate::base::error::Operand;
use crate::base::shape::MAX_DIMS;
use crate::{KernelError, Result};

/// One axis of a tensor; a negative one counts from the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis(isize);

/// Axes of a reduction: all (`None`), one (`1`, `-1`) or several (`[0, 2]`); with [`keepdim`] the result keeps them, with length 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axes {
    /// None for all.
    axes: Option<Vec<Axis>>,
    is_kept: bool,
}

/// These axes, which the result of the reduction keeps with length 1, so that it broadcasts to the operand.
///
/// ```
/// use ddp_kernels::{keepdim, tensor};
///
/// let x = tensor![[1., 2.], [3., 5.]];
/// let centered = &x - x.mean(keepdim(-1))?;
/// assert_eq!(centered.to_vec::<f32>()?, [-0.5, 0.5, -1.0, 1.0]);
/// # Ok::<(), ddp_kernels::KernelError>(())
/// ```
///
/// Source: the argument `keepdim` of PyTorch's reductions.
pub fn keepdim(axes: impl Into<Axes>) -> Axes {
    Axes { is_kept: true, ..axes.into() }
}

impl Axis {
    /// Its index from 0 among the axes of `operand`.
    pub(super) fn index(self, op: &'static str, operand: Operand) -> Result<usize> {
        self.index_among(op, operand, operand.shape.dims().len())
    }

    /// Its index from 0 among `n_axes`.
    ///
    /// # Errors
    /// [`KernelError::Axis`], with `operand` as the operand of `op`, if there is no such axis.
    pub fn index_among(self, op: &'static str, operand: Operand, n_axes: usize) -> Result<usize> {
        let from_end = if self.0 < 0 { n_axes as isize } else { 0 };
        match usize::try_from(self.0.saturating_add(from_end)) {
            Ok(index) if index < n_axes => Ok(index),
            _ => Err(wrong(op, operand, self, "has no axis", n_axes)),
        }
    }
}

impl Axes {
    /// Marks them among the axes of `operand`.
    pub(super) fn mask(&self, op: &'static str, operand: Operand) -> Result<[bool; MAX_DIMS]> {
        let n = operand.shape.dims().len();
        let mut mask = [self.axes.is_none(); MAX_DIMS];
        for (index, &axis) in self.indices(op, operand)?.into_iter().zip(self.axes.iter().flatten()) {
            if std::mem::replace(&mut mask[index], true) {
                return Err(wrong(op, operand, axis, "is given twice the axis", n));
            }
        }
        Ok(mask)
    }

    /// Marks those to reduce among the axes of `operand`: none given stands for all, as in PyTorch.
    pub(super) fn reduced_mask(&self, op: &'static str, operand: Operand) -> Result<[bool; MAX_DIMS]> {
        let mask = self.mask(op, operand)?;
        Ok(if mask.contains(&true) { mask } else { [true; MAX_DIMS] })
    }

    /// Their indices from 0 among the axes of `operand`, in the order given.
    pub(super) fn indices(&self, op: &'static str, operand: Operand) -> Result<Vec<usize>> {
        match &self.axes {
            None => Ok((0..operand.shape.dims().len()).collect()),
            Some(axes) => axes.iter().map(|axis| axis.index(op, operand)).collect(),
        }
    }

    /// Their indices from 0 among `n_axes`, in ascending order; none given stands for all.
    ///
    /// # Errors
    /// [`KernelError::Axis`] for an axis that is not there, or is given twice.
    pub fn indices_among(&self, op: &'static str, operand: Operand, n_axes: usize) -> Result<Vec<usize>> {
        let mut indices = Vec::new();
        for &axis in self.axes.iter().flatten() {
            let index = axis.index_among(op, operand, n_axes)?;
            if indices.contains(&index) {
                return Err(wrong(op, operand, axis, "is given twice the axis", n_axes));
            }
            indices.push(index);
        }
        indices.sort_unstable();
        Ok(if indices.is_empty() { (0..n_axes).collect() } else { indices })
    }

    /// Whether a result keeps them.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }
}

fn wrong(
    op: &'static str,
    operand: Operand,
    Axis(axis): Axis,
    problem: &'static str,
    n_axes: usize,
) -> KernelError {
    KernelError::Axis { op, operand: operand.into(), axis, problem, n_axes }
}

impl From<Axis> for Axes {
    fn from(axis: Axis) -> Self {
        Axes { axes: Some(vec![axis]), is_kept: false }
    }
}

/// `None`, for all axes, or one.
impl From<Option<usize>> for Axes {
    fn from(axis: Option<usize>) -> Self {
        axis.map_or(Axes { axes: None, is_kept: false }, Axes::from)
    }
}

macro_rules! integers {
    ($($t:ty),*) => {
        $(
            impl From<$t> for Axis {
                fn from(axis: $t) -> Self {
                    // No tensor has so many axes that a number beyond isize would name one.
                    Axis(isize::try_from(axis).unwrap_or(isize::MAX))
                }
            }
            impl From<$t> for Axes {
                fn from(axis: $t) -> Self {
                    Axis::from(axis).into()
                }
            }
            impl From<&[$t]> for Axes {
                fn from(axes: &[$t]) -> Self {
                    Axes { axes: Some(axes.iter().map(|&axis| axis.into()).collect()), is_kept: false }
                }
            }
            impl<const N: usize> From<&[$t; N]> for Axes {
                fn from(axes: &[$t; N]) -> Self {
                    axes.as_slice().into()
                }
            }
            impl<const N: usize> From<[$t; N]> for Axes {
                fn from(axes: [$t; N]) -> Self {
                    axes.as_slice().into()
                }
            }
        )*
    };
}
integers!(i32, isize, usize);

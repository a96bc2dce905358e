//! Slices by ranges and indices per axis: `x.slice((0..2, .., -1))`.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use crate::ops::read_strided;
use crate::{KernelError, Result, Shape, Tensor, TensorRef};

/// The elements that are taken along one axis: a range, or one index, whose axis the result lacks. Negative numbers count from the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    start: isize,
    /// None for the end of the axis.
    end: Option<isize>,
    is_index: bool,
}

/// Slices of the first axes of a tensor: one, or a tuple of up to four.
pub trait Slices {
    /// One slice per axis, from the first axis on.
    fn slices(self) -> Vec<Slice>;
}

impl<S: Into<Slice>> Slices for S {
    fn slices(self) -> Vec<Slice> {
        vec![self.into()]
    }
}

macro_rules! tuples {
    ($(($($name:ident),+))*) => {
        $(
            impl<$($name: Into<Slice>),+> Slices for ($($name,)+) {
                #[allow(non_snake_case, reason = "the names of the types serve as those of the values")]
                fn slices(self) -> Vec<Slice> {
                    let ($($name,)+) = self;
                    vec![$($name.into()),+]
                }
            }
        )*
    };
}
tuples! { (A) (A, B) (A, B, C) (A, B, C, D) }

impl From<RangeFull> for Slice {
    fn from(_: RangeFull) -> Self {
        Slice { start: 0, end: None, is_index: false }
    }
}

macro_rules! integers {
    ($($t:ty),*) => {
        $(
            impl From<$t> for Slice {
                fn from(index: $t) -> Self {
                    Slice { end: after(signed(index)), start: signed(index), is_index: true }
                }
            }
            impl From<Range<$t>> for Slice {
                fn from(range: Range<$t>) -> Self {
                    Slice { start: signed(range.start), end: Some(signed(range.end)), is_index: false }
                }
            }
            impl From<RangeInclusive<$t>> for Slice {
                fn from(range: RangeInclusive<$t>) -> Self {
                    Slice { start: signed(*range.start()), end: after(signed(*range.end())), is_index: false }
                }
            }
            impl From<RangeFrom<$t>> for Slice {
                fn from(range: RangeFrom<$t>) -> Self {
                    Slice { start: signed(range.start), end: None, is_index: false }
                }
            }
            impl From<RangeTo<$t>> for Slice {
                fn from(range: RangeTo<$t>) -> Self {
                    Slice { start: 0, end: Some(signed(range.end)), is_index: false }
                }
            }
            impl From<RangeToInclusive<$t>> for Slice {
                fn from(range: RangeToInclusive<$t>) -> Self {
                    Slice { start: 0, end: after(signed(range.end)), is_index: false }
                }
            }
        )*
    };
}
integers!(i32, isize, usize);

/// No axis is so long that a number beyond isize would lie in it.
fn signed(number: impl TryInto<isize>) -> isize {
    number.try_into().unwrap_or(isize::MAX)
}

/// The end of a range whose last element is this one: None if that is the last of the axis.
fn after(last: isize) -> Option<isize> {
    if last == -1 { None } else { Some(last.saturating_add(1)) }
}

impl Slice {
    /// Whether it takes one element, whose axis the result lacks.
    pub fn is_index(self) -> bool {
        self.is_index
    }

    /// First element and end in an axis of this length.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`], for the operation `op`.
    pub fn within(self, op: &'static str, len: usize) -> Result<Range<usize>> {
        let from_start = |place: isize| if place < 0 { place.saturating_add_unsigned(len) } else { place };
        let (start, end) = (from_start(self.start), self.end.map_or(len as isize, from_start));
        let len_signed = len as isize;
        if 0 <= start && start <= end && end <= len_signed {
            return Ok(start as usize..end as usize);
        }
        // As written: a negative place is the unsigned number of the same bits.
        let end = self.end.unwrap_or(len_signed);
        Err(KernelError::OutOfRange { op, start: self.start as usize, end: end as usize, len })
    }
}

readable! {
    /// The elements in these ranges of the first axes, a copy; an index in place of a range takes one element, and its axis is gone.
    /// Ranges beyond the end are errors, unlike in PyTorch.
    ///
    /// ```
    /// use ddp_kernels::tensor;
    ///
    /// let x = tensor![[1, 2, 3], [4, 5, 6]];
    /// assert_eq!(x.slice((.., 1..))?.to_vec::<i64>()?, [2, 3, 5, 6]);
    /// assert_eq!(x.slice((-1, ..2))?.to_vec::<i64>()?, [4, 5]);
    /// assert_eq!(x.slice(0)?.dims(), [3]);
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`]; [`KernelError::Axis`] for more slices than axes; as [`Tensor::zeros`].
    ///
    /// Source: `x[.., 1:]` of PyTorch, which returns a view.
    pub fn slice(&self, slices: impl Slices) -> Result<Tensor> {
        self.view().sliced(&slices.slices())
    }
}

impl TensorRef<'_> {
    fn sliced(self, slices: &[Slice]) -> Result<Tensor> {
        const OP: &str = "slice";
        let (own, n_axes) = (self.dims(), self.dims().len());
        if slices.len() > n_axes {
            let (operand, axis) = (self.operand("a").into(), n_axes as isize);
            return Err(KernelError::Axis { op: OP, operand, axis, problem: "has no axis", n_axes });
        }
        let all = Slice::from(..);
        let (mut first, mut dims, mut strides) = (0, Vec::new(), Vec::new());
        for (axis, &len) in own.iter().enumerate() {
            let slice = slices.get(axis).copied().unwrap_or(all);
            let (range, stride) = (slice.within(OP, len)?, own[axis + 1..].iter().product::<usize>());
            first += range.start * stride;
            if !slice.is_index {
                dims.push(range.len());
                strides.push(stride);
            }
        }
        let mut out = Tensor::for_result(self.memory_use(), Shape::new(&dims)?, self.dtype(), self.device())?;
        if out.numel() > 0 {
            let from = self.range(first, self.numel())?;
            read_strided(OP, from, &dims, &strides, out.new_view_mut())?;
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::devices;
    use crate::{DType, Result, Tensor, tensor};

    #[test]
    fn ranges_and_indices_are_those_of_nested_arrays() {
        let nested: [[[i64; 4]; 3]; 2] = std::array::from_fn(|i| {
            std::array::from_fn(|j| std::array::from_fn(|k| (100 * i + 10 * j + k) as i64))
        });
        for device in devices() {
            for dtype in [DType::I64, DType::F32, DType::F16, DType::U8] {
                let x = Tensor::from_slice(nested.as_flattened().as_flattened(), &[2, 3, 4], device).unwrap();
                let x = x.to_dtype(dtype).unwrap();
                let check = |got: Result<Tensor>, dims: &[usize], want: &[i64]| {
                    let got = got.unwrap();
                    let values = got.to_dtype(DType::I64).unwrap().to_vec::<i64>().unwrap();
                    assert_eq!((got.dims(), values.as_slice()), (dims, want), "{dtype} on {device}");
                };
                check(x.slice((1, 2)), &[4], &[120, 121, 122, 123]);
                check(x.slice((.., -1, ..2)), &[2, 2], &[20, 21, 120, 121]);
                check(x.slice((-1, -2.., 1..=2)), &[2, 2], &[111, 112, 121, 122]);
                check(x.slice((1.., ..=0, -3..-1)), &[1, 1, 2], &[101, 102]);
                check(x.slice((.., 1usize, 3)), &[2], &[13, 113]);
                check(x.slice((0, 0, 0)), &[], &[0]);
                check(x.slice((.., 3..)), &[2, 0, 4], &[]);
                check(x.row(1).unwrap().slice(0..1), &[1, 4], &[100, 101, 102, 103]);
            }
        }
    }

    #[test]
    fn places_beyond_the_ends_are_named() {
        let x = tensor![[1, 2, 3], [4, 5, 6]];
        let message = |x: Result<Tensor>| x.unwrap_err().to_string();
        assert_eq!(message(x.slice((.., 1..5))), "slice: the range 1..5 exceeds the length 3");
        assert_eq!(message(x.slice(2)), "slice: the range 2..3 exceeds the length 2");
        assert!(message(x.slice((.., -4))).contains("exceeds the length 3"));
        assert!(x.slice(std::ops::Range { start: 2, end: 1 }).is_err());
        assert_eq!(message(x.slice((0, 0, 0))), "slice: a [2, 3] i64 on cpu has no axis 2");
    }
}

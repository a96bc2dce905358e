//! The methods of [`Tensor`](crate::Tensor) and [`TensorRef`](crate::TensorRef): creation, arithmetic, reductions, matmuls, shapes,
//! copies, and how a tensor prints.
//!
//! [`crate::ops`] works on views in memory that the caller owns; the methods here allocate their results and call it. Nothing
//! is moved or cast implicitly: operands of two devices, dtypes or unsuitable shapes are an error that names both. Methods that only
//! read are defined once, for tensors and views alike (`readable!`).
//!
//! Methods that are not hot share one kernel per dtype, which takes the operation as an argument: `elementwise`, `reduce`, `scan`,
//! `sort`, `fill`, `convert`, `permute`, `strided_copy`. Softmax, variances, triangles and one-hot rows are composed of these.
//! Training calls [`crate::ops`] on views of memory that it allocated before, never a method that allocates.

/// Defines methods of tensors and of views of them, whose `self.view()` is the same.
macro_rules! readable {
    ($($methods:tt)*) => {
        impl crate::Tensor {
            $($methods)*
        }
        impl crate::TensorRef<'_> {
            $($methods)*
        }
    };
}

pub(crate) mod axes;
pub(crate) mod create;
mod shape;
mod elementwise;
mod operators;
mod reduce;
mod matmul;
pub(crate) mod rows;
pub(crate) mod slice;
mod index;
mod transfer;
mod display;
#[cfg(feature = "ndarray")]
mod arrays;
#[cfg(feature = "dlpack")]
mod dlpack;

#[cfg(test)]
mod tests;

//! The methods of [`Tensor`](crate::Tensor): creation, arithmetic, reductions, matmuls, rows, copies, and how a tensor prints.
//!
//! [`crate::ops`] works on views in memory that the caller owns; the methods here allocate their results and call it. Nothing
//! is moved, cast or copied implicitly: operands of two devices, dtypes or unsuitable shapes are an error that names both.
//!
//! Methods that are not hot share one kernel per dtype, which takes the operation as an argument: `elementwise`, `reduce`, `fill`,
//! `convert`, `strided_copy`. Softmax, triangles and one-hot rows are composed of these. Training calls [`crate::ops`] on views of
//! memory that it allocated before, never a method that allocates.

mod arithmetic;
mod create;
mod display;
mod matmul;
mod reduce;
mod rows;
mod transfer;

#[cfg(test)]
mod tests;

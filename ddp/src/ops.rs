//! Operations on views, for layers and losses of one's own: they write into memory that the caller owns, and allocate nothing.
//!
//! ```
//! use ddp::ops::{self, MapOp};
//! use ddp::prelude::*;
//!
//! let (x, w) = (Tensor::ones(&[2, 3], DType::F32, "cpu")?, Tensor::ones(&[4, 3], DType::F32, "cpu")?);
//! let mut y = Tensor::zeros(&[2, 4], DType::F32, "cpu")?;
//! ops::addmm(1.0, x.view(), false, w.view(), true, 0.0, y.view_mut())?;
//! let mut z = y.zeros_like()?;
//! ops::map(MapOp::Mul, y.view().into(), 2.0.into(), z.view_mut())?;
//! assert_eq!(z.to_vec::<f32>()?, [6.0; 8]);
//! # Ok::<(), KernelError>(())
//! ```
//!
//! Others, such as those of the layers of a config, are under this path without a page of their own.

#[doc(hidden)]
pub use ddp_kernels::ops::*;
#[doc(inline)]
pub use ddp_kernels::ops::{
    LossSums, MapOp, ReduceOp, STEP_SUMS_LEN, SumsOutput, activation_forward, add_assign, addmm, bmm, copy,
    map, permute, reduce, softmax_backward, softmax_forward,
};

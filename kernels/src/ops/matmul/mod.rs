//! Matrix multiplications and what is built on them.

mod addmm;
mod bmm;
mod split;
mod linear;
mod orthogonalize;

pub use addmm::{addmm, addmm_with};
pub use bmm::{bmm, bmm_with};
pub use linear::{
    BiasBefore, LinearOutput, ThroughActivation, linear_backward_input, linear_backward_weight,
    linear_forward, linear_workspace_len, relu_mask_len,
};
pub use orthogonalize::{NewtonSchulzMemory, orthogonalize};
pub use split::{addmm_f32x3, split_factors_len};

pub(crate) use addmm::SOURCE;
pub(crate) use split::SOURCE as SPLIT_SOURCE;

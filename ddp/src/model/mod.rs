//! The model: what it is made of ([`spec`]), where its parameters lie ([`layout`]), how they begin ([`init`]), and how
//! it computes ([`Mlp`]).

pub mod file;
pub mod init;
pub mod layout;
mod loss_head;
mod mlp;
mod optimizer;
pub mod spec;

pub use layout::{ParamLayout, ParamSlot};
pub use loss_head::LossHead;
pub use mlp::{DropoutStep, GradientSink, Mlp};
pub use optimizer::Optimizer;
pub use spec::ModelSpec;

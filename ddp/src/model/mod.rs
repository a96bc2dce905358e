//! The model: what it is made of ([`spec`], [`embedding`]), where its parameters lie ([`layout`]), how they begin ([`init`]), and how
//! it computes ([`Mlp`]).

mod backward;
mod buffers;
pub mod embedding;
pub mod file;
pub mod init;
mod layer_buffers;
pub mod layout;
mod loss_head;
mod mlp;
pub mod spec;

pub use crate::data::EmbeddingSpec;
pub use backward::GradientSink;
pub use buffers::{BufferPlan, ModelBytes};
pub use layout::{ParamLayout, ParamSlot};
pub use loss_head::LossHead;
pub use mlp::{DropoutStep, Mlp};
pub use spec::ModelSpec;

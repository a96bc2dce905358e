//! The model: a plan of layers ([`layers`], [`layer`]), where its parameters lie ([`layout`]), how they start ([`init`]), and its
//! passes ([`Network`]).

mod backward;
mod buffers;
pub mod embedding;
pub mod error;
pub mod file;
mod forward;
mod fusion;
pub mod init;
pub mod layer;
pub mod layers;
pub mod layout;
mod loss_head;
mod network;
pub mod param;
pub mod pass;
mod plan;
pub mod spec;

pub use crate::data::EmbeddingSpec;
pub use backward::GradientSink;
pub use buffers::{BufferPlan, ModelBytes};
pub use error::ModelError;
pub use layer::{Layer, LayerKind};
pub use layout::ParamLayout;
pub use loss_head::LossHead;
pub use network::Network;
pub use network::Network as Mlp;
pub use param::{ParamKind, ParamSlot, ParamSpec};
pub use pass::DropoutStep;
pub use spec::{Flop, ModelSpec};

//! The model: a plan of layers ([`layers`], [`layer`]), where its parameters lie ([`layout`]), how they start ([`init`]), and its
//! passes ([`Network`]).
//!
//! A parameter that several layers share is placed with the last of them in the order of backward. The others write their gradients
//! to buffers of their own, so that each range of the flat gradients is written and reported once, in order.
//!
//! Tables of embeddings are the last parameters of the flat buffer. Their gradients are dense: a step updates every row of
//! every table.

mod all_ranks;
mod backward;
mod buffers;
pub mod embedding;
pub mod error;
pub mod file;
mod flop;
mod forward;
mod fusion;
mod gradcheck;
pub mod init;
pub mod layer;
mod layer_list;
pub mod layers;
pub mod layout;
pub mod linear_spec;
mod loss_head;
mod network;
mod operator;
mod orthogonal;
pub mod param;
pub mod pass;
mod plan;
mod registered;
mod registered_buffer;
mod sequential;
mod several_losses;
pub mod spec;
mod state_dict;
mod traffic;
mod weights;

pub use crate::data::EmbeddingSpec;
pub use all_ranks::AllRanks;
pub use backward::{GradientSink, LocalGradients};
pub use buffers::{BufferPlan, ModelBytes};
pub use error::ModelError;
pub use flop::Flop;
pub use gradcheck::{GradcheckOptions, gradcheck};
pub use layer::{Layer, LayerKind, RegisteredBuffer};
pub use layout::ParamLayout;
pub use loss_head::{LossFunction, LossHead};
pub use network::Network;
pub use operator::{Operator, OperatorInput};
pub use param::{ParamEntry, ParamKind, ParamSpec};
pub use pass::DropoutStep;
pub use sequential::Sequential;
pub use several_losses::loss_bytes;
pub use spec::ModelSpec;
pub use state_dict::StateDictReport;
pub use traffic::{GradientWrites, PassTraffic};
pub use weights::WeightsMut;

//! The model: a plan of layers ([`layers`], [`layer`]), the positions of its parameters ([`layout`]), their initial values
//! ([`init`]), and its passes ([`Network`]).
//!
//! A parameter that several layers share is placed with the layer among them that backward reaches last. The others write their
//! gradients to separate buffers, so that each range of the flat gradients is written and reported once, in order.
//!
//! Tables of embeddings are the last parameters of the flat buffer. Their gradients are dense: a step updates every row of
//! every table.

mod all_ranks;
pub mod embedding;
pub mod error;
mod loss_head;
mod operator;
mod orthogonal;
pub mod param;
pub mod linear_spec;
pub mod pass;
pub mod layer;
mod layer_list;
mod registered_buffer;
mod registered;
pub mod expression;
pub mod spec;
pub mod layers;
mod flop;
mod fusion;
pub mod layout;
pub mod file;
pub mod init;
mod plan;
mod buffers;
mod traffic;
mod weights;
mod network;
mod backward;
mod forward;
mod gradcheck;
mod sequential;
mod several_losses;
mod pass_rows;
mod gradient_sums;
mod input_gradient;
mod state_dict;

pub use all_ranks::AllRanks;
pub use backward::{GradientSink, LocalGradients};
pub use buffers::{BufferPlan, ModelBytes};
pub use error::ModelError;
pub use flop::Flop;
pub use gradcheck::{GradcheckOptions, gradcheck};
pub use gradient_sums::GradientSums;
pub(crate) use gradient_sums::fingerprint_of;
pub(crate) use layer::has_small_products;
pub use layer::{Layer, LayerKind, RegisteredBuffer};
pub use layout::ParamLayout;
pub use loss_head::{LossFunction, LossHead};
pub use network::Network;
pub use operator::{Operator, OperatorInput};
pub use param::{ParamEntry, ParamKind, ParamSpec};
pub use pass::DropoutStep;
pub use pass_rows::{PassRows, RowsOfStep};
pub use plan::FlatFormats;
pub use sequential::Sequential;
pub use several_losses::loss_bytes;
pub use spec::ModelSpec;
pub use state_dict::StateDictReport;
pub use traffic::{GradientWrites, PassOperation, PassTraffic};
pub use weights::WeightsMut;

pub use crate::data::EmbeddingSpec;

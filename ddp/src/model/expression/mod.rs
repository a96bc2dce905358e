//! Layers and losses as expressions: their forward pass is a function of values ([`Var`]), and the backward pass follows from it.
//!
//! The function is recorded once for each number of rows ([`Expression`], [`LossHead::expression`](super::LossHead::expression)): the
//! operations (`graph.rs`), those of the gradients (`derivative.rs`), and the memory of all values (`lifetimes.rs`, `memory.rs`). A pass runs them by
//! kernels that write into buffers of the model (`run.rs`). So the tape is inside the layer; the model around it has flat
//! buffers of parameters, whose gradients are exchanged while backward runs, as for any other layer.
//!
//! Sources: `torch.autograd`; reverse-mode differentiation of a list of operations as in JAX's `vjp`.

mod shapes;
mod graph;
mod constants;
mod broadcast;
mod product;
mod derivative;
mod fold;
mod apart;
mod var;
mod elementwise;
mod reductions;
mod arrangement;
mod operators;
mod lifetimes;
mod memory;
mod run;
mod program;
mod backward;
mod layer;
mod loss;

#[cfg(test)]
mod tests;

pub use backward::Gradients;
pub use layer::Expression;
pub use var::{Own, Term, Var};

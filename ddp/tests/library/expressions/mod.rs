//! Layers and losses as expressions.

mod operations;
mod training;

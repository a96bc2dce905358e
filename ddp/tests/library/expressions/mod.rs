//! Layers and losses as expressions.

mod operations;
mod random;
mod training;

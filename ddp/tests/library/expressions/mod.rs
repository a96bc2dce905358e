//! Layers and losses as expressions.

mod operations;

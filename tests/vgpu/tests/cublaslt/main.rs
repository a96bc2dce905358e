//! The virtual cublasLt against plain loops in f64: every epilogue, types, transposes, gaps between columns; what it
//! refuses; what it finds.
#![allow(clippy::unwrap_used)]

mod case;
mod descriptors;
#[path = "../common/libs.rs"]
mod libs;
mod reference;
mod refusals;
mod results;

//! `ddp-train checkpoint export --format onnx`: each kind of model, its graph, and its outputs in onnxruntime.

mod cases;
mod command;
mod graph;
mod proto;
mod runtime;

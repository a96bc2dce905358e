//! Tests of the library: trainers whose ranks are threads of this process, on the CPU and on the available GPUs.
//!
//! They are one binary, because each additional one would link all crates again. `tests/vgpu/all` selects modules by name.

// Test code panics if it cannot proceed; a skipped test prints its reason.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../made_up/mod.rs"]
mod made_up;

mod batch_norm;
mod batches;
mod budgets;
mod canonical_forms;
mod combinations;
mod doc_examples;
mod expression_operations;
mod expression_training;
mod f16;
mod fixed_tree;
mod gpu_names;
mod heads;
mod input_gradients;
mod law_threads;
mod layers;
mod listed_layers;
mod metrics;
mod mutated_inputs;
mod optimization;
mod own_layers;
mod precision;
mod prose;
mod random_expressions;
mod random_program;
mod replicas;
mod rooms;
mod row_weights;
mod saved_state;
mod step_times;
mod whole_parameters;
mod withheld;
mod zero;
mod zero_mpi;

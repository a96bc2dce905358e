//! Tests of the trainer on GPUs, real or virtual, against the CPU. `launch/pack` packs this binary for machines with GPUs.

// Test code panics if it cannot proceed; a skipped test prints its reason.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../made_up/mod.rs"]
mod made_up;

mod devices_of_rows;
mod embeddings;
mod gpu_loading;
mod gradients_in_bf16;
mod heads;
mod registered_buffers;
mod training;
mod update_place;

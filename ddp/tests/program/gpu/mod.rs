//! The program on virtual GPUs.

mod failures;
mod features;
mod generations;
mod f32x3;
mod matmul_choices;
mod next_to_collectives;
mod program;
mod registered_buffers;
mod self_check;
mod traces;
mod traffic;

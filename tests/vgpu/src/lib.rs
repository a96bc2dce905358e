//! A virtual GPU for tests: the parts of the CUDA driver, NVRTC, cuBLASLt and NCCL that the trainer calls, on the CPU.
//!
//! One library that is loaded under the names `libcuda.so`, `libnvrtc.so`, `libcublasLt.so` and `libnccl.so` by an
//! unchanged client (`tests/vgpu/run`). It doesn't make anything fast; it makes mistakes visible. README.md says what
//! it can't show, MAINTAINING.md how it works.
//!
//! In reading order: `stream` (how work runs), `mem` (where it works), `order` (what it may not do),
//! `capture` and `graph` (how it is recorded and repeated), `driver` (the functions of `libcuda`), `nvrtc`
//! (how kernels become machine code; `device/*.h` is their language).
#![allow(non_snake_case)]
// The unit tests export nothing, so only what they call is compiled again for them.
#![cfg_attr(test, allow(dead_code))]

mod abi;
mod capture;
mod code;
mod config;
mod counts;
mod cublaslt;
mod driver;
mod fault;
mod graph;
mod mem;
mod nccl;
mod nvrtc;
mod order;
mod report;
mod stream;
mod watch;

pub(crate) use report::report;

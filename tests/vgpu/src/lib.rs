//! A virtual GPU for tests: the parts of the CUDA driver, NVRTC, cuBLASLt and NCCL that the trainer calls, on the CPU.
//!
//! One library that an unchanged client loads under the names `libcuda.so`, `libnvrtc.so`, `libcublasLt.so` and `libnccl.so`
//! (`tests/vgpu/run`). It doesn't make anything fast; it makes mistakes visible. README.md lists what it can't show;
//! MAINTAINING.md explains how it works.
//!
//! Reading order: `stream` (how work runs), `mem` (the memory that it uses), `order` (forbidden conflicts),
//! `capture` and `graph` (how work is recorded and repeated), `driver` (the functions of `libcuda`), `nvrtc`
//! (how kernels become machine code; `device/*.h` is their language).
#![allow(non_snake_case)]
// The unit tests export nothing, so only the functions that they call are compiled again for them.
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

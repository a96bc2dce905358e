//! Values of flags whose types are in the library, which does not depend on the command line.

use clap::ValueEnum;
use clap::builder::{EnumValueParser, TypedValueParser, ValueParser};
use ddp::config::CommDtype;
use ddp::train::trainer::GraphMode;

/// Values of `--cuda-graph`.
#[derive(Clone, Copy, ValueEnum)]
enum Graph {
    /// Replay a captured graph where driver and NCCL allow it; else launch kernel by kernel.
    Auto,
    /// Like `auto`, but a failed capture ends the run with its error; an error on the CPU.
    On,
    /// Launch kernel by kernel.
    Off,
}

/// Values of `--comm-dtype`.
#[derive(Clone, Copy, ValueEnum)]
enum Gradients {
    /// Single precision.
    F32,
    /// Rounded to bf16: half the bytes, 8 bits of precision.
    Bf16,
}

/// Parses `--cuda-graph`.
pub(super) fn graph_mode() -> ValueParser {
    let mode = |graph| match graph {
        Graph::Auto => GraphMode::Auto,
        Graph::On => GraphMode::On,
        Graph::Off => GraphMode::Off,
    };
    EnumValueParser::<Graph>::new().map(mode).into()
}

/// The value of `--cuda-graph` that is parsed as `mode`.
pub fn graph_mode_name(mode: GraphMode) -> &'static str {
    match mode {
        GraphMode::Auto => "auto",
        GraphMode::On => "on",
        GraphMode::Off => "off",
    }
}

/// Parses `--comm-dtype`.
pub(super) fn comm_dtype() -> ValueParser {
    let dtype = |gradients| match gradients {
        Gradients::F32 => CommDtype::F32,
        Gradients::Bf16 => CommDtype::Bf16,
    };
    EnumValueParser::<Gradients>::new().map(dtype).into()
}

//! Runs the program on virtual GPUs, if they are available.

// Each test program is its own crate and uses only part of this file.
#![allow(dead_code, unreachable_pub)]

use std::process::Command;

use crate::common::{Outcome, ddp_train, run, temp_dir};

/// Runs the program under `tests/vgpu/run` with `n` devices; prints a line and returns `None` if that is not possible.
pub fn under_virtual_gpus(n: usize, args: &[&str], env: &[(&str, &str)]) -> Option<Outcome> {
    let mut program = Command::new(ddp_train());
    program.args(args).envs(env.iter().copied());
    command_under_virtual_gpus(n, &program)
}

/// Same as [`under_virtual_gpus`] for any command, with its own environment.
#[allow(clippy::print_stdout)]
pub fn command_under_virtual_gpus(n: usize, inner: &Command) -> Option<Outcome> {
    let script = crate::common::ddp_folder().join("../tests/vgpu/run");
    let compiler = Command::new(std::env::var_os("CXX").unwrap_or("g++".into())).arg("--version").output();
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) || compiler.is_err() {
        println!("skipped: the virtual GPU needs x86-64 Linux and a C++ compiler");
        return None;
    }
    let mut command = Command::new(script);
    command.args(["-n", &n.to_string(), "--"]).arg(inner.get_program()).args(inner.get_args());
    command.env_remove("CUDA_VISIBLE_DEVICES").env("VGPU_QUIET", "1");
    // Results that earlier runs cached would change the behavior of this one.
    let cache = temp_dir();
    command.env("DDP_TRAIN_CACHE", cache.path());
    if let Some(folder) = inner.get_current_dir() {
        command.current_dir(folder);
    }
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Some(run(command))
}

impl Outcome {
    /// Stdout of the outcome, which must be a success.
    #[track_caller]
    pub fn ok(&self) -> &str {
        assert!(self.status.success(), "{self:#?}");
        &self.stdout
    }
}

//! The process of a check: `devices --check-child`, with the config of a run on stdin or for all examples.

use std::io;
use std::time::Instant;

use ddp::config::examples::examples;
use ddp::config::{Config, Precision};
use ddp::report::metrics::json_line;
use ddp::train::TrainError;
use ddp::train::self_check::{Comparison, compare_with_cpu};
use ddp::train::trainer::GraphMode;
use ddp_kernels::cuda::{self, Gpu};
use ddp_kernels::hint::with_hint;
use ddp_kernels::{Device, KernelError, Tensor};

use super::check::{Check, Line};
use crate::cli::Checked;
use crate::error::Result;
use crate::report::stdout::print_result;

/// Bytes of a copy between GPUs: odd, and more than one block of any copy.
const COPIED: usize = (1 << 20) + 13;

/// Checks GPU `index` and writes a [`Line`] for each step of that.
///
/// # Errors
/// [`ReportError::Stdout`](ddp::report::ReportError::Stdout).
pub(in super::super) fn child(checked: Checked, index: u32, graph: GraphMode) -> Result<()> {
    // On a GPU that hangs it would outlive its parent.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let device = Device::Cuda(index);
    let gpu = Gpu::get(index).map_err(|error| with_hint(&error));
    let configs = gpu.and_then(|_| configs(checked, index));
    let configs = match configs {
        Ok(configs) => configs,
        Err(reason) => return write(&Line::Impossible(reason)),
    };
    for (name, config) in configs {
        let found = check(&name, || compare_with_cpu(&config, device, graph))?;
        if !found {
            return Ok(());
        }
    }
    let n_gpus =
        if checked == Checked::Run { 0 } else { cuda::devices().map_or(0, |gpus| gpus.len() as u32) };
    for to in (0..n_gpus).filter(|to| *to != index) {
        if !check(&format!("copy to cuda:{to}"), || copied(device, Device::Cuda(to)))? {
            return Ok(());
        }
    }
    write(&Line::Complete)
}

fn write(line: &Line) -> Result<()> {
    Ok(print_result(&json_line(line))?)
}

/// Runs a check and writes its result. Returns false if the device can't be used any more.
fn check(name: &str, body: impl FnOnce() -> Result<Vec<Comparison>, TrainError>) -> Result<bool> {
    write(&Line::Begins(name.to_owned()))?;
    let started = Instant::now();
    let found = body();
    if let Err(TrainError::Kernel(
        error @ (KernelError::OutOfMemory { .. } | KernelError::DeviceUnavailable { .. }),
    )) = &found
    {
        write(&Line::Impossible(with_hint(error)))?;
        return Ok(false);
    }
    let found = found.map_err(|error| error.to_string());
    let is_usable = found.is_ok();
    write(&Line::Done(Check::new(name.to_owned(), started.elapsed().as_secs_f64(), found)))?;
    if !is_usable {
        write(&Line::Complete)?;
    }
    Ok(is_usable)
}

/// The names of the models to check and their configs; turns off the features that a run does without.
fn configs(checked: Checked, index: u32) -> Result<Vec<(String, Config)>, String> {
    match checked {
        Checked::Run => {
            let text = io::read_to_string(io::stdin()).map_err(|error| error.to_string())?;
            let config = Config::from_saved(&text, "stdin".as_ref()).map_err(|error| with_hint(&error))?;
            let gpu = Gpu::get(index).map_err(|error| with_hint(&error))?;
            config.train.gpu_without.iter().for_each(|feature| gpu.turn_off(*feature));
            Ok(vec![("the model of the run".to_owned(), config)])
        }
        Checked::All => {
            let device = Device::Cuda(index);
            let is_there = |precision: &Precision| {
                precision.ensure_on(device).is_ok() && matches!(precision.replaced_on(device), Ok(None))
            };
            let precisions: Vec<_> = Precision::ALL.into_iter().filter(is_there).collect();
            let examples = examples(&precisions).map_err(|error| with_hint(&error))?;
            Ok(examples.into_iter().map(|example| (example.name, example.config)).collect())
        }
    }
}

/// Copies bytes from one GPU to another, and compares them.
///
/// # Errors
/// [`TrainError::Kernel`].
pub(in super::super) fn copied(from: Device, to: Device) -> Result<Vec<Comparison>, TrainError> {
    let bytes: Vec<u8> = (0..COPIED).map(|n| (n * 31 + n / 251) as u8).collect();
    let there = Tensor::from_slice(&bytes, &[COPIED], from)?.to(to)?.to_vec::<u8>()?;
    let n_wrong = bytes.iter().zip(&there).filter(|(sent, got)| sent != got).count();
    let relative_difference = n_wrong as f64 / COPIED as f64;
    Ok(vec![Comparison { result: "bytes".to_owned(), relative_difference, tolerance: 0.0 }])
}

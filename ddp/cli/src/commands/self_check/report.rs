//! `devices --check`: all checks of the GPUs of this host.

use std::thread;
use std::time::Instant;

use ddp::report::metrics::json_line;
use ddp_kernels::cuda::{self, GpuInfo};
use serde::Serialize;

use super::at_start::{gpu_words, library_words};
use super::process::{Check, Outcome, Request};
use crate::cli::DevicesArgs;
use crate::error::Result;
use crate::error::command::CommandError;
use crate::report::stdout::{print_result, table};

/// The result; one JSON object, which a user can send.
#[derive(Debug, Serialize)]
struct Report {
    agrees: bool,
    program: &'static str,
    driver_version: Option<String>,
    driver_cuda_version: Option<String>,
    nvrtc_version: Option<String>,
    cublas_lt_version: Option<String>,
    nccl_version: Option<String>,
    seconds: f64,
    gpus: Vec<Checked>,
}

#[derive(Debug, Serialize)]
struct Checked {
    index: u32,
    name: String,
    uuid: String,
    compute_capability: String,
    agrees: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    impossible: Option<String>,
    checks: Vec<Check>,
}

/// Runs all checks on the GPU of `args`, or on all of this host at the same time, and prints a table or one JSON object.
///
/// # Errors
/// [`CommandError::SelfCheck`] if a check fails or cannot be done; [`CommandError::NoGpuToCheck`] without a GPU.
pub(in super::super) fn check_devices(args: &DevicesArgs, program: &'static str) -> Result<()> {
    let DevicesArgs { gpu: only, cuda_graph: graph, json, .. } = *args;
    let started = Instant::now();
    let none = |reason: String, hint: String| CommandError::NoGpuToCheck { reason, hint };
    let gpus = cuda::devices().map_err(|why| none(why.reason, why.hint))?;
    let n = gpus.len();
    let gpus: Vec<GpuInfo> =
        gpus.into_iter().filter(|gpu| only.is_none_or(|only| gpu.index == only)).collect();
    if let (Some(index), true) = (only, gpus.is_empty()) {
        let hint = "ddp-train devices lists them".to_owned();
        let s = if n == 1 { "" } else { "s" };
        return Err(
            none(format!("this host has {n} GPU{s}, numbered from 0, and --gpu {index}"), hint).into()
        );
    }
    let limit = args.check_args.limit();
    let found: Vec<Outcome> = thread::scope(|scope| {
        let start = |gpu: &GpuInfo| Request { gpu: gpu.index, graph, config: None, limit };
        let running: Vec<_> = gpus.iter().map(|gpu| scope.spawn(move || start(gpu).run())).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    let versions = cuda::versions();
    let report = Report {
        agrees: found.iter().all(Outcome::agrees),
        program,
        driver_version: versions.driver.clone(),
        driver_cuda_version: versions.driver_cuda.clone(),
        nvrtc_version: versions.nvrtc.clone(),
        cublas_lt_version: versions.cublas_lt.clone(),
        nccl_version: ddp_comm::nccl_version(),
        seconds: started.elapsed().as_secs_f64(),
        gpus: gpus.iter().zip(found).map(|(gpu, found)| Checked::new(gpu, found)).collect(),
    };
    print_result(&if json { json_line(&report) } else { report.to_text() })?;
    match report.gpus.iter().zip(&gpus).find(|(checked, _)| !checked.agrees) {
        None => Ok(()),
        Some((checked, gpu)) => {
            let of_check = |check: &Check| Some(format!("{}: {}", check.check, check.difference()?));
            let what = checked.checks.iter().find_map(of_check).or_else(|| checked.impossible.clone());
            let gpu =
                format!("cuda:{}, {}, {}", gpu.index, gpu_words(gpu, &versions), library_words(&versions));
            Err(CommandError::SelfCheck { gpu, what: what.unwrap_or_default() }.into())
        }
    }
}

impl Checked {
    fn new(gpu: &GpuInfo, found: Outcome) -> Self {
        let (major, minor) = gpu.compute_capability;
        Checked {
            index: gpu.index,
            name: gpu.name.clone(),
            uuid: gpu.uuid.clone(),
            compute_capability: format!("{major}.{minor}"),
            agrees: found.agrees(),
            impossible: found.impossible,
            checks: found.checks,
        }
    }
}

impl Report {
    fn to_text(&self) -> String {
        let titles = ["GPU", "<check", "results", "relative difference", "tolerance", "s", "<verdict"];
        let mut rows = Vec::new();
        for gpu in &self.gpus {
            for check in &gpu.checks {
                let closest = check.closest();
                let number =
                    |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0e}"));
                rows.push(vec![
                    gpu.index.to_string(),
                    check.check.clone(),
                    check.results.len().to_string(),
                    number(closest.map(|closest| closest.relative_difference)),
                    number(closest.map(|closest| closest.tolerance)),
                    format!("{:.1}", check.seconds),
                    check.difference().unwrap_or_else(|| "agrees".to_owned()),
                ]);
            }
        }
        let mut text = table(&titles, &rows);
        for gpu in &self.gpus {
            let Checked { index, name, impossible, checks, .. } = gpu;
            let n_agree = checks.iter().filter(|check| check.agrees).count();
            text += &match impossible {
                Some(reason) => {
                    format!("\ncuda:{index} ({name}) could not be checked to the end: {reason}\n")
                }
                None => format!(
                    "\ncuda:{index} ({name}): {n_agree} of {} checks agree with the CPU\n",
                    checks.len()
                ),
            };
        }
        text + &format!("{:.1} s\n", self.seconds)
    }
}

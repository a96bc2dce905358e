//! GPUs for tests that train on ranks that are threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ddp::train::trainer::{GraphMode, TrainerOptions};
use ddp_kernels::Device;
use ddp_kernels::cuda::Gpu;

use super::Setup;

/// Reserves the GPUs for one test, because a graph that is being captured on one of them must not meet another test's work. If
/// there are fewer than `n`, prints that and returns `None`.
#[allow(clippy::print_stdout)]
pub fn gpus(n: usize) -> Option<MutexGuard<'static, ()>> {
    let found = Gpu::count();
    let required = std::env::var("REQUIRE_GPUS").ok().map_or(0, |n| n.parse().unwrap());
    assert!(found >= n.min(required), "needs {n} GPUs, found {found}, and REQUIRE_GPUS={required}");
    if found < n {
        println!("skipped: needs {n} GPUs, found {found}");
    }
    (found >= n).then(lock)
}

/// Maximum number of GPUs on which a test trains: four if there are that many; three in the checked mode of the virtual GPU,
/// which is slow. That mode looks for wrong bounds in kernels and a wrong order of streams, for which a fourth GPU makes no
/// difference.
pub fn most_gpus() -> usize {
    let is_checked = std::env::var("VGPU_CHECK").is_ok_and(|value| value != "0");
    Gpu::count().min(if is_checked { 3 } else { 4 })
}

/// Numbers of GPUs on which case `index` of a test trains, from `least` to [`most_gpus`]: all of them for the first case, and one
/// of them in turn for each other case.
///
/// With `ALL_COMBINATIONS`, which tests/nightly sets, each case trains on all of them.
pub fn world_sizes(index: usize, least: usize) -> Vec<usize> {
    let all: Vec<usize> = (least..=most_gpus()).collect();
    if index == 0 || std::env::var_os("ALL_COMBINATIONS").is_some() {
        return all;
    }
    vec![all[index % all.len()]]
}

/// The CPU and, if there is one, the first GPU, locked for one test.
pub fn cpu_and_gpu() -> (Vec<Device>, Option<MutexGuard<'static, ()>>) {
    let lock = (Gpu::count() > 0).then(lock);
    (std::iter::once(Device::Cpu).chain(lock.is_some().then_some(Device::Cuda(0))).collect(), lock)
}

fn lock() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    // A failed test leaves nothing that affects the next one.
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same run on GPUs.
pub fn on_gpus(setup: &Setup, graph: GraphMode) -> Setup {
    let options = TrainerOptions { graph, ..setup.options };
    Setup { on_gpus: true, options, ..setup.clone() }
}

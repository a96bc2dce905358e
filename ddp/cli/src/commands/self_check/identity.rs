//! GPU, driver, libraries and program, on which a check depends.

use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use ddp_kernels::cuda::{self, GpuInfo, Versions};

/// The GPU in words: `NVIDIA H100, driver 580.65.06`.
pub(super) fn gpu_words(gpu: &GpuInfo, versions: &Versions) -> String {
    let driver = versions.driver.clone();
    let cuda = || versions.driver_cuda.as_ref().map(|cuda| format!("of CUDA {cuda}"));
    format!("{}, driver {}", gpu.name, driver.or_else(cuda).unwrap_or_else(|| "unknown".to_owned()))
}

/// The libraries in words: `NVRTC 13.0, cuBLASLt 13.1.0`.
pub(in super::super) fn library_words(versions: &Versions) -> String {
    let known =
        [("NVRTC", &versions.nvrtc), ("cuBLASLt", &versions.cublas_lt), ("NCCL", &ddp_comm::nccl_version())];
    let words = known.iter().filter_map(|(name, version)| Some(format!("{name} {}", version.as_ref()?)));
    words.collect::<Vec<_>>().join(", ")
}

/// The parts of the record of a check of these operations.
pub(super) fn record_parts(gpu: &GpuInfo, operations: &str) -> Vec<String> {
    let versions = cuda::versions();
    let mut parts = vec![
        "self-check 1".to_owned(),
        operations.to_owned(),
        gpu_words(gpu, &versions),
        format!("{:?}", gpu.compute_capability),
        library_words(&versions),
        std::env::current_exe().map_or_else(|_| String::new(), |path| file_words(&path)),
    ];
    // Versions name no builds.
    let paths = versions.found.iter().filter_map(|(_, path)| path.as_ref().ok());
    parts.extend(paths.map(|path| file_words(Path::new(path))));
    parts
}

/// Size and time of a file.
fn file_words(path: &Path) -> String {
    let Ok(meta) = fs::metadata(path) else { return String::new() };
    let modified = meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    format!("{} {:?}", meta.len(), modified)
}

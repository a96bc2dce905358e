//! `ddp-train devices`: available devices and libraries, and reasons for missing ones.

use std::collections::HashSet;
use std::fs;

use ddp::report::metrics::json_line;
use ddp_comm::World;
use ddp_kernels::cpu::cpu_set::CpuSet;
use ddp_kernels::cuda::library::Library;
use ddp_kernels::cuda::{self, FilledCache, GpuInfo, Link};
use ddp_kernels::ops;
use serde::Serialize;

use crate::cli::{Architectures, DevicesArgs};
use crate::commands::self_check;
use crate::error::Result;
use crate::error::command::CommandError;
use crate::exit::Stop;
use crate::report::stdout::{count, print_result, table};

/// Prints the list on rank 0, or checks the GPUs or fills the kernel cache there. A missing GPU or library is an error only if kernels
/// are to be compiled or checked.
///
/// - `program`: its version, for the result of a check
///
/// # Errors
/// [`ReportError::Stdout`](ddp::report::ReportError::Stdout); [`CommandError::KernelCache`]; [`CommandError::SelfCheck`].
pub fn devices(world: &World, args: &DevicesArgs, program: &'static str) -> Result<(), Stop> {
    let print = || -> Result<()> {
        if let (Some(checked), Some(gpu)) = (args.check_child, args.gpu) {
            return self_check::child(checked, gpu, args.cuda_graph);
        }
        if args.check {
            return self_check::check_devices(args, program);
        }
        if let Some(Architectures(wanted)) = &args.compile {
            let filled = ops::fill_cache(wanted).map_err(|reason| CommandError::KernelCache { reason })?;
            return Ok(print_result(&filled_line(&filled, args.json))?);
        }
        let report = Report::new();
        Ok(print_result(&if args.json { json_line(&report) } else { report.to_text() })?)
    };
    Ok(world.collective_result(if world.rank().0 == 0 { print() } else { Ok(()) })?)
}

/// Formats the result of filling the kernel cache.
fn filled_line(filled: &FilledCache, json: bool) -> String {
    /// One JSON object.
    #[derive(Serialize)]
    struct Filled<'a> {
        nvrtc_version: &'a str,
        architectures: &'a [String],
        n_kernel_files: usize,
        kernel_mib: f64,
    }
    let FilledCache { nvrtc_version, architectures, n_entries, bytes } = filled;
    let kernel_mib = *bytes as f64 / f64::from(1 << 20);
    if json {
        return json_line(&Filled { nvrtc_version, architectures, n_kernel_files: *n_entries, kernel_mib });
    }
    let known =
        if architectures.is_empty() { "none that it supports".to_owned() } else { architectures.join(", ") };
    format!("NVRTC {nvrtc_version} compiled {n_entries} files of kernels ({kernel_mib:.1} MiB) for {known}\n")
}

/// Devices and libraries; one JSON object.
#[derive(Debug, Serialize)]
struct Report {
    gpus: Vec<Gpu>,
    /// Reason why there is no GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_gpu: Option<Missing>,
    /// Newest CUDA version that the driver supports.
    driver_cuda_version: Option<String>,
    libraries: Vec<Found>,
    /// Link between each pair of GPUs, in the order of `gpus`.
    peer_links: Vec<Vec<&'static str>>,
    cpu: Cpu,
}

#[derive(Debug, Serialize)]
struct Gpu {
    index: u32,
    name: String,
    memory_gib: f64,
    memory_bytes: usize,
    compute_capability: String,
    multiprocessors: u32,
    /// Whether it takes part in multicasts, as behind an NVLink switch.
    multicast: bool,
    pci_bus_id: String,
    uuid: String,
    /// CPUs near the GPU, such as `0-31,64-95`.
    #[serde(skip_serializing_if = "Option::is_none")]
    local_cpus: Option<String>,
    #[serde(rename = "virtual")]
    is_virtual: bool,
}

#[derive(Debug, Serialize)]
struct Missing {
    reason: String,
    hint: String,
}

/// An NVIDIA library: its version and path, or the reason why it is missing.
#[derive(Debug, Serialize)]
struct Found {
    name: &'static str,
    version: Option<String>,
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<Missing>,
}

/// CPU of the host.
#[derive(Debug, Serialize)]
pub(crate) struct Cpu {
    /// Model name from `/proc/cpuinfo`.
    pub(crate) model: String,
    /// Physical cores of the machine, if known.
    cores: Option<usize>,
    /// Threads that this process may use.
    threads: usize,
    /// CPUs that this process may run on, such as `0-7`.
    allowed: String,
}

impl Report {
    fn new() -> Self {
        let (gpus, no_gpu) = match cuda::devices() {
            Ok(devices) => (devices.iter().map(Gpu::new).collect(), None),
            Err(why) => (Vec::new(), Some(Missing { reason: why.reason, hint: why.hint })),
        };
        let links = cuda::peer_matrix().map(|peers| peers.links).unwrap_or_default();
        let versions = cuda::versions();
        let found = |(library, path): &(Library, Result<String, String>)| {
            let version = match library {
                Library::Driver => versions.driver_cuda.clone(),
                Library::Nvrtc => versions.nvrtc.clone(),
                Library::CublasLt => versions.cublas_lt.clone(),
                Library::Nccl => ddp_comm::nccl_version(),
            };
            let missing = path
                .as_ref()
                .err()
                .map(|reason| Missing { reason: reason.clone(), hint: library.hint().to_owned() });
            Found { name: title(*library), version, path: path.clone().ok(), missing }
        };
        Report {
            gpus,
            no_gpu,
            driver_cuda_version: versions.driver_cuda.clone(),
            libraries: versions.found.iter().map(found).collect(),
            peer_links: links.iter().map(|row| row.iter().map(|link| link_name(*link)).collect()).collect(),
            cpu: Cpu::new(),
        }
    }

    fn to_text(&self) -> String {
        let mut text = self.gpus_text();
        let rows: Vec<_> = self.libraries.iter().map(Found::cells).collect();
        text += "\n";
        text += &table(&["<library", "<version", "<found"], &rows);
        // Without a GPU these libraries are not needed.
        let missing = self.libraries.iter().filter(|_| self.no_gpu.is_none());
        for (name, missing) in missing.filter_map(|found| Some((found.name, found.missing.as_ref()?))) {
            text += &format!("hint: {name}: {}\n", missing.hint);
        }
        if self.gpus.len() > 1 {
            text += "\n";
            text += &self.links_text();
        }
        text + &format!("\nCPU: {}\n", self.cpu.to_text())
    }

    fn gpus_text(&self) -> String {
        if let Some(missing) = &self.no_gpu {
            let text = format!("no GPU: {}\nhint: {}\n", missing.reason, missing.hint);
            return text + "Training runs on the CPU with --device auto or --device cpu.\n";
        }
        let titles =
            ["GPU", "<name", "memory", "compute capability", "SMs", "<PCI address", "<UUID", "<CPUs near it"];
        let mut text = table(&titles, &self.gpus.iter().map(Gpu::cells).collect::<Vec<_>>());
        if self.gpus.iter().any(|gpu| gpu.is_virtual) {
            text += "warning: a virtual GPU computes on the CPU; it is for tests only, and its timings are meaningless\n";
        }
        text
    }

    fn links_text(&self) -> String {
        let indices: Vec<String> = self.gpus.iter().map(|gpu| gpu.index.to_string()).collect();
        let titles: Vec<String> = indices.iter().map(|index| format!("<to {index}")).collect();
        let titles: Vec<&str> = std::iter::once("<from").chain(titles.iter().map(String::as_str)).collect();
        let row = |(from, links): (&String, &Vec<&'static str>)| {
            std::iter::once(from.clone()).chain(links.iter().map(|link| (*link).to_owned())).collect()
        };
        let rows: Vec<Vec<String>> = indices.iter().zip(&self.peer_links).map(row).collect();
        table(&titles, &rows)
            + "p2p: direct copies, as over PCIe; p2p+atomics: direct copies and remote atomics, as over NVLink; \
               host: through host memory\n"
    }
}

impl Gpu {
    fn new(info: &GpuInfo) -> Self {
        let (major, minor) = info.compute_capability;
        Gpu {
            index: info.index,
            name: info.name.clone(),
            memory_gib: info.memory_bytes as f64 / f64::from(1 << 30),
            memory_bytes: info.memory_bytes,
            compute_capability: format!("{major}.{minor}"),
            multiprocessors: info.multiprocessors,
            multicast: info.has_multicast,
            pci_bus_id: info.pci_bus_id.clone(),
            uuid: info.uuid.clone(),
            local_cpus: info.local_cpus().map(|cpus| cpus.to_string()),
            is_virtual: info.is_virtual(),
        }
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.index.to_string(),
            self.name.clone(),
            format!("{:.1} GiB", self.memory_gib),
            self.compute_capability.clone(),
            self.multiprocessors.to_string(),
            self.pci_bus_id.clone(),
            self.uuid.clone(),
            self.local_cpus.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    }
}

impl Found {
    fn cells(&self) -> Vec<String> {
        let found = match (&self.path, &self.missing) {
            (Some(path), _) => path.clone(),
            (None, Some(missing)) => format!("not found: {}", missing.reason),
            (None, None) => "not found".to_owned(),
        };
        vec![self.name.to_owned(), self.version.clone().unwrap_or_else(|| "-".to_owned()), found]
    }
}

fn title(library: Library) -> &'static str {
    match library {
        Library::Driver => "CUDA driver",
        Library::Nvrtc => "NVRTC",
        Library::CublasLt => "cuBLASLt",
        Library::Nccl => "NCCL",
    }
}

fn link_name(link: Link) -> &'static str {
    match link {
        Link::Same => "same",
        Link::Peer => "p2p",
        Link::PeerWithAtomics => "p2p+atomics",
        Link::Host => "host",
    }
}

impl Cpu {
    /// Reads the CPU of the host.
    pub(crate) fn new() -> Self {
        Self::from_cpuinfo(
            &fs::read_to_string("/proc/cpuinfo").unwrap_or_default(),
            std::thread::available_parallelism().map_or(1, usize::from),
            CpuSet::for_thread(),
        )
    }

    fn from_cpuinfo(cpuinfo: &str, threads: usize, allowed: CpuSet) -> Self {
        let fields =
            || cpuinfo.lines().filter_map(|line| line.split_once(':')).map(|(k, v)| (k.trim(), v.trim()));
        let model =
            fields().find(|(key, _)| *key == "model name").map_or("unknown model", |(_, model)| model);
        // Hardware threads of a core share `physical id` and `core id`, which are listed in that order.
        let (mut socket, mut cores) = ("", HashSet::new());
        for (key, value) in fields() {
            match key {
                "physical id" => socket = value,
                "core id" => _ = cores.insert((socket, value)),
                _ => {}
            }
        }
        let (model, cores) = (model.to_owned(), Some(cores.len()).filter(|&n| n > 0));
        Cpu { model, cores, threads, allowed: allowed.to_string() }
    }

    fn to_text(&self) -> String {
        let cores = self.cores.map_or(String::new(), |n| format!(", {}", count(n, "core")));
        let allowed = if self.allowed.is_empty() { "" } else { &format!(" (CPUs {})", self.allowed) };
        format!("{}{cores}, {} for this process{allowed}", self.model, count(self.threads, "thread"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_threads_of_a_core_count_once() {
        let one = |socket: u32, core: u32| {
            format!("model name\t: X 1\nphysical id\t: {socket}\ncore id\t: {core}\n\n")
        };
        let text = [one(0, 0), one(0, 0), one(0, 1), one(1, 0)].concat();
        let cpu = Cpu::from_cpuinfo(&text, 3, CpuSet::parse("0-1,4").unwrap());
        assert_eq!(cpu.to_text(), "X 1, 3 cores, 3 threads for this process (CPUs 0-1,4)");
        assert_eq!(
            Cpu::from_cpuinfo("", 1, CpuSet::default()).to_text(),
            "unknown model, 1 thread for this process"
        );
    }

    #[test]
    fn missing_parts_are_reported_with_a_hint() {
        let missing = |what: &str| Missing { reason: format!("no {what}"), hint: format!("install {what}") };
        let library = Found { name: "NCCL", version: None, path: None, missing: Some(missing("libnccl")) };
        let mut report = Report {
            gpus: Vec::new(),
            no_gpu: Some(missing("driver")),
            driver_cuda_version: None,
            libraries: vec![library],
            peer_links: Vec::new(),
            cpu: Cpu::from_cpuinfo("", 1, CpuSet::default()),
        };
        let text = report.to_text();
        for part in ["no GPU: no driver\nhint: install driver\n", "not found: no libnccl"] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        assert!(!text.contains("hint: NCCL"), "{text}");
        report.no_gpu = None;
        let text = report.to_text();
        assert!(text.contains("hint: NCCL: install libnccl"), "{text}");
    }
}

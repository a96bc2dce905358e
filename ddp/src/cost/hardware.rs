//! Constants of the cost model: data sheets of GPUs, links, and assumptions where there is no source.
//!
//! | constant | source |
//! |---|---|
//! | dense TFLOP/s, memory, its bandwidth, PCIe | NVIDIA's data sheets; memory as `nvidia-smi` reports it |
//! | latencies of hops | NCCL 2.23, `src/graph/tuning.cc`: `hwLat` of LL128; its `baseLat` of 14 us is 24 here, fitted to 8 H200 |
//! | 470 GB/s between 8 H100 or H200 | NVIDIA/nccl-tests issue 212: up to 480, with NVLink SHARP |
//! | 230 GB/s between 8 A100 | NVIDIA/nccl-tests issues 149 and 178: 200 to 235 |
//! | CPU | measured on 2 cores of a Zen 4 server: matmuls 80 to 110 GFLOP/s, 20 GB/s, 64 MiB summed over 2 ranks in 19 ms |
//! | efficiencies and launches of GPUs | measured on one H100 SXM (`tests/bench/results/gpu_h100.jsonl`) |
//! | the rest: PCIe rings, networks, memory of libraries | assumptions |

use ddp_kernels::Device;

use crate::config::precision::Precision;
use crate::cost::collective::Link;

/// A kind of device with its usual links.
#[derive(Debug, Clone, Copy)]
pub struct Hardware {
    /// Name on the command line.
    pub name: &'static str,
    /// Part of the name that the driver reports.
    pub device_name: &'static str,
    /// Multiprocessors; 0 for a core of a CPU.
    pub multiprocessors: usize,
    /// Dense peak in f32, tf32, and 16 bits with sums in f32: TFLOP/s.
    pub tflops: [f64; 3],
    /// Bandwidth of its memory.
    pub memory_gb_per_s: f64,
    /// Its memory; 0 if unknown.
    pub memory_mib: usize,
    /// Link to the other devices of the host.
    pub within: Link,
    /// Network bandwidth per GPU of a host, or of a host without GPUs.
    pub network_gb_per_s: f64,
    /// Bandwidth of copies from page-locked host memory.
    pub host_gb_per_s: f64,
}

/// Part of the dense peak that large matmuls reach on a GPU.
pub const MATMUL_EFFICIENCY: f64 = 0.72;
/// Part of the bandwidth that large copies and updates reach on a GPU.
pub const MEMORY_EFFICIENCY: f64 = 0.87;
/// Rows and columns of the output tile of a thread block; half the columns in f32 without tensor cores.
pub const TILE: usize = 128;

const fn nvlink(gb_per_s: f64) -> Link {
    Link { base_us: 24.0, ring_hop_us: 1.9, tree_hop_us: 1.25, gb_per_s }
}

const fn pcie(gb_per_s: f64) -> Link {
    Link { base_us: 24.0, ring_hop_us: 2.5, tree_hop_us: 1.9, gb_per_s }
}

/// Network between hosts with GPUs (RDMA); the bandwidth depends on the hosts.
pub const GPU_NETWORK: Link = Link { base_us: 24.0, ring_hop_us: 4.0, tree_hop_us: 8.5, gb_per_s: 0.0 };
/// Network between hosts without GPUs (MPI over TCP).
pub const CPU_NETWORK: Link = Link { base_us: 5.0, ring_hop_us: 25.0, tree_hop_us: 25.0, gb_per_s: 0.0 };

/// The table.
#[rustfmt::skip]
pub const ALL: [Hardware; 10] = [
    Hardware { name: "b200", device_name: "B200", multiprocessors: 148, tflops: [80.0, 1125.0, 2250.0], memory_gb_per_s: 8000.0, memory_mib: 183_359, within: nvlink(800.0), network_gb_per_s: 45.0, host_gb_per_s: 55.0 },
    Hardware { name: "h200", device_name: "H200", multiprocessors: 132, tflops: [67.0, 494.0, 989.0], memory_gb_per_s: 4800.0, memory_mib: 143_771, within: nvlink(470.0), network_gb_per_s: 45.0, host_gb_per_s: 50.0 },
    Hardware { name: "h100-pcie", device_name: "H100 PCIe", multiprocessors: 114, tflops: [51.0, 378.0, 756.0], memory_gb_per_s: 2000.0, memory_mib: 81_559, within: pcie(35.0), network_gb_per_s: 12.0, host_gb_per_s: 50.0 },
    Hardware { name: "h100", device_name: "H100", multiprocessors: 132, tflops: [67.0, 494.0, 989.0], memory_gb_per_s: 3350.0, memory_mib: 81_559, within: nvlink(470.0), network_gb_per_s: 45.0, host_gb_per_s: 50.0 },
    Hardware { name: "a100", device_name: "A100", multiprocessors: 108, tflops: [19.5, 156.0, 312.0], memory_gb_per_s: 1935.0, memory_mib: 81_920, within: nvlink(230.0), network_gb_per_s: 22.0, host_gb_per_s: 25.0 },
    Hardware { name: "l40s", device_name: "L40S", multiprocessors: 142, tflops: [91.6, 183.0, 362.0], memory_gb_per_s: 864.0, memory_mib: 46_068, within: pcie(20.0), network_gb_per_s: 6.0, host_gb_per_s: 25.0 },
    Hardware { name: "rtx-4090", device_name: "RTX 4090", multiprocessors: 128, tflops: [82.6, 82.6, 165.0], memory_gb_per_s: 1008.0, memory_mib: 24_564, within: pcie(12.0), network_gb_per_s: 1.2, host_gb_per_s: 25.0 },
    Hardware { name: "t4", device_name: "T4", multiprocessors: 40, tflops: [8.1, 8.1, 65.0], memory_gb_per_s: 320.0, memory_mib: 15_360, within: pcie(6.0), network_gb_per_s: 1.2, host_gb_per_s: 12.0 },
    Hardware { name: "v100", device_name: "V100", multiprocessors: 80, tflops: [15.7, 15.7, 125.0], memory_gb_per_s: 900.0, memory_mib: 16_384, within: nvlink(130.0), network_gb_per_s: 3.0, host_gb_per_s: 12.0 },
    // A core.
    Hardware { name: "cpu", device_name: "cpu", multiprocessors: 0, tflops: [0.08, 0.08, 0.08], memory_gb_per_s: 20.0, memory_mib: 0, within: Link { base_us: 1.0, ring_hop_us: 2.0, tree_hop_us: 2.0, gb_per_s: 3.5 }, network_gb_per_s: 1.1, host_gb_per_s: 0.0 },
];

impl Hardware {
    /// Names of the table.
    pub fn names() -> [&'static str; ALL.len()] {
        ALL.map(|hardware| hardware.name)
    }

    /// The entry of this name on the command line, in letters of either case.
    pub fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|hardware| hardware.name.eq_ignore_ascii_case(name))
    }

    /// A core of a CPU.
    pub fn cpu() -> &'static Self {
        &ALL[ALL.len() - 1]
    }

    /// The entry of a device by the name that its driver reports.
    pub fn find(device_name: &str) -> Option<&'static Self> {
        ALL.iter().find(|hardware| device_name.contains(hardware.device_name))
    }

    /// The device as the trainer sees it: the first GPU of a host, or the CPU.
    pub fn device(&self) -> Device {
        if self.is_gpu() { Device::Cuda(0) } else { Device::Cpu }
    }

    /// Whether it is a GPU.
    pub fn is_gpu(&self) -> bool {
        self.multiprocessors > 0
    }

    /// Whether it has matmuls in bf16: all but GPUs before Ampere.
    pub fn has_bf16(&self) -> bool {
        !["t4", "v100"].contains(&self.name)
    }

    /// Attainable TFLOP/s of large matmuls, per core of a CPU; `None` in f64.
    pub fn matmul_tflops(&self, precision: Precision) -> Option<f64> {
        let peak = match precision {
            Precision::F32 => self.tflops[0],
            // Three products.
            Precision::F32x3 => self.tflops[0].max(self.tflops[1] / 3.0),
            Precision::Tf32 => self.tflops[1],
            Precision::Bf16 | Precision::F16 => self.tflops[2],
            Precision::F64 => return None,
        };
        Some(if self.is_gpu() { peak * MATMUL_EFFICIENCY } else { peak })
    }

    /// Attainable GB/s of memory, per core of a CPU.
    pub fn attainable_gb_per_s(&self) -> f64 {
        self.memory_gb_per_s * if self.is_gpu() { MEMORY_EFFICIENCY } else { 1.0 }
    }

    /// Shortest operation, in µs: on a GPU a kernel in a graph with the gap before it.
    pub fn operation_us(&self) -> f64 {
        if self.is_gpu() { 3.0 } else { 0.3 }
    }

    /// Start of a step in µs: on a GPU the launch of its graph until the first kernel.
    pub fn step_us(&self) -> f64 {
        if self.is_gpu() { 6.0 } else { 5.0 }
    }

    /// Bytes of a device that libraries take: CUDA's context and kernels, and NCCL with several ranks.
    pub fn library_bytes(&self, world_size: usize) -> usize {
        match (self.is_gpu(), world_size) {
            (false, _) => 0,
            (true, 1) => 500 << 20,
            (true, _) => 1000 << 20,
        }
    }

    /// The network between hosts of this device.
    pub fn network(&self) -> Link {
        if self.is_gpu() { GPU_NETWORK } else { CPU_NETWORK }
    }
}

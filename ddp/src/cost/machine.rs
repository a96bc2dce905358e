//! Hosts that a run is planned for: the time of each operation of a rank, from tabled or measured constants.

use ddp_kernels::cpu::threads;

use crate::config::precision::Precision;
use crate::cost::calibration::Calibration;
use crate::cost::collective::{Link, Topology};
use crate::cost::hardware::{Hardware, TILE};

/// Hosts of one kind.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Device of each rank.
    pub hardware: &'static Hardware,
    /// Ranks of a full host.
    pub per_host: usize,
    /// Cores of a host, which its ranks share where they compute on them.
    pub n_cores: usize,
    /// Network bandwidth of a host, where it is not that of the table.
    pub network_gb_per_s: Option<f64>,
    /// Measured constants.
    pub calibration: Calibration,
}

/// Speed of a rank among others.
#[derive(Debug, Clone)]
pub struct RankSpeed<'a> {
    machine: &'a Machine,
    precision: Precision,
    /// Cores of the rank, maybe less than one; 1 on a GPU.
    threads: f64,
    topology: Topology,
}

impl Machine {
    /// Hosts with `per_host` ranks and the cores of this one, by tabled constants.
    pub fn new(hardware: &'static Hardware, per_host: usize) -> Self {
        let n_cores = threads::current();
        Machine { hardware, per_host, n_cores, network_gb_per_s: None, calibration: Calibration::default() }
    }

    /// The speed of each of `n_ranks` ranks that compute in `precision`.
    pub fn rank(&self, n_ranks: usize, precision: Precision) -> RankSpeed<'_> {
        let Machine { hardware, per_host, .. } = *self;
        let local = n_ranks.min(per_host);
        let mut within = hardware.within;
        if let Some((hop_us, gb_per_s)) = self.calibration.hop_us_and_gb_per_s() {
            within = Link { base_us: 0.0, ring_hop_us: hop_us, tree_hop_us: hop_us, gb_per_s };
        }
        let n_adapters = if hardware.is_gpu() { local } else { 1 };
        let network = self.network_gb_per_s.unwrap_or(hardware.network_gb_per_s * n_adapters as f64);
        let between = Link { gb_per_s: network, ..hardware.network() };
        let threads = if hardware.is_gpu() { 1.0 } else { self.n_cores as f64 / local as f64 };
        let topology = Topology { n_ranks, per_host, within, between };
        RankSpeed { machine: self, precision, threads, topology }
    }
}

impl RankSpeed<'_> {
    /// Time of a matmul that moves `bytes`: the larger of operations and bytes, each at its attainable rate.
    pub fn matmul_ms(&self, sizes: [usize; 3], bytes: usize) -> f64 {
        if let Some(ms) = self.machine.calibration.matmul_ms(sizes, self.precision, self.threads) {
            return ms;
        }
        if self.precision != Precision::F32x3 {
            return self.product_ms(sizes, bytes, self.precision);
        }
        // The faster of whole factors and of split ones, each of which is a pass that reads a number and writes three.
        let [m, n, k] = sizes;
        let numbers = [m * k, n * k].map(|len| 4 * len * size_of::<f32>());
        let whole_ms = self.product_ms(sizes, bytes, Precision::F32);
        let product_ms =
            self.product_ms([m, n, 3 * k], bytes + (numbers[0] + numbers[1]) / 2, Precision::Tf32);
        let split_ms = product_ms + numbers.map(|bytes| self.bytes_ms(bytes)).iter().sum::<f64>();
        if self.is_gpu() { whole_ms.min(split_ms) } else { whole_ms }
    }

    /// Time of a matmul in this format, as it is.
    fn product_ms(&self, sizes: [usize; 3], bytes: usize, precision: Precision) -> f64 {
        let hardware = self.machine.hardware;
        let [m, n, k] = sizes;
        // The share of the multiprocessors that the tiles of the result fill.
        let filled = match hardware.multiprocessors {
            0 => self.threads,
            n_processors => {
                let width = if precision == Precision::F32 { TILE / 2 } else { TILE };
                let n_tiles = m.div_ceil(TILE) * n.div_ceil(width);
                n_tiles as f64 / n_tiles.next_multiple_of(n_processors) as f64
            }
        };
        let flop = 2.0 * m as f64 * n as f64 * k as f64;
        let compute =
            hardware.matmul_tflops(precision).map_or(f64::NAN, |rate| flop / (rate * filled) * 1e-9);
        compute.max(self.bytes_ms(bytes))
    }

    /// Time of an operation that reads and writes `bytes`; 0 for none.
    pub fn bytes_ms(&self, bytes: usize) -> f64 {
        let hardware = self.machine.hardware;
        let rate = self.machine.calibration.memory_gb_per_s(self.threads);
        let rate = rate.unwrap_or(hardware.attainable_gb_per_s() * self.threads);
        if bytes == 0 { 0.0 } else { (bytes as f64 / rate * 1e-6).max(self.operation_ms()) }
    }

    /// Time of the shortest operation.
    pub fn operation_ms(&self) -> f64 {
        self.machine.hardware.operation_us() * 1e-3
    }

    /// Time from the start of a step to its first operation.
    pub fn start_ms(&self) -> f64 {
        self.machine.hardware.step_us() * 1e-3
    }

    /// Time of an all-reduce of `bytes`.
    pub fn all_reduce_ms(&self, bytes: usize) -> f64 {
        let Topology { n_ranks, per_host, .. } = self.topology;
        let measured = self.machine.calibration.all_reduce_ms(n_ranks, bytes).filter(|_| n_ranks <= per_host);
        measured.unwrap_or_else(|| self.topology.all_reduce_ms(bytes))
    }

    /// Time of a copy of `bytes` from host memory to the device.
    pub fn upload_ms(&self, bytes: usize) -> f64 {
        let rate = self.machine.calibration.upload_gb_per_s().unwrap_or(self.machine.hardware.host_gb_per_s);
        if self.is_gpu() { bytes as f64 / rate * 1e-6 } else { 0.0 }
    }

    /// Measured over predicted time of steps with `flop` operations on a rank.
    pub fn step_ratio(&self, flop: f64) -> f64 {
        self.machine.calibration.step_ratio(self.threads, flop)
    }

    /// Whether it computes on a GPU, where collectives and copies run next to computation.
    pub fn is_gpu(&self) -> bool {
        self.machine.hardware.is_gpu()
    }
}

//! Predicted time of a step on one GPU, from data sheets and the shape of the model: a model to compare measurements with, which no
//! hardware has confirmed yet.
//!
//! A matmul takes its operations at 0.7 of the dense peak, times the share of the multiprocessors that tiles of 128 x 128 fill; the
//! update its bytes at 0.87 of the bandwidth of the memory; and no kernel less than its launch and the gap before it.
//!
//! Source: NVIDIA's data sheets (dense rates, bandwidth). The efficiencies and times below are assumptions.

use ddp::config::precision::Precision;

/// Part of the dense peak that large matmuls reach.
const MATMUL_EFFICIENCY: f64 = 0.7;
/// Part of the bandwidth that large copies and updates reach.
const MEMORY_EFFICIENCY: f64 = 0.87;
/// Shortest kernel in a graph with the gap before it, in µs.
const KERNEL_US: f64 = 3.9;
/// Launch of a graph until its first kernel, in µs.
const GRAPH_US: f64 = 6.0;
/// Side of the output tile of a thread block.
const TILE: usize = 128;

/// Figures of a data sheet.
struct Sheet {
    /// Part of the device's name.
    name: &'static str,
    multiprocessors: f64,
    /// Dense TFLOP/s in f32, tf32, and 16 bits with sums in f32.
    tflops: [f64; 3],
    memory_gb_per_s: f64,
}

const SHEETS: [Sheet; 9] = [
    Sheet { name: "B200", multiprocessors: 148.0, tflops: [80.0, 1125.0, 2250.0], memory_gb_per_s: 8000.0 },
    Sheet { name: "H200", multiprocessors: 132.0, tflops: [67.0, 494.0, 989.0], memory_gb_per_s: 4800.0 },
    Sheet {
        name: "H100 PCIe",
        multiprocessors: 114.0,
        tflops: [51.0, 378.0, 756.0],
        memory_gb_per_s: 2000.0,
    },
    Sheet { name: "H100", multiprocessors: 132.0, tflops: [67.0, 494.0, 989.0], memory_gb_per_s: 3350.0 },
    Sheet { name: "A100", multiprocessors: 108.0, tflops: [19.5, 156.0, 312.0], memory_gb_per_s: 1935.0 },
    Sheet { name: "L40S", multiprocessors: 142.0, tflops: [91.6, 183.0, 362.0], memory_gb_per_s: 864.0 },
    Sheet { name: "RTX 4090", multiprocessors: 128.0, tflops: [82.6, 82.6, 165.0], memory_gb_per_s: 1008.0 },
    Sheet { name: "T4", multiprocessors: 40.0, tflops: [8.1, 8.1, 65.0], memory_gb_per_s: 320.0 },
    Sheet { name: "V100", multiprocessors: 80.0, tflops: [15.7, 15.7, 125.0], memory_gb_per_s: 900.0 },
];

/// The time in ms of a step of a perceptron with ReLU and AdamW, replayed as a graph with the rows on the GPU; None for an unknown GPU.
///
/// - `gpu`: the device's name
/// - `dims`: widths of all layers, inputs first
/// - `batch`: rows
pub(super) fn step_ms(gpu: &str, dims: &[usize], batch: usize, precision: Precision) -> Option<f64> {
    let sheet = SHEETS.iter().find(|sheet| gpu.contains(sheet.name))?;
    let is_short = matches!(precision, Precision::Bf16 | Precision::F16);
    let rate = match precision {
        Precision::F32 => sheet.tflops[0],
        Precision::Tf32 => sheet.tflops[1],
        Precision::Bf16 | Precision::F16 => sheet.tflops[2],
        Precision::F64 => return None,
    };
    let matmul_us = |m: usize, n: usize, k: usize| {
        let tiles = (m.div_ceil(TILE) * n.div_ceil(TILE)) as f64;
        let filled = tiles / ((tiles / sheet.multiprocessors).ceil() * sheet.multiprocessors);
        let flop = 2.0 * (m * n * k) as f64;
        (flop / (rate * MATMUL_EFFICIENCY * filled) * 1e-6).max(KERNEL_US)
    };
    let bytes_us = |bytes: f64| (bytes / (sheet.memory_gb_per_s * MEMORY_EFFICIENCY) * 1e-3).max(KERNEL_US);
    let layers = || dims.windows(2).map(|dims| (dims[0], dims[1]));
    let forward: f64 = layers().map(|(i, o)| matmul_us(batch, o, i)).sum();
    let d_weight: f64 = layers().map(|(i, o)| matmul_us(o, i, batch)).sum();
    let d_input: f64 = layers().skip(1).map(|(i, o)| matmul_us(batch, i, o)).sum();
    // In f32 cuBLASLt has no epilogue for the gradient of the activation: a kernel for each hidden layer.
    let activations = if is_short {
        0.0
    } else {
        layers().skip(1).map(|(hidden, _)| bytes_us(12.0 * (batch * hidden) as f64)).sum()
    };
    let n_params: usize = layers().map(|(i, o)| (i + 1) * o).sum();
    // Reads and writes weight and both moments, reads the gradient, writes the copy in 16 bits.
    let update = bytes_us(n_params as f64 * if is_short { 30.0 } else { 28.0 });
    let loss = bytes_us(8.0 * (batch * dims[dims.len() - 1]) as f64);
    // The scalars of the step, its rows and its labels.
    let inputs = 2.0 * KERNEL_US + bytes_us(8.0 * (batch * dims[0]) as f64);
    Some((GRAPH_US + inputs + forward + loss + d_weight + d_input + activations + update) * 1e-3)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The three cases of docs/gpus.md, whose estimates were made kernel by kernel.
    #[test]
    fn the_model_agrees_with_estimates_kernel_by_kernel() {
        let on_h100 = |dims: &[usize], batch, precision| {
            step_ms("NVIDIA H100 80GB HBM3", dims, batch, precision).unwrap()
        };
        let small = on_h100(&[64, 128, 10], 32, Precision::F32);
        assert!((0.045..0.055).contains(&small), "{small}");
        let middle = on_h100(&[784, 1024, 1024, 10], 1024, Precision::Bf16);
        assert!((0.075..0.1).contains(&middle), "{middle}");
        let large = on_h100(&[4096; 9], 8192, Precision::Bf16);
        assert!((10.5..11.5).contains(&large), "{large}");
        assert!(step_ms("Virtual GPU", &[4, 2], 8, Precision::F32).is_none());
    }
}

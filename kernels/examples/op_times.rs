//! Times of the operations that a training step consists of, on one rank:
//! `cargo run --release --example op_times -- [--device cpu|cuda:N] [--threads N]`, 1 thread on the CPU without it.
//! One line an operation: median ms and GFLOP/s or GB/s.

#![allow(clippy::print_stdout, clippy::print_stderr)] // Printing is what it is for.

use std::time::Instant;

use ddp_kernels::cuda::Gpu;
use ddp_kernels::ops::{
    self, Activation, AdamConfig, AdamState, CrossEntropyConfig, DropoutKey, EmbeddingTable, EmbeddingTables,
    LinearOutput, MatmulMode, RowNormalizer, SgdConfig, SumsOutput, UniformStream, WeightDecay,
};
use ddp_kernels::{DType, Device, Result, Tensor};

/// The devices' clock is the host's: so it is read when the work is done, not when it was asked for.
fn wait(device: Device) -> Result<()> {
    match device {
        Device::Cpu => Ok(()),
        Device::Cuda(index) => Gpu::get(index)?.synchronize(),
    }
}

fn median_ms(device: Device, mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    // The first call compiles the kernel.
    f()?;
    wait(device)?;
    let start = Instant::now();
    f()?;
    wait(device)?;
    let reps = (0.02 / start.elapsed().as_secs_f64()).clamp(1.0, 2000.0) as usize;
    let mut times = Vec::new();
    for _ in 0..9 {
        let start = Instant::now();
        for _ in 0..reps {
            f()?;
        }
        wait(device)?;
        times.push(start.elapsed().as_secs_f64() * 1e3 / reps as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Uniform numbers in -1..1.
fn make(dims: &[usize], dtype: DType, device: Device) -> Result<Tensor> {
    let mut tensor = Tensor::zeros(dims, dtype, device)?;
    ops::uniform(tensor.view_mut(), -1.0, 1.0, UniformStream { seed: 1, stream: [0, 0] })?;
    Ok(tensor)
}

fn linear(device: Device, dtype: DType, b: usize, i: usize, o: usize) -> Result<()> {
    let make = |dims: &[usize]| make(dims, dtype, device);
    let (x, w, bias, d_y) = (make(&[b, i])?, make(&[o, i])?, make(&[o])?, make(&[b, o])?);
    let (mut y, mut d_w, mut d_b, mut d_x) = (make(&[b, o])?, make(&[o, i])?, make(&[o])?, make(&[b, i])?);
    let mut workspace = make(&[ops::linear_workspace_len(b, i, o, dtype, device).max(1)])?;
    let mut mask = match device {
        Device::Cpu => None,
        Device::Cuda(_) => Some(Tensor::zeros(&[ops::relu_mask_len(b, o)], DType::I64, device)?),
    };
    let gflop = 2e-9 * (b * i * o) as f64;
    let line = |name: &str, ms: f64| {
        println!("{name:18} {dtype:4} {b:5} x {i:5} -> {o:5} {ms:9.4} ms {:7.1} GFLOP/s", gflop / ms * 1e3)
    };
    let mode = MatmulMode::Strict;
    line(
        "forward relu",
        median_ms(device, || {
            let output = LinearOutput {
                y: y.view_mut(),
                pre_activation: None,
                relu_mask: mask.as_mut().map(Tensor::view_mut),
                workspace: workspace.view_mut(),
            };
            ops::linear_forward(mode, x.view(), w.view(), Some(bias.view()), Some(Activation::Relu), output)
                .map(|_| ())
        })?,
    );
    line(
        "addmm x·Wt",
        median_ms(device, || ops::addmm(1.0, x.view(), false, w.view(), true, 0.0, y.view_mut()))?,
    );
    line(
        "backward weight",
        median_ms(device, || {
            let d_b = Some(d_b.view_mut());
            let scratch = workspace.view_mut();
            ops::linear_backward_weight(mode, d_y.view(), x.view(), d_w.view_mut(), d_b, false, scratch)
        })?,
    );
    line(
        "backward input",
        median_ms(device, || {
            let scratch = workspace.view_mut();
            ops::linear_backward_input(mode, d_y.view(), w.view(), d_x.view_mut(), None, false, scratch)
        })?,
    );
    Ok(())
}

/// The operations that are no products, at the sizes of a model `i -> o` and `n_params` parameters.
fn others(device: Device, b: usize, hidden: usize, classes: usize, n_params: usize) -> Result<()> {
    let make = |dims: &[usize]| make(dims, DType::F32, device);
    let (logits, mut d_logits) = (make(&[b, classes])?, make(&[b, classes])?);
    let labels: Vec<i64> = (0..b).map(|row| (row % classes) as i64).collect();
    let labels = Tensor::from_slice(&labels, &[b], device)?;
    let mut tail = Tensor::zeros(&[ops::STEP_SUMS_LEN], DType::F32, device)?;
    let (saved, mut d, mut d_bias) = (make(&[b, hidden])?, make(&[b, hidden])?, make(&[hidden])?);
    let (mut w, g, mut m, mut v) =
        (make(&[n_params])?, make(&[n_params])?, make(&[n_params])?, make(&[n_params])?.zeros_like()?);
    let line = |name: &str, ms: f64| {
        println!("{name:34} {b:5} rows, {hidden:5} wide, {n_params:9} parameters {ms:9.5} ms")
    };
    let config = CrossEntropyConfig::default();
    line(
        "softmax cross-entropy",
        median_ms(device, || {
            let sums = SumsOutput { tail: tail.view_mut(), accumulate: false };
            let d_logits = Some(d_logits.view_mut());
            ops::softmax_cross_entropy(logits.view(), labels.view(), &config, 0.1, d_logits, sums)
        })?,
    );
    line(
        "relu backward and bias gradient",
        median_ms(device, || {
            let d_bias = Some(d_bias.view_mut());
            ops::activation_backward(Activation::Relu, saved.view(), d.view_mut(), d_bias, false)
        })?,
    );
    let sgd = SgdConfig {
        lr: 1e-9,
        lr_scale: 1.0,
        momentum: 0.9,
        nesterov: false,
        weight_decay: 0.0,
        grad_scale: 1.0,
    };
    line(
        "sgd",
        median_ms(device, || ops::sgd_step(&sgd, w.view_mut(), g.view(), Some(m.view_mut()), None, None))?,
    );
    let adam = AdamConfig {
        lr: 1e-9,
        lr_scale: 1.0,
        betas: [0.9, 0.999],
        eps: 1e-8,
        weight_decay: 0.01,
        decay: WeightDecay::Decoupled,
        step: 9,
        grad_scale: 1.0,
    };
    line(
        "adamw",
        median_ms(device, || {
            let state = AdamState { m: m.view_mut(), v: v.view_mut() };
            ops::adam_step(&adam, w.view_mut(), g.view(), state, None, None)
        })?,
    );
    Ok(())
}

/// Operations that only move data: rows of `cols` elements, and GB/s of what has to be read and written.
fn moving(device: Device, dtype: DType, rows: usize, cols: usize) -> Result<()> {
    let make = |dims: &[usize]| make(dims, dtype, device);
    let (mut x, y) = (make(&[rows, cols])?, make(&[rows, cols])?);
    let (mut bias, mut sum) = (make(&[cols])?, Tensor::zeros(&[1], DType::F64, device)?);
    let mut single = Tensor::zeros(&[rows, cols], DType::F32, device)?;
    // Each row once, in another order: 7919 is a prime that divides no number of rows here.
    let indices: Vec<i64> = (0..rows).map(|row| (row * 7919 % rows) as i64).collect();
    let indices = Tensor::from_slice(&indices, &[rows], device)?;
    let gigabyte = (rows * cols) as f64 * 1e-9;
    let line = |name: &str, bytes_per_element: usize, ms: f64| {
        let rate = gigabyte * bytes_per_element as f64 / ms * 1e3;
        println!("{name:18} {dtype:4} {rows:7} x {cols:5} {ms:9.4} ms {rate:7.1} GB/s");
    };
    let size = dtype.size_bytes();
    line("copy", 2 * size, median_ms(device, || ops::copy(y.view(), x.view_mut()))?);
    line(
        "gather rows",
        2 * size,
        median_ms(device, || ops::gather_rows(y.view(), indices.view(), x.view_mut()))?,
    );
    line("add", 3 * size, median_ms(device, || ops::add_assign(x.view_mut(), y.view()))?);
    let key = DropoutKey { seed: 1, step: 2, layer: 3, first_row: 4 };
    line("dropout", 2 * size, median_ms(device, || ops::dropout(x.view_mut(), 0.1, key, None))?);
    line("bias", 2 * size, median_ms(device, || ops::bias_forward(bias.view(), x.view_mut()))?);
    line("bias gradient", size, median_ms(device, || ops::bias_backward(y.view(), bias.view_mut(), false))?);
    line("sum of squares", size, median_ms(device, || ops::sum_of_squares(y.view(), sum.view_mut(), false))?);
    if dtype != DType::F32 {
        line("cast to f32", size + 4, median_ms(device, || ops::cast(y.view(), single.view_mut()))?);
        line("cast from f32", size + 4, median_ms(device, || ops::cast(single.view(), x.view_mut()))?);
    }
    Ok(())
}

/// Rows in each format that they may be kept in become f32, picked by index, with and without normalisation.
fn loading(device: Device, rows: usize, cols: usize) -> Result<()> {
    let indices: Vec<i64> = (0..rows).map(|row| (row * 7919 % rows) as i64).collect();
    let indices = Tensor::from_slice(&indices, &[rows], device)?;
    let (shift, scale) = (make(&[cols], DType::F32, device)?, make(&[cols], DType::F32, device)?);
    let mut out = Tensor::zeros(&[rows, cols], DType::F32, device)?;
    for dtype in [DType::U8, DType::F16, DType::BF16, DType::F32] {
        let x = Tensor::ones(&[rows, cols], dtype, device)?;
        let normalizer = RowNormalizer { shift: shift.view(), scale: scale.view() };
        for (name, normalizer) in [("load rows", None), ("load, normalise", Some(normalizer))] {
            let ms = median_ms(device, || {
                ops::load_rows(x.view(), Some(indices.view()), normalizer, out.view_mut())
            })?;
            let rate = (rows * cols * (dtype.size_bytes() + 4)) as f64 * 1e-6 / ms;
            println!("{name:18} {dtype:4} {rows:7} x {cols:5} {ms:9.4} ms {rate:7.1} GB/s");
        }
    }
    Ok(())
}

/// Embeddings of features from 10 to 100,000 values, 16 wide, of which the last ones are rare.
fn embeddings(device: Device, dtype: DType, b: usize) -> Result<()> {
    let mut start = 0;
    let tables = [10, 100, 1000, 10_000, 100_000].map(|n_codes| {
        let table = EmbeddingTable { start, n_codes, dim: 16 };
        start += n_codes * 16;
        table
    });
    let mut seed = 1u64;
    let mut code = |n_codes: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = (seed >> 40) as f64 / f64::from(1 << 24);
        (unit.powi(3) * n_codes as f64) as i64 as f32
    };
    let x: Vec<f32> = (0..b).flat_map(|_| tables).map(|table| code(table.n_codes)).collect();
    let x = Tensor::from_slice(&x, &[b, tables.len()], device)?;
    let tables = EmbeddingTables::new(tables.to_vec(), device)?;
    let (weights, mut d_weights) = (make(&[start], DType::F32, device)?, make(&[start], DType::F32, device)?);
    let mut out = make(&[b, tables.width()], dtype, device)?;
    let mut workspace = Tensor::zeros(&[tables.workspace_len(b)], DType::I64, device)?;
    let line = |name: &str, ms: f64| println!("{name:18} {dtype:4} {b:7} rows, 5 tables 16 wide {ms:9.4} ms");
    let forward = || ops::embedding_forward(x.view(), weights.view(), &tables, out.view_mut());
    line("embedding", median_ms(device, forward)?);
    line(
        "embedding gradient",
        median_ms(device, || {
            let (d_weights, workspace) = (d_weights.view_mut(), workspace.view_mut());
            ops::embedding_backward(x.view(), out.view(), &tables, d_weights, workspace, false)
        })?,
    );
    Ok(())
}

fn main() -> Result<()> {
    let (mut device, mut threads) = (Device::Cpu, 1);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next().unwrap_or_default();
        match arg.as_str() {
            "--device" => device = value.parse()?,
            "--threads" => threads = value.parse().unwrap_or(1),
            _ => {
                eprintln!("op_times: unknown option '{arg}'\nhint: --device cpu|cuda:N, --threads N");
                std::process::exit(2);
            }
        }
    }
    ddp_kernels::cpu::threads::join_pool(threads)?;
    let dtypes: &[DType] = if device == Device::Cpu { &[DType::F32] } else { &[DType::F32, DType::BF16] };
    for &dtype in dtypes {
        for (b, i, o) in [
            (32, 64, 128),
            (32, 128, 10),
            (128, 784, 1024),
            (128, 1024, 1024),
            (128, 1024, 10),
            (256, 1024, 4096),
            (256, 4096, 4096),
            (256, 4096, 1024),
        ] {
            linear(device, dtype, b, i, o)?;
        }
    }
    others(device, 32, 128, 10, 9_610)?;
    others(device, 128, 1024, 10, 1_863_690)?;
    others(device, 256, 4096, 1024, 25_175_040)?;
    for &dtype in dtypes {
        for (rows, cols) in [(65_536, 10), (8192, 784), (8192, 4096)] {
            moving(device, dtype, rows, cols)?;
        }
        for rows in [256, 4096, 32_768] {
            embeddings(device, dtype, rows)?;
        }
    }
    for (rows, cols) in [(65_536, 10), (8192, 784)] {
        loading(device, rows, cols)?;
    }
    Ok(())
}

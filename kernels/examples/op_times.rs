//! Times of the operations that a training step consists of, on one rank: `cargo run --release --example op_times`.
//! One line an operation: median ms and GFLOP/s or GB/s.

#![allow(clippy::print_stdout)] // Printing is what it is for.

use std::time::Instant;

use ddp_kernels::ops::{
    self, Activation, AdamConfig, AdamState, CrossEntropyConfig, LinearOutput, SgdConfig, WeightDecay,
};
use ddp_kernels::{DType, Device, Result, Tensor};

fn median_ms(mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    f()?;
    let reps = (0.02 / start.elapsed().as_secs_f64()).clamp(1.0, 2000.0) as usize;
    let mut times = Vec::new();
    for _ in 0..9 {
        let start = Instant::now();
        for _ in 0..reps {
            f()?;
        }
        times.push(start.elapsed().as_secs_f64() * 1e3 / reps as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn linear(b: usize, i: usize, o: usize) -> Result<()> {
    let make = |dims: &[usize]| Tensor::randn(dims, DType::F32, Device::Cpu, 1);
    let (x, w, bias, d_y) = (make(&[b, i])?, make(&[o, i])?, make(&[o])?, make(&[b, o])?);
    let (mut y, mut d_w, mut d_x) = (make(&[b, o])?, make(&[o, i])?, make(&[b, i])?);
    let mut workspace = make(&[ops::linear_workspace_len(b, i, o).max(1)])?;
    let gflop = 2e-9 * (b * i * o) as f64;
    let line = |name: &str, ms: f64| {
        println!("{name:18} {b:5} x {i:5} -> {o:5} {ms:9.4} ms {:7.1} GFLOP/s", gflop / ms * 1e3)
    };
    line(
        "forward relu",
        median_ms(|| {
            let output =
                LinearOutput { y: y.view_mut(), pre_activation: None, workspace: workspace.view_mut() };
            ops::linear_forward(x.view(), w.view(), Some(bias.view()), Some(Activation::Relu), output)
        })?,
    );
    line("addmm x·Wt", median_ms(|| ops::addmm(1.0, x.view(), false, w.view(), true, 0.0, y.view_mut()))?);
    line(
        "backward weight",
        median_ms(|| ops::linear_backward_weight(d_y.view(), x.view(), d_w.view_mut(), false))?,
    );
    line("backward input", median_ms(|| ops::linear_backward_input(d_y.view(), w.view(), d_x.view_mut()))?);
    Ok(())
}

/// The operations that are no products, at the sizes of a model `i -> o` and `n_params` parameters.
fn others(b: usize, hidden: usize, classes: usize, n_params: usize) -> Result<()> {
    let make = |dims: &[usize]| Tensor::randn(dims, DType::F32, Device::Cpu, 1);
    let (logits, mut d_logits) = (make(&[b, classes])?, make(&[b, classes])?);
    let labels: Vec<i64> = (0..b).map(|row| (row % classes) as i64).collect();
    let labels = Tensor::from_slice(&labels, &[b], Device::Cpu)?;
    let (saved, mut d, mut d_bias) = (make(&[b, hidden])?, make(&[b, hidden])?, make(&[hidden])?);
    let (mut w, g, mut m, mut v) =
        (make(&[n_params])?, make(&[n_params])?, make(&[n_params])?, make(&[n_params])?.zeros_like()?);
    let line = |name: &str, ms: f64| {
        println!("{name:34} {b:5} rows, {hidden:5} wide, {n_params:9} parameters {ms:9.5} ms")
    };
    let config = CrossEntropyConfig::default();
    line(
        "softmax cross-entropy",
        median_ms(|| {
            ops::softmax_cross_entropy(logits.view(), labels.view(), &config, 0.1, Some(d_logits.view_mut()))
                .map(|_| ())
        })?,
    );
    line(
        "relu backward and bias gradient",
        median_ms(|| {
            ops::activation_backward(
                Activation::Relu,
                saved.view(),
                d.view_mut(),
                Some(d_bias.view_mut()),
                false,
            )
        })?,
    );
    let sgd = SgdConfig { lr: 1e-9, momentum: 0.9, nesterov: false, weight_decay: 0.0, grad_scale: 1.0 };
    line("sgd", median_ms(|| ops::sgd_step(&sgd, w.view_mut(), g.view(), Some(m.view_mut())))?);
    let adam = AdamConfig {
        lr: 1e-9,
        betas: [0.9, 0.999],
        eps: 1e-8,
        weight_decay: 0.01,
        decay: WeightDecay::Decoupled,
        step: 9,
        grad_scale: 1.0,
    };
    line(
        "adamw",
        median_ms(|| {
            ops::adam_step(&adam, w.view_mut(), g.view(), AdamState { m: m.view_mut(), v: v.view_mut() })
        })?,
    );
    Ok(())
}

fn main() -> Result<()> {
    let threads = std::env::args().nth(1).and_then(|v| v.parse().ok()).unwrap_or(1);
    ddp_kernels::cpu::threads::join_pool(threads)?;
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
        linear(b, i, o)?;
    }
    others(32, 128, 10, 9_610)?;
    others(128, 1024, 10, 1_863_690)?;
    others(256, 4096, 1024, 25_175_040)?;
    Ok(())
}

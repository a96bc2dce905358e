//! Times of the operations that a training step consists of, on one rank: `cargo run --release --example op_times`.
//! One line an operation: median ms and GFLOP/s or GB/s.

#![allow(clippy::print_stdout)] // Printing is what it is for.

use std::time::Instant;

use ddp_kernels::ops::{self, Activation, LinearOutput};
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
        println!(
            "{name:18} {b:5} x {i:5} -> {o:5} {ms:9.4} ms {:7.1} GFLOP/s",
            gflop / ms * 1e3
        )
    };
    line(
        "forward relu",
        median_ms(|| {
            let output = LinearOutput {
                y: y.view_mut(),
                pre_activation: None,
                workspace: workspace.view_mut(),
            };
            ops::linear_forward(
                x.view(),
                w.view(),
                Some(bias.view()),
                Some(Activation::Relu),
                output,
            )
        })?,
    );
    line(
        "addmm x·Wt",
        median_ms(|| ops::addmm(1.0, x.view(), false, w.view(), true, 0.0, y.view_mut()))?,
    );
    line(
        "backward weight",
        median_ms(|| ops::linear_backward_weight(d_y.view(), x.view(), d_w.view_mut(), false))?,
    );
    line(
        "backward input",
        median_ms(|| ops::linear_backward_input(d_y.view(), w.view(), d_x.view_mut()))?,
    );
    Ok(())
}

fn main() -> Result<()> {
    let threads = std::env::args()
        .nth(1)
        .and_then(|v| v.parse().ok())
        .unwrap_or(1);
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
    Ok(())
}

//! One matmul on several GPUs of this process: operands are copied explicitly, each GPU computes its rows, and the results are
//! collected. For comparison, the same matmul runs on one GPU. Both are timed.
//!
//!     cargo run --release -p ddp-examples --bin multi_gpu_addmm [SIZE]

// The output of an example is its purpose.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use ddp::prelude::{Gpu, peer};
use ddp::{DType, Device, KernelError, Tensor, ops, with_hint};

const REPEATS: usize = 5;

fn main() -> Result<(), KernelError> {
    let n_gpus = Gpu::count();
    if n_gpus == 0 {
        println!("{}", with_hint(&Device::Cuda(0).ensure_available().expect_err("there is none")));
        return Ok(());
    }
    let size = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(4096);
    let first = Device::Cuda(0);
    let a = Tensor::randn(&[size, size], DType::F32, first, 1)?;
    let b = Tensor::randn(&[size, size], DType::F32, first, 2)?;

    if n_gpus > 1 {
        // Devices never mix: a matmul with operands on different GPUs is an error that names them.
        let elsewhere = b.to(Device::Cuda(1))?;
        let mut c = Tensor::zeros(&[size, size], DType::F32, first)?;
        let mixed = ops::addmm(1.0, a.view(), false, elsewhere.view(), false, 0.0, c.view_mut());
        println!("mixed: {}", with_hint(&mixed.expect_err("operands on two GPUs")));
        println!("copies from cuda:0 to cuda:1: {}", peer::path(Gpu::get(0)?, Gpu::get(1)?)?);
    }

    let (one_ms, whole) = time(|| on_one(&a, &b))?;
    println!("1 GPU:  {one_ms:.3} ms");
    // The second operand is needed on every GPU; like a model's weights, it is copied once.
    let copies: Vec<_> = (0..n_gpus).map(|g| b.to(Device::Cuda(g as u32))).collect::<Result<_, _>>()?;
    let (all_ms, parts) = time(|| on_all(&a, &copies))?;
    println!(
        "{n_gpus} GPU{}: {all_ms:.3} ms, with the moves there and back",
        if n_gpus == 1 { "" } else { "s" }
    );

    let (whole, parts) = (whole.to_vec::<f32>()?, parts.to_vec::<f32>()?);
    let largest = whole.iter().zip(&parts).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("largest difference {largest:.1e}");
    Ok(())
}

fn on_one(a: &Tensor, b: &Tensor) -> Result<Tensor, KernelError> {
    let mut c = Tensor::zeros(&[a.shape().dims()[0], b.shape().dims()[1]], DType::F32, a.device())?;
    ops::addmm(1.0, a.view(), false, b.view(), false, 0.0, c.view_mut())?;
    Ok(c)
}

/// GPU g computes its shard of the rows; the host waits only after all work is enqueued.
fn on_all(a: &Tensor, b: &[Tensor]) -> Result<Tensor, KernelError> {
    let (rows, cols) = (a.shape().dims()[0], b[0].shape().dims()[1]);
    let mut c = Tensor::zeros(&[rows, cols], DType::F32, a.device())?;
    let share = rows.div_ceil(b.len());
    let range = |g: usize| (g * share).min(rows)..((g + 1) * share).min(rows);
    let mut parts = Vec::with_capacity(b.len());
    for (g, b) in b.iter().enumerate() {
        let own = a.view().rows(range(g).start, range(g).end)?.to_tensor()?.to(b.device())?;
        parts.push(on_one(&own, b)?);
    }
    for (g, part) in parts.iter().enumerate() {
        ops::copy(part.view(), c.view_mut().rows(range(g).start, range(g).end)?)?;
    }
    Ok(c)
}

/// The median of several runs in milliseconds, each until all GPUs have finished, and the last result.
fn time(run: impl Fn() -> Result<Tensor, KernelError>) -> Result<(f64, Tensor), KernelError> {
    let synchronize = || (0..Gpu::count()).try_for_each(|g| Gpu::get(g as u32)?.synchronize());
    // The first run compiles and plans.
    let mut result = run()?;
    synchronize()?;
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        let started = Instant::now();
        result = run()?;
        synchronize()?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok((times[REPEATS / 2], result))
}

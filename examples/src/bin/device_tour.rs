//! A tour of devices, tensors and timing: where a tensor is stored, what moves it, the error of an operation across two devices,
//! and when work is finished. Every line works on the CPU alone; a second GPU adds copies between GPUs.
//!
//!     cargo run --release -p ddp-examples --bin device_tour

// The output of an example is its purpose.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use ddp::data::{BatchPlan, DataLoader, LoaderOptions, Placement, TensorDataset};
use ddp::distributed::World;
use ddp::nn::{BackwardPass, ForwardPass, Layer, Network, Precision, RegisteredBuffer, Sequential, Sizes};
use ddp::ops::MapOp;
use ddp::prelude::*;
use ddp::{ops, with_hint};

type Result<T> = std::result::Result<T, KernelError>;

fn main() -> ddp::Result<()> {
    let device = Device::cuda(0).available_or_cpu();
    println!("{} GPUs; the tour is on {device}, {}", Device::count(), device.name());
    creation_and_moves(device)?;
    mismatches(device)?;
    if Device::count() > 1 {
        two_gpus()?;
    }
    buffers(device)?;
    if let Device::Cuda(index) = device {
        pinned_copies(Gpu::get(index)?)?;
    }
    resident_rows(device)?;
    time(device)?;
    memory_account(device)?;
    Ok(())
}

/// Tensors are created on a device and stay there; `to` always copies.
fn creation_and_moves(device: Device) -> Result<()> {
    let x = Tensor::linspace(0.0, 1.0, 4, DType::F32, device)?;
    println!("{x}");
    let there = x.to(Device::cpu())?.to_dtype(DType::BF16)?;
    println!("{there}");
    let back = there.to_like(&x)?;
    println!("largest error of bf16: {}", (&back - &x).abs()?.max(None)?.item::<f32>()?);
    Ok(())
}

/// Nothing moves implicitly: an error names both operands and the call that fixes it.
fn mismatches(device: Device) -> Result<()> {
    let a = Tensor::ones(&[2, 3], DType::F32, device)?;
    let elsewhere = if device == Device::Cpu { DType::F64 } else { DType::F32 };
    let b = Tensor::ones(&[2, 3], elsewhere, Device::Cpu)?;
    println!("error: {}", with_hint(&a.add(&b).expect_err("two devices, or two dtypes")));
    Ok(())
}

/// Computes `c + a·b` on the second GPU from operands on the first, which are copied explicitly from GPU to GPU.
fn two_gpus() -> Result<()> {
    let (first, second) = (Device::cuda(0), Device::cuda(1));
    let a = Tensor::randn(&[64, 64], DType::F32, first, 1)?;
    let b = Tensor::randn(&[64, 64], DType::F32, second, 2)?;
    println!("error: {}", with_hint(&a.matmul(&b).expect_err("two devices")));
    println!("copies from {first} to {second}: {}", peer::path(Gpu::get(0)?, Gpu::get(1)?)?);
    let c = Tensor::zeros(&[64], DType::F32, second)?;
    let product = Tensor::addmm(1.0, a.to(second)?, &b, 1.0, &c)?;
    println!("addmm on {}: norm {:.3}", product.device(), product.norm(None)?.item::<f32>()?);
    Ok(())
}

/// `y = x - shift`, where the shift is a buffer of the layer: not a parameter, but part of the model.
#[derive(Debug)]
struct Shift;

impl Layer for Shift {
    fn describe(&self) -> String {
        "shift".to_owned()
    }

    fn out_features(&self) -> usize {
        3
    }

    fn registered_buffers(&self) -> Result<Vec<RegisteredBuffer>> {
        Ok(vec![RegisteredBuffer::new("shift", Tensor::arange(3, DType::F32, Device::Cpu)?)])
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()> {
        ops::map(MapOp::Sub, Input::Tensor(x), Input::Tensor(pass.registered[0].view()), y)
    }

    fn backward(&mut self, _d: TensorMut<'_>, _pass: BackwardPass<'_>) -> Result<()> {
        Ok(())
    }
}

/// A model moves together with everything that belongs to it.
fn buffers(device: Device) -> Result<()> {
    let sizes = Sizes { max_rows: 4, device: Device::cpu(), precision: Precision::F32 };
    let on_cpu = Sequential::new(3).layer(Shift).linear(2).build(sizes, 1)?;
    let model: Network = on_cpu.to(device)?;
    for (name, values) in model.named_buffers() {
        println!("buffer {name}: {values}");
    }
    for (name, values) in model.named_parameters()? {
        println!("parameter {name}: {} on {}", values.shape(), values.device());
    }
    Ok(())
}

/// A copy from page-locked memory is enqueued while the host continues; work on the compute stream waits for it.
fn pinned_copies(gpu: &'static Gpu) -> Result<()> {
    let mut pinned = PinnedTensor::new(gpu, &[1 << 16], DType::F32)?;
    pinned.host()?.into_slice::<f32>("tour", "host")?.fill(0.5);
    let mut upload = Upload::without_host(gpu, &[1 << 16], DType::F32)?;
    upload.send_from(&mut pinned, 1 << 16)?;
    let sum = upload.device().sum(None)?;
    upload.consumed()?;
    // The host may write again only after the copy has finished.
    pinned.wait_sent()?;
    println!("pinned copy: the sum is {}", sum.item::<f32>()?);
    Ok(())
}

/// Rows that all fit on the device are copied once; batches are then gathered there.
fn resident_rows(device: Device) -> ddp::Result<()> {
    let x = Tensor::randn(&[1000, 8], DType::F32, Device::cpu(), 3)?;
    let rows = Arc::new(TensorDataset::new(&x, &x.sum(1)?)?);
    let world = World::single();
    let plan = BatchPlan { n_epochs: Some(1), ..BatchPlan::new(100) };
    let options = LoaderOptions { placement: Placement::Auto, ..LoaderOptions::new(device) };
    let mut loader = DataLoader::new(&world, rows, &plan, options)?;
    let on_gpu = loader.is_on_gpu();
    let mut n_batches = 0;
    for batch in loader.iter()? {
        let (x, y) = batch?;
        assert_eq!((x.device(), y.device()), (device, device));
        n_batches += 1;
    }
    println!("{n_batches} batches on {device}; rows are resident on a GPU: {on_gpu}");
    Ok(())
}

/// A call on a GPU returns once the work is enqueued: a clock that does not wait measures only the host.
fn time(device: Device) -> Result<()> {
    let x = Tensor::randn(&[256, 256], DType::F32, device, 4)?;
    // The first matmul compiles and plans.
    x.matmul(&x)?;
    device.synchronize()?;
    let started = Instant::now();
    let product = x.matmul(&x)?;
    let enqueued = started.elapsed();
    device.synchronize()?;
    println!("matmul: returned after {enqueued:.1?}, done after {:.1?}", started.elapsed());
    let (same, elapsed) = timed(device, || x.matmul(&x))?;
    println!(
        "timed, which waits: {elapsed:.1?}; equal: {}",
        same?.to_vec::<f32>()? == product.to_vec::<f32>()?
    );
    Ok(())
}

fn memory_account(device: Device) -> Result<()> {
    memory::reset_peak(device)?;
    let before = memory::allocated(device)?;
    let x = Tensor::zeros(&[1 << 20], DType::F32, device)?;
    println!("a tensor of 4 MiB allocates {} bytes", memory::allocated(device)? - before);
    drop(x);
    println!("{}", memory::summary(device)?);
    Ok(())
}

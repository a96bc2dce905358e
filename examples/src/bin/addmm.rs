//! Tensors on explicit devices, a matmul, and the errors for operands that do not fit together.
//!
//!     cargo run --release -p ddp-examples --bin addmm

// Examples print their results.
#![allow(clippy::print_stdout)]

use ddp::{DType, Device, KernelError, Tensor, ops};

fn main() -> Result<(), KernelError> {
    let device: Device = "cpu".parse()?;
    let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3], device)?;
    let b = Tensor::arange(6, DType::F32, device)?;
    let b = b.view().reshape(&[3, 2])?;
    let mut c = Tensor::ones(&[2, 2], DType::F32, device)?;

    // c = 2 a·b + 10 c, into existing memory.
    ops::addmm(2.0, a.view(), false, b, false, 10.0, c.view_mut())?;
    println!("2 a·b + 10 = {:?}", c.to_vec::<f32>()?);

    // c = a·aᵀ: the flags transpose without a copy.
    ops::addmm(1.0, a.view(), false, a.view(), true, 0.0, c.view_mut())?;
    println!("a·aᵀ = {:?}", c.to_vec::<f32>()?);

    // Shapes, dtypes and devices are checked before any computation; each message names every operand.
    let product =
        |b: &Tensor, c: &mut Tensor| ops::addmm(1.0, a.view(), false, b.view(), false, 0.0, c.view_mut());
    let wide = Tensor::zeros(&[4, 2], DType::F32, device)?;
    report("shapes", product(&wide, &mut c));
    let double = Tensor::zeros(&[3, 2], DType::F64, device)?;
    report("dtypes", product(&double, &mut c));
    // Without a GPU, creating the tensor fails: it is never created on the CPU instead.
    let on_gpu = Tensor::zeros(&[3, 2], DType::F32, Device::Cuda(0));
    report("devices", on_gpu.and_then(|b| product(&b, &mut c)));
    Ok(())
}

fn report(operation: &str, result: Result<(), KernelError>) {
    match result {
        Ok(()) => println!("{operation}: no error"),
        Err(error) => println!("{operation}: {}", ddp::with_hint(&error)),
    }
}

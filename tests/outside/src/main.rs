//! Calls the library for tensors, layers and loops, with `ddp` and `ddp-tables` as its only dependencies, on the CPU and the first GPU.

mod devices;
mod training;

use std::error::Error;

use ddp::distributed::threads;
use ddp::kernels::Download;
use ddp::prelude::*;
use ddp::{comm, with_hint};

fn main() -> Result<(), Box<dyn Error>> {
    let mut devices = vec![Device::cpu()];
    if Device::cuda(0).is_available() {
        devices.push(Device::cuda(0));
    }
    for device in devices {
        creation(device)?;
        transfer(device)?;
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            arithmetic(device, dtype)?;
            reductions(device, dtype)?;
        }
        rows(device)?;
        matrices(device)?;
        files(device)?;
        time_and_memory(device)?;
        if let Device::Cuda(index) = device {
            pinned_copies(Gpu::get(index)?)?;
            peer_copies(Gpu::get(index)?)?;
        }
        copies_between_ranks(device)?;
        println!("outside: tensors on {device} ({}): all calls", device.name());
        training::all(device)?;
        println!("outside: layers and loops on {device}: all calls");
    }
    if Device::count() >= 2 {
        devices::mistakes();
        println!("outside: mistakes with devices: all refused");
    }
    names()
}

fn creation(device: Device) -> Result<(), KernelError> {
    for dtype in DType::ALL {
        assert_eq!(Tensor::zeros(&[2, 3], dtype, device)?.dims(), [2, 3]);
        Tensor::ones(&[2], dtype, device)?;
        Tensor::full(&[2], 1.0, dtype, device)?;
        Tensor::arange(3, dtype, device)?;
        Tensor::linspace(0.0, 1.0, 3, dtype, device)?;
        let eye = Tensor::eye(2, dtype, device)?;
        assert_eq!(
            (eye.dtype(), eye.device(), eye.numel(), eye.shape().dims()),
            (dtype, device, 4, &[2, 2][..])
        );
        assert_eq!(eye.size_bytes(), 4 * dtype.size_bytes());
        if dtype.is_float() {
            Tensor::rand(&[4], dtype, device, 7)?.rand_like(8)?;
            Tensor::randn(&[4], dtype, device, 7)?.randn_like(8)?;
        }
        eye.zeros_like()?;
        eye.ones_like()?;
        eye.full_like(1.0)?;
        eye.new_zeros(&[1])?;
        eye.new_ones(&[1])?;
        eye.new_full(&[1], 1.0)?;
    }
    let x = Tensor::from_slice(&[1.0f32, 2.0], &[2], device)?;
    assert_eq!(x.new_from_slice(&[3i32], &[1])?.item::<i32>()?, 3);
    let half = Tensor::from_vec(vec![f16::ONE, f16::ZERO], &[2], device)?;
    assert_eq!(half.to_vec::<f16>()?, [f16::ONE, f16::ZERO]);
    Tensor::from_vec(vec![bf16::ONE], &[1], device)?;
    Tensor::from_vec(vec![true], &[1], device)?;
    Ok(())
}

fn transfer(device: Device) -> Result<(), KernelError> {
    let x = Tensor::from_slice(&[1.5f32, -2.0], &[2], device)?;
    assert_eq!(x.to(Device::cpu())?.device(), x.cpu()?.device());
    if device == Device::cuda(0) {
        x.cpu()?.cuda()?;
    }
    let short = x.to_dtype(DType::BF16)?;
    assert_eq!(short.to_like(&x)?.to_vec::<f32>()?, x.try_clone()?.to_vec::<f32>()?);
    assert_eq!(x.reshape(&[1, 2])?.into_shape(&[2, 1])?.t()?.dims(), [1, 2]);
    let text = x.to_string();
    assert_eq!(text, format!("tensor([ 1.5000, -2.0000], device={device}, dtype=f32)"));
    assert_eq!(format!("{x:?}"), format!("Tensor [2] f32 on {device}"));
    Ok(())
}

fn arithmetic(device: Device, dtype: DType) -> Result<(), KernelError> {
    let floats = |x: Tensor| x.to_dtype(DType::F64)?.to_vec::<f64>();
    let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], device)?.to_dtype(dtype)?;
    let row = Tensor::from_slice(&[10.0f32, 20.0], &[2], device)?.to_dtype(dtype)?;
    assert_eq!(floats(&a + &row)?, [11.0, 22.0, 13.0, 24.0]);
    assert_eq!(floats(2.0 * &a - 1.0)?, [1.0, 3.0, 5.0, 7.0]);
    assert_eq!(floats(-&a / 2)?, [-0.5, -1.0, -1.5, -2.0]);
    for result in [a.neg(), a.exp(), a.log(), a.sqrt(), a.abs(), a.pow(3.0), a.clamp(1.5, 3.5)] {
        assert_eq!(result?.dims(), [2, 2]);
    }
    for result in
        [a.relu(), a.gelu(), a.silu(), a.tanh(), a.sigmoid(), a.sin(), a.cos(), a.floor(), a.round()]
    {
        assert_eq!((result?.dims(), a.isnan()?.any()?.item::<bool>()?), (&[2, 2][..], false));
    }
    let mut b = a.clone();
    b += Tensor::ones(&[2], dtype, device)?;
    assert_eq!(floats(b - a.view())?, [1.0; 4]);
    for result in [a.add(&row), a.sub(1), a.mul(&row), a.div(2.0), a.maximum(&row), a.minimum(0.5)] {
        assert_eq!(result?.dtype(), dtype);
    }
    let mask = a.gt(2.0)?;
    assert_eq!(mask.to_vec::<bool>()?, [false, false, true, true]);
    assert_eq!(a.lt(&row)?.eq(true)?.dtype(), DType::Bool);
    assert_eq!((!&mask | mask.clone()).all_along(0)?.to_vec::<bool>()?, [true, true]);
    assert_eq!((a.ge(2)? & a.le(3)? & a.ne(2)?).sum(None)?.item::<i64>()?, 1);
    assert_eq!(floats(a.where_(&mask, 0.0)?)?, [0.0, 0.0, 3.0, 4.0]);
    assert_eq!(floats(a.masked_fill(&mask, -1)?)?, [1.0, 2.0, -1.0, -1.0]);
    let other = if dtype == DType::F64 { DType::F32 } else { DType::F64 };
    let message = with_hint(&a.add(&row.to_dtype(other)?).unwrap_err());
    let (x, y) = (format!("a [2, 2] {dtype} on {device}"), format!("b [2] {other} on {device}"));
    let mend = format!("b.to_dtype(DType::{dtype:?})");
    assert!(message.contains(&x) && message.contains(&y) && message.contains(&mend), "{message}");
    Ok(())
}

fn reductions(device: Device, dtype: DType) -> Result<(), KernelError> {
    let floats = |x: Tensor| x.to_dtype(DType::F64)?.to_vec::<f64>();
    let a = Tensor::from_slice(&[1.0f64, 2.0, 3.0, 4.0], &[2, 2], device)?.to_dtype(dtype)?;
    let near = |x: Tensor, want: f64| -> Result<(), KernelError> {
        let got = floats(x)?[0];
        assert!((got - want).abs() < if dtype.size_bytes() == 2 { 0.05 } else { 1e-6 }, "{got}, not {want}");
        Ok(())
    };
    near(a.sum(None)?, 10.0)?;
    assert_eq!(floats(a.mean(0)?)?, [2.0, 3.0]);
    assert_eq!(floats(a.max(1)?)?, [2.0, 4.0]);
    near(a.min(None)?, 1.0)?;
    assert_eq!(a.argmax(1)?.to_vec::<i64>()?, [1, 1]);
    near(a.norm(None)?, 30f64.sqrt())?;
    near(a.softmax(1)?.sum(None)?, 2.0)?;
    near(a.view().softmax(-1)?.sum([0, 1])?, 2.0)?;
    near(a.var(None)?, 5.0 / 3.0)?;
    near(a.std(keepdim([0, 1]))?, (5f64 / 3.0).sqrt())?;
    near(a.prod(None)?, 24.0)?;
    assert_eq!(
        (floats(a.cumsum(0)?)?, a.argmin(0)?.to_vec::<i64>()?),
        (vec![1.0, 2.0, 4.0, 6.0], vec![0, 0])
    );
    let (values, indices) = a.topk(1)?;
    assert_eq!((floats(values)?, indices.to_vec::<i64>()?), (vec![2.0, 4.0], vec![1, 1]));
    assert!(floats(a.log_softmax(1)?.max(None)?)?[0] < 0.0);
    Ok(())
}

fn rows(device: Device) -> Result<(), KernelError> {
    let a = Tensor::arange(6, DType::I64, device)?.into_shape(&[2, 3])?;
    assert_eq!(a.permute([1, 0])?.to_vec::<i64>()?, [0, 3, 1, 4, 2, 5]);
    assert_eq!(a.narrow(1, 1, 2)?.to_vec::<i64>()?, [1, 2, 4, 5]);
    assert_eq!(a.slice((.., 1..))?.to_vec::<i64>()?, [1, 2, 4, 5]);
    assert_eq!(a.transpose(0, -1)?.unsqueeze(0)?.flatten_range(1..)?.to_vec::<i64>()?, [0, 3, 1, 4, 2, 5]);
    assert_eq!(Tensor::cat(&a.chunk(2, 1)?, 1)?.split(1, 0)?[1].squeeze(0)?.to_vec::<i64>()?, [3, 4, 5]);
    assert_eq!(a.gather(1, tensor![[2], [0]].to(device)?)?.to_vec::<i64>()?, [2, 3]);
    assert_eq!(a.row(0)?.expand(&[2, 3])?.sum(0)?.to_vec::<i64>()?, [0, 2, 4]);
    assert_eq!(Tensor::randint(0, 3, &[4], DType::I32, device, 1)?.lt(3)?.sum(None)?.item::<i64>()?, 4);
    assert_eq!(a.row(1)?.to_vec::<i64>()?, [3, 4, 5]);
    assert_eq!(Tensor::cat(&[&a, &a], 1)?.dims(), [2, 6]);
    assert_eq!(Tensor::stack(&[&a, &a], 0)?.dims(), [2, 2, 3]);
    let indices = Tensor::from_slice(&[2i64, 0], &[2], device)?;
    assert_eq!(a.index_select(1, &indices)?.to_vec::<i64>()?, [2, 0, 5, 3]);
    assert_eq!(indices.one_hot(3)?.dims(), [2, 3]);
    assert_eq!(a.triu(0)?.to_vec::<i64>()?, [0, 1, 2, 0, 4, 5]);
    assert_eq!(a.tril(0)?.to_vec::<i64>()?, [0, 0, 0, 3, 4, 0]);
    Ok(())
}

fn matrices(device: Device) -> Result<(), KernelError> {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let (a, c) = (Tensor::eye(2, dtype, device)?, Tensor::ones(&[2], dtype, device)?);
        let product = Tensor::addmm(2.0, &a, &a, 1.0, &c)?;
        assert_eq!(product.to_dtype(DType::F64)?.to_vec::<f64>()?, [3.0, 1.0, 1.0, 3.0]);
        assert_eq!(a.matmul(&c)?.dims(), [2]);
        let batch = Tensor::ones(&[3, 2, 2], dtype, device)?;
        assert_eq!(batch.unsqueeze(0)?.matmul(&a)?.dims(), [1, 3, 2, 2]);
        assert_eq!(batch.bmm(&batch)?.to_dtype(DType::F64)?.to_vec::<f64>()?, [2.0; 12]);
        let mut weights = Tensor::zeros(&[3, 4], dtype, device)?;
        ddp::ops::softmax_forward(weights.view_mut())?;
        assert_eq!(weights.to_dtype(DType::F64)?.to_vec::<f64>()?, [0.25; 12]);
        let mut d = weights.ones_like()?;
        ddp::ops::softmax_backward(weights.view(), d.view_mut())?;
        assert_eq!(d.to_dtype(DType::F64)?.to_vec::<f64>()?, [0.0; 12]);
        let mut out = Tensor::zeros(&[2, 2], DType::F64, device)?;
        let wide = a.to_dtype(DType::F64)?;
        ddp::ops::addmm(1.0, wide.view(), false, wide.view(), true, 0.0, out.view_mut())?;
        assert_eq!(out.sum(None)?.item::<f64>()?, 2.0);
    }
    Ok(())
}

fn files(device: Device) -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("ddp_outside_{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let (x, mask) = (Tensor::rand(&[3, 2], DType::F32, device, 1)?, Tensor::eye(2, DType::Bool, device)?);
    ddp_tables::io::write_npy(folder.join("x.npy"), &x)?;
    assert_eq!(ddp_tables::io::read_npy(folder.join("x.npy"), device)?.to_vec::<f32>()?, x.to_vec::<f32>()?);
    ddp_tables::io::write_npz(folder.join("x.npz"), &[("x", &x), ("mask", &mask)])?;
    io::write_safetensors(folder.join("x.safetensors"), &[("x", &x), ("mask", &mask)])?;
    for read in [
        ddp_tables::io::read_npz(folder.join("x.npz"), device)?,
        io::read_safetensors(folder.join("x.safetensors"), device)?,
    ] {
        let read = &read["mask"];
        assert_eq!((read.device(), read.to_vec::<bool>()?), (device, vec![true, false, false, true]));
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

fn time_and_memory(device: Device) -> Result<(), KernelError> {
    memory::reset_peak(device)?;
    let x = Tensor::ones(&[256, 256], DType::F32, device)?;
    assert!(
        memory::allocated(device)? >= x.size_bytes() && memory::peak(device)? >= memory::allocated(device)?
    );
    assert!(memory::reserved(device)? >= memory::allocated(device)?);
    let (product, time) = timed(device, || x.matmul(&x))?;
    assert_eq!(product?.row(0)?.to_vec::<f32>()?[0], 256.0);
    assert!(time.as_nanos() > 0);
    if device == Device::cpu() {
        let times = (0..20)
            .map(|_| Ok(timed(device, || x.matmul(&x))?.1))
            .collect::<Result<Vec<_>, KernelError>>()?;
        let best = times.into_iter().min().expect("20 times").as_secs_f64();
        println!("outside: a product of 256 x 256 matrices takes {:.3} ms", best * 1e3);
    }
    println!("{}", memory::summary(device)?);
    memory::empty_cache()?;
    device.synchronize()?;
    if let Device::Cuda(index) = device {
        let gpu = Gpu::get(index)?;
        let stream: &Stream = gpu.stream(StreamKind::Compute);
        let (start, event) = (Event::new(device)?, Event::new(device)?);
        start.record(stream)?;
        event.record(stream)?;
        stream.wait(&event)?;
        event.synchronize()?;
        assert!(event.is_done()? && start.elapsed_time(&event)? >= 0.0);
        let timer = Timer::new(gpu)?;
        timer.start(stream)?;
        timer.stop(stream)?;
        assert!(timer.elapsed_ms()? >= 0.0);
    }
    Ok(())
}

/// From pinned host memory to the GPU and back, beside its other work.
fn pinned_copies(gpu: &'static Gpu) -> Result<(), KernelError> {
    let mut pinned = PinnedTensor::new(gpu, &[4, 2], DType::F32)?;
    assert_eq!((pinned.shape().dims(), pinned.dtype()), (&[4, 2][..], DType::F32));
    pinned.host()?.into_slice::<f32>("outside", "host")?.fill(0.5);
    let mut x = Tensor::zeros(&[4, 2], DType::F32, gpu.device())?;
    pinned.copy_to(x.view_mut())?;
    pinned.wait_sent()?;
    assert!(pinned.is_sent()?);
    assert_eq!(x.sum(None)?.item::<f32>()?, 4.0);

    let mut upload = Upload::without_host(gpu, &[8], DType::F32)?;
    upload.send_from(&mut pinned, 8)?;
    assert_eq!(upload.device().mean(None)?.item::<f32>()?, 0.5);
    upload.consumed()?;

    let mut download = Download::new(gpu, x.size_bytes())?;
    download.start(x.view())?;
    assert_eq!(download.wait::<f32>()?, [0.5; 8]);
    Ok(())
}

/// Between this GPU and the next, or within the only one.
fn peer_copies(gpu: &'static Gpu) -> Result<(), KernelError> {
    let next = Gpu::get((gpu.index() + 1) % u32::try_from(Device::count()).expect("few GPUs"))?;
    let x = Tensor::arange(6, DType::F32, gpu.device())?;
    let mut y = Tensor::zeros(&[6], DType::F32, next.device())?;
    let path = peer::copy(x.view().cuda()?, y.view_mut().into_cuda()?)?;
    assert_eq!(path, peer::path(gpu, next)?);
    assert_eq!(y.to_vec::<f32>()?, x.to_vec::<f32>()?);
    println!("outside: copied from {} to {}: {path}", gpu.device(), next.device());
    Ok(())
}

/// From one rank to another, whatever devices they have.
fn copies_between_ranks(device: Device) -> Result<(), Box<dyn Error>> {
    let received = threads::run(2, |world| -> Result<Vec<f32>, comm::CommError> {
        let x = Tensor::full(&[3], 7.0, DType::F32, device)?;
        let mut y = Tensor::zeros(&[3], DType::F32, device)?;
        comm::peer::copy(&world, comm::Rank(0), comm::Rank(1), Some(x.view()), Some(y.view_mut()))?;
        Ok(y.to_vec()?)
    });
    for (rank, received) in received.into_iter().enumerate() {
        assert_eq!(received?, [if rank == 1 { 7.0 } else { 0.0 }; 3]);
    }
    Ok(())
}

fn names() -> Result<(), Box<dyn Error>> {
    assert_eq!("cpu".parse::<Device>()?, Device::cpu());
    assert!("mps".parse::<Device>().unwrap_err().to_string().contains("not supported by this build"));
    let missing = Device::cuda(Device::count());
    assert!(!missing.is_available() && missing.available_or_cpu() == Device::cpu());
    assert!(Tensor::zeros(&[1], DType::F32, missing).is_err());
    std::thread::spawn(|| join_pool(2)).join().expect("it does not panic")?;
    Ok(())
}

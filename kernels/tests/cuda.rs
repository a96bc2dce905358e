//! What a GPU offers beside operations: memory with an account, copies that wait for nothing, graphs, time. On the real or
//! virtual GPU that is there; else each test says that it was skipped (`REQUIRE_GPUS=1` makes that a failure).

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::sync::{Mutex, MutexGuard, PoisonError};

use ddp_kernels::cuda::{Download, Gpu, Graph, StreamKind, Timer, Upload};
use ddp_kernels::{DType, Device, KernelError, MemoryUse, Tensor, TensorRef, ops};

/// The first GPU, for one test alone: these count its memory and capture its stream.
fn gpu() -> Option<(&'static Gpu, MutexGuard<'static, ()>)> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if Gpu::count() == 0 {
        assert!(std::env::var("REQUIRE_GPUS").map_or(true, |n| n == "0"), "needs 1 GPU, found 0");
        println!("skipped: needs 1 GPU, found 0");
        return None;
    }
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    Some((Gpu::get(0).unwrap(), alone))
}

const MIB: usize = 1 << 20;

#[test]
fn memory_is_accounted_for_and_given_back() {
    let Some((gpu, _alone)) = gpu() else { return };
    let before = gpu.memory_allocated();
    gpu.reset_peak_memory();
    let weights = Tensor::zeros_for(MemoryUse::Parameters, &[MIB], DType::F32, gpu.device()).unwrap();
    let grads = Tensor::zeros_for(MemoryUse::Gradients, &[2 * MIB], DType::F32, gpu.device()).unwrap();
    assert_eq!(gpu.memory_allocated() - before, 12 * MIB);
    assert_eq!(
        weights.zeros_like().unwrap().memory_use(),
        MemoryUse::Parameters,
        "what is like it counts as it"
    );
    let in_use = gpu.memory_in_use().unwrap();
    assert_eq!(in_use.bytes[MemoryUse::Gradients as usize], 8 * MIB);
    assert!(in_use.to_string().contains("gradients 8.0"), "{in_use}");
    assert!(gpu.memory_reserved().unwrap() >= 12 * MIB);
    drop(grads);
    assert_eq!(gpu.memory_allocated() - before, 4 * MIB);
    assert_eq!(gpu.memory_peak() - before, 16 * MIB, "12 and the copy's 4");
    // What was given back is kept for the next one, until it is asked for.
    gpu.synchronize().unwrap();
    let kept = gpu.memory_reserved().unwrap();
    gpu.empty_cache().unwrap();
    let left = gpu.memory_reserved().unwrap();
    assert!(left < kept && left >= gpu.memory_allocated() - before, "{kept} kept, {left} left");
}

#[test]
fn too_much_memory_is_refused_with_an_account() {
    let Some((gpu, _alone)) = gpu() else { return };
    let _data = Tensor::zeros_for(MemoryUse::Data, &[MIB], DType::F32, gpu.device()).unwrap();
    let total = gpu.info().memory_bytes;
    let error = Tensor::zeros(&[total], DType::F32, gpu.device()).unwrap_err();
    let KernelError::OutOfMemory { device, bytes, in_use: Some(in_use) } = &error else { panic!("{error}") };
    assert_eq!((*device, *bytes, in_use.total), (gpu.device(), 4 * total, total));
    let text = error.to_string();
    assert!(
        text.contains("data 4.0") && text.contains("free on the device") && text.contains("hint: "),
        "{text}"
    );
}

#[test]
fn copies_in_turn_arrive_in_order() {
    let Some((gpu, _alone)) = gpu() else { return };
    const N: usize = 1000;
    let mut slots = [(); 2].map(|()| Upload::new(gpu, &[N], DType::F32).unwrap());
    let mut sum = Tensor::zeros(&[N], DType::F32, gpu.device()).unwrap();
    let mut download = Download::new(gpu, N * 4).unwrap();
    for round in 0..10 {
        let slot = &mut slots[round % 2];
        slot.send_slice(&[round as f32; N]).unwrap();
        ops::add_assign(sum.view_mut(), slot.device().view()).unwrap();
        slot.consumed().unwrap();
    }
    download.start(sum.view()).unwrap();
    assert_eq!(download.wait::<f32>().unwrap(), [45.0; N]);
    assert!(download.is_there().unwrap());
    assert!(slots[0].send(N + 1).is_err() && download.start(slots[0].device().view()).is_ok());
}

#[test]
fn uploads_carry_every_type() {
    let Some((gpu, _alone)) = gpu() else { return };
    for dtype in DType::ALL {
        let values = Tensor::arange(200, dtype, Device::Cpu).unwrap();
        let mut slot = Upload::new(gpu, &[201], dtype).unwrap();
        slot.send_view(values.view()).unwrap();
        let back = slot.device().to(Device::Cpu).unwrap();
        let back = back.view().range(0, 200).unwrap().as_bytes("test", "back").unwrap();
        assert_eq!(back, values.view().as_bytes("test", "values").unwrap(), "{dtype}");
        assert_eq!(slot.host().unwrap().dtype(), dtype);
        let other = if dtype == DType::F16 { DType::BF16 } else { DType::F16 };
        let error = slot.send_view(Tensor::zeros(&[2], other, Device::Cpu).unwrap().view()).unwrap_err();
        assert!(matches!(error, KernelError::DTypeUnsupported { .. }), "{error}");
    }
}

#[test]
fn a_graph_is_replayed_with_what_lies_in_memory() {
    let Some((gpu, _alone)) = gpu() else { return };
    let mut sum = Tensor::zeros(&[100], DType::F32, gpu.device()).unwrap();
    let mut term = Tensor::ones(&[100], DType::F32, gpu.device()).unwrap();
    // The first time a kernel is compiled, which no capture may.
    ops::add_assign(sum.view_mut(), term.view()).unwrap();
    let mut graph = Graph::capture(gpu, || -> Result<(), KernelError> {
        ops::add_assign(sum.view_mut(), term.view())?;
        ops::add_assign(sum.view_mut(), term.view())
    })
    .unwrap();
    assert_eq!(graph.n_nodes(), 2);
    assert_eq!(sum.to_vec::<f32>().unwrap(), [1.0; 100], "a capture runs nothing");
    graph.launch().unwrap();
    ops::copy(TensorRef::from_slice(&[5.0f32; 100], &[100]).unwrap(), term.view_mut()).unwrap();
    graph.launch().unwrap();
    assert_eq!(sum.to_vec::<f32>().unwrap(), [13.0; 100]);
    // What a graph may still use is not given to others while it exists.
    let held = gpu.memory_allocated();
    drop(term);
    let fresh = Tensor::full(&[100], 9.0, DType::F32, gpu.device()).unwrap();
    graph.launch().unwrap();
    assert_eq!(sum.to_vec::<f32>().unwrap(), [23.0; 100]);
    assert_eq!(fresh.to_vec::<f32>().unwrap(), [9.0; 100]);
    assert_eq!(gpu.memory_allocated(), held, "accounted for by its owner");
}

#[test]
fn a_failed_capture_leaves_the_stream_usable() {
    let Some((gpu, _alone)) = gpu() else { return };
    let failed = Graph::capture(gpu, || Err(KernelError::UnknownDevice { name: "none".into() }));
    assert!(matches!(failed.unwrap_err(), KernelError::UnknownDevice { .. }));
    let ones = Tensor::ones(&[3], DType::F32, gpu.device()).unwrap();
    assert_eq!(ones.to_vec::<f32>().unwrap(), [1.0; 3]);
}

#[test]
fn the_device_measures_time_and_the_host_can_wait_for_all_of_it() {
    let Some((gpu, _alone)) = gpu() else { return };
    let timer = Timer::new(gpu).unwrap();
    let a = Tensor::randn(&[256, 256], DType::F32, gpu.device(), 1).unwrap();
    let mut c = a.zeros_like().unwrap();
    timer.start(gpu.compute()).unwrap();
    for _ in 0..4 {
        ops::addmm(1.0, a.view(), false, a.view(), false, 0.0, c.view_mut()).unwrap();
    }
    timer.stop(gpu.compute()).unwrap();
    gpu.synchronize().unwrap();
    for kind in [StreamKind::Compute, StreamKind::Communication, StreamKind::Copy] {
        gpu.stream(kind).synchronize().unwrap();
    }
    let ms = timer.elapsed_ms().unwrap();
    assert!(ms > 0.0 && ms < 60_000.0, "{ms} ms");
}

#[test]
fn devices_are_described() {
    let Some((gpu, _alone)) = gpu() else { return };
    let info = gpu.info();
    assert!(info.uuid.starts_with("GPU-") && info.pci_bus_id.contains(':'), "{info:?}");
    assert!(info.memory_bytes > 0 && info.multiprocessors > 0 && info.compute_capability.0 >= 7, "{info:?}");
    assert!(Device::Cuda(Gpu::count() as u32).ensure_available().is_err());
}

/// Larger than a piece of a staged copy, where there is no direct way.
#[test]
fn a_large_tensor_goes_from_one_gpu_to_another() {
    let Some((_, _alone)) = gpu() else { return };
    if Gpu::count() < 2 {
        println!("skipped: needs 2 GPUs, found {}", Gpu::count());
        return;
    }
    let n = 5 * MIB + 3;
    let here = Tensor::arange(n, DType::F32, Device::Cuda(0)).unwrap();
    let there = here.to(Device::Cuda(1)).unwrap();
    assert_eq!(there.device(), Device::Cuda(1));
    assert!(there.to_vec::<f32>().unwrap().iter().enumerate().all(|(i, &v)| v == i as f32));
}

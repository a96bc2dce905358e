//! Tensors that NCCL reads and writes in place: the same results, and an end in the right order.

use std::time::Duration;

use ddp_comm::{CommError, DeviceOptions, NCCL_MEMORY_STEP_BYTES, ReduceOp, RegisterBuffers, World, threads};
use ddp_kernels::cuda::{Event, Graph};
use ddp_kernels::{DType, Device, MemoryUse, Tensor, ops};

use super::{gpu_of, gpus};

fn connect(world: &World, register_buffers: RegisterBuffers) -> Device {
    let device = Device::Cuda(world.rank().0 as u32);
    let timeout = Some(Duration::from_secs(30));
    world
        .connect_device(device, DeviceOptions { timeout, register_buffers, ..DeviceOptions::default() })
        .unwrap();
    device
}

fn exchange_zeros(world: &World, n: usize, device: Device) -> Tensor {
    world.exchange_zeros(MemoryUse::Gradients, &[n], DType::F32, device).unwrap()
}

fn address(tensor: &Tensor) -> u64 {
    tensor.view().cuda().unwrap().ptr()
}

/// An all-reduce of two ranges, a reduce-scatter and an all-gather in place.
fn exchange(world: &World, from: &Tensor, flat: &mut Tensor) -> Result<(), CommError> {
    let (n, n_ranks) = (flat.numel(), world.world_size());
    ops::copy(from.view(), flat.view_mut())?;
    let shards = n / 2 / n_ranks * n_ranks;
    world.tensor_group().scope(|scope| {
        let (low, high) = flat.view_mut().split_at(n / 3)?;
        scope.all_reduce(ReduceOp::Sum, high)?;
        scope.all_reduce(ReduceOp::Sum, low).map(|_| ())
    })?;
    let group = world.tensor_group();
    group.reduce_scatter_in_place(ReduceOp::Sum, flat.view_mut().range(0, shards)?)?;
    group.all_gather_in_place(flat.view_mut().range(0, shards)?)
}

#[test]
fn registered_tensors_have_the_bits_of_others() {
    for n_ranks in [2, 3, 4] {
        let Some(_gpus) = gpus(n_ranks) else { return };
        let run = |register_buffers| {
            threads::run(n_ranks, |world| {
                let device = connect(&world, register_buffers);
                assert_eq!(world.registers_buffers(), register_buffers != RegisterBuffers::Off);
                let n = 9_001;
                let random = Tensor::randn(&[n], DType::F32, device, world.rank().0 as u64).unwrap();
                let mut flat = exchange_zeros(&world, n, device);
                assert_eq!(flat.memory_use(), MemoryUse::Gradients);
                assert!(flat.to_vec::<f32>().unwrap().iter().all(|&value| value == 0.0));
                exchange(&world, &random, &mut flat).unwrap();
                let eager = flat.to_vec::<f32>().unwrap();
                let mut graph =
                    Graph::capture(gpu_of(device), || exchange(&world, &random, &mut flat)).unwrap();
                graph.launch().unwrap();
                assert!(flat.to_vec::<f32>().unwrap() == eager);
                drop(graph);
                world.close().unwrap();
                // A tensor may outlive its world.
                assert!(flat.to_vec::<f32>().unwrap() == eager);
                eager
            })
        };
        let others = run(RegisterBuffers::Off);
        assert!(run(RegisterBuffers::Auto) == others && run(RegisterBuffers::On) == others);
    }
}

/// Memory of a dropped tensor serves the next one of its length, but not while a graph may use it.
#[test]
fn registered_memory_is_used_again_when_no_graph_has_it() {
    let Some(_gpus) = gpus(2) else { return };
    threads::run(2, |world| {
        let device = connect(&world, RegisterBuffers::On);
        let n = 5_000;
        let first = exchange_zeros(&world, n, device);
        let at = address(&first);
        drop(first);
        assert_ne!(address(&exchange_zeros(&world, n + 1, device)), at, "of another length");
        let mut again = exchange_zeros(&world, n, device);
        assert_eq!(address(&again), at);
        let random = Tensor::randn(&[n], DType::F32, device, 5).unwrap();
        exchange(&world, &random, &mut again).unwrap();
        let mut graph = Graph::capture(gpu_of(device), || exchange(&world, &random, &mut again)).unwrap();
        drop(again);
        let other = exchange_zeros(&world, n, device);
        assert_ne!(address(&other), at);
        graph.launch().unwrap();
        assert!(other.to_vec::<f32>().unwrap().iter().all(|&value| value == 0.0));
        drop(graph);
        assert_eq!(address(&exchange_zeros(&world, n, device)), at);
        world.close().unwrap();
    });
}

/// The account is what the device has given.
#[test]
fn registered_memory_is_accounted_for_in_whole_steps() {
    let Some(_gpus) = gpus(2) else { return };
    threads::run(2, |world| {
        let device = connect(&world, RegisterBuffers::On);
        let gpu = gpu_of(device);
        let memory = || {
            let in_use = gpu.memory_in_use().unwrap();
            (in_use.bytes[MemoryUse::Gradients as usize], gpu.memory_reserved().unwrap(), in_use.free)
        };
        let before = memory();
        let n = NCCL_MEMORY_STEP_BYTES / 4 + 1;
        let tensors = [1, n].map(|n| exchange_zeros(&world, n, device));
        let after = memory();
        let held = 3 * NCCL_MEMORY_STEP_BYTES;
        assert_eq!((after.0 - before.0, after.1 - before.1, before.2 - after.2), (held, held, held));
        drop(tensors);
        assert_eq!((memory().0, memory().1), (before.0, before.1));
        world.close().unwrap();
        assert_eq!(memory(), before);
    });
}

/// After an abort NCCL cleans up by itself; nothing is deregistered or freed behind its back.
#[test]
fn a_failure_leaves_registered_memory_to_the_end_of_the_process() {
    let Some(_gpus) = gpus(2) else { return };
    threads::run(2, |world| {
        let device = Device::Cuda(world.rank().0 as u32);
        let options = DeviceOptions {
            timeout: Some(Duration::from_secs(1)),
            register_buffers: RegisterBuffers::On,
            ..DeviceOptions::default()
        };
        world.connect_device(device, options).unwrap();
        let mut flat = exchange_zeros(&world, 1000, device);
        let random = Tensor::randn(&[1000], DType::F32, device, 1).unwrap();
        exchange(&world, &random, &mut flat).unwrap();
        // Registered, but no tensor's any more.
        drop(exchange_zeros(&world, 500, device));
        let free = || gpu_of(device).memory_in_use().unwrap().free;
        let before = free();
        if world.rank().0 == 0 {
            let done = Event::untimed(gpu_of(device)).unwrap();
            let failed = exchange(&world, &random, &mut flat).and_then(|()| {
                done.record(gpu_of(device).compute())?;
                world.tensor_group().wait_until(|| done.is_done())
            });
            assert!(matches!(failed, Err(CommError::DeviceTimeout { .. })), "{failed:?}");
            // The abort continues for a while after it has returned.
            gpu_of(device).synchronize().unwrap();
            assert!(free() <= before, "freed by the abort");
            // From here on there is plain memory alone.
            assert_ne!(address(&exchange_zeros(&world, 1000, device)), address(&flat));
        }
        world.group().barrier().unwrap();
        let before = free();
        let rank = world.rank().0;
        drop((flat, world));
        // Rank 1 may learn of it before it ends in order.
        assert!(rank == 1 || free() == before, "freed while NCCL may still use it");
    });
}

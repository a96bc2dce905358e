//! Ranks on GPUs, as threads of this process: the contract over NCCL, the order of streams, graphs, failures, copies.
//!
//! Runs on the GPUs that are there, real or virtual (`tests/vgpu/run -n 4`); without, each test says what it lacks.

#![allow(clippy::print_stdout, reason = "a test that is skipped says so")]
#![allow(clippy::unwrap_used, reason = "so do helpers of tests")]

#[path = "../contract/mod.rs"]
mod contract;
mod registered;

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use contract::Sums;
use ddp_comm::peer::{self, PeerPath};
use ddp_comm::{CommError, DeviceOptions, Failure, Rank, ReduceOp, Reporter, World, threads};
use ddp_kernels::cuda::{Gpu, Graph};
use ddp_kernels::{DType, Device, Download, KernelError, Tensor, TensorMut, ops};

/// The GPUs, if there are that many; `REQUIRE_GPUS` makes it a failure if there are not.
///
/// One test at a time has them: two worlds that put collectives into the same streams, each rank in an order of its own, wait
/// for each other for ever.
fn gpus(wanted: usize) -> Option<MutexGuard<'static, ()>> {
    static GPUS: Mutex<()> = Mutex::new(());
    let found = Gpu::count();
    if found >= wanted {
        return Some(GPUS.lock().unwrap_or_else(PoisonError::into_inner));
    }
    let required = std::env::var("REQUIRE_GPUS").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    assert!(wanted > required, "REQUIRE_GPUS is {required}, and this needs {wanted} GPUs, found {found}");
    println!("skipped: needs {wanted} GPUs, found {found}");
    None
}

/// One rank's GPU, joined with the others'.
fn connect(world: &World) -> Device {
    connect_within(world, Duration::from_secs(30))
}

fn connect_within(world: &World, timeout: Duration) -> Device {
    let device = Device::Cuda(world.rank().0 as u32);
    let options = DeviceOptions { timeout: Some(timeout), ..DeviceOptions::default() };
    world.connect_device(device, options).unwrap();
    device
}

fn gpu_of(device: Device) -> &'static Gpu {
    let Device::Cuda(index) = device else { panic!("{device} is not a GPU") };
    Gpu::get(index).unwrap()
}

#[test]
fn the_contract_holds_between_gpus() {
    for n_ranks in [2, 3, 4] {
        let Some(_gpus) = gpus(n_ranks) else { return };
        for result in threads::run(n_ranks, |world| {
            let device = connect(&world);
            assert_eq!(world.tensor_group().transport(), "nccl");
            for len in [0, 1, 7, 1000, 40_001] {
                contract::check(&world, device, len, Sums::Rounded)?;
            }
            world.close()
        }) {
            result.unwrap();
        }
    }
}

#[test]
fn a_world_of_one_keeps_the_contract_on_its_gpu_without_nccl() {
    let Some(_gpus) = gpus(1) else { return };
    let world = World::single();
    world.connect_device(Device::Cuda(0), DeviceOptions::default()).unwrap();
    assert_eq!(world.tensor_group().transport(), "single");
    for len in [0, 1, 1000] {
        contract::check(&world, Device::Cuda(0), len, Sums::InRankOrder).unwrap();
    }
    let mut done = false;
    world.tensor_group().wait_until(|| Ok(std::mem::replace(&mut done, true))).unwrap();
}

/// Collectives that start together have the results of single ones, and are ordered with the work around them alike.
#[test]
fn collectives_that_start_together_are_as_single_ones() {
    let Some(_gpus) = gpus(2) else { return };
    threads::run(2, |world| {
        let device = connect(&world);
        let (group, rank, n) = (world.tensor_group(), world.rank().0, 4_000);
        let ones = Tensor::ones(&[n], DType::F32, device).unwrap();
        let mut buf = Tensor::zeros(&[4 * n], DType::F32, device).unwrap();
        let mut squares = Tensor::zeros(&[1], DType::F64, device).unwrap();
        for _ in 0..3 {
            for quarter in 0..4 {
                ops::copy(ones.view(), buf.view_mut().range(quarter * n, (quarter + 1) * n).unwrap())
                    .unwrap();
            }
            group
                .scope(|scope| {
                    let (a, rest) = buf.view_mut().split_at(n)?;
                    let (b, rest) = rest.split_at(n)?;
                    let (c, d) = rest.split_at(n)?;
                    scope.sum_squares_into(squares.view_mut());
                    scope.together(|scope| {
                        scope.all_reduce(ReduceOp::Sum, a)?;
                        scope.all_reduce_squared(ReduceOp::Sum, b, n - 1)?;
                        scope.reduce_scatter_squared(ReduceOp::Sum, c).map(|_| ())
                    })?;
                    scope.all_reduce_squared(ReduceOp::Max, d, 1)?;
                    Ok::<(), CommError>(())
                })
                .unwrap();
            let values = buf.to_vec::<f32>().unwrap();
            let own = 2 * n + rank * n / 2..2 * n + (rank + 1) * n / 2;
            assert!(values[..2 * n].iter().chain(&values[own]).all(|&value| value == 2.0));
            assert!(values[3 * n..].iter().all(|&value| value == 1.0));
            // Twos but one, a half of twos, and a one.
            assert_eq!(squares.to_vec::<f64>().unwrap(), [4.0 * (n - 1) as f64 + 2.0 * n as f64 + 1.0]);
        }
        let mut vectors =
            [0, 1].map(|root| Tensor::full(&[n], (rank * 2 + root) as f64, DType::F32, device).unwrap());
        group
            .together(|| {
                let mut pairs = vectors.iter_mut().enumerate();
                pairs.try_for_each(|(root, vector)| group.broadcast(Rank(root), vector.view_mut()))
            })
            .unwrap();
        for (root, vector) in vectors.iter().enumerate() {
            assert!(vector.to_vec::<f32>().unwrap().iter().all(|&value| value == (root * 2 + root) as f32));
        }
        world.close().unwrap();
    });
}

/// A failure among them ends the group as any other does.
#[test]
fn a_failure_between_collectives_that_start_together_is_told() {
    let Some(_gpus) = gpus(2) else { return };
    threads::run(2, |world| {
        let device = connect(&world);
        let group = world.tensor_group();
        let mut buf = Tensor::zeros(&[10], DType::F32, device).unwrap();
        let mut on_host = Tensor::zeros(&[10], DType::F32, Device::Cpu).unwrap();
        let result = group.together(|| {
            group.all_reduce(ReduceOp::Sum, buf.view_mut())?;
            group.all_reduce(ReduceOp::Sum, on_host.view_mut())
        });
        assert!(matches!(result, Err(CommError::WrongMemory { .. })), "{result:?}");
        // What had been entered before it was run on both ranks.
        group.all_reduce(ReduceOp::Sum, buf.view_mut()).unwrap();
        world.close().unwrap();
    });
}

#[test]
fn collectives_are_ordered_with_work_before_and_after_them() {
    let Some(_gpus) = gpus(2) else { return };
    threads::run(2, |world| {
        let device = connect(&world);
        let group = world.tensor_group();
        let n = 20_000;
        let ones = Tensor::ones(&[n], DType::F32, device).unwrap();
        let mut x = Tensor::zeros(&[n], DType::F32, device).unwrap();
        // Each round: 2 x + 2, by a copy in the compute stream, a collective, and a copy again.
        let mut buf = Tensor::zeros(&[n], DType::F32, device).unwrap();
        for round in 1..6 {
            ops::copy(x.view(), buf.view_mut()).unwrap();
            group.all_reduce(ReduceOp::Sum, buf.view_mut()).unwrap();
            ops::copy(buf.view(), x.view_mut()).unwrap();
            // The next round's copy into `buf` must wait for that of `x` out of it.
            ops::copy(ones.view(), buf.view_mut()).unwrap();
            group
                .scope(|scope| {
                    let (low, high) = buf.view_mut().split_at(n / 2)?;
                    scope.all_reduce(ReduceOp::Sum, high)?;
                    scope.all_reduce(ReduceOp::Max, low)?;
                    Ok::<(), CommError>(())
                })
                .unwrap();
            let sums = buf.to_vec::<f32>().unwrap();
            assert!(sums[..n / 2].iter().all(|&v| v == 1.0) && sums[n / 2..].iter().all(|&v| v == 2.0));
            let start = if round == 1 { 1.0 } else { x.to_vec::<f32>().unwrap()[0] };
            x = Tensor::full(&[n], f64::from(start), DType::F32, device).unwrap();
        }
    });
}

/// Two buckets, started in turn and waited for one by one.
fn reduce_buckets(world: &World, from: &Tensor, flat: &mut Tensor) -> Result<(), CommError> {
    let n = flat.numel();
    ops::copy(from.view(), flat.view_mut())?;
    world.tensor_group().scope(|scope| {
        let (low, high) = flat.view_mut().split_at(2 * n / 3)?;
        let (low, middle) = low.split_at(n / 3)?;
        // Two calls in one group of NCCL, and first: in a capture they are what brings its stream in.
        let (a, b) = middle.split_at(n / 6)?;
        scope.together(|scope| {
            scope.all_reduce(ReduceOp::Sum, a)?;
            scope.all_reduce(ReduceOp::Sum, b).map(|_| ())
        })?;
        let first = scope.all_reduce(ReduceOp::Sum, high)?;
        let second = scope.all_reduce(ReduceOp::Sum, low)?;
        scope.wait(first)?;
        scope.wait(second)
    })
}

#[test]
fn a_captured_scope_gives_the_same_bits_as_an_eager_one() {
    for n_ranks in [2, 4] {
        let Some(_gpus) = gpus(n_ranks) else { return };
        threads::run(n_ranks, |world| {
            let device = connect(&world);
            let n = 9_000;
            let random = |step: u64| {
                Tensor::randn(&[n], DType::F32, device, step * 10 + world.rank().0 as u64).unwrap()
            };
            let mut eager = Vec::new();
            let mut flat = Tensor::zeros(&[n], DType::F32, device).unwrap();
            for step in 0..3 {
                reduce_buckets(&world, &random(step), &mut flat).unwrap();
                eager.push(flat.to_vec::<f32>().unwrap());
            }
            // All memory is there before the capture begins.
            let mut from = random(7);
            let gpu = gpu_of(device);
            let mut graph = Graph::capture(gpu, || reduce_buckets(&world, &from, &mut flat)).unwrap();
            for (step, want) in eager.iter().enumerate() {
                ops::copy(random(step as u64).view(), from.view_mut()).unwrap();
                graph.launch().unwrap();
                assert!(flat.to_vec::<f32>().unwrap() == *want, "step {step}");
            }
            // And an eager one after it, on streams that a capture used.
            reduce_buckets(&world, &random(0), &mut flat).unwrap();
            assert!(flat.to_vec::<f32>().unwrap() == eager[0]);
            drop(graph);
            world.close().unwrap();
        });
    }
}

#[test]
fn many_tickets_can_be_waited_for_in_any_order() {
    let Some(_gpus) = gpus(2) else { return };
    threads::run(2, |world| {
        let device = connect(&world);
        let mut bufs: Vec<_> =
            (0..300).map(|i| Tensor::full(&[3], f64::from(i), DType::F32, device).unwrap()).collect();
        world
            .tensor_group()
            .scope(|scope| {
                let tickets: Result<Vec<_>, _> =
                    bufs.iter_mut().map(|buf| scope.all_reduce(ReduceOp::Sum, buf.view_mut())).collect();
                let tickets = tickets?;
                for &ticket in [&tickets[250], &tickets[3], &tickets[299]] {
                    scope.wait(ticket)?;
                }
                Ok::<(), CommError>(())
            })
            .unwrap();
        for (i, buf) in bufs.iter().enumerate() {
            assert_eq!(buf.to_vec::<f32>().unwrap(), [2.0 * i as f32; 3]);
        }
    });
}

#[test]
fn tensors_are_sent_from_rank_to_rank() {
    let Some(_gpus) = gpus(3) else { return };
    threads::run(3, |world| {
        let device = connect(&world);
        let group = world.tensor_group();
        let mut buf = Tensor::full(&[5000], world.rank().0 as f64, DType::F64, device).unwrap();
        match world.rank().0 {
            0 => group.send(Rank(2), buf.view()).unwrap(),
            2 => {
                group.receive(Rank(0), buf.view_mut()).unwrap();
                assert_eq!(buf.to_vec::<f64>().unwrap(), [0.0; 5000]);
            }
            _ => {}
        }
        for rank in [world.rank(), Rank(3)] {
            let error = group.send(rank, buf.view()).unwrap_err();
            assert!(matches!(error, CommError::NoSuchRank { .. } | CommError::OwnRank { .. }), "{error}");
        }
        let error = world.group().send(Rank((world.rank().0 + 1) % 3), buf.view()).unwrap_err();
        assert!(matches!(error, CommError::WrongMemory { .. }), "{error}");
        world.group().barrier().unwrap();
    });
}

#[test]
fn a_tensor_elsewhere_is_a_clear_error() {
    let Some(_gpus) = gpus(2) else { return };
    threads::run(2, |world| {
        let device = connect(&world);
        let mut on_gpu = Tensor::zeros(&[4], DType::F32, device).unwrap();
        let mut on_host = Tensor::zeros(&[4], DType::F32, Device::Cpu).unwrap();
        let error = world.group().all_reduce(ReduceOp::Sum, on_gpu.view_mut()).unwrap_err();
        let text = ddp_kernels::hint::with_hint(&error);
        assert!(text.contains("cannot be exchanged by threads") && text.contains("tensor_group"), "{text}");
        let error = world.tensor_group().all_reduce(ReduceOp::Sum, on_host.view_mut()).unwrap_err();
        assert!(error.to_string().contains("cannot be exchanged by nccl"), "{error}");
        let two = on_host.view().range(0, 2).unwrap();
        let error = world.tensor_group().all_gather(two, on_gpu.view_mut()).unwrap_err();
        assert!(matches!(error, CommError::Kernel(KernelError::DeviceMismatch { .. })), "{error}");
        assert!(matches!(world.tensor_group().all_gather_bytes(&[1]), Err(CommError::WrongMemory { .. })));
        // None of these has left the ranks out of step.
        world.tensor_group().all_reduce(ReduceOp::Sum, on_gpu.view_mut()).unwrap();
        world.close().unwrap();
    });
}

#[test]
fn different_lengths_are_found_by_the_hosts_group() {
    let Some(_gpus) = gpus(2) else { return };
    let errors = threads::run(2, |world| {
        connect(&world);
        world.group().agree_lengths(&[7, 8 + world.rank().0]).unwrap_err()
    });
    assert_eq!(errors[0], CommError::CountMismatch { bucket: 1, rank: 1, got: 9, expected: 8 });
}

#[test]
fn a_gpu_taken_twice_names_both_ranks() {
    let Some(_gpus) = gpus(2) else { return };
    let errors = threads::run(3, |world| {
        let device = Device::Cuda(world.rank().0 as u32 % 2);
        world.connect_device(device, DeviceOptions::default()).unwrap_err()
    });
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("ranks 0 and 2 both use the GPU") && text.contains("GPU-"), "{text}");
        assert_eq!(error.reporter(), Reporter::RankZero);
    }
}

#[test]
fn a_mix_of_cpu_and_gpu_is_an_error_of_all() {
    let Some(_gpus) = gpus(1) else { return };
    let errors = threads::run(2, |world| {
        let device = if world.rank().0 == 0 { Device::Cuda(0) } else { Device::Cpu };
        world.connect_device(device, DeviceOptions::default()).unwrap_err()
    });
    for error in errors {
        let CommError::Disagreement { key, rank: 1, got, expected, .. } = &error else { panic!("{error}") };
        assert_eq!((&key[..], &got[..], &expected[..]), ("kind of device", "cpu", "cuda"));
    }
}

#[test]
fn devices_are_joined_once() {
    let Some(_gpus) = gpus(2) else { return };
    threads::run(2, |world| {
        let device = connect(&world);
        let again = world.connect_device(device, DeviceOptions::default());
        assert_eq!(again, Err(CommError::AlreadyConnected));
    });
}

#[test]
fn copies_between_ranks_take_the_shortest_way() {
    let Some(_gpus) = gpus(2) else { return };
    threads::run(3, |world| {
        let rank = world.rank().0;
        // Rank 2 shares the GPU of rank 0: nothing is joined here.
        let device = Device::Cuda(rank as u32 % 2);
        let copy = |from: usize, to: usize, source: Device, target: Device| {
            let values: Vec<i64> = (0..5000).map(|i| i + from as i64).collect();
            let there = Tensor::from_slice(&values, &[5000], source).unwrap();
            let mut here = Tensor::zeros(&[50, 100], DType::I64, target).unwrap();
            let given = (rank == from).then(|| there.view());
            let taken = (rank == to).then(|| here.view_mut());
            let path = peer::copy(&world, Rank(from), Rank(to), given, taken).unwrap();
            if rank == to {
                assert!(here.to_vec::<i64>().unwrap() == values, "{path}");
            }
            path
        };
        assert!(matches!(copy(0, 1, device, device), PeerPath::SameProcess(_)));
        assert!(matches!(copy(0, 2, device, device), PeerPath::SameProcess(_)));
        assert_eq!(copy(1, 1, device, device), PeerPath::SameRank);
        assert_eq!(copy(1, 0, Device::Cpu, device), PeerPath::Host);
        assert_eq!(copy(2, 1, device, Device::Cpu), PeerPath::Host);
        let short = Tensor::zeros(&[3], DType::F32, Device::Cpu).unwrap();
        let mut long = Tensor::zeros(&[4], DType::F32, device).unwrap();
        let error =
            peer::copy(&world, Rank(0), Rank(1), Some(short.view()), Some(long.view_mut())).unwrap_err();
        let want = "from rank 0 to rank 1: the source is 3 f32, the target is 4 f32";
        assert!(error.to_string().contains(want), "{error}");
        let error = peer::copy(&world, Rank(0), Rank(3), None, None).unwrap_err();
        assert!(matches!(error, CommError::NoSuchRank { rank: 3, .. }), "{error}");
    });
}

/// A step's outcome as the trainer reads it: a collective, a copy to the host, a wait.
fn read_sum(world: &World, device: Device) -> Result<f32, CommError> {
    let mut buf = Tensor::ones(&[1000], DType::F32, device)?;
    let mut download = Download::new(gpu_of(device), 4)?;
    world.tensor_group().all_reduce(ReduceOp::Sum, buf.view_mut())?;
    download.start(buf.view().range(0, 1)?)?;
    world.tensor_group().wait_until(|| download.is_there())?;
    Ok(download.wait::<f32>()?[0])
}

#[test]
fn a_result_is_waited_for() {
    let Some(_gpus) = gpus(2) else { return };
    let sums = threads::run(2, |world| {
        let device = connect(&world);
        read_sum(&world, device).unwrap()
    });
    assert_eq!(sums, [2.0, 2.0]);
}

#[test]
fn a_rank_that_never_comes_is_a_timeout_and_no_hang() {
    let Some(_gpus) = gpus(2) else { return };
    let start = Instant::now();
    threads::run(2, |world| {
        let device = connect_within(&world, Duration::from_secs(2));
        read_sum(&world, device).unwrap();
        if world.rank().0 == 1 {
            // Alive, but elsewhere, until the other has given up.
            world.group().barrier().unwrap();
            return;
        }
        let error = read_sum(&world, device).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("rank 0 on cuda:0") && text.contains("waited 2 s"), "{text}");
        assert!(text.contains("number 2, is all_reduce(sum) of 1000 f32"), "{text}");
        assert_eq!(error.reporter(), Reporter::ThisRank);
        // Nothing works afterward, and it says why.
        assert_eq!(read_sum(&world, device), Err(error));
        world.group().barrier().unwrap();
    });
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn a_rank_that_panics_in_a_scope_does_not_leave_the_others_waiting() {
    let Some(_gpus) = gpus(2) else { return };
    let errors = Mutex::new(Vec::new());
    let panic = std::panic::catch_unwind(|| {
        threads::run(2, |world| {
            let device = connect(&world);
            let mut buf = Tensor::ones(&[1000], DType::F32, device).unwrap();
            if world.rank().0 == 1 {
                let _ = world.tensor_group().scope(|scope| {
                    scope.all_reduce(ReduceOp::Sum, buf.view_mut())?;
                    assert!(scope.progress().is_err(), "disk on fire");
                    Ok::<(), CommError>(())
                });
            }
            // The first may still succeed: rank 1 had started its own.
            let result = read_sum(&world, device).and_then(|_| read_sum(&world, device));
            errors.lock().unwrap().push(result.unwrap_err());
        })
    });
    assert_eq!(*panic.unwrap_err().downcast::<&str>().unwrap(), "disk on fire");
    let errors = errors.into_inner().unwrap();
    assert_eq!(errors.len(), 1);
    assert!(matches!(errors[0], CommError::Nccl { code: "ncclRemoteError", .. }), "{}", errors[0]);
    assert_eq!(errors[0].reporter(), Reporter::OtherRank);
}

#[test]
fn an_error_of_the_polled_work_comes_through() {
    let Some(_gpus) = gpus(2) else { return };
    threads::run(2, |world| {
        connect(&world);
        let wrong = KernelError::UnknownDevice { name: "x".into() };
        if world.rank().0 == 1 {
            let error = world.tensor_group().wait_until(|| Err(wrong.clone())).unwrap_err();
            assert_eq!(error, CommError::Kernel(wrong));
        } else {
            // The others learn of it while they wait.
            let error = world.tensor_group().wait_until(|| Ok(false)).unwrap_err();
            assert!(matches!(error, CommError::Nccl { code: "ncclRemoteError", .. }), "{error}");
        }
    });
}

#[test]
fn one_rank_reports_the_outcome_of_connecting() {
    let Some(_gpus) = gpus(2) else { return };
    let reporters = threads::run(3, |world| {
        let device = Device::Cuda(if world.rank().0 == 1 { 99 } else { 0 });
        let connected = world.connect_device(device, DeviceOptions::default());
        match world.collective_result(connected).unwrap_err() {
            Failure::Here { error, .. } => error.reporter(),
            other => panic!("{other}"),
        }
    });
    assert_eq!(reporters, [Reporter::OtherRank, Reporter::ThisRank, Reporter::OtherRank]);
}

#[test]
fn host_groups_wait_too() {
    let n_asked = RefCell::new(0);
    World::single()
        .group()
        .wait_until(|| {
            *n_asked.borrow_mut() += 1;
            Ok(*n_asked.borrow() == 5)
        })
        .unwrap();
    assert_eq!(n_asked.into_inner(), 5);
    let mut values = [1f32; 3];
    let world = World::single();
    world.group().all_reduce(ReduceOp::Sum, TensorMut::from_slice(&mut values, &[3]).unwrap()).unwrap();
}

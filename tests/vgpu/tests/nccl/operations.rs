//! Results of each operation, over threads and over processes, in groups and in graphs.
use crate::libs::Body;
use crate::rank::*;
use cudarc::driver::sys::{CUgraphInstantiate_flags as InstantiateFlags, CUstreamCaptureMode as CaptureMode};
use cudarc::driver::{CudaSlice, CudaStream};
use cudarc::nccl::sys::{self, ncclDataType_t as Dtype, ncclRedOp_t as Op, ncclResult_t as Code};
use half::{bf16, f16};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// Each operation, in place and not, with values that differ between ranks; the same body for threads and processes.
fn every_operation(rank: &Rank) {
    let (r, n) = (rank.rank, rank.n);
    let stream = rank.stream.cu_stream().cast();
    let own = |i: usize, r: usize| (i * 7 + r * 31) as f32 * 0.25;
    let len = 12 * n;
    let input: Vec<f32> = (0..len).map(|i| own(i, r)).collect();
    let total = |i: usize| (0..n).map(|r| own(i, r)).sum::<f32>();
    let nan = vec![f32::NAN; len];
    let f32s = Dtype::ncclFloat32;
    let read = |slice: &CudaSlice<f32>| rank.stream.clone_dtoh(slice).unwrap();

    let (send, recv) = (rank.upload(&input), rank.upload(&nan));
    assert_eq!(rank.all_reduce(rank.address(&send), rank.address(&recv), len, f32s, Op::ncclSum), OK);
    assert_eq!(read(&recv), (0..len).map(total).collect::<Vec<_>>());
    assert_eq!(read(&send), input);
    assert_eq!(rank.sum(&send), OK);
    assert_eq!(read(&send), read(&recv));
    let send = rank.upload(&input);
    for (op, want) in [
        (Op::ncclMax, own(5, n - 1)),
        (Op::ncclMin, own(5, 0)),
        (Op::ncclProd, (0..n).map(|r| own(5, r)).product()),
        (Op::ncclAvg, total(5) / n as f32),
    ] {
        assert_eq!(rank.all_reduce(rank.address(&send), rank.address(&recv), len, f32s, op), OK);
        let got = read(&recv)[5];
        assert!((got - want).abs() <= 1e-6 * want.abs(), "{op:?}: {got}, expected {want}");
    }

    let root = (n - 1) as i32;
    let recv = rank.upload(&nan);
    let (from, to) = (rank.address(&send) as *const c_void, rank.address(&recv) as *mut c_void);
    // SAFETY: the library checks the addresses.
    assert_eq!(unsafe { sys::ncclReduce(from, to, len, f32s, Op::ncclSum, root, rank.comm, stream) }, OK);
    if r as i32 == root {
        assert_eq!(read(&recv), (0..len).map(total).collect::<Vec<_>>());
    } else {
        assert!(read(&recv).iter().all(|x| x.is_nan()), "only the root gets a result");
    }
    // SAFETY: as above.
    assert_eq!(unsafe { sys::ncclBroadcast(from, to, len, f32s, root, rank.comm, stream) }, OK);
    assert_eq!(read(&recv), (0..len).map(|i| own(i, n - 1)).collect::<Vec<_>>());

    let part = len / n;
    // SAFETY: as above.
    assert_eq!(unsafe { sys::ncclReduceScatter(from, to, part, f32s, Op::ncclSum, rank.comm, stream) }, OK);
    assert_eq!(read(&recv)[..part], (r * part..(r + 1) * part).map(total).collect::<Vec<_>>());
    // SAFETY: as above.
    assert_eq!(unsafe { sys::ncclAllGather(from, to, part, f32s, rank.comm, stream) }, OK);
    assert_eq!(read(&recv), (0..len).map(|i| own(i % part, i / part)).collect::<Vec<_>>());

    // In place: the own part of the long buffer.
    let both = rank.upload(&input);
    let (whole, mine) = (rank.address(&both), rank.address(&both) + (r * part * 4) as u64);
    // SAFETY: as above.
    let code =
        unsafe { sys::ncclReduceScatter(whole as _, mine as _, part, f32s, Op::ncclSum, rank.comm, stream) };
    assert_eq!(code, OK);
    // SAFETY: as above.
    assert_eq!(unsafe { sys::ncclAllGather(mine as _, whole as _, part, f32s, rank.comm, stream) }, OK);
    assert_eq!(read(&both), (0..len).map(total).collect::<Vec<_>>());

    // A ring of sends and receives in one group.
    let (next, before) = (((r + 1) % n) as i32, (r + n - 1) % n);
    let code = group(|| {
        // SAFETY: as above.
        assert_eq!(unsafe { sys::ncclSend(from, len, f32s, next, rank.comm, stream) }, OK);
        // SAFETY: as above.
        assert_eq!(unsafe { sys::ncclRecv(to, len, f32s, before as i32, rank.comm, stream) }, OK);
    });
    assert_eq!(code, OK);
    assert_eq!(read(&recv), (0..len).map(|i| own(i, before)).collect::<Vec<_>>());

    every_type(rank);

    let (mut n_ranks, mut own_rank, mut device) = (0, 0, 0);
    // SAFETY: the pointer is good.
    assert_eq!(unsafe { sys::ncclCommCount(rank.comm, &mut n_ranks) }, OK);
    // SAFETY: the pointer is good.
    assert_eq!(unsafe { sys::ncclCommUserRank(rank.comm, &mut own_rank) }, OK);
    // SAFETY: the pointer is good.
    assert_eq!(unsafe { sys::ncclCommCuDevice(rank.comm, &mut device) }, OK);
    assert_eq!((n_ranks, own_rank, device), (n as i32, r as i32, r as i32));
    assert_eq!(rank.status(), OK);
    rank.destroy();
}

fn every_type(rank: &Rank) {
    let n = rank.n;
    macro_rules! check {
        ($($dtype:ident $value:expr, $sum:expr;)*) => { $({
            let buffer = rank.upload(&[$value(rank.rank + 1)]);
            let address = rank.address(&buffer);
            assert_eq!(rank.all_reduce(address, address, 1, Dtype::$dtype, Op::ncclSum), OK);
            let got = rank.stream.clone_dtoh(&buffer).unwrap()[0];
            assert_eq!(got, $sum, "{:?}", Dtype::$dtype);
        })* };
    }
    let sum = n * (n + 1) / 2;
    check! {
        ncclInt8 |x| x as i8, sum as i8;
        ncclUint8 |x| x as u8, sum as u8;
        ncclInt32 |x| -(x as i32), -(sum as i32);
        ncclUint32 |x| x as u32 * 1_000_000_000, (sum as u32).wrapping_mul(1_000_000_000);
        ncclInt64 |x| -(x as i64) << 40, -(sum as i64) << 40;
        ncclUint64 |x| (x as u64) << 40, (sum as u64) << 40;
        ncclFloat64 |x| x as f64 / 8.0, sum as f64 / 8.0;
        ncclFloat16 |x: usize| f16::from_f32(x as f32 / 8.0).to_bits(), f16::from_f32(sum as f32 / 8.0).to_bits();
        ncclBfloat16 |x: usize| bf16::from_f32(x as f32 / 8.0).to_bits(), bf16::from_f32(sum as f32 / 8.0).to_bits();
    }
    // 1 + n-1 times half a unit in the last place: rounding after each addition would lose every one of them.
    let half_unit = 2f32.powi(-8);
    let buffer = rank.upload(&[bf16::from_f32(if rank.rank == 0 { 1.0 } else { half_unit }).to_bits()]);
    let address = rank.address(&buffer);
    assert_eq!(rank.all_reduce(address, address, 1, Dtype::ncclBfloat16, Op::ncclSum), OK);
    let got = bf16::from_bits(rank.stream.clone_dtoh(&buffer).unwrap()[0]);
    assert_eq!(got, bf16::from_f32(1.0 + (n - 1) as f32 * half_unit));
}

#[test]
fn every_operation_over_threads() {
    let body = || {
        for n in 1..=4 {
            ranks(n, every_operation);
        }
    };
    Body::here().devices(4).run(body).is_clean();
    Body::here().devices(4).env("VGPU_FUZZ", 3).env("VGPU_CHECK", 1).run(body).is_clean();
}

#[test]
fn every_operation_over_processes() {
    let body = || processes(2, |id, rank| every_operation(&join(id, 2, rank, rank).unwrap()));
    for _ in 0..3 {
        Body::here().run(body).is_clean();
    }
}

#[test]
fn one_thread_runs_many_ranks() {
    let body = || {
        let streams = [stream(0), stream(1)];
        let mut comms = [std::ptr::null_mut(); 2];
        // SAFETY: the pointers are good.
        assert_eq!(unsafe { sys::ncclCommInitAll(comms.as_mut_ptr(), 2, std::ptr::null()) }, OK);
        run_both(&streams, comms);
        // The same by single initializations in a group.
        let id = unique_id();
        let code = group(|| {
            for (rank, comm) in (0..).zip(&mut comms) {
                streams[rank].context().bind_to_thread().unwrap();
                // SAFETY: the pointers are good.
                assert_eq!(unsafe { sys::ncclCommInitRank(comm, 2, id, rank as i32) }, OK);
            }
        });
        assert_eq!(code, OK);
        run_both(&streams, comms);
    };
    Body::here().run(body).is_clean();
}

fn run_both(streams: &[Arc<CudaStream>; 2], comms: [sys::ncclComm_t; 2]) {
    let both: Vec<Rank> =
        (0..2).map(|rank| Rank { rank, n: 2, comm: comms[rank], stream: streams[rank].clone() }).collect();
    let buffers: Vec<_> = both.iter().map(|rank| rank.upload(&[rank.rank as f32 + 1.0; 5])).collect();
    let code = group(|| {
        for (rank, buffer) in both.iter().zip(&buffers) {
            assert_eq!(rank.sum(buffer), OK);
        }
    });
    assert_eq!(code, OK);
    for (rank, buffer) in both.iter().zip(&buffers) {
        assert_eq!(rank.stream.clone_dtoh(buffer).unwrap(), [3.0; 5]);
    }
    both.iter().for_each(Rank::destroy);
}

#[test]
fn collectives_in_a_graph_are_numbered_at_each_launch() {
    let body = || {
        let graph_stays = std::env::var_os("VGPU_TEST_GRAPH_STAYS").is_some();
        ranks(2, |rank| {
            let (x, y) = (rank.upload(&[1f32; 8]), rank.upload(&[rank.rank as f32; 8]));
            assert_eq!(rank.sum(&x), OK);
            rank.stream.synchronize().unwrap();
            rank.stream.begin_capture(CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
            assert_eq!(rank.sum(&x), OK);
            let code = group(|| {
                assert_eq!(rank.sum(&y), OK);
                assert_eq!(rank.sum(&x), OK);
            });
            assert_eq!(code, OK);
            let flags = InstantiateFlags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
            let graph = rank.stream.end_capture(flags).unwrap().unwrap();
            assert_eq!(rank.stream.clone_dtoh(&x).unwrap(), [2.0; 8], "capturing runs nothing");
            for _ in 0..3 {
                graph.launch().unwrap();
                // In between a collective that is not in the graph.
                assert_eq!(rank.sum(&y), OK);
            }
            // x doubles twice per launch; y, which is the same on both after its first sum, doubles twice per turn.
            assert_eq!(rank.stream.clone_dtoh(&x).unwrap(), [2.0 * 64.0; 8]);
            assert_eq!(rank.stream.clone_dtoh(&y).unwrap(), [32.0; 8]);
            if graph_stays {
                // SAFETY: the communicator lives, and nobody uses it after this.
                assert_eq!(unsafe { sys::ncclCommDestroy(rank.comm) }, Code::ncclInternalError);
            } else {
                drop(graph);
                rank.destroy();
            }
        });
    };
    Body::here().run(body).is_clean();
    Body::here().env("VGPU_FUZZ", 5).env("VGPU_CHECK", 1).run(body).is_clean();
    let stays = Body::here().timeout_s(1).env("VGPU_TEST_GRAPH_STAYS", 1).run(body);
    stays.has_finding("for graphs with captured operations that were not destroyed");
}

#[test]
fn a_send_waits_for_its_receiver() {
    let body = || {
        ranks(2, |rank| {
            let buffer = rank.upload(&[rank.rank as f32; 8]);
            let (at, stream) = (rank.address(&buffer), rank.stream.cu_stream().cast());
            if rank.rank == 0 {
                // SAFETY: the library checks the addresses.
                let code = unsafe { sys::ncclSend(at as _, 8, Dtype::ncclFloat32, 1, rank.comm, stream) };
                assert_eq!(code, OK);
                std::thread::sleep(Duration::from_millis(50));
                assert!(rank.is_busy(), "nobody has received yet");
            } else {
                std::thread::sleep(Duration::from_millis(150));
                // SAFETY: the library checks the addresses.
                let code = unsafe { sys::ncclRecv(at as _, 8, Dtype::ncclFloat32, 0, rank.comm, stream) };
                assert_eq!(code, OK);
                assert_eq!(rank.stream.clone_dtoh(&buffer).unwrap(), [0.0; 8]);
            }
            rank.stream.synchronize().unwrap();
            rank.destroy();
        });
    };
    Body::here().run(body).is_clean();
}

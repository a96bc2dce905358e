//! Tests of findings: ranks that differ, wrong arguments, missing events, shared GPUs, forged ids.
use crate::libs::{Body, done};
use crate::rank::*;
use cudarc::driver::CudaStream;
use cudarc::nccl::sys::{self, ncclDataType_t as Dtype, ncclRedOp_t as Op, ncclResult_t as Code};
use std::sync::Arc;

#[test]
fn different_calls_are_found() {
    let body = || {
        let what = std::env::var("VGPU_TEST_MISTAKE").unwrap();
        let failures = ranks(2, |rank| {
            let buffer = rank.upload(&[1f32; 64]);
            let address = rank.address(&buffer);
            let (f32s, stream) = (Dtype::ncclFloat32, rank.stream.cu_stream().cast());
            let wrong = rank.rank == 1;
            let code = match what.as_str() {
                "count" => rank.all_reduce(address, address, if wrong { 63 } else { 64 }, f32s, Op::ncclSum),
                "type" => {
                    let dtype = if wrong { Dtype::ncclInt32 } else { f32s };
                    rank.all_reduce(address, address, 64, dtype, Op::ncclSum)
                }
                "reduction" => {
                    let op = if wrong { Op::ncclMax } else { Op::ncclSum };
                    rank.all_reduce(address, address, 64, f32s, op)
                }
                "root" => {
                    let root = rank.rank as i32;
                    // SAFETY: the library checks the addresses.
                    unsafe {
                        sys::ncclBroadcast(address as _, address as _, 64, f32s, root, rank.comm, stream)
                    }
                }
                "kind" if wrong => {
                    // SAFETY: the library checks the addresses.
                    unsafe { sys::ncclBroadcast(address as _, address as _, 64, f32s, 0, rank.comm, stream) }
                }
                "kind" => rank.all_reduce(address, address, 64, f32s, Op::ncclSum),
                "send" if wrong => {
                    // SAFETY: the library checks the addresses.
                    unsafe { sys::ncclRecv(address as _, 63, f32s, 0, rank.comm, stream) }
                }
                "send" => {
                    // SAFETY: the library checks the addresses.
                    unsafe { sys::ncclSend(address as _, 64, f32s, 1, rank.comm, stream) }
                }
                "left" if wrong => {
                    rank.destroy();
                    return true;
                }
                "left" => rank.all_reduce(address, address, 64, f32s, Op::ncclSum),
                other => panic!("{other}"),
            };
            assert_eq!(code, OK);
            let failed = rank.stream.synchronize().is_err();
            assert_ne!(rank.status(), OK);
            failed
        });
        assert_eq!(failures, [true, true]);
        done();
    };
    for (what, words) in [
        (
            "count",
            "mismatch: rank 0 calls ncclAllReduce of 64 Float32, Sum (collective 1), \
             rank 1 calls ncclAllReduce of 63 Float32, Sum (collective 1)",
        ),
        ("type", "rank 1 calls ncclAllReduce of 64 Int32"),
        ("reduction", "Float32, Max (collective 1)"),
        (
            "root",
            "rank 0 calls ncclBroadcast of 64 Float32, root 0 (collective 1), rank 1 calls ncclBroadcast of 64 Float32, root 1",
        ),
        ("kind", "rank 0 calls ncclAllReduce of 64 Float32, Sum (collective 1), rank 1 calls ncclBroadcast"),
        (
            "send",
            "rank 0 calls ncclSend of 64 Float32 to rank 1, rank 1 calls ncclRecv of 63 Float32 from rank 0",
        ),
        ("left", "but rank 1 has destroyed its communicator and will never call it"),
    ] {
        Body::here().env("VGPU_TEST_MISTAKE", what).run(body).has_finding(words);
    }
}

#[test]
fn wrong_arguments_are_found() {
    let body = || {
        let what = std::env::var("VGPU_TEST_MISTAKE").unwrap();
        ranks(2, |rank| {
            let buffer = rank.upload(&[1f32; 64]);
            let address = rank.address(&buffer);
            let (f32s, sum, stream) = (Dtype::ncclFloat32, Op::ncclSum, rank.stream.cu_stream().cast());
            match what.as_str() {
                "overlap" => {
                    assert_eq!(
                        rank.all_reduce(address, address + 4, 60, f32s, sum),
                        Code::ncclInvalidArgument
                    );
                }
                "gather overlap" => {
                    // In place is the own part; the start of the buffer is that of rank 0 only.
                    // SAFETY: the library checks the addresses.
                    let code = unsafe {
                        sys::ncclAllGather(address as _, address as _, 32, f32s, rank.comm, stream)
                    };
                    let overlaps = rank.rank == 1;
                    assert_eq!(code, if overlaps { Code::ncclInvalidArgument } else { OK });
                }
                "null" => assert_eq!(rank.all_reduce(0, address, 64, f32s, sum), Code::ncclInvalidArgument),
                "root" => {
                    // SAFETY: the library checks the addresses.
                    let code = unsafe {
                        sys::ncclBroadcast(address as _, address as _, 64, f32s, 2, rank.comm, stream)
                    };
                    assert_eq!(code, Code::ncclInvalidArgument);
                }
                "overrun" => {
                    assert_eq!(rank.all_reduce(address, address, 65, f32s, sum), OK);
                    assert!(rank.stream.synchronize().is_err());
                }
                "destroyed" => {
                    rank.destroy();
                    assert_eq!(rank.sum(&buffer), Code::ncclInvalidArgument);
                }
                "stream of another device" => {
                    let other = stream_of_other(rank);
                    // SAFETY: the library checks the addresses.
                    let code = unsafe {
                        sys::ncclAllReduce(
                            address as _,
                            address as _,
                            64,
                            f32s,
                            sum,
                            rank.comm,
                            other.cu_stream().cast(),
                        )
                    };
                    assert_eq!(code, Code::ncclInvalidUsage);
                }
                other => panic!("{other}"),
            }
        });
        done();
    };
    for (what, words) in [
        (
            "overlap",
            "ncclAllReduce on rank 0: sendbuff and recvbuff overlap, but not as an operation in place",
        ),
        ("gather overlap", "ncclAllGather on rank 1: sendbuff and recvbuff overlap"),
        ("null", "sendbuff argument is NULL"),
        ("root", "root or peer 2 of 2 ranks"),
        ("overrun", "260 bytes at offset 0 of allocation"),
        ("destroyed", "a handle of a communicator is one that was destroyed"),
        ("stream of another device", "a stream of device 1, the communicator is on 0"),
    ] {
        Body::here().env("VGPU_TEST_MISTAKE", what).run(body).has_finding(words);
    }
}

fn stream_of_other(rank: &Rank) -> Arc<CudaStream> {
    let other = stream(1 - rank.rank);
    rank.stream.context().bind_to_thread().unwrap();
    other
}

#[test]
fn a_collective_on_a_stream_without_an_event_is_found() {
    let body = || {
        ranks(2, |rank| {
            let compute = rank.stream.context().new_stream().unwrap();
            let mut buffer = rank.upload(&vec![1f32; 1 << 16]);
            rank.stream.synchronize().unwrap();
            compute.memset_zeros(&mut buffer).unwrap();
            if std::env::var_os("VGPU_TEST_ORDERED").is_some() {
                rank.stream.wait(&compute.record_event(None).unwrap()).unwrap();
            }
            assert_eq!(rank.sum(&buffer), OK);
            let _ = rank.stream.synchronize();
            let _ = compute.synchronize();
        });
        done();
    };
    Body::here().env("VGPU_CHECK", 1).env("VGPU_TEST_ORDERED", 1).run(body).is_clean();
    Body::here().env("VGPU_CHECK", 1).run(body).has_finding("race between streams: ");
}

#[test]
fn ranks_on_one_gpu_are_refused() {
    let body = || {
        let shared = std::env::var_os("NCCL_MULTI_RANK_GPU_ENABLE").is_some();
        let id = unique_id();
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..2).map(|rank| scope.spawn(move || join(id, 2, rank, 0).map(|r| r.destroy()))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        if shared {
            assert_eq!(results, [Ok(()), Ok(())]);
        } else {
            assert_eq!(results, [Err(Code::ncclInvalidUsage); 2]);
            let text = last_error();
            assert!(
                text.contains("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000"),
                "{text}"
            );
        }
    };
    Body::here().run(body).is_clean();
    Body::here().env("NCCL_MULTI_RANK_GPU_ENABLE", 1).run(body).is_clean();
}

#[test]
fn ranks_on_hosts_of_their_own_may_have_the_same_device() {
    let body = || {
        processes(2, |id, rank| {
            // SAFETY: no other thread of this process reads the environment now.
            unsafe { std::env::set_var("NCCL_HOSTID", format!("host{rank}")) };
            join(id, 2, rank, 0).unwrap().destroy();
        });
    };
    Body::here().run(body).is_clean();
}

#[test]
fn a_stranger_is_not_let_in() {
    let body = || {
        let id = unique_id();
        let mut forged = id;
        forged.internal[0] ^= 1;
        std::thread::scope(|scope| {
            let stranger = scope.spawn(move || join(forged, 1, 0, 0).map(|_| ()));
            assert_eq!(stranger.join().unwrap(), Err(Code::ncclSystemError), "{}", last_error());
            let good = scope.spawn(move || join(id, 1, 0, 0).map(|rank| rank.destroy()));
            assert_eq!(good.join().unwrap(), Ok(()));
        });
        let nothing = sys::ncclUniqueId { internal: [0; 128] };
        assert_eq!(join(nothing, 1, 0, 0).map(|_| ()), Err(Code::ncclInvalidArgument));
    };
    Body::here().run(body).is_clean();
}

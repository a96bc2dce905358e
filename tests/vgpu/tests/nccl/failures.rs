//! Ranks that die, abort, hang or fail on request, and communicators that do not wait.
use crate::libs::{Body, done};
use crate::rank::*;
use cudarc::driver::{CudaSlice, sys as driver};
use cudarc::nccl::sys::{self, ncclResult_t as Code};
use std::sync::Barrier;
use std::time::{Duration, Instant};

#[test]
fn the_process_of_the_hub_may_end_first() {
    let body = || {
        processes(2, |id, rank| {
            let rank = join(id, 2, rank, rank).unwrap();
            let buffer = rank.upload(&vec![1f32; 4 << 20]);
            assert_eq!(rank.sum(&buffer), OK);
            if rank.rank == 1 {
                // Long after rank 0 has what it wants and wants to go.
                std::thread::sleep(Duration::from_millis(300));
                assert_eq!(rank.status(), OK);
                let path = std::env::var("VGPU_TEST_WITNESS").unwrap();
                let sum = rank.stream.clone_dtoh(&buffer).unwrap()[4_000_000];
                rank.destroy();
                std::fs::write(path, sum.to_string()).unwrap();
            } else {
                rank.stream.synchronize().unwrap();
                rank.destroy();
            }
        });
    };
    let witness = std::env::temp_dir().join(format!("vgpu-nccl-witness-{}", std::process::id()));
    let run = Body::here().env("VGPU_TEST_LEAVE", 1).env("VGPU_TEST_WITNESS", witness.display()).run(body);
    run.is_clean();
    let end = Instant::now() + Duration::from_secs(5);
    while !witness.exists() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(20));
    let sum = std::fs::read_to_string(&witness);
    let _ = std::fs::remove_file(&witness);
    assert_eq!(sum.ok().as_deref(), Some("2"), "{}", run.output);
}

#[test]
fn an_aborting_rank_is_seen_and_releases_the_others_only_by_their_abort() {
    let body = || {
        let called = Barrier::new(2);
        ranks(2, |rank| {
            let buffer = rank.upload(&[1f32; 64]);
            assert_eq!(rank.sum(&buffer), OK);
            rank.stream.synchronize().unwrap();
            if rank.rank == 1 {
                called.wait();
                rank.abort();
                return;
            }
            assert_eq!(rank.sum(&buffer), OK);
            called.wait();
            assert_eq!(rank.await_error(), Code::ncclRemoteError);
            assert!(last_error().contains("rank 1 aborted its communicator"), "{}", last_error());
            std::thread::sleep(Duration::from_millis(50));
            assert!(rank.is_busy(), "the kernel of NCCL stays on the stream until the abort");
            assert_eq!(rank.sum(&buffer), Code::ncclRemoteError, "no call after the error");
            rank.abort();
            rank.stream.synchronize().unwrap();
            assert!(
                rank.stream.clone_dtoh(&buffer).unwrap()[0].is_nan(),
                "nobody may rely on what an aborted call wrote"
            );
        });
    };
    Body::here().run(body).is_clean();
}

#[test]
fn an_abort_behind_the_last_work_harms_nobody() {
    let body = || {
        let finalized = Barrier::new(2);
        let aborted = Barrier::new(2);
        ranks(2, |rank| {
            let buffer = rank.upload(&[1f32; 64]);
            assert_eq!(rank.sum(&buffer), OK);
            rank.stream.synchronize().unwrap();
            if rank.rank == 0 {
                finalized.wait();
                rank.abort();
                aborted.wait();
                return;
            }
            rank.finalize();
            finalized.wait();
            aborted.wait();
            // The news of the abort takes its way through the hub.
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(rank.status(), OK);
            rank.destroy();
        });
    };
    Body::here().run(body).is_clean();
}

#[test]
fn a_dead_process_is_seen() {
    let body = || {
        processes(2, |id, rank| {
            let rank = join(id, 2, rank, rank).unwrap();
            let buffer = rank.upload(&[1f32; 64]);
            assert_eq!(rank.sum(&buffer), OK);
            let dies = std::env::var("VGPU_TEST_DIES").unwrap();
            if rank.rank.to_string() == dies {
                rank.stream.synchronize().unwrap();
                die();
            }
            // The hub may die before it has sent the result, so this rank can't just synchronize.
            while rank.is_busy() && rank.status() == OK {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(matches!(rank.sum(&buffer), OK | Code::ncclRemoteError));
            assert_eq!(rank.await_error(), Code::ncclRemoteError);
            let words =
                if dies == "1" { "rank 1 is gone" } else { "the process that made the unique id is gone" };
            assert!(last_error().contains(words), "{}", last_error());
            rank.abort();
            rank.stream.synchronize().unwrap();
            if let Ok(path) = std::env::var("VGPU_TEST_WITNESS") {
                std::fs::write(path, "seen").unwrap();
            }
            done();
        });
    };
    Body::here().env("VGPU_TEST_DIES", 1).run(body).is_clean();
    let witness = std::env::temp_dir().join(format!("vgpu-nccl-dead-{}", std::process::id()));
    let _ = Body::here().env("VGPU_TEST_DIES", 0).env("VGPU_TEST_WITNESS", witness.display()).run(body);
    let end = Instant::now() + Duration::from_secs(5);
    while !witness.exists() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(std::fs::remove_file(&witness).is_ok(), "rank 1 did not see that rank 0 had died");
}

#[test]
fn a_communicator_that_does_not_wait() {
    let body = || {
        let id = unique_id();
        let both = Barrier::new(2);
        let (both, early) = (&both, std::env::var_os("VGPU_TEST_EARLY").is_some());
        std::thread::scope(|scope| {
            for r in 0..2 {
                scope.spawn(move || {
                    if r == 1 {
                        both.wait();
                    }
                    let rank = begin_join(id, 2, r);
                    if r == 0 {
                        assert_eq!(rank.status(), Code::ncclInProgress, "rank 1 is not there");
                        if early {
                            let buffer = rank.upload(&[1f32; 8]);
                            assert_eq!(rank.sum(&buffer), Code::ncclInvalidArgument);
                        }
                        both.wait();
                    }
                    assert_eq!(finish(&rank), OK);
                    let buffer = rank.upload(&[1f32; 8]);
                    assert_eq!(rank.sum(&buffer), Code::ncclInProgress);
                    assert_eq!(finish(&rank), OK);
                    assert_eq!(rank.stream.clone_dtoh(&buffer).unwrap(), [2.0; 8]);
                    // SAFETY: the communicator lives.
                    assert_eq!(unsafe { sys::ncclCommFinalize(rank.comm) }, Code::ncclInProgress);
                    assert_eq!(finish(&rank), OK);
                    rank.destroy();
                });
            }
        });
    };
    Body::here().run(body).is_clean();
    let early = Body::here().env("VGPU_TEST_EARLY", 1).run(body);
    early.has_finding("Attempt to use communicator before the previous operation returned ncclSuccess");
}

/// NCCL puts the work of a non-blocking call on the stream from a thread of its own: what a program puts there before it has asked
/// for the end of the call comes first.
#[test]
fn work_of_a_call_that_does_not_wait_comes_late() {
    let body = || {
        let id = unique_id();
        std::thread::scope(|scope| {
            for r in 0..2 {
                scope.spawn(move || {
                    let rank = begin_join(id, 2, r);
                    assert_eq!(finish(&rank), OK);
                    let fill = |buffer: &CudaSlice<f32>, value: f32| {
                        let (address, stream) = (rank.address(buffer), rank.stream.cu_stream());
                        // SAFETY: the buffer holds as many elements.
                        let filled = unsafe {
                            driver::cuMemsetD32Async(address, value.to_bits(), buffer.len(), stream)
                        };
                        assert_eq!(filled, driver::CUresult::CUDA_SUCCESS);
                    };
                    for (asks_first, want) in [(true, 5.0), (false, 10.0)] {
                        let buffer = rank.upload(&[1f32; 8]);
                        assert_eq!(rank.sum(&buffer), Code::ncclInProgress);
                        if asks_first {
                            assert_eq!(finish(&rank), OK);
                        }
                        fill(&buffer, 5.0);
                        assert_eq!(finish(&rank), OK);
                        assert_eq!(rank.stream.clone_dtoh(&buffer).unwrap(), [want; 8]);
                    }
                    // Also without any question: only later.
                    let buffer = rank.upload(&[1f32; 8]);
                    assert_eq!(rank.sum(&buffer), Code::ncclInProgress);
                    let end = Instant::now() + Duration::from_secs(10);
                    while rank.stream.clone_dtoh(&buffer).unwrap() != [2.0; 8] {
                        assert!(Instant::now() < end, "the work never came");
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    assert_eq!(finish(&rank), OK);
                    // SAFETY: the communicator lives.
                    assert_eq!(unsafe { sys::ncclCommFinalize(rank.comm) }, Code::ncclInProgress);
                    assert_eq!(finish(&rank), OK);
                    rank.destroy();
                });
            }
        });
    };
    Body::here().run(body).is_clean();
}

/// An abort right after a call takes its work along.
#[test]
fn a_call_that_does_not_wait_can_be_aborted_at_once() {
    let body = || {
        let begin = Instant::now();
        let rank = begin_join(unique_id(), 1, 0);
        assert_eq!(finish(&rank), OK);
        let buffer = rank.upload(&[1f32; 8]);
        assert_eq!(rank.sum(&buffer), Code::ncclInProgress);
        rank.abort();
        drop(buffer);
        rank.stream.synchronize().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(5));
    };
    Body::here().run(body).is_clean();
}

#[test]
fn memory_of_a_pool_cannot_be_registered() {
    let body = || {
        let rank = join(unique_id(), 1, 0, 0).unwrap();
        let register = |address: u64, bytes: usize| {
            let mut handle = std::ptr::null_mut();
            // SAFETY: the library checks the address.
            let code = unsafe { sys::ncclCommRegister(rank.comm, address as _, bytes, &mut handle) };
            (code, handle)
        };
        let deregister = |handle| {
            // SAFETY: the library checks the handle.
            unsafe { sys::ncclCommDeregister(rank.comm, handle) }
        };
        let (mut of_pool, mut plain, mut own) = (0, 0, std::ptr::null_mut());
        // SAFETY: the pointer is good.
        let allocated = unsafe { driver::cuMemAllocAsync(&mut of_pool, 256, rank.stream.cu_stream()) };
        assert_eq!(allocated, driver::CUresult::CUDA_SUCCESS);
        // SAFETY: as above.
        assert_eq!(unsafe { driver::cuMemAlloc_v2(&mut plain, 256) }, driver::CUresult::CUDA_SUCCESS);
        // SAFETY: as above.
        assert_eq!(unsafe { sys::ncclMemAlloc(&mut own, 256) }, OK);
        for address in [plain, own as u64] {
            let (code, handle) = register(address, 256);
            assert_eq!((code, deregister(handle)), (OK, OK));
        }
        match std::env::var("VGPU_TEST_MISTAKE").as_deref() {
            Ok("pool") => assert_eq!(register(of_pool, 256).0, Code::ncclInvalidArgument),
            Ok("length") => assert_eq!(register(plain, 257).0, Code::ncclInvalidArgument),
            Ok("twice") => {
                let (_, handle) = register(plain, 256);
                assert_eq!(deregister(handle), OK);
                assert_eq!(deregister(handle), Code::ncclInvalidArgument);
            }
            _ => {}
        }
        rank.destroy();
    };
    Body::here().run(body).is_clean();
    for (what, words) in [
        ("pool", "is memory of a pool, which can't be registered"),
        ("length", "it does not lie in"),
        ("twice", "a handle of a registered buffer is one that was destroyed"),
    ] {
        Body::here().env("VGPU_TEST_MISTAKE", what).run(body).has_finding(words);
    }
}

#[test]
fn an_initialization_can_be_given_up() {
    let body = || {
        let begin = Instant::now();
        let rank = begin_join(unique_id(), 2, 0);
        assert_eq!(rank.status(), Code::ncclInProgress);
        rank.abort();
        assert!(begin.elapsed() < Duration::from_secs(2));
    };
    Body::here().run(body).is_clean();
}

#[test]
fn faults_on_request() {
    let body = || {
        let fault = std::env::var("VGPU_FAIL").unwrap();
        if fault.starts_with("nccl:init,") {
            let id = unique_id();
            let results: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..2).map(|rank| scope.spawn(move || join(id, 2, rank, rank).map(|r| r.rank))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(results[1], Err(Code::ncclSystemError));
            assert!(matches!(results[0], Err(Code::ncclRemoteError | Code::ncclSystemError)), "{results:?}");
            return;
        }
        let seen = Barrier::new(2);
        ranks(2, |rank| {
            let buffer = rank.upload(&[1f32; 8]);
            for _ in 0..2 {
                assert_eq!(rank.sum(&buffer), OK);
            }
            rank.stream.synchronize().unwrap();
            assert_eq!(rank.sum(&buffer), OK);
            std::thread::sleep(Duration::from_millis(100));
            assert!(rank.is_busy());
            match (fault.contains("nccl:step"), rank.rank) {
                (true, 1) => assert_eq!(rank.await_error(), Code::ncclSystemError),
                // Nothing is wrong as far as anybody can tell; only the time tells.
                _ => assert_eq!(rank.status(), OK),
            }
            seen.wait();
            rank.abort();
            rank.stream.synchronize().unwrap();
        });
    };
    Body::here().env("VGPU_FAIL", "malloc:1000,nccl:step=3,rank=1").run(body).is_clean();
    Body::here().env("VGPU_FAIL", "nccl:step=3,rank=1").run(body).is_clean();
    Body::here().env("VGPU_FAIL", "nccl:hang=3,rank=1").run(body).is_clean();
    Body::here().env("VGPU_FAIL", "nccl:init,rank=1").run(body).is_clean();
}

#[test]
fn a_program_that_does_not_ask_for_errors_hangs_and_is_told() {
    let body = || {
        ranks(2, |rank| {
            let buffer = rank.upload(&[1f32; 8]);
            assert_eq!(rank.sum(&buffer), OK);
            if rank.rank == 0 {
                rank.stream.synchronize().unwrap();
            }
            std::thread::sleep(Duration::from_secs(30));
        });
    };
    let ran = Body::here().timeout_s(1).env("VGPU_FAIL", "nccl:hang=1,rank=1").run(body);
    ran.dies_with_finding("runs ncclAllReduce");
}

#[test]
fn an_abort_can_hang_on_request() {
    let body = || {
        let rank = join(unique_id(), 1, 0, 0).unwrap();
        let comm = rank.comm as usize;
        // SAFETY: the communicator lives.
        let aborting = std::thread::spawn(move || unsafe { sys::ncclCommAbort(comm as _) });
        std::thread::sleep(Duration::from_millis(200));
        assert!(!aborting.is_finished());
        // A thread in an abort that hangs doesn't keep the process from its end.
        done();
    };
    Body::here().env("VGPU_FAIL", "nccl:abort-hang").run(body).is_clean();
}

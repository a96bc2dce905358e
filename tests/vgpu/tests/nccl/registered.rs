//! Mistakes with registered buffers that are found: an end in the wrong order, ranks that differ.
use crate::libs::{Body, done};
use crate::rank::*;
use cudarc::driver::sys as driver;
use cudarc::nccl::sys::{self, ncclDataType_t as Dtype, ncclRedOp_t as Op, ncclResult_t as Code};
use std::ffi::c_void;

/// Memory of NCCL.
fn allocate(bytes: usize) -> *mut c_void {
    let mut address = std::ptr::null_mut();
    // SAFETY: the pointer is good.
    assert_eq!(unsafe { sys::ncclMemAlloc(&mut address, bytes) }, OK);
    address
}

fn free(address: *mut c_void) -> Code {
    // SAFETY: the library checks the address.
    unsafe { sys::ncclMemFree(address) }
}

fn register(rank: &Rank, address: *mut c_void, bytes: usize) -> *mut c_void {
    let mut handle = std::ptr::null_mut();
    // SAFETY: the library checks the address.
    assert_eq!(unsafe { sys::ncclCommRegister(rank.comm, address, bytes, &mut handle) }, OK);
    handle
}

fn deregister(rank: &Rank, handle: *mut c_void) -> Code {
    // SAFETY: the library checks the handle.
    unsafe { sys::ncclCommDeregister(rank.comm, handle) }
}

#[test]
fn registered_buffers_end_before_their_communicator_and_memory() {
    let body = || {
        let rank = join(unique_id(), 1, 0, 0).unwrap();
        let own = allocate(256);
        let handle = register(&rank, own, 256);
        match std::env::var("VGPU_TEST_MISTAKE").as_deref() {
            Ok("leaked") => rank.destroy(),
            Ok("freed") => {
                assert_eq!(free(own), Code::ncclInvalidUsage);
                assert_eq!(deregister(&rank, handle), OK);
                rank.destroy();
            }
            Ok("plainly") => {
                assert_eq!(deregister(&rank, handle), OK);
                rank.destroy();
                // SAFETY: the library checks the address.
                let freed = unsafe { driver::cuMemFree_v2(own as u64) };
                assert_ne!(freed, driver::CUresult::CUDA_SUCCESS);
            }
            // An abort cleans up by itself.
            Ok("aborted") => rank.abort(),
            Ok("freed after") => {
                rank.abort();
                let want = match std::env::var("VGPU_NCCL_VERSION").as_deref() {
                    Ok("22500") => OK,
                    _ => Code::ncclInvalidUsage,
                };
                assert_eq!(free(own), want);
            }
            _ => {
                assert_eq!(deregister(&rank, handle), OK);
                rank.destroy();
                assert_eq!(free(own), OK);
            }
        }
        done();
    };
    Body::here().run(body).is_clean();
    Body::here().env("VGPU_TEST_MISTAKE", "aborted").run(body).is_clean();
    // Up to 2.25 an abort returns when its work is over.
    Body::here()
        .env("VGPU_TEST_MISTAKE", "freed after")
        .env("VGPU_NCCL_VERSION", "22500")
        .run(body)
        .is_clean();
    for (what, words) in [
        ("leaked", "ncclCommDestroy, but 1 buffers are still registered"),
        ("freed", "is still registered with the communicator of rank 0"),
        ("freed after", "of rank 0, which was aborted: NCCL ends its work in the background"),
        ("plainly", "memory from ncclMemAlloc is freed by ncclMemFree"),
    ] {
        Body::here().env("VGPU_TEST_MISTAKE", what).run(body).has_finding(words);
    }
}

/// NCCL leaves undefined what happens if only some ranks have registered their buffers of a collective.
#[test]
fn ranks_register_alike() {
    let body = || {
        let what = std::env::var("VGPU_TEST_MISTAKE").unwrap_or_default();
        let failures = ranks(2, |rank| {
            // Such memory is never accessed by the host.
            let own = allocate(1024);
            let wrong = rank.rank == 1;
            let is_registered = !(wrong && what == "one");
            let handle = is_registered.then(|| register(rank, own, 1024));
            let at = own as u64 + if wrong && what == "offset" { 64 } else { 0 };
            assert_eq!(rank.all_reduce(at, at, 64, Dtype::ncclFloat32, Op::ncclSum), OK);
            let failed = rank.stream.synchronize().is_err();
            if !what.is_empty() {
                return failed;
            }
            assert_eq!(handle.map(|handle| deregister(rank, handle)), Some(OK));
            assert_eq!(free(own), OK);
            rank.destroy();
            failed
        });
        assert_eq!(failures, [!what.is_empty(); 2]);
        done();
    };
    Body::here().run(body).is_clean();
    for (what, words) in [
        ("one", "(collective 1) in registered buffers at offset 0, rank 1 calls ncclAllReduce of 64 Float32"),
        ("offset", "in registered buffers at offset 64"),
    ] {
        Body::here().env("VGPU_TEST_MISTAKE", what).run(body).has_finding(words);
    }
}

/// ncclMemAlloc takes whole pages of cuMemCreate.
#[test]
fn memory_is_given_in_steps_of_2_mib() {
    let body = || {
        let rank = join(unique_id(), 1, 0, 0).unwrap();
        let free_memory = || {
            let (mut now, mut total) = (0, 0);
            // SAFETY: the pointers are good.
            let got = unsafe { driver::cuMemGetInfo_v2(&mut now, &mut total) };
            assert_eq!(got, driver::CUresult::CUDA_SUCCESS);
            now
        };
        let before = free_memory();
        for (bytes, steps) in [(1, 1), (2 << 20, 1), ((2 << 20) + 1, 2)] {
            let own = allocate(bytes);
            assert_eq!(before - free_memory(), steps * (2 << 20), "{bytes} bytes");
            assert_eq!(free(own), OK);
            assert_eq!(free_memory(), before);
        }
        rank.destroy();
        done();
    };
    Body::here().run(body).is_clean();
}

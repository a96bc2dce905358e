//! Stream-ordered memory.

use crate::run;
use crate::support::{Gpu, expect, ok, plain, read, threads};
use cudarc::driver::{PushKernelArg, sys};

fn alloc(gpu: &Gpu, bytes: usize) -> u64 {
    let mut p = 0;
    ok(unsafe { sys::cuMemAllocAsync(&mut p, bytes, gpu.stream.cu_stream()) });
    p
}

fn make_pool(device: i32) -> sys::CUmemoryPool {
    let mut props: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    props.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = location(device);
    let mut pool = std::ptr::null_mut();
    ok(unsafe { sys::cuMemPoolCreate(&mut pool, &props) });
    pool
}

fn location(device: i32) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

fn attribute(pool: sys::CUmemoryPool, what: sys::CUmemPool_attribute) -> u64 {
    let mut value = 0u64;
    ok(unsafe { sys::cuMemPoolGetAttribute(pool, what, (&raw mut value).cast()) });
    value
}

fn add(gpu: &Gpu, from: u64, to: u64) -> Result<(), cudarc::driver::DriverError> {
    let kernel = gpu.kernel("add");
    let mut launch = gpu.stream.launch_builder(&kernel);
    unsafe { launch.arg(&from).arg(&from).arg(&to).arg(&64i32).launch(threads(64)) }.unwrap();
    gpu.stream.synchronize()
}

/// A pool reserves memory in multiples of this.
const STEP: u64 = 32 << 20;

#[test]
fn a_pool_counts_what_it_holds_and_gives_back() {
    let client = || {
        use sys::CUmemPool_attribute::*;
        let gpu = Gpu::new(0);
        let pool = make_pool(0);
        let mut threshold = 2 * STEP;
        let set = CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        ok(unsafe { sys::cuMemPoolSetAttribute(pool, set, (&raw mut threshold).cast()) });
        let mut p = [0u64; 3];
        for p in &mut p {
            ok(unsafe { sys::cuMemAllocFromPoolAsync(p, STEP as usize, pool, gpu.stream.cu_stream()) });
        }
        assert_eq!(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 3 * STEP);
        for p in p {
            ok(unsafe { sys::cuMemFreeAsync(p, gpu.stream.cu_stream()) });
        }
        gpu.stream.synchronize().unwrap();
        assert_eq!(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
        assert_eq!(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 3 * STEP);
        assert_eq!(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 2 * STEP);
        ok(unsafe { sys::cuMemPoolTrimTo(pool, 0) });
        assert_eq!(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
        assert_eq!(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 3 * STEP);
        let mut zero = 0u64;
        ok(unsafe {
            sys::cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, (&raw mut zero).cast())
        });
        assert_eq!(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 0);
        ok(unsafe { sys::cuMemPoolDestroy(pool) });
    };
    for mode in [&["-n", "1"][..], &["--check"], &["--fuzz", "3"]] {
        run!(mode, client).clean();
    }
}

#[test]
fn memory_is_limited() {
    let client = || {
        let gpu = Gpu::new(0);
        let mut p = 0;
        expect(unsafe { sys::cuMemAlloc_v2(&mut p, 41 << 20) }, sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        // What a pool keeps for itself is given up for others.
        let pooled = alloc(&gpu, 8 << 20); // of a step
        expect(unsafe { sys::cuMemAlloc_v2(&mut p, 10 << 20) }, sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        ok(unsafe { sys::cuMemFreeAsync(pooled, gpu.stream.cu_stream()) });
        gpu.stream.synchronize().unwrap();
        plain(38 << 20);
    };
    run!(["-n", "1"], [("VGPU_MEMORY", "41943040")], client).clean();
}

#[test]
fn peers_need_access_to_a_pool() {
    let client = || {
        let (a, b) = (Gpu::new(0), Gpu::new(1));
        let pool = make_pool(1);
        let mut there = 0;
        ok(unsafe { sys::cuMemAllocFromPoolAsync(&mut there, 256, pool, b.stream.cu_stream()) });
        ok(unsafe { sys::cuMemsetD32Async(there, 1f32.to_bits(), 64, b.stream.cu_stream()) });
        b.stream.synchronize().unwrap();
        a.ctx.bind_to_thread().unwrap();
        let here = plain(256);
        // Peer access of the contexts is for plain memory.
        ok(unsafe { sys::cuCtxEnablePeerAccess(b.ctx.cu_ctx(), 0) });
        ok(unsafe { sys::cuMemcpyPeer(here, a.ctx.cu_ctx(), there, b.ctx.cu_ctx(), 256) });
        assert_eq!(read(here, 64), vec![1.0; 64]);
        if std::env::var_os("VGPU_TEST_NO_ACCESS").is_none() {
            let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            let access = sys::CUmemAccessDesc { location: location(0), flags };
            ok(unsafe { sys::cuMemPoolSetAccess(pool, &access, 1) });
            add(&a, there, here).unwrap();
            assert_eq!(read(here, 64), vec![2.0; 64]);
        } else {
            assert!(add(&a, there, here).is_err());
        }
    };
    run!(["-n", "2", "--check"], client).clean();
    run!(["-n", "2"], [("VGPU_TEST_NO_ACCESS", "1")], client).told("cuMemPoolSetAccess");
}

#[test]
fn use_after_a_free_on_the_stream_is_found() {
    let client = || {
        let gpu = Gpu::new(0);
        let p = alloc(&gpu, 256);
        ok(unsafe { sys::cuMemFreeAsync(p, gpu.stream.cu_stream()) });
        let twice = unsafe { sys::cuMemFreeAsync(p, gpu.stream.cu_stream()) };
        expect(twice, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        unsafe {
            gpu.stream.launch_builder(&gpu.kernel("fill")).arg(&p).arg(&1f32).arg(&1i32).launch(threads(32))
        }
        .unwrap();
        assert!(gpu.stream.synchronize().is_err());
    };
    let got = run!(["-n", "1"], client);
    // The second free is refused at the call, by what the host did or by what the stream has done already.
    got.told("cuMemFreeAsync: ").told("FREED allocation");
}

#[test]
fn use_on_a_stream_that_does_not_wait_for_the_allocation_is_found() {
    let client = || {
        let gpu = Gpu::new(0);
        let second = gpu.ctx.new_stream().unwrap();
        let p = alloc(&gpu, 256);
        if std::env::var_os("VGPU_TEST_EVENT").is_some() {
            second.wait(&gpu.stream.record_event(None).unwrap()).unwrap();
        }
        ok(unsafe { sys::cuMemsetD32Async(p, 0, 64, second.cu_stream()) });
        second.synchronize().unwrap();
        gpu.stream.synchronize().unwrap();
    };
    run!(["--check"], [("VGPU_TEST_EVENT", "1")], client).clean();
    run!(["--check"], client).found("race between streams");
}

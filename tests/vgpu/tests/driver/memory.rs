//! Plain and pinned memory, copies, peers.

use crate::run;
use crate::support::{Gpu, expect, ok, plain, read, threads};
use cudarc::driver::{DevicePtr, LaunchConfig, PushKernelArg, sys};
use std::ffi::c_void;

#[test]
fn a_host_that_follows_a_device_pointer_is_told_which() {
    let client = || {
        let _gpu = Gpu::new(0);
        let p = plain(40);
        println!("{}", unsafe { *(p as *const f32) });
    };
    run!(["-n", "1"], client).told("the host dereferenced a device pointer");
}

#[test]
fn use_after_free_is_found() {
    let client = || {
        let gpu = Gpu::new(0);
        let p = plain(4000);
        ok(unsafe { sys::cuMemFree_v2(p) });
        unsafe {
            gpu.stream.launch_builder(&gpu.kernel("fill")).arg(&p).arg(&1f32).arg(&1i32).launch(threads(32))
        }
        .unwrap();
        assert!(gpu.stream.synchronize().is_err());
    };
    run!(["-n", "1"], client).told("FREED allocation #1");
}

#[test]
fn bad_copies_and_frees_are_refused_at_the_call() {
    let client = || {
        let _gpu = Gpu::new(0);
        let p = plain(100);
        let host = [0u8; 200];
        let invalid = sys::CUresult::CUDA_ERROR_INVALID_VALUE;
        expect(unsafe { sys::cuMemcpyHtoD_v2(p, host.as_ptr().cast(), 101) }, invalid);
        expect(unsafe { sys::cuMemcpyHtoD_v2(p, p as *const c_void, 10) }, invalid);
        expect(unsafe { sys::cuMemsetD32_v2(p + 2, 0, 4) }, invalid);
        expect(unsafe { sys::cuMemFree_v2(p + 4) }, invalid);
        ok(unsafe { sys::cuMemFree_v2(p) });
        expect(unsafe { sys::cuMemFree_v2(p) }, invalid);
    };
    let got = run!(["-n", "1"], client);
    assert_eq!(got.findings.len(), 5, "{got:#?}");
}

#[test]
fn peers_must_be_enabled_for_kernels_but_not_for_peer_copies() {
    let client = || {
        let (a, b) = (Gpu::new(0), Gpu::new(1));
        let there = plain(256);
        ok(unsafe { sys::cuMemsetD32_v2(there, 1f32.to_bits(), 64) });
        a.ctx.bind_to_thread().unwrap();
        let here = plain(256);
        let (ca, cb) = (a.ctx.cu_ctx(), b.ctx.cu_ctx());
        ok(unsafe { sys::cuMemcpyPeer(here, ca, there, cb, 256) });
        assert_eq!(read(here, 64), vec![1.0; 64]);
        ok(unsafe { sys::cuCtxEnablePeerAccess(cb, 0) });
        let add = || {
            let kernel = a.kernel("add");
            let mut launch = a.stream.launch_builder(&kernel);
            unsafe { launch.arg(&there).arg(&there).arg(&here).arg(&64i32).launch(threads(64)) }.unwrap();
            a.stream.synchronize()
        };
        add().unwrap();
        assert_eq!(read(here, 64), vec![2.0; 64]);
        let again = unsafe { sys::cuCtxEnablePeerAccess(cb, 0) };
        expect(again, sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        if std::env::var_os("VGPU_TEST_DISABLE").is_some() {
            ok(unsafe { sys::cuCtxDisablePeerAccess(cb) });
            assert!(add().is_err());
        }
    };
    for mode in [&["-n", "2"][..], &["-n", "2", "--check"], &["-n", "2", "--fuzz", "4"]] {
        run!(mode, client).clean();
    }
    run!(["-n", "2"], [("VGPU_TEST_DISABLE", "1")], client).told("no peer access");
}

#[test]
fn what_a_pointer_is() {
    let client = || {
        let gpu = Gpu::new(1);
        let p = plain(1000);
        let (mut kind, mut ordinal, mut base, mut size) = (0u32, -1i32, 0u64, 0usize);
        let get = |what, to: *mut c_void| ok(unsafe { sys::cuPointerGetAttribute(to, what, p + 8) });
        get(sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (&raw mut kind).cast());
        get(sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (&raw mut ordinal).cast());
        ok(unsafe { sys::cuMemGetAddressRange_v2(&mut base, &mut size, p + 8) });
        assert_eq!((kind, ordinal, base, size), (2, 1, p, 1000));
        let before = gpu.ctx.mem_get_info().unwrap();
        let q = plain(1 << 20);
        let after = gpu.ctx.mem_get_info().unwrap();
        assert_eq!((before.0 - after.0, before.1), (1 << 20, after.1));
        ok(unsafe { sys::cuMemFree_v2(q) });
    };
    run!(["-n", "2"], client).clean();
}

/// A pinned buffer of `n` floats.
fn pinned(n: usize) -> &'static mut [f32] {
    let mut p = std::ptr::null_mut();
    ok(unsafe { sys::cuMemHostAlloc(&mut p, n * 4, 0) });
    unsafe { std::slice::from_raw_parts_mut(p.cast(), n) }
}

fn upload(gpu: &Gpu, to: u64, from: &[f32]) {
    ok(unsafe {
        sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), size_of_val(from), gpu.stream.cu_stream())
    });
}

fn download(gpu: &Gpu, to: &mut [f32], from: u64) {
    ok(unsafe {
        sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, size_of_val(to), gpu.stream.cu_stream())
    });
}

#[test]
fn pinned_buffers_used_in_order_are_clean() {
    let client = || {
        let gpu = Gpu::new(0);
        let (from, to) = (pinned(3000), pinned(3000));
        let p = plain(12000);
        for round in 0..20 {
            from.fill(round as f32);
            upload(&gpu, p, from);
            // Reading the source of a copy in flight is allowed.
            assert_eq!(from[7], round as f32);
            download(&gpu, to, p);
            gpu.stream.synchronize().unwrap();
            assert!(to.iter().all(|&v| v == round as f32));
        }
        // Two copies in a row through one buffer: the device is in order with itself.
        upload(&gpu, p, from);
        download(&gpu, from, p);
        upload(&gpu, p, from);
        gpu.stream.synchronize().unwrap();
        assert_eq!(read(p, 3000), vec![19.0; 3000]);
    };
    for mode in [&["-n", "1"][..], &["--check"], &["--fuzz", "5"], &["--check", "--fuzz", "6"]] {
        run!(mode, client).clean();
    }
}

fn reuse_too_early(n: usize, part: std::ops::Range<usize>) {
    let gpu = Gpu::new(0);
    let from = pinned(n);
    let p = plain(n * 4);
    from.fill(1.0);
    upload(&gpu, p, &from[part.clone()]);
    from[part.start] = 2.0;
    gpu.stream.synchronize().unwrap();
}

#[test]
fn a_pinned_source_changed_too_early_is_found() {
    run!(["--check"], || reuse_too_early(64, 0..64))
        .found("changed a pinned buffer at offset 0 while a copy");
}

#[test]
fn a_pinned_source_within_a_page_changed_too_early_is_found_when_the_copy_is_late() {
    let client = || (0..40).for_each(|_| reuse_too_early(64, 8..16));
    run!(["--check", "--fuzz", "2"], client).found("changed a pinned buffer before it was read");
}

#[test]
fn a_pinned_destination_read_too_early_is_found() {
    let client = || {
        let gpu = Gpu::new(0);
        let to = pinned(64);
        let p = plain(256);
        ok(unsafe { sys::cuMemsetD32_v2(p, 1f32.to_bits(), 64) });
        download(&gpu, to, p);
        println!("{}", to[3]);
        gpu.stream.synchronize().unwrap();
        assert_eq!(to[3], 1.0);
    };
    run!(["--check"], client).found("used a pinned buffer at offset 12 while a copy");
}

#[test]
fn slices_of_the_safe_api_work() {
    let client = || {
        let gpu = Gpu::new(0);
        let s = &gpu.stream;
        let a = s.clone_htod(&[1f32, 2.0, 3.0]).unwrap();
        let (p, _guard) = a.device_ptr(s);
        assert!(p != 0);
        let mut b = s.alloc_zeros::<f32>(3).unwrap();
        s.memcpy_dtod(&a, &mut b).unwrap();
        assert_eq!(s.clone_dtoh(&b).unwrap(), [1.0, 2.0, 3.0]);
    };
    run!(["--check"], client).clean();
}

/// The device address of pinned memory, at an offset in floats.
fn on_device(host: &mut [f32]) -> u64 {
    let mut p = 0;
    ok(unsafe { sys::cuMemHostGetDevicePointer_v2(&mut p, host.as_mut_ptr().cast(), 0) });
    p
}

fn fill(gpu: &Gpu, to: u64, value: f32, n: i32) -> Result<(), sys::CUresult> {
    let kernel = gpu.kernel("fill");
    let config = LaunchConfig::for_num_elems(n as u32);
    let launched = unsafe { gpu.stream.launch_builder(&kernel).arg(&to).arg(&value).arg(&n).launch(config) };
    launched.map(|_| ()).map_err(|error| error.0)
}

#[test]
fn a_kernel_writes_to_mapped_memory() {
    let client = || {
        let gpu = Gpu::new(0);
        let to = pinned(3000);
        for round in 0..20 {
            let p = on_device(to);
            // Not from its beginning, so that some of it keeps its value.
            fill(&gpu, p + 40, round as f32, 2990).unwrap();
            gpu.stream.synchronize().unwrap();
            assert!(to[10..].iter().all(|&v| v == round as f32));
            assert_eq!(to[..10], [0.0; 10]);
        }
        let mut p = 0;
        let odd = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut p, to.as_mut_ptr().cast(), 1) };
        expect(odd, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        let mut pageable = [0f32; 8];
        let not_pinned =
            unsafe { sys::cuMemHostGetDevicePointer_v2(&mut p, pageable.as_mut_ptr().cast(), 0) };
        expect(not_pinned, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    for mode in [&["-n", "1"][..], &["--check"], &["--fuzz", "5"], &["--check", "--fuzz", "6"]] {
        run!(mode, client).clean();
    }
}

#[test]
fn a_kernel_is_refused_memory_that_is_not_mapped() {
    let client = || {
        let gpu = Gpu::new(0);
        let pageable = [0f32; 8];
        fill(&gpu, pageable.as_ptr() as u64, 1.0, 8).unwrap_err();
    };
    run!(["-n", "1"], client).found("is not a device address or pinned host memory");
}

#[test]
fn mapped_memory_read_before_the_kernel_is_waited_for_is_found() {
    let client = || {
        let gpu = Gpu::new(0);
        let to = pinned(64);
        fill(&gpu, on_device(to), 1.0, 64).unwrap();
        println!("{}", to[3]);
        gpu.stream.synchronize().unwrap();
        assert_eq!(to[3], 1.0);
    };
    run!(["--check"], client).found("used a pinned buffer at offset 12 while a kernel was in flight: fill");
}

#[test]
fn a_kernel_that_leaves_mapped_memory_is_found() {
    let client = || {
        let gpu = Gpu::new(0);
        let to = pinned(64);
        fill(&gpu, on_device(to), 1.0, 65).unwrap();
        assert!(gpu.stream.synchronize().is_err());
    };
    run!(["--check"], client)
        .told("thread [64, 0, 0]: illegal write of 4 bytes, 0 bytes past the end of pinned");
}

/// A graph may outlive the memory.
#[test]
fn a_kernel_that_finds_its_mapped_memory_freed_is_found() {
    let client = || {
        let gpu = Gpu::new(0);
        let to = pinned(64);
        let p = on_device(to);
        let s = gpu.stream.clone();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        s.begin_capture(mode).unwrap();
        fill(&gpu, p, 1.0, 64).unwrap();
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
        let graph = s.end_capture(flags).unwrap().unwrap();
        graph.launch().unwrap();
        s.synchronize().unwrap();
        assert_eq!(to[63], 1.0);
        ok(unsafe { sys::cuMemFreeHost(to.as_mut_ptr().cast()) });
        graph.launch().unwrap();
        assert!(s.synchronize().is_err());
    };
    run!(["-n", "1"], client).told("pinned host memory that was freed");
}

//! Graphs by stream capture.

use crate::run;
use crate::support::{Gpu, expect, ok, plain, read, threads};
use cudarc::driver::{CudaStream, PushKernelArg, sys};
use std::ptr::null_mut;
use std::sync::Arc;
use sys::CUresult::*;

const GLOBAL: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const THREAD: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

fn add(gpu: &Gpu, stream: &Arc<CudaStream>, a: u64, b: u64, c: u64) {
    let kernel = gpu.kernel("add");
    unsafe { stream.launch_builder(&kernel).arg(&a).arg(&b).arg(&c).arg(&64i32).launch(threads(64)) }
        .unwrap();
}

fn begin(stream: &CudaStream, mode: sys::CUstreamCaptureMode) {
    stream.begin_capture(mode).unwrap();
}

fn end(stream: &CudaStream) -> (sys::CUresult, sys::CUgraph) {
    let mut graph = null_mut();
    (unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &mut graph) }, graph)
}

/// x is doubled on one branch and y on another; then x + y. A launch makes z = 2x + 2y.
#[test]
fn a_fork_and_a_join_are_replayed_in_order() {
    let client = || {
        let gpu = Gpu::new(0);
        let (first, second) = (&gpu.stream, gpu.ctx.new_stream().unwrap());
        let [x, y, x2, y2, z] = std::array::from_fn(|_| plain(256));
        let mut pinned = null_mut();
        ok(unsafe { sys::cuMemHostAlloc(&mut pinned, 256, 0) });
        let host = unsafe { std::slice::from_raw_parts_mut(pinned.cast::<f32>(), 64) };
        begin(first, THREAD);
        let status = first.capture_status().unwrap();
        assert_eq!(status, sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        ok(unsafe { sys::cuMemcpyHtoDAsync_v2(x, pinned, 256, first.cu_stream()) });
        ok(unsafe { sys::cuMemsetD32Async(y, 1f32.to_bits(), 64, first.cu_stream()) });
        second.wait(&first.record_event(None).unwrap()).unwrap();
        add(&gpu, first, x, x, x2);
        add(&gpu, &second, y, y, y2);
        first.wait(&second.record_event(None).unwrap()).unwrap();
        add(&gpu, first, x2, y2, z);
        let (result, graph) = end(first);
        ok(result);
        let mut n = 0;
        ok(unsafe { sys::cuGraphGetNodes(graph, null_mut(), &mut n) });
        assert_eq!(n, 5);
        // Nothing has run yet.
        assert!(read(z, 1)[0].is_nan());
        let mut exec = null_mut();
        ok(unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) });
        ok(unsafe { sys::cuGraphDestroy(graph) });
        ok(unsafe { sys::cuGraphUpload(exec, first.cu_stream()) });
        for round in 0..25 {
            host.fill(round as f32);
            ok(unsafe { sys::cuGraphLaunch(exec, first.cu_stream()) });
            first.synchronize().unwrap();
            assert_eq!(read(z, 64), vec![2.0 * round as f32 + 2.0; 64]);
        }
        // Many launches without a wait, on either stream.
        for i in 0..10 {
            let stream = if i % 2 == 0 { first } else { &second };
            ok(unsafe { sys::cuGraphLaunch(exec, stream.cu_stream()) });
        }
        first.synchronize().unwrap();
        second.synchronize().unwrap();
        ok(unsafe { sys::cuGraphExecDestroy(exec) });
    };
    for mode in
        [&["-n", "1"][..], &["--check"], &["--fuzz", "1"], &["--fuzz", "2"], &["--check", "--fuzz", "3"]]
    {
        run!(mode, client).clean();
    }
}

/// Work of an urgent stream, instantiated without and with the priorities of the nodes.
#[test]
fn lost_priorities_are_found() {
    let client = || {
        let gpu = Gpu::new(0);
        let first = &gpu.stream;
        let urgent = gpu.ctx.new_stream_with_priority(-1).unwrap();
        let [x, y] = std::array::from_fn(|_| plain(256));
        begin(first, THREAD);
        add(&gpu, first, x, x, x);
        urgent.wait(&first.record_event(None).unwrap()).unwrap();
        add(&gpu, &urgent, y, y, y);
        first.wait(&urgent.record_event(None).unwrap()).unwrap();
        let (result, graph) = end(first);
        ok(result);
        let flags = std::env::var("VGPU_TEST_FLAGS").unwrap().parse().unwrap();
        let mut exec = null_mut();
        ok(unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, flags) });
        ok(unsafe { sys::cuGraphLaunch(exec, first.cu_stream()) });
        first.synchronize().unwrap();
    };
    run!(["-n", "1"], [("VGPU_TEST_FLAGS", "8")], client).clean();
    run!(["-n", "1"], [("VGPU_TEST_FLAGS", "0")], client).found("streams of priorities 0 to -1");
}

/// The branches of the graph write the same memory.
#[test]
fn a_missing_join_inside_of_a_graph_is_found() {
    let client = || {
        let gpu = Gpu::new(0);
        let (first, second) = (&gpu.stream, gpu.ctx.new_stream().unwrap());
        let [x, y] = std::array::from_fn(|_| plain(256));
        ok(unsafe { sys::cuMemsetD32_v2(x, 1f32.to_bits(), 64) });
        begin(first, THREAD);
        second.wait(&first.record_event(None).unwrap()).unwrap();
        add(&gpu, first, x, x, y);
        add(&gpu, &second, x, x, y);
        first.wait(&second.record_event(None).unwrap()).unwrap();
        let (result, graph) = end(first);
        ok(result);
        let mut exec = null_mut();
        ok(unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) });
        ok(unsafe { sys::cuGraphLaunch(exec, first.cu_stream()) });
        first.synchronize().unwrap();
    };
    run!(["--check"], client).found("race between streams: add");
}

#[test]
fn work_that_is_not_joined_is_found() {
    let client = || {
        let gpu = Gpu::new(0);
        let (first, second) = (&gpu.stream, gpu.ctx.new_stream().unwrap());
        let p = plain(256);
        begin(first, GLOBAL);
        second.wait(&first.record_event(None).unwrap()).unwrap();
        add(&gpu, &second, p, p, p);
        expect(end(first).0, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        // Both streams are free again.
        ok(unsafe { sys::cuMemsetD32Async(p, 0, 64, second.cu_stream()) });
        second.synchronize().unwrap();
        first.synchronize().unwrap();
    };
    run!(["-n", "1"], client).found("was not joined back");
}

/// Captures, does what is forbidden, and sees that the capture is broken.
fn broken_by(forbidden: impl FnOnce(&Gpu)) {
    let gpu = Gpu::new(0);
    let p = plain(256);
    begin(&gpu.stream, GLOBAL);
    ok(unsafe { sys::cuMemsetD32Async(p, 0, 64, gpu.stream.cu_stream()) });
    forbidden(&gpu);
    let after = unsafe { sys::cuMemsetD32Async(p, 0, 64, gpu.stream.cu_stream()) };
    expect(after, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    let (result, graph) = end(&gpu.stream);
    expect(result, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert!(graph.is_null());
    gpu.stream.synchronize().unwrap();
}

#[test]
fn a_synchronization_breaks_a_capture() {
    let client = || {
        broken_by(|gpu| {
            let result = unsafe { sys::cuStreamSynchronize(gpu.stream.cu_stream()) };
            expect(result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        });
    };
    run!(["-n", "1"], client).found("cuStreamSynchronize on stream");
}

#[test]
fn a_query_of_a_captured_event_breaks_a_capture() {
    let client = || {
        broken_by(|gpu| {
            let event = gpu.stream.record_event(None).unwrap();
            expect(unsafe { sys::cuEventQuery(event.cu_event()) }, CUDA_ERROR_CAPTURED_EVENT);
        });
    };
    run!(["-n", "1"], client).found("cuEventQuery on an event that was recorded in it");
}

#[test]
fn allocations_break_a_capture() {
    let client = || {
        broken_by(|_| {
            let mut p = 0;
            expect(unsafe { sys::cuMemAlloc_v2(&mut p, 4) }, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        });
        broken_by(|_| {
            let mut p = null_mut();
            expect(unsafe { sys::cuMemHostAlloc(&mut p, 4, 0) }, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        });
        broken_by(|gpu| {
            let mut p = 0;
            let result = unsafe { sys::cuMemAllocAsync(&mut p, 4, gpu.stream.cu_stream()) };
            expect(result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        });
    };
    let got = run!(["-n", "1"], client);
    got.told("cuMemAlloc").told("cuMemHostAlloc").told("cuMemAllocAsync");
}

#[test]
fn an_event_from_outside_breaks_a_capture() {
    let client = || {
        let gpu = Gpu::new(0);
        let second = gpu.ctx.new_stream().unwrap();
        let outside = second.record_event(None).unwrap();
        begin(&gpu.stream, THREAD);
        let result = unsafe { sys::cuStreamWaitEvent(gpu.stream.cu_stream(), outside.cu_event(), 0) };
        expect(result, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        expect(end(&gpu.stream).0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    };
    run!(["-n", "1"], client).found("recorded outside of the capture");
}

#[test]
fn pageable_copies_and_the_legacy_stream_break_a_capture() {
    let client = || {
        let gpu = Gpu::new(0);
        let p = plain(256);
        broken_by(|gpu| {
            let host = [0f32; 64];
            let result =
                unsafe { sys::cuMemcpyHtoDAsync_v2(p, host.as_ptr().cast(), 256, gpu.stream.cu_stream()) };
            expect(result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        });
        let mut blocking = null_mut();
        ok(unsafe { sys::cuStreamCreate(&mut blocking, 0) });
        ok(unsafe { sys::cuStreamBeginCapture_v2(blocking, RELAXED) });
        expect(unsafe { sys::cuMemsetD32Async(p, 0, 64, null_mut()) }, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        let mut graph = null_mut();
        expect(
            unsafe { sys::cuStreamEndCapture(blocking, &mut graph) },
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        );
        drop(gpu);
    };
    run!(["-n", "1"], client).told("pageable memory").told("legacy default stream");
}

/// Relaxed and thread-local captures leave other threads alone, relaxed ones this thread as well.
#[test]
fn modes_decide_whose_calls_are_forbidden() {
    let client = || {
        let gpu = Gpu::new(0);
        let other_thread = || {
            std::thread::scope(|s| {
                let alloc = || {
                    gpu.ctx.bind_to_thread().unwrap();
                    plain(4)
                };
                s.spawn(alloc).join().unwrap()
            })
        };
        begin(&gpu.stream, RELAXED);
        plain(4);
        other_thread();
        ok(end(&gpu.stream).0);
        begin(&gpu.stream, THREAD);
        other_thread();
        let mut mode = RELAXED;
        ok(unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) });
        plain(4);
        ok(unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) });
        ok(end(&gpu.stream).0);
    };
    run!(["-n", "1"], client).clean();
}

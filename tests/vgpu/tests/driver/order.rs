//! The order between streams: events, missing events, the legacy stream, host functions.

use crate::run;
use crate::support::{Gpu, expect, ok, plain, read, threads};
use cudarc::driver::{CudaStream, PushKernelArg, sys};
use std::ffi::c_void;

fn fill(gpu: &Gpu, stream: &std::sync::Arc<CudaStream>, p: u64, v: f32) {
    unsafe { stream.launch_builder(&gpu.kernel("fill")).arg(&p).arg(&v).arg(&64i32).launch(threads(64)) }
        .unwrap();
}

fn double(gpu: &Gpu, stream: &std::sync::Arc<CudaStream>, from: u64, to: u64) {
    let kernel = gpu.kernel("add");
    unsafe { stream.launch_builder(&kernel).arg(&from).arg(&from).arg(&to).arg(&64i32).launch(threads(64)) }
        .unwrap();
}

/// The second stream doubles what the first one filled. Returns how often the result was wrong.
fn two_streams(with_event: bool) -> usize {
    let gpu = Gpu::new(0);
    let second = gpu.ctx.new_stream().unwrap();
    let (from, to) = (plain(256), plain(256));
    let mut wrong = 0;
    for round in 1..=40 {
        fill(&gpu, &gpu.stream, from, round as f32);
        if with_event {
            second.wait(&gpu.stream.record_event(None).unwrap()).unwrap();
        }
        double(&gpu, &second, from, to);
        // The second first: whoever waits for a stream has it run.
        second.synchronize().unwrap();
        gpu.stream.synchronize().unwrap();
        wrong += (read(to, 1)[0] != 2.0 * round as f32) as usize;
    }
    wrong
}

#[test]
fn streams_that_are_ordered_by_an_event_are_clean() {
    for mode in [&["-n", "1"][..], &["--check"], &["--fuzz", "1"], &["--fuzz", "2"]] {
        run!(mode, || assert_eq!(two_streams(true), 0)).clean();
    }
}

#[test]
fn a_missing_event_is_found_by_check() {
    let got = run!(["--check"], || {
        two_streams(false);
    });
    got.found("race between streams");
    assert!(got.findings.len() <= 3, "the same mistake is reported few times: {got:#?}");
}

/// In time the write comes long after the read; no order says so.
#[test]
fn a_write_behind_an_unordered_read_is_found_by_check() {
    let client = || {
        let gpu = Gpu::new(0);
        let second = gpu.ctx.new_stream().unwrap();
        let (from, to) = (plain(256), plain(256));
        double(&gpu, &gpu.stream, from, to);
        std::thread::sleep(std::time::Duration::from_millis(100));
        fill(&gpu, &second, from, 1.0);
        second.synchronize().unwrap();
        gpu.stream.synchronize().unwrap();
    };
    run!(["--check"], client).found("race between streams");
}

#[test]
fn a_missing_event_shows_as_wrong_data_under_fuzz() {
    run!(["--fuzz", "3"], || assert!(two_streams(false) > 0)).clean();
}

#[test]
fn a_query_that_says_done_orders_the_host() {
    let client = || {
        let gpu = Gpu::new(0);
        let second = gpu.ctx.new_stream().unwrap();
        let (from, to) = (plain(256), plain(256));
        fill(&gpu, &gpu.stream, from, 1.0);
        let event = gpu.stream.record_event(None).unwrap();
        while !event.is_complete() {}
        double(&gpu, &second, from, to);
        second.synchronize().unwrap();
        assert_eq!(read(to, 64), vec![2.0; 64]);
    };
    run!(["--check"], client).clean();
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_only() {
    let client = || {
        let gpu = Gpu::new(0);
        let (from, to) = (plain(256), plain(256));
        let mut blocking = std::ptr::null_mut();
        ok(unsafe { sys::cuStreamCreate(&mut blocking, 0) });
        for round in 1..20 {
            ok(unsafe { sys::cuMemsetD32Async(from, (round as f32).to_bits(), 64, blocking) });
            ok(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, 256, std::ptr::null_mut()) });
            assert_eq!(read(to, 64), vec![round as f32; 64]);
        }
        if std::env::var_os("VGPU_TEST_NON_BLOCKING").is_some() {
            fill(&gpu, &gpu.stream, from, 1.0);
            read(from, 64);
            gpu.stream.synchronize().unwrap();
        }
    };
    run!(["--check"], client).clean();
    run!(["--fuzz", "8"], client).clean();
    run!(["--check"], [("VGPU_TEST_NON_BLOCKING", "1")], client).found("race between streams");
}

#[test]
fn host_functions_run_in_order() {
    extern "C" fn push(list: *mut c_void) {
        unsafe { (*list.cast::<Vec<u32>>()).push(1) };
    }
    let client = || {
        let gpu = Gpu::new(0);
        let p = plain(256);
        let mut list: Vec<u32> = Vec::new();
        fill(&gpu, &gpu.stream, p, 1.0);
        for _ in 0..3 {
            ok(unsafe { sys::cuLaunchHostFunc(gpu.stream.cu_stream(), Some(push), (&raw mut list).cast()) });
        }
        gpu.stream.synchronize().unwrap();
        assert_eq!(list, [1, 1, 1]);
    };
    run!(["--check", "--fuzz", "4"], client).clean();
}

#[test]
fn events_of_another_device_and_destroyed_handles_are_found() {
    let client = || {
        let (a, b) = (Gpu::new(0), Gpu::new(1));
        a.ctx.bind_to_thread().unwrap();
        let mut event = std::ptr::null_mut();
        ok(unsafe { sys::cuEventCreate(&mut event, 0) });
        let invalid = sys::CUresult::CUDA_ERROR_INVALID_HANDLE;
        expect(unsafe { sys::cuEventRecord(event, b.stream.cu_stream()) }, invalid);
        ok(unsafe { sys::cuEventDestroy_v2(event) });
        expect(unsafe { sys::cuEventRecord(event, a.stream.cu_stream()) }, invalid);
    };
    let got = run!(["-n", "2"], client);
    got.told("an event of device 0 on a stream of device 1")
        .told("a handle of an event is one that was destroyed");
}

#[test]
fn elapsed_times_need_timing() {
    let client = || {
        let gpu = Gpu::new(0);
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        let (a, b) = (gpu.ctx.new_event(Some(flags)).unwrap(), gpu.ctx.new_event(Some(flags)).unwrap());
        a.record(&gpu.stream).unwrap();
        fill(&gpu, &gpu.stream, plain(256), 1.0);
        b.record(&gpu.stream).unwrap();
        gpu.stream.synchronize().unwrap();
        // Nominal time: the same in every run, however long the kernel took.
        assert_eq!(a.elapsed_ms(&b).unwrap(), 0.101);
        let untimed = gpu.stream.record_event(None).unwrap();
        assert!(a.elapsed_ms(&untimed).is_err());
    };
    run!(["-n", "1"], client).found("without timing");
}

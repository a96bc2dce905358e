//! Copies and fills.
//!
//! Pageable host memory is read at the call and written before the call returns, as the driver does by staging. Only
//! pinned memory is read and written when the copy runs. A range that no allocation covers is refused at the call;
//! whether the device can access it is checked when the copy runs.

use super::context::current;
use super::stream::stream;
use super::wrong;
use crate::abi::{Void, api, lock};
use crate::capture;
use crate::code::{ILLEGAL_ADDRESS, INVALID_VALUE};
use crate::counts::{Tally, Way};
use crate::mem::host::{self, Touch};
use crate::mem::{MEMORY, is_device, pages};
use crate::order::Stamp;
use crate::stream::{Outcome, Stream, Task};
use std::ffi::{c_uchar, c_uint, c_ushort};
use std::ptr::null_mut;
use std::sync::Arc;

type Context = *const super::context::Ctx;

api! {
    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, n: usize, s: *mut Void) {
        host_to_device("cuMemcpyHtoDAsync", to, from, n, &stream(s)?)?;
    }

    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, n: usize, s: *mut Void) {
        device_to_host("cuMemcpyDtoHAsync", to, from, n, &stream(s)?)?;
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, n: usize, s: *mut Void) {
        on_device("cuMemcpyDtoDAsync", to, from, n, &stream(s)?)?;
    }

    fn cuMemcpyPeerAsync(to: u64, _to_context: Context, from: u64, _from_context: Context, n: usize, s: *mut Void) {
        between_devices("cuMemcpyPeerAsync", to, from, n, &stream(s)?)?;
    }

    fn cuMemcpyAsync(to: u64, from: u64, n: usize, s: *mut Void) {
        anywhere("cuMemcpyAsync", to, from, n, &stream(s)?)?;
    }

    fn cuMemcpyHtoD_v2(to: u64, from: u64, n: usize) {
        at_once("cuMemcpyHtoD", |call, stream| host_to_device(call, to, from, n, stream))?;
    }

    fn cuMemcpyDtoH_v2(to: u64, from: u64, n: usize) {
        at_once("cuMemcpyDtoH", |call, stream| device_to_host(call, to, from, n, stream))?;
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, n: usize) {
        at_once("cuMemcpyDtoD", |call, stream| on_device(call, to, from, n, stream))?;
    }

    fn cuMemcpyPeer(to: u64, _to_context: Context, from: u64, _from_context: Context, n: usize) {
        at_once("cuMemcpyPeer", |call, stream| between_devices(call, to, from, n, stream))?;
    }

    fn cuMemcpy(to: u64, from: u64, n: usize) {
        at_once("cuMemcpy", |call, stream| anywhere(call, to, from, n, stream))?;
    }

    fn cuMemsetD8Async(p: u64, value: c_uchar, n: usize, s: *mut Void) {
        fill("cuMemsetD8Async", p, &[value], n, &stream(s)?)?;
    }

    fn cuMemsetD16Async(p: u64, value: c_ushort, n: usize, s: *mut Void) {
        fill("cuMemsetD16Async", p, &value.to_ne_bytes(), n, &stream(s)?)?;
    }

    fn cuMemsetD32Async(p: u64, value: c_uint, n: usize, s: *mut Void) {
        fill("cuMemsetD32Async", p, &value.to_ne_bytes(), n, &stream(s)?)?;
    }

    fn cuMemsetD8_v2(p: u64, value: c_uchar, n: usize) {
        at_once("cuMemsetD8", |call, stream| fill(call, p, &[value], n, stream))?;
    }

    fn cuMemsetD16_v2(p: u64, value: c_ushort, n: usize) {
        at_once("cuMemsetD16", |call, stream| fill(call, p, &value.to_ne_bytes(), n, stream))?;
    }

    fn cuMemsetD32_v2(p: u64, value: c_uint, n: usize) {
        at_once("cuMemsetD32", |call, stream| fill(call, p, &value.to_ne_bytes(), n, stream))?;
    }
}

/// The synchronous functions: run on the legacy stream and wait until it is done.
fn at_once(
    call: &'static str,
    put: impl FnOnce(&'static str, &Arc<Stream>) -> Result<(), i32>,
) -> Result<(), i32> {
    capture::refuse_unsafe(call)?;
    let legacy = stream(null_mut())?;
    put(call, &legacy)?;
    legacy.sync();
    current().map(|_| ())
}

/// Refuses a range that is in no allocation or in a freed one.
fn check(call: &str, p: u64, n: usize) -> Result<(), i32> {
    lock(&MEMORY).usable(p, n as u64).map_err(|e| wrong(call, &e))
}

fn real(name: &str, device: usize, p: u64, n: usize) -> Result<*mut u8, (i32, String)> {
    lock(&MEMORY).real(device, p, n as u64).map_err(|e| (ILLEGAL_ADDRESS, format!("{name}: {e}")))
}

fn task(
    name: &'static str,
    tally: Tally,
    touch: Option<Touch>,
    work: impl Fn(&Stamp) -> Outcome + Send + Sync + 'static,
) -> Task {
    let touches = touch.into_iter().collect();
    Task { name, tally, touches, host_function: false, work: Box::new(work) }
}

fn host_to_device(call: &'static str, to: u64, from: u64, n: usize, stream: &Arc<Stream>) -> Result<(), i32> {
    if n == 0 {
        return Ok(());
    }
    if from == 0 || is_device(from) {
        return Err(wrong(call, "the source is not host memory"));
    }
    check(call, to, n)?;
    let (device, len) = (stream.device, n as u64);
    if host::is_pinned(from, len) {
        let tally = Tally::Copy(Way::HostToDevicePinned, len);
        let touch = Touch { at: from, len, write: false, whole: true };
        stream.submit(task(call, tally, Some(touch), move |stamp| {
            stamp.access(to, len, true)?;
            pages::copy(host::device_view(from, len) as *const u8, real(call, device, to, n)?, len);
            Ok(())
        }));
    } else {
        capture::refuse_on(stream, &format!("{call} from pageable memory"))?;
        let staged = pages::bytes(from, len).to_vec();
        stream.submit(task(call, Tally::Copy(Way::HostToDevicePageable, len), None, move |stamp| {
            stamp.access(to, len, true)?;
            pages::copy(staged.as_ptr(), real(call, device, to, n)?, len);
            Ok(())
        }));
    }
    Ok(())
}

fn device_to_host(call: &'static str, to: u64, from: u64, n: usize, stream: &Arc<Stream>) -> Result<(), i32> {
    if n == 0 {
        return Ok(());
    }
    if to == 0 || is_device(to) {
        return Err(wrong(call, "the destination is not host memory"));
    }
    check(call, from, n)?;
    let (device, len) = (stream.device, n as u64);
    let pinned = host::is_pinned(to, len);
    if !pinned {
        capture::refuse_on(stream, &format!("{call} to pageable memory"))?;
    }
    let touch = pinned.then_some(Touch { at: to, len, write: true, whole: true });
    let way = if pinned { Way::DeviceToHostPinned } else { Way::DeviceToHostPageable };
    stream.submit(task(call, Tally::Copy(way, len), touch, move |stamp| {
        stamp.access(from, len, false)?;
        pages::copy(real(call, device, from, n)?, host::device_view(to, len) as *mut u8, len);
        Ok(())
    }));
    if !pinned {
        stream.sync();
        current()?;
    }
    Ok(())
}

fn on_device(call: &'static str, to: u64, from: u64, n: usize, stream: &Arc<Stream>) -> Result<(), i32> {
    if n == 0 {
        return Ok(());
    }
    check(call, from, n)?;
    check(call, to, n)?;
    let (device, len) = (stream.device, n as u64);
    stream.submit(task(call, Tally::Copy(Way::DeviceToDevice, len), None, move |stamp| {
        stamp.access(from, len, false)?;
        stamp.access(to, len, true)?;
        pages::copy(real(call, device, from, n)?, real(call, device, to, n)?, len);
        Ok(())
    }));
    Ok(())
}

/// Requires no peer access: without it the driver stages the bytes through the host.
fn between_devices(
    call: &'static str,
    to: u64,
    from: u64,
    n: usize,
    stream: &Arc<Stream>,
) -> Result<(), i32> {
    if n == 0 {
        return Ok(());
    }
    check(call, from, n)?;
    check(call, to, n)?;
    let len = n as u64;
    stream.submit(task(call, Tally::Copy(Way::Peer, len), None, move |stamp| {
        stamp.access(from, len, false)?;
        stamp.access(to, len, true)?;
        let illegal = |e| (ILLEGAL_ADDRESS, format!("{call}: {e}"));
        let memory = lock(&MEMORY);
        let (from, to) = (
            memory.real_anywhere(from, len).map_err(illegal)?,
            memory.real_anywhere(to, len).map_err(illegal)?,
        );
        drop(memory);
        pages::copy(from, to, len);
        Ok(())
    }));
    Ok(())
}

/// The unified function: the pointers determine the direction.
fn anywhere(call: &'static str, to: u64, from: u64, n: usize, stream: &Arc<Stream>) -> Result<(), i32> {
    match (is_device(to), is_device(from)) {
        (true, true) => on_device(call, to, from, n, stream),
        (true, false) => host_to_device(call, to, from, n, stream),
        (false, true) => device_to_host(call, to, from, n, stream),
        (false, false) => Err(wrong(call, "neither pointer is of a device")),
    }
}

fn fill(call: &'static str, p: u64, value: &[u8], n: usize, stream: &Arc<Stream>) -> Result<(), i32> {
    let (device, value) = (stream.device, value.to_vec());
    let len = n.checked_mul(value.len()).ok_or(INVALID_VALUE)?;
    if len == 0 {
        return Ok(());
    }
    if !p.is_multiple_of(value.len() as u64) {
        return Err(wrong(call, &format!("{p:#x} is not aligned to {} bytes", value.len())));
    }
    check(call, p, len)?;
    stream.submit(task(call, Tally::Nothing, None, move |stamp| {
        stamp.access(p, len as u64, true)?;
        let to = real(call, device, p, len)?;
        let pattern = value.repeat(n);
        pages::copy(pattern.as_ptr(), to, len as u64);
        Ok(())
    }));
    Ok(())
}

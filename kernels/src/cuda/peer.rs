//! Copies between two GPUs of one process.

use cudarc::driver::{result, sys};

use super::driver::check_driver;
use super::event::Event;
use super::gpu::Gpu;
use super::info::{Link, link};
use super::slice::{CudaSlice, CudaSliceMut};
use crate::{KernelError, Result};

/// The path of a copy between GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerPath {
    /// Within one device.
    SameDevice,
    /// Peer to peer over NVLink or PCIe.
    Direct,
    /// Through pinned host memory.
    Staged,
}

impl std::fmt::Display for PeerPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            PeerPath::SameDevice => "same device",
            PeerPath::Direct => "peer to peer",
            PeerPath::Staged => "staged through pinned host memory",
        })
    }
}

/// The path of copies from one device to another; the first call for a pair enables peer access.
///
/// # Errors
/// [`KernelError::Cuda`].
pub fn path(from: &'static Gpu, to: &'static Gpu) -> Result<PeerPath> {
    match link(to.index(), from.index()) {
        Link::Same => Ok(PeerPath::SameDevice),
        Link::Host => Ok(PeerPath::Staged),
        Link::Peer | Link::PeerWithAtomics => {
            Ok(if enable(to, from)? { PeerPath::Direct } else { PeerPath::Staged })
        }
    }
}

/// Gives `gpu` access to the memory of `peer`, in its pool and outside. False if it has access to as many others as the machine allows:
/// eight without NVSwitch (CUDA Programming Guide, "Peer-to-Peer Memory Access").
fn enable(gpu: &'static Gpu, peer: &'static Gpu) -> Result<bool> {
    gpu.bind()?;
    // SAFETY: the peer's context lives as long as the process.
    let enabled = unsafe { sys::cuCtxEnablePeerAccess(peer.context(), 0) };
    if enabled == sys::CUresult::CUDA_ERROR_TOO_MANY_PEERS {
        return Ok(false);
    }
    if enabled != sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
        check_driver(gpu.index(), "cuCtxEnablePeerAccess", enabled.result())?;
    }
    let Ok(pool) = peer.pool.raw() else { return Ok(true) };
    // SAFETY: zero is a valid value of every field.
    let mut access: sys::CUmemAccessDesc = unsafe { std::mem::zeroed() };
    access.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = gpu.index() as i32;
    access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    // SAFETY: the pool lives as long as the process, and one descriptor is passed.
    let set = unsafe { sys::cuMemPoolSetAccess(pool, &access, 1) };
    check_driver(gpu.index(), "cuMemPoolSetAccess", set.result()).map(|()| true)
}

/// Copies elements between devices, or within one, ordered after earlier and before later work on both compute streams.
///
/// # Errors
/// [`KernelError::OutOfRange`] if the lengths differ; [`KernelError::Cuda`]; [`KernelError::OutOfMemory`] for the pinned memory
/// of a staged copy.
pub fn copy(from: CudaSlice<'_>, to: CudaSliceMut<'_>) -> Result<PeerPath> {
    let (bytes, len) = (from.len_bytes(), to.len_bytes());
    if bytes != len {
        return Err(KernelError::OutOfRange { op: "copy (bytes)", start: 0, end: bytes, len });
    }
    let (source, target) = (from.gpu(), to.gpu());
    let path = path(source, target)?;
    if bytes == 0 {
        return Ok(path);
    }
    match path {
        PeerPath::SameDevice => {
            source.bind()?;
            // SAFETY: both views hold that many bytes; they do not overlap, since one is exclusive.
            let copied =
                unsafe { result::memcpy_dtod_async(to.ptr(), from.ptr(), bytes, source.compute().raw()) };
            check_driver(source.index(), "cuMemcpyDtoDAsync", copied)?;
        }
        PeerPath::Direct => {
            let (ready, done) = (Event::untimed(source)?, Event::untimed(target)?);
            ready.record(source.compute())?;
            let stream = target.compute();
            stream.wait(&ready)?;
            target.bind()?;
            // SAFETY: both views hold that many bytes on the devices of these contexts.
            let copied = unsafe {
                result::memcpy_peer_async(
                    target.context(),
                    to.ptr(),
                    source.context(),
                    from.ptr(),
                    bytes,
                    stream.raw(),
                )
            };
            check_driver(target.index(), "cuMemcpyPeerAsync", copied)?;
            // The source is freed in the order of its own stream.
            done.record(stream)?;
            source.compute().wait(&done)?;
        }
        PeerPath::Staged => staged(from, &to, bytes)?,
    }
    Ok(path)
}

/// Size of the pinned memory of a staged copy, which goes in chunks: as much as the tensor could be more than the host has.
const STAGE_BYTES: usize = 16 << 20;

/// Copies through the host in chunks; blocks until done, since the pinned memory lives no longer.
fn staged(from: CudaSlice<'_>, to: &CudaSliceMut<'_>, bytes: usize) -> Result<()> {
    let (source, target) = (from.gpu(), to.gpu());
    let host = source.host_memory(bytes.min(STAGE_BYTES))?;
    for start in (0..bytes).step_by(STAGE_BYTES) {
        let n = (bytes - start).min(STAGE_BYTES);
        let (from, to) = (from.ptr() + start as u64, to.ptr() + start as u64);
        source.bind()?;
        // SAFETY: both sides hold that many bytes; host memory lives until both copies are done.
        let down =
            unsafe { sys::cuMemcpyDtoHAsync_v2(host.as_ptr().cast(), from, n, source.compute().raw()) };
        check_driver(source.index(), "cuMemcpyDtoHAsync", down.result())?;
        source.compute().synchronize()?;
        target.bind()?;
        // SAFETY: as above.
        let up = unsafe { sys::cuMemcpyHtoDAsync_v2(to, host.as_ptr().cast(), n, target.compute().raw()) };
        check_driver(target.index(), "cuMemcpyHtoDAsync", up.result())?;
        target.compute().synchronize()?;
    }
    Ok(())
}

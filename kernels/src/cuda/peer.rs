//! Copies between two GPUs of one process.

use cudarc::driver::{result, sys};

use super::info::{Link, link};
use super::memory::Pinned;
use super::{CudaSlice, CudaSliceMut, Event, Gpu, check_driver};
use crate::{KernelError, Result};

/// The way that a copy between GPUs takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerPath {
    /// Within one device.
    SameDevice,
    /// From memory to memory over NVLink or PCIe.
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

/// The way that copies from one device to the other take; the first call of a pair opens it.
///
/// # Errors
/// [`KernelError::Cuda`].
pub fn path(from: &'static Gpu, to: &'static Gpu) -> Result<PeerPath> {
    match link(to.index(), from.index()) {
        Link::Same => Ok(PeerPath::SameDevice),
        Link::Host => Ok(PeerPath::Staged),
        Link::Peer | Link::PeerWithAtomics => {
            enable(to, from)?;
            Ok(PeerPath::Direct)
        }
    }
}

/// Lets work of `gpu` reach the memory of `peer`, of the pool and outside it.
fn enable(gpu: &'static Gpu, peer: &'static Gpu) -> Result<()> {
    gpu.bind()?;
    // SAFETY: the peer's context lives as long as the process.
    let enabled = unsafe { sys::cuCtxEnablePeerAccess(peer.context(), 0) };
    if enabled != sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
        check_driver(gpu.index(), "cuCtxEnablePeerAccess", enabled.result())?;
    }
    // SAFETY: zero is a valid value of every field.
    let mut access: sys::CUmemAccessDesc = unsafe { std::mem::zeroed() };
    access.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = gpu.index() as i32;
    access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    // SAFETY: the pool lives as long as the process, and there is one description.
    let set = unsafe { sys::cuMemPoolSetAccess(peer.memory.pool(), &access, 1) };
    check_driver(gpu.index(), "cuMemPoolSetAccess", set.result())
}

/// Copies elements between devices, or within one, behind the work of both compute streams so far; work that either is
/// asked for later comes after it.
///
/// # Errors
/// [`KernelError::OutOfRange`] if the lengths differ; [`KernelError::Cuda`]; [`KernelError::OutOfMemory`] where a staged
/// copy gets no pinned memory.
pub fn copy(from: CudaSlice<'_>, to: CudaSliceMut<'_>) -> Result<PeerPath> {
    if from.len_bytes() != to.len_bytes() {
        let (end, len) = (from.len_bytes(), to.len_bytes());
        return Err(KernelError::OutOfRange { op: "copy (bytes)", start: 0, end, len });
    }
    let (source, target) = (from.gpu(), to.gpu());
    let path = path(source, target)?;
    let bytes = from.len_bytes();
    if bytes == 0 {
        return Ok(path);
    }
    match path {
        PeerPath::SameDevice => {
            source.bind()?;
            // SAFETY: both views hold that many bytes and do not overlap, one being exclusive.
            let copied =
                unsafe { result::memcpy_dtod_async(to.ptr(), from.ptr(), bytes, source.compute().raw()) };
            check_driver(source.index(), "cuMemcpyDtoDAsync", copied)?;
        }
        PeerPath::Direct => {
            let (ready, done) = (Event::new(source)?, Event::new(target)?);
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
            // The source may be given back in the order of its own stream.
            done.record(stream)?;
            source.compute().wait(&done)?;
        }
        PeerPath::Staged => staged(from, &to, bytes)?,
    }
    Ok(path)
}

/// Pinned memory of a staged copy; a page-locked piece as large as the tensor could be more than the host has.
const STAGE_BYTES: usize = 16 << 20;

/// Down to the host and up again, piece by piece; blocks until it is done, since the pinned memory lives no longer.
fn staged(from: CudaSlice<'_>, to: &CudaSliceMut<'_>, bytes: usize) -> Result<()> {
    let (source, target) = (from.gpu(), to.gpu());
    let host = Pinned::zeroed(source, bytes.min(STAGE_BYTES))?;
    for start in (0..bytes).step_by(STAGE_BYTES) {
        let n = (bytes - start).min(STAGE_BYTES);
        let (from, to) = (from.ptr() + start as u64, to.ptr() + start as u64);
        source.bind()?;
        // SAFETY: both sides hold that many bytes; the host's lives until both copies are done.
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

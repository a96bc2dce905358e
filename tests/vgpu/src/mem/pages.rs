//! The system calls and raw accesses behind device and pinned memory. Addresses here are real addresses in ranges that
//! this crate has reserved or mapped itself.

use std::fs::File;
use std::os::fd::AsRawFd;

/// Page size of the host.
pub(crate) const PAGE: u64 = 4096;

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Reserves `[at, at + len)` without access. Returns false if the range is in use.
pub(crate) fn reserve(at: u64, len: u64) -> bool {
    // SAFETY: MAP_FIXED_NOREPLACE maps nothing over an existing mapping.
    let got = unsafe {
        libc::mmap(at as _, len as usize, libc::PROT_NONE, ANONYMOUS | libc::MAP_FIXED_NOREPLACE, -1, 0)
    };
    got as u64 == at
}

/// Makes reserved pages readable and writable.
pub(crate) fn open(at: u64, len: u64) -> bool {
    protect(at, len, libc::PROT_READ | libc::PROT_WRITE)
}

/// Changes the host's access rights to pages of this crate.
pub(crate) fn protect(at: u64, len: u64, protection: i32) -> bool {
    // SAFETY: the range is within a mapping of this crate; an access that it forbids is answered by `trap`.
    unsafe { libc::mprotect(at as _, len as usize, protection) == 0 }
}

/// Releases the pages and keeps the reservation.
pub(crate) fn close(at: u64, len: u64) {
    // SAFETY: replaces pages of the device range, to which nobody holds a reference, by inaccessible ones.
    unsafe { libc::mmap(at as _, len as usize, libc::PROT_NONE, ANONYMOUS | libc::MAP_FIXED, -1, 0) };
}

/// Maps `len` bytes of a file in place of reserved pages.
pub(crate) fn map_file(at: u64, len: u64, file: &File) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: replaces pages of the device range, to which nobody holds a reference.
    let got = unsafe {
        libc::mmap(at as _, len as usize, access, libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd(), 0)
    };
    got as u64 == at
}

/// Fresh zeroed memory that [`alias`] can map a second time.
pub(crate) fn map_anywhere(len: u64) -> Option<u64> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let got = unsafe { libc::mmap(std::ptr::null_mut(), len as usize, access, flags, -1, 0) };
    (got != libc::MAP_FAILED).then_some(got as u64)
}

/// A second view, with separate protection, of memory from [`map_anywhere`].
pub(crate) fn alias(at: u64, len: u64) -> Option<u64> {
    // SAFETY: an old length of zero makes mremap(2) leave the old mapping and map its pages again elsewhere.
    let got = unsafe { libc::mremap(at as _, 0, len as usize, libc::MREMAP_MAYMOVE) };
    (got != libc::MAP_FAILED).then_some(got as u64)
}

/// Unmaps memory from [`map_anywhere`] or [`alias`].
pub(crate) fn unmap(at: u64, len: u64) {
    // SAFETY: the caller mapped exactly this range and hands it back.
    unsafe { libc::munmap(at as _, len as usize) };
}

/// Fills accessible memory.
pub(crate) fn fill(at: u64, len: u64, byte: u8) {
    // SAFETY: the range was opened or mapped by the caller.
    unsafe { std::ptr::write_bytes(at as *mut u8, byte, len as usize) };
}

/// Position of the first byte in accessible memory that differs from `byte`.
pub(crate) fn first_other_than(at: u64, len: u64, byte: u8) -> Option<u64> {
    bytes(at, len).iter().position(|&b| b != byte).map(|i| i as u64)
}

/// Accessible memory as bytes, valid while the caller keeps it mapped.
pub(crate) fn bytes<'a>(at: u64, len: u64) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the range is mapped and readable; what others may write meanwhile are plain bytes.
    unsafe { std::slice::from_raw_parts(at as *const u8, len as usize) }
}

/// Copies between accessible memory; the ranges may overlap.
pub(crate) fn copy(from: *const u8, to: *mut u8, len: u64) {
    // SAFETY: both ranges were checked against their allocations by the caller, or are the client's host memory,
    // for which its C contract vouches.
    unsafe { std::ptr::copy(from, to, len as usize) };
}

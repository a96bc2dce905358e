//! Device memory that another process maps (`cuIpc*`).
//!
//! Exporting moves the bytes of a plain allocation, at the same address, into an anonymous file; the handle contains
//! process, descriptor and inode. Importing opens `/proc/PID/fd/N`, compares the inode (a descriptor may have been
//! reused) and maps the file into its own device range. Both processes must belong to one user on one host, as on real
//! hardware. The order between two processes is not checked, only the order within each.

use super::{Memory, SHIFT, pages};
use crate::code::{INVALID_CONTEXT, INVALID_VALUE, OUT_OF_MEMORY, PEER_ACCESS_UNSUPPORTED};
use crate::config::CONFIG;
use crate::report::report;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

/// The file behind an exported allocation. It stays open while the allocation lives.
pub(crate) struct Shared {
    file: File,
}

/// Origin of an imported allocation.
pub(crate) struct Import {
    handle: Handle,
    /// The device in whose context the handle was opened.
    pub(crate) device: usize,
    /// Number of times it was opened; it is unmapped after it was closed the same number of times.
    opened: u32,
}

/// The content of a `CUipcMemHandle`, 64 bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Handle {
    magic: [u8; 8],
    pid: u32,
    descriptor: i32,
    inode: u64,
    physical_device: u64,
    size: u64,
    pages: u64,
    rest: [u64; 2],
}

const MAGIC: [u8; 8] = *b"vgpu-ipc";
const _: () = assert!(size_of::<Handle>() == 64);

impl Memory {
    /// A handle for the allocation that begins at `p`. No work may be in flight on it.
    pub(crate) fn export(&mut self, p: u64) -> Result<Handle, i32> {
        let wrong = |what: String| {
            report(&format!("cuIpcGetMemHandle: {what}"));
            INVALID_VALUE
        };
        let known = self.describe(p);
        let Some(a) = self.find_mut(p) else {
            return Err(wrong(format!("{known} is not the base of an allocation")));
        };
        if a.pool.is_some() {
            return Err(wrong(format!(
                "{known} is memory of a pool, which has no such handle; use cuMemAlloc"
            )));
        }
        if a.import.is_some() {
            return Err(wrong(format!("{known} is itself imported")));
        }
        let (block, pages) = (a.block, a.pages);
        if a.shared.is_none() {
            a.shared =
                Some(Shared { file: move_into_file(block + SHIFT, pages).map_err(|_| OUT_OF_MEMORY)? });
        }
        let shared = a.shared.as_ref().ok_or(OUT_OF_MEMORY)?;
        let inode = shared.file.metadata().map_err(|_| OUT_OF_MEMORY)?.ino();
        Ok(Handle {
            magic: MAGIC,
            pid: std::process::id(),
            descriptor: shared.file.as_raw_fd(),
            inode,
            physical_device: CONFIG.physical(a.device) as u64,
            size: a.size,
            pages,
            rest: [0; 2],
        })
    }

    /// Maps the memory behind a handle for the context of `device`; returns the same pointer if it is already mapped.
    pub(crate) fn import(&mut self, handle: Handle, device: usize) -> Result<u64, i32> {
        if handle.magic != MAGIC {
            report("cuIpcOpenMemHandle: the handle is not one of cuIpcGetMemHandle");
            return Err(INVALID_VALUE);
        }
        if handle.pid == std::process::id() {
            report("cuIpcOpenMemHandle: a handle can't be opened by the process that made it");
            return Err(INVALID_CONTEXT);
        }
        let again =
            |a: &super::Alloc| a.import.as_ref().is_some_and(|i| i.handle == handle && i.device == device);
        if let Some((&p, a)) = self.live.iter_mut().find(|(_, a)| again(a)) {
            if let Some(import) = &mut a.import {
                import.opened += 1;
            }
            return Ok(p);
        }
        let physical = handle.physical_device as usize;
        let owner = CONFIG.visible.iter().position(|&d| d == physical).ok_or(INVALID_VALUE)?;
        if owner != device && !CONFIG.peers(device, owner) {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        let path = format!("/proc/{}/fd/{}", handle.pid, handle.descriptor);
        let file = File::options().read(true).write(true).open(&path);
        let file = match file {
            Ok(file) if file.metadata().is_ok_and(|m| m.ino() == handle.inode) => file,
            _ => {
                report("cuIpcOpenMemHandle: the process that made the handle, or its allocation, is gone");
                return Err(INVALID_VALUE);
            }
        };
        let block = self.take_addresses(owner, handle.pages)?;
        if !pages::map_file(block + SHIFT, handle.pages, &file) {
            return Err(OUT_OF_MEMORY);
        }
        self.ids += 1;
        let p = block + handle.pages - handle.size.max(1).next_multiple_of(256);
        let alloc = super::Alloc {
            size: handle.size,
            device: owner,
            id: self.ids,
            pool: None,
            shared: None,
            import: Some(Import { handle, device, opened: 1 }),
            freeing: false,
            moved: [0; 2],
            block,
            pages: handle.pages,
            taken: 0,
        };
        self.live.insert(p, alloc);
        Ok(p)
    }

    /// Undoes one [`Memory::import`]. No work may be in flight on the memory.
    pub(crate) fn close_import(&mut self, p: u64) -> Result<(), i32> {
        let last = match self.find_mut(p).and_then(|a| a.import.as_mut()) {
            Some(import) => {
                import.opened -= 1;
                import.opened == 0
            }
            None => {
                report(&format!("cuIpcCloseMemHandle: {} was not opened from a handle", self.describe(p)));
                return Err(INVALID_VALUE);
            }
        };
        if last {
            self.free(p).map_err(|_| INVALID_VALUE)?;
        }
        Ok(())
    }
}

/// Moves pages into an anonymous file and maps the file in their place.
fn move_into_file(at: u64, len: u64) -> std::io::Result<File> {
    // SAFETY: a new descriptor that nobody else knows.
    let descriptor = unsafe { libc::memfd_create(c"vgpu-memory".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is valid and owned by nobody else.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all(pages::bytes(at, len))?;
    if !pages::map_file(at, len, &file) {
        return Err(std::io::Error::last_os_error());
    }
    Ok(file)
}

//! Memory that the processes of one host share, without a name in any file system.
//!
//! One process creates an anonymous file (`memfd_create`), the others open it through `/proc/<pid>/fd`. A killed job leaves
//! nothing behind, and the size of `/dev/shm`, 64 MB in many containers, does not matter.

use std::fs::{File, OpenOptions};
use std::io::{self, Error};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;

/// A mapped shared file.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

/// The place of a shared file, and the identity by which another process recognizes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) pid: u32,
    pub(crate) fd: i32,
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// Creates an anonymous shared file of `len` zero bytes.
pub(crate) fn create(len: usize) -> io::Result<(File, Address)> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"ddp-comm".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the descriptor is open and owned by nothing else.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len as u64)?;
    let address = address_of(&file)?;
    Ok((file, address))
}

/// The place of an open file of this process.
pub(crate) fn address_of(file: &File) -> io::Result<Address> {
    let metadata = file.metadata()?;
    Ok(Address {
        pid: std::process::id(),
        fd: file.as_raw_fd(),
        device: metadata.dev(),
        inode: metadata.ino(),
    })
}

/// Opens the file that another process of this host created.
pub(crate) fn open(address: Address) -> io::Result<File> {
    let path = format!("/proc/{}/fd/{}", address.pid, address.fd);
    // A file of a cache may be read-only.
    let writable = OpenOptions::new().read(true).write(true).open(&path);
    let file = writable.or_else(|_| File::open(&path))?;
    let metadata = file.metadata()?;
    // In another PID namespace a different file may have this path.
    if (metadata.dev(), metadata.ino()) != (address.device, address.inode) {
        return Err(Error::other("the path leads to another file"));
    }
    Ok(file)
}

impl Mapping {
    /// Maps the first `len` bytes and populates all pages.
    pub(crate) fn new(file: &File, len: usize) -> io::Result<Self> {
        Self::at(file, 0, len)
    }

    /// Maps `len` bytes from byte `start`, a multiple of a page, and populates all pages.
    pub(crate) fn at(file: &File, start: u64, len: usize) -> io::Result<Self> {
        // Access beyond the end of the file raises SIGBUS.
        if file.metadata()?.len() < start + len as u64 {
            return Err(Error::other("the shared file is too short"));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping of an open file, at an address that the system chooses.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), start as libc::off_t)
        };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| Error::other("mapped at address 0"))?;
        Ok(Mapping { base, len })
    }

    /// The first byte, aligned to a page.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and unmapped once.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

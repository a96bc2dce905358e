//! Memory that the processes of one host share, without a name in any file system.
//!
//! One process makes an anonymous file (`memfd_create`), the others open it through `/proc/<pid>/fd`. Nothing is
//! left behind by a killed job, and the size of `/dev/shm`, 64 MB in many containers, does not matter.

use std::fs::{File, OpenOptions};
use std::io::{self, Error};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;

/// A mapped shared file.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

/// Where another process finds a shared file, and how it knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) pid: u32,
    pub(super) fd: i32,
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// Makes an anonymous shared file of zeros.
pub(super) fn create(len: usize) -> io::Result<(File, Address)> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"ddp-comm".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the descriptor is open and nobody else's.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len as u64)?;
    let metadata = file.metadata()?;
    let address = Address {
        pid: std::process::id(),
        fd: file.as_raw_fd(),
        device: metadata.dev(),
        inode: metadata.ino(),
    };
    Ok((file, address))
}

/// Opens the file that another process of this host made.
pub(super) fn open(address: Address) -> io::Result<File> {
    let path = format!("/proc/{}/fd/{}", address.pid, address.fd);
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let metadata = file.metadata()?;
    // Another namespace of processes may have another file there.
    if (metadata.dev(), metadata.ino()) != (address.device, address.inode) {
        return Err(Error::other("not the file that was meant"));
    }
    Ok(file)
}

impl Mapping {
    /// Maps the first `len` bytes, all pages present.
    pub(super) fn new(file: &File, len: usize) -> io::Result<Self> {
        // Beyond the file's end, an access would be a fatal signal.
        if file.metadata()?.len() < len as u64 {
            return Err(Error::other("the shared file is too short"));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the system's choice, of an open file.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| Error::other("mapped at address 0"))?;
        Ok(Mapping { base, len })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

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

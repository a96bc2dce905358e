//! Memory that a launcher holds for the records of its ranks, so that those that it starts again find them.

use std::fs::File;
use std::io;

use crate::group::host_memory::{self, Address};

/// Environment variable of the ranks: process, descriptor, device and inode of the memory.
const VARIABLE: &str = "DDP_TRAIN_KEPT_MEMORY";

/// Memory without a name, for as long as this value lives.
#[derive(Debug)]
pub struct KeptMemory {
    _file: File,
    address: Address,
}

impl KeptMemory {
    /// Creates empty memory.
    ///
    /// # Errors
    /// The system's error.
    pub fn create() -> io::Result<Self> {
        let (file, address) = host_memory::create(0)?;
        Ok(KeptMemory { _file: file, address })
    }

    /// Environment variable by which ranks find it, and its value.
    pub fn variable(&self) -> (&'static str, String) {
        let Address { pid, fd, device, inode } = self.address;
        (VARIABLE, format!("{pid},{fd},{device},{inode}"))
    }

    /// The memory that the launcher of this process holds, opened; `None` if it holds none.
    pub fn from_launcher() -> Option<File> {
        let text = std::env::var(VARIABLE).ok()?;
        let numbers: Vec<u64> = text.split(',').map(|number| number.parse().ok()).collect::<Option<_>>()?;
        let &[pid, fd, device, inode] = &numbers[..] else { return None };
        let (pid, fd) = (pid.try_into().ok()?, fd.try_into().ok()?);
        host_memory::open(Address { pid, fd, device, inode }).ok()
    }
}

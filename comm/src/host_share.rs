//! Results of work that one rank of each host does for all of them.
//!
//! The first rank of a host writes records to a file in memory, and the others read or map them in the same order. The file has no name in
//! any file system, so a killed job leaves nothing behind.
//!
//! ```
//! use ddp_comm::threads;
//!
//! let squares = threads::run(3, |world| -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
//!     let Some(share) = world.share_host()? else { return Ok(49) };
//!     if share.leads() {
//!         share.write(&49u64.to_le_bytes())?;
//!     }
//!     world.group().barrier()?;
//!     if share.leads() {
//!         return Ok(49);
//!     }
//!     let record = share.read()?;
//!     Ok(u64::from_le_bytes(record[..].try_into()?))
//! });
//! assert!(squares.into_iter().all(|square| square.unwrap() == 49));
//! ```

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use ddp_kernels::cpu::cpu_set::CpuSet;

use crate::group::host_memory::{self, Address};
use crate::{Result, World};

/// Records begin at multiples of it, after their length: they can be mapped, and hold any type of element.
const PAGE_BYTES: u64 = 4096;

/// Records that the ranks of a host have in common.
///
/// Ranks write or read the same sequence of records. The caller lets the readers wait until a record is complete, with a collective.
#[derive(Debug)]
pub struct HostShare {
    file: File,
    leads: bool,
    /// Whether other ranks read what this rank writes.
    has_readers: bool,
    /// Byte at which the next record begins, for this rank.
    next: AtomicU64,
    cpus: CpuSet,
}

impl World {
    /// Records in common for the ranks of each host. Collective.
    ///
    /// `None` for a rank alone, and if some rank can't open the file of its host's first one: for all ranks alike.
    ///
    /// # Errors
    /// See [`Group::all_gather_bytes`](crate::Group::all_gather_bytes).
    pub fn share_host(&self) -> Result<Option<HostShare>> {
        if self.world_size() == 1 {
            return Ok(None);
        }
        let leads = self.local_rank().0 == 0;
        let created = if leads { host_memory::create(0).ok() } else { None };
        let of_rank = Member {
            address: created.as_ref().map(|(_, address)| *address),
            cpus: CpuSet::of_thread().to_string(),
            host: self.hostname().to_owned(),
        };
        let all = self.group().all_gather_bytes(of_rank.encode().as_bytes())?;
        let all: Vec<Member> = all.iter().map(|bytes| Member::decode(bytes)).collect();
        // Names of hosts need not differ, so the file itself tells whose it is; usually the first one with the name is right.
        let mut addresses: Vec<(bool, Address)> =
            all.iter().filter_map(|member| Some((member.host != of_rank.host, member.address?))).collect();
        addresses.sort_by_key(|(is_elsewhere, _)| *is_elsewhere);
        let found = match created {
            Some(own) => Some(own),
            None => addresses
                .into_iter()
                .find_map(|(_, address)| Some((host_memory::open(address).ok()?, address))),
        };
        // The leaders' files stay open until all ranks have opened them.
        let inode = found.as_ref().map_or(0, |(_, address)| address.inode);
        let all_inodes = self.group().all_gather_bytes(&inode.to_le_bytes())?;
        let is_same = |other: &Vec<u8>| other[..] == inode.to_le_bytes();
        let has_all = all_inodes.iter().all(|other| other[..] != 0u64.to_le_bytes());
        let Some((file, _)) = found.filter(|_| has_all) else { return Ok(None) };
        let of_host = all.iter().filter(|member| member.host == of_rank.host);
        let cpus =
            of_host.filter_map(|member| CpuSet::parse(&member.cpus)).fold(CpuSet::of_thread(), CpuSet::union);
        let has_readers = all_inodes.iter().filter(|other| is_same(other)).count() > 1;
        Ok(Some(HostShare { file, leads, has_readers, next: AtomicU64::new(0), cpus }))
    }
}

impl HostShare {
    /// Whether this rank writes the records: the first of its host.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// Whether other ranks read the records; otherwise none need be written.
    pub fn has_readers(&self) -> bool {
        self.has_readers
    }

    /// The CPUs of all ranks of this host.
    pub fn cpus(&self) -> CpuSet {
        self.cpus
    }

    /// The file, to map records of it.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Begins a record of `len` bytes, which are zeros until they are written, and returns their range in the file.
    ///
    /// # Errors
    /// The system's error, if it has no memory.
    ///
    /// # Panics
    /// On a rank that does not lead.
    pub fn begin(&self, len: u64) -> io::Result<Range<u64>> {
        assert!(self.leads, "the first rank of a host writes");
        let start = self.next.load(Ordering::Relaxed) + PAGE_BYTES;
        self.file.set_len(start + len)?;
        self.file.write_all_at(&len.to_le_bytes(), start - PAGE_BYTES)?;
        Ok(self.pass(start, len))
    }

    /// Writes a record. As [`HostShare::begin`].
    ///
    /// # Errors
    /// The system's error, if it has no memory.
    pub fn write(&self, record: &[u8]) -> io::Result<()> {
        let range = self.begin(record.len() as u64)?;
        self.file.write_all_at(record, range.start)
    }

    /// The range of the next record in the file.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::UnexpectedEof`] if the record was not written.
    pub fn next(&self) -> io::Result<Range<u64>> {
        let mut len = [0; 8];
        let begin = self.next.load(Ordering::Relaxed);
        self.file.read_exact_at(&mut len, begin)?;
        Ok(self.pass(begin + PAGE_BYTES, u64::from_le_bytes(len)))
    }

    /// The next record. As [`HostShare::next`].
    ///
    /// # Errors
    /// As [`HostShare::next`].
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let range = self.next()?;
        let mut record = vec![0; (range.end - range.start) as usize];
        self.file.read_exact_at(&mut record, range.start)?;
        Ok(record)
    }

    /// Goes on after the record of `len` bytes at `start`, and returns its range.
    fn pass(&self, start: u64, len: u64) -> Range<u64> {
        self.next.store((start + len).next_multiple_of(PAGE_BYTES), Ordering::Relaxed);
        start..start + len
    }
}

/// A rank, to the others.
struct Member {
    /// Its file, if it leads and could create one.
    address: Option<Address>,
    cpus: String,
    host: String,
}

impl Member {
    fn encode(&self) -> String {
        let Address { pid, fd, device, inode } =
            self.address.unwrap_or(Address { pid: 0, fd: 0, device: 0, inode: 0 });
        format!("{pid}\n{fd}\n{device}\n{inode}\n{}\n{}", self.cpus, self.host)
    }

    fn decode(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut fields = text.splitn(6, '\n');
        let mut field = || fields.next().unwrap_or_default();
        let address = Address {
            pid: field().parse().unwrap_or(0),
            fd: field().parse().unwrap_or(0),
            device: field().parse().unwrap_or(0),
            inode: field().parse().unwrap_or(0),
        };
        let (cpus, host) = (field().to_owned(), field().to_owned());
        // No process has id 0.
        Member { address: Some(address).filter(|address| address.pid != 0), cpus, host }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    #[test]
    fn readers_get_the_records_in_order() {
        let records: [&[u8]; 4] = [b"first", b"", &[7; 10_000], b"last"];
        let read = threads::run(3, |world| {
            let share = world.share_host().unwrap().expect("threads share their process");
            assert_eq!((share.leads(), share.has_readers()), (world.rank().0 == 0, true));
            assert!(!share.cpus().is_empty());
            let mut all = Vec::new();
            for record in records {
                if share.leads() {
                    share.write(record).unwrap();
                }
                world.group().barrier().unwrap();
                all.push(if share.leads() { record.to_vec() } else { share.read().unwrap() });
            }
            if !share.leads() {
                assert_eq!(share.next().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            }
            all
        });
        assert!(read.iter().all(|all| all.iter().map(Vec::as_slice).eq(records)), "{read:?}");
    }

    #[test]
    fn a_rank_alone_shares_nothing() {
        assert!(World::single().share_host().unwrap().is_none());
    }

    #[test]
    fn members_are_read_as_written() {
        let address = Some(Address { pid: 7, fd: 3, device: 1 << 40, inode: 9 });
        for address in [address, None] {
            let member = Member { address, cpus: "0-3,8".to_owned(), host: "node 7".to_owned() };
            let read = Member::decode(member.encode().as_bytes());
            assert_eq!((read.address, read.cpus, read.host), (address, member.cpus, member.host));
        }
    }
}

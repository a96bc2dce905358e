//! Results of work that one rank of each host does for all of them.
//!
//! The first rank of a host writes records to a file in memory, and the others read or map them in the same order. The file has no name in
//! any file system, so a killed job leaves nothing behind.
//!
//! ```
//! use ddp_comm::threads;
//!
//! let squares = threads::run(3, |world| -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
//!     let Some(share) = world.share_host(|| None)? else { return Ok(49) };
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
use std::io::{self, Read as _, Seek as _};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ddp_kernels::cpu::cpu_set::CpuSet;

use crate::group::host_memory::{self, Address};
use crate::host_slots::{self, HostSlots};
use crate::{Result, World};

/// Records begin at multiples of it, after their length: they can be mapped, and hold any type of element.
const PAGE_BYTES: u64 = 4096;

/// Records that the ranks of a host have in common.
///
/// Ranks write or read the same sequence of records. The caller lets the readers wait until a record is complete, with a collective.
#[derive(Debug)]
pub struct HostShare {
    file: Mutex<Arc<File>>,
    role: Role,
    /// Ranks of this file.
    n_ranks: usize,
    /// Number of files: of hosts, that is.
    n_hosts: usize,
    /// Whether a file keeps the records.
    is_kept: bool,
    /// Whether the records go to memory although a file was to keep them.
    is_moved: AtomicBool,
    /// Whether the records are of no use to later ranks.
    is_of_now: AtomicBool,
    /// Whether this rank reads no more.
    has_left: AtomicBool,
    /// Byte at which the next record begins, for this rank.
    next: AtomicU64,
    cpus: CpuSet,
    /// Memory of slots, if the ranks have some in common.
    memory: Option<SlotMemory>,
}

/// Memory in which [`HostSlots`] are made one after another, by all ranks in the same order.
#[derive(Debug)]
struct SlotMemory {
    file: Arc<File>,
    /// Byte after the slots so far.
    end: AtomicU64,
    /// Index of this rank on the host.
    place: usize,
}

/// Use that a rank makes of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It writes them, if somebody reads them.
    Writes {
        has_readers: bool,
    },
    Reads,
}

/// A file for records that are to outlive the ranks, opened by the first rank of a host.
#[derive(Debug)]
pub struct KeptFile {
    /// The file, open for reading and writing.
    pub file: File,
    /// Byte at which the first record begins.
    pub start: u64,
    /// Whether it holds all records already: then all ranks read them.
    pub is_complete: bool,
}

impl World {
    /// Records in common for the ranks of each host; `kept` opens their file on its first rank, in place of one in memory. Collective.
    ///
    /// `None` if some rank can't open the file of its host's first one, for all ranks alike, and for a rank alone without `kept`.
    ///
    /// # Errors
    /// See [`Group::all_gather_bytes`](crate::Group::all_gather_bytes).
    pub fn share_host(&self, kept: impl FnOnce() -> Option<KeptFile>) -> Result<Option<HostShare>> {
        let leads = self.local_rank().0 == 0;
        let kept = if leads { kept() } else { None };
        if self.world_size() == 1 {
            return Ok(kept.map(|kept| {
                let role = if kept.is_complete { Role::Reads } else { Role::Writes { has_readers: true } };
                HostShare::new(kept.file, role, [1, 1], true, kept.start, CpuSet::for_thread(), None)
            }));
        }
        let is_kept = kept.is_some();
        let (start, is_complete) = kept.as_ref().map_or((0, false), |kept| (kept.start, kept.is_complete));
        let created = match kept {
            Some(kept) => host_memory::address_of(&kept.file).ok().map(|address| (kept.file, address)),
            None if leads => host_memory::create(0).ok(),
            None => None,
        };
        let slots = if leads { host_memory::create(0).ok() } else { None };
        let own = Member {
            address: created.as_ref().map(|(_, address)| *address),
            slots: slots.as_ref().map(|(_, address)| *address),
            start,
            is_complete,
            cpus: CpuSet::for_thread().to_string(),
            host: self.host_key(),
        };
        let all = self.group().all_gather_bytes(own.encode().as_bytes())?;
        let all: Vec<Member> = all.iter().map(|bytes| Member::decode(bytes)).collect();
        // Containers of one host have names of their own, and share the start of its system.
        let may_lead = |member: &&Member| member.address.is_some() && member.boot_id() == own.boot_id();
        let mut leaders: Vec<&Member> = all.iter().filter(may_lead).collect();
        leaders.sort_by_key(|leader| leader.host != own.host);
        let found = match created {
            Some((file, _)) => Some((file, &own)),
            None => leaders.into_iter().find_map(|leader| {
                Some((host_memory::open(leader.address.filter(|_| !leads)?).ok()?, leader))
            }),
        };
        let slots = match slots {
            Some((file, _)) => Some(file),
            None => found.as_ref().and_then(|(_, leader)| host_memory::open(leader.slots?).ok()),
        };
        // The leaders' files stay open until all ranks have opened them.
        let of_rank = found.as_ref().map_or_else(String::new, |(_, leader)| leader.file());
        let files = self.group().all_gather_bytes(of_rank.as_bytes())?;
        if files.iter().any(Vec::is_empty) {
            return Ok(None);
        }
        let Some((file, leader)) = found else { return Ok(None) };
        let of_host = all.iter().filter(|member| member.host == own.host);
        let cpus = of_host
            .filter_map(|member| CpuSet::parse(&member.cpus))
            .fold(CpuSet::for_thread(), CpuSet::union);
        let n_ranks = files.iter().filter(|file| *file == of_rank.as_bytes()).count();
        let has_readers = is_kept || n_ranks > 1;
        let role = if leads && !is_complete { Role::Writes { has_readers } } else { Role::Reads };
        let mut hosts = files.clone();
        hosts.sort_unstable();
        hosts.dedup();
        let memory = slots.filter(|_| n_ranks > 1).map(|file| SlotMemory {
            file: Arc::new(file),
            end: AtomicU64::new(0),
            place: self.local_rank().0.min(n_ranks - 1),
        });
        Ok(Some(HostShare::new(file, role, [n_ranks, hosts.len()], is_kept, leader.start, cpus, memory)))
    }
}

impl HostShare {
    fn new(
        file: File,
        role: Role,
        [n_ranks, n_hosts]: [usize; 2],
        is_kept: bool,
        start: u64,
        cpus: CpuSet,
        memory: Option<SlotMemory>,
    ) -> Self {
        let (file, no) = (Mutex::new(Arc::new(file)), || AtomicBool::new(false));
        HostShare {
            file,
            role,
            n_ranks,
            n_hosts,
            is_kept,
            is_moved: no(),
            is_of_now: no(),
            has_left: no(),
            next: AtomicU64::new(start),
            cpus,
            memory,
        }
    }

    /// Number of hosts, on each of which one rank writes.
    pub fn n_hosts(&self) -> usize {
        self.n_hosts
    }

    /// Number of ranks that share the records.
    pub fn n_ranks(&self) -> usize {
        self.n_ranks
    }

    /// Slots of `sizes` bytes for values of which `identity` tells what they are. The ranks of a host make the same slots in the same order.
    ///
    /// `None` if this rank has no memory in common with others, or other ranks have slots of another identity in its place.
    pub fn slots(&self, identity: u64, sizes: &[u64]) -> Option<HostSlots> {
        let memory = self.memory.as_ref().filter(|_| self.takes_part())?;
        let start = memory.end.fetch_add(host_slots::n_bytes(sizes), Ordering::Relaxed);
        HostSlots::new(&memory.file, start, identity, sizes, [memory.place, self.n_ranks]).ok().flatten()
    }

    /// Copies the records so far to memory, where the next ones go.
    fn move_to_memory(&self) -> io::Result<()> {
        let (memory, _) = host_memory::create(0)?;
        let kept = self.file();
        (&*kept).rewind()?;
        io::copy(&mut (&*kept).take(self.position()), &mut &memory)?;
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(memory);
        self.is_moved.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// This rank reads no more records: it has other files than the rank that wrote them.
    pub fn leave(&self) {
        self.has_left.store(true, Ordering::Relaxed);
    }

    /// Whether this rank takes part, as a writer or a reader; otherwise it does the work by itself.
    pub fn takes_part(&self) -> bool {
        self.has_readers() && !self.has_left.load(Ordering::Relaxed)
    }

    /// The records are of no use to later ranks.
    pub fn do_not_keep(&self) {
        self.is_of_now.store(true, Ordering::Relaxed);
    }

    /// Whether [`HostShare::do_not_keep`] was called.
    pub fn is_of_now(&self) -> bool {
        self.is_of_now.load(Ordering::Relaxed)
    }

    /// Whether the records are in memory, although a file was to keep them: it had no room.
    pub fn is_moved(&self) -> bool {
        self.is_moved.load(Ordering::Relaxed)
    }

    /// Lets the ranks that read open the file to which the records were moved, if they were. Collective.
    ///
    /// # Errors
    /// See [`Group::all_gather_bytes`](crate::Group::all_gather_bytes).
    pub fn follow(&self, world: &World) -> Result<()> {
        let moved = self.is_moved().then(|| host_memory::address_of(&self.file()).ok()).flatten();
        let own = Member {
            address: moved,
            slots: None,
            start: 0,
            is_complete: false,
            cpus: String::new(),
            host: world.host_key(),
        };
        let all = world.group().all_gather_bytes(own.encode().as_bytes())?;
        // Records of other hosts may be in memory, and those of this host in a file; hosts may have the same name.
        let mut of_host =
            all.iter().map(|bytes| Member::decode(bytes)).filter(|member| member.host == own.host);
        let moved = of_host.find_map(|member| host_memory::open(member.address?).ok());
        // Without the file the next record is missing, and that is an error.
        if let Some(file) = moved.filter(|_| !self.leads()) {
            *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(file);
            self.is_moved.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether this rank writes the records: the first of its host, unless they are there already.
    pub fn leads(&self) -> bool {
        self.role != Role::Reads
    }

    /// Whether the records are read; otherwise none need be written.
    pub fn has_readers(&self) -> bool {
        self.role != Role::Writes { has_readers: false }
    }

    /// Byte of the file after the records so far.
    pub fn position(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// The CPUs of all ranks of this host.
    pub fn cpus(&self) -> CpuSet {
        self.cpus
    }

    /// The file, to map records of it.
    pub fn file(&self) -> Arc<File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins a record of `len` bytes, which are zeros until they are written, and returns their range in the file. Where a file that was to
    /// keep the records has no room, all of them go to memory, and the other ranks [`HostShare::follow`].
    ///
    /// # Errors
    /// The system's error, if it has no memory.
    ///
    /// # Panics
    /// On a rank that does not lead.
    pub fn begin(&self, len: u64) -> io::Result<Range<u64>> {
        assert!(self.leads(), "the first rank of a host writes");
        let start = self.next.load(Ordering::Relaxed) + PAGE_BYTES;
        // A file has all of its blocks from here on, so that a mapping never meets a full disk. Memory is taken as it is written, while what is
        // copied to it is freed.
        if let Err(error) = allocate(&self.file(), start + len) {
            if !self.is_kept || self.is_moved() {
                return Err(error);
            }
            self.move_to_memory()?;
            allocate(&self.file(), start + len)?;
        }
        let file = self.file();
        file.write_all_at(&len.to_le_bytes(), start - PAGE_BYTES)?;
        Ok(self.pass(start, len))
    }

    /// Writes a record. Same as [`HostShare::begin`].
    ///
    /// # Errors
    /// The system's error, if it has no memory.
    pub fn write(&self, record: &[u8]) -> io::Result<()> {
        let range = self.begin(record.len() as u64)?;
        self.file().write_all_at(record, range.start)
    }

    /// The range of the next record in the file.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::UnexpectedEof`] if the record was not written.
    pub fn next(&self) -> io::Result<Range<u64>> {
        let mut len = [0; 8];
        let begin = self.next.load(Ordering::Relaxed);
        self.file().read_exact_at(&mut len, begin)?;
        Ok(self.pass(begin + PAGE_BYTES, u64::from_le_bytes(len)))
    }

    /// The next record. Same as [`HostShare::next`].
    ///
    /// # Errors
    /// Same as [`HostShare::next`].
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let range = self.next()?;
        let mut record = vec![0; (range.end - range.start) as usize];
        self.file().read_exact_at(&mut record, range.start)?;
        Ok(record)
    }

    /// Goes on after the record of `len` bytes at `start`, and returns its range.
    fn pass(&self, start: u64, len: u64) -> Range<u64> {
        self.next.store((start + len).next_multiple_of(PAGE_BYTES), Ordering::Relaxed);
        start..start + len
    }
}

/// Makes a file of at least `len` bytes, for which there is room; one without a name is in memory.
fn allocate(file: &File, len: u64) -> io::Result<()> {
    let metadata = file.metadata()?;
    let len_now = metadata.len();
    if len <= len_now {
        return Ok(());
    }
    if metadata.nlink() == 0 {
        return file.set_len(len);
    }
    // SAFETY: a plain call on an open descriptor.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, len_now as i64, (len - len_now) as i64) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // Some file systems allocate blocks only when they are written, or when what was written is sent to a server.
            error if error.raw_os_error() == Some(libc::EOPNOTSUPP) => write_zeros(file, len_now..len),
            error => Err(error),
        },
    }
}

fn write_zeros(file: &File, range: Range<u64>) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    for at in range.clone().step_by(zeros.len()) {
        file.write_all_at(&zeros[..zeros.len().min((range.end - at) as usize)], at)?;
    }
    file.sync_data()
}

/// A rank, to the others.
struct Member {
    /// Its file, if it leads and could create one.
    address: Option<Address>,
    /// Its file of slots, likewise.
    slots: Option<Address>,
    /// Byte at which its first record begins.
    start: u64,
    /// Whether its records are complete.
    is_complete: bool,
    cpus: String,
    /// See [`World::host_key`].
    host: String,
}

impl Member {
    fn boot_id(&self) -> Option<&str> {
        self.host.rsplit(' ').next()
    }

    /// Identifies its file among the files of all ranks: two hosts may use the same inode number.
    fn file(&self) -> String {
        let of = |Address { device, inode, .. }| format!("{} {device} {inode}", self.host);
        self.address.map(of).unwrap_or_default()
    }

    fn encode(&self) -> String {
        let address = |of: Option<Address>| {
            let Address { pid, fd, device, inode } =
                of.unwrap_or(Address { pid: 0, fd: 0, device: 0, inode: 0 });
            format!("{pid} {fd} {device} {inode}")
        };
        let Member { start, is_complete, cpus, host, .. } = self;
        let (own, slots) = (address(self.address), address(self.slots));
        format!("{own}\n{slots}\n{start}\n{}\n{cpus}\n{host}", u8::from(*is_complete))
    }

    fn decode(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut fields = text.splitn(6, '\n');
        let mut field = || fields.next().unwrap_or_default();
        let address = |field: &str| {
            let mut numbers = field.split(' ').map(|number| number.parse().unwrap_or(0u64));
            let mut number = || numbers.next().unwrap_or(0);
            let (pid, fd) = (number() as u32, number() as i32);
            // No process has id 0.
            Some(Address { pid, fd, device: number(), inode: number() }).filter(|of| of.pid != 0)
        };
        let (own, slots) = (address(field()), address(field()));
        let (start, is_complete) = (field().parse().unwrap_or(0), field() == "1");
        let (cpus, host) = (field().to_owned(), field().to_owned());
        Member { address: own, slots, start, is_complete, cpus, host }
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
            let share = world.share_host(|| None).unwrap().expect("threads share their process");
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

    /// Rows are freed while they are copied to memory: both must not be held whole.
    #[test]
    fn memory_is_taken_as_it_is_written_and_files_have_their_room_at_once() {
        let in_memory = threads::run(2, |world| {
            let share = world.share_host(|| None).unwrap().unwrap();
            if share.leads() {
                share.begin(64 << 20).unwrap();
            }
            share.file().metadata().unwrap().blocks() * 512
        });
        assert!(in_memory.iter().all(|bytes| *bytes < 1 << 20), "{in_memory:?}");
        let path = std::env::temp_dir().join(format!("ddp-train-room-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        allocate(&file, 1 << 20).unwrap();
        assert!(file.metadata().unwrap().blocks() * 512 >= 1 << 20);
        let before = file.metadata().unwrap().len();
        write_zeros(&file, before..before + (1 << 20) + 5).unwrap();
        assert_eq!(file.metadata().unwrap().len(), before + (1 << 20) + 5);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn complete_records_are_read_by_all_ranks() {
        let (file, _) = host_memory::create(0).unwrap();
        let open =
            |is_complete| Some(KeptFile { file: file.try_clone().unwrap(), start: PAGE_BYTES, is_complete });
        let alone = World::single().share_host(|| open(false)).unwrap().unwrap();
        assert!(alone.leads() && alone.has_readers());
        alone.write(b"kept").unwrap();
        for n_ranks in [1, 3] {
            let read = threads::run(n_ranks, |world| {
                let share = world.share_host(|| open(true)).unwrap().unwrap();
                assert!(!share.leads());
                share.read().unwrap()
            });
            assert!(read.iter().all(|record| record == b"kept"), "{read:?}");
        }
    }

    #[test]
    fn records_go_to_memory_where_their_file_has_no_room() {
        let (file, _) = host_memory::create(0).unwrap();
        let read = threads::run(3, |world| {
            let open =
                || Some(KeptFile { file: file.try_clone().unwrap(), start: PAGE_BYTES, is_complete: false });
            let share = world.share_host(open).unwrap().unwrap();
            if share.leads() {
                share.write(b"first").unwrap();
                // A file that can only be read stands for a full disk.
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                *share.file.lock().unwrap() = Arc::new(File::open(path).unwrap());
                share.write(b"second").unwrap();
            }
            world.group().barrier().unwrap();
            share.follow(&world).unwrap();
            assert!(share.is_moved());
            if share.leads() {
                world.group().barrier().unwrap();
                return Vec::new();
            }
            let records = vec![share.read().unwrap(), share.read().unwrap()];
            world.group().barrier().unwrap();
            records
        });
        assert!(
            read[1..].iter().all(|records| *records == [b"first".to_vec(), b"second".to_vec()]),
            "{read:?}"
        );
    }

    #[test]
    fn a_rank_alone_shares_nothing() {
        assert!(World::single().share_host(|| None).unwrap().is_none());
    }

    #[test]
    fn members_are_read_as_written() {
        let address = Some(Address { pid: 7, fd: 3, device: 1 << 40, inode: 9 });
        for [address, slots] in [[address, None], [None, address]] {
            let (cpus, host) = ("0-3,8".to_owned(), "node 7".to_owned());
            let member = Member { address, slots, start: 4096, is_complete: true, cpus, host };
            let read = Member::decode(member.encode().as_bytes());
            assert_eq!((read.address, &read.cpus, &read.host), (address, &member.cpus, &member.host));
            assert_eq!((read.slots, read.boot_id()), (slots, Some("7")));
            assert_eq!((read.start, read.is_complete), (4096, true));
            assert_eq!(read.file(), member.file());
            let elsewhere = Member { host: "node 8".to_owned(), ..member };
            assert!(address.is_none() || read.file() != elsewhere.file());
        }
    }
}

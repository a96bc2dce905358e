//! Memory-mapped files that stay readable when the file shrinks.
//!
//! Reading a page that the system cannot load, because the file became shorter or its disk failed, raises SIGBUS and would end
//! the process. Here it reads zeros instead, and [`MappedFile::is_intact`] reports it. One handler per process finds the mapping
//! of an address in a table of atomics, maps a page of zeros where one is missing, and lets the reader continue; any other
//! SIGBUS goes to the previous handler.
//!
//! A reader asks [`MappedFile::is_intact`] after it has used the bytes, and from time to time whether the file has become shorter
//! ([`MappedFile::has_shrunk`]).
//!
//! ```
//! use std::fs::{self, File};
//!
//! use ddp_kernels::cpu::mapped_file::MappedFile;
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("rows");
//! fs::write(&path, [7u8; 100])?;
//! let file = MappedFile::open(&path)?;
//! assert_eq!((file.len(), file.bytes()[99]), (100, 7));
//! File::options().write(true).open(&path)?.set_len(10)?;
//! assert!(file.has_shrunk());
//! # Ok::<(), std::io::Error>(())
//! ```

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use memmap2::{Advice, Mmap, MmapOptions, UncheckedAdvice};

/// Maximum number of mappings of a process at a time.
const MAX_MAPPINGS: usize = 4096;
/// Missing pages of the process that are replaced one by one; a further one replaces the rest of its mapping. Each single page adds up to
/// two mappings, and Linux allows a process 65,530 by default.
const MAX_SINGLE_PAGES: usize = 8192;

/// A regular file, or a range of one, as read-only memory, of its length when it was opened.
///
/// Writes to the file change the memory. A file that became shorter reads as zeros from its end on. A system call that reads
/// these bytes fails with `EFAULT` at a missing page; only reads by the process itself are handled.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    /// Device and number of the file.
    identity: (u64, u64),
    /// Byte of the file at which the memory begins.
    start: u64,
    /// None for an empty file.
    mapping: Option<Mapping>,
}

#[derive(Debug)]
struct Mapping {
    slot: &'static Slot,
    map: Mmap,
}

impl MappedFile {
    /// Maps a file; an empty one to an empty slice.
    ///
    /// # Errors
    /// Errors of opening and mapping; [`io::ErrorKind::InvalidInput`] for anything but a regular file;
    /// [`io::ErrorKind::OutOfMemory`] if this process already has 4096 mapped files.
    pub fn open(path: &Path) -> io::Result<Self> {
        // Opening a named pipe would wait for a writer.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        Self::from_opened(&file, path)
    }

    /// Maps an open file, whose `path` is for messages and [`MappedFile::has_shrunk`].
    ///
    /// # Errors
    /// Same as [`MappedFile::open`], without errors of opening.
    pub fn from_opened(file: &File, path: &Path) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Self::map(file, path, 0, metadata.len())
    }

    /// Maps `len` bytes from `start` on of an open file, whose `path` is that of messages and of [`MappedFile::has_shrunk`].
    ///
    /// # Errors
    /// Errors of mapping; [`io::ErrorKind::OutOfMemory`] if this process already has 4096 mapped files and ranges.
    pub fn map(file: &File, path: &Path, start: u64, len: u64) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let identity = (metadata.dev(), metadata.ino());
        let len = usize::try_from(len)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "larger than the address space"))?;
        let mapping = if len == 0 {
            None
        } else {
            catch_faults()?;
            // SAFETY: the mapping is read-only and plain bytes, whatever others write to the file; the handler replaces missing pages as
            // soon as the mapping is in the table, and nothing reads it before.
            let map = unsafe { MmapOptions::new().offset(start).len(len).map(file) }?;
            // Mappings begin with a page, the map with its first byte.
            let first = map.as_ptr() as usize;
            let slot = Slot::take(first, first + len).ok_or_else(|| {
                io::Error::new(io::ErrorKind::OutOfMemory, format!("{MAX_MAPPINGS} files are mapped already"))
            })?;
            Some(Mapping { slot, map })
        };
        Ok(MappedFile { path: path.to_owned(), identity, start, mapping })
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.mapping.as_ref().map_or(&[], |mapping| &mapping.map)
    }

    /// Length of the file when it was opened.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Starts reading these bytes into the system's cache; returns before they are there. Failure costs time only.
    ///
    /// # Panics
    /// If the range goes beyond the file.
    pub fn read_ahead(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len());
        if let Some(mapping) = self.mapping.as_ref().filter(|_| !range.is_empty()) {
            let _ = mapping.map.advise_range(Advice::WillNeed, range.start, range.len());
        }
    }

    /// Takes these bytes out of the memory of this process: they are read from the file again when they are used.
    pub fn release(&self) {
        if let Some(mapping) = &self.mapping {
            // SAFETY: the mapping is read-only, so no change is lost; a page that was missing is replaced again.
            let _ = unsafe { mapping.map.unchecked_advise(UncheckedAdvice::DontNeed) };
        }
    }

    /// Whether the file was empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// False once a read met a missing page: the file shrank, or its disk failed. Data read since may be zeros.
    ///
    /// Costs nothing, and so misses a file that lost less than its last page: [`MappedFile::has_shrunk`] detects that.
    pub fn is_intact(&self) -> bool {
        self.mapping.as_ref().is_none_or(|mapping| mapping.slot.n_missing.load(Ordering::Acquire) == 0)
    }

    /// Whether the file is shorter now than when it was opened; queries the file system. A file that was moved or replaced counts
    /// as unchanged: the old one is still mapped.
    pub fn has_shrunk(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|now| {
            (now.dev(), now.ino()) == self.identity && now.len() < self.start + self.len() as u64
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Before the memory is unmapped, which another mapping may get: the field is dropped after this.
        self.slot.give_back();
    }
}

/// A slot of the table. The handler reads it at any time, so fields that belong together are read between two reads of
/// `version`.
#[derive(Debug)]
struct Slot {
    is_taken: AtomicBool,
    /// Odd while `start` and `end` change.
    version: AtomicUsize,
    start: AtomicUsize,
    /// 0 without a mapping.
    end: AtomicUsize,
    /// Number of missing pages met.
    n_missing: AtomicUsize,
}

static SLOTS: [Slot; MAX_MAPPINGS] = [const {
    Slot {
        is_taken: AtomicBool::new(false),
        version: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        n_missing: AtomicUsize::new(0),
    }
}; MAX_MAPPINGS];
/// Slots after it were never used.
static N_SLOTS_USED: AtomicUsize = AtomicUsize::new(0);
/// Missing pages met in all mappings, those of the past included.
static N_MISSING: AtomicUsize = AtomicUsize::new(0);

impl Slot {
    /// Claims a free slot for this range of addresses.
    fn take(start: usize, end: usize) -> Option<&'static Self> {
        let is_free = |slot: &Slot| {
            slot.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let index = SLOTS.iter().position(is_free)?;
        N_SLOTS_USED.fetch_max(index + 1, Ordering::AcqRel);
        let slot = &SLOTS[index];
        slot.n_missing.store(0, Ordering::Relaxed);
        slot.set(start, end);
        Some(slot)
    }

    fn give_back(&self) {
        self.set(0, 0);
        self.is_taken.store(false, Ordering::Release);
    }

    /// Called by the slot's owner only.
    fn set(&self, start: usize, end: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// The mapping that holds this address. A slot that is being changed holds no address that is being read.
    fn range_around(&self, address: usize) -> Option<Range<usize>> {
        let version = self.version.load(Ordering::Acquire);
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && version == self.version.load(Ordering::Relaxed);
        (is_whole && start <= address && address < end).then_some(start..end)
    }
}

/// The previous handler, and the page size.
struct Before {
    action: libc::sigaction,
    page: usize,
}

static BEFORE: OnceLock<Before> = OnceLock::new();

/// Installs the handler, once.
fn catch_faults() -> io::Result<()> {
    static OUTCOME: OnceLock<Option<i32>> = OnceLock::new();
    let outcome = OUTCOME.get_or_init(|| install().err().map(|error| error.raw_os_error().unwrap_or(0)));
    outcome.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code)))
}

fn install() -> io::Result<()> {
    // SAFETY: an all-zero sigaction is a valid value.
    let mut former: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: a query into a valid structure.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut former) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a plain query.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).map_err(|_| io::Error::last_os_error())?;
    let mut action = former;
    action.sa_sigaction = on_fault as *const () as usize;
    // Mask and blocking of the signal are those of the previous handler, which is called from here and may leave by a jump.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | (former.sa_flags & libc::SA_NODEFER);
    // Before the first signal can come.
    let _ = BEFORE.set(Before { action: former, page });
    // SAFETY: a valid structure; the handler lives as long as the program.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs on the thread that faulted, at any point: uses atomics and `mmap` only.
extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: the system passes a valid siginfo_t.
    let what = unsafe { &*info };
    let code = what.si_code;
    // A signal from another process has no address.
    if code > 0 {
        // SAFETY: the siginfo_t of a fault has an address.
        let address = unsafe { what.si_addr() } as usize;
        if replace_page(address, before.page) {
            return;
        }
    }
    pass_on(before, signal, code, info, context);
}

/// Maps zeros at this address, if it belongs to a mapping.
fn replace_page(address: usize, page: usize) -> bool {
    let used = &SLOTS[..N_SLOTS_USED.load(Ordering::Acquire).min(MAX_MAPPINGS)];
    let Some((slot, mapping)) = used.iter().find_map(|slot| Some((slot, slot.range_around(address)?))) else {
        return false;
    };
    slot.n_missing.fetch_add(1, Ordering::AcqRel);
    let is_single = N_MISSING.fetch_add(1, Ordering::AcqRel) < MAX_SINGLE_PAGES;
    let end = if is_single { address + 1 } else { mapping.end };
    // Zeros for all of it need no further mapping of the system.
    map_zeros(address..end, page) || map_zeros(mapping, page)
}

/// Maps zeros over the pages of these addresses.
fn map_zeros(bytes: Range<usize>, page: usize) -> bool {
    let start = bytes.start & !(page - 1);
    let len = (bytes.end - start).next_multiple_of(page);
    let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: this thread's own errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let kept = unsafe { *errno };
    // SAFETY: these pages belong to the mapping, which is borrowed by the reader that faulted here; any other reader sees a page
    // before or after, and zeros are valid bytes.
    let mapped = unsafe { libc::mmap(start as *mut libc::c_void, len, protection, flags, -1, 0) };
    // SAFETY: as above; the interrupted code must not see our errno.
    unsafe { *errno = kept };
    mapped != libc::MAP_FAILED
}

/// Passes a signal that is not ours to the previous handler.
fn pass_on(before: &Before, signal: i32, code: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let former = &before.action;
    match former.sa_sigaction {
        libc::SIG_IGN if code <= 0 => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the action that sigaction(2) returned for this signal. A fault recurs on return and ends the process.
            unsafe { libc::sigaction(signal, former, null_mut()) };
            if code <= 0 {
                // SAFETY: a plain call; the signal comes when this handler has returned.
                unsafe { libc::raise(signal) };
            }
        }
        handler if former.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: with SA_SIGINFO it is such a function.
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without SA_SIGINFO it is such a function.
            let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};

    use super::*;

    const PAGE: usize = 4096;

    fn content(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i % 251 + 1) as u8).collect()
    }

    fn file_of(len: usize) -> (tempfile::NamedTempFile, MappedFile) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&content(len)).unwrap();
        let mapped = MappedFile::open(file.path()).unwrap();
        (file, mapped)
    }

    #[test]
    fn a_file_is_read_as_memory() {
        for len in [1, 100, PAGE, 10 * PAGE + 17] {
            let (_file, mapped) = file_of(len);
            assert_eq!((mapped.len(), mapped.is_empty()), (len, false));
            assert!(mapped.bytes() == content(len));
            assert!(mapped.is_intact() && !mapped.has_shrunk());
            mapped.read_ahead(0..len);
            mapped.read_ahead(len / 2..len / 2);
        }
        let (_file, empty) = file_of(0);
        empty.read_ahead(0..0);
        assert!(empty.bytes().is_empty() && empty.is_intact() && !empty.has_shrunk());
    }

    #[test]
    fn only_regular_files_are_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |path: &Path| MappedFile::open(path).unwrap_err().kind();
        assert_eq!(refused(&folder.path().join("none")), io::ErrorKind::NotFound);
        assert_eq!(refused(folder.path()), io::ErrorKind::InvalidInput);
        assert_eq!(refused(Path::new("/dev/zero")), io::ErrorKind::InvalidInput);
        let pipe = folder.path().join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: a valid name.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert_eq!(refused(&pipe), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn what_a_shrunken_file_lost_reads_as_zeros() {
        let (other_file, other) = file_of(3 * PAGE);
        let (file, mapped) = file_of(20 * PAGE + 5);
        file.as_file().set_len(5 * PAGE as u64 + 100).unwrap();
        let kept = content(5 * PAGE + 100);
        assert!(mapped.has_shrunk() && mapped.bytes()[..kept.len()] == kept);
        assert!(mapped.bytes()[5 * PAGE + 100..6 * PAGE].iter().all(|&b| b == 0));
        assert!(mapped.is_intact(), "no page was missing so far");
        assert_eq!(mapped.bytes()[12 * PAGE + 3], 0);
        assert!(!mapped.is_intact());
        assert!(mapped.bytes()[kept.len()..].iter().all(|&b| b == 0));
        assert!(mapped.bytes()[..kept.len()] == kept);
        assert!(other.bytes() == content(3 * PAGE) && other.is_intact());
        // Its slot in the table starts afresh.
        drop(mapped);
        let again = MappedFile::open(other_file.path()).unwrap();
        assert!(again.bytes() == content(3 * PAGE) && again.is_intact());
    }

    /// More pages than are replaced one by one.
    #[test]
    fn a_file_that_lost_very_many_pages_reads_as_zeros_in_any_order() {
        let n_pages = 4 * MAX_SINGLE_PAGES;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len((n_pages * PAGE) as u64 - 1).unwrap();
        let mapped = MappedFile::open(file.path()).unwrap();
        file.as_file().set_len(0).unwrap();
        for i in 0..n_pages {
            assert_eq!(mapped.bytes()[i * 2477 % n_pages * PAGE], 0);
        }
        assert!(!mapped.is_intact() && mapped.bytes().iter().all(|&b| b == 0));
    }

    #[test]
    fn threads_that_fault_at_once_all_go_on() {
        for _ in 0..20 {
            let (file, mapped) = file_of(64 * PAGE);
            file.as_file().set_len(0).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..8 {
                    let mapped = &mapped;
                    scope.spawn(move || {
                        for i in 0..64 {
                            let page = (i * (2 * thread + 1)) % 64;
                            assert!(mapped.bytes()[page * PAGE..][..PAGE].iter().all(|&b| b == 0));
                        }
                    });
                }
            });
            assert!(!mapped.is_intact());
        }
    }

    #[test]
    fn mappings_come_and_go_while_others_fault() {
        std::thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || {
                    let (file, _mapped) = file_of((thread + 1) * PAGE);
                    for _ in 0..2000 {
                        let mapped = MappedFile::open(file.path()).unwrap();
                        assert!(mapped.bytes()[thread * PAGE] != 0 && mapped.is_intact());
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..300 {
                    let (file, mapped) = file_of(4 * PAGE);
                    file.as_file().set_len(0).unwrap();
                    assert!(mapped.bytes().iter().all(|&b| b == 0) && !mapped.is_intact());
                }
            });
        });
    }

    const CASE: &str = "DDP_MAPPED_FILE_TEST";

    /// Runs this test binary again, for cases that end a process or fill its table.
    fn in_child(case: &str) -> ExitStatus {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "cpu::mapped_file::tests::in_a_process_of_its_own"]).env(CASE, case);
        child.output().unwrap().status
    }

    extern "C" fn exit_42(_signal: i32) {
        // SAFETY: ends the process, and may be called in a handler.
        unsafe { libc::_exit(42) };
    }

    /// Does nothing but in [`in_child`].
    #[test]
    fn in_a_process_of_its_own() {
        let Ok(case) = std::env::var(CASE) else { return };
        let former = match case.as_str() {
            "former handler" => Some(exit_42 as *const () as usize),
            "sent" => Some(libc::SIG_DFL),
            "sent and ignored" => Some(libc::SIG_IGN),
            _ => None,
        };
        if let Some(former) = former {
            // SAFETY: the handler is such a function.
            unsafe { libc::signal(libc::SIGBUS, former) };
        }
        let (file, mapped) = file_of(2 * PAGE);
        match case.as_str() {
            "full table" => {
                let open = || MappedFile::open(file.path());
                let mut all: Vec<_> = (1..MAX_MAPPINGS).map(|_| open().unwrap()).collect();
                assert_eq!(open().unwrap_err().kind(), io::ErrorKind::OutOfMemory);
                all.pop();
                let last = open().unwrap();
                file.as_file().set_len(0).unwrap();
                assert!(last.bytes()[PAGE] == 0 && !last.is_intact() && all[7].is_intact());
            }
            "many files lose pages" => {
                let n_pages = 4 * 1024;
                let open = |_| {
                    let file = tempfile::NamedTempFile::new().unwrap();
                    file.as_file().set_len((n_pages * PAGE) as u64).unwrap();
                    let mapped = MappedFile::open(file.path()).unwrap();
                    file.as_file().set_len(0).unwrap();
                    mapped
                };
                let all: Vec<_> = (0..40).map(open).collect();
                for (mapped, page) in all.iter().flat_map(|m| (1..n_pages).step_by(2).map(move |p| (m, p))) {
                    assert_eq!(mapped.bytes()[page * PAGE], 0);
                }
                assert!(all.iter().all(|mapped| !mapped.is_intact()));
            }
            "no further mapping" => {
                let (file, mapped) = file_of(9 * PAGE);
                fill_address_space();
                file.as_file().set_len(0).unwrap();
                assert!(mapped.bytes()[4 * PAGE] == 0 && mapped.bytes()[8 * PAGE] == 0);
                assert!(mapped.bytes()[0] == 0 && !mapped.is_intact());
            }
            "sent" | "sent and ignored" => {
                // SAFETY: a signal to this thread, which may end the process.
                assert_eq!(unsafe { libc::raise(libc::SIGBUS) }, 0);
                file.as_file().set_len(0).unwrap();
                assert_eq!(mapped.bytes()[0], 0);
            }
            _ => {
                // SAFETY: read once, to see what becomes of it.
                let foreign = unsafe { Mmap::map(&File::open(file.path()).unwrap()).unwrap() };
                file.as_file().set_len(0).unwrap();
                assert_eq!(mapped.bytes()[0], 0, "the own one is caught");
                assert_eq!(foreign[PAGE], 0, "and this one is not");
            }
        }
    }

    #[test]
    fn a_fault_elsewhere_goes_to_whoever_it_went_to_before() {
        assert_eq!(in_child("elsewhere").signal(), Some(libc::SIGBUS));
        assert_eq!(in_child("sent").signal(), Some(libc::SIGBUS));
        assert!(in_child("sent and ignored").success());
        assert_eq!(in_child("former handler").code(), Some(42));
    }

    /// Takes as many mappings of the system as the process may have.
    fn fill_address_space() {
        let len = (1 << 20) * PAGE;
        let (flags, none) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, libc::PROT_NONE);
        // SAFETY: new memory, which nothing reads.
        let memory = unsafe { libc::mmap(null_mut(), len, none, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY: pages of that memory.
        let splits = |page: usize| unsafe {
            libc::mprotect(memory.wrapping_byte_add(page * PAGE), PAGE, libc::PROT_READ) == 0
        };
        assert!(!(1..1 << 20).step_by(2).all(splits), "vm.max_map_count is larger than this test expects");
    }

    #[test]
    fn many_missing_pages_leave_mappings_for_others() {
        assert!(in_child("many files lose pages").success());
    }

    #[test]
    #[allow(clippy::print_stdout)] // Says what is missing.
    fn a_missing_page_needs_no_further_mapping() {
        let max = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
        if max.trim().parse::<usize>().unwrap() >= 1 << 20 {
            return println!("skipped: needs vm.max_map_count below {}, found {max}", 1 << 20);
        }
        assert!(in_child("no further mapping").success());
    }

    #[test]
    fn a_full_table_is_an_error() {
        assert!(in_child("full table").success());
    }
}

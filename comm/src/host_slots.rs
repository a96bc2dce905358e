//! Memory in slots, each filled by one rank of a host and read by all that take it.
//!
//! For values that all ranks of a host need at about the same time, are too many to stay, and cost more to make than to share. A slot is
//! filled by the first rank that takes it and emptied when the last one drops it. A word per slot, in the same memory, has its state and the
//! number of its users; no rank waits without a limit, since another one may be lost.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use ddp_kernels::cpu::mapped_file::MappedFile;

use crate::group::host_memory::Mapping;

/// Slots begin at multiples of it, the largest page of the systems that this runs on: memory is mapped and freed by pages.
const PAGE_BYTES: u64 = 64 << 10;
/// Most slots that a process has mapped at a time: half of the files that it may map.
const MAX_MAPPED: usize = 2048;
/// Slots that this process has mapped.
static N_MAPPED: AtomicUsize = AtomicUsize::new(0);
/// Shortest and longest pause between two looks at a slot that another rank fills.
const PAUSES: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(5)];

/// Bits of a slot's word with its state; the others count its users, or the signs of life of the rank that fills it.
const STATE: u64 = !0 << 32;
const EMPTY: u64 = 0;
/// One rank fills it.
const FILLING: u64 = 1 << 32;
const FILLED: u64 = 2 << 32;
/// Its last user frees its memory.
const CLEARING: u64 = 3 << 32;
/// It can't be filled.
const REFUSED: u64 = 4 << 32;

/// Slots that the ranks of a host have in common; see [`HostShare::slots`](crate::HostShare::slots).
#[derive(Debug, Clone)]
pub struct HostSlots(Arc<Slots>);

#[derive(Debug)]
struct Slots {
    file: Arc<File>,
    /// The identity of the slots, and a word per slot.
    words: Words,
    /// Byte of the file with which each slot begins, and the end of the last one.
    starts: Vec<u64>,
    /// Index of this rank on the host, and the number of its ranks.
    place: [usize; 2],
}

/// A slot as [`HostSlots::take`] found it.
#[derive(Debug)]
pub enum Taken {
    /// It is this rank's to fill.
    Empty(EmptySlot),
    /// A rank has filled it.
    Filled(FilledSlot),
    /// No rank fills it: the one that began has shown no sign of life for too long, or there is no memory for it.
    Never,
}

/// A slot that this rank fills; dropped before it is filled, it is another rank's to fill.
#[derive(Debug)]
pub struct EmptySlot {
    slots: HostSlots,
    slot: usize,
    is_done: bool,
}

/// A slot with its bytes, which stay while this value lives.
#[derive(Debug)]
pub struct FilledSlot {
    // Unmapped before the slot may be cleared.
    map: MappedFile,
    _user: User,
}

/// One of the users that a slot's word counts.
#[derive(Debug)]
struct User {
    slots: HostSlots,
    slot: usize,
}

impl HostSlots {
    /// Slots of `sizes` bytes at byte `start` of a file. `None` if they have another `identity` for the rank that came first.
    pub(crate) fn new(
        file: &Arc<File>,
        start: u64,
        identity: u64,
        sizes: &[u64],
        place: [usize; 2],
    ) -> io::Result<Option<Self>> {
        let mut end = start + words_bytes(sizes.len());
        let mut starts = vec![end];
        for size in sizes {
            end += size.next_multiple_of(PAGE_BYTES);
            starts.push(end);
        }
        extend(file, end + PAGE_BYTES)?;
        // Where memory can't be freed, the slots would take as much as all values together. No slot has the page after the last one.
        free(file, end, PAGE_BYTES)?;
        let words = Words::map(file, start, sizes.len() + 1)?;
        // 0 is the word of nobody.
        let identity = identity.max(1);
        let first = &words.all()[0];
        let found = first.compare_exchange(0, identity, Ordering::AcqRel, Ordering::Acquire);
        if found.is_err_and(|found| found != identity) {
            return Ok(None);
        }
        Ok(Some(HostSlots(Arc::new(Slots { file: file.clone(), words, starts, place }))))
    }

    /// Index of this rank on its host, and the number of ranks there.
    pub fn place(&self) -> [usize; 2] {
        self.0.place
    }

    /// Takes a slot; waits for a rank that fills it, up to `limit` after its last sign of life.
    ///
    /// # Panics
    /// Without such a slot.
    pub fn take(&self, slot: usize, limit: Duration) -> Taken {
        let word = self.word(slot);
        if N_MAPPED.load(Ordering::Relaxed) >= MAX_MAPPED {
            return Taken::Never;
        }
        let (mut since, mut last, mut pause) = (Instant::now(), 0, PAUSES[0]);
        loop {
            let now = word.load(Ordering::Acquire);
            let next = match now & STATE {
                EMPTY => Some(FILLING),
                FILLED => Some(now + 1),
                REFUSED => return Taken::Never,
                _ => None,
            };
            if let Some(next) = next {
                // Acquires what the filling rank wrote.
                if word.compare_exchange(now, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    let slots = self.clone();
                    return match now {
                        EMPTY => Taken::Empty(EmptySlot { slots, slot, is_done: false }),
                        _ => FilledSlot::map(User { slots, slot }).map_or(Taken::Never, Taken::Filled),
                    };
                }
                continue;
            }
            if now != last {
                (since, last) = (Instant::now(), now);
            }
            if since.elapsed() >= limit {
                return Taken::Never;
            }
            thread::sleep(pause);
            pause = (2 * pause).min(PAUSES[1]);
        }
    }

    /// The word of a slot.
    fn word(&self, slot: usize) -> &AtomicU64 {
        &self.0.words.all()[slot + 1]
    }

    /// The bytes of the file that are a slot's: the first one and their number.
    fn range(&self, slot: usize) -> (u64, u64) {
        let starts = &self.0.starts;
        (starts[slot], starts[slot + 1] - starts[slot])
    }

    /// Frees the memory of a slot and gives it to the next rank, or to none.
    fn clear(&self, slot: usize, next: u64) {
        let (start, len) = self.range(slot);
        // It could be freed when the slots were made. Otherwise it is taken until the slot is filled again.
        let _ = free(&self.0.file, start, len);
        self.word(slot).store(next, Ordering::Release);
    }
}

impl EmptySlot {
    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.slots.range(self.slot).1
    }

    /// Whether no byte fits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives a sign of life to the ranks that wait.
    pub fn beat(&self) {
        self.slots.word(self.slot).fetch_add(1, Ordering::Relaxed);
    }

    /// Writes bytes at byte `at` of the slot, and gives a sign of life.
    ///
    /// # Errors
    /// The system's error, if it has no memory; [`io::ErrorKind::InvalidInput`] beyond the slot's end.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if at + bytes.len() as u64 > self.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the slot is smaller than its value"));
        }
        self.slots.0.file.write_all_at(bytes, self.slots.range(self.slot).0 + at)?;
        self.beat();
        Ok(())
    }

    /// Gives the slot to all ranks. `None` if the system does not map it for this one.
    pub fn fill(mut self) -> Option<FilledSlot> {
        self.is_done = true;
        // Nobody else changes the word meanwhile.
        self.slots.word(self.slot).store(FILLED | 1, Ordering::Release);
        FilledSlot::map(User { slots: self.slots.clone(), slot: self.slot })
    }

    /// Tells all ranks that the slot can't be filled.
    pub fn refuse(mut self) {
        self.is_done = true;
        self.slots.clear(self.slot, REFUSED);
    }
}

impl Drop for EmptySlot {
    fn drop(&mut self) {
        if !self.is_done {
            self.slots.clear(self.slot, EMPTY);
        }
    }
}

impl FilledSlot {
    fn map(user: User) -> Option<Self> {
        let (start, len) = user.slots.range(user.slot);
        let name = Path::new("memory that the ranks of this host share");
        // By itself, since a mapping of all slots would take address space and page tables for all values.
        let map = MappedFile::map(&user.slots.0.file, name, start, len).ok()?;
        N_MAPPED.fetch_add(1, Ordering::Relaxed);
        Some(FilledSlot { map, _user: user })
    }

    /// The slot's bytes, with zeros up to the end of its last page.
    pub fn bytes(&self) -> &[u8] {
        self.map.bytes()
    }

    /// False if some of the bytes that were read are lost: the system could not load them.
    pub fn is_intact(&self) -> bool {
        self.map.is_intact()
    }
}

impl Drop for FilledSlot {
    fn drop(&mut self) {
        N_MAPPED.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let word = self.slots.word(self.slot);
        // Reads of this rank end before another one frees the memory.
        let is_last = word.fetch_sub(1, Ordering::AcqRel) == FILLED | 1;
        if is_last && word.compare_exchange(FILLED, CLEARING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.slots.clear(self.slot, EMPTY);
        }
    }
}

/// Words in memory that ranks share, zeros at first.
#[derive(Debug)]
struct Words {
    mapping: Mapping,
    len: usize,
}

// SAFETY: the memory is accessed as atomics only.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Maps `len` words at byte `start` of a file, a multiple of a page.
    fn map(file: &File, start: u64, len: usize) -> io::Result<Self> {
        Ok(Words { mapping: Mapping::at(file, start, len * size_of::<u64>())?, len })
    }

    fn all(&self) -> &[AtomicU64] {
        let first = self.mapping.base().cast::<AtomicU64>().as_ptr();
        // SAFETY: the mapping has this many words, begins with a page, and lives as long as `self`; all ranks access it as atomics.
        unsafe { std::slice::from_raw_parts(first, self.len) }
    }
}

/// Bytes of the words of `n_slots` slots.
fn words_bytes(n_slots: usize) -> u64 {
    ((n_slots + 1) * size_of::<u64>()).next_multiple_of(PAGE_BYTES as usize) as u64
}

/// Bytes of a file that slots of `sizes` take, a multiple of a page.
pub(crate) fn n_bytes(sizes: &[u64]) -> u64 {
    let slots = sizes.iter().map(|size| size.next_multiple_of(PAGE_BYTES));
    words_bytes(sizes.len()) + slots.sum::<u64>() + PAGE_BYTES
}

/// Makes a file at least `len` bytes long, whoever else does so at the same time; the bytes take no memory until they are written.
fn extend(file: &File, len: u64) -> io::Result<()> {
    let Some(last) = len.checked_sub(1) else { return Ok(()) };
    // Unlike setting the length, it never makes the file shorter.
    // SAFETY: a plain call on an open descriptor.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, last as i64, 1) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Frees the memory of bytes of a file, which read as zeros then.
fn free(file: &File, start: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a plain call on an open descriptor.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, start as i64, len as i64) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    const LIMIT: Duration = Duration::from_secs(60);

    /// The slot's 64-bit value, which this rank writes if it is the first; and whether it was.
    fn value(slots: &HostSlots, slot: usize) -> (FilledSlot, bool) {
        match slots.take(slot, LIMIT) {
            Taken::Empty(empty) => {
                empty.write(8, &(slot as u64 * 7).to_le_bytes()).unwrap();
                (empty.fill().unwrap(), true)
            }
            Taken::Filled(filled) => (filled, false),
            Taken::Never => panic!("slot {slot} was not filled in time"),
        }
    }

    #[test]
    fn each_slot_is_filled_once_and_again_when_all_have_dropped_it() {
        let sizes = [16, 0, 5000, 4096];
        let filled = threads::run(3, |world| {
            let share = world.share_host(|| None).unwrap().unwrap();
            let slots = share.slots(9, &sizes).unwrap();
            assert_eq!(slots.place(), [world.rank().0, 3]);
            let mut n_filled = 0;
            for _ in 0..2 {
                let held: Vec<_> = [0, 2, 3].map(|slot| value(&slots, slot)).into();
                world.group().barrier().unwrap();
                for ((slot, is_own), number) in held.iter().zip([0u64, 2, 3]) {
                    assert_eq!(slot.bytes()[8..16], (number * 7).to_le_bytes());
                    n_filled += usize::from(*is_own);
                }
                assert!(held.iter().all(|(slot, _)| slot.bytes().len() == 64 << 10 && slot.is_intact()));
                drop(held);
                world.group().barrier().unwrap();
            }
            n_filled
        });
        assert_eq!(filled.into_iter().sum::<usize>(), 6);
    }

    #[test]
    fn a_slot_that_is_not_filled_goes_to_the_next_rank_and_is_cleared() {
        threads::run(2, |world| {
            let share = world.share_host(|| None).unwrap().unwrap();
            let slots = share.slots(1, &[8]).unwrap();
            if world.rank().0 == 0 {
                let Taken::Empty(empty) = slots.take(0, LIMIT) else { panic!("nobody took it") };
                empty.write(0, &[1; 8]).unwrap();
                assert_eq!(empty.write(64 << 10, &[1]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
                world.group().barrier().unwrap();
                world.group().barrier().unwrap();
                drop(empty);
                world.group().barrier().unwrap();
                world.group().barrier().unwrap();
                assert!(matches!(slots.take(0, LIMIT), Taken::Never));
            } else {
                world.group().barrier().unwrap();
                assert!(matches!(slots.take(0, Duration::ZERO), Taken::Never));
                world.group().barrier().unwrap();
                world.group().barrier().unwrap();
                let Taken::Empty(empty) = slots.take(0, LIMIT) else { panic!("it was given up") };
                let filled = empty.fill().unwrap();
                assert_eq!(filled.bytes()[..8], [0; 8]);
                drop(filled);
                let Taken::Empty(empty) = slots.take(0, LIMIT) else { panic!("nobody uses it") };
                empty.refuse();
                world.group().barrier().unwrap();
            }
        });
    }

    #[test]
    fn a_rank_that_shows_signs_of_life_is_waited_for() {
        threads::run(2, |world| {
            let share = world.share_host(|| None).unwrap().unwrap();
            let slots = share.slots(1, &[8]).unwrap();
            let limit = Duration::from_secs(1);
            if world.rank().0 == 0 {
                let Taken::Empty(empty) = slots.take(0, limit) else { panic!("nobody took it") };
                world.group().barrier().unwrap();
                let begin = Instant::now();
                while begin.elapsed() < 2 * limit {
                    thread::sleep(limit / 20);
                    empty.beat();
                }
                let _filled = empty.fill().unwrap();
                world.group().barrier().unwrap();
            } else {
                world.group().barrier().unwrap();
                assert!(matches!(slots.take(0, limit), Taken::Filled(_)));
                world.group().barrier().unwrap();
            }
        });
    }

    #[test]
    fn slots_of_other_data_are_not_shared() {
        threads::run(2, |world| {
            let share = world.share_host(|| None).unwrap().unwrap();
            if world.rank().0 == 0 {
                assert!(share.slots(1, &[8]).is_some());
            }
            world.group().barrier().unwrap();
            if world.rank().0 == 1 {
                assert!(share.slots(2, &[8]).is_none());
            }
            // The next ones follow in the same memory.
            world.group().barrier().unwrap();
            assert!(share.slots(3, &[8, 8]).is_some());
            world.group().barrier().unwrap();
        });
    }

    #[test]
    fn users_of_one_slot_never_see_another_value() {
        threads::run(4, |world| {
            let share = world.share_host(|| None).unwrap().unwrap();
            let slots = share.slots(1, &[16; 3]).unwrap();
            for turn in 0..3000 {
                let slot = (turn + world.rank().0) % 3;
                let (filled, _) = value(&slots, slot);
                assert_eq!(filled.bytes()[8..16], (slot as u64 * 7).to_le_bytes(), "turn {turn}");
            }
            world.group().barrier().unwrap();
            // All memory is free again.
            assert!(slots.0.words.all()[1..].iter().all(|word| word.load(Ordering::Acquire) == EMPTY));
            world.group().barrier().unwrap();
        });
    }
}

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
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use ddp_kernels::cpu::mapped_file::MappedFile;

use crate::group::host_memory::Mapping;

/// Slots begin at multiples of it: memory is freed by pages.
const PAGE_BYTES: u64 = 4096;
/// Shortest and longest pause between two looks at a slot that another rank fills.
const PAUSES: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(5)];

/// Bits of a slot's word below its state: the number of its users.
const STATE_SHIFT: u32 = 32;
const EMPTY: u64 = 0;
/// One rank fills it.
const FILLING: u64 = 1 << STATE_SHIFT;
const FILLED: u64 = 2 << STATE_SHIFT;
/// Its last user frees its memory.
const CLEARING: u64 = 3 << STATE_SHIFT;

/// Slots that the ranks of a host have in common; see [`HostShare::slots`](crate::HostShare::slots).
#[derive(Debug, Clone)]
pub struct HostSlots(Arc<Slots>);

#[derive(Debug)]
struct Slots {
    file: Arc<File>,
    /// The identity of the slots, and a word per slot.
    words: Words,
    /// All slots.
    map: MappedFile,
    /// Byte of the file with which `map` begins.
    start: u64,
    /// Byte of the map with which each slot begins, and its end.
    starts: Vec<u64>,
    /// Number of this rank among those of the host, and their number.
    place: [usize; 2],
}

/// A slot as [`HostSlots::take`] found it.
#[derive(Debug)]
pub enum Taken {
    /// It is this rank's to fill.
    Empty(EmptySlot),
    /// A rank has filled it.
    Filled(FilledSlot),
    /// Another rank was still filling it when the time was up.
    Late,
}

/// A slot that this rank fills; dropped before it is filled, it is another rank's to fill.
#[derive(Debug)]
pub struct EmptySlot {
    slots: HostSlots,
    slot: usize,
    is_filled: bool,
}

/// A slot with its bytes, which stay while this value lives.
#[derive(Debug)]
pub struct FilledSlot {
    slots: HostSlots,
    slot: usize,
}

impl HostSlots {
    /// Slots of `sizes` bytes at byte `start` of a file of enough bytes, as [`n_bytes`] counts them. `None` if they have another `identity` for the
    /// rank that came first.
    pub(crate) fn new(
        file: &Arc<File>,
        start: u64,
        identity: u64,
        sizes: &[u64],
        place: [usize; 2],
    ) -> io::Result<Option<Self>> {
        let words = Words::map(file, start, sizes.len() + 1)?;
        // 0 is the word of nobody.
        let identity = identity.max(1);
        let first = &words.all()[0];
        let found = first.compare_exchange(0, identity, Ordering::AcqRel, Ordering::Acquire);
        if found.is_err_and(|found| found != identity) {
            return Ok(None);
        }
        let mut starts = vec![0];
        let mut end = 0;
        for size in sizes {
            end += size.next_multiple_of(PAGE_BYTES);
            starts.push(end);
        }
        let start = start + words_bytes(sizes.len());
        let map = MappedFile::map(file, Path::new("memory that the ranks of this host share"), start, end)?;
        Ok(Some(HostSlots(Arc::new(Slots { file: file.clone(), words, map, start, starts, place }))))
    }

    /// Number of this rank among those of its host, and their number.
    pub fn place(&self) -> [usize; 2] {
        self.0.place
    }

    /// Takes a slot; waits up to `limit` for a rank that fills it.
    ///
    /// # Panics
    /// Without such a slot.
    pub fn take(&self, slot: usize, limit: Duration) -> Taken {
        let word = self.word(slot);
        let (start, mut pause) = (Instant::now(), PAUSES[0]);
        loop {
            let now = word.load(Ordering::Acquire);
            let next = match now & !(FILLING - 1) {
                EMPTY => Some(FILLING | 1),
                FILLED => Some(now + 1),
                _ => None,
            };
            if let Some(next) = next {
                // Acquires what the filling rank wrote.
                if word.compare_exchange(now, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    let slots = self.clone();
                    return match now {
                        EMPTY => Taken::Empty(EmptySlot { slots, slot, is_filled: false }),
                        _ => Taken::Filled(FilledSlot { slots, slot }),
                    };
                }
                continue;
            }
            if start.elapsed() >= limit {
                return Taken::Late;
            }
            thread::sleep(pause);
            pause = (2 * pause).min(PAUSES[1]);
        }
    }

    /// The word of a slot: its state and the number of its users.
    fn word(&self, slot: usize) -> &AtomicU64 {
        &self.0.words.all()[slot + 1]
    }

    /// Frees the memory of a slot, which reads as zeros then.
    fn clear(&self, slot: usize) {
        let Slots { file, start, starts, .. } = &*self.0;
        let (from, len) = (start + starts[slot], starts[slot + 1] - starts[slot]);
        if len > 0 {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: a plain call on an open descriptor. Its failure leaves memory taken until the slot is filled again.
            unsafe { libc::fallocate(file.as_raw_fd(), mode, from as i64, len as i64) };
        }
    }
}

impl EmptySlot {
    /// Writes bytes at byte `at` of the slot.
    ///
    /// # Errors
    /// The system's error, if it has no memory; [`io::ErrorKind::InvalidInput`] beyond the slot's end.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let Slots { file, start, starts, .. } = &*self.slots.0;
        let [begin, end] = [self.slot, self.slot + 1].map(|slot| starts[slot]);
        if at + bytes.len() as u64 > end - begin {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the slot is smaller than its value"));
        }
        file.write_all_at(bytes, start + begin + at)
    }

    /// Gives the slot to all ranks.
    pub fn fill(mut self) -> FilledSlot {
        self.is_filled = true;
        // Nobody else changes the word meanwhile.
        self.slots.word(self.slot).store(FILLED | 1, Ordering::Release);
        FilledSlot { slots: self.slots.clone(), slot: self.slot }
    }
}

impl Drop for EmptySlot {
    fn drop(&mut self) {
        if !self.is_filled {
            self.slots.clear(self.slot);
            self.slots.word(self.slot).store(EMPTY, Ordering::Release);
        }
    }
}

impl FilledSlot {
    /// The slot's bytes, up to a multiple of a page.
    pub fn bytes(&self) -> &[u8] {
        let Slots { map, starts, .. } = &*self.slots.0;
        &map.bytes()[starts[self.slot] as usize..starts[self.slot + 1] as usize]
    }
}

impl Drop for FilledSlot {
    fn drop(&mut self) {
        let word = self.slots.word(self.slot);
        // Reads of this rank end before another one frees the memory.
        let is_last = word.fetch_sub(1, Ordering::AcqRel) == FILLED | 1;
        if is_last && word.compare_exchange(FILLED, CLEARING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.slots.clear(self.slot);
            word.store(EMPTY, Ordering::Release);
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
    words_bytes(sizes.len()) + sizes.iter().map(|size| size.next_multiple_of(PAGE_BYTES)).sum::<u64>()
}

/// Makes a file at least `len` bytes long, whoever else does so at the same time; the bytes take no memory until they are written.
pub(crate) fn extend(file: &File, len: u64) -> io::Result<()> {
    let Some(last) = len.checked_sub(1) else { return Ok(()) };
    // Unlike setting the length, it never makes the file shorter.
    // SAFETY: a plain call on an open descriptor.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, last as i64, 1) } {
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
                (empty.fill(), true)
            }
            Taken::Filled(filled) => (filled, false),
            Taken::Late => panic!("slot {slot} was not filled in time"),
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
                assert_eq!(
                    held.iter().map(|(slot, _)| slot.bytes().len()).collect::<Vec<_>>(),
                    [4096, 8192, 4096]
                );
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
                assert_eq!(empty.write(4096, &[1]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
                world.group().barrier().unwrap();
                world.group().barrier().unwrap();
                drop(empty);
                world.group().barrier().unwrap();
            } else {
                world.group().barrier().unwrap();
                assert!(matches!(slots.take(0, Duration::ZERO), Taken::Late));
                world.group().barrier().unwrap();
                world.group().barrier().unwrap();
                let Taken::Empty(empty) = slots.take(0, LIMIT) else { panic!("it was given up") };
                assert_eq!(empty.fill().bytes()[..8], [0; 8]);
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

//! Sets of CPUs, such as the CPUs that a thread may run on or the CPUs near a device.
//!
//! ```
//! use ddp_kernels::cpu::cpu_set::CpuSet;
//!
//! let near = CpuSet::parse("0-3,8-11").expect("the kernel's form of a list");
//! let allowed = CpuSet::parse("2-9").expect("the kernel's form of a list");
//! assert_eq!(near.intersection(&allowed).to_string(), "2-3,8-9");
//! ```

use std::{fmt, io};

/// Words of a set: 1024 CPUs, the size of the C library's `cpu_set_t`.
const WORDS: usize = 16;

/// A set of CPUs, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuSet {
    words: [u64; WORDS],
}

impl CpuSet {
    /// The CPUs that the calling thread may run on; empty if the system does not report them.
    pub fn for_thread() -> Self {
        let mut set = CpuSet::default();
        // SAFETY: the set is writable for its size, and any bits in it are a valid value.
        unsafe { libc::sched_getaffinity(0, size_of_val(&set.words), set.words.as_mut_ptr().cast()) };
        set
    }

    /// All CPUs of the machine that are in use; None if the system does not report them.
    pub fn online() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?)
    }

    /// Parses a list in the Linux kernel's format, such as `0-3,8`; None if it is malformed or names a CPU above 1023.
    pub fn parse(list: &str) -> Option<Self> {
        let mut set = CpuSet::default();
        for range in list.trim().split(',').filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            for cpu in first..=last {
                *set.words.get_mut(cpu / 64)? |= 1 << (cpu % 64);
            }
        }
        Some(set)
    }

    /// Binds the calling thread, and the threads that it starts from now on, to these CPUs.
    ///
    /// # Errors
    /// The system's error, if it has none of these CPUs or does not allow them.
    pub fn bind_thread(&self) -> io::Result<()> {
        // SAFETY: the set is readable for its size.
        let status =
            unsafe { libc::sched_setaffinity(0, size_of_val(&self.words), self.words.as_ptr().cast()) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The CPUs that are in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        CpuSet { words: std::array::from_fn(|word| self.words[word] & other.words[word]) }
    }

    /// The CPUs that are in either set.
    pub fn union(self, other: Self) -> Self {
        CpuSet { words: std::array::from_fn(|word| self.words[word] | other.words[word]) }
    }

    /// Number of CPUs.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether this CPU is in the set.
    pub fn contains(&self, cpu: usize) -> bool {
        self.words.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..WORDS * 64).filter(|&cpu| self.contains(cpu))
    }

    /// The set as bits: CPU `n` is bit `n % 64` of word `n / 64`.
    pub fn to_words(self) -> [u64; WORDS] {
        self.words
    }
}

/// Formats the set as the Linux kernel does, such as `0-3,8`.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for first in self.iter().filter(|&cpu| cpu == 0 || !self.contains(cpu - 1)) {
            let last = (first..).find(|&cpu| !self.contains(cpu + 1)).unwrap_or(first);
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for list in ["", "0", "0-3,8", "1,3,62-65,1023"] {
            assert_eq!(CpuSet::parse(list).unwrap().to_string(), list);
        }
        let set = CpuSet::parse("0-31,64-95\n").unwrap();
        assert_eq!((set.len(), set.contains(64), set.contains(63)), (64, true, false));
        assert_eq!(set.intersection(&CpuSet::parse("30-66").unwrap()).to_string(), "30-31,64-66");
        assert_eq!(set.union(CpuSet::parse("30-66").unwrap()).to_string(), "0-95");
        for wrong in ["a", "3-", "1024", "0-99999", "0,,x"] {
            assert_eq!(CpuSet::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_thread_that_is_bound_runs_on_these_cpus_alone() {
        let own = CpuSet::for_thread();
        let first = CpuSet::parse(&own.iter().next().unwrap().to_string()).unwrap();
        let bound = move || {
            first.bind_thread().unwrap();
            // Threads inherit it.
            std::thread::spawn(CpuSet::for_thread).join().unwrap()
        };
        assert_eq!(std::thread::spawn(bound).join().unwrap(), first);
        assert_eq!(CpuSet::for_thread(), own, "other threads keep theirs");
        assert!(own.intersection(&CpuSet::online().unwrap()) == own);
    }
}

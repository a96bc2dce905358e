//! Memory of the heap: long vectors on huge pages, and free memory that goes back to the system.
//!
//! ```
//! use ddp_kernels::cpu::heap::{on_huge_pages, release_free_memory};
//!
//! let mut rows: Vec<f32> = Vec::with_capacity(4 << 20);
//! on_huge_pages(&rows);
//! rows.resize(4 << 20, 1.0);
//! drop(rows);
//! release_free_memory();
//! ```

/// Size from which huge pages are worth the memory of one that is not full.
const MIN_BYTES: usize = 8 << 20;

/// Asks for huge pages for the memory of a long vector: 80 MB are 40 of them in place of 20,000 pages, each of which costs a page fault.
/// Called before a vector of another capacity is filled; without effect where the system has none, and on short vectors.
pub fn on_huge_pages<T>(values: &Vec<T>) {
    let n_bytes = values.capacity() * size_of::<T>();
    if n_bytes < MIN_BYTES {
        return;
    }
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 4096;
        // From the page with the header of the block: it stays one mapping, which realloc moves without a copy.
        let start = values.as_ptr().addr() & !(PAGE - 1);
        let end = (values.as_ptr().addr() + n_bytes).next_multiple_of(PAGE);
        let start_ptr = values.as_ptr().with_addr(start);
        // SAFETY: advice changes no contents; pages beside the vector's memory belong to this process, or the call fails.
        unsafe { libc::madvise(start_ptr.cast_mut().cast(), end - start, libc::MADV_HUGEPAGE) };
    }
}

/// Gives free memory of the heap back to the system. The heap keeps what is freed below its growing threshold of mappings, and for each thread
/// apart: what one thread frees, another one does not use, so that a cache of such memory takes up to twice its size.
pub fn release_free_memory() {
    // SAFETY: it touches free memory alone.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn long_vectors_keep_their_values_when_they_grow() {
        let mut values: Vec<u32> = Vec::new();
        for value in 0..6 << 20 {
            let capacity = values.capacity();
            values.push(value);
            if values.capacity() != capacity {
                on_huge_pages(&values);
            }
        }
        assert!(values.iter().copied().eq(0..6 << 20));
    }

    /// Whether the system was asked for huge pages for the mapping with `address`.
    fn is_advised(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("the file is readable");
        let mut is_within = false;
        for line in maps.lines() {
            let hex = |text| usize::from_str_radix(text, 16).ok();
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            if let Some((start, end)) = range.and_then(|(start, end)| Some((hex(start)?, hex(end)?))) {
                is_within = (start..end).contains(&address);
            } else if is_within && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.split_whitespace().any(|flag| flag == "hg");
            }
        }
        false
    }

    #[test]
    fn the_advice_covers_a_vector_and_spares_short_ones() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        let long: Vec<f32> = Vec::with_capacity(16 << 20);
        on_huge_pages(&long);
        assert!(is_advised(long.as_ptr().addr() + (32 << 20)));
        let short: Vec<f32> = Vec::with_capacity(1 << 19);
        on_huge_pages(&short);
        assert!(!is_advised(short.as_ptr().addr() + (1 << 20)));
    }

    /// Memory of this process that is no file's, in MiB.
    #[cfg(target_env = "gnu")]
    fn anonymous_mib() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("the file is readable");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("it has a line");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") >> 10
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn what_a_thread_has_freed_goes_back_to_the_system() {
        const N_BLOCKS: usize = 8192;
        let thread = std::thread::spawn(|| {
            let mut blocks: Vec<Vec<u8>> = (0..N_BLOCKS).map(|_| vec![1; 32 << 10]).collect();
            // A few that stay keep the heap of this thread from ending.
            let mut at = 0;
            blocks.retain(|_| {
                at += 1;
                at % 256 == 0
            });
            let before = anonymous_mib();
            release_free_memory();
            (before, anonymous_mib(), blocks.len())
        });
        let (before, after, n_left) = thread.join().expect("the thread has ended");
        assert_eq!(n_left, N_BLOCKS / 256);
        // Other tests take memory meanwhile.
        assert!(before > after + 128, "{before} MiB before, {after} MiB after");
    }
}

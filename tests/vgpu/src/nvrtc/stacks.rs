//! Stacks of the threads of a block, lent to one launch at a time.
//!
//! A stack is two mappings of memory, and the system limits the mappings of a process. So launches share them, whatever module
//! their kernel is in: there are as many sets as launches ever ran at once.

use crate::abi::lock;
use std::ffi::c_void;
use std::sync::Mutex;

/// `MAX_THREADS` of `device/fibers.h`.
const MAX_THREADS: usize = 1024;

/// The sets that no launch uses. Nothing is ever unmapped.
static IDLE: Mutex<Vec<Stacks>> = Mutex::new(Vec::new());

/// One stack for each thread of the largest block; null where none was needed yet. A launch makes those that it needs.
struct Stacks(Box<[*mut c_void; MAX_THREADS]>);

// SAFETY: a stack belongs to no thread of the host: whoever holds the set may run on it.
unsafe impl Send for Stacks {}

/// Runs `launch` with a set of stacks that no other launch has meanwhile.
pub(crate) fn with_stacks<R>(launch: impl FnOnce(*mut *mut c_void) -> R) -> R {
    let idle = lock(&IDLE).pop();
    let mut stacks = idle.unwrap_or_else(|| Stacks(Box::new([std::ptr::null_mut(); MAX_THREADS])));
    let result = launch(stacks.0.as_mut_ptr());
    lock(&IDLE).push(stacks);
    result
}

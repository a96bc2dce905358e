//! Stacks of the threads of a block, lent to one launch at a time.
//!
//! A stack consists of two memory mappings, and the system limits the mappings of a process. So launches of all modules share the
//! stacks: there are as many sets as the maximum number of simultaneous launches.

use crate::abi::lock;
use std::ffi::c_void;
use std::sync::Mutex;

/// `MAX_THREADS` of `device/fibers.h`.
const MAX_THREADS: usize = 1024;

/// The sets that no launch is using. They are never unmapped.
static IDLE: Mutex<Vec<Stacks>> = Mutex::new(Vec::new());

/// One stack for each thread of the largest block; null if it has not been needed yet. A launch creates the stacks that it needs.
struct Stacks(Box<[*mut c_void; MAX_THREADS]>);

// SAFETY: a stack belongs to no thread of the host: whoever holds the set may run on it.
unsafe impl Send for Stacks {}

/// Runs `launch` with a set of stacks that no other launch uses at the same time.
pub(crate) fn with_stacks<R>(launch: impl FnOnce(*mut *mut c_void) -> R) -> R {
    let idle = lock(&IDLE).pop();
    let mut stacks = idle.unwrap_or_else(|| Stacks(Box::new([std::ptr::null_mut(); MAX_THREADS])));
    let result = launch(stacks.0.as_mut_ptr());
    lock(&IDLE).push(stacks);
    result
}

//! Handles: numbers that look like pointers, each for one object and never reused.

use crate::abi::lock;
use crate::code::INVALID_HANDLE;
use crate::report::report;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// The live objects of one kind.
pub(crate) struct Registry<T> {
    what: &'static str,
    live: Mutex<BTreeMap<usize, Arc<T>>>,
}

/// Below any mapping, so that a client that dereferences a handle faults.
static NEXT: AtomicUsize = AtomicUsize::new(0x1000);

impl<T> Registry<T> {
    pub(crate) const fn new(what: &'static str) -> Registry<T> {
        Registry { what, live: Mutex::new(BTreeMap::new()) }
    }

    /// The handle of a new object.
    pub(crate) fn insert(&self, object: Arc<T>) -> usize {
        let handle = NEXT.fetch_add(0x10, Relaxed);
        lock(&self.live).insert(handle, object);
        handle
    }

    /// The object behind a handle; an invalid or destroyed handle is a finding.
    pub(crate) fn get(&self, handle: usize) -> Result<Arc<T>, i32> {
        let found = lock(&self.live).get(&handle).cloned();
        found.ok_or_else(|| self.unknown(handle))
    }

    /// Destroys a handle.
    pub(crate) fn remove(&self, handle: usize) -> Result<Arc<T>, i32> {
        let found = lock(&self.live).remove(&handle);
        found.ok_or_else(|| self.unknown(handle))
    }

    /// The handle of the first object for which `is` returns true.
    pub(crate) fn handle_of(&self, is: impl Fn(&T) -> bool) -> Option<usize> {
        lock(&self.live).iter().find(|(_, object)| is(object)).map(|(&handle, _)| handle)
    }

    /// All live objects.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        lock(&self.live).values().cloned().collect()
    }

    fn unknown(&self, handle: usize) -> i32 {
        let what = self.what;
        let why = match handle {
            0 => "null",
            h if h < NEXT.load(Relaxed) && h >= 0x1000 => "one that was destroyed, or of another kind",
            _ => "none that was ever made",
        };
        report(&format!("a handle of {what} is {why} ({handle:#x})"));
        INVALID_HANDLE
    }
}

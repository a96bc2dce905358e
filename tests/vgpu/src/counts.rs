//! Exact counts of calls, launches and copies, for tests with claims such as "a step makes no allocation".
//!
//! With `VGPU_COUNTS=FOLDER` each process writes `FOLDER/<rank>-<pid>.json` when it ends, even if it aborts: a flat object of
//! numbers. Calls are counted by the function's name, launches as `kernel:NAME` (including replays of a graph), those of them that may begin before the kernel before
//! them is complete as `dependent_launches`, copies as
//! `bytes:htod_pageable`, `bytes:htod_pinned`, `bytes:dtoh_pageable`, `bytes:dtoh_pinned`, `bytes:dtod`, `bytes:peer`. With
//! `VGPU_CHECK` also the bytes of device memory that each kind of work accessed, `read:NAME` and `written:NAME`, and the totals
//! by size of the allocation, `read_of:BYTES` and `written_of:BYTES`.

use crate::abi::lock;
use crate::config::CONFIG;
use crate::mem::MEMORY;
use crate::report::say;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, Once};

/// Calls of one exported function.
pub(crate) struct Counter {
    name: &'static str,
    calls: AtomicU64,
}

static CALLED: Mutex<Vec<&'static Counter>> = Mutex::new(Vec::new());
static TALLIES: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

impl Counter {
    pub(crate) const fn new(name: &'static str) -> Counter {
        Counter { name, calls: AtomicU64::new(0) }
    }

    /// Counts a call.
    pub(crate) fn hit(&'static self) {
        if self.calls.fetch_add(1, Relaxed) == 0 {
            lock(&CALLED).push(self);
            write_at_exit();
            if CONFIG.trace {
                say(&format!("first call of {}", self.name));
            }
        }
    }
}

/// Adds to the count of this name.
pub(crate) fn add(name: &str, n: u64) {
    *lock(&TALLIES).entry(name.to_owned()).or_default() += n;
}

/// Adds an access by the work `name` to `bytes` of an allocation of `size`.
pub(crate) fn moved(name: &str, size: u64, bytes: u64, write: bool) {
    if bytes > 0 {
        let verb = if write { "written" } else { "read" };
        add(&format!("{verb}:{name}"), bytes);
        add(&format!("{verb}_of:{size}"), bytes);
    }
}

/// Direction of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    HostToDevicePageable,
    HostToDevicePinned,
    DeviceToHostPageable,
    DeviceToHostPinned,
    DeviceToDevice,
    Peer,
}

/// Counts that a piece of work adds each time it is enqueued on a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tally {
    Nothing,
    Kernel(&'static str),
    /// A kernel that may be launched before the one before it is complete.
    DependentKernel(&'static str),
    Copy(Way, u64),
}

impl Tally {
    pub(crate) fn count(self) {
        let (key, n) = match self {
            Tally::Nothing => return,
            Tally::Kernel(name) => (format!("kernel:{name}"), 1),
            Tally::DependentKernel(name) => {
                add("dependent_launches", 1);
                (format!("kernel:{name}"), 1)
            }
            Tally::Copy(way, bytes) => {
                let way = match way {
                    Way::HostToDevicePageable => "htod_pageable",
                    Way::HostToDevicePinned => "htod_pinned",
                    Way::DeviceToHostPageable => "dtoh_pageable",
                    Way::DeviceToHostPinned => "dtoh_pinned",
                    Way::DeviceToDevice => "dtod",
                    Way::Peer => "peer",
                };
                (format!("bytes:{way}"), bytes)
            }
        };
        *lock(&TALLIES).entry(key).or_default() += n;
    }
}

fn folder() -> Option<PathBuf> {
    std::env::var_os("VGPU_COUNTS").map(PathBuf::from)
}

fn write_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if folder().is_some() {
            extern "C" fn at_exit() {
                write();
            }
            // SAFETY: a function without arguments that never unwinds, in a library that is never unloaded
            // (cudarc keeps it for good).
            unsafe { libc::atexit(at_exit) };
        }
    });
}

/// Writes the file once: at exit, or immediately before an abort.
pub(crate) fn write() {
    static DONE: AtomicBool = AtomicBool::new(false);
    let Some(folder) = folder() else { return };
    if DONE.swap(true, Relaxed) {
        return;
    }
    let mut all = lock(&TALLIES).clone();
    for counter in lock(&CALLED).iter() {
        all.insert(counter.name.into(), counter.calls.load(Relaxed));
    }
    // A process that aborts may hold this lock; the counts of calls are useful without it.
    if let Ok(memory) = MEMORY.try_lock() {
        for (device, usage) in memory.usage().iter().enumerate() {
            all.insert(format!("live_bytes:{device}"), usage.live_bytes);
            all.insert(format!("peak_bytes:{device}"), usage.peak_bytes);
            all.insert(format!("live_allocations:{device}"), usage.live_allocations);
        }
    }
    let body: Vec<String> = all.iter().map(|(key, n)| format!("  \"{key}\": {n}")).collect();
    let name = format!("{}-{}.json", CONFIG.rank, std::process::id());
    let temporary = folder.join(format!(".{name}"));
    let written = std::fs::write(&temporary, format!("{{\n{}\n}}\n", body.join(",\n")))
        .and_then(|()| std::fs::rename(&temporary, folder.join(&name)));
    if let Err(e) = written {
        say(&format!("cannot write counts to {}: {e}", folder.display()));
    }
}

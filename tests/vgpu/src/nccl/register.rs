//! Memory of NCCL and registered buffers: their owners, and faults in freeing them.
use super::comm::{Comm, misuse};
use super::{ABORT_RETURNS_EARLY, INVALID_ARGUMENT, INVALID_USAGE};
use crate::abi::lock;
use crate::config::CONFIG;
use crate::driver::handle::Registry;
use crate::mem::MEMORY;
use crate::report;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// A registered buffer.
pub(super) struct Registered {
    comm: Arc<Comm>,
    address: u64,
    bytes: u64,
}

impl Registered {
    fn holds(&self, address: u64, bytes: u64) -> bool {
        (self.address..=self.address + self.bytes).contains(&address)
            && address + bytes <= self.address + self.bytes
    }
}

static REGISTRATIONS: Registry<Registered> = Registry::new("a registered buffer");
/// Addresses from ncclMemAlloc that have not been freed.
static OWN: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// Registered buffers of aborted communicators whose work may still run, with the rank.
static ABANDONED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

/// Records an address that ncclMemAlloc has returned.
pub(super) fn allocated(address: u64) {
    lock(&OWN).insert(address);
}

/// Removes an address that is passed to ncclMemFree.
pub(super) fn give_up(address: u64) -> Result<(), i32> {
    if !lock(&OWN).remove(&address) {
        let what =
            format!("ncclMemFree of {}, which is not from ncclMemAlloc", lock(&MEMORY).describe(address));
        return Err(misuse(INVALID_ARGUMENT, &what));
    }
    Ok(())
}

/// Describes the fault in freeing `address`, by cuMemFree (`is_plain`) or ncclMemFree.
pub(crate) fn fault_of_free(address: u64, is_plain: bool) -> Option<String> {
    if is_plain && lock(&OWN).contains(&address) {
        return Some("memory from ncclMemAlloc is freed by ncclMemFree".into());
    }
    if let Some(rank) = lock(&ABANDONED).get(&address) {
        return Some(format!(
            "{address:#x} was registered with the communicator of rank {rank}, which was aborted: NCCL ends its work in \
             the background, and nothing tells when"
        ));
    }
    let all = REGISTRATIONS.all();
    let registered = all.iter().find(|registered| registered.address == address)?;
    Some(format!("{address:#x} is still registered with the communicator of rank {}", registered.comm.rank))
}

/// ncclCommRegister
pub(super) fn register(comm: &Arc<Comm>, address: u64, bytes: u64) -> Result<usize, i32> {
    check(address, bytes)
        .map_err(|why| misuse(INVALID_ARGUMENT, &format!("ncclCommRegister of {bytes} bytes: {why}")))?;
    Ok(REGISTRATIONS.insert(Arc::new(Registered { comm: comm.clone(), address, bytes })))
}

/// ncclCommDeregister
pub(super) fn deregister(comm: &Arc<Comm>, handle: usize) -> Result<(), i32> {
    let registered = REGISTRATIONS.remove(handle).map_err(|_| INVALID_ARGUMENT)?;
    if Arc::ptr_eq(&registered.comm, comm) {
        return Ok(());
    }
    let what = format!("ncclCommDeregister on rank {}: the buffer is registered with another one", comm.rank);
    Err(misuse(INVALID_USAGE, &what))
}

/// Forgets the buffers of a communicator that ends. If it ends by ncclCommDestroy (`is_planned`), buffers that are still
/// registered are a leak of the program. After an abort that returns early they may never be freed.
pub(super) fn end(comm: &Arc<Comm>, is_planned: bool) {
    let is_own = |registered: &Registered| Arc::ptr_eq(&registered.comm, comm);
    let mut n = 0;
    while let Some(handle) = REGISTRATIONS.handle_of(is_own) {
        if let Ok(registered) = REGISTRATIONS.remove(handle)
            && !is_planned
            && CONFIG.nccl_version >= ABORT_RETURNS_EARLY
        {
            lock(&ABANDONED).insert(registered.address, comm.rank);
        }
        n += 1;
    }
    if is_planned && n > 0 {
        report(&format!("nccl: rank {}: ncclCommDestroy, but {n} buffers are still registered", comm.rank));
    }
}

/// Offset of these bytes in a registered buffer; `None` if they are not registered with the communicator.
pub(super) fn offset_of(comm: &Arc<Comm>, address: u64, bytes: u64) -> Option<u64> {
    let all = REGISTRATIONS.all();
    let holds = |r: &&Arc<Registered>| Arc::ptr_eq(&r.comm, comm) && r.holds(address, bytes);
    all.iter().find(holds).map(|registered| address - registered.address)
}

/// Checks whether other devices and network cards can access this memory: it must be one allocation of `cuMemAlloc` or
/// ncclMemAlloc. Memory of a pool has neither a CUDA IPC handle nor a handle of the kind that NCCL shares.
fn check(buffer: u64, bytes: u64) -> Result<(), String> {
    let memory = lock(&MEMORY);
    let known = memory.describe(buffer);
    let Some((base, allocation)) = memory.find(buffer) else {
        return Err(format!("{known} is not device memory"));
    };
    if bytes == 0 || buffer + bytes > base + allocation.size {
        return Err(format!("it does not lie in {known}"));
    }
    if allocation.pool.is_some() {
        return Err(format!(
            "{known} is memory of a pool, which can't be registered; use ncclMemAlloc or cuMemAlloc"
        ));
    }
    Ok(())
}

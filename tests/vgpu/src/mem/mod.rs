//! Device memory.
//!
//! A device pointer is `TAG + ordinal * SPAN + offset`, in a range of addresses that is reserved but never
//! accessible: a host that dereferences one faults, and [`trap`] says which allocation it was. The bytes lie at
//! `pointer + SHIFT`; only the virtual devices add `SHIFT`. Every allocation ends at an inaccessible page, is filled
//! with NaN, carries a canary up to its alignment, and its addresses are never used again.
//!
//! - [`pool`]: accounting of stream-ordered pools
//! - [`host`]: pinned host memory, and copies that are in flight to and from it
//! - [`ipc`]: memory that another process maps
//! - [`pages`]: the system calls
//! - [`trap`]: interpretation of faults

pub(crate) mod host;
pub(crate) mod ipc;
pub(crate) mod pages;
pub(crate) mod pool;
pub(crate) mod trap;

use crate::code::{OUT_OF_MEMORY, PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED, TOO_MANY_PEERS};
use crate::config::{CONFIG, MAX_DEVICES};
use crate::{fault, order};
use pages::PAGE;
use pool::Pool;
use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};

/// The lowest device pointer.
pub(crate) const TAG: u64 = 0x1000_0000_0000;
/// Size of the address range of one device.
pub(crate) const SPAN: u64 = 1 << 40;
/// Distance from a device pointer to its bytes. `device.h` contains the same number.
pub(crate) const SHIFT: u64 = 0x2000_0000_0000;
/// Poison and canary: NaN as f32, f64 and bf16, -1 as an integer.
const POISON: u8 = 0xFF;
/// Devices that one of a machine without NVSwitch reaches.
const MOST_PEERS: usize = 8;

const _: () = assert!(TAG + MAX_DEVICES as u64 * SPAN <= TAG + SHIFT);

/// One allocation.
pub(crate) struct Alloc {
    /// Requested size in bytes.
    pub(crate) size: u64,
    /// Ordinal of the device that holds it.
    pub(crate) device: usize,
    /// Number used in findings: the index of the allocation in the process.
    pub(crate) id: u64,
    /// The pool that it comes from; `None` for plain `cuMemAlloc`.
    pub(crate) pool: Option<u64>,
    /// Set if the bytes are in a file that other processes may map.
    pub(crate) shared: Option<ipc::Shared>,
    /// Set if the bytes belong to another process.
    pub(crate) import: Option<ipc::Import>,
    /// Whether `cuMemFreeAsync` was called; the stream frees it when it reaches that point.
    pub(crate) freeing: bool,
    /// Bytes that streams have read and written so far, known only with `VGPU_CHECK`.
    pub(crate) moved: [u64; 2],
    /// First device address of its pages, and their size in bytes.
    block: u64,
    pages: u64,
    /// Bytes that it occupies on the device.
    taken: u64,
}

/// Current and peak number of bytes that a device holds.
#[derive(Clone, Default)]
pub(crate) struct Usage {
    pub(crate) live_bytes: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) live_allocations: u64,
    /// Pages of plain allocations.
    plain: u64,
}

/// The memory of all devices of this process.
#[derive(Default)]
pub(crate) struct Memory {
    live: BTreeMap<u64, Alloc>,
    dead: BTreeMap<u64, Alloc>,
    next: Vec<u64>,
    usage: Vec<Usage>,
    peers: Vec<Vec<bool>>,
    pub(crate) pools: BTreeMap<u64, Pool>,
    ids: u64,
}

/// The memory of all devices of this process.
pub(crate) static MEMORY: LazyLock<Mutex<Memory>> = LazyLock::new(|| {
    let n = CONFIG.devices();
    for base in [TAG, TAG + SHIFT] {
        assert!(
            pages::reserve(base, SPAN * n.max(1) as u64),
            "vgpu: cannot reserve the device address range"
        );
    }
    let memory = Memory {
        next: (0..n as u64).map(|d| TAG + d * SPAN).collect(),
        usage: vec![Usage::default(); n],
        peers: vec![vec![false; n]; n],
        // The default pool of a device has the device's number; later pools continue the numbering.
        pools: (0..n).map(|d| (d as u64, Pool::new(d, 0))).collect(),
        ..Memory::default()
    };
    Mutex::new(memory)
});

/// Whether `p` is in the range of device pointers.
pub(crate) fn is_device(p: u64) -> bool {
    (TAG..TAG + SPAN * CONFIG.devices() as u64).contains(&p)
}

impl Memory {
    /// Allocates `size` bytes on `device`, from a pool or plain, filled with NaN.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` beyond `VGPU_MEMORY` or on request (`VGPU_FAIL=malloc:N`).
    pub(crate) fn alloc(&mut self, device: usize, size: u64, pool: Option<u64>) -> Result<u64, i32> {
        self.alloc_in_steps(device, size, pool, PAGE)
    }

    /// Same as [`Memory::alloc`] for memory that is allocated in multiples of `step` bytes. The end of the allocation is still
    /// `size`.
    pub(crate) fn alloc_in_steps(
        &mut self,
        device: usize,
        size: u64,
        pool: Option<u64>,
        step: u64,
    ) -> Result<u64, i32> {
        if fault::due("malloc") {
            return Err(OUT_OF_MEMORY);
        }
        let data = size.max(1).next_multiple_of(256);
        let pages = data.next_multiple_of(PAGE);
        let taken = pages.next_multiple_of(step);
        self.make_room(device, taken, pool)?;
        let block = self.take_addresses(device, pages)?;
        if !pages::open(block + SHIFT, pages) {
            return Err(OUT_OF_MEMORY);
        }
        let p = block + pages - data;
        pages::fill(p + SHIFT, data, POISON);
        self.ids += 1;
        let alloc = Alloc {
            size,
            device,
            id: self.ids,
            pool,
            shared: None,
            import: None,
            freeing: false,
            moved: [0; 2],
            block,
            pages,
            taken,
        };
        self.live.insert(p, alloc);
        self.account(device, pool, taken as i64, size as i64);
        Ok(p)
    }

    /// Frees an allocation.
    ///
    /// # Errors
    /// Describes the fault: `p` is not a live allocation, or its end was overwritten.
    pub(crate) fn free(&mut self, p: u64) -> Result<(), String> {
        let Some(mut a) = self.live.remove(&p) else {
            return Err(format!("free of {}", self.describe(p)));
        };
        let overrun = overrun(p, &a);
        pages::close(a.block + SHIFT, a.pages);
        a.shared = None;
        if a.import.is_none() {
            self.account(a.device, a.pool, -(a.taken as i64), -(a.size as i64));
        }
        let id = a.id;
        order::forget(id);
        self.dead.insert(p, a);
        overrun.map_or(Ok(()), |n| Err(format!("allocation #{id} was written {n} bytes past its end")))
    }

    /// Records a call of `cuMemFreeAsync` for `p`: from now on the host may neither free nor use it.
    pub(crate) fn announce_free(&mut self, p: u64) -> Result<(), String> {
        match self.live.get_mut(&p) {
            Some(a) if !a.freeing => {
                a.freeing = true;
                Ok(())
            }
            Some(a) => Err(format!("allocation #{} is freed a second time", a.id)),
            None => Err(format!("free of {}", self.describe(p))),
        }
    }

    /// Fills an allocation with NaN again, as at its first moment in the order of its stream.
    pub(crate) fn poison(&self, p: u64) {
        if let Some(a) = self.live.get(&p) {
            pages::fill(p + SHIFT, a.size, POISON);
        }
    }

    /// Checks whether the allocation that contains `p` was written past its end; called after each kernel that received `p`.
    pub(crate) fn check_canary(&self, p: u64) -> Result<(), String> {
        match self.find(p).or_else(|| self.live.range(..=p).next_back().map(|(&b, a)| (b, a))) {
            Some((base, a)) => match overrun(base, a) {
                Some(n) => Err(format!(
                    "allocation #{} of {} bytes was written {n} bytes past its end",
                    a.id, a.size
                )),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// The live allocation that contains `p`, and its base.
    pub(crate) fn find(&self, p: u64) -> Option<(u64, &Alloc)> {
        let (&base, a) = self.live.range(..=p).next_back()?;
        (p < base + a.size.max(1)).then_some((base, a))
    }

    /// Counts an access to the allocation that begins at `base`.
    pub(crate) fn count_access(&mut self, base: u64, bytes: u64, write: bool) {
        if let Some(a) = self.find_mut(base) {
            a.moved[usize::from(write)] += bytes;
        }
    }

    fn find_mut(&mut self, p: u64) -> Option<&mut Alloc> {
        self.live.get_mut(&p)
    }

    /// The real address of `len` bytes at `p`, for work on `device`.
    ///
    /// # Errors
    /// A description: no device pointer, no allocation, beyond its end, or memory of a device that `device` can't access.
    pub(crate) fn real(&self, device: usize, p: u64, len: u64) -> Result<*mut u8, String> {
        let (base, a) = self.range(p, len)?;
        if a.device != device && !self.reaches(device, a) {
            let why = match (a.pool, &a.import) {
                (Some(_), _) => "the pool it is from gives that device no access (cuMemPoolSetAccess)",
                (None, Some(_)) => "the handle was opened in another context",
                (None, None) => "which has no peer access to it (cuCtxEnablePeerAccess)",
            };
            return Err(format!(
                "allocation #{} (offset {}) on device {} used on device {device}: {why}",
                a.id,
                p - base,
                a.device
            ));
        }
        Ok((p + SHIFT) as *mut u8)
    }

    /// Same as [`Memory::real`] for `cuMemcpyPeerAsync`, which requires no access: without it the driver stages the bytes.
    pub(crate) fn real_anywhere(&self, p: u64, len: u64) -> Result<*mut u8, String> {
        self.range(p, len).map(|_| (p + SHIFT) as *mut u8)
    }

    /// Checks that the host may still enqueue work on these bytes.
    ///
    /// # Errors
    /// A description: no device pointer, no allocation, beyond its end, or freed by cuMemFreeAsync.
    pub(crate) fn usable(&self, p: u64, len: u64) -> Result<(), String> {
        match self.range(p, len)? {
            (_, a) if a.freeing => Err(format!("allocation #{} is used after cuMemFreeAsync", a.id)),
            _ => Ok(()),
        }
    }

    fn range(&self, p: u64, len: u64) -> Result<(u64, &Alloc), String> {
        if !is_device(p) {
            return Err(format!("{p:#x} is not a device pointer"));
        }
        let Some((base, a)) = self.find(p) else { return Err(self.describe(p)) };
        if p + len > base + a.size {
            let at = p - base;
            return Err(format!("{len} bytes at offset {at} of allocation #{} of {} bytes", a.id, a.size));
        }
        Ok((base, a))
    }

    fn reaches(&self, device: usize, a: &Alloc) -> bool {
        match (a.pool, &a.import) {
            (Some(pool), _) => self.pools.get(&pool).is_some_and(|pool| pool.access[device]),
            (None, Some(import)) => import.device == device || self.peers[device][a.device],
            (None, None) => self.peers[device][a.device],
        }
    }

    /// Describes the current or former allocation at `p`.
    pub(crate) fn describe(&self, p: u64) -> String {
        let near = |map: &BTreeMap<u64, Alloc>, what: &str| {
            let (&base, a) = map.range(..=p).next_back()?;
            let (id, size, device) = (a.id, a.size, a.device);
            (p < a.block + a.pages + PAGE).then(|| match p.checked_sub(base + a.size) {
                Some(past) => format!(
                    "{p:#x}: {past} bytes past the end of {what} #{id} of {size} bytes on device {device}"
                ),
                None => {
                    format!("{p:#x}: offset {} of {what} #{id} of {size} bytes on device {device}", p - base)
                }
            })
        };
        near(&self.live, "allocation")
            .or_else(|| near(&self.dead, "FREED allocation"))
            .unwrap_or_else(|| format!("{p:#x}, which is not an allocation"))
    }

    /// Lets kernels of `from` use plain memory of `to`.
    pub(crate) fn enable_peer(&mut self, from: usize, to: usize) -> Result<(), i32> {
        if self.peers[from][to] {
            return Err(PEER_ACCESS_ALREADY_ENABLED);
        }
        if self.peers[from].iter().filter(|is_enabled| **is_enabled).count() == MOST_PEERS {
            return Err(TOO_MANY_PEERS);
        }
        self.peers[from][to] = true;
        Ok(())
    }

    /// Revokes that permission.
    pub(crate) fn disable_peer(&mut self, from: usize, to: usize) -> Result<(), i32> {
        if std::mem::replace(&mut self.peers[from][to], false) {
            Ok(())
        } else {
            Err(PEER_ACCESS_NOT_ENABLED)
        }
    }

    /// Free and total bytes of a device. Memory reserved by pools is not free.
    pub(crate) fn info(&self, device: usize) -> (u64, u64) {
        (CONFIG.memory.saturating_sub(self.taken(device)), CONFIG.memory)
    }

    /// Number of bytes that each device holds, for the counts.
    pub(crate) fn usage(&self) -> &[Usage] {
        &self.usage
    }

    fn taken(&self, device: usize) -> u64 {
        let pools = self.pools.values().filter(|pool| pool.device == device);
        self.usage[device].plain + pools.map(|pool| pool.reserved.now).sum::<u64>()
    }

    /// Makes room for `pages` more bytes; before it refuses, pools release their unused memory.
    fn make_room(&mut self, device: usize, pages: u64, pool: Option<u64>) -> Result<(), i32> {
        let needed = match pool {
            Some(id) => self.pools.get(&id).ok_or(OUT_OF_MEMORY)?.growth_for(pages)?,
            None => pages,
        };
        if self.taken(device) + needed > CONFIG.memory {
            for pool in self.pools.values_mut().filter(|pool| pool.device == device) {
                pool.trim(0);
            }
            let needed = match pool {
                Some(id) => self.pools[&id].growth_for(pages)?,
                None => pages,
            };
            if self.taken(device) + needed > CONFIG.memory {
                return Err(OUT_OF_MEMORY);
            }
        }
        Ok(())
    }

    /// Reserves addresses for `pages` bytes and an inaccessible page after them.
    fn take_addresses(&mut self, device: usize, pages: u64) -> Result<u64, i32> {
        let block = self.next[device];
        if block + pages + PAGE > TAG + (device as u64 + 1) * SPAN {
            crate::report::note("the device addresses are used up: they are never given out twice");
            return Err(OUT_OF_MEMORY);
        }
        self.next[device] = block + pages + PAGE;
        Ok(block)
    }

    fn account(&mut self, device: usize, pool: Option<u64>, pages: i64, bytes: i64) {
        let usage = &mut self.usage[device];
        usage.live_bytes = usage.live_bytes.wrapping_add_signed(bytes);
        usage.peak_bytes = usage.peak_bytes.max(usage.live_bytes);
        usage.live_allocations = usage.live_allocations.wrapping_add_signed(if pages > 0 { 1 } else { -1 });
        match pool.and_then(|id| self.pools.get_mut(&id)) {
            Some(pool) => pool.account(pages),
            None => usage.plain = usage.plain.wrapping_add_signed(pages),
        }
    }
}

/// Number of bytes written past the end of an allocation: the canary fills it up to a multiple of 256 bytes.
fn overrun(base: u64, a: &Alloc) -> Option<u64> {
    if a.import.is_some() {
        return None;
    }
    let end = a.size.max(1).next_multiple_of(256);
    pages::first_other_than(base + SHIFT + a.size, end - a.size, POISON).map(|at| at + 1)
}

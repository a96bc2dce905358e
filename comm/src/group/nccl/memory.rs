//! Memory for tensors that collectives exchange in every step (`World::exchange_zeros`), allocated by NCCL and registered with the
//! communicator.
//!
//! NCCL copies other buffers through its own. Registered ones it reads and writes in place: reductions inside a switch (NVLS), and
//! all-gathers between GPUs that reach each other. That takes fewer thread blocks, which backward then has for itself. An all-reduce
//! over a ring in place gains nothing (`ncclRegisterCollBuffers` of NCCL 2.30). Registering is local: NCCL connects a buffer in its first
//! collective, and copies as before if that is impossible. All ranks must register alike, at the same offsets.
//!
//! # Order of the end
//! Memory of a dropped tensor stays registered, for the next tensor of its length, until the communicator is closed: after the
//! device's work the buffers are deregistered, then the communicator is destroyed, then they are freed. Where it is aborted instead,
//! NCCL cleans up by itself, from 2.26 on in the background: that memory is never freed.
//!
//! Source: NCCL user guide, "User Buffer Registration"; `src/register/register.cc` and `src/allocator.cc` of NCCL 2.30.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::nccl::sys;
use ddp_kernels::KernelError;
use ddp_kernels::cuda::{ForeignMemory, Gpu};
use ddp_kernels::hint::with_hint;

use super::api::{Api, MemoryFunctions, Status};
use crate::register_buffers::RegisterBuffers;
use crate::{CommError, Result};

/// Bytes in whose multiples NCCL takes memory from the device: the granularity of `cuMemCreate` on GPUs so far.
pub const NCCL_MEMORY_STEP_BYTES: usize = 2 << 20;
/// Largest difference of free memory around an allocation of that size that other users of the device can explain. From 2.19.3 to 2.25
/// NCCL takes multiples of the granularity of multicast objects where there is a switch: 512 MiB.
const MAX_USUAL_STEP_BYTES: usize = 64 << 20;

/// Versions of NCCL that do so.
const ROUNDS_TO_MULTICAST: Range<c_int> = 21_903..22_602;
/// The granularity that drivers recommend for multicast objects.
///
/// Source: mscclpp, `DefaultNvlsBufferSize`.
const MULTICAST_STEP_BYTES: usize = 512 << 20;

/// Bytes in whose multiples the NCCL of this machine, or else the newest one, takes memory for the tensors of
/// [`World::exchange_zeros`](crate::World::exchange_zeros); None if it registers none.
///
/// - `has_multicast`: [`GpuInfo::has_multicast`](ddp_kernels::cuda::GpuInfo::has_multicast)
pub fn registered_step_bytes(wanted: RegisterBuffers, has_multicast: bool) -> Option<usize> {
    let api = Api::get().ok();
    let is_impossible = api.is_some_and(|api| api.memory().is_err());
    let rounds = has_multicast && api.is_some_and(|api| ROUNDS_TO_MULTICAST.contains(&api.version()));
    match wanted {
        RegisterBuffers::Off => None,
        _ if is_impossible => None,
        // Only on request.
        RegisterBuffers::Auto if rounds => None,
        RegisterBuffers::Auto | RegisterBuffers::On => {
            Some(if rounds { MULTICAST_STEP_BYTES } else { NCCL_MEMORY_STEP_BYTES })
        }
    }
}

/// Memory of NCCL for the tensors of one communicator.
#[derive(Debug, Clone)]
pub(crate) struct NcclMemory(Arc<Shared>);

struct Shared {
    api: &'static Api,
    functions: &'static MemoryFunctions,
    gpu: &'static Gpu,
    rank: usize,
    state: Mutex<State>,
}

struct State {
    comm: Comm,
    buffers: Vec<Buffer>,
    /// Bytes in whose multiples memory is taken from the device.
    step_bytes: usize,
}

/// The communicator with which buffers are registered.
#[derive(Clone, Copy)]
enum Comm {
    Open(sys::ncclComm_t),
    /// Nothing is registered any more.
    Closed,
    /// NCCL may still use the memory.
    Aborted,
}

struct Buffer {
    address: *mut c_void,
    bytes: usize,
    /// Null once it is deregistered, or if NCCL has no use for it.
    handle: *mut c_void,
    /// Whether a tensor or a graph uses it.
    is_used: bool,
}

// SAFETY: the pointers are handles and addresses of a device. NCCL's functions take them from any thread, one at a time: each call is
// made with the state locked, and the communicator's other calls are made by the thread of its group, as are tensors freed.
unsafe impl Send for State {}

impl NcclMemory {
    /// Memory that is registered with `comm`, after a trial; or why that is impossible.
    pub(super) fn new(
        api: &'static Api,
        comm: sys::ncclComm_t,
        gpu: &'static Gpu,
        rank: usize,
    ) -> Result<std::result::Result<Self, String>> {
        let functions = match api.memory() {
            Ok(functions) => functions,
            Err(reason) => return Ok(Err(reason)),
        };
        let state = State { comm: Comm::Open(comm), buffers: Vec::new(), step_bytes: NCCL_MEMORY_STEP_BYTES };
        let state = Mutex::new(state);
        let memory = NcclMemory(Arc::new(Shared { api, functions, gpu, rank, state }));
        let free = || Ok::<_, CommError>(gpu.memory_in_use()?.free);
        let before = free()?;
        let trial = memory.0.add_buffer(&mut memory.0.state(), NCCL_MEMORY_STEP_BYTES);
        let taken = before.saturating_sub(free()?);
        if taken > MAX_USUAL_STEP_BYTES {
            memory.set_step_bytes(taken.next_multiple_of(NCCL_MEMORY_STEP_BYTES));
        }
        Ok(match trial {
            Ok(_) => {
                memory.empty();
                Ok(memory)
            }
            Err(CommError::Nccl { call, code, text, .. }) => Err(format!("{call} failed: {text} ({code})")),
            Err(error) => Err(with_hint(&error)),
        })
    }

    /// At least `bytes`, above 0, of memory that is registered; its contents are undefined. Collective: every rank calls it with the
    /// same length.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`]; [`CommError::Nccl`].
    pub(super) fn allocate(&self, bytes: usize) -> Result<ForeignMemory> {
        let shared = &self.0;
        let mut state = shared.state();
        let unused = state.buffers.iter().position(|buffer| !buffer.is_used && buffer.bytes == bytes);
        let index = match unused {
            Some(index) => index,
            None => shared.add_buffer(&mut state, bytes)?,
        };
        let step_bytes = state.step_bytes;
        let buffer = &mut state.buffers[index];
        buffer.is_used = true;
        let address = buffer.address as u64;
        let owner = self.0.clone();
        // SAFETY: allocated by NCCL on this device with that length, and from here on used by its owner alone.
        let memory =
            unsafe { ForeignMemory::new(shared.gpu, address, bytes, move || owner.release(address)) };
        Ok(memory.holding(bytes.next_multiple_of(step_bytes)))
    }

    /// Bytes in whose multiples memory is taken from the device.
    pub(crate) fn step_bytes(&self) -> usize {
        self.0.state().step_bytes
    }

    /// Sets [`NcclMemory::step_bytes`], as found on all ranks.
    pub(crate) fn set_step_bytes(&self, step_bytes: usize) {
        self.0.state().step_bytes = step_bytes;
    }

    /// Deregisters and frees all buffers; no tensor has one.
    pub(super) fn empty(&self) {
        self.0.deregister_all();
        self.0.free_unused();
    }

    /// Deregisters all buffers; the work of all collectives is over.
    pub(super) fn deregister_all(&self) {
        self.0.deregister_all();
    }

    /// Frees unused buffers after the communicator was destroyed; the others are freed with their tensors.
    pub(super) fn close(&self) {
        self.0.state().comm = Comm::Closed;
        self.0.free_unused();
    }

    /// Leaves all buffers to the end of the process, before the communicator is aborted.
    pub(super) fn abandon(&self) {
        self.0.state().comm = Comm::Aborted;
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates and registers one more buffer; returns its index.
    fn add_buffer(&self, state: &mut State, bytes: usize) -> Result<usize> {
        let Comm::Open(comm) = state.comm else { return Err(self.error("ncclMemAlloc", Status::SUCCESS)) };
        self.gpu.bind()?;
        let mut address = std::ptr::null_mut();
        let mut allocate = || {
            // SAFETY: the pointer is valid for one address; the device's context is current.
            unsafe { (self.functions.mem_alloc)(&raw mut address, bytes) }
        };
        let mut status = allocate();
        if status == Status::UNHANDLED_CUDA_ERROR {
            // The pool may hold what is missing.
            self.gpu.empty_cache()?;
            status = allocate();
        }
        match status {
            Status::SUCCESS => {}
            Status::UNHANDLED_CUDA_ERROR => {
                let in_use = self.gpu.memory_in_use().ok().map(Box::new);
                return Err(KernelError::OutOfMemory { device: self.gpu.device(), bytes, in_use }.into());
            }
            status => return Err(self.error("ncclMemAlloc", status)),
        }
        let mut handle = std::ptr::null_mut();
        // SAFETY: the communicator is alive and in no other call; the memory was allocated above with that length.
        let status = unsafe { (self.functions.register)(comm, address, bytes, &raw mut handle) };
        if status != Status::SUCCESS {
            let error = self.error("ncclCommRegister", status);
            // SAFETY: allocated above, and nothing has used it.
            let _ = unsafe { (self.functions.mem_free)(address) };
            return Err(error);
        }
        state.buffers.push(Buffer { address, bytes, handle, is_used: false });
        Ok(state.buffers.len() - 1)
    }

    /// Takes back a buffer that no tensor and no graph has any more.
    fn release(&self, address: u64) {
        let mut state = self.state();
        let Some(index) = state.buffers.iter().position(|buffer| buffer.address as u64 == address) else {
            return;
        };
        state.buffers[index].is_used = false;
        let is_closed = matches!(state.comm, Comm::Closed);
        drop(state);
        if is_closed {
            self.free_unused();
        }
    }

    fn deregister_all(&self) {
        let mut state = self.state();
        let Comm::Open(comm) = state.comm else { return };
        if self.gpu.bind().is_err() {
            return;
        }
        for buffer in &mut state.buffers {
            let handle = std::mem::replace(&mut buffer.handle, std::ptr::null_mut());
            if !handle.is_null() {
                // SAFETY: the communicator is alive and in no other call; registered once, deregistered once. The end of the
                // communicator would do it, too, so a failure is none.
                let _ = unsafe { (self.functions.deregister)(comm, handle) };
            }
        }
    }

    /// Frees deregistered buffers that nothing has, after the device's work.
    fn free_unused(&self) {
        let mut state = self.state();
        let is_unused = |buffer: &mut Buffer| !buffer.is_used && buffer.handle.is_null();
        let unused: Vec<_> = state.buffers.extract_if(.., is_unused).collect();
        drop(state);
        if unused.is_empty() || self.gpu.synchronize().is_err() {
            // A device that fails has no use for free memory.
            return;
        }
        for buffer in unused {
            // SAFETY: allocated by this library, freed once; the device's work is done.
            let _ = unsafe { (self.functions.mem_free)(buffer.address) };
        }
    }

    fn error(&self, call: &'static str, status: Status) -> CommError {
        let text = self.api.describe(std::ptr::null_mut(), status);
        let (rank, device) = (self.rank, self.gpu.device());
        CommError::Nccl { call, rank, device, code: status.name(), text, aborted: true }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        let n_used = state.buffers.iter().filter(|buffer| buffer.is_used).count();
        write!(f, "{} buffers, {n_used} in use, on {}", state.buffers.len(), self.gpu.device())
    }
}

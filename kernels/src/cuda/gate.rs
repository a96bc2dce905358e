//! The gate of a GPU's updates: the host closes it before it gives up a collective that other ranks left.
//!
//! Work that was enqueued behind that collective then runs on undefined sums. Each update reads the gate first: once it is closed, weights
//! and optimizer state stay as they are. The gate records which steps have passed, so that the host knows what they are.

use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

use super::context::Stream;
use super::driver::check_driver;
use super::gpu::{GateMemory, Gpu};
use super::memory::GATE_WORDS;
use crate::Result;

/// Longest time for the copy of a word. The device may have failed.
const COPIED: Duration = Duration::from_secs(1);
/// Time between two looks.
const PAUSE: Duration = Duration::from_micros(50);

/// Steps that a [gate](Gpu::gate_updates) has let pass and stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateState {
    /// The step of the last update that was applied, in whole or in part; 0 for none.
    pub last_applied: u64,
    /// The step of the first update that found the gate closed.
    pub first_stopped: Option<u64>,
}

impl Gpu {
    /// Lets updates that are enqueued from now on pass a gate, which is open and has recorded nothing. No update is under way.
    ///
    /// # Errors
    /// [`crate::KernelError::OutOfMemory`]; [`crate::KernelError::Cuda`].
    pub fn gate_updates(&'static self) -> Result<()> {
        if self.gate.get().is_none() {
            self.bind()?;
            let gate = GateMemory {
                words: self.gate_words()?,
                stream: Stream::new(self.context, 0)?,
                host: self.host_memory(2 * GATE_WORDS * size_of::<u64>())?,
            };
            self.gate.get_or_init(|| gate);
        }
        self.write_gate([0; GATE_WORDS])
    }

    /// Closes the gate, if there is one: no update that begins from now on is applied. Waits for nothing but that.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`], also if the device does not take the copy.
    pub fn close_gate(&self) -> Result<()> {
        self.write_gate([1])
    }

    /// Writes the first words of the gate, if there is one.
    fn write_gate<const N: usize>(&self, values: [u64; N]) -> Result<()> {
        let Some(gate) = self.gate.get() else { return Ok(()) };
        let words = gate.host.as_ptr().cast::<[u64; N]>();
        // SAFETY: the memory holds GATE_WORDS numbers and more, of which there are at most so many. A copy that is under way, since its wait
        // has timed out, carries the same numbers: nothing but its closing follows the opening of a gate.
        unsafe { words.write(values) };
        let (to, stream) = (gate.words, gate.stream.raw());
        self.bind()?;
        // SAFETY: both sides hold these words, as long as the process.
        let copied = unsafe { sys::cuMemcpyHtoDAsync_v2(to, words.cast(), size_of::<[u64; N]>(), stream) };
        check_driver(self.index(), "cuMemcpyHtoDAsync", copied.result())?;
        self.wait_for_copy(gate)
    }

    /// The state of the gate, if there is one, after all updates that were enqueued.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`].
    pub fn gate_state(&self) -> Result<Option<GateState>> {
        let Some(gate) = self.gate.get() else { return Ok(None) };
        // SAFETY: the second half of the memory, so that a copy to the device that is under way is left alone.
        let words = unsafe { gate.host.as_ptr().cast::<u64>().add(GATE_WORDS) };
        let (from, stream) = (gate.words, gate.stream.raw());
        self.bind()?;
        // SAFETY: both sides hold GATE_WORDS numbers, as long as the process.
        let copied =
            unsafe { sys::cuMemcpyDtoHAsync_v2(words.cast(), from, GATE_WORDS * size_of::<u64>(), stream) };
        check_driver(self.index(), "cuMemcpyDtoHAsync", copied.result())?;
        self.wait_for_copy(gate)?;
        // SAFETY: as above; the copy is complete.
        let [_, last_applied, first_stopped] = unsafe { words.cast::<[u64; GATE_WORDS]>().read() };
        Ok(Some(GateState { last_applied, first_stopped: (first_stopped > 0).then_some(first_stopped) }))
    }

    /// The address of the gate's words.
    pub(crate) fn gate_ptr(&self) -> Option<sys::CUdeviceptr> {
        self.gate.get().map(|gate| gate.words)
    }

    fn wait_for_copy(&self, gate: &GateMemory) -> Result<()> {
        let since = Instant::now();
        loop {
            // SAFETY: the handle is alive.
            match unsafe { sys::cuStreamQuery(gate.stream.raw()) }.result() {
                Err(result::DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) if since.elapsed() < COPIED => {
                    std::thread::sleep(PAUSE);
                }
                queried => return check_driver(self.index(), "cuStreamQuery", queried),
            }
        }
    }
}

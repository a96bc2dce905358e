//! Chooses algorithms by time. Runs that are timed read the operands and write to scratch memory.

use xxhash_rust::xxh3::Xxh3;

use crate::base::memory_use::MemoryUse;
use crate::cuda::blas::{Blas, Choice, Key, Matmul, Operands, Plan, Scales, Subject};
use crate::cuda::cublas_lt::{CublasLt, Heuristic, Status};
use crate::cuda::driver::driver;
use crate::cuda::event::Timer;
use crate::cuda::gpu::Gpu;
use crate::cuda::graph::Graph;
use crate::cuda::memory::DeviceBuffer;
use crate::{KernelError, Result};

/// Most algorithms that are compared: of products that take [`LONG_US`] the first ones only, whose order the heuristic knows better
/// and whose every measurement costs more.
const MAX_CANDIDATES: usize = 32;
const MAX_LONG_CANDIDATES: usize = 8;
const LONG_US: f64 = 1e3;
/// Least alignment in bytes of operands whose algorithms are compared. The heuristic offers algorithms for less, of which some read 16
/// bytes at once: "misaligned address" on an H100 with cuBLASLt 13.1, after which the process can use the device no more.
pub(super) const TIMED_ALIGNMENT: u32 = 16;
/// Measurements of each option, of which the shortest counts: whatever disturbs one makes it longer.
const N_REPEATS: usize = 3;
/// A measurement takes as many calls as fill this time, µs: a single small one is lost in the noise. They are replayed as a graph, as
/// a step is: launched one by one, small matmuls wait for the host, and all options seem to take as long.
const REPEAT_US: f64 = 200.0;
const MAX_CALLS: f64 = 40.0;
/// An option whose first call takes so many times as long as the best one is not measured again.
const HOPELESS: f64 = 3.0;
/// An option must take at most this share of the first one's time to be taken instead: less is noise.
const MIN_GAIN: f64 = 0.98;
/// Device time that all measurements of a process may take, µs; further matmuls take the first answer of the heuristic.
const BUDGET_US: f64 = 5e6;

/// Index of the fastest option, its time and the time of the first option, µs.
type Fastest = (usize, f64, f64);

impl Blas {
    /// Shortest time in µs of one call of `work` on the compute stream, after a first call that is not timed; after calls that take
    /// longer than `limit_us`, their time. Waits for the device.
    ///
    /// # Errors
    /// Errors of `work`; [`KernelError::Cuda`].
    pub(super) fn time_us(
        &self,
        gpu: &'static Gpu,
        limit_us: f64,
        work: &mut impl FnMut() -> Result<()>,
    ) -> Result<f64> {
        let timer = Timer::new(gpu)?;
        let time = |n_calls: usize, calls: &mut dyn FnMut() -> Result<()>| {
            timer.start(gpu.compute())?;
            calls()?;
            timer.stop(gpu.compute())?;
            let us = timer.elapsed_ms()? * 1e3;
            self.choices().spent_us += us;
            Ok::<_, KernelError>(us / n_calls as f64)
        };
        time(1, work)?;
        let once = time(1, work)?.min(time(1, work)?);
        if once > limit_us {
            return Ok(once);
        }
        let n_calls = (REPEAT_US / once).clamp(1.0, MAX_CALLS) as usize;
        let captured = || Graph::capture(gpu, || (0..n_calls).try_for_each(|_| work())).ok();
        let mut graph = (n_calls > 1).then(captured).flatten();
        let mut repeat = || match &mut graph {
            Some(graph) => graph.launch(),
            None => (0..n_calls).try_for_each(|_| work()),
        };
        let mut shortest = if n_calls > 1 { time(n_calls, &mut repeat)? } else { once };
        for _ in 1..N_REPEATS {
            shortest = shortest.min(time(n_calls, &mut repeat)?);
        }
        Ok(shortest)
    }

    /// GPU model and library.
    pub(super) fn name(&self, gpu: &Gpu) -> String {
        format!("{}, cuBLASLt {}", gpu.info().name, self.lt.version())
    }

    /// Name of the choices on disk.
    pub(super) fn place(&self, gpu: &Gpu) -> [String; 2] {
        [self.name(gpu), format!("driver {}", driver().map_or(0, |driver| driver.version))]
    }

    /// Makes sure that a choice in use is one among these options; while [`Gpu::choose_matmuls`] runs, chooses where there is none.
    pub(super) fn settle(
        &self,
        gpu: &'static Gpu,
        subject: Subject,
        key: &Key,
        among: u64,
        measure: impl FnOnce() -> Result<Vec<Option<f64>>>,
    ) -> Result<()> {
        let place = self.place(gpu);
        let is_choosing = gpu.is_choosing();
        if self.choices().recall(subject, key, among, is_choosing.then_some(&place)) || !is_choosing {
            return Ok(());
        }
        let is_affordable = self.choices().spent_us < BUDGET_US;
        let times = match if is_affordable { measure() } else { Ok(Vec::new()) } {
            Err(KernelError::OutOfMemory { .. }) => Vec::new(),
            times => times?,
        };
        let (n, fastest) = (times.len(), fastest(&times));
        let choice = fastest.map(|(index, us, first_us)| Choice { index, n, among, us, first_us });
        self.choices().settle(subject, key, choice);
        Ok(())
    }

    /// Chooses the algorithm of a new plan, or recalls the choice.
    ///
    /// # Safety
    /// Same as [`Gpu::matmul`]; `plan` belongs to `key`.
    pub(super) unsafe fn choose_algorithm(
        &self,
        gpu: &'static Gpu,
        key: &Key,
        plan: &mut Plan,
        scales: Scales,
        operands: Operands,
    ) -> Result<()> {
        if key.least_alignment() < TIMED_ALIGNMENT {
            self.choices().settle(Subject::Algorithm, key, None);
            return Ok(());
        }
        let Ok(mut candidates) = plan.candidates(self.handle, key, MAX_CANDIDATES) else { return Ok(()) };
        candidates.retain(|candidate| candidate.state.result().is_ok());
        let among = fingerprint(candidates.iter().map(|candidate| words(self.lt, candidate)));
        // SAFETY: as this function's.
        let measure = || unsafe { self.time_algorithms(gpu, key, plan, &candidates, scales, operands) };
        self.settle(gpu, Subject::Algorithm, key, among, measure)?;
        let chosen = self.choices().get(Subject::Algorithm, key);
        if let Some(chosen) = chosen.and_then(|choice| candidates.get(choice.index)) {
            plan.algorithm = chosen.algorithm;
        }
        Ok(())
    }

    /// Times of the candidates, µs; None for those that fail.
    ///
    /// # Safety
    /// Same as [`Blas::choose_algorithm`].
    unsafe fn time_algorithms(
        &self,
        gpu: &'static Gpu,
        key: &Key,
        plan: &mut Plan,
        candidates: &[Heuristic],
        scales: Scales,
        mut operands: Operands,
    ) -> Result<Vec<Option<f64>>> {
        if candidates.len() < 2 {
            return Ok(Vec::new());
        }
        let Matmul { batch, m, n, output, epilogue, .. } = key.matmul;
        let scratch = |bytes: usize| DeviceBuffer::zeroed(gpu, bytes, MemoryUse::Workspace);
        let c = scratch(batch * m * n * output.size_bytes())?;
        operands.c = c.ptr();
        let aux = epilogue.writes_aux().then(|| scratch(epilogue.aux_bytes(m, n, output))).transpose()?;
        operands.aux = aux.as_ref().map_or(operands.aux, DeviceBuffer::ptr);
        let bias = epilogue.writes_bias().then(|| scratch(m.max(n) * output.size_bytes())).transpose()?;
        operands.bias = bias.as_ref().map_or(operands.bias, DeviceBuffer::ptr);
        let first = plan.algorithm;
        let mut times = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            plan.algorithm = candidate.algorithm;
            let best = times.iter().flatten().copied().fold(f64::INFINITY, f64::min);
            if times.len() >= MAX_LONG_CANDIDATES && best >= LONG_US {
                break;
            }
            let mut run = || {
                // SAFETY: the outputs are scratch of the sizes that the matmul has, freed after it in the stream, and the caller
                // guarantees the inputs.
                let launched =
                    unsafe { self.launch((gpu.compute(), None), plan, key.matmul, scales, operands) };
                launched.map_err(|status| cublas_error(gpu, self.lt, "cublasLtMatmul", status))
            };
            times.push(match self.time_us(gpu, HOPELESS * best, &mut run) {
                Err(KernelError::Cublas { .. }) => None,
                time => Some(time?),
            });
        }
        plan.algorithm = first;
        Ok(times)
    }
}

pub(super) fn cublas_error(gpu: &Gpu, lt: &CublasLt, call: &'static str, status: Status) -> KernelError {
    KernelError::Cublas { device: gpu.device(), call, code: lt.name_of(status) }
}

/// The fastest option, or the first one if none is clearly faster; None if there is only one.
pub(super) fn fastest(times: &[Option<f64>]) -> Option<Fastest> {
    let timed = || times.iter().enumerate().filter_map(|(index, us)| Some((index, (*us)?)));
    let (first, first_us) = timed().next()?;
    let (index, us) = timed().min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let (index, us) = if us > MIN_GAIN * first_us { (first, first_us) } else { (index, us) };
    (timed().count() > 1).then_some((index, us, first_us))
}

/// Describes an algorithm, alike in each process: by its configuration, or else its bytes, which cublasLt.h allows to be stored.
fn words(lt: &CublasLt, candidate: &Heuristic) -> [u8; 64] {
    let mut bytes = [0; 64];
    match lt.configuration(&candidate.algorithm) {
        Some(values) => {
            bytes
                .chunks_exact_mut(4)
                .zip(values)
                .for_each(|(to, value)| to.copy_from_slice(&value.to_le_bytes()));
        }
        None => {
            let words = candidate.algorithm.data;
            bytes
                .chunks_exact_mut(8)
                .zip(words)
                .for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        }
    }
    bytes
}

/// Hash of a list, the same in each build.
pub(super) fn fingerprint<const N: usize>(parts: impl Iterator<Item = [u8; N]>) -> u64 {
    let mut hash = Xxh3::new();
    parts.for_each(|part| hash.update(&part));
    hash.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_fastest_options_is_taken() {
        assert_eq!(fastest(&[Some(3.0), Some(2.0), None, Some(2.0)]), Some((1, 2.0, 3.0)));
        assert_eq!(fastest(&[None, Some(2.0), Some(5.0)]), Some((1, 2.0, 2.0)));
        assert_eq!(fastest(&[Some(100.0), Some(98.5)]), Some((0, 100.0, 100.0)), "as good as equal");
        assert_eq!(fastest(&[Some(2.0), None]), None, "nothing to choose from");
        assert_eq!(fastest(&[]), None);
    }
}

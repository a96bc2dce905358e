//! Choosing algorithms and forms by time, on request, and exchanging the choices: [`Gpu::choose_matmuls`].

use super::timing::fingerprint;
use crate::Result;
use crate::cuda::blas::{Epilogue, Key, Matmul, MatmulChoice, Operands, Subject};
use crate::cuda::feature::GpuFeature;
use crate::cuda::gpu::Gpu;

impl Gpu {
    /// Runs `work` and chooses the fastest algorithm and form of each new matmul in it: by time, or as an earlier process on this
    /// machine has chosen. In the deterministic mode nothing is chosen.
    ///
    /// The device is waited for at each new matmul, and scratch memory of the size of its outputs is allocated; nothing is chosen
    /// where it does not fit. Not to be used in a capture.
    pub fn choose_matmuls<R>(&self, work: impl FnOnce() -> R) -> R {
        self.set_choosing(!self.is_deterministic() && self.uses(GpuFeature::TimedMatmuls));
        let result = work();
        self.set_choosing(false);
        result
    }

    /// The choices in use, for reports.
    ///
    /// # Errors
    /// [`crate::KernelError::DeviceUnavailable`] if cuBLASLt is missing.
    pub fn matmul_choices(&'static self) -> Result<Vec<MatmulChoice>> {
        Ok(self.blas()?.choices().all())
    }

    /// The choices in use as lines of text; the first one names GPU model and library.
    ///
    /// # Errors
    /// [`crate::KernelError::DeviceUnavailable`] if cuBLASLt is missing.
    pub fn export_matmul_choices(&'static self) -> Result<String> {
        let blas = self.blas()?;
        Ok(format!("{}\n{}", blas.name(self), blas.choices().export()))
    }

    /// Takes over the choices that [`Gpu::export_matmul_choices`] returned on the same GPU model with the same library, in place of own
    /// ones. A choice holds only where cuBLASLt offers the same algorithms. Graphs that were captured before keep theirs. Returns
    /// whether they were taken over.
    ///
    /// # Errors
    /// [`crate::KernelError::DeviceUnavailable`] if cuBLASLt is missing.
    pub fn import_matmul_choices(&'static self, text: &str) -> Result<bool> {
        if !self.uses(GpuFeature::TimedMatmuls) {
            return Ok(false);
        }
        let blas = self.blas()?;
        let (name, lines) = text.split_once('\n').unwrap_or((text, ""));
        if name != blas.name(self) || self.is_deterministic() {
            return Ok(false);
        }
        let mut plans = blas.plans();
        for key in blas.choices().import(lines) {
            plans.remove(&key);
        }
        Ok(true)
    }

    /// Keeps the choices in use on disk, with the compiled kernels. A failure only makes the next start slower.
    ///
    /// # Errors
    /// [`crate::KernelError::DeviceUnavailable`] if cuBLASLt is missing.
    pub fn store_matmul_choices(&'static self) -> Result<()> {
        let blas = self.blas()?;
        let place = blas.place(self);
        blas.choices().store(&place);
        Ok(())
    }

    /// The form of an operation to begin with: an index in the forms of the epilogue of `fused`, 0 unless another was faster.
    ///
    /// - `time`: the time in µs of the operation in one form, with its outputs in scratch
    ///
    /// # Errors
    /// Errors of `time` and [`Gpu::matmul`], except for [`crate::KernelError::OutOfMemory`].
    ///
    /// # Safety
    /// Same as [`Gpu::matmul`], for each of the forms.
    pub(crate) unsafe fn first_form(
        &'static self,
        fused: Matmul,
        operands: Operands,
        mut time: impl FnMut(Epilogue) -> Result<f64>,
    ) -> Result<usize> {
        let forms = fused.epilogue.forms();
        if self.is_deterministic() || forms.len() < 2 || [fused.m, fused.n, fused.k].contains(&0) {
            return Ok(0);
        }
        let (blas, key) = (self.blas()?, Key::new(fused, operands, self.matmul_conditions()));
        let is_open = blas.choices().is_open(Subject::Form, &key, self.is_choosing());
        if is_open {
            self.bind()?;
            let mut supported = Vec::with_capacity(forms.len());
            for &epilogue in forms {
                // SAFETY: as this function's.
                supported.push(unsafe { self.is_supported(Matmul { epilogue, ..fused }, operands) }?);
            }
            let measure = || {
                let mut times = Vec::with_capacity(forms.len());
                for (&form, &is_supported) in forms.iter().zip(&supported) {
                    times.push(if is_supported { Some(time(form)?) } else { None });
                }
                Ok(times)
            };
            let among = fingerprint(supported.iter().map(|&is_supported| [u8::from(is_supported)]));
            blas.settle(self, Subject::Form, &key, among, measure)?;
        }
        Ok(blas.choices().get(Subject::Form, &key).map_or(0, |choice| choice.index))
    }

    /// Median time in µs of one call of `work` on the compute stream, after a first call that is not timed. Waits for the device.
    ///
    /// # Errors
    /// Errors of `work`; [`crate::KernelError::Cuda`].
    pub(crate) fn time_us(&'static self, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
        self.blas()?.time_us(self, f64::INFINITY, &mut work)
    }
}

//! Enqueues matmuls by the plan of their key, chooses algorithms and forms by time on request ([`Gpu::choose_matmuls`]), and
//! exchanges the choices.

use std::collections::HashMap;

use super::timing::{cublas_error, fastest, fingerprint};
use crate::base::memory_use::MemoryUse;
use crate::cuda::blas::{
    Blas, Choice, Epilogue, Key, Matmul, MatmulChoice, Operands, Plan, Scales, Subject, WORKSPACE_BYTES,
    is_unsupported,
};
use crate::cuda::cublas_lt::CublasLt;
use crate::cuda::driver::driver;
use crate::cuda::feature::GpuFeature;
use crate::cuda::gpu::{Gpu, SIDE, Side};
use crate::cuda::library::Library;
use crate::cuda::memory::DeviceBuffer;
use crate::{KernelError, Result};

impl Gpu {
    /// The handle of cuBLASLt, made on first use.
    pub(super) fn blas(&'static self) -> Result<&'static Blas> {
        if let Some(blas) = self.blas.get() {
            return Ok(blas);
        }
        let driver_version = driver().map_or(0, |driver| driver.library_version);
        let lt = CublasLt::open(driver_version).map_err(|why| KernelError::DeviceUnavailable {
            device: self.device(),
            reason: format!("no matmul library: {why}"),
            hint: Library::CublasLt.hint().to_owned(),
        })?;
        let workspace = DeviceBuffer::new(self, WORKSPACE_BYTES, MemoryUse::Workspace)?;
        let made = Blas::new(lt, workspace.ptr());
        let made = made.map_err(|status| cublas_error(self, lt, "cublasLtCreate", status))?;
        // The handle uses the workspace as long as the process.
        Ok(self.blas.get_or_init(|| {
            workspace.leak();
            made
        }))
    }

    /// Enqueues the matmul on the compute stream; returns false, having done nothing, if there is no algorithm with this epilogue.
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`] if the library is missing; [`KernelError::Cublas`].
    ///
    /// # Safety
    /// The operands are on this device, of the sizes in the description, and alive until the work is complete or freed after it in
    /// the stream; C overlaps none of the others.
    pub(crate) unsafe fn matmul(
        &'static self,
        matmul: Matmul,
        scales: Scales,
        operands: Operands,
    ) -> Result<bool> {
        if self.leaves_out(matmul.epilogue) {
            return Ok(false);
        }
        self.bind()?;
        let blas = self.blas()?;
        let mut plans = blas.plans();
        let key = Key::new(matmul, operands, self.matmul_conditions());
        // SAFETY: as this function's.
        let plan = unsafe { blas.plan(self, &mut plans, key, scales, operands) }?;
        let Some(plan) = plan else { return Ok(false) };
        let workspace = if let Side::Third { workspace } = SIDE.get() { Some(workspace) } else { None };
        // SAFETY: the caller guarantees the operands.
        match unsafe { blas.launch((self.compute(), workspace), plan, matmul, scales, operands) } {
            // The heuristic saw no pointers of matrices; the call itself may still reject them.
            Err(status) if matmul.epilogue != Epilogue::None && is_unsupported(status) => {
                plans.insert(key, None);
                Ok(false)
            }
            other => {
                other.map_err(|status| cublas_error(self, blas.lt, "cublasLtMatmul", status)).map(|()| true)
            }
        }
    }

    /// Whether matmuls do without this epilogue.
    fn leaves_out(&self, epilogue: Epilogue) -> bool {
        epilogue != Epilogue::None && !self.uses(GpuFeature::FusedEpilogues)
    }

    /// Whether there is an algorithm for this matmul with its epilogue.
    ///
    /// # Errors
    /// Same as [`Gpu::matmul`].
    ///
    /// # Safety
    /// Same as [`Gpu::matmul`].
    pub(super) unsafe fn is_supported(&'static self, matmul: Matmul, mut operands: Operands) -> Result<bool> {
        if self.leaves_out(matmul.epilogue) {
            return Ok(false);
        }
        let blas = self.blas()?;
        if !matmul.epilogue.takes_bias() {
            operands.bias = 0;
        }
        if matmul.epilogue.aux_row(1).is_none() {
            operands.aux = 0;
        }
        let mut plans = blas.plans();
        let key = Key::new(matmul, operands, self.matmul_conditions());
        // SAFETY: as this function's.
        Ok(unsafe { blas.plan(self, &mut plans, key, Scales::overwrite(), operands) }?.is_some())
    }
}

impl Blas {
    /// The plan of a key, made in its first use; None if there is no algorithm.
    ///
    /// # Safety
    /// Same as [`Gpu::matmul`].
    unsafe fn plan<'a>(
        &self,
        gpu: &'static Gpu,
        plans: &'a mut HashMap<Key, Option<Plan>>,
        key: Key,
        scales: Scales,
        operands: Operands,
    ) -> Result<Option<&'a Plan>> {
        let is_open = self.choices().is_open(Subject::Algorithm, &key, gpu.is_choosing());
        if is_open || !plans.contains_key(&key) {
            let mut plan = self
                .new_plan(&key)
                .map_err(|status| cublas_error(gpu, self.lt, "cublasLtMatmulAlgoGetHeuristic", status))?;
            match &mut plan {
                // SAFETY: as this function's.
                Some(plan) if is_open => unsafe { self.choose_algorithm(gpu, &key, plan, scales, operands) }?,
                None => self.choices().settle(Subject::Algorithm, &key, None),
                Some(_) => {}
            }
            plans.insert(key, plan);
        }
        Ok(plans.get(&key).and_then(Option::as_ref))
    }
}

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

    /// Whether a product in [`MatmulMode::F32x3`](crate::ops::MatmulMode::F32x3) splits its factors: by time where that was chosen, else
    /// `by_rule`.
    ///
    /// - `time`: time of the product in µs with its factors split or not, with its result in scratch
    ///
    /// # Errors
    /// Errors of `time` and [`Gpu::matmul`], except for [`crate::KernelError::OutOfMemory`].
    pub(crate) fn prefers_split(
        &'static self,
        product: Matmul,
        operands: Operands,
        by_rule: bool,
        mut time: impl FnMut(bool) -> Result<f64>,
    ) -> Result<bool> {
        if self.splits_all() || self.is_deterministic() {
            return Ok(self.splits_all() || by_rule);
        }
        let (blas, key) = (self.blas()?, Key::new(product, operands, self.matmul_conditions()));
        if blas.choices().is_open(Subject::Factors, &key, self.is_choosing()) {
            self.bind()?;
            let among = fingerprint([*b"whole", *b"split"].into_iter());
            let measure = || Ok(vec![Some(time(false)?), Some(time(true)?)]);
            blas.settle(self, Subject::Factors, &key, among, measure)?;
        }
        Ok(blas.choices().get(Subject::Factors, &key).map_or(by_rule, |choice| choice.index == 1))
    }

    /// Index of the fastest of several places of a step's update: as an earlier process on this machine has chosen, or by `times`.
    ///
    /// - `rows`, `n_weights`: most rows of a pass, and updated weights
    /// - `options`: the places, and whatever else the choice depends on: a choice among others is dropped
    /// - `times`: time of a step in µs with the update in each place, None where it is impossible; empty if nothing can be measured
    ///
    /// # Errors
    /// Errors of `times`; [`crate::KernelError::DeviceUnavailable`] if cuBLASLt is missing.
    pub fn choose_update<E: From<KernelError>>(
        &'static self,
        rows: usize,
        n_weights: usize,
        options: &str,
        times: impl FnOnce() -> std::result::Result<Vec<Option<f64>>, E>,
    ) -> std::result::Result<usize, E> {
        let blas = self.blas()?;
        let key = Key::for_update(rows, n_weights);
        let among = fingerprint(options.bytes().map(|byte| [byte]));
        if !blas.choices().recall(Subject::Update, &key, among, Some(&blas.place(self))) {
            let times = times()?;
            let choice = fastest(&times).map(|(index, us, first_us)| Choice {
                index,
                n: times.len(),
                among,
                us,
                first_us,
            });
            blas.choices().settle(Subject::Update, &key, choice);
        }
        Ok(blas.choices().get(Subject::Update, &key).map_or(0, |choice| choice.index))
    }

    /// Shortest time in µs of one call of `work` on the compute stream, after a first call that is not timed. Waits for the device.
    ///
    /// # Errors
    /// Errors of `work`; [`crate::KernelError::Cuda`].
    pub(crate) fn time_us(&'static self, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
        self.blas()?.time_us(self, f64::INFINITY, &mut work)
    }
}

//! Work beside the compute stream: on a second or third stream, from points that the compute stream has reached, until the compute stream
//! waits for it.

use std::cell::Cell;

use super::blas::WORKSPACE_BYTES;
use super::event::Event;
use super::gpu::{Gpu, Side, on_side};
use super::memory::DeviceBuffer;
use crate::{MemoryUse, Result};

/// Points of the compute stream from which work on a second stream begins. The second stream has the priority of the compute stream, and
/// is that of collectives without a priority: for a world of one rank.
///
/// ```
/// use ddp_kernels::cuda::{Beside, Gpu};
/// use ddp_kernels::{DType, KernelError, Tensor, ops};
///
/// # fn main() -> Result<(), KernelError> {
/// if Gpu::count() > 0 {
///     let gpu = Gpu::get(0)?;
///     let from = Tensor::ones(&[1000], DType::F32, gpu.device())?;
///     let mut to = Tensor::zeros(&[1000], DType::F32, gpu.device())?;
///     let beside = Beside::new(gpu, 1)?;
///     beside.reached(0)?;
///     // The copy runs next to what the compute stream does meanwhile.
///     beside.after(0, || ops::copy(from.view(), to.view_mut()))?;
///     beside.join()?;
///     assert_eq!(to.to_vec::<f32>()?, [1.0; 1000]);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Beside {
    gpu: &'static Gpu,
    points: Vec<Event>,
    end: Event,
}

impl Beside {
    /// Allocates `n` points; not within a capture.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`].
    pub fn new(gpu: &'static Gpu, n: usize) -> Result<Self> {
        let points = (0..n).map(|_| Event::untimed(gpu)).collect::<Result<_>>()?;
        Ok(Beside { gpu, points, end: Event::untimed(gpu)? })
    }

    /// Makes what is enqueued on the compute stream until here precede the work [after](Beside::after) point `index`.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`].
    pub fn reached(&self, index: usize) -> Result<()> {
        self.points[index].record(self.gpu.compute())
    }

    /// Enqueues the operations of `work` beside the compute stream, after point `index` and after earlier work beside it. They must
    /// neither allocate nor free memory of the device, nor use the scratch memory of reductions and matmuls.
    ///
    /// # Errors
    /// Errors of `work`; [`crate::KernelError::Cuda`].
    pub fn after<E: From<crate::KernelError>>(
        &self,
        index: usize,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.gpu.beside().wait(&self.points[index])?;
        on_side(Side::Second, work)
    }

    /// Makes the compute stream wait for all work beside it. In a capture also after an error of that work: the graph must join its streams.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`].
    pub fn join(&self) -> Result<()> {
        self.end.record(self.gpu.beside())?;
        self.gpu.compute().wait(&self.end)
    }
}

/// Matmuls beside those of the compute stream: on a third stream, with scratch memory of their own, each from where it is enqueued until
/// [`BesideMatmuls::join`]. Small products leave multiprocessors free, for which two are faster than one after the other.
///
/// Dropping it joins, so that its scratch memory is freed after its last use.
#[derive(Debug)]
#[doc(hidden)]
pub struct BesideMatmuls {
    gpu: &'static Gpu,
    workspace: DeviceBuffer,
    begin: Event,
    end: Event,
    is_open: Cell<bool>,
}

impl BesideMatmuls {
    /// Bytes of the scratch memory.
    pub const WORKSPACE_BYTES: usize = WORKSPACE_BYTES;

    /// Allocates the scratch memory; not within a capture.
    ///
    /// # Errors
    /// [`crate::KernelError::OutOfMemory`]; [`crate::KernelError::Cuda`].
    pub fn new(gpu: &'static Gpu) -> Result<Self> {
        let workspace = DeviceBuffer::new(gpu, WORKSPACE_BYTES, MemoryUse::Workspace)?;
        let (begin, end) = (Event::untimed(gpu)?, Event::untimed(gpu)?);
        Ok(BesideMatmuls { gpu, workspace, begin, end, is_open: Cell::new(false) })
    }

    /// Enqueues one matmul of `work` beside the compute stream, after what is enqueued there so far; while matmuls are chosen by time, on it.
    pub(crate) fn matmul<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<R> {
        if self.gpu.is_choosing() {
            return work();
        }
        self.begin.record(self.gpu.compute())?;
        self.gpu.third().wait(&self.begin)?;
        self.is_open.set(true);
        on_side(Side::Third { workspace: self.workspace.ptr() }, work)
    }

    /// Makes the compute stream wait for the matmuls beside it, if there are any. In a capture also after an error.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`].
    pub fn join(&self) -> Result<()> {
        if !self.is_open.take() {
            return Ok(());
        }
        self.end.record(self.gpu.third())?;
        self.gpu.compute().wait(&self.end)
    }
}

impl Drop for BesideMatmuls {
    fn drop(&mut self) {
        // A failure cannot be reported.
        let _ = self.join();
    }
}

#[cfg(test)]
mod tests {
    use super::super::gpu::SIDE;
    use super::*;
    use crate::ops::testing::devices;
    use crate::ops::{MatmulMode, linear_backward_weight};
    use crate::{DType, Device, KernelError, Tensor};

    #[test]
    fn an_error_beside_leaves_the_thread_on_the_compute_stream() {
        for device in devices() {
            let Device::Cuda(index) = device else { continue };
            let gpu = Gpu::get(index).unwrap();
            let beside = Beside::new(gpu, 1).unwrap();
            beside.reached(0).unwrap();
            let out_of_range = KernelError::OutOfRange { op: "test", start: 0, end: 1, len: 0 };
            assert!(beside.after(0, || Err(out_of_range)).is_err());
            assert_eq!(SIDE.get(), Side::Compute);
            beside.join().unwrap();
        }
    }

    #[test]
    fn a_matmul_beside_others_has_the_bits_of_one_between_them() {
        for device in devices() {
            let Device::Cuda(index) = device else { continue };
            let gpu = Gpu::get(index).unwrap();
            let random = |dims: [usize; 2], seed| Tensor::randn(&dims, DType::F32, device, seed).unwrap();
            let (d_y, x) = (random([32, 24], 1), random([32, 40], 2));
            let gradients = |beside: Option<&BesideMatmuls>, has_bias: bool| {
                let mut d_weight = Tensor::zeros(&[24, 40], DType::F32, device).unwrap();
                let mut d_bias = Tensor::zeros(&[24], DType::F32, device).unwrap();
                let mut none = Tensor::zeros(&[0], DType::F32, device).unwrap();
                for accumulate in [false, true] {
                    let (to, of_bias) = (d_weight.view_mut(), has_bias.then(|| d_bias.view_mut()));
                    let (d_y, x, mode) = (d_y.view(), x.view(), MatmulMode::Strict);
                    let none = none.view_mut();
                    linear_backward_weight(mode, d_y, x, to, of_bias, accumulate, none, beside).unwrap();
                    beside.map_or(Ok(()), BesideMatmuls::join).unwrap();
                }
                [d_weight, d_bias].map(|of| of.to_vec::<f32>().unwrap())
            };
            let beside = BesideMatmuls::new(gpu).unwrap();
            for has_bias in [false, true] {
                assert_eq!(gradients(Some(&beside), has_bias), gradients(None, has_bias));
            }
            assert!(!beside.is_open.get());
            assert_eq!(SIDE.get(), Side::Compute);
        }
    }
}

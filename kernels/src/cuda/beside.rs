//! Work beside the compute stream: on a second stream, from points that the compute stream has reached, until the compute stream waits
//! for it.

use super::event::Event;
use super::gpu::{Gpu, IS_BESIDE};
use crate::Result;

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
        struct Ends;
        impl Drop for Ends {
            fn drop(&mut self) {
                IS_BESIDE.set(false);
            }
        }
        self.gpu.beside().wait(&self.points[index])?;
        let _ends = Ends;
        IS_BESIDE.set(true);
        work()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::devices;
    use crate::{Device, KernelError};

    #[test]
    fn an_error_beside_leaves_the_thread_on_the_compute_stream() {
        for device in devices() {
            let Device::Cuda(index) = device else { continue };
            let gpu = Gpu::get(index).unwrap();
            let beside = Beside::new(gpu, 1).unwrap();
            beside.reached(0).unwrap();
            let out_of_range = KernelError::OutOfRange { op: "test", start: 0, end: 1, len: 0 };
            assert!(beside.after(0, || Err(out_of_range)).is_err());
            assert!(!IS_BESIDE.get());
            beside.join().unwrap();
        }
    }
}

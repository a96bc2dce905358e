//! The outcome of a step, written to host memory by an update that runs anyway.

use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys;

use crate::base::check;
use crate::cuda::{CudaSlice, Mapped};
use crate::ops::loss::sums::{STEP_SUMS_LEN, check_sums};
use crate::{DType, KernelError, Operand, Result, Shape, TensorRef};

const OP: &str = "step_report";
/// Bytes of the sums.
const SUMS_BYTES: usize = STEP_SUMS_LEN * size_of::<f32>();

/// Host memory that receives a step's loss sums and a sum of squares.
///
/// The first kernel of an update that is given it writes them, before it decides whether the update is withheld. Without anything
/// to update, [`StepReport::complete`] copies them.
#[derive(Debug)]
#[doc(hidden)]
pub struct StepReport<'a> {
    to: &'a Mapped,
    sum_of_squares: Option<TensorRef<'a>>,
    is_written: AtomicBool,
}

impl<'a> StepReport<'a> {
    /// Length in bytes.
    pub const LEN_BYTES: usize = SUMS_BYTES + size_of::<f64>();

    /// Starts the report of a step.
    ///
    /// - `to`: at least [`StepReport::LEN_BYTES`]
    /// - `sum_of_squares`: `[1]` f64 on the same device, complete before the update
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] (in bytes); [`KernelError::DeviceMismatch`], [`KernelError::DTypeUnsupported`], [`KernelError::Shape`].
    pub fn new(to: &'a Mapped, sum_of_squares: Option<TensorRef<'a>>) -> Result<Self> {
        let (end, len) = (Self::LEN_BYTES, to.len_bytes());
        if end > len {
            return Err(KernelError::OutOfRange { op: OP, start: 0, end, len });
        }
        let report = StepReport { to, sum_of_squares, is_written: AtomicBool::new(false) };
        if let Some(squares) = sum_of_squares {
            let squares = squares.operand("sum_of_squares");
            check::same_device(OP, &[squares, report.operand()])?;
            check::dtype(OP, squares, &[DType::F64], "f64")?;
            check::shape(OP, squares, Shape::vector(1))?;
        }
        Ok(report)
    }

    /// The memory as messages show it.
    pub(super) fn operand(&self) -> Operand {
        let shape = Shape::vector(self.to.len_bytes());
        Operand { name: "report", shape, dtype: DType::U8, device: self.to.gpu().device() }
    }

    /// The device address for the sums and the squares after them, and the sum of squares; null after the first call.
    pub(super) fn claim(&self) -> Result<(sys::CUdeviceptr, Option<CudaSlice<'a>>)> {
        if self.is_written.swap(true, Ordering::Relaxed) {
            return Ok((0, None));
        }
        Ok((self.to.device_ptr(), self.sum_of_squares.map(|squares| squares.cuda()).transpose()?))
    }

    /// Enqueues a copy of the step's loss sums and of the sum of squares, unless an update was given this report
    /// ([`UpdateInputs::report`](super::UpdateInputs::report)).
    ///
    /// # Errors
    /// [`KernelError::DeviceMismatch`], [`KernelError::DTypeUnsupported`], [`KernelError::Shape`]; [`KernelError::Cuda`].
    pub fn complete(&self, sums: TensorRef<'_>) -> Result<()> {
        let (to, squares) = self.claim()?;
        if to == 0 {
            return Ok(());
        }
        check_sums(OP, sums.operand("sums"), self.operand())?;
        self.to.copy_from(sums.cuda()?, 0)?;
        squares.map_or(Ok(()), |squares| self.to.copy_from(squares, SUMS_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Gpu;
    use crate::ops::testing::{devices, tensor};
    use crate::ops::update::testing::Inputs;
    use crate::ops::{self, LossSums, OptimizerKind, OptimizerParams, OptimizerTensors, UpdateInputs};
    use crate::{Device, Tensor};

    fn gpu() -> Option<&'static Gpu> {
        devices().into_iter().find_map(|device| match device {
            Device::Cuda(index) => Some(Gpu::get(index).unwrap()),
            Device::Cpu => None,
        })
    }

    /// Sums of this loss, and the same number as the sum of squares of the gradients.
    fn inputs(loss: f64, gpu: &Gpu) -> Inputs {
        let sums = LossSums { loss, weight: 2.0 };
        Inputs::new(0.1, 1, (0.0, 1.0), sums, Some((loss, 1.0)), gpu.device())
    }

    fn update(weights: &mut Tensor, grads: &Tensor, inputs: UpdateInputs<'_>) -> Result<()> {
        let tensors = OptimizerTensors {
            master_weights: weights.view_mut(),
            grads: grads.view(),
            state: [None, None],
            average: None,
            compute_weights: None,
            norms: None,
        };
        let params = OptimizerParams::default();
        ops::optimizer_step(OptimizerKind::Sgd, &params, tensors, Some(&inputs))
    }

    /// The loss and the sum of squares in host memory, after the work so far.
    fn reported(to: &mut Mapped) -> (f64, f64) {
        to.record().unwrap();
        to.wait().unwrap();
        let [squares] = to.read(SUMS_BYTES);
        (LossSums::load(&to.read::<f32, STEP_SUMS_LEN>(0)).loss, squares)
    }

    #[test]
    fn the_first_update_reports_also_if_it_is_withheld() {
        let Some(gpu) = gpu() else { return };
        for n in [1, 3000] {
            let mut to = Mapped::new(gpu, StepReport::LEN_BYTES).unwrap();
            let [mut weights, grads] = [1.0f32; 2].map(|value| tensor(&vec![value; n], &[n], gpu.device()));
            for loss in [0.3, f64::INFINITY, 0.7] {
                let (first, second) = (inputs(loss, gpu), inputs(5.0, gpu));
                let report = StepReport::new(&to, first.view().sum_of_squares).unwrap();
                for inputs in [&first, &second] {
                    update(&mut weights, &grads, UpdateInputs { report: Some(&report), ..inputs.view() })
                        .unwrap();
                    report.complete(inputs.view().sums).unwrap();
                }
                let (got, squares) = reported(&mut to);
                assert!((got - loss).abs() < 1e-12 || got == loss, "{got}");
                assert_eq!(squares, loss);
                // Without squares those of the last step remain.
                let without = StepReport::new(&to, None).unwrap();
                update(&mut weights, &grads, UpdateInputs { report: Some(&without), ..second.view() })
                    .unwrap();
                assert_eq!(reported(&mut to), (5.0, loss));
            }
        }
    }

    #[test]
    fn a_step_without_an_update_copies_its_sums() {
        let Some(gpu) = gpu() else { return };
        let mut to = Mapped::new(gpu, StepReport::LEN_BYTES).unwrap();
        let [mut none, grads] = [(); 2].map(|()| tensor::<f32>(&[], &[0], gpu.device()));
        let inputs = inputs(0.5, gpu);
        let report = StepReport::new(&to, inputs.view().sum_of_squares).unwrap();
        update(&mut none, &grads, UpdateInputs { report: Some(&report), ..inputs.view() }).unwrap();
        report.complete(inputs.view().sums).unwrap();
        assert_eq!(reported(&mut to), (0.5, 0.5));
    }

    #[test]
    fn other_memory_is_refused() {
        let Some(gpu) = gpu() else { return };
        let short = Mapped::new(gpu, StepReport::LEN_BYTES - 8).unwrap();
        let refused = StepReport::new(&short, None).unwrap_err();
        assert!(matches!(refused, KernelError::OutOfRange { end: 72, len: 64, .. }), "{refused}");
        let to = Mapped::new(gpu, StepReport::LEN_BYTES).unwrap();
        let elsewhere = tensor(&[1.0f64], &[1], Device::Cpu);
        let refused = StepReport::new(&to, Some(elsewhere.view())).unwrap_err();
        assert!(matches!(refused, KernelError::DeviceMismatch { .. }), "{refused}");
        let on_cpu = Inputs::new(0.1, 1, (0.0, 1.0), LossSums::default(), None, Device::Cpu);
        let [mut weights, grads] = [1.0f32; 2].map(|value| tensor(&[value; 8], &[8], Device::Cpu));
        let report = StepReport::new(&to, None).unwrap();
        let refused = update(&mut weights, &grads, UpdateInputs { report: Some(&report), ..on_cpu.view() })
            .unwrap_err();
        assert!(matches!(refused, KernelError::DeviceMismatch { .. }), "{refused}");
        assert_eq!(weights.to_vec::<f32>().unwrap(), [1.0; 8]);
    }
}

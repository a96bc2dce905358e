//! Update of the weights bucket by bucket while the gradients of others are reduced.

use std::ops::Range;

use ddp_kernels::cuda::Gpu;
use ddp_kernels::ops::{StepReport, UpdateInputs};
use ddp_kernels::{Device, TensorRef};

use crate::exchange::{ExchangeError, UpdateBucket};
use crate::model::Network;
use crate::optim::optimizer::Optimizer;
use crate::optim::update_scale::{DeviceScale, UpdateScale};
use crate::train::step_inputs::ScalarsMemory;
use crate::train::step_times::StepPart;

/// Updates the weights of each bucket once its gradients are reduced.
#[derive(Debug)]
pub(super) struct BucketUpdates<'a> {
    pub(super) optimizer: &'a mut Optimizer,
    pub(super) scalars: &'a ScalarsMemory,
    pub(super) report: Option<&'a StepReport<'a>>,
}

impl UpdateBucket for BucketUpdates<'_> {
    fn update(
        &mut self,
        model: &mut Network,
        bucket: Range<usize>,
        gradients: TensorRef<'_>,
        sums: TensorRef<'_>,
    ) -> Result<(), ExchangeError> {
        let (scalars, report) = (self.scalars.view(), self.report);
        let inputs = &UpdateInputs { scalars, sums, sum_of_squares: None, max_norm: f64::INFINITY, report };
        let scale = UpdateScale::Device(DeviceScale { inputs, group_scalars: self.scalars.group_scalars() });
        let weights = model.weights_mut().range(&bucket)?;
        // Every rank holds the state of all weights.
        let state_start = bucket.start;
        Ok(self.optimizer.step_on(weights, gradients, scale, bucket, state_start)?)
    }

    fn backward_ended(&mut self) -> Result<(), ExchangeError> {
        if let Device::Cuda(index) = self.scalars.view().device() {
            Gpu::get(index)?.mark(StepPart::Update as u8)?;
        }
        Ok(())
    }
}

//! The trial of [`GpuFeature::DependentLaunches`].

use super::column_scale::column_scale_forward;
use super::fill::{Pattern, fill};
use crate::cuda::{Gpu, GpuFeature};
use crate::{DType, KernelError, Result, Tensor};

/// Rows and columns of a trial: some hundred blocks.
const SIDE: usize = 256;

/// Launches kernels of which each follows another one, and checks what they compute, on a GPU that uses
/// [`GpuFeature::DependentLaunches`]. Waits for the device. A kernel that cannot be compiled is left to those who need it.
///
/// # Errors
/// [`KernelError::Cuda`] from the driver; [`KernelError::Misuse`] for a wrong number.
#[doc(hidden)]
pub fn try_dependent_launches(gpu: &'static Gpu) -> Result<()> {
    if !gpu.uses(GpuFeature::DependentLaunches) {
        return Ok(());
    }
    let numbers = match doubled(gpu) {
        Err(error @ KernelError::Cuda { .. }) => return Err(error),
        numbers => numbers.unwrap_or_default(),
    };
    // What a run may take is decided by what is free.
    gpu.release_free_memory()?;
    if numbers.iter().all(|number| *number == 16.0) {
        return Ok(());
    }
    let problem = "a kernel did not wait for the one before it";
    Err(KernelError::misuse("dependent launches", problem, "train.gpu_without = [\"dependent-launches\"]"))
}

/// Ones that are doubled four times, each time by a kernel of its own.
fn doubled(gpu: &'static Gpu) -> Result<Vec<f32>> {
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, gpu.device());
    let (mut x, mut y, mut scale) = (zeros(&[SIDE, SIDE])?, zeros(&[SIDE, SIDE])?, zeros(&[SIDE])?);
    fill(x.view_mut(), Pattern::Line { start: 1.0, step: 0.0 })?;
    fill(scale.view_mut(), Pattern::Line { start: 2.0, step: 0.0 })?;
    for _ in 0..2 {
        column_scale_forward(x.view(), scale.view(), y.view_mut())?;
        column_scale_forward(y.view(), scale.view(), x.view_mut())?;
    }
    x.to_vec()
}

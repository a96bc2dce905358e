//! Time of work on a device, measured after it is complete.

use std::time::{Duration, Instant};

use crate::{Device, Result};

/// Runs `work` and returns its result with the time that it took on `device`: waits for earlier work first, and for this work
/// before the clock is read. Without that, a clock shows how long it takes to enqueue work on a GPU.
///
/// ```
/// use ddp_kernels::{DType, Device, Tensor, timed};
/// let x = Tensor::ones(&[64, 64], DType::F32, Device::Cpu)?;
/// let (product, time) = timed(Device::Cpu, || x.matmul(&x))?;
/// println!("{:.1} us", time.as_secs_f64() * 1e6);
/// assert_eq!(product?.row(0)?.to_vec::<f32>()?[0], 64.0);
/// # Ok::<(), ddp_kernels::KernelError>(())
/// ```
///
/// # Errors
/// Errors of [`Device::synchronize`], among them failures of earlier work.
pub fn timed<R>(device: Device, work: impl FnOnce() -> R) -> Result<(R, Duration)> {
    device.synchronize()?;
    let start = Instant::now();
    let result = work();
    device.synchronize()?;
    Ok((result, start.elapsed()))
}

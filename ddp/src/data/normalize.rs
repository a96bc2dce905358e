//! Normalizes features: applied to all rows by [`ops::load_rows`].
//!
//! Where f32 would round away the differences between large values, an offset is subtracted from them before they become f32 by whoever
//! reads them; shift and scale apply to the rest.

#[cfg(doc)]
use ddp_kernels::ops;
use ddp_kernels::ops::RowNormalizer;
use ddp_kernels::{Device, KernelError, Tensor};

/// `x' = ((x - offset) - shift) * scale`, column by column.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalizer {
    /// `[n_features]`: subtracted from the stored values before they become f32; `None` if all are 0.
    pub offset: Option<Vec<f64>>,
    /// `[n_features]`: mean or smallest value, less the offset.
    pub shift: Vec<f64>,
    /// `[n_features]`: one over the standard deviation or the range.
    pub scale: Vec<f64>,
}

impl Normalizer {
    /// Shift and scale without offsets.
    pub fn new(shift: Vec<f64>, scale: Vec<f64>) -> Self {
        Normalizer { offset: None, shift, scale }
    }
}

/// A normalizer on a device.
#[derive(Debug)]
pub struct DeviceNormalizer {
    shift: Tensor,
    scale: Tensor,
}

impl DeviceNormalizer {
    /// Copies it to `device`.
    ///
    /// # Errors
    /// [`ddp_kernels::KernelError`] if the device is out of memory or unavailable.
    pub fn new(normalizer: &Normalizer, device: Device) -> Result<Self, KernelError> {
        let vector = |values: &[f64]| Tensor::from_slice(values, &[values.len()], device);
        Ok(DeviceNormalizer { shift: vector(&normalizer.shift)?, scale: vector(&normalizer.scale)? })
    }

    /// The arguments of an operation.
    pub fn view(&self) -> RowNormalizer<'_> {
        RowNormalizer { shift: self.shift.view(), scale: self.scale.view() }
    }
}

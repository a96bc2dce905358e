//! What the driver's calls come to, in this crate's errors.

use cudarc::driver::result::DriverError;

use crate::{Device, KernelError, Result};

/// The code's name and text.
pub(super) fn describe(error: DriverError) -> (String, String) {
    let code = format!("{:?}", error.0);
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    (code, text.unwrap_or_else(|_| "no description".into()))
}

/// Names call and device of a driver's error.
///
/// # Errors
/// [`KernelError::Cuda`] for any status but success.
pub fn check_driver<T>(
    device: u32,
    call: &'static str,
    result: std::result::Result<T, DriverError>,
) -> Result<T> {
    result.map_err(|error| {
        let (code, text) = describe(error);
        KernelError::Cuda { device: Device::Cuda(device), call, code, text }
    })
}

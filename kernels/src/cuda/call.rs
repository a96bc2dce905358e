//! Converts status codes of the driver to errors of this crate.

use std::ffi::c_int;

use cudarc::driver::result::DriverError;

use crate::{Device, KernelError, Result};

/// Name and description of a status code.
pub(super) fn describe(error: DriverError) -> (String, String) {
    let code = format!("{:?}", error.0);
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    (code, text.unwrap_or_else(|_| "no description".into()))
}

/// Converts a status of a function that is called without cudarc, adding call and device.
///
/// # Errors
/// [`KernelError::Cuda`] for any status other than success.
pub(super) fn check_status(device: u32, call: &'static str, status: c_int) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    let text = "see CUresult in the driver's documentation".to_owned();
    Err(KernelError::Cuda { device: Device::Cuda(device), call, code: format!("error {status}"), text })
}

/// Converts a driver error, adding call and device.
///
/// # Errors
/// [`KernelError::Cuda`] for any status other than success.
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

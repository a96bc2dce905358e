//! The CUDA driver: opened and initialized once per process; its status codes as errors of this crate.

use std::ffi::c_int;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::library::{self, Library};
use crate::{Device, KernelError};

/// The reason that no GPU can be used, with a fix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    /// Cause, such as a missing library.
    pub reason: String,
    /// Command or setting that fixes it.
    pub hint: String,
    /// Whether NVIDIA's driver is installed: without it, no GPU is expected.
    pub has_driver: bool,
    /// Whether the machine has GPUs that the driver cannot serve until it is repaired or updated.
    pub is_fault: bool,
}

/// An initialized driver.
#[derive(Debug)]
pub(super) struct Driver {
    /// The newest CUDA that it supports, as `cuDriverGetVersion` returns it: 1000 · major + 10 · minor.
    pub(super) version: i32,
    /// The newest CUDA whose NVRTC and cuBLASLt serve all visible devices, in the same form.
    pub(super) library_version: i32,
    /// Number of devices visible to this process.
    pub(super) n_devices: u32,
    /// Measures the time between two events.
    pub(super) elapsed_time: ElapsedTime,
}

/// `cuEventElapsedTime`; its status is an integer, since newer drivers may return other values than the header of CUDA 13.0 lists.
pub(super) type ElapsedTime = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> c_int;

/// The oldest supported driver, 525: libraries of any CUDA 12 run on it.
///
/// Source: CUDA compatibility, "Minor version compatibility".
const OLDEST_VERSION: i32 = 12000;

/// The driver, initialized at the first call.
pub(super) fn driver() -> Result<&'static Driver, &'static Unavailable> {
    static DRIVER: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();
    DRIVER.get_or_init(initialize).as_ref()
}

fn initialize() -> Result<Driver, Unavailable> {
    let unavailable = |reason: String, hint: &str| Unavailable {
        reason,
        hint: hint.to_owned(),
        has_driver: true,
        is_fault: false,
    };
    let driver = Library::Driver;
    let open = library::open(driver, 0).map_err(|why| Unavailable {
        reason: format!("no NVIDIA driver: {why}"),
        hint: driver.hint().to_owned(),
        has_driver: false,
        is_fault: false,
    })?;
    // SAFETY: a driver is open under a name that cudarc tries, so it finds one.
    if let Some(other) = open.differs_from(unsafe { sys::culib() }, "cuInit") {
        let (own, other) = (open.path.display(), other.display());
        return Err(unavailable(
            format!("two drivers are found: {own}, and {other} as libcuda.so"),
            "take the folder of the second one out of LD_LIBRARY_PATH; a toolkit's stubs folder holds no driver",
        ));
    }
    let mut version = 0;
    // SAFETY: the library is open, and the pointer is valid for one int.
    let status = unsafe { sys::cuDriverGetVersion(&mut version) };
    let failed = |error: DriverError| {
        let (code, text) = describe(error);
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let hint = start_hint(error.0, visible.as_deref(), Path::new(UVM_DEVICE).exists());
        let why = unavailable(format!("the driver does not start: {text} ({code})"), &hint);
        Unavailable { is_fault: has_idle_gpus(error.0), ..why }
    };
    status.result().map_err(failed)?;
    result::init().map_err(failed)?;
    let n_devices = result::device::get_count().map_err(failed)?;
    let n_devices = match u32::try_from(n_devices) {
        Ok(n_devices) if n_devices > 0 => n_devices,
        _ => return Err(unavailable("the driver sees no GPU".into(), "is CUDA_VISIBLE_DEVICES empty?")),
    };
    let too_old = || {
        let (version, oldest) = (version_name(version), version_name(OLDEST_VERSION));
        let reason = format!("the driver supports CUDA {version} at most; {oldest} or newer is required");
        Unavailable { is_fault: true, ..unavailable(reason, "update NVIDIA's driver to 525 or newer") }
    };
    if version < OLDEST_VERSION {
        return Err(too_old());
    }
    // The second version, of CUDA 12.8, does not report errors of later work.
    let names = ["cuEventElapsedTime_v2", "cuEventElapsedTime"];
    // SAFETY: both have this type in the driver's header, where a status is an enum of the size of an int.
    let elapsed_time = names.iter().find_map(|name| unsafe { open.symbol::<ElapsedTime>(name) });
    let elapsed_time = elapsed_time.ok_or_else(too_old)?;
    let capabilities: Result<Vec<_>, _> = (0..n_devices).map(compute_capability).collect();
    let oldest = capabilities.map_err(failed)?.into_iter().min().expect("there is a device");
    let library_version = library_version(version, oldest);
    Ok(Driver { version, library_version, n_devices, elapsed_time })
}

fn compute_capability(index: u32) -> Result<(i32, i32), DriverError> {
    use sys::CUdevice_attribute as Attribute;
    let device = result::device::get(index as i32)?;
    // SAFETY: the device was just returned by the driver.
    let of = |attribute| unsafe { result::device::get_attribute(device, attribute) };
    Ok((
        of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    ))
}

/// CUDA 13's NVRTC and cuBLASLt serve devices from Turing (7.5) on; those of CUDA 12 serve older ones, on any newer driver.
///
/// Source: CUDA 13.0 release notes, "Deprecated architectures".
fn library_version(driver: i32, compute_capability: (i32, i32)) -> i32 {
    if compute_capability < (7, 5) { driver.min(12990) } else { driver }
}

/// Whether an error of the driver's start says that there are GPUs, which it cannot serve as the machine is set up.
fn has_idle_gpus(error: sys::CUresult) -> bool {
    use sys::CUresult as E;

    matches!(
        error,
        E::CUDA_ERROR_SYSTEM_NOT_READY
            | E::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
            | E::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
    )
}

/// The device file without which the driver starts no computation.
const UVM_DEVICE: &str = "/dev/nvidia-uvm";

/// The fix for an error of the driver's start.
///
/// - `visible`: the value of `CUDA_VISIBLE_DEVICES`, if set
/// - `has_uvm`: whether [`UVM_DEVICE`] exists
fn start_hint(error: sys::CUresult, visible: Option<&str>, has_uvm: bool) -> String {
    use sys::CUresult as E;

    match (error, visible.map(str::trim)) {
        (E::CUDA_ERROR_NO_DEVICE, Some("")) => {
            "CUDA_VISIBLE_DEVICES is empty, which hides all GPUs: unset it".to_owned()
        }
        (E::CUDA_ERROR_NO_DEVICE, Some(visible)) if visible.contains("MIG-") => {
            format!(
                "CUDA_VISIBLE_DEVICES={visible} names no MIG instance here: nvidia-smi -L lists their UUIDs; \
                 a process sees one of them"
            )
        }
        (E::CUDA_ERROR_NO_DEVICE, Some(visible)) => {
            format!("CUDA_VISIBLE_DEVICES={visible} names no GPU here: nvidia-smi -L lists them")
        }
        (E::CUDA_ERROR_NO_DEVICE, None) => {
            "does nvidia-smi list a GPU? in a container, start it with --gpus all; a GPU in MIG mode needs an instance: \
             nvidia-smi mig -lgi lists them"
                .to_owned()
        }
        (E::CUDA_ERROR_SYSTEM_NOT_READY, _) => {
            "GPUs with NVSwitch need the Fabric Manager, of the driver's version: systemctl start nvidia-fabricmanager"
                .to_owned()
        }
        (E::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, _) => {
            "libcuda and the kernel module are of different versions (/proc/driver/nvidia/version has the module's): after an \
             update of the driver, restart the machine; in a container, take cuda/compat out of LD_LIBRARY_PATH"
                .to_owned()
        }
        (E::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, _) => {
            "a libcuda of the package cuda-compat is found, which serves data-center GPUs only: take cuda/compat out of \
             LD_LIBRARY_PATH, or update the driver"
                .to_owned()
        }
        (E::CUDA_ERROR_UNKNOWN | E::CUDA_ERROR_OPERATING_SYSTEM, _) if !has_uvm => format!(
            "there is no {UVM_DEVICE}: run nvidia-modprobe -u -c 0 as root; in a container, start it with --gpus all"
        ),
        _ => "does nvidia-smi work? dmesg may show more".to_owned(),
    }
}

/// Formats `13000` as `13.0`.
pub(super) fn version_name(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

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
pub(super) fn check_status(device: u32, call: &'static str, status: c_int) -> crate::Result<()> {
    if status == 0 {
        return Ok(());
    }
    let text = "see CUresult in the driver's documentation".to_owned();
    Err(KernelError::Cuda { device: Device::Cuda(device), call, code: format!("error {status}"), text })
}

/// Names by which a person finds the cards of this process, with their indices.
static IDENTITIES: Mutex<Vec<(u32, String)>> = Mutex::new(Vec::new());

/// Notes the name by which a person finds the card of a device, for errors of a faulty one.
pub(super) fn identify(device: u32, identity: String) {
    IDENTITIES.lock().unwrap_or_else(PoisonError::into_inner).push((device, identity));
}

/// The name of [`identify`], with the words before it; empty for a device that was not opened.
fn identity(device: u32) -> String {
    let identities = IDENTITIES.lock().unwrap_or_else(PoisonError::into_inner);
    let of_device = identities.iter().find(|(index, _)| *index == device);
    of_device.map_or_else(String::new, |(_, identity)| format!(" on {identity}"))
}

/// Converts a driver error, adding call and device, and of a fault of the device the card's name.
///
/// # Errors
/// [`KernelError::Cuda`] for any status other than success.
pub fn check_driver<T>(device: u32, call: &'static str, result: Result<T, DriverError>) -> crate::Result<T> {
    result.map_err(|error| {
        let (code, mut text) = describe(error);
        if KernelError::is_fault_code(&code) {
            text += &identity(device);
        }
        KernelError::Cuda { device: Device::Cuda(device), call, code, text }
    })
}

#[cfg(test)]
mod tests {
    use sys::CUresult as E;

    use super::*;

    #[test]
    fn each_error_of_the_start_has_a_fix() {
        let cases = [
            (E::CUDA_ERROR_SYSTEM_NOT_READY, None, true, "nvidia-fabricmanager"),
            (E::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, None, true, "restart the machine"),
            (E::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, None, true, "take cuda/compat out"),
            (E::CUDA_ERROR_UNKNOWN, None, false, "nvidia-modprobe -u"),
            (E::CUDA_ERROR_OPERATING_SYSTEM, None, false, "nvidia-modprobe -u"),
            (E::CUDA_ERROR_UNKNOWN, None, true, "nvidia-smi work"),
            (E::CUDA_ERROR_NO_DEVICE, None, true, "--gpus all"),
            (E::CUDA_ERROR_NO_DEVICE, Some(""), true, "unset it"),
            (E::CUDA_ERROR_NO_DEVICE, Some("7"), true, "CUDA_VISIBLE_DEVICES=7 names no GPU"),
            (
                E::CUDA_ERROR_NO_DEVICE,
                Some("MIG-1"),
                true,
                "CUDA_VISIBLE_DEVICES=MIG-1 names no MIG instance",
            ),
        ];
        for (error, visible, has_uvm, want) in cases {
            let hint = start_hint(error, visible, has_uvm);
            assert!(hint.contains(want), "{error:?}: {hint}");
        }
    }
}

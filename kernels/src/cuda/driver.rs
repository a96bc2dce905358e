//! The CUDA driver: opened and initialized once per process.

use std::path::Path;
use std::sync::OnceLock;

use cudarc::driver::{result, sys};

use super::library::{self, Library};

/// The reason that no GPU can be used, with a fix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    /// Cause, such as a missing library.
    pub reason: String,
    /// Command or setting that fixes it.
    pub hint: String,
    /// Whether NVIDIA's driver is installed: without it, no GPU is expected.
    pub has_driver: bool,
}

/// An initialized driver.
#[derive(Debug)]
pub(super) struct Driver {
    /// The newest CUDA that it supports, as `cuDriverGetVersion` returns it: 1000 · major + 10 · minor.
    pub(super) version: i32,
    /// Number of devices visible to this process.
    pub(super) n_devices: u32,
}

/// The oldest supported driver: the first with `cuEventElapsedTime_v2`, the newest function called here.
const OLDEST_VERSION: i32 = 12080;

/// The driver, initialized at the first call.
pub(super) fn driver() -> Result<&'static Driver, &'static Unavailable> {
    static DRIVER: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();
    DRIVER.get_or_init(initialize).as_ref()
}

fn initialize() -> Result<Driver, Unavailable> {
    let unavailable =
        |reason: String, hint: &str| Unavailable { reason, hint: hint.to_owned(), has_driver: true };
    let driver = Library::Driver;
    let open = library::open(driver, 0).map_err(|why| Unavailable {
        reason: format!("no NVIDIA driver: {why}"),
        hint: driver.hint().to_owned(),
        has_driver: false,
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
    let failed = |error: result::DriverError| {
        let (code, text) = super::call::describe(error);
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let hint = start_hint(error.0, visible.as_deref(), Path::new(UVM_DEVICE).exists());
        unavailable(format!("the driver does not start: {text} ({code})"), &hint)
    };
    status.result().map_err(failed)?;
    if version < OLDEST_VERSION {
        let reason =
            format!("the driver supports CUDA {} at most; 12.8 or newer is required", version_name(version));
        return Err(unavailable(reason, "update NVIDIA's driver to 570 or newer"));
    }
    result::init().map_err(failed)?;
    let n_devices = result::device::get_count().map_err(failed)?;
    match u32::try_from(n_devices) {
        Ok(n_devices) if n_devices > 0 => Ok(Driver { version, n_devices }),
        _ => Err(unavailable("the driver sees no GPU".into(), "is CUDA_VISIBLE_DEVICES empty?")),
    }
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

#[cfg(test)]
mod tests {
    use sys::CUresult as E;

    use super::*;

    #[test]
    fn each_error_of_the_start_has_a_fix() {
        let cases = [
            (E::CUDA_ERROR_SYSTEM_NOT_READY, None, true, "nvidia-fabricmanager"),
            (E::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, None, true, "restart the machine"),
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

//! The CUDA driver: opened and initialised once per process.

use std::sync::OnceLock;

use cudarc::driver::{result, sys};

use super::library::{self, Library};

/// The reason that no GPU can be used, with a fix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    /// The reason.
    pub reason: String,
    /// The fix.
    pub hint: String,
    /// Whether NVIDIA's driver is installed: without it, no GPU is expected.
    pub has_driver: bool,
}

/// An initialised driver.
#[derive(Debug)]
pub(super) struct Driver {
    /// The newest CUDA that it supports, as `cuDriverGetVersion` returns it: 1000 · major + 10 · minor.
    pub(super) version: i32,
    /// Number of devices visible to this process.
    pub(super) n_devices: u32,
}

/// The oldest supported driver: the first with `cuEventElapsedTime_v2`, the newest function called here.
const OLDEST_VERSION: i32 = 12080;

/// The driver, initialised at the first call.
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
        let hint = match error.0 {
            sys::CUresult::CUDA_ERROR_NO_DEVICE => {
                "is CUDA_VISIBLE_DEVICES empty? does nvidia-smi list a GPU? in a container, start it with --gpus all"
            }
            sys::CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
                "the driver was updated while it was loaded: restart the machine or reload its kernel modules"
            }
            sys::CUresult::CUDA_ERROR_UNKNOWN | sys::CUresult::CUDA_ERROR_SYSTEM_NOT_READY => {
                "does nvidia-smi work? on machines with NVSwitch, is nvidia-fabricmanager running?"
            }
            _ => "does nvidia-smi work?",
        };
        unavailable(format!("the driver does not start: {text} ({code})"), hint)
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

/// Formats `13000` as `13.0`.
pub(super) fn version_name(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

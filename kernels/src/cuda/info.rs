//! GPUs of this machine, their links, and versions of driver and libraries. Works on a machine without a GPU.

use std::ffi::CStr;

use cudarc::driver::{result, sys};

use super::cublas_lt::CublasLt;
use super::driver::{Unavailable, check_driver, driver, version_name};
use super::library::{self, Library};
use super::nvrtc::Nvrtc;
use crate::Result;
use crate::cpu::cpu_set::CpuSet;

/// Description of a device by the driver; creates no context on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInfo {
    /// Index among the devices visible to this process.
    pub index: u32,
    /// Model name.
    pub name: String,
    /// Total device memory.
    pub memory_bytes: usize,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Whether it takes part in multicasts, as behind an NVLink switch.
    pub has_multicast: bool,
    /// Whether one process alone may use it (compute mode `EXCLUSIVE_PROCESS`).
    pub is_exclusive: bool,
    /// PCI address as `domain:bus:device.function`.
    pub pci_bus_id: String,
    /// UUID as nvidia-smi prints it: `GPU-`, or `MIG-` for an instance of a GPU, and 32 hexadecimal digits in groups.
    pub uuid: String,
}

impl GpuInfo {
    pub(super) fn of(index: u32) -> Result<Self> {
        use sys::CUdevice_attribute as Attribute;
        let device = check_driver(index, "cuDeviceGet", result::device::get(index as i32))?;
        let attribute = |attribute| {
            // SAFETY: the device exists.
            let value = unsafe { result::device::get_attribute(device, attribute) };
            Ok::<_, crate::KernelError>(check_driver(index, "cuDeviceGetAttribute", value)? as u32)
        };
        // SAFETY: the device exists.
        let memory_bytes =
            check_driver(index, "cuDeviceTotalMem", unsafe { result::device::total_mem(device) })?;
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // The older function returns the UUID of the whole GPU for each of its MIG instances.
        // SAFETY: the device exists, and the pointer is valid for one UUID.
        let got = unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, device) };
        check_driver(index, "cuDeviceGetUuid", got.result())?;
        let name = check_driver(index, "cuDeviceGetName", result::device::get_name(device))?;
        let mut bus_id = [0; 32];
        // SAFETY: the buffer has the given length.
        let named = unsafe { sys::cuDeviceGetPCIBusId(bus_id.as_mut_ptr(), bus_id.len() as i32, device) };
        check_driver(index, "cuDeviceGetPCIBusId", named.result())?;
        // SAFETY: the driver terminated it with zero; the buffer is longer than any address.
        let pci_bus_id = unsafe { CStr::from_ptr(bus_id.as_ptr()) }.to_string_lossy().into_owned();
        Ok(GpuInfo {
            index,
            memory_bytes,
            compute_capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            // Drivers before 12.1 do not know it.
            has_multicast: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED)
                .is_ok_and(|has| has != 0),
            is_exclusive: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)?
                == sys::CUcomputemode::CU_COMPUTEMODE_EXCLUSIVE_PROCESS as u32,
            pci_bus_id,
            uuid: uuid_text(&name, uuid.bytes.map(|byte| byte as u8)),
            name,
        })
    }

    /// The card as a person finds it: model, UUID, address on the bus, and host.
    pub(super) fn identity(&self) -> String {
        let GpuInfo { name, uuid, pci_bus_id, .. } = self;
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { String::new() } else { format!(", host {}", host.trim()) };
        format!("{name}, {uuid}, PCI {pci_bus_id}{host}")
    }

    /// The CPUs near the device, which share its NUMA node; None if the system does not report them.
    pub fn local_cpus(&self) -> Option<CpuSet> {
        let path = format!("/sys/bus/pci/devices/{}/local_cpulist", self.pci_bus_id.to_lowercase());
        CpuSet::parse(&std::fs::read_to_string(path).ok()?).filter(|cpus| !cpus.is_empty())
    }

    /// Whether its tensor cores take factors in bf16 and tf32: from compute capability 8.0 (Ampere) on.
    pub fn has_bf16_matmuls(&self) -> bool {
        self.compute_capability >= (8, 0)
    }

    /// Whether its TF32 rate is seven times that of f32 or more: GPUs for data centers (A100, H100, B200). That of others is at most twice.
    pub fn has_fast_tf32(&self) -> bool {
        let (major, minor) = self.compute_capability;
        matches!((major, minor), (8 | 9, 0) | (10, _))
    }

    /// Whether this is the virtual GPU of this project's tests, which computes on the CPU.
    pub fn is_virtual(&self) -> bool {
        self.name.starts_with("Virtual GPU")
    }
}

fn uuid_text(name: &str, bytes: [u8; 16]) -> String {
    // The driver names an instance, for example, `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
    let mut text = String::from(if name.contains(" MIG ") { "MIG" } else { "GPU" });
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text += &format!("{byte:02x}");
    }
    text
}

/// Lists all devices visible to this process.
///
/// # Errors
/// [`Unavailable`] without a driver or device, or if a device does not respond.
pub fn devices() -> std::result::Result<Vec<GpuInfo>, Unavailable> {
    let driver = driver().map_err(Clone::clone)?;
    let failed = |error: crate::KernelError| Unavailable {
        reason: crate::hint::with_hint(&error),
        hint: "does nvidia-smi list it?".to_owned(),
        has_driver: true,
        is_fault: true,
    };
    (0..driver.n_devices).map(|index| GpuInfo::of(index).map_err(failed)).collect()
}

/// Checks that the libraries are installed without which nothing can be computed on a GPU: NVRTC and cuBLASLt.
///
/// # Errors
/// [`Unavailable`], naming the first one that is missing and what to install.
pub fn ensure_libraries() -> std::result::Result<(), Unavailable> {
    let driver_version = driver().map_err(Clone::clone)?.library_version;
    let missing = |library: Library, what: &str, why: &str| Unavailable {
        reason: format!("{what}: {why}"),
        hint: library.hint().to_owned(),
        has_driver: true,
        is_fault: false,
    };
    Nvrtc::open(driver_version)
        .map_err(|why| missing(Library::Nvrtc, "its kernels cannot be compiled", why))?;
    CublasLt::open(driver_version).map_err(|why| missing(Library::CublasLt, "no matmul library", why))?;
    Ok(())
}

/// Versions of driver and libraries, and their paths; None for missing ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Versions {
    /// Version of the driver's kernel module, such as `580.65.06`.
    pub driver: Option<String>,
    /// The newest CUDA that the driver supports, such as `13.0`.
    pub driver_cuda: Option<String>,
    /// NVRTC version, such as `13.0`.
    pub nvrtc: Option<String>,
    /// cuBLASLt version, such as `13.1.0`.
    pub cublas_lt: Option<String>,
    /// Each library with its path, or the reason it was not found.
    pub found: Vec<(Library, std::result::Result<String, String>)>,
}

/// Finds every library and queries its version.
pub fn versions() -> Versions {
    let driver_cuda = driver().ok().map(|driver| version_name(driver.version));
    let driver_version = driver().map_or(i32::MAX, |driver| driver.library_version);
    let found: Vec<_> = Library::ALL
        .into_iter()
        .map(|library| {
            let open = library::open(library, driver_version);
            let path = open.map(|open| open.path.display().to_string()).map_err(str::to_owned);
            (library, path)
        })
        .collect();
    let nvrtc = Nvrtc::open(driver_version).ok().and_then(Nvrtc::version);
    Versions {
        driver: std::fs::read_to_string("/proc/driver/nvidia/version")
            .ok()
            .and_then(|text| module_version(&text)),
        driver_cuda,
        nvrtc: nvrtc.map(|(major, minor)| format!("{major}.{minor}")),
        cublas_lt: CublasLt::open(driver_version).ok().map(CublasLt::version),
        found,
    }
}

/// The version in the text of the kernel module: the first word that is one.
fn module_version(text: &str) -> Option<String> {
    let is_version =
        |word: &&str| word.contains('.') && word.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit());
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

/// Link between two devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// The same device.
    Same,
    /// Direct over PCIe.
    Peer,
    /// Direct over a link that also supports atomic operations, such as NVLink.
    PeerWithAtomics,
    /// Through host memory.
    Host,
}

/// Links between all devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerAccess {
    /// `[from][to]`.
    pub links: Vec<Vec<Link>>,
}

/// Returns the links between all devices.
///
/// # Errors
/// [`Unavailable`] as [`devices`].
pub fn peer_matrix() -> std::result::Result<PeerAccess, Unavailable> {
    let n = driver().map_err(Clone::clone)?.n_devices;
    let links = (0..n).map(|from| (0..n).map(|to| link(from, to)).collect()).collect();
    Ok(PeerAccess { links })
}

/// The link from `from` to `to`; through the host if the driver does not report one.
pub(super) fn link(from: u32, to: u32) -> Link {
    if from == to {
        return Link::Same;
    }
    let device = |index: u32| result::device::get(index as i32);
    let (Ok(from), Ok(to)) = (device(from), device(to)) else { return Link::Host };
    let ask = |attribute| {
        let mut value = 0;
        // SAFETY: both devices exist, and the pointer is valid for an int.
        let status = unsafe { sys::cuDeviceGetP2PAttribute(&mut value, attribute, from, to) };
        status.result().is_ok() && value != 0
    };
    let mut can = 0;
    // SAFETY: both devices exist, and the pointer is valid for an int.
    let status = unsafe { sys::cuDeviceCanAccessPeer(&mut can, from, to) };
    if status.result().is_err() || can == 0 {
        Link::Host
    } else if ask(sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED) {
        Link::PeerWithAtomics
    } else {
        Link::Peer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvidia_smi_does() {
        let bytes = std::array::from_fn(|i| i as u8 * 17);
        assert_eq!(uuid_text("NVIDIA H100", bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
        assert!(uuid_text("NVIDIA H100 MIG 1g.10gb", bytes).starts_with("MIG-0011"));
    }

    #[test]
    fn the_version_of_the_module_is_found_in_both_of_its_forms() {
        for (line, want) in [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023",
                Some("535.129.03"),
            ),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build",
                Some("580.65.06"),
            ),
            ("", None),
        ] {
            assert_eq!(module_version(&format!("{line}\nGCC version: gcc 13.2.0\n")).as_deref(), want);
        }
    }

    #[test]
    fn a_machine_without_gpus_is_an_answer_and_no_panic() {
        // Lists GPUs, real or virtual; without any, the reason and a fix.
        match devices() {
            Ok(devices) => assert!(!devices.is_empty() && !devices[0].name.is_empty()),
            Err(why) => assert!(!why.reason.is_empty() && !why.hint.is_empty()),
        }
        let versions = versions();
        assert_eq!(versions.found.len(), Library::ALL.len());
    }
}

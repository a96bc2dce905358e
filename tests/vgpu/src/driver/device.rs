//! Devices: their properties and capabilities.

use super::ordinal;
use crate::abi::{api, put, put_text, text};
use crate::code::{INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, SYSTEM_DRIVER_MISMATCH, UNKNOWN};
use crate::config::CONFIG;
use crate::fault;
use crate::mem::{MEMORY, trap};
use crate::report::{banner, note, say};
use std::ffi::{c_char, c_int, c_uint};
use std::sync::{LazyLock, Once};

api! {
    /// Refuses unless virtual devices are requested, so that nothing runs on them by accident.
    fn cuInit(_flags: c_uint) {
        if !CONFIG.wanted {
            say("this is the virtual GPU, which computes on the CPU; set VGPU_DEVICES to use it (see tests/vgpu/run)");
            return Err(NO_DEVICE);
        }
        if fault::rule("nodevice").is_some() || CONFIG.devices() == 0 {
            return Err(NO_DEVICE);
        }
        if let Some(rule) = fault::rule("driver") {
            let code = rule.at.map_or(SYSTEM_DRIVER_MISMATCH, |code| i32::try_from(code).unwrap_or(UNKNOWN));
            note(&format!("cuInit gives {code} on request"));
            return Err(code);
        }
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            banner();
            LazyLock::force(&MEMORY);
            trap::catch_faults();
        });
    }

    fn cuDeviceGetCount(n: *mut c_int) {
        put(n, CONFIG.devices() as c_int)?;
    }

    fn cuDeviceGet(device: *mut c_int, index: c_int) {
        put(device, ordinal(index)? as c_int)?;
    }

    fn cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) {
        ordinal(device)?;
        // All devices have the same model name, as usual in one machine: names distinguish models, not devices.
        let instance = if CONFIG.mig { " MIG 1g.10gb" } else { "" };
        put_text(name, room.max(0) as usize, &format!("Virtual GPU{instance}"))?;
    }

    /// For a MIG instance, the UUID of the whole GPU.
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) {
        let number = CONFIG.physical(ordinal(device)?);
        put(uuid, uuid_of(if CONFIG.mig { 0 } else { number }))?;
    }

    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) {
        put(uuid, uuid_of(CONFIG.physical(ordinal(device)?)))?;
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        ordinal(device)?;
        put(bytes, CONFIG.memory as usize)?;
    }

    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) {
        put(value, attribute_of(attribute, ordinal(device)?))?;
    }

    /// Domain, bus and device as `0000:01:00.0`; for MIG instances, those of the whole GPU.
    fn cuDeviceGetPCIBusId(id: *mut c_char, room: c_int, device: c_int) {
        let physical = CONFIG.physical(ordinal(device)?);
        let bus = if CONFIG.mig { 1 } else { physical + 1 };
        put_text(id, room.max(0) as usize, &format!("0000:{bus:02X}:00.0"))?;
    }

    fn cuDeviceGetByPCIBusId(device: *mut c_int, id: *const c_char) {
        let id = text(id)?.to_string_lossy().to_uppercase();
        let bus = id.trim_start_matches("0000:").split(':').next().and_then(|bus| usize::from_str_radix(bus, 16).ok());
        let found = CONFIG.visible.iter().position(|&d| Some(d + 1) == bus).ok_or(INVALID_DEVICE)?;
        put(device, found as c_int)?;
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        put(can, CONFIG.peers(ordinal(device)?, ordinal(peer)?) as c_int)?;
    }

    /// 1 performance rank, 2 access, 3 native atomics, 4 arrays.
    fn cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_uint, from: c_int, to: c_int) {
        let reachable = CONFIG.peers(ordinal(from)?, ordinal(to)?);
        put(value, match attribute {
            1 => 0,
            2..=4 => reachable as c_int,
            _ => return Err(INVALID_VALUE),
        })?;
    }
}

/// Different for each device, the same in every process, and readable as text.
fn uuid_of(number: usize) -> [u8; 16] {
    let mut uuid = *b"virtual GPU   00";
    uuid[14] += number as u8 / 10;
    uuid[15] += number as u8 % 10;
    uuid
}

/// Limits that differ between architectures.
pub(crate) struct Arch {
    pub(crate) multiprocessors: c_int,
    pub(crate) threads: c_int,
    /// Bytes of shared memory: of a multiprocessor, and of a block that requests more than 48 KiB.
    pub(crate) shared: c_int,
    pub(crate) shared_block: c_int,
}

/// The limits of `VGPU_ARCH`, of the data-center model if there is one.
///
/// Source: CUDA C++ Programming Guide, "Compute Capabilities"; numbers of multiprocessors of A100, H100 and B200.
pub(crate) fn arch() -> Arch {
    let (multiprocessors, threads, shared, shared_block) = match CONFIG.arch {
        (7, 5) => (72, 1024, 64 << 10, 64 << 10),
        (7, _) => (80, 2048, 96 << 10, 96 << 10),
        (8, 0) => (108, 2048, 164 << 10, 163 << 10),
        (8, _) => (84, 1536, 100 << 10, 99 << 10),
        (9, _) => (132, 2048, 228 << 10, 227 << 10),
        (12, _) => (170, 1536, 100 << 10, 99 << 10),
        _ => (148, 2048, 228 << 10, 227 << 10),
    };
    Arch { multiprocessors, threads, shared, shared_block }
}

fn attribute_of(attribute: c_uint, device: usize) -> c_int {
    let arch = arch();
    match attribute {
        // Limits of blocks and grids: threads of a block, x, y, z, then the grid's x, y, z.
        1..=3 => 1024,
        4 => 64,
        5 => c_int::MAX,
        6 | 7 => 65535,
        // Shared memory of a block; constant memory; warp; pitch; registers of a block and a multiprocessor.
        8 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        11 => c_int::MAX,
        12 | 82 => 65536,
        // Clocks in kHz: nominal values, nothing here runs at them. Bus width in bits.
        13 => 1_000_000,
        36 => 1_000_000,
        37 => 5120,
        38 => 50 << 20,
        16 => arch.multiprocessors,
        39 => arch.threads,
        81 => arch.shared,
        97 => arch.shared_block,
        106 => 32,
        111 => 1 << 10,
        // Overlap, concurrent kernels, ECC, copy engines, stream priorities.
        15 | 31 | 32 | 78 => 1,
        40 => 3,
        // Unified addressing, host memory that can be mapped or registered, memory pools (with no handle types).
        19 | 41 | 91 | 99 | 115 => 1,
        33 => CONFIG.physical(device) as c_int + 1,
        34 | 50 => 0,
        // Compute mode: 3 is for one process alone, which is not enforced.
        20 if std::env::var_os("VGPU_EXCLUSIVE").is_some() => 3,
        // Multicast objects, from Hopper's data-center models on.
        132 => c_int::from(matches!(CONFIG.arch.0, 9 | 10)),
        75 => CONFIG.arch.0,
        76 => CONFIG.arch.1,
        // Features that are not modeled are reported as absent: cooperative launch, managed memory, clusters, virtual memory
        // management.
        _ => 0,
    }
}

//! Memory for rows that `data.loader_memory_mib` and the container allow, and the window of a shuffle that fits it.

use super::data_values::ShuffleMode;
use super::error::Result;
use super::origin::Origin;
use super::raw::RawConfig;
use super::value::ConfigValue as _;
use crate::host_memory::{address_space, container_share, host_share, limit};

/// Least memory for a rank's rows by default, where a container allows twice as much.
const LEAST_BYTES: u64 = 1 << 30;

/// Bytes of host memory for a rank's rows: those of `data.loader_memory_mib`, at most three quarters of what the container allows
/// each rank; 0 stands for a quarter of a rank's share of the memory of the container or machine, or more of a small one.
pub(super) fn rows_memory_bytes(loader_memory_mib: usize) -> u64 {
    rows_memory(loader_memory_mib, container_share(), host_share())
}

/// The same for rows that the ranks of a host hold together: as for one rank alone.
pub(super) fn host_rows_memory_bytes(loader_memory_mib: usize) -> u64 {
    let limit = limit();
    let of_container = limit.filter(|limit| limit.is_container).map(|limit| limit.bytes);
    rows_memory(loader_memory_mib, of_container, limit.map(|limit| limit.bytes))
}

fn rows_memory(loader_memory_mib: usize, of_container: Option<u64>, share: Option<u64>) -> u64 {
    let in_container = of_container.unwrap_or(u64::MAX);
    match loader_memory_mib {
        0 => (share.unwrap_or(0).min(address_space()) / 4).max(LEAST_BYTES.min(in_container / 2)),
        mib => ((mib as u64) << 20).min(in_container / 4 * 3),
    }
}

/// Bytes of files that are mapped together. Their pages belong to the system's cache, which the ranks of a host share and which
/// gives them up when memory is short. So by default files may take half of the memory of the container or machine.
pub(super) fn mapped_bytes(loader_memory_mib: usize) -> u64 {
    let for_rows = rows_memory_bytes(loader_memory_mib);
    match loader_memory_mib {
        0 => limit().map_or(for_rows, |limit| for_rows.max(limit.bytes.min(address_space()) / 2)),
        _ => for_rows,
    }
}

/// Value of `data.shuffle_window_mib`.
pub(super) fn shuffle_window_mib(raw: &RawConfig) -> Result<usize> {
    let memory = rows_memory_bytes(raw.get("data.loader_memory_mib")?) >> 20;
    let max_window = usize::try_from(memory / 2).unwrap_or(usize::MAX).max(1);
    let Some(setting) = raw.setting("data.shuffle_window_mib") else { return Ok(max_window.min(64)) };
    let window = usize::read(&setting)?;
    let is_typed = matches!(setting.origin, Origin::Set(_));
    if window > max_window && !is_typed && raw.get::<ShuffleMode>("data.shuffle_mode")? == ShuffleMode::Full {
        // The value is not used. A saved config holds the window that fitted the memory at that time.
        return Ok(max_window);
    }
    if window > max_window {
        // The setting of the command line is the one that the user can remove.
        if let Some(memory) = raw.given("data.loader_memory_mib")
            && matches!(memory.origin, Origin::Set(_))
            && !is_typed
        {
            let expected = format!("at least twice `data.shuffle_window_mib`, {} MiB", 2 * window);
            return Err(memory.bad(expected, "one window is read while another one is used"));
        }
        let expected =
            format!("at most half of the memory for rows (`data.loader_memory_mib`), {max_window} MiB");
        return Err(setting.bad(expected, "one window is read while another one is used"));
    }
    Ok(window)
}

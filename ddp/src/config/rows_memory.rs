//! Memory for rows: the default of `data.loader_memory_mib`, what a container leaves of it, and the window of a shuffle that fits it.

use super::data_values::ShuffleMode;
use super::error::Result;
use super::origin::Origin;
use super::raw::RawConfig;
use super::value::ConfigValue as _;
use crate::host_memory::container_share;

/// Bytes of host memory for a rank's rows: those of `data.loader_memory_mib`, at most three quarters of what the container allows
/// each rank.
pub(super) fn rows_memory_bytes(loader_memory_mib: usize) -> u64 {
    let limit = container_share().map_or(u64::MAX, |share| share / 4 * 3);
    ((loader_memory_mib as u64) << 20).min(limit)
}

/// Value of `data.loader_memory_mib`.
pub(super) fn loader_memory_mib(raw: &RawConfig) -> Result<usize> {
    const DEFAULT: usize = 1024;
    if let Some(setting) = raw.setting("data.loader_memory_mib") {
        return usize::read(&setting);
    }
    let half = |share: u64| usize::try_from(share >> 21).unwrap_or(DEFAULT);
    Ok(container_share().map_or(DEFAULT, |share| half(share).clamp(1, DEFAULT)))
}

/// Value of `data.shuffle_window_mib`.
pub(super) fn shuffle_window_mib(raw: &RawConfig) -> Result<usize> {
    let memory = loader_memory_mib(raw)?;
    let max_window = (memory / 2).max(1);
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
        let expected = format!("at most half of `data.loader_memory_mib`, {max_window} MiB");
        return Err(setting.bad(expected, "one window is read while another one is used"));
    }
    Ok(window)
}

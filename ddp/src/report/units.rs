//! Human-readable numbers with units.

/// Formats a number of bytes, such as `12.3 MiB`.
pub(crate) fn mib(bytes: u64) -> String {
    let in_unit = |unit: f64| bytes as f64 / unit;
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", in_unit(1024.0)),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", in_unit(1_048_576.0)),
        _ => format!("{:.2} GiB", in_unit(1_073_741_824.0)),
    }
}

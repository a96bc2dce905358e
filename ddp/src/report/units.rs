//! Human-readable numbers with units.

/// Formats a number of bytes, such as `12.3 MiB`.
pub fn mib(bytes: u64) -> String {
    let in_unit = |unit: f64| bytes as f64 / unit;
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", in_unit(1024.0)),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", in_unit(1_048_576.0)),
        _ => format!("{:.2} GiB", in_unit(1_073_741_824.0)),
    }
}

/// Formats a rate as a whole number with commas between thousands.
pub fn rate(per_s: f64) -> String {
    grouped(per_s.max(0.0).round() as u64)
}

/// Formats a number with commas between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats floating-point operations per second with three digits, such as `1.24 GFLOP/s`.
pub fn flop_rate(per_s: f64) -> String {
    let (scale, unit) = match per_s {
        per_s if per_s >= 1e12 => (1e12, "TFLOP/s"),
        per_s if per_s >= 1e9 => (1e9, "GFLOP/s"),
        _ => (1e6, "MFLOP/s"),
    };
    let value = per_s / scale;
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_whole_numbers() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([rate(999.6), rate(12.3), rate(-1.0)], ["1,000", "12", "0"]);
    }

    #[test]
    fn operations_have_three_digits() {
        let texts = [flop_rate(1.239e9), flop_rate(45.67e12), flop_rate(640e6), flop_rate(0.0)];
        assert_eq!(texts, ["1.24 GFLOP/s", "45.7 TFLOP/s", "640 MFLOP/s", "0.00 MFLOP/s"]);
    }
}

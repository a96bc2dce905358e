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

/// Formats a rate as a whole number, in groups of three digits.
pub fn rate(per_s: f64) -> String {
    let digits = format!("{:.0}", per_s.max(0.0));
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_whole_numbers() {
        assert_eq!([rate(999.6), rate(12.3), rate(-1.0)], ["1 000", "12", "0"]);
    }
}

//! Dates and times for names and messages. No decision depends on them, because clocks differ between hosts and may be changed.

use std::time::{SystemTime, UNIX_EPOCH};

/// Formats a time as `YYYYMMDD-HHMMSS` in UTC.
pub(super) fn utc(time: SystemTime) -> String {
    let [year, month, day, hour, minute, second] = utc_parts(time);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// Year, month, day, hour, minute and second in UTC; a time before 1970 is its first second.
///
/// Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
pub(crate) fn utc_parts(time: SystemTime) -> [u64; 6] {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01, in eras of 400 years.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    [year, month, day, of_day / 3600, of_day / 60 % 60, of_day % 60]
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn times_are_utc() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "19700101-000000");
        assert_eq!(at(951_782_399), "20000228-235959");
        assert_eq!(at(951_782_400), "20000229-000000");
        assert_eq!(at(951_868_800), "20000301-000000");
        assert_eq!(at(1_735_689_599), "20241231-235959");
        assert_eq!(at(4_107_542_400), "21000301-000000");
    }
}

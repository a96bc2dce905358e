//! Dates and times for names and messages. No decision depends on them, because clocks differ between hosts and may be changed.

use std::time::SystemTime;

use chrono::{DateTime, Utc};

/// Formats a time as `YYYYMMDD-HHMMSS` in UTC.
pub(super) fn utc(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).format("%Y%m%d-%H%M%S").to_string()
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

//! Time for which a thread was ready to run and had no core, because others used it or a control group was throttled.
//!
//! Source: Linux, Documentation/scheduler/sched-stats.rst, `/proc/<pid>/schedstat`.

use std::fs;

/// Time without a core of the process's first thread, in ns; 0 where the system doesn't report it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CoreWait(u64);

impl CoreWait {
    /// The time so far.
    pub(crate) fn now() -> Self {
        CoreWait(fs::read_to_string("/proc/self/schedstat").ok().and_then(|text| parse(&text)).unwrap_or(0))
    }

    /// The time since `earlier`.
    pub(crate) fn since(self, earlier: CoreWait) -> Self {
        CoreWait(self.0.saturating_sub(earlier.0))
    }

    pub(crate) fn seconds(self) -> f64 {
        self.0 as f64 * 1e-9
    }
}

/// Time on a core, time waiting for one, number of time slices.
fn parse(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_number_is_the_wait() {
        assert_eq!(parse("1234567 89000 42\n"), Some(89_000));
        assert_eq!(parse(""), None);
        assert!(CoreWait(5).since(CoreWait(3)) == CoreWait(2));
    }
}

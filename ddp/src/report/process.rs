//! Start time and peak memory of this process, from `/proc`.

use std::fs;

use ddp_comm::Launcher;

/// Ticks per second in `/proc/PID/stat` (`USER_HZ`): 100 on every supported architecture.
const TICKS_PER_S: f64 = 100.0;

/// Seconds since the start of this process, or of its launcher; 0 if `/proc` is not readable. Resolution 10 ms.
///
/// The start of the launcher counts because the user waits for it too. A process that got its rank by the environment counts from its own
/// start: the process above it may be a shell.
pub fn seconds_since_start(launcher: Option<Launcher>) -> f64 {
    let is_started = launcher.is_some_and(|launcher| launcher != Launcher::Environment);
    let own = stat_fields("self");
    let parent = own.as_ref().filter(|_| is_started).and_then(|fields| stat_fields(fields.get(1)?));
    parent.or(own).and_then(|fields| age(&fields)).unwrap_or(0.0)
}

/// Peak resident memory of this process in MiB; 0 if `/proc` is not readable.
pub fn peak_rss_mib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|kib| kib.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

/// Fields of `/proc/PID/stat` after the command name, which may contain any character.
fn stat_fields(pid: &str) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

fn age(fields: &[String]) -> Option<f64> {
    let started_s = fields.get(19)?.parse::<f64>().ok()? / TICKS_PER_S;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime_s = uptime.split_whitespace().next()?.parse::<f64>().ok()?;
    Some((uptime_s - started_s).max(0.0))
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn knows_this_process() {
        let (own, parent) = (seconds_since_start(None), seconds_since_start(Some(Launcher::OpenMpi)));
        assert!((0.0..3600.0).contains(&own) && parent >= own, "{own} s, parent {parent} s");
        assert!(peak_rss_mib() > 0.5);
    }
}

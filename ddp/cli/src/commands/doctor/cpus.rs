//! The CPUs of the ranks: cores and binding, the load by others, and the quota of a container.

use std::fs;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use ddp::control_group::{ControlGroup, read_entry, read_number};
use ddp_comm::{Launcher, World};
use ddp_kernels::cpu::cpu_set::CpuSet;
use ddp_kernels::cpu::vector_instructions;
use ddp_kernels::cuda::Gpu;

use super::finding::Finding;
use crate::commands::devices::Cpu;
use crate::error::Result;
use crate::report::stdout::count;

/// Time over which the load is measured.
const LOAD_TIME: Duration = Duration::from_millis(250);

/// CPUs of the ranks of this host. Collective.
pub(super) fn cores(world: &World, gpu: Option<&Gpu>) -> Result<Vec<Finding>> {
    let own = CpuSet::for_thread();
    let sets = world.cpus_of_host()?;
    let n_cores = world.cores_per_rank()?;
    let found = format!(
        "{} per rank, {} instructions, {}",
        count(n_cores, "core"),
        vector_instructions(),
        Cpu::new().model
    );
    let is_far = |gpu: &&Gpu| gpu.info().local_cpus().is_some_and(|near| near.intersection(&own).is_empty());
    let mut findings = vec![if gpu.filter(is_far).is_some() {
        Finding::warn(
            format!("{found}, none of them near its GPU"),
            "bind no rank (mpirun --bind-to none): ddp-train then binds each to the CPUs near its GPU",
        )
    } else if vector_instructions() == "baseline" && cfg!(target_arch = "x86_64") {
        Finding::warn(
            format!("{found}: a virtual machine may hide AVX2"),
            "give the virtual machine the host's CPU model",
        )
    } else {
        Finding::ok(found)
    }];

    let n_used = (0..1024).filter(|cpu| sets.iter().any(|set| set.contains(*cpu))).count();
    let n_ranks = world.local_size();
    if n_ranks > n_used && n_used > 0 {
        findings.push(
            Finding::warn(
                format!(
                    "{} share {}, so they wait for each other",
                    count(n_ranks, "rank"),
                    count(n_used, "CPU")
                ),
                format!("start at most {} on this host", count(n_used, "rank")),
            )
            .about_host(),
        );
    }
    // Slurm's daemon may run on CPUs that are not of the job.
    let is_divided_by_mpi = matches!(world.launcher(), Some(Launcher::OpenMpi | Launcher::Pmi));
    let n_launcher = cpus_of(parent_id()).map_or(0, |set| set.len());
    if is_divided_by_mpi && n_launcher > n_used {
        findings.push(
            Finding::warn(
                format!("the launcher has bound the ranks to {n_used} of {n_launcher} CPUs"),
                "mpirun --bind-to none, or --map-by slot:PE=C with C cores per rank",
            )
            .about_host(),
        );
    }
    Ok(findings)
}

/// The CPUs on which a process may run.
fn cpus_of(pid: u32) -> Option<CpuSet> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    CpuSet::parse(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim())
}

/// Load of this rank's CPUs while all ranks rest. Collective.
pub(super) fn load(world: &World) -> Result<Finding> {
    world.group().barrier()?;
    let own = CpuSet::for_thread();
    let read = || CpuTimes::of(&fs::read_to_string("/proc/stat").unwrap_or_default(), &own);
    let before = read();
    sleep(LOAD_TIME);
    let after = read();
    world.group().barrier()?;
    Ok(after.since(before))
}

/// Time of CPUs in ticks since the start of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct CpuTimes {
    busy: u64,
    /// Taken by the hypervisor for other machines.
    stolen: u64,
    all: u64,
}

impl CpuTimes {
    /// The times of these CPUs in the text of `/proc/stat`; user, nice, system, idle, iowait, irq, softirq, steal.
    ///
    /// Source: Linux, Documentation/filesystems/proc.rst.
    fn of(stat: &str, cpus: &CpuSet) -> Self {
        let mut times = CpuTimes::default();
        for (name, ticks) in stat.lines().filter_map(|line| line.strip_prefix("cpu")?.split_once(' ')) {
            if !name.parse().is_ok_and(|cpu| cpus.contains(cpu)) {
                continue;
            }
            let ticks: Vec<u64> =
                ticks.split_whitespace().take(8).map(|word| word.parse().unwrap_or(0)).collect();
            let [idle, iowait, stolen] = [3, 4, 7].map(|at| ticks.get(at).copied().unwrap_or(0));
            let all: u64 = ticks.iter().sum();
            times.all += all;
            times.stolen += stolen;
            times.busy += all - idle - iowait - stolen;
        }
        times
    }

    /// The load since `before`.
    fn since(self, before: Self) -> Finding {
        let all = self.all.saturating_sub(before.all);
        let percent =
            |now: u64, before: u64| (100 * now.saturating_sub(before)).checked_div(all).unwrap_or(0);
        let (busy, stolen) = (percent(self.busy, before.busy), percent(self.stolen, before.stolen));
        let found =
            format!("other processes take {busy}% of the CPUs, other machines of the hypervisor {stolen}%");
        match (busy, stolen) {
            (11.., _) => {
                Finding::warn(found, "end other processes (top shows them), or bind the ranks to other CPUs")
            }
            (_, 6..) => Finding::warn(found, "move the virtual machine to a host that is not overcommitted"),
            _ => Finding::ok(found),
        }
    }
}

/// The share of the CPUs that a container may use, and how often it had to wait for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CpuQuota {
    /// Cores; `None` without a quota.
    cores: Option<f64>,
    n_periods: u64,
    n_throttled: u64,
}

impl CpuQuota {
    /// Reads the lowest quota of the control groups of this process.
    pub(super) fn now() -> Self {
        Self::at(Path::new("/"))
    }

    fn at(root: &Path) -> Self {
        let group = ControlGroup::find(root, "cpu", "cpu.max");
        let quota = |folder: &Path| -> Option<f64> {
            let (quota, period) = if group.is_v2 {
                let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
                let (quota, period) = text.trim().split_once(' ')?;
                (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?)
            } else {
                // -1 means none.
                let quota = read_number(&folder.join("cpu.cfs_quota_us"))?;
                (quota as f64, read_number(&folder.join("cpu.cfs_period_us"))? as f64)
            };
            Some(quota / period)
        };
        let of_folder = |folder: &PathBuf| Some((quota(folder)?, folder.clone()));
        let lowest = group.folders.iter().filter_map(of_folder).min_by(|a, b| a.0.total_cmp(&b.0));
        let Some((cores, folder)) = lowest else {
            return CpuQuota { cores: None, n_periods: 0, n_throttled: 0 };
        };
        let entry = |name| read_entry(&folder.join("cpu.stat"), name).unwrap_or(0);
        CpuQuota { cores: Some(cores), n_periods: entry("nr_periods"), n_throttled: entry("nr_throttled") }
    }

    /// The quota, and how often the container was throttled since `before`, and before that.
    pub(super) fn since(self, before: Self) -> Finding {
        let Some(cores) = self.cores else { return Finding::ok("no quota of a container") };
        let n_periods = self.n_periods.saturating_sub(before.n_periods);
        let n_throttled = self.n_throttled.saturating_sub(before.n_throttled);
        let earlier = (100 * before.n_throttled).checked_div(before.n_periods).unwrap_or(0);
        let found = format!(
            "quota of {cores:.1} cores; held back in {n_throttled} of {n_periods} periods of these checks, in {earlier}% of \
             those before"
        );
        if n_throttled == 0 {
            return Finding::ok(found);
        }
        Finding::warn(
            found,
            "raise the CPU limit of the container (docker run --cpus, resources.limits.cpu), or start fewer ranks in it",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_that_of_the_ranks_own_cpus() {
        let stat = |user: u64, steal: u64| {
            format!(
                "cpu  900 0 0 9000 0 0 0 9 0 0\ncpu0 {user} 0 10 100 50 0 0 {steal} 7 0\ncpu1 50 0 0 10 0 0 0 0 0 0\nintr 1\n"
            )
        };
        let of = |user, steal, cpus: &str| CpuTimes::of(&stat(user, steal), &CpuSet::parse(cpus).unwrap());
        assert_eq!(of(20, 5, "0"), CpuTimes { busy: 30, stolen: 5, all: 185 });
        assert_eq!(of(20, 5, "0-1"), CpuTimes { busy: 80, stolen: 5, all: 245 });
        let status = |user, steal| of(user, steal, "0-1").since(of(20, 5, "0-1"));
        assert!(format!("{:?}", status(20, 5)).contains("take 0% of the CPUs"), "{:?}", status(20, 5));
        assert!(format!("{:?}", status(30, 5)).contains("Warn"), "{:?}", status(30, 5));
        assert!(format!("{:?}", status(20, 9)).contains("overcommitted"), "{:?}", status(20, 9));
    }

    #[test]
    fn a_quota_is_found_in_both_versions_of_control_groups() {
        let system = |files: &[(&str, &str)]| {
            let root = tempfile::tempdir().unwrap();
            for (name, text) in files {
                let path = root.path().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            CpuQuota::at(root.path())
        };
        let v2 = system(&[
            ("proc/self/cgroup", "0::/pod\n"),
            ("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/cgroup.procs", ""),
            ("sys/fs/cgroup/pod/cgroup.procs", ""),
            ("sys/fs/cgroup/pod/cpu.max", "150000 100000\n"),
            (
                "sys/fs/cgroup/pod/cpu.stat",
                "usage_usec 7\nnr_periods 40\nnr_throttled 10\nthrottled_usec 5\n",
            ),
        ]);
        assert_eq!(v2, CpuQuota { cores: Some(1.5), n_periods: 40, n_throttled: 10 });
        let v1 = |quota: &str| {
            system(&[
                ("proc/self/cgroup", "5:cpu,cpuacct:/\n"),
                (
                    "proc/self/mountinfo",
                    "34 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
                ),
                ("sys/fs/cgroup/cpu/cgroup.procs", ""),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
                ("sys/fs/cgroup/cpu/cpu.stat", "nr_periods 60\nnr_throttled 12\nthrottled_time 5\n"),
            ])
        };
        assert_eq!(v1("-1\n").cores, None);
        let later = v1("200000\n");
        assert_eq!(later, CpuQuota { cores: Some(2.0), n_periods: 60, n_throttled: 12 });
        let finding = format!("{:?}", later.since(v2));
        assert!(
            finding.contains("Warn") && finding.contains("in 2 of 20 periods of these checks, in 25%"),
            "{finding}"
        );
        assert!(format!("{:?}", v2.since(v2)).contains("Ok"));
        assert_eq!(system(&[]).since(system(&[])), Finding::ok("no quota of a container"));
    }
}

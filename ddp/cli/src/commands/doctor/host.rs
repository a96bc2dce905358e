//! The host: its shared memory, limits and memory, and the CPUs of its ranks.

use std::fs;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use ddp::control_group::{ControlGroup, read_entry, read_number};
use ddp::host_memory::{self, MemoryKills, size};
use ddp_comm::{Launcher, World};
use ddp_kernels::cpu::cpu_set::CpuSet;
use ddp_kernels::cpu::vector_instructions;
use ddp_kernels::cuda::Gpu;
use rustix::fs::statvfs;
use rustix::process::{Resource, getrlimit};

use super::finding::Finding;
use crate::commands::devices::Cpu;
use crate::commands::train::count;
use crate::error::Result;

/// Size of /dev/shm that NVIDIA recommends for NCCL in containers (NCCL user guide, "Troubleshooting", "Shared memory").
const NCCL_SHM_BYTES: u64 = 1 << 30;
/// Part of /dev/shm that Open MPI's transport takes for a rank.
const MPI_SHM_BYTES: u64 = 16 << 20;

/// Memory that the ranks of this host share.
pub(super) fn shared_memory(world: &World, uses_gpus: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let n_ranks = world.local_size();
    let is_one_host = n_ranks == world.world_size() && n_ranks > 1;
    if is_one_host && !world.group().shares_memory() {
        findings.push(Finding::warn(
            "the ranks cannot map memory of each other, and exchange data by messages of MPI, which is slower",
            "start all ranks of a host in one container, as one user and without hidepid on /proc",
        ));
    }
    let Ok(stat) = statvfs("/dev/shm") else {
        findings.push(Finding::warn("there is no /dev/shm", "mount -t tmpfs tmpfs /dev/shm"));
        return findings.into_iter().map(Finding::of_host).collect();
    };
    let [total, free] = [stat.f_blocks, stat.f_bavail].map(|blocks| blocks.saturating_mul(stat.f_frsize));
    let sizes = format!("/dev/shm has {}, {} free", size(total), size(free));
    let needed = if uses_gpus { NCCL_SHM_BYTES } else { MPI_SHM_BYTES * n_ranks as u64 };
    findings.push(if n_ranks > 1 && free < needed {
        let who = if uses_gpus { "NCCL" } else { "MPI" };
        Finding::warn(
            format!("{sizes}: {who} may need {}", size(needed)),
            "in a container: docker run --ipc=host or --shm-size=1g; Kubernetes: an emptyDir with medium Memory at /dev/shm",
        )
    } else if is_one_host && findings.is_empty() {
        Finding::ok(format!("the ranks exchange data through memory that all have mapped; {sizes}"))
    } else {
        Finding::ok(sizes)
    });
    findings.into_iter().map(Finding::of_host).collect()
}

/// Limits of this process.
pub(super) fn limits(world: &World) -> Finding {
    let [locked, files] = [Resource::Memlock, Resource::Nofile].map(|resource| getrlimit(resource).current);
    let of = |limit: Option<u64>, text: fn(u64) -> String| limit.map_or_else(|| "unlimited".to_owned(), text);
    let found = format!("locked memory {}, open files {}", of(locked, size), of(files, |n| n.to_string()));
    let has_fabric = fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some());
    // MPI and the watchdog have a connection to each rank each; the rest is for files of data.
    let needed_files = 256 + 4 * world.world_size() as u64;
    if files.is_some_and(|files| files < needed_files) {
        return Finding::warn(format!("{found}: fewer than {needed_files}"), "ulimit -n 65536");
    }
    match locked {
        Some(_) if has_fabric => Finding::warn(
            format!("{found}: InfiniBand and RoCE need memory without this limit"),
            "ulimit -l unlimited, or docker run --ulimit memlock=-1",
        ),
        _ => Finding::ok(found),
    }
}

/// Memory of this host, or of its container.
pub(super) fn memory(world: &World) -> Vec<Finding> {
    let Some(limit) = host_memory::limit() else {
        return vec![Finding::ok("the system reports no size of the memory").of_host()];
    };
    let available = host_memory::available().unwrap_or(limit.bytes);
    let share = limit.bytes / world.local_size() as u64;
    let whose = if limit.is_container { "the container may take" } else { "the machine has" };
    let found =
        format!("{whose} {}, {} per rank; {} available", size(limit.bytes), size(share), size(available));
    let is_short = available < limit.bytes / 10;
    let mut findings = vec![if is_short {
        Finding::warn(found, "end the processes that hold the memory: ps aux --sort=-rss | head")
    } else {
        Finding::ok(found)
    }];
    let n_killed = MemoryKills::watch().before();
    if n_killed > 0 {
        findings.push(Finding::warn(
            format!(
                "{} of this container killed for want of memory so far",
                count(n_killed as usize, "process")
            ),
            "raise the limit of the container, start fewer ranks in it, or lower data.loader_memory_mib",
        ));
    }
    findings.into_iter().map(Finding::of_host).collect()
}

/// CPUs of the ranks of this host. Collective.
pub(super) fn cores(world: &World, gpu: Option<&Gpu>) -> Result<Vec<Finding>> {
    let own = CpuSet::of_thread();
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
            .of_host(),
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
            .of_host(),
        );
    }
    Ok(findings)
}

/// The CPUs on which a process may run.
fn cpus_of(pid: u32) -> Option<CpuSet> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    CpuSet::parse(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim())
}

/// Time over which the load is measured.
const LOAD_TIME: Duration = Duration::from_millis(250);

/// Load of this rank's CPUs while all ranks rest. Collective.
pub(super) fn load(world: &World) -> Result<Finding> {
    world.group().barrier()?;
    let own = CpuSet::of_thread();
    let read = || CpuTimes::of(&fs::read_to_string("/proc/stat").unwrap_or_default(), &own);
    let before = read();
    sleep(LOAD_TIME);
    let after = read();
    world.group().barrier()?;
    Ok(after.since(before).finding())
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
        for line in stat.lines().filter_map(|line| line.strip_prefix("cpu")) {
            let mut words = line.split_whitespace();
            let is_own = |name: &str| name.parse().is_ok_and(|cpu| cpus.contains(cpu));
            if line.starts_with(' ') || !words.next().is_some_and(is_own) {
                continue;
            }
            let ticks: Vec<u64> = words.take(8).map(|word| word.parse().unwrap_or(0)).collect();
            let [idle, iowait, stolen] = [3, 4, 7].map(|at| ticks.get(at).copied().unwrap_or(0));
            let all: u64 = ticks.iter().sum();
            times.all += all;
            times.stolen += stolen;
            times.busy += all - idle - iowait - stolen;
        }
        times
    }

    fn since(self, before: Self) -> Self {
        CpuTimes {
            busy: self.busy.saturating_sub(before.busy),
            stolen: self.stolen.saturating_sub(before.stolen),
            all: self.all.saturating_sub(before.all),
        }
    }

    fn finding(self) -> Finding {
        let percent = |part: u64| (100 * part).checked_div(self.all).unwrap_or(0);
        let (busy, stolen) = (percent(self.busy), percent(self.stolen));
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
        let Some(cores) = self.cores else { return Finding::ok("no quota of a container").of_host() };
        let n_periods = self.n_periods.saturating_sub(before.n_periods);
        let n_throttled = self.n_throttled.saturating_sub(before.n_throttled);
        let earlier = (100 * before.n_throttled).checked_div(before.n_periods).unwrap_or(0);
        let found = format!(
            "quota of {cores:.1} cores; held back in {n_throttled} of {n_periods} periods of these checks, in {earlier}% of \
             those before"
        );
        if n_throttled == 0 {
            return Finding::ok(found).of_host();
        }
        Finding::warn(
            found,
            "raise the CPU limit of the container (docker run --cpus, resources.limits.cpu), or start fewer ranks in it",
        )
        .of_host()
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
        let status = |user, steal| of(user, steal, "0-1").since(of(20, 5, "0-1")).finding();
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
        assert_eq!(system(&[]).since(system(&[])), Finding::ok("no quota of a container").of_host());
    }
}

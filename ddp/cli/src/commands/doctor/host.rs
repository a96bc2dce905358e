//! The host: memory that its ranks share, limits of processes, and memory.

use std::fs;

use ddp::host_memory::{self, MemoryKills, size};
use ddp_comm::World;
use rustix::fs::statvfs;
use rustix::process::{Resource, getrlimit};

use super::finding::Finding;

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
        return findings;
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
    findings
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
        return vec![Finding::ok("the system reports no size of the memory")];
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
            format!("processes of this container that were killed for want of memory so far: {n_killed}"),
            "raise the limit of the container, start fewer ranks in it, or lower data.loader_memory_mib",
        ));
    }
    findings
}

//! The host: memory that its ranks share, limits of processes, memory, and the output folder.

use std::fs;
use std::path::Path;
use std::time::Instant;

use ddp::host_memory;
use ddp::host_memory::{MemoryKills, size};
use ddp::run_folder::FolderError;
use ddp::run_folder::file_system::{MEASURED_BYTES, measure_file_system};
use ddp::run_folder::logs::Probe;
use ddp_comm::World;
use ddp_tables::open::remote;
use rustix::fs::statvfs;
use rustix::process::{Resource, getrlimit};

use super::finding::Finding;
use crate::bucket;
use crate::commands::train::sees;
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

/// Free bytes below which checkpoints of a small model already fill the disk.
const FEW_BYTES: u64 = 1 << 30;

/// Tries what a run does in its output folder, or where that will be made. Collective.
pub(super) fn out(world: &World, out: &Path) -> Result<Vec<Finding>> {
    if let Some(address) = out.to_str().filter(|text| remote::is_address(text)) {
        let findings = if world.rank().0 == 0 { vec![bucket_finding(address)] } else { Vec::new() };
        return Ok(findings.into_iter().map(Finding::about_job).collect());
    }
    let measured = if world.rank().0 == 0 { Some(measure_file_system(out)) } else { None };
    let mut findings = Vec::new();
    let mut folder = Vec::new();
    match &measured {
        None => {}
        Some(Err(FolderError::Unsuited { .. })) => {
            findings.push(bucket_finding(&out.display().to_string()));
        }
        Some(Err(error)) => findings.push(Finding::fail(
            error.to_string(),
            miette::Diagnostic::help(error).map(|hint| hint.to_string()).unwrap_or_default(),
        )),
        Some(Ok(measured)) => {
            folder = measured.folder.display().to_string().into_bytes();
            let free = measured.free_bytes.map_or_else(String::new, |free| format!(", {} free", size(free)));
            let is_there = measured.folder == out;
            let place = if is_there { String::new() } else { format!(" in `{}`", measured.folder.display()) };
            let found = format!(
                "`{}`{place}: rename and sync work, {} written and synced at {:.0} MiB/s{free}",
                out.display(),
                size(MEASURED_BYTES as u64),
                measured.bytes_per_s / f64::from(1 << 20)
            );
            findings.push(match measured.free_bytes {
                Some(free) if free < FEW_BYTES => {
                    Finding::warn(found, "free some space, or name another folder with --out")
                }
                _ => Finding::ok(found),
            });
            if !measured.has_locks {
                findings.push(Finding::warn(
                    "its file system has no locks, so two runs on one host could write the same folder",
                    "mount it with locks (NFS: without nolock; Lustre: -o flock), or start no two runs in one folder",
                ));
            }
        }
    }
    let mut findings: Vec<_> = findings.into_iter().map(Finding::about_job).collect();
    findings.extend(unseen(world, folder)?);
    Ok(findings)
}

/// Tries what a run does in a bucket, in a store or mounted.
fn bucket_finding(address: &str) -> Finding {
    let started = Instant::now();
    match bucket::try_calls(address) {
        Ok(()) => Finding::ok(format!(
            "`{address}`: list, write, write under a condition, read back and delete work, in {:.0} ms together",
            started.elapsed().as_secs_f64() * 1e3
        )),
        Err((call, error)) => {
            let text = error.to_string();
            let (fact, hint) = text.split_once("\nhint: ").unwrap_or((&text, ""));
            Finding::fail(format!("can't {call}: {fact}"), hint.to_owned())
        }
    }
}

/// A warning on a rank that does not see the folder of rank 0. Collective.
fn unseen(world: &World, folder: Vec<u8>) -> Result<Option<Finding>> {
    let folder = world.group().all_gather_bytes(&folder)?.swap_remove(0);
    if folder.is_empty() || world.local_size() == world.world_size() {
        return Ok(None);
    }
    let folder = String::from_utf8_lossy(&folder).into_owned();
    let tried = Path::new(&folder).join(format!(".ddp-train-doctor-{}", std::process::id()));
    let probe = if world.rank().0 == 0 { Probe::leave(&tried).ok() } else { None };
    let name = world.group().all_gather_bytes(tried.display().to_string().as_bytes())?.swap_remove(0);
    let is_seen = sees(world, probe.as_ref(), Path::new(&*String::from_utf8_lossy(&name)))?;
    world.group().barrier()?;
    if world.rank().0 == 0 {
        drop(probe);
        let _ = fs::remove_dir_all(&tried);
    }
    Ok((!is_seen).then(|| {
        Finding::warn(
            format!("`{folder}` of rank 0 is not seen here"),
            "name a folder with --out on a file system that all hosts share",
        )
        .about_host()
    }))
}

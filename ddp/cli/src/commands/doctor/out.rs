//! The output folder: its file system, on rank 0, and whether all hosts see it.

use std::fs;
use std::path::Path;

use ddp::host_memory::size;
use ddp::run_folder::file_system::{MEASURED_BYTES, measure_file_system};
use ddp::run_folder::logs::Probe;
use ddp_comm::World;

use super::finding::Finding;
use crate::commands::train::sees;
use crate::error::Result;

/// Free bytes below which checkpoints of a small model already fill the disk.
const FEW_BYTES: u64 = 1 << 30;

/// Tries what a run does in its output folder, or where that will be made. Collective.
pub(super) fn out(world: &World, out: &Path) -> Result<Vec<Finding>> {
    let measured = if world.rank().0 == 0 { Some(measure_file_system(out)) } else { None };
    let mut findings = Vec::new();
    let mut folder = Vec::new();
    match &measured {
        None => {}
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
    let mut findings: Vec<_> = findings.into_iter().map(Finding::of_job).collect();
    findings.extend(unseen(world, folder)?);
    Ok(findings)
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
        .of_host()
    }))
}

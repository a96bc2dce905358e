//! The ranks, the versions of their libraries, and the network between their hosts.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ddp_comm::watchdog::{Unwatched, interface_addresses};
use ddp_comm::{World, launcher_above, mpi_version, nccl_version};
use ddp_kernels::cuda;
use ddp_kernels::cuda::library::Library;
use miette::Diagnostic as _;

use super::finding::Finding;
use crate::commands::self_check::library_words;
use crate::commands::train::count;
use crate::error::Result;

/// The ranks and their hosts. A launcher that started several processes, each of which is a world of its own, is a failure.
///
/// - `hosts`: the host of each rank
pub(super) fn world(world: &World, hosts: &[String], program: &str) -> Finding {
    let Some(launcher) = world.launcher() else {
        return match launcher_above() {
            Some(name) => Finding::fail(
                format!(
                    "a world of one rank: {name} has started this process, but its environment is missing here, so each process \
                     would train alone"
                ),
                "keep the environment (sudo -E, docker run --env; not env -i) between the launcher and ddp-train",
            ),
            None => Finding::ok(format!("1 rank without a launcher, {program}")),
        };
    };
    let per_host: BTreeSet<_> =
        hosts.iter().map(|host| hosts.iter().filter(|other| *other == host).count()).collect();
    let place = match hosts.iter().collect::<BTreeSet<_>>().len() {
        1 => format!("host {}", world.hostname()),
        n_hosts => {
            let per_host: Vec<_> = per_host.iter().map(ToString::to_string).collect();
            format!("{n_hosts} hosts ({} each)", per_host.join(" or "))
        }
    };
    Finding::ok(format!("{} on {place} by {launcher}, {program}", count(hosts.len(), "rank")))
}

/// The versions of driver, CUDA's libraries and MPI, which should be those of rank 0. Collective.
pub(super) fn versions(world: &World) -> Result<Vec<Finding>> {
    let versions = cuda::versions();
    let mut own: Vec<String> = mpi_version().into_iter().collect();
    own.extend(versions.driver.as_ref().map(|version| format!("driver {version}")));
    own.extend(versions.driver_cuda.as_ref().map(|version| format!("CUDA {version}")));
    own.extend(Some(library_words(&versions)).filter(|words| !words.is_empty()));
    let own = own.join(", ");
    let all = world.group().all_gather_bytes(own.as_bytes())?;
    let expected = String::from_utf8_lossy(&all[0]);
    let mut findings = vec![if own == expected {
        Finding::ok(if own.is_empty() { "neither MPI nor CUDA".to_owned() } else { own })
    } else {
        Finding::warn(
            format!("{own}; rank 0 has {expected}"),
            "install the same driver and libraries on all hosts, and give all ranks the same LD_LIBRARY_PATH",
        )
    }];
    if cuda::devices().is_ok_and(|gpus| gpus.len() > 1) && nccl_version().is_none() {
        findings.push(
            Finding::warn("NCCL is not found, which several GPUs need", Library::Nccl.hint()).of_host(),
        );
    }
    Ok(findings)
}

/// The connections of the watchdog, which each rank has to rank 0 and to the deputy, and the addresses of the hosts. Collective.
pub(super) fn network(world: &World, unwatched: Option<&Unwatched>) -> Result<Vec<Finding>> {
    if world.local_size() == world.world_size() {
        return Ok(vec![Finding::ok("skipped: all ranks are on one host")]);
    }
    // Of an interface that each host has for itself, such as a bridge of containers.
    let own = if world.local_rank().0 == 0 { interface_addresses().unwrap_or_default() } else { Vec::new() };
    let text = own.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ");
    let all = world.group().all_gather_bytes(text.as_bytes())?;
    let mut findings = vec![match unwatched {
        None => Finding::ok(format!(
            "each rank reaches rank 0 and the deputy by TCP; rank 0 is at {}",
            if text.is_empty() { "no address" } else { &text }
        )),
        Some(unwatched) => Finding::warn(
            unwatched.to_string(),
            unwatched.help().map(|hint| hint.to_string()).unwrap_or_default(),
        ),
    }];
    let all: Vec<_> = all.iter().map(|bytes| String::from_utf8_lossy(bytes)).collect();
    let is_shared =
        |address: &&str| all.iter().filter(|of| of.split(' ').any(|other| other == *address)).count() > 1;
    if let Some(shared) = text.split(' ').filter(|address| !address.is_empty()).find(is_shared) {
        findings.push(Finding::warn(
            format!("{shared} is an address of several hosts, such as that of docker0: MPI or NCCL may try to connect to it"),
            "name the interface between the hosts: mpirun --mca btl_tcp_if_include IFACE -x NCCL_SOCKET_IFNAME=IFACE",
        ));
    }
    Ok(findings)
}

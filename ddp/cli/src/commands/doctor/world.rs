//! The ranks, the versions of their libraries, the network between their hosts, and sums over all ranks.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use ddp_comm::watchdog::{Unwatched, interface_addresses};
use ddp_comm::{CommError, ReduceOp, World, launcher_above, mpi_version, nccl_version};
use ddp_kernels::cuda::library::Library;
use ddp_kernels::cuda::{Event, Gpu};
use ddp_kernels::ops::KnownNumbers;
use ddp_kernels::{DType, Device, Tensor, cuda};
use miette::Diagnostic as _;

use super::finding::Finding;
use super::gpus::failure;
use crate::commands::bench::time_briefly;
use crate::commands::self_check::library_words;
use crate::error::Result;
use crate::report::stdout::count;

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
            Finding::warn("NCCL is not found, which several GPUs need", Library::Nccl.hint()).about_host(),
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

/// Bytes of the sums: of a message, of a small bucket, and more than the caches hold.
const SIZES: [usize; 3] = [4 << 10, 256 << 10, 8 << 20];

/// Rounds of the comparison of clocks; the best one counts.
const N_ROUNDS: usize = 32;

/// Sums numbers over all ranks, on the host and between the GPUs. Collective.
pub(super) fn sums(world: &World, gpu: Option<&'static Gpu>) -> Result<Vec<Finding>> {
    if world.world_size() == 1 {
        return Ok(vec![Finding::ok("skipped: one rank")]);
    }
    let mut findings = Vec::new();
    for gpu in std::iter::once(None).chain(gpu.map(Some)) {
        let (group, place) = match gpu {
            Some(_) => (world.tensor_group(), "GPU memory"),
            None => (world.group(), "host memory"),
        };
        let over = format!("over {} in {place}", group.transport());
        for bytes in SIZES {
            let n = bytes / 4;
            let tried = sum(world, gpu, n);
            let n_wrong = *tried.as_ref().unwrap_or(&0);
            if let Some(failure) = failure(world, tried.err())? {
                findings.push(failure);
                return Ok(findings);
            }
            if n_wrong > 0 {
                findings.push(Finding::fail(
                    format!("{n_wrong} of {n} sums are wrong {over}"),
                    if gpu.is_some() {
                        "try NCCL_ALGO=Ring, then NCCL_P2P_DISABLE=1, then another NCCL; `ddp-train devices --check` checks each GPU"
                    } else {
                        "a rank's memory or network is at fault: start on other hosts, and test the memory"
                    },
                ));
            }
            let all = world.group().all_gather_bytes(&[u8::from(n_wrong > 0)])?;
            if all.iter().any(|wrong| wrong[0] != 0) {
                return Ok(findings);
            }
        }
        let times: Result<Vec<_>> =
            SIZES.iter().map(|bytes| Ok(time_briefly(world, gpu, *bytes)?.words())).collect();
        let found = format!("right sums {over}: {} of bus bandwidth", times?.join(", "));
        findings.push(Finding::ok(found).about_job());
    }
    Ok(findings)
}

/// Sums `n` known numbers of each rank; returns how many sums are wrong here.
fn sum(world: &World, gpu: Option<&'static Gpu>, n: usize) -> Result<i64, CommError> {
    let (group, device) = match gpu {
        Some(gpu) => (world.tensor_group(), gpu.device()),
        None => (world.group(), Device::Cpu),
    };
    let known = KnownNumbers { first: 0, n_ranks: world.world_size(), round: 0 };
    let mut buf = Tensor::zeros(&[n], DType::F32, device)?;
    let mut wrong = Tensor::zeros(&[1], DType::I64, device)?;
    known.fill(buf.view_mut(), Some(world.rank().0))?;
    group.all_reduce(ReduceOp::Sum, buf.view_mut())?;
    known.count_wrong(buf.view(), wrong.view_mut())?;
    if let Some(gpu) = gpu {
        let done = Event::untimed(gpu)?;
        done.record(gpu.compute())?;
        // This has a time limit, which reading has not.
        group.wait_until(|| done.is_done())?;
    }
    Ok(wrong.item::<i64>()?)
}

/// Compares the clocks of the ranks with that of rank 0. Collective.
///
/// A barrier ends when the last rank has entered it. At this moment T, the clock of each rank is between its reading before the
/// barrier and its reading after it, so the difference of two clocks at T is known up to the sum of these times.
pub(super) fn clocks(world: &World) -> Result<Vec<Finding>> {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i64;
    let mut own = Vec::new();
    for _ in 0..N_ROUNDS {
        world.group().barrier()?;
        let before = now();
        world.group().barrier()?;
        own.extend([before, now()].map(i64::to_le_bytes).concat());
    }
    let all = world.group().all_gather_bytes(&own)?;
    let of_rank_0 = readings(&all[0]);
    if world.rank().0 == 0 {
        return Ok(if world.world_size() == 1 { vec![Finding::ok("skipped: one rank")] } else { Vec::new() });
    }
    let bounds = readings(&own)
        .zip(of_rank_0)
        .map(|([before, after], [before_0, after_0])| (before - after_0, after - before_0));
    let (least, most) = bounds.min_by_key(|(least, most)| most - least).unwrap_or_default();
    let (offset, error) = ((least + most) as f64 / 2e6, (most - least) as f64 / 2e6);
    let found = format!("clock {offset:.3} ms from rank 0's, +- {error:.3} ms");
    Ok(vec![if offset.abs() - error > 1e3 {
        Finding::warn(
            found,
            "synchronize the clocks of the hosts (chrony, NTP): lines of their logs cannot be compared",
        )
    } else {
        Finding::ok(found)
    }])
}

/// The readings of a rank's clock before and after each barrier, in ns.
fn readings(bytes: &[u8]) -> impl Iterator<Item = [i64; 2]> {
    let words: Vec<i64> = bytes.as_chunks::<8>().0.iter().map(|word| i64::from_le_bytes(*word)).collect();
    let rounds: Vec<[i64; 2]> = words.as_chunks::<2>().0.to_vec();
    rounds.into_iter()
}

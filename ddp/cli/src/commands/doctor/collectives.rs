//! Sums over all ranks: whether they are right, and how long they take; and the clocks of the ranks.

use std::time::{SystemTime, UNIX_EPOCH};

use ddp_comm::{CommError, ReduceOp, World};
use ddp_kernels::cuda::{Event, Gpu};
use ddp_kernels::ops::KnownNumbers;
use ddp_kernels::{DType, Device, Tensor};

use super::finding::Finding;
use super::gpus::failure;
use crate::commands::bench::time_briefly;
use crate::error::Result;

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
        findings.push(Finding::ok(found).of_job());
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
        let done = Event::new(gpu)?;
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

//! A trial of registered buffers: before a job relies on them, each collective that uses them must give the right numbers.
//!
//! NCCL chooses other ways for registered buffers (inside a switch, or in place at a peer), which depend on the machine, its driver and
//! its settings. A job that trains on wrong sums is worse than one that copies.

use ddp_kernels::{DType, MemoryUse, Tensor, ops};

use crate::group::nccl::NcclGroup;
use crate::{Group, NCCL_MEMORY_STEP_BYTES, ReduceOp, Result};

/// Relative error that rounding does not reach in sums of small whole numbers.
const TOLERANCE: f32 = 1e-3;

/// Runs each collective that exchanges registered buffers once, with known numbers, and waits for it; returns what was wrong with the
/// results of this rank. Collective.
///
/// - `group`: the NCCL group, which registers its buffers
///
/// # Errors
/// Same as [`Group::all_reduce`]; [`CommError::DeviceTimeout`](crate::CommError::DeviceTimeout).
pub(crate) fn wrong_result(group: &Group) -> Result<Option<String>> {
    let Group::Nccl(nccl) = group else { return Ok(None) };
    let (rank, n_ranks) = (group.rank().0, group.world_size());
    let len = NCCL_MEMORY_STEP_BYTES / size_of::<f32>() / n_ranks * n_ranks;
    if len == 0 {
        return Ok(None);
    }
    let value = |rank: usize, i: usize| (i % 5 + rank % 3) as f32;
    let own: Vec<f32> = (0..len).map(|i| value(rank, i)).collect();
    let own = Tensor::from_slice(&own, &[len], nccl.gpu().device())?;
    let of_ranks: usize = (0..n_ranks).map(|rank| rank % 3).sum();
    let sum = |i: usize| (n_ranks * (i % 5) + of_ranks) as f32;
    let mut buffer = nccl.zeros(MemoryUse::Other, &[len], DType::F32)?;

    // All collectives before any result is compared: a rank that stopped early would keep the others waiting.
    ops::copy(own.view(), buffer.view_mut())?;
    group.all_reduce(ReduceOp::Sum, buffer.view_mut())?;
    let sums = read(nccl, &buffer)?;
    ops::copy(own.view(), buffer.view_mut())?;
    group.reduce_scatter_in_place(ReduceOp::Sum, buffer.view_mut())?;
    group.all_gather_in_place(buffer.view_mut())?;
    let gathered = read(nccl, &buffer)?;
    let all = [("all-reduce", sums), ("reduce-scatter and all-gather", gathered)];
    Ok(all.iter().find_map(|(name, got)| {
        // Written so that NaN is wrong.
        let is_right = |(i, &got): (usize, &f32)| (got - sum(i)).abs() <= TOLERANCE * sum(i);
        let i = got.iter().enumerate().position(|number| !is_right(number))?;
        Some(format!("{name} of registered buffers gave {} instead of {} at {i}", got[i], sum(i)))
    }))
}

/// The numbers on the device after all work so far, whose wait is bounded.
fn read(group: &NcclGroup, buffer: &Tensor) -> Result<Vec<f32>> {
    group.wait_for_device()?;
    Ok(buffer.to_vec::<f32>()?)
}

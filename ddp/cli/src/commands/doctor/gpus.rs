//! The devices of the ranks: whether each GPU is one rank's own, its memory, copies between GPUs, and the cache of kernels.

use std::time::Duration;

use ddp_comm::{CommError, DeviceOptions, Failure, Rank, Reporter, World, peer};
use ddp_kernels::cpu::threads;
use ddp_kernels::cuda::{self, Gpu, record};
use ddp_kernels::ops::KnownNumbers;
use ddp_kernels::{DType, Device, DeviceRequest, Tensor};

use super::finding::Finding;
use crate::commands::self_check::copied;
use crate::error::{Error, Result};
use crate::report::stdout::count;

/// Time for which NCCL may join the ranks, and for which a rank waits for a collective.
const JOIN_LIMIT: Duration = Duration::from_secs(20);

/// Elements of a copy: odd, and more than one block of any copy.
const N_COPIED: usize = (1 << 18) + 13;

/// Chooses the devices of the ranks as `--device auto` does, and joins them. Returns no device where that fails. Collective.
pub(super) fn join(world: &World) -> Result<(Vec<Finding>, Option<Device>)> {
    let choice = match world.collective_result(world.choose_device(DeviceRequest::Auto, false)) {
        Ok(choice) => choice,
        Err(Failure::Here { error, .. }) => return Ok((vec![Finding::from_error(&error.into())], None)),
        Err(Failure::Elsewhere { .. }) => return Ok((Vec::new(), None)),
        Err(Failure::Comm(error)) => return Err(error.into()),
    };
    let n_threads = world.cores_per_rank()?;
    let joined = threads::join_pool(n_threads).map_err(CommError::from);
    if let Some(failure) = failure(world, joined.err())? {
        return Ok((vec![failure], None));
    }
    let options =
        DeviceOptions { timeout: Some(JOIN_LIMIT), trial_timeout: JOIN_LIMIT, ..DeviceOptions::default() };
    let connected = world.connect_device(choice.device, options);
    if let Some(failure) = failure(world, connected.err())? {
        return Ok((vec![failure], None));
    }
    let finding = match (choice.device, choice.reason) {
        (Device::Cuda(index), _) => {
            let info = Gpu::get(index)?.info();
            let warning = if info.is_virtual() { ", which computes on the CPU, for tests only" } else { "" };
            let whose =
                if world.world_size() == 1 { format!("cuda:{index}") } else { "a GPU of its own".to_owned() };
            Finding::ok(format!("{whose}: {}{warning}", info.name))
        }
        (Device::Cpu, Some(why)) if why.has_driver => {
            Finding::warn(format!("no GPU is used: {}", why.reason), why.hint)
        }
        (Device::Cpu, why) => {
            Finding::ok(why.map_or_else(|| "cpu".to_owned(), |why| format!("cpu ({})", why.reason)))
        }
    };
    Ok((vec![finding], Some(choice.device)))
}

/// The failure of all ranks, if one of them has the error `own`: that of the rank that reports it. Collective.
pub(super) fn failure(world: &World, own: Option<CommError>) -> Result<Option<Finding>> {
    let own = own.map(|error| (error.reporter(), Error::from(error)));
    let cause = world.first_cause(own.as_ref().map(|(reporter, error)| (error.to_string(), *reporter)))?;
    Ok(cause.map(|text| {
        let finding = match (own, text.split_once("\nhint: ")) {
            (Some((Reporter::RankZero, error)), _) => Finding::from_error(&error),
            (_, Some((message, hint))) => Finding::fail(message, hint),
            (_, None) => Finding::fail(text, "`ddp-train devices --check` checks each GPU alone"),
        };
        finding.about_job()
    }))
}

/// Memory of the rank's GPU.
pub(super) fn memory(gpu: &Gpu) -> Result<Finding> {
    let in_use = gpu.memory_in_use()?;
    let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
    let found = format!("{:.1} of {:.1} GiB free", gib(in_use.free), gib(in_use.total));
    // The driver's context takes a part of it.
    if in_use.free < in_use.total / 10 * 9 && in_use.total - in_use.free > 2 << 30 {
        return Ok(Finding::warn(
            format!("{found}: other processes may hold the rest"),
            "nvidia-smi lists the processes; end them, or choose other GPUs by CUDA_VISIBLE_DEVICES",
        ));
    }
    Ok(Finding::ok(found))
}

/// The cache of compiled kernels.
pub(super) fn kernel_cache() -> Finding {
    let parts = ["doctor".to_owned()];
    let text = std::process::id().to_string();
    record::write(&parts, &text);
    // Another rank may have written since.
    if record::read(&parts).is_some() {
        return Finding::ok("compiled kernels are kept for later starts");
    }
    Finding::warn(
        "compiled kernels cannot be kept, so each start compiles them",
        "set DDP_TRAIN_CACHE to a folder that this user alone can read and write (mode 0700)",
    )
}

/// Copies between this GPU and the others of its host: from the rank before, or with a single rank to each other one. Collective.
///
/// - `hosts`: the host of each rank
pub(super) fn copies(world: &World, hosts: &[String], gpu: &'static Gpu) -> Result<Vec<Finding>> {
    if world.world_size() == 1 {
        return copies_to_all(gpu);
    }
    let rank = world.rank().0;
    let buffers = || -> Result<_, CommError> {
        let mut source = world.shared_zeros(&[N_COPIED], DType::F32, gpu.device())?;
        known(rank).fill(source.view_mut(), None)?;
        Ok((source, Tensor::zeros(&[N_COPIED], DType::F32, gpu.device())?))
    };
    let buffers = buffers();
    if let Some(failure) = failure(world, buffers.as_ref().err().cloned())? {
        return Ok(vec![failure]);
    }
    let (source, mut target) = buffers?;
    let mut findings = Vec::new();
    for to in 0..world.world_size() {
        let of_host: Vec<_> = (0..hosts.len()).filter(|other| hosts[*other] == hosts[to]).collect();
        let at = of_host.iter().position(|other| *other == to).unwrap_or(0);
        let from = of_host[(at + of_host.len() - 1) % of_host.len()];
        if from == to {
            continue;
        }
        let (of_source, of_target) =
            ((rank == from).then(|| source.view()), (rank == to).then(|| target.view_mut()));
        let copied = peer::copy(world, Rank(from), Rank(to), of_source, of_target);
        if let Some(failure) = failure(world, copied.as_ref().err().cloned())? {
            return Ok(vec![failure]);
        }
        if rank == to {
            let path = copied?;
            let mut wrong = Tensor::zeros(&[1], DType::I64, gpu.device())?;
            known(from).count_wrong(target.view(), wrong.view_mut())?;
            findings.push(match wrong.item::<i64>()? {
                0 => Finding::ok(format!("1 MiB from the GPU of another rank is right, {path}")),
                n_wrong => Finding::fail(
                    format!("{n_wrong} of {N_COPIED} numbers from the GPU of rank {from} are wrong, {path}"),
                    "turn off the IOMMU and PCIe ACS, which break copies between GPUs, or set NCCL_P2P_DISABLE=1",
                ),
            });
        }
    }
    if findings.is_empty() && world.local_size() == 1 {
        findings.push(Finding::ok("skipped: one rank per host"));
    }
    Ok(findings)
}

/// Numbers that tell the rank from which they come.
fn known(from: usize) -> KnownNumbers {
    KnownNumbers { first: 0, n_ranks: 1, round: from as u32 }
}

/// Copies to each other GPU of this host and back.
fn copies_to_all(gpu: &Gpu) -> Result<Vec<Finding>> {
    let n_gpus = Gpu::count() as u32;
    if n_gpus < 2 {
        return Ok(vec![Finding::ok("skipped: one GPU")]);
    }
    let links = cuda::peer_matrix().map(|peers| peers.links).unwrap_or_default();
    let n_direct =
        links.iter().flatten().filter(|link| !matches!(link, cuda::Link::Same | cuda::Link::Host)).count();
    for to in (0..n_gpus).filter(|to| *to != gpu.index()) {
        let hint = "`ddp-train devices --check` names what fails; turn off the IOMMU and PCIe ACS";
        match copied(gpu.device(), Device::Cuda(to)) {
            Ok(results) if results.iter().all(|result| result.agrees()) => {}
            Ok(_) => return Ok(vec![Finding::fail(format!("bytes copied to cuda:{to} are wrong"), hint)]),
            Err(error) => return Ok(vec![Finding::fail(format!("copying to cuda:{to}: {error}"), hint)]),
        }
    }
    let n_pairs = n_gpus * (n_gpus - 1);
    let others = count(n_gpus as usize - 1, "other GPU");
    Ok(vec![Finding::ok(format!("copies to {others} are right; {n_direct} of {n_pairs} pairs directly"))])
}

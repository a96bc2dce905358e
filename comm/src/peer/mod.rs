//! Copies of a tensor from one rank to another, by the shortest way there is.
//!
//! - Between GPUs of one process: from memory to memory, by the driver ([`ddp_kernels::cuda::peer`]).
//! - Between GPUs of two processes of one host: the receiving rank maps the sender's memory (CUDA IPC) and copies out of it.
//!   Memory can only be mapped whose owner has made it for that, as a [`SharedTensor`].
//! - Other GPUs: by NCCL, where the ranks' devices are joined.
//! - Else through the host, by its group.
//!
//! # Who may free what
//! The first copy out of a [`SharedTensor`] hands its address to the other process, which keeps it mapped for later copies.
//! From then on the memory belongs to the world: a tensor that is dropped leaves its memory there, until [`World::close`] has
//! all ranks unmap what they mapped, waits for all of them, and then frees it. A world that is dropped instead leaves it to
//! the end of the process.

mod ipc;
mod shared;

use std::fmt;

use ddp_kernels::cuda::{self, CudaSlice};
use ddp_kernels::{DType, Device, Tensor, TensorMut, TensorRef, ops};

use crate::group::Group;
use crate::{CommError, Rank, Result, World};

pub(crate) use shared::Peers;
pub use shared::SharedTensor;

/// The way that a copy took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerPath {
    /// Within one rank.
    SameRank,
    /// Between GPUs of one process, in this way.
    SameProcess(cuda::peer::PeerPath),
    /// Out of memory of the other process, mapped by CUDA IPC.
    Mapped,
    /// By NCCL's send and receive.
    Nccl,
    /// Through the hosts' memory.
    Host,
}

impl fmt::Display for PeerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerPath::SameRank => f.pad("same rank"),
            PeerPath::SameProcess(path) => write!(f, "same process, {path}"),
            PeerPath::Mapped => f.pad("mapped by CUDA IPC"),
            PeerPath::Nccl => f.pad("NCCL"),
            PeerPath::Host => f.pad("host memory"),
        }
    }
}

/// Copies `source` of rank `from` to `target` of rank `to`. Collective: all ranks call it, those two with their tensors.
///
/// - `source`, `target`: one length and dtype; any devices
///
/// To be used where a copy now and then matters little: the ranks exchange what they have by the host's group, and it waits
/// until the copy is done, but for NCCL's and that within a process, which are ordered by the compute streams.
///
/// # Errors
/// The same on every rank: [`CommError::NoSuchRank`]; [`CommError::PeerMismatch`] where a tensor is missing or they don't fit.
/// Else that of the copy on the rank on which it failed, and [`CommError::FailedElsewhere`] on the others.
pub fn copy(
    world: &World,
    from: Rank,
    to: Rank,
    source: Option<TensorRef<'_>>,
    target: Option<TensorMut<'_>>,
) -> Result<PeerPath> {
    let world_size = world.world_size();
    if let Some(rank) = [from.0, to.0].into_iter().find(|&rank| rank >= world_size) {
        return Err(CommError::NoSuchRank { op: "peer::copy", rank, world_size });
    }
    let source = source.filter(|_| world.rank() == from);
    let target = target.filter(|_| world.rank() == to);
    let offer = Offer::of(world, source, target.as_ref().map(TensorMut::as_ref));
    let offer = offer.map(|offer| ((), offer.encode()));
    let ((), offers) = world.all_or_none("peer::copy", offer)?;
    let (sender, receiver) = (Offer::decode(&offers[from.0]), Offer::decode(&offers[to.0]));
    let (Some(sent), Some(received)) = (sender.source, receiver.target) else {
        return Err(mismatch(from, to, &sender, &receiver));
    };
    if (sent.len, sent.dtype) != (received.len, received.dtype) {
        return Err(mismatch(from, to, &sender, &receiver));
    }
    let path = choose(world, from, to, &sender, &receiver)?;
    let copied = match path {
        PeerPath::SameRank => within_rank(source, target),
        PeerPath::SameProcess(_) => within_process(sent, target),
        PeerPath::Mapped => out_of_mapping(world, from, &sender, target),
        PeerPath::Nccl => by_nccl(world, from, to, source, target),
        PeerPath::Host => {
            by_host(world, from, source, target, sent)?;
            return Ok(path);
        }
    };
    world.all_or_none("peer::copy", copied.map(|()| ((), Vec::new())))?;
    Ok(path)
}

/// One end of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    len: usize,
    dtype: DType,
    device: Device,
    /// On a GPU.
    address: u64,
}

/// What a rank brings to a copy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Offer {
    source: Option<End>,
    target: Option<End>,
    host: String,
    /// How to map the source, and where in the mapping it begins.
    export: Option<(ipc::Handle, u64)>,
}

impl Offer {
    fn of(world: &World, source: Option<TensorRef<'_>>, target: Option<TensorRef<'_>>) -> Result<Self> {
        let end = |view: TensorRef<'_>| {
            let address = view.gpu().map(|_| view.cuda().map(|slice| slice.ptr())).transpose()?.unwrap_or(0);
            Ok::<_, CommError>(End { len: view.numel(), dtype: view.dtype(), device: view.device(), address })
        };
        let mut offer = Offer { host: world.hostname().to_owned(), ..Offer::default() };
        offer.source = source.map(end).transpose()?;
        offer.target = target.map(end).transpose()?;
        if let Some(view) = source.filter(|view| view.gpu().is_some() && shares_no_process(world)) {
            offer.export = world.peers.export(view.cuda()?)?;
        }
        Ok(offer)
    }

    /// Words of text, none of which holds a line break.
    fn encode(&self) -> Vec<u8> {
        let end = |end: Option<End>| match end {
            Some(End { len, dtype, device, address }) => format!("{len} {dtype} {device} {address}"),
            None => String::new(),
        };
        let export = self.export.as_ref().map_or_else(String::new, |(handle, offset)| {
            let hex: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{hex} {offset}")
        });
        format!("{}\n{}\n{}\n{export}", end(self.source), end(self.target), self.host).into_bytes()
    }

    fn decode(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.split('\n');
        let mut next = || lines.next().unwrap_or_default();
        let (source, target) = (End::parse(next()), End::parse(next()));
        Offer { source, target, host: next().to_owned(), export: parse_export(next()) }
    }
}

impl End {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let len = words.next()?.parse().ok()?;
        let name = words.next()?;
        let dtype = DType::ALL.into_iter().find(|dtype| dtype.to_string() == name)?;
        Some(End { len, dtype, device: words.next()?.parse().ok()?, address: words.next()?.parse().ok()? })
    }
}

fn parse_export(line: &str) -> Option<(ipc::Handle, u64)> {
    let (hex, offset) = line.split_once(' ')?;
    let mut handle = [0; size_of::<ipc::Handle>()];
    if hex.len() != 2 * handle.len() {
        return None;
    }
    for (index, byte) in handle.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some((handle, offset.parse().ok()?))
}

fn mismatch(from: Rank, to: Rank, sender: &Offer, receiver: &Offer) -> CommError {
    let text =
        |end: Option<End>| end.map_or_else(|| "none".into(), |end| format!("{} {}", end.len, end.dtype));
    let (source, target) = (text(sender.source), text(receiver.target));
    CommError::PeerMismatch { from: from.0, to: to.0, source_is: source, target_is: target }
}

/// Whether ranks are processes of their own.
fn shares_no_process(world: &World) -> bool {
    !matches!(world.group(), Group::Threads(_) | Group::Single(_))
}

/// The way that all ranks agree on.
fn choose(world: &World, from: Rank, to: Rank, sender: &Offer, receiver: &Offer) -> Result<PeerPath> {
    if from == to {
        return Ok(PeerPath::SameRank);
    }
    let device = |end: Option<End>| end.map_or(Device::Cpu, |end| end.device);
    let (Device::Cuda(source), Device::Cuda(target)) = (device(sender.source), device(receiver.target))
    else {
        return Ok(PeerPath::Host);
    };
    if !shares_no_process(world) {
        let gpu = |index| cuda::Gpu::get(index);
        return Ok(PeerPath::SameProcess(cuda::peer::path(gpu(source)?, gpu(target)?)?));
    }
    if let Some((handle, _)) = &sender.export
        && sender.host == receiver.host
        && world.peers.can_map(world, from, to, handle, target)?
    {
        return Ok(PeerPath::Mapped);
    }
    let is_joined = matches!(world.tensor_group(), Group::Nccl(_));
    Ok(if is_joined { PeerPath::Nccl } else { PeerPath::Host })
}

fn within_rank(source: Option<TensorRef<'_>>, target: Option<TensorMut<'_>>) -> Result<()> {
    let (Some(source), Some(target)) = (source, target) else { return Ok(()) };
    let shape = target.shape();
    ops::copy(source.reshape(shape.dims())?, target)?;
    Ok(())
}

/// The receiving thread copies out of the sending one's tensor, which is borrowed until all ranks know that it was done.
fn within_process(sent: End, target: Option<TensorMut<'_>>) -> Result<()> {
    let (Some(target), Device::Cuda(index)) = (target, sent.device) else { return Ok(()) };
    // SAFETY: rank `from`, a thread of this process, lends its tensor to this call, which it does not leave before this rank
    // has told that the copy was put into the streams; both compute streams are ordered around it.
    let source = unsafe { CudaSlice::from_raw(cuda::Gpu::get(index)?, sent.address, sent.len, sent.dtype) };
    cuda::peer::copy(source, target.into_cuda()?)?;
    Ok(())
}

fn out_of_mapping(world: &World, from: Rank, sender: &Offer, target: Option<TensorMut<'_>>) -> Result<()> {
    let (Some(target), Some(sent), Some((handle, offset))) = (target, sender.source, &sender.export) else {
        return Ok(());
    };
    let target = target.into_cuda()?;
    let gpu = target.gpu();
    let address = world.peers.mapping(from, handle, gpu)? + offset;
    // SAFETY: the sender's tensor begins there in the mapping, which stays until the world ends; it is lent until this rank
    // has told that the copy is done. For this device it is memory like its own.
    let source = unsafe { CudaSlice::from_raw(gpu, address, sent.len, sent.dtype) };
    cuda::peer::copy(source, target)?;
    gpu.compute().synchronize()?;
    Ok(())
}

fn by_nccl(
    world: &World,
    from: Rank,
    to: Rank,
    source: Option<TensorRef<'_>>,
    target: Option<TensorMut<'_>>,
) -> Result<()> {
    if let Some(source) = source {
        world.tensor_group().send(to, source)?;
    }
    if let Some(target) = target {
        world.tensor_group().receive(from, target)?;
    }
    Ok(())
}

/// A broadcast, from and to whatever device.
fn by_host(
    world: &World,
    from: Rank,
    source: Option<TensorRef<'_>>,
    target: Option<TensorMut<'_>>,
    sent: End,
) -> Result<()> {
    const DOING: &str = "peer::copy";
    let staged = || -> Result<Tensor> {
        let mut staged = Tensor::zeros(&[sent.len], sent.dtype, Device::Cpu)?;
        if let Some(source) = source {
            ops::copy(source.reshape(&[sent.len])?, staged.view_mut())?;
        }
        Ok(staged)
    };
    let (mut staged, _) = world.all_or_none(DOING, staged().map(|staged| (staged, Vec::new())))?;
    world.group().broadcast(from, staged.view_mut())?;
    let arrived = target.map_or(Ok(()), |target| {
        let shape = target.shape();
        ops::copy(staged.view().reshape(shape.dims())?, target)
    });
    world.all_or_none(DOING, arrived.map(|()| ((), Vec::new())).map_err(CommError::from))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_survive_the_way() {
        let end = End { len: 5, dtype: DType::BF16, device: Device::Cuda(3), address: u64::MAX };
        let handle = std::array::from_fn(|i| i as u8 * 4);
        let offer = Offer {
            source: Some(end),
            target: Some(End { device: Device::Cpu, address: 0, ..end }),
            host: "node7".into(),
            export: Some((handle, 1 << 40)),
        };
        assert_eq!(Offer::decode(&offer.encode()), offer);
        let empty = Offer { host: "node7".into(), ..Offer::default() };
        assert_eq!(Offer::decode(&empty.encode()), empty);
    }
}

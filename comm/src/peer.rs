//! Copies of a tensor from one rank to another, by the shortest path available.
//!
//! - Between GPUs of one process: directly, by the driver ([`ddp_kernels::cuda::peer`]).
//! - Between GPUs of two processes on one host: the receiving rank maps the sender's memory (CUDA IPC) and copies out of it. Only
//!   the memory of a [`SharedTensor`] can be mapped.
//! - Between other GPUs: by NCCL, if the ranks' devices are joined.
//! - Otherwise through host memory, by the host's group.
//!
//! ```
//! use ddp_comm::{Rank, peer, threads};
//! use ddp_kernels::{DType, Device, Tensor};
//!
//! let received = threads::run(2, |world| -> Result<Vec<f32>, ddp_comm::CommError> {
//!     let (sender, receiver) = (Rank(0), Rank(1));
//!     let x = Tensor::full(&[4], 7.0, DType::F32, Device::Cpu)?;
//!     let mut y = Tensor::zeros(&[4], DType::F32, Device::Cpu)?;
//!     peer::copy(&world, sender, receiver, Some(x.view()), Some(y.view_mut()))?;
//!     Ok(y.to_vec()?)
//! });
//! assert_eq!(received[1].as_ref().unwrap(), &[7.0; 4]);
//! ```

use std::fmt;

use ddp_kernels::cuda::{self, CudaSlice};
use ddp_kernels::{DType, Device, Tensor, TensorMut, TensorRef, ops};

use crate::shared_tensor::{Export, Handle};
use crate::{CommError, Group, Rank, Result, SharedTensor, World};

/// The path that a copy took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerPath {
    /// Within one rank.
    SameRank,
    /// Between GPUs of one process, by this path of the driver.
    SameProcess(cuda::peer::PeerPath),
    /// Out of the other process's memory, mapped by CUDA IPC.
    Mapped,
    /// By NCCL's send and receive.
    Nccl,
    /// Through host memory.
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

impl World {
    /// Allocates zeros in GPU memory that the other ranks of this host can map. Waits for the device.
    ///
    /// # Errors
    /// [`CommError::Kernel`]: the device is not available or a CPU, its memory is exhausted, or the shape is too large.
    ///
    /// Source: CUDA driver API, "Memory management", `cuIpcGetMemHandle`.
    pub fn shared_zeros(&self, dims: &[usize], dtype: DType, device: Device) -> Result<SharedTensor<'_>> {
        self.peers.zeros(dims, dtype, device)
    }
}

/// The name of the operation in errors.
const OP: &str = "peer::copy";

/// Copies `source` of rank `from` to `target` of rank `to`. Collective: all ranks call it, those two with their tensors.
///
/// - `source`, `target`: the same length and dtype; any devices
///
/// Not for the inner loop: the ranks exchange messages over the host's group. Waits until the copy is done, except by NCCL and
/// within one process, where the compute streams are ordered around the copy.
///
/// # Errors
/// On every rank [`CommError::NoSuchRank`], or [`CommError::PeerMismatch`] if a tensor is missing or they differ in length or
/// type. If the copy fails on one rank, that rank returns its error and the others [`CommError::FailedElsewhere`].
pub fn copy(
    world: &World,
    from: Rank,
    to: Rank,
    source: Option<TensorRef<'_>>,
    target: Option<TensorMut<'_>>,
) -> Result<PeerPath> {
    let world_size = world.world_size();
    if let Some(rank) = [from.0, to.0].into_iter().find(|&rank| rank >= world_size) {
        return Err(CommError::NoSuchRank { op: OP, rank, world_size });
    }
    let source = source.filter(|_| world.rank() == from);
    let target = target.filter(|_| world.rank() == to);
    let offer = Offer::of(world, source, target.as_ref().map(TensorMut::as_ref));
    let (_, offers) = world.gather_all_or_none(OP, offer, Offer::encode)?;
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
    world.all_or_none(OP, copied)?;
    Ok(path)
}

/// One end of a copy: the source or the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Endpoint {
    len: usize,
    dtype: DType,
    device: Device,
    /// On a GPU; 0 in host memory.
    address: u64,
}

/// A rank's ends of a copy, as the ranks exchange them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Offer {
    source: Option<Endpoint>,
    target: Option<Endpoint>,
    host: String,
    /// Handle that maps the source.
    export: Option<Export>,
}

impl Offer {
    fn of(world: &World, source: Option<TensorRef<'_>>, target: Option<TensorRef<'_>>) -> Result<Self> {
        let end = |view: TensorRef<'_>| {
            let address = view.gpu().map(|_| view.cuda().map(|slice| slice.ptr())).transpose()?.unwrap_or(0);
            Ok::<_, CommError>(Endpoint {
                len: view.numel(),
                dtype: view.dtype(),
                device: view.device(),
                address,
            })
        };
        let mut offer = Offer { host: world.host_key(), ..Offer::default() };
        offer.source = source.map(end).transpose()?;
        offer.target = target.map(end).transpose()?;
        if let Some(view) = source.filter(|view| view.gpu().is_some() && are_processes(world)) {
            offer.export = world.peers.export(view.cuda()?)?;
        }
        Ok(offer)
    }

    /// Lines of text; no field contains a line break.
    fn encode(&self) -> Vec<u8> {
        let end = |end: Option<Endpoint>| match end {
            Some(Endpoint { len, dtype, device, address }) => format!("{len} {dtype} {device} {address}"),
            None => String::new(),
        };
        let export = self.export.as_ref().map_or_else(String::new, |Export { handle, offset_bytes }| {
            let hex: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{hex} {offset_bytes}")
        });
        format!("{}\n{}\n{}\n{export}", end(self.source), end(self.target), self.host).into_bytes()
    }

    fn decode(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.split('\n');
        let mut next = || lines.next().unwrap_or_default();
        let (source, target) = (Endpoint::parse(next()), Endpoint::parse(next()));
        Offer { source, target, host: next().to_owned(), export: parse_export(next()) }
    }
}

impl Endpoint {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let len = words.next()?.parse().ok()?;
        let name = words.next()?;
        let dtype = DType::ALL.into_iter().find(|dtype| dtype.to_string() == name)?;
        Some(Endpoint {
            len,
            dtype,
            device: words.next()?.parse().ok()?,
            address: words.next()?.parse().ok()?,
        })
    }
}

fn parse_export(line: &str) -> Option<Export> {
    let (hex, offset) = line.split_once(' ')?;
    let mut handle = [0; size_of::<Handle>()];
    if hex.len() != 2 * handle.len() {
        return None;
    }
    for (index, byte) in handle.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(Export { handle, offset_bytes: offset.parse().ok()? })
}

fn mismatch(from: Rank, to: Rank, sender: &Offer, receiver: &Offer) -> CommError {
    let text =
        |end: Option<Endpoint>| end.map_or_else(|| "none".into(), |end| format!("{} {}", end.len, end.dtype));
    let (source, target) = (text(sender.source), text(receiver.target));
    CommError::PeerMismatch { from: from.0, to: to.0, source_is: source, target_is: target }
}

/// Whether ranks are separate processes.
fn are_processes(world: &World) -> bool {
    matches!(world.group(), Group::Host(group) if !group.is_of_threads())
}

/// The path of a copy, the same on all ranks.
fn choose(world: &World, from: Rank, to: Rank, sender: &Offer, receiver: &Offer) -> Result<PeerPath> {
    if from == to {
        return Ok(PeerPath::SameRank);
    }
    let device = |end: Option<Endpoint>| end.map_or(Device::Cpu, |end| end.device);
    let (Device::Cuda(source), Device::Cuda(target)) = (device(sender.source), device(receiver.target))
    else {
        return Ok(PeerPath::Host);
    };
    if !are_processes(world) {
        let gpu = |index| cuda::Gpu::get(index);
        return Ok(PeerPath::SameProcess(cuda::peer::path(gpu(source)?, gpu(target)?)?));
    }
    if let Some(Export { handle, .. }) = &sender.export
        && sender.host == receiver.host
        && world.peers.can_map(world.group(), from, to, handle, target)?
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

/// Copies on the receiving thread, out of the sending thread's tensor, which stays borrowed until all ranks know of the copy.
fn within_process(sent: Endpoint, target: Option<TensorMut<'_>>) -> Result<()> {
    let (Some(target), Device::Cuda(index)) = (target, sent.device) else { return Ok(()) };
    // SAFETY: rank `from`, a thread of this process, lends its tensor to this call, and does not return before this rank has
    // reported that the copy was enqueued; both compute streams are ordered around it.
    let source = unsafe { CudaSlice::from_raw(cuda::Gpu::get(index)?, sent.address, sent.len, sent.dtype) };
    cuda::peer::copy(source, target.into_cuda()?)?;
    Ok(())
}

fn out_of_mapping(world: &World, from: Rank, sender: &Offer, target: Option<TensorMut<'_>>) -> Result<()> {
    let (Some(target), Some(sent), Some(export)) = (target, sender.source, &sender.export) else {
        return Ok(());
    };
    let target = target.into_cuda()?;
    let gpu = target.gpu();
    let address = world.peers.mapping(from, &export.handle, gpu)? + export.offset_bytes;
    // SAFETY: the sender's tensor begins there in the mapping, which stays until the world ends; the tensor is lent until this
    // rank has reported that the copy is done. This device accesses the memory like its own.
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

/// Copies by a broadcast through host memory, from and to any device.
fn by_host(
    world: &World,
    from: Rank,
    source: Option<TensorRef<'_>>,
    target: Option<TensorMut<'_>>,
    sent: Endpoint,
) -> Result<()> {
    let staged = || -> Result<Tensor> {
        let mut staged = Tensor::zeros(&[sent.len], sent.dtype, Device::Cpu)?;
        if let Some(source) = source {
            ops::copy(source.reshape(&[sent.len])?, staged.view_mut())?;
        }
        Ok(staged)
    };
    let mut staged = world.all_or_none(OP, staged())?;
    world.group().broadcast(from, staged.view_mut())?;
    let arrived = target.map_or(Ok(()), |target| {
        let shape = target.shape();
        ops::copy(staged.view().reshape(shape.dims())?, target)
    });
    world.all_or_none(OP, arrived.map_err(CommError::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_round_trip() {
        let end = Endpoint { len: 5, dtype: DType::BF16, device: Device::Cuda(3), address: u64::MAX };
        let handle = std::array::from_fn(|i| i as u8 * 4);
        let offer = Offer {
            source: Some(end),
            target: Some(Endpoint { device: Device::Cpu, address: 0, ..end }),
            host: "node7".into(),
            export: Some(Export { handle, offset_bytes: 1 << 40 }),
        };
        assert_eq!(Offer::decode(&offer.encode()), offer);
        let empty = Offer { host: "node7".into(), ..Offer::default() };
        assert_eq!(Offer::decode(&empty.encode()), empty);
    }
}

//! Exchange of layers between the ranks within a pass.

use ddp_comm::{CommError, Group, World};
use ddp_kernels::{DType, KernelError, MemoryUse, Tensor, TensorRef};

use crate::exchange::error::{ExchangeError, Result};
use crate::model::{AllRanks, Layer, Network};

/// Memory for what a layer gathers of all ranks.
#[derive(Debug)]
pub struct RankExchange {
    /// Elements per rank that the layer with the largest exchange needs; None where there is nothing to exchange.
    gathered: Option<Tensor>,
}

/// The exchange of one pass.
#[derive(Debug)]
struct Gather<'a> {
    group: &'a Group,
    gathered: &'a mut Tensor,
    /// The collective that failed.
    failure: Option<CommError>,
}

impl RankExchange {
    /// Allocates the memory that the layers of `model` need.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`].
    pub(crate) fn new(world: &World, model: &Network) -> Result<Self, KernelError> {
        let len = Self::len(model.exchanged_len(), world.world_size());
        let zeros = |len| Tensor::zeros_for(MemoryUse::Workspace, &[len], DType::F64, model.device());
        Ok(RankExchange { gathered: (len > 0).then(|| zeros(len)).transpose()? })
    }

    /// Elements (f64) of the memory for layers that exchange up to `exchanged_len` elements.
    pub fn len(exchanged_len: usize, world_size: usize) -> usize {
        if world_size > 1 { exchanged_len * world_size } else { 0 }
    }

    /// Bytes that a rank sends in the passes of `n_micro_batches` micro-batches, in rings.
    pub(crate) fn bytes_sent<'a>(
        layers: impl Iterator<Item = &'a dyn Layer>,
        world_size: usize,
        n_micro_batches: usize,
    ) -> u64 {
        let per_pass: usize = layers.map(Layer::exchanged_per_pass).sum();
        (per_pass * DType::F64.size_bytes() * (world_size - 1) * n_micro_batches) as u64
    }

    /// Runs a pass whose layers may exchange.
    ///
    /// # Errors
    /// The error of the pass; `ExchangeError::Comm` if an exchange failed.
    pub(crate) fn run<T>(
        &mut self,
        world: &World,
        pass: impl FnOnce(Option<&mut dyn AllRanks>) -> Result<T>,
    ) -> Result<T> {
        let Some(gathered) = &mut self.gathered else { return pass(None) };
        let mut gather = Gather { group: world.tensor_group(), gathered, failure: None };
        pass(Some(&mut gather)).map_err(|error| match (error, gather.failure.take()) {
            (ExchangeError::Kernel(KernelError::Exchange { .. }), Some(failure)) => failure.into(),
            (error, _) => error,
        })
    }
}

impl AllRanks for Gather<'_> {
    fn gather(&mut self, own: TensorRef<'_>) -> Result<TensorRef<'_>, KernelError> {
        let (n_ranks, len) = (self.group.world_size(), own.numel());
        if let Err(failure) = self.group.all_gather(own, self.gathered.view_mut().range(0, n_ranks * len)?) {
            self.failure = Some(failure);
            return Err(KernelError::Exchange { op: "gather of all ranks" });
        }
        self.gathered.view().range(0, n_ranks * len)?.reshape(&[n_ranks, len])
    }
}

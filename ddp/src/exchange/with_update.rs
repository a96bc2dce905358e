//! Reduction together with the update, block by block, on ranks that share memory: each rank reduces and updates its shard of a block,
//! and the ranks gather the block's weights while it is in cache ([`ShardPlan::reduce`], [`ShardPlan::gather`]). Backward reduces
//! the rest after the blocks, with the tail.

use ddp_comm::ReduceOp;
use ddp_kernels::{DType, Tensor};

use crate::exchange::bucket_plan::TAIL_ELEMENTS;
use crate::exchange::error::Result;
use crate::exchange::shard_plan::ShardPlan;
use crate::exchange::way::{BufferSize, Exchange, Pass, counted, ring_bytes};
use crate::model::LocalGradients;

/// Gradients whose blocks are reduced with the update.
#[derive(Debug)]
pub(crate) struct WithUpdate {
    pub(crate) shard_plan: ShardPlan,
    pub(crate) world_size: usize,
}

impl WithUpdate {
    /// Elements of the gradients and the tail.
    fn len(&self) -> usize {
        self.shard_plan.state_len() + TAIL_ELEMENTS
    }
}

impl Exchange for WithUpdate {
    fn describe(&self, _n_micro_batches: usize) -> String {
        let blocks = counted(self.shard_plan.blocks().len(), "block");
        format!(
            "reduce-scatter of gradients and all-gather of weights in {blocks}; each rank updates its shard"
        )
    }

    /// The bytes of gathered weights count with the gradients: together they are those of an all-reduce.
    fn bytes_sent(&self, _n_micro_batches: usize) -> u64 {
        2 * ring_bytes(self.world_size, DType::F32.size_bytes() * self.len())
    }

    fn buffers(&self) -> Vec<BufferSize> {
        vec![BufferSize { len: self.len(), dtype: DType::F32, is_exchanged: true }]
    }

    fn backward(&mut self, memory: &mut [Tensor], pass: Pass<'_>) -> Result<()> {
        let (world, reduces) = (pass.world, pass.completes_step());
        let (grads, writes) = (&mut memory[0], self.writes(pass.inputs.micro_step.index));
        pass.run(writes, &mut LocalGradients(grads.view_mut()))?;
        if reduces {
            let (_, rest) = grads.view_mut().split_at(self.shard_plan.rest().flat.start)?;
            world.group().all_reduce(ReduceOp::Sum, rest)?;
        }
        Ok(())
    }
}

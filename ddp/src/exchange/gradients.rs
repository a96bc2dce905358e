//! Gradients of a step: the memory of their exchange, and the tail with the step's sums of losses, weights and votes.

use ddp_comm::World;
use ddp_kernels::ops::{self, Pattern, STEP_SCALARS_EXTRA, SumsOutput};
use ddp_kernels::{DType, MemoryUse, Tensor, TensorRef, memory};

use crate::exchange::bucket_plan::TAIL_ELEMENTS;
use crate::exchange::error::Result;
use crate::exchange::plan::ExchangePlan;
use crate::exchange::shard_plan::Shard;
use crate::exchange::way::{BackwardInputs, BufferSize, MicroStep, Pass, UpdateBucket};
use crate::model::{AllRanks, GradientWrites, Network};

/// Gradients of one rank and their exchange.
#[derive(Debug)]
pub(crate) struct Gradients {
    plan: ExchangePlan,
    memory: Vec<Tensor>,
    /// Zero, `[1]` f64: a rank's vote in all of its micro-shards but the first.
    no_vote: Tensor,
}

impl Gradients {
    /// Allocates zeroed gradients for `model`, to be exchanged as planned.
    pub(crate) fn new(world: &World, model: &Network, plan: ExchangePlan) -> Result<Self> {
        let memory = BufferSize::allocate(&plan.way.buffers(), world, model.device())?;
        let no_vote = Tensor::zeros_for(MemoryUse::Gradients, &[1], DType::F64, model.device())?;
        Ok(Gradients { plan, memory, no_vote })
    }

    /// Allocates the memory of the exchange again, with zeros, after the ranks' devices were joined anew. Collective.
    pub(crate) fn renew(&mut self, world: &World) -> Result<()> {
        let device = self.no_vote.device();
        self.memory.clear();
        memory::empty_cache_of(device)?;
        self.memory = BufferSize::allocate(&self.plan.way.buffers(), world, device)?;
        Ok(())
    }

    /// Sets the memory of the exchange to zero.
    pub(crate) fn clear(&mut self) -> Result<()> {
        let zeros = Pattern::Line { start: 0.0, step: 0.0 };
        Ok(self.memory.iter_mut().try_for_each(|buffer| ops::fill(buffer.view_mut(), zeros))?)
    }

    /// The memory of the exchange.
    pub(crate) fn memory_mut(&mut self) -> &mut [Tensor] {
        &mut self.memory
    }

    /// The plan of the exchange.
    pub(crate) fn plan(&self) -> &ExchangePlan {
        &self.plan
    }

    /// Destination of the sums of a micro-batch, with this rank's vote, which is among the step's `scalars`.
    pub(crate) fn sums_output<'a>(
        &'a mut self,
        scalars: TensorRef<'a>,
        micro_step: MicroStep,
    ) -> Result<SumsOutput<'a>> {
        let Gradients { plan, memory, no_vote } = self;
        let vote = scalars.range(STEP_SCALARS_EXTRA, STEP_SCALARS_EXTRA + 1)?;
        let (accumulate, extra) = if plan.way.adds_tails() {
            // The sum of all tails must hold this rank's vote once.
            (false, Some(if micro_step.index == 0 { vote } else { no_vote.view() }))
        } else {
            (micro_step.index > 0, micro_step.is_last.then_some(vote))
        };
        let sums = plan.way.with_tail(memory).view_mut();
        let len = sums.numel();
        Ok(SumsOutput { tail: sums.range(len - TAIL_ELEMENTS, len)?, accumulate, extra })
    }

    /// The step's sums.
    pub(crate) fn tail(&self) -> Result<TensorRef<'_>> {
        let sums = self.plan.way.with_sums(&self.memory).view();
        let len = sums.numel();
        Ok(sums.range(len - TAIL_ELEMENTS, len)?)
    }

    /// Reduced gradients of a shard, in the format in which they were exchanged.
    pub(crate) fn shard(&self, shard: &Shard) -> Result<TensorRef<'_>> {
        self.plan.way.reduced(&self.memory, shard)
    }

    /// Passes the reduced gradients of each rank's shards on to the rank that holds a copy of their state. Collective.
    pub(crate) fn pass_on(&mut self, world: &World) -> Result<()> {
        self.plan.way.pass_on(&mut self.memory, world, &self.plan.shard_plan)
    }

    /// All gradients and the tail, where they are reduced with the update.
    pub(crate) fn flat_mut(&mut self) -> &mut Tensor {
        &mut self.memory[0]
    }

    /// Computes the gradients of a micro-batch and adds them to those of earlier micro-batches. After the step's last one they are
    /// reduced over the ranks, except for what is reduced with the update.
    ///
    /// - `squares`: receives the sum of squares of this rank's shard, if the exchange can sum it
    /// - `ranks`: for layers that exchange within the pass
    /// - `updates`: receives the buckets once they are reduced, where the exchange passes them on
    pub(crate) fn backward(
        &mut self,
        world: &World,
        model: &mut Network,
        inputs: BackwardInputs<'_>,
        squares: Option<&mut Tensor>,
        ranks: Option<&mut dyn AllRanks>,
        updates: Option<&mut dyn UpdateBucket>,
    ) -> Result<()> {
        let squares = squares.filter(|_| self.plan.way.sums_squares(model.device()));
        let ranks = ranks.map(|ranks| ranks as &mut dyn AllRanks);
        let updates = updates.map(|updates| updates as &mut dyn UpdateBucket);
        let pass = Pass { world, model, inputs, squares, ranks, updates, is_rehearsal: false };
        self.plan.way.backward(&mut self.memory, pass)
    }

    /// Computes the gradients of a micro-batch as [`Gradients::backward`] does, without any exchange between the ranks. What it
    /// writes, the next step overwrites.
    pub(crate) fn rehearse_backward(
        &mut self,
        world: &World,
        model: &mut Network,
        inputs: BackwardInputs<'_>,
    ) -> Result<()> {
        let (squares, ranks, updates) = (None, None, None);
        let pass = Pass { world, model, inputs, squares, ranks, updates, is_rehearsal: true };
        self.plan.way.backward(&mut self.memory, pass)
    }

    /// Whether a step can have several micro-batches.
    pub(crate) fn can_accumulate(&self) -> bool {
        self.plan.way.writes(0) != GradientWrites::Rounded
    }

    /// Completes the sum of squares of the reduced gradients of all ranks in `sum`, `[1]` f64, which the step's last
    /// [`Gradients::backward`] was given.
    pub(crate) fn sum_of_squares(&self, world: &World, sum: &mut Tensor) -> Result<()> {
        self.plan.way.sum_of_squares(&self.memory, world, &self.plan.shard_plan, sum)
    }
}

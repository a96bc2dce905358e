//! A trial of the collectives of a step before the first one: in the buffers, ranges and formats of training, with numbers whose sums
//! are known; at once, and as CUDA graphs that are replayed with other numbers.
//!
//! NCCL chooses other ways for registered buffers (inside a switch, or in place at a peer), by their sizes and in graphs, which depend on
//! the machine, its driver and its settings. And it may do something at a collective that a capture forbids, for example in a plugin
//! for a network. A job that trains on wrong sums is worse than one that copies.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use ddp_comm::{Rank, ReduceOp, Reporter, World};
use ddp_kernels::cuda::{Event, Gpu, Graph};
use ddp_kernels::hint::with_hint;
use ddp_kernels::ops::{self, KnownNumbers, Pattern};
use ddp_kernels::{DType, KernelError, MemoryUse, Tensor, TensorMut, TensorRef, memory};

use crate::exchange::error::{ExchangeError, Result};
use crate::exchange::gradients::Gradients;
use crate::exchange::shard_plan::{Shard, ShardPlan};
use crate::exchange::way::{BufferReduction, Reduction};
use crate::exchange::weight_gather::ShortGather;
use crate::model::{Network, WeightsMut};

/// Elements of each collective that a step has not, over all ranks.
const RARE_ELEMENTS: usize = 1 << 18;
/// Replays of each graph.
const N_REPLAYS: u32 = 2;

/// The collectives that failed, with the reason of one rank, the same on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TrialFailure {
    /// Collectives that were run at once.
    Eager(String),
    /// The capture of a graph.
    Capture(String),
    /// The replay of a graph, or its results.
    Replay(String),
}

/// The collectives of a step.
pub(crate) struct ExchangeTrial<'a> {
    pub(crate) world: &'a World,
    pub(crate) gpu: &'static Gpu,
    pub(crate) grads: &'a mut Gradients,
    pub(crate) model: &'a mut Network,
    pub(crate) shard_plan: &'a ShardPlan,
    pub(crate) short_gather: Option<&'a ShortGather>,
    /// Operands of [`Part::Rare`], one after the other; made by the trial.
    pub(crate) rare: Vec<Tensor>,
}

/// Collectives in ranges of buffers that do not overlap: they are started one after the other, and then compared.
enum Part {
    /// For a step that exchanges nothing that is registered.
    Barrier,
    Reductions(Vec<BufferReduction>),
    /// The gather of weights after an update.
    Gather,
    /// An all-gather, an all-reduce and a broadcast, as evaluations, checks and checkpoints have them. From 2.22 on NCCL connects the ranks
    /// for an algorithm at its first use, and takes memory for it: better here than after hours, on a GPU that is full.
    Rare,
}

impl Part {
    /// The parts of a step that reduces `reductions`.
    fn all(reductions: Vec<BufferReduction>, gathers: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut ends: HashMap<usize, usize> = HashMap::new();
        for reduction in reductions {
            // Ranges of a buffer come in order, or the buffer is used again.
            let end = ends.insert(reduction.buffer, reduction.range.end);
            match parts.last_mut() {
                Some(Part::Reductions(part)) if end.is_none_or(|end| end <= reduction.range.start) => {
                    part.push(reduction);
                }
                _ => {
                    ends = HashMap::from([(reduction.buffer, reduction.range.end)]);
                    parts.push(Part::Reductions(vec![reduction]));
                }
            }
        }
        parts.extend(gathers.then_some(Part::Gather));
        if parts.is_empty() {
            parts.push(Part::Barrier);
        }
        parts.push(Part::Rare);
        parts
    }

    fn name(&self) -> &'static str {
        match self {
            Part::Barrier => "a barrier",
            Part::Reductions(_) => "the reduction of gradients",
            Part::Gather => "the gather of weights",
            Part::Rare => "a collective of evaluations and checkpoints",
        }
    }
}

impl ExchangeTrial<'_> {
    /// Runs the trial; as graphs only with `graphs`. Afterwards each rank has its own shards of the master weights, where these are
    /// sharded. Collective.
    ///
    /// # Errors
    /// [`ExchangeError::Kernel`] if the device fails; [`ExchangeError::Comm`] if the ranks cannot agree.
    pub(crate) fn run(&mut self, graphs: bool) -> Result<Option<TrialFailure>> {
        let parts = Part::all(self.grads.plan().way().reductions(), self.shard_plan.is_sharded());
        let allocated = self.keep_own_shards().and_then(|kept| {
            let n = parts.len();
            let n_ranks = self.world.world_size();
            let len = RARE_ELEMENTS.next_multiple_of(n_ranks);
            let operand = || Tensor::zeros_for(MemoryUse::Workspace, &[len], DType::F32, self.gpu.device());
            self.rare = vec![operand()?, operand()?, operand()?];
            Ok((kept, Tensor::zeros_for(MemoryUse::Workspace, &[n], DType::I64, self.gpu.device())?))
        });
        let (kept, wrong) = match (self.first_failure(allocated.as_ref().err().map(cause))?, allocated) {
            (None, allocated) => allocated?,
            (Some(reason), _) => return Ok(Some(TrialFailure::Eager(reason))),
        };
        let failure = self.try_parts(&parts, graphs, wrong)?;
        self.restore_own_shards(&kept)?;
        drop(kept);
        self.rare.clear();
        if failure.is_none() {
            // The pool would keep the memory of the trial.
            memory::empty_cache_of(self.gpu.device())?;
        }
        Ok(failure)
    }

    fn try_parts(&mut self, parts: &[Part], graphs: bool, mut wrong: Tensor) -> Result<Option<TrialFailure>> {
        let mut eager = || {
            for (index, part) in parts.iter().enumerate() {
                self.fill(part, 0)?;
                self.enqueue(part)?;
                self.count_wrong(part, 0, wrong.view_mut().range(index, index + 1)?)?;
            }
            Ok(())
        };
        let eager = eager();
        if let Some(reason) = self.failure_of(eager, parts, &wrong)? {
            return Ok(Some(TrialFailure::Eager(reason)));
        }
        if !graphs {
            return Ok(None);
        }
        let capture = |part: &Part| Graph::capture(self.gpu, || self.enqueue(part));
        let captured: Result<Vec<Graph>> = parts.iter().map(capture).collect();
        let mut captured = match (self.first_failure(captured.as_ref().err().map(cause))?, captured) {
            (None, captured) => captured?,
            (Some(reason), _) => return Ok(Some(TrialFailure::Capture(reason))),
        };
        let mut replay = || {
            for round in 1..=N_REPLAYS {
                for (index, (part, graph)) in parts.iter().zip(&mut captured).enumerate() {
                    self.fill(part, round)?;
                    graph.launch()?;
                    self.count_wrong(part, round, wrong.view_mut().range(index, index + 1)?)?;
                }
            }
            Ok(())
        };
        let replayed = replay();
        let failure = self.failure_of(replayed, parts, &wrong)?;
        // Before the communicator may be closed: NCCL up to 2.21 waits for graphs that hold its collectives.
        drop(captured);
        Ok(failure.map(TrialFailure::Replay))
    }

    /// Waits for the device, at most for [`World::trial_timeout`]. Returns the first rank's reason why work failed that was `enqueued`, or what it
    /// gave wrong. Collective.
    fn failure_of(&self, enqueued: Result<()>, parts: &[Part], wrong: &Tensor) -> Result<Option<String>> {
        let waited = enqueued.and_then(|()| {
            let done = Event::untimed(self.gpu)?;
            done.record(self.gpu.compute())?;
            let limit = self.world.trial_timeout();
            let start = Instant::now();
            self.world.tensor_group().wait_until(|| match done.is_done() {
                // The error aborts the communicator, which ends its work.
                Ok(false) if start.elapsed() > limit => Err(KernelError::Cuda {
                    device: self.gpu.device(),
                    call: "the trial of collectives",
                    code: "a hang".to_owned(),
                    text: format!("not done after {:.1} s", limit.as_secs_f64()),
                }),
                other => other,
            })?;
            Ok(wrong.to_vec::<i64>()?)
        });
        let own = match &waited {
            Err(error) => Some(cause(error)),
            Ok(counts) => parts
                .iter()
                .zip(counts)
                .find(|(_, n)| **n > 0)
                .map(|(part, n)| (format!("{} gave {n} wrong numbers", part.name()), Reporter::ThisRank)),
        };
        self.first_failure(own)
    }

    fn first_failure(&self, own: Option<(String, Reporter)>) -> Result<Option<String>> {
        Ok(self.world.first_cause(own)?)
    }

    /// A copy of this rank's shards of the master weights, if they are sharded.
    fn keep_own_shards(&mut self) -> Result<Option<Tensor>> {
        if !self.shard_plan.is_sharded() {
            return Ok(None);
        }
        let (len, device) = (self.shard_plan.state_len(), self.gpu.device());
        let mut kept = Tensor::zeros_for(MemoryUse::Workspace, &[len], DType::F32, device)?;
        for Shard { flat, state_start } in self.shard_plan.own_shards() {
            let own = self.model.own_weights().view().range(flat.start, flat.end)?;
            ops::copy(own, kept.view_mut().range(state_start, state_start + flat.len())?)?;
        }
        Ok(Some(kept))
    }

    fn restore_own_shards(&mut self, kept: &Option<Tensor>) -> Result<()> {
        let Some(kept) = kept else { return Ok(()) };
        for Shard { flat, state_start } in self.shard_plan.own_shards() {
            let own = self.model.weights_mut().master.range(flat.start, flat.end)?;
            ops::copy(kept.view().range(state_start, state_start + flat.len())?, own)?;
        }
        Ok(())
    }

    /// The numbers of a round, whose elements are those of the buffers.
    fn known(&self, round: u32) -> KnownNumbers {
        KnownNumbers { first: 0, n_ranks: self.world.world_size(), round }
    }

    /// Fills the buffers of a part with what this rank brings.
    fn fill(&mut self, part: &Part, round: u32) -> Result<()> {
        let (known, rank) = (self.known(round), self.world.rank().0);
        match part {
            Part::Barrier => {}
            Part::Reductions(reductions) => {
                for BufferReduction { buffer, range, .. } in reductions {
                    let buffer = self.grads.memory_mut()[*buffer].view_mut().range(range.start, range.end)?;
                    known.from(range.start).fill(buffer, Some(rank))?;
                }
            }
            Part::Gather => {
                let WeightsMut { master, compute } = self.model.weights_mut();
                for mut weights in std::iter::once(master).chain(compute) {
                    ops::fill(weights.reborrow(), Pattern::Line { start: f64::NAN, step: 0.0 })?;
                    for Shard { flat, .. } in self.shard_plan.own_shards() {
                        let own = weights.reborrow().range(flat.start, flat.end)?;
                        known.from(flat.start).fill(own, None)?;
                    }
                }
            }
            Part::Rare => {
                let n_ranks = self.world.world_size();
                let [gathered, summed, sent] = &mut self.rare[..] else { return Ok(()) };
                for operand in [&mut *gathered, &mut *sent] {
                    ops::fill(operand.view_mut(), Pattern::Line { start: f64::NAN, step: 0.0 })?;
                }
                let shard = gathered.numel() / n_ranks;
                let own = gathered.view_mut().range(rank * shard, (rank + 1) * shard)?;
                known.from(rank * shard).fill(own, None)?;
                known.fill(summed.view_mut(), Some(rank))?;
                if rank == 0 {
                    known.fill(sent.view_mut(), None)?;
                }
            }
        }
        Ok(())
    }

    /// Adds to `wrong` what is wrong after the collectives of a part.
    fn count_wrong(&mut self, part: &Part, round: u32, mut wrong: TensorMut<'_>) -> Result<()> {
        let (known, rank, n_ranks) = (self.known(round), self.world.rank().0, self.world.world_size());
        let mut count = |all: TensorRef<'_>, range: &Range<usize>| -> Result<()> {
            let got = all.range(range.start, range.end)?;
            Ok(known.from(range.start).count_wrong(got, wrong.reborrow())?)
        };
        match part {
            Part::Barrier => {}
            Part::Reductions(reductions) => {
                for BufferReduction { buffer, range, reduction } in reductions {
                    let shard = range.len() / n_ranks;
                    let own = range.start + rank * shard..range.start + (rank + 1) * shard;
                    let got = if *reduction == Reduction::ToAll { range } else { &own };
                    count(self.grads.memory_mut()[*buffer].view(), got)?;
                }
            }
            Part::Gather => {
                let weights = self.model.weights_mut();
                for (index, block) in self.shard_plan.blocks().iter().enumerate() {
                    let Some(short_gather) = self.short_gather else {
                        count(weights.master.as_ref(), block)?;
                        continue;
                    };
                    weights.compute.iter().try_for_each(|compute| count(compute.as_ref(), block))?;
                    let mut reads = short_gather.master_reads(index);
                    reads.try_for_each(|read| count(weights.master.as_ref(), read))?;
                }
            }
            Part::Rare => {
                self.rare.iter().try_for_each(|operand| count(operand.view(), &(0..operand.numel())))?;
            }
        }
        Ok(())
    }

    /// Enqueues the collectives of a part, as a step does.
    fn enqueue(&mut self, part: &Part) -> Result<()> {
        let group = self.world.tensor_group();
        match part {
            Part::Barrier => Ok(group.barrier()?),
            Part::Reductions(reductions) => group.scope(|scope| {
                let mut rest: Vec<_> =
                    self.grads.memory_mut().iter_mut().map(|buffer| Some((0, buffer.view_mut()))).collect();
                for BufferReduction { buffer, range, reduction } in reductions {
                    let Some((start, after)) = rest[*buffer].take() else { continue };
                    let (_, after) = after.split_at(range.start - start)?;
                    let (bucket, after) = after.split_at(range.len())?;
                    rest[*buffer] = Some((range.end, after));
                    match reduction {
                        Reduction::ToAll => scope.all_reduce(ReduceOp::Sum, bucket)?,
                        Reduction::ToOwners => scope.reduce_scatter_in_place(ReduceOp::Sum, bucket)?,
                    };
                }
                Ok(())
            }),
            Part::Gather => group.scope(|scope| {
                let mut weights = self.model.weights_mut();
                for (index, block) in self.shard_plan.blocks().iter().enumerate() {
                    let (of_block, after) = weights.split_at(block.len())?;
                    weights = after;
                    match self.short_gather {
                        Some(short_gather) => short_gather.start(scope, block, index, of_block)?,
                        None => {
                            scope.all_gather_in_place(of_block.master)?;
                        }
                    }
                }
                Ok(())
            }),
            Part::Rare => {
                let [gathered, summed, sent] = &mut self.rare[..] else { return Ok(()) };
                group.scope(|scope| {
                    scope.all_gather_in_place(gathered.view_mut())?;
                    scope.all_reduce(ReduceOp::Sum, summed.view_mut())?;
                    Ok::<_, ExchangeError>(())
                })?;
                Ok(group.broadcast(Rank(0), sent.view_mut())?)
            }
        }
    }
}

/// The error's text, and the rank that reports it.
fn cause(error: &ExchangeError) -> (String, Reporter) {
    let reporter = match error {
        ExchangeError::Comm(error) => error.reporter(),
        _ => Reporter::ThisRank,
    };
    (with_hint(error), reporter)
}

//! Comparison of the replicas: weights and state that must be equal on all ranks are compared by fingerprints, one per parameter
//! and tensor, and repaired from a majority, every `train.replica_check_steps` steps.
//!
//! All ranks hold the weights. They hold the same optimizer state of what each of them updates: of all weights, or with ZeRO, and
//! where ranks that share memory divide the update, of nothing or of the rest of the division. With copies of shards, two ranks hold the
//! state of each shard.
//!
//! ```
//! use ddp::exchange::replica_check::ReplicaDifference;
//!
//! let parameter = "layers.0.weight".to_owned();
//! let difference = ReplicaDifference { tensor: "weights", parameter, groups: vec![vec![0, 2], vec![1]] };
//! assert_eq!(difference.majority(), Some(0));
//! assert_eq!(difference.to_string(), "weights of layers.0.weight on rank 1 (not as on ranks 0, 2)");
//! ```

use std::fmt;
use std::ops::Range;

use ddp_comm::{Rank, ReduceOp, World};
use ddp_kernels::cuda::Gpu;
use ddp_kernels::ops::fingerprint;
use ddp_kernels::{DType, Device, Download, MemoryUse, Tensor, TensorMut};

use crate::exchange::error::Result;
use crate::exchange::shard_plan::ShardPlan;
use crate::model::Network;
use crate::optim::optimizer::Optimizer;

/// Compares the replicas of a run. Memory is allocated once, 8 bytes per parameter and tensor.
#[derive(Debug)]
pub struct ReplicaCheck {
    pieces: Vec<Piece>,
    /// A fingerprint per piece, `[n]` i64, on the model's device.
    sums: Tensor,
    /// Brings them to the host, from a GPU.
    download: Option<Download>,
}

/// A range of a tensor that all ranks hold alike, or two of them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    of: Held,
    /// Elements of this rank's tensor; none on a rank that does not hold them.
    range: Option<Range<usize>>,
    tensor: &'static str,
    parameter: String,
}

/// A tensor on each rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Weights,
    /// By its index in the optimizer's state.
    State(usize),
}

/// A parameter of which the ranks hold different bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaDifference {
    /// The tensor: `weights`, or the name of a tensor of the optimizer's state.
    pub tensor: &'static str,
    /// Name of the parameter.
    pub parameter: String,
    /// Ranks by the bits that they hold: the largest group first, among equal ones that of the lowest rank.
    pub groups: Vec<Vec<usize>>,
}

/// All parameters of which the ranks hold different bits; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaDifferences(Vec<ReplicaDifference>);

impl ReplicaDifference {
    /// The lowest of the ranks that hold the same bits, if these are more than half of all.
    pub fn majority(&self) -> Option<usize> {
        let n_ranks: usize = self.groups.iter().map(Vec::len).sum();
        self.groups.first().filter(|group| 2 * group.len() > n_ranks).map(|group| group[0])
    }
}

impl fmt::Display for ReplicaDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = |groups: &[Vec<usize>]| {
            let mut ranks: Vec<usize> = groups.iter().flatten().copied().collect();
            ranks.sort_unstable();
            let names: Vec<_> = ranks.iter().map(ToString::to_string).collect();
            format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, names.join(", "))
        };
        match self.majority() {
            Some(_) => write!(
                f,
                "{} of {} on {} (not as on {})",
                self.tensor,
                self.parameter,
                ranks(&self.groups[1..]),
                ranks(&self.groups[..1])
            ),
            None => write!(
                f,
                "{} of {} between {}, without a majority",
                self.tensor,
                self.parameter,
                ranks(&self.groups)
            ),
        }
    }
}

impl ReplicaDifferences {
    /// The differences, in the order of the flat buffer, those of the weights first.
    pub fn all(&self) -> &[ReplicaDifference] {
        &self.0
    }

    /// Whether a majority of the ranks agrees on each parameter.
    pub fn have_majority(&self) -> bool {
        self.0.iter().all(|difference| difference.majority().is_some())
    }
}

impl fmt::Display for ReplicaDifferences {
    /// Names the first ones, one per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_NAMED: usize = 8;
        let lines: Vec<_> = self.0.iter().take(MAX_NAMED).map(ToString::to_string).collect();
        f.write_str(&lines.join("\n  "))?;
        match self.0.len().saturating_sub(MAX_NAMED) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

impl ReplicaCheck {
    /// Prepares the comparison of `model` and of the state of `optimizer`, divided as in `plan`.
    ///
    /// # Errors
    /// `ExchangeError::Kernel` if the device is out of memory.
    pub(crate) fn new(model: &Network, optimizer: &Optimizer, plan: &ShardPlan) -> Result<Self> {
        let pieces = pieces(model, optimizer, plan);
        let sums = Tensor::zeros_for(MemoryUse::Workspace, &[pieces.len()], DType::I64, model.device())?;
        let download = match model.device() {
            Device::Cpu => None,
            Device::Cuda(index) => Some(Download::new(Gpu::get(index)?, sums.size_bytes())?),
        };
        Ok(ReplicaCheck { pieces, sums, download })
    }

    /// Compares the ranks' replicas as the work enqueued so far leaves them; returns the same on all ranks. Collective; on a GPU
    /// the host waits for that work.
    ///
    /// # Errors
    /// `ExchangeError::Kernel`; `ExchangeError::Comm` if a collective fails.
    pub(crate) fn compare(
        &mut self,
        world: &World,
        model: &Network,
        optimizer: &Optimizer,
    ) -> Result<Option<ReplicaDifferences>> {
        let own = self.fingerprints(world, model, optimizer)?;
        // The complement's maximum is the complement of the minimum, so that one all-reduce gives both. A rank that does not hold a piece
        // changes neither.
        let of = |complement: i64| {
            let held = own.iter().zip(&self.pieces);
            held.map(move |(sum, piece)| if piece.range.is_some() { sum ^ complement } else { i64::MIN })
        };
        let mut extremes: Vec<i64> = of(0).chain(of(-1)).collect();
        let n_extremes = extremes.len();
        let view = TensorMut::from_slice(&mut extremes, &[n_extremes])?;
        world.group().all_reduce(ReduceOp::Max, view)?;
        let (max, min) = extremes.split_at(own.len());
        let differ: Vec<usize> = (0..own.len()).filter(|&piece| max[piece] != !min[piece]).collect();
        if differ.is_empty() {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        for &piece in &differ {
            bytes.extend(own[piece].to_le_bytes());
            bytes.push(u8::from(self.pieces[piece].range.is_some()));
        }
        let of_ranks = world.group().all_gather_bytes(&bytes)?;
        let difference = |(index, &piece): (usize, &usize)| {
            let Piece { tensor, parameter, .. } = self.pieces[piece].clone();
            let of_rank = |bytes: &'_ Vec<u8>| bytes[9 * index..9 * index + 9].to_vec();
            let sums: Vec<Vec<u8>> = of_ranks.iter().map(of_rank).collect();
            let mut groups = groups_of_equal(&sums);
            // Of ranks that hold it.
            groups.retain(|group| sums[group[0]][8] == 1);
            ReplicaDifference { tensor, parameter, groups }
        };
        Ok(Some(ReplicaDifferences(differ.iter().enumerate().map(difference).collect())))
    }

    /// Copies each parameter of `differences` from a rank of its majority to all ranks. Collective.
    ///
    /// # Errors
    /// `ExchangeError::Kernel`; `ExchangeError::Comm` if a collective fails.
    pub(crate) fn repair(
        &self,
        world: &World,
        model: &mut Network,
        optimizer: &mut Optimizer,
        differences: &ReplicaDifferences,
    ) -> Result<()> {
        for difference in differences.all() {
            let is_it =
                |piece: &&Piece| piece.tensor == difference.tensor && piece.parameter == difference.parameter;
            let (Some(piece), Some(from)) = (self.pieces.iter().find(is_it), difference.majority()) else {
                continue;
            };
            let tensor = match piece.of {
                Held::Weights => model.weights_mut().master,
                Held::State(index) => optimizer.state_mut().swap_remove(index).1.view_mut(),
            };
            // Two ranks that differ have no majority.
            let Some(range) = piece.range.clone() else { continue };
            let values = tensor.range(range.start, range.end)?;
            world.tensor_group().broadcast(Rank(from), values)?;
            if piece.of == Held::Weights {
                model.refresh_compute_weights(range)?;
            }
        }
        Ok(())
    }

    /// The fingerprints of this rank's pieces, on the host.
    fn fingerprints(&mut self, world: &World, model: &Network, optimizer: &Optimizer) -> Result<Vec<i64>> {
        let state = optimizer.state();
        for (index, piece) in self.pieces.iter().enumerate() {
            let tensor = match piece.of {
                Held::Weights => model.weights(),
                Held::State(index) => state[index].1,
            };
            let Some(range) = &piece.range else { continue };
            let values = tensor.view().range(range.start, range.end)?;
            fingerprint(values, self.sums.view_mut().range(index, index + 1)?)?;
        }
        let Some(download) = &mut self.download else { return Ok(self.sums.to_vec()?) };
        download.start(self.sums.view())?;
        world.tensor_group().wait_until(|| download.is_there())?;
        Ok(download.wait::<i64>()?.to_vec())
    }
}

/// Values that ranks hold alike, the weights first; the same list on all ranks.
fn pieces(model: &Network, optimizer: &Optimizer, plan: &ShardPlan) -> Vec<Piece> {
    let entries = model.layout().entries();
    let shared_state = if plan.is_sharded() { 0..0 } else { plan.rest().flat };
    let piece = |(of, tensor), range: Range<usize>, parameter: &str| Piece {
        of,
        range: Some(range),
        tensor,
        parameter: parameter.to_owned(),
    };
    let weights = entries.iter().map(|entry| piece((Held::Weights, "weights"), entry.range(), &entry.name));
    let names: Vec<_> = optimizer.state().into_iter().map(|(name, _)| name).enumerate().collect();
    let state = names.iter().flat_map(|&state| {
        let within =
            |range: Range<usize>| range.start.max(shared_state.start)..range.end.min(shared_state.end);
        let shared = entries.iter().map(move |entry| (within(entry.range()), entry));
        shared
            .filter(|(range, _)| !range.is_empty())
            .map(move |(range, entry)| piece((Held::State(state.0), state.1), range, &entry.name))
    });
    weights.chain(state).chain(copied_pieces(model, &names, plan)).collect()
}

/// The state of each rank's shards, which that rank and the holder of its copy have, by parameter and shard.
fn copied_pieces(model: &Network, names: &[(usize, &'static str)], plan: &ShardPlan) -> Vec<Piece> {
    let mut pieces = Vec::new();
    if plan.copy_of().is_none() {
        return pieces;
    }
    for block in plan.blocks() {
        let held = [Some(plan.own_shard(block)), plan.copied_shard(block)];
        for shard in plan.shards_of(block) {
            let held = held.iter().flatten().find(|held| held.flat == shard);
            for entry in model.layout().entries() {
                let within = entry.start.max(shard.start)..entry.range().end.min(shard.end);
                if within.is_empty() {
                    continue;
                }
                let range = held.map(|held| {
                    let start = held.state_start + within.start - shard.start;
                    start..start + within.len()
                });
                pieces.extend(names.iter().map(|&(index, tensor)| Piece {
                    of: Held::State(index),
                    range: range.clone(),
                    tensor,
                    parameter: entry.name.clone(),
                }));
            }
        }
    }
    pieces
}

/// Groups ranks with equal values: the largest group first, among equal ones that of the lowest rank.
fn groups_of_equal<T: PartialEq>(of_ranks: &[T]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (rank, value) in of_ranks.iter().enumerate() {
        match groups.iter_mut().find(|group| of_ranks[group[0]] == *value) {
            Some(group) => group.push(rank),
            None => groups.push(vec![rank]),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(values: &[u64]) -> ReplicaDifference {
        let groups = groups_of_equal(values);
        ReplicaDifference { tensor: "m", parameter: "layers.0.weight".to_owned(), groups }
    }

    #[test]
    fn the_ranks_of_the_minority_are_named() {
        let text = |values: &[u64]| difference(values).to_string();
        assert_eq!(text(&[7, 7, 3]), "m of layers.0.weight on rank 2 (not as on ranks 0, 1)");
        assert_eq!(text(&[3, 7, 7, 2, 7]), "m of layers.0.weight on ranks 0, 3 (not as on ranks 1, 2, 4)");
        assert_eq!(text(&[1, 2]), "m of layers.0.weight between ranks 0, 1, without a majority");
        assert_eq!(difference(&[3, 7, 7]).majority(), Some(1));
        for tie in [&[1, 2][..], &[1, 2, 3], &[1, 2, 2, 1], &[1, 2, 3, 3]] {
            assert_eq!(difference(tie).majority(), None, "{tie:?}");
        }
        assert!(!ReplicaDifferences(vec![difference(&[1, 1, 2]), difference(&[1, 2, 3])]).have_majority());
    }

    #[test]
    fn a_long_list_is_cut() {
        let text = ReplicaDifferences(vec![difference(&[1, 1, 2]); 20]).to_string();
        assert!(text.lines().count() == 9 && text.ends_with("\n  and 12 more"), "{text}");
    }
}

//! Memory of an expression: its values share as few buffers as their lifetimes allow.

use ddp_kernels::DType;
use ddp_kernels::ops::MapOp;

use super::graph::{Arg, Graph, Id, Leaf, Node, Op};
use super::lifetimes::{Classes, Order, Wanted};
use super::shapes::numel;

/// A buffer that values use in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) len: usize,
    pub(super) dtype: DType,
}

/// The memory that holds a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    Leaf(Leaf),
    Slot(usize),
    /// The memory for a result of the pass, and nothing else.
    Nowhere,
}

/// Elements of a holder from `start` on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Place {
    pub(super) holder: Holder,
    pub(super) start: usize,
    pub(super) dims: Vec<usize>,
}

/// An operand of a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Source {
    Number(f64),
    Value(Place),
}

/// One operation with the places of its operands and of its result.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) op: Op,
    pub(super) args: Vec<Source>,
    pub(super) out: Place,
    /// The operand whose memory the result takes over.
    pub(super) in_place: Option<usize>,
    /// Parts of a `Cat` that are computed where they belong.
    pub(super) parts_in_place: Vec<bool>,
    /// The result of the pass, by number, into which the step can write instead of `out`.
    pub(super) result: Option<usize>,
}

/// A pass, or a part of one: its steps, and the values that are its results.
#[derive(Debug, Default)]
pub(super) struct Stage {
    pub(super) steps: Vec<Step>,
    /// `None`: zeros.
    pub(super) results: Vec<Option<Place>>,
}

/// The stages of `graph`, in which values get the memory that they need for the sizes of `largest`, the same operations on as many or more
/// rows; adds the buffers that `slots` lacks.
///
/// - `wanted`: the results of each stage
/// - `n_forward`: the values that are part of the first stage
pub(super) fn plan(
    graph: &Graph,
    largest: &Graph,
    wanted: &[Vec<Wanted>],
    n_forward: usize,
    slots: &mut Vec<Slot>,
) -> Vec<Stage> {
    let order = Order::new(graph, wanted, n_forward);
    let classes = Classes::new(graph, wanted, &order);
    let mut planner = Planner {
        graph,
        largest,
        classes: &classes,
        holders: vec![None; graph.nodes.len()],
        is_free: vec![true; slots.len()],
        is_new: slots.is_empty(),
        slots,
    };
    let mut stages: Vec<Stage> = Vec::new();
    let mut position = 0;
    for (index, results) in wanted.iter().enumerate() {
        let mut stage = Stage::default();
        for &id in &order.of_stage[index] {
            if let Some(step) = planner.step(id, position) {
                stage.steps.push(step);
            }
            position += 1;
        }
        // A value of an earlier stage may be a result, and a leaf that no operation reads.
        stage.results = results.iter().map(|wanted| Some(planner.place(wanted.id?))).collect();
        stages.push(stage);
    }
    stages
}

struct Planner<'a> {
    graph: &'a Graph,
    largest: &'a Graph,
    classes: &'a Classes,
    /// The holder of each class.
    holders: Vec<Option<Holder>>,
    slots: &'a mut Vec<Slot>,
    is_free: Vec<bool>,
    /// Whether the plan creates its slots, rather than reusing the slots of another plan.
    is_new: bool,
}

impl Planner<'_> {
    /// The step that computes `id`, unless it is a leaf or a view.
    fn step(&mut self, id: Id, position: usize) -> Option<Step> {
        let Node { op, args, dtype, .. } = &self.graph.nodes[id];
        let mut step = None;
        if let Op::Leaf(leaf) = op {
            self.holders[id] = Some(Holder::Leaf(*leaf));
        } else if self.graph.nodes[id].offset_of_alias().is_none() {
            let root = self.classes.roots[id].0;
            let mut in_place = None;
            if self.holders[root].is_none() {
                let is_sure = matches!(self.classes.results[root], Some((_, true)));
                in_place = self.taken_over(id, position);
                self.holders[root] = Some(match in_place {
                    _ if is_sure => Holder::Nowhere,
                    Some(arg) => self.holders[self.class_of(args[arg])].expect("computed before"),
                    None => Holder::Slot(self.allocate(self.largest.numel(root), *dtype)),
                });
            }
            let parts_in_place = match op {
                Op::Cat { .. } => {
                    self.graph.nodes[id].inputs().map(|part| self.classes.roots[part].0 == root).collect()
                }
                _ => Vec::new(),
            };
            step = Some(Step {
                op: op.clone(),
                args: args.iter().map(|arg| self.source(*arg)).collect(),
                out: self.place(id),
                in_place,
                parts_in_place,
                result: self.classes.results[root].filter(|_| root == id).map(|(number, _)| number),
            });
        }
        self.free_after(position);
        step
    }

    fn class_of(&self, arg: Arg) -> Id {
        match arg {
            Arg::Node(id) => self.classes.roots[id].0,
            Arg::Number(_) => unreachable!("only values are taken over"),
        }
    }

    /// The operand whose memory the result can take over.
    fn taken_over(&self, id: Id, position: usize) -> Option<usize> {
        let Node { op, args, dims, dtype } = &self.graph.nodes[id];
        let candidates: &[usize] = match op {
            Op::Softmax => &[0],
            Op::SoftmaxBackward | Op::ActivationBackward(_) => &[1],
            Op::Map(MapOp::Add) if matches!(args[..], [Arg::Node(_), Arg::Node(_)]) => &[0, 1],
            _ => &[],
        };
        if self.classes.roots[id].0 != id || self.classes.results[id].is_some() {
            return None;
        }
        candidates.iter().copied().find(|&index| {
            let Arg::Node(input) = args[index] else { return false };
            let (root, start) = self.classes.roots[input];
            let is_slot = matches!(self.holders[root], Some(Holder::Slot(_)));
            let is_whole =
                start == 0 && self.graph.numel(root) == numel(dims) && self.graph.dims(input) == dims;
            let is_last = self.classes.last_use[root] == position && self.graph.dtype(root) == *dtype;
            let others = args.iter().enumerate().filter(|(other, _)| *other != index);
            let is_read_twice = others
                .into_iter()
                .any(|(_, other)| matches!(other, Arg::Node(other) if self.classes.roots[*other].0 == root));
            let fits_add = !matches!(op, Op::Map(_))
                || args.iter().all(|arg| matches!(arg, Arg::Node(x) if self.graph.dims(*x) == dims));
            is_slot && is_whole && is_last && !is_read_twice && fits_add
        })
    }

    /// The smallest free slot that fits, or a new one.
    fn allocate(&mut self, len: usize, dtype: DType) -> usize {
        // A short value would take the place of a long one, which then needs a slot of its own.
        let most = if self.is_new { 2 * len } else { usize::MAX };
        let fits = |index: &usize| {
            let slot = self.slots[*index];
            self.is_free[*index] && slot.dtype == dtype && (len..=most).contains(&slot.len)
        };
        let found = (0..self.slots.len()).filter(fits).min_by_key(|&index| self.slots[index].len);
        let slot = found.unwrap_or_else(|| {
            self.slots.push(Slot { len, dtype });
            self.is_free.push(true);
            self.slots.len() - 1
        });
        self.is_free[slot] = false;
        slot
    }

    /// Frees the slots of classes that nothing reads after this position, unless another class has taken the slot over.
    fn free_after(&mut self, position: usize) {
        for id in 0..self.holders.len() {
            let Some(Holder::Slot(slot)) = self.holders[id] else { continue };
            if self.classes.last_use[id] != position {
                continue;
            }
            let is_taken = (0..self.holders.len()).any(|other| {
                other != id
                    && self.holders[other] == Some(Holder::Slot(slot))
                    && self.classes.last_use[other] > position
            });
            if !is_taken {
                self.is_free[slot] = true;
            }
        }
    }

    fn source(&self, arg: Arg) -> Source {
        match arg {
            Arg::Node(id) => Source::Value(self.place(id)),
            Arg::Number(number) => Source::Number(number),
        }
    }

    fn place(&self, id: Id) -> Place {
        let (root, start) = self.classes.roots[id];
        let holder = self.holders[root].expect("operands are computed before results");
        Place { holder, start, dims: self.graph.dims(id).to_vec() }
    }
}

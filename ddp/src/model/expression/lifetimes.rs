//! Lifetimes of the values of an expression: their order, those that share memory because one is part of another, and the last reader of
//! each.

use super::graph::{Graph, Id, Node, Op};
use super::shapes;

/// A result that a stage hands over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) id: Option<Id>,
    /// Whether its memory is always of the value's format and overwritten, so that the value needs none of its own.
    pub(super) is_overwritten: bool,
}

/// The values that are computed, in their order.
pub(super) struct Order {
    pub(super) of_stage: Vec<Vec<Id>>,
    /// The position of each value over all stages.
    pub(super) positions: Vec<usize>,
}

impl Order {
    pub(super) fn new(graph: &Graph, wanted: &[Vec<Wanted>], n_forward: usize) -> Self {
        let mut is_done = vec![false; graph.nodes.len()];
        let ids = |results: &[Wanted]| results.iter().filter_map(|wanted| wanted.id).collect::<Vec<_>>();
        let all: Vec<Id> = wanted.iter().flat_map(|results| ids(results)).collect();
        let is_live = graph.live(&all);
        let mut of_stage = Vec::new();
        for (index, results) in wanted.iter().enumerate() {
            let needed = graph.live(&ids(results));
            let is_own = |id: Id| if index == 0 { is_live[id] && id < n_forward } else { needed[id] };
            let own: Vec<Id> = (0..graph.nodes.len()).filter(|&id| is_own(id) && !is_done[id]).collect();
            own.iter().for_each(|&id| is_done[id] = true);
            of_stage.push(own);
        }
        let mut positions = vec![usize::MAX; graph.nodes.len()];
        of_stage.iter().flatten().enumerate().for_each(|(position, &id)| positions[id] = position);
        Order { of_stage, positions }
    }

    /// The position of the last value of a stage.
    fn end_of(&self, stage: usize) -> usize {
        self.of_stage[..=stage].iter().map(Vec::len).sum::<usize>().saturating_sub(1)
    }
}

/// Values that share memory because they are views of one, or parts of it.
pub(super) struct Classes {
    /// The value whose memory holds a value, and the first element.
    pub(super) roots: Vec<(Id, usize)>,
    /// Position of the last operation that reads a value of the class.
    pub(super) last_use: Vec<usize>,
    /// Number of the wanted result for which the class alone is used, and whether its memory is always overwritten.
    pub(super) results: Vec<Option<(usize, bool)>>,
}

impl Classes {
    pub(super) fn new(graph: &Graph, wanted: &[Vec<Wanted>], order: &Order) -> Self {
        let n = graph.nodes.len();
        let mut roots: Vec<(Id, usize)> = (0..n).map(|id| (id, 0)).collect();
        for id in 0..n {
            if let Some(start) = graph.nodes[id].offset_of_alias() {
                let (root, before) = roots[graph.first_input(id)];
                roots[id] = (root, before + start);
            }
        }
        let is_computed = |id: Id| order.positions[id] != usize::MAX;
        // Readers of each class, and results.
        let mut n_uses = vec![0; n];
        for id in (0..n).filter(|&id| is_computed(id) && graph.nodes[id].offset_of_alias().is_none()) {
            graph.nodes[id].inputs().for_each(|input| n_uses[roots[input].0] += 1);
        }
        let mut n_results = vec![0; n];
        wanted.iter().flatten().filter_map(|wanted| wanted.id).for_each(|id| n_results[roots[id].0] += 1);

        // Parts of a concatenation of whole rows are computed where they belong.
        let mut moved: Vec<Option<(Id, usize)>> = vec![None; n];
        for id in (0..n).filter(|&id| is_computed(id)) {
            let Op::Cat { axis } = graph.nodes[id].op else { continue };
            if shapes::around(&graph.nodes[id].dims, axis..axis + 1)[0] != 1 {
                continue;
            }
            let mut start = 0;
            for part in graph.nodes[id].inputs() {
                let (root, offset) = roots[part];
                let is_whole = offset == 0 && graph.numel(root) == graph.numel(part);
                let is_own = n_uses[root] == 1 && n_results[root] == 0 && moved[root].is_none();
                let is_computed_alone = !matches!(graph.nodes[root].op, Op::Leaf(_) | Op::Cat { .. });
                if is_whole && is_own && is_computed_alone {
                    moved[root] = Some((id, start));
                }
                start += graph.numel(part);
            }
        }
        for root in &mut roots {
            if let Some((to, start)) = moved[root.0] {
                *root = (to, root.1 + start);
            }
        }

        let mut last_use = vec![0; n];
        for id in (0..n).filter(|&id| is_computed(id)) {
            let own = roots[id].0;
            last_use[own] = last_use[own].max(order.positions[id]);
            if graph.nodes[id].offset_of_alias().is_none() {
                for input in graph.nodes[id].inputs() {
                    let of = roots[input].0;
                    last_use[of] = last_use[of].max(order.positions[id]);
                }
            }
        }
        let mut results = vec![None; n];
        for (stage, of_stage) in wanted.iter().enumerate() {
            for (number, wanted) in of_stage.iter().enumerate() {
                let Some(id) = wanted.id else { continue };
                let (root, start) = roots[id];
                last_use[root] = last_use[root].max(order.end_of(stage));
                let is_own = order.of_stage[stage].contains(&root);
                let is_alone = is_own && n_uses[root] == 0 && n_results[root] == 1;
                let has_parts = moved.iter().flatten().any(|(to, _)| *to == root);
                if is_alone && !has_parts && start == 0 && graph.numel(root) == graph.numel(id) {
                    let is_sum = matches!(graph.nodes[root].op, Op::Matmul { .. } | Op::ColumnSum);
                    results[root] = Some((number, wanted.is_overwritten || is_sum));
                }
            }
        }
        Classes { roots, last_use, results }
    }
}

impl Node {
    /// The first element in the operand, if the value is part of its memory.
    pub(super) fn offset_of_alias(&self) -> Option<usize> {
        match self.op {
            Op::View(start) => Some(start),
            Op::Detach => Some(0),
            _ => None,
        }
    }
}

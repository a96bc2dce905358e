//! An expression that was recorded for a number of rows, with its gradients.

use std::cell::RefCell;
use std::rc::Rc;

use ddp_kernels::{Device, KernelError};

use super::constants::Constants;
use super::graph::{Arg, Graph, Id, Leaf, Op, Result};
use super::lifetimes::Wanted;
use super::memory::{Slot, Stage, plan};
use super::var::{Recording, Var};

/// Operations of the forward pass and of its gradients, without memory.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) graph: Graph,
    /// The result.
    pub(super) y: Id,
    wanted: Vec<Vec<Wanted>>,
    n_forward: usize,
}

/// The results that a pass writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResultsOf<'a> {
    /// Values whose gradients are the results of the second stage.
    pub(super) params: &'a [Leaf],
    /// Value whose gradient is the result of the third stage.
    pub(super) input: Option<Leaf>,
    /// Whether the result of the first stage is always written in its own format.
    pub(super) is_output_exact: bool,
}

impl Recorded {
    /// Records what `f` computes; `constants` gets the tensors that are new.
    ///
    /// # Errors
    /// The first error of an operation.
    pub(super) fn new(
        device: Device,
        of: ResultsOf<'_>,
        constants: &Constants,
        f: impl FnOnce(&Rc<RefCell<Recording>>) -> Var,
    ) -> Result<Self> {
        let constants = constants.clone();
        let recording = Recording { graph: Graph::new(device), constants, error: None, apart: None };
        let recording = Rc::new(RefCell::new(recording));
        let y = f(&recording).id();
        let Recording { graph, error, .. } = &mut *recording.borrow_mut();
        if let Some(error) = error.take() {
            return Err(error);
        }
        let graph = std::mem::replace(graph, Graph::new(device));
        let find = |leaf: Leaf| graph.nodes.iter().position(|node| node.op == Op::Leaf(leaf));
        let all: Vec<Option<Id>> = of.params.iter().copied().chain(of.input).map(find).collect();
        Self::with_gradients(graph, y, &all, of.input.is_some(), of.is_output_exact)
    }

    /// The operations of `graph`, whose result is `y`, with those of the gradients of `all`: the last one is a stage of its own if
    /// `has_input`.
    ///
    /// # Errors
    /// The first error of an operation.
    pub(super) fn with_gradients(
        mut graph: Graph,
        y: Id,
        all: &[Option<Id>],
        has_input: bool,
        is_output_exact: bool,
    ) -> Result<Self> {
        let n_forward = graph.nodes.len();
        if all.is_empty() {
            let wanted =
                vec![vec![Wanted { id: Some(y), is_overwritten: is_output_exact }], Vec::new(), Vec::new()];
            graph.fold_factors(&[y]);
            return Ok(Recorded { graph, y, wanted, n_forward });
        }
        if !graph.dtype(y).is_float() {
            let operand = graph.operand(y, "result").into();
            return Err(KernelError::DTypeUnsupported { op: "gradients", operand, takes: "floats" });
        }
        let (dims, dtype) = (graph.dims(y).to_vec(), graph.dtype(y));
        let d = graph.push(Op::Leaf(Leaf::Gradient), Vec::new(), &dims, dtype);
        let found: Vec<Id> = all.iter().copied().flatten().collect();
        let mut gradients = graph.gradients(y, d, &found)?.into_iter();
        let mut gradients: Vec<Option<Id>> =
            all.iter().map(|id| id.and_then(|_| gradients.next().flatten())).collect();
        let of_input = if has_input { gradients.pop() } else { None };
        let result = |id: Option<Id>| Wanted { id, is_overwritten: false };
        let wanted = vec![
            vec![Wanted { id: Some(y), is_overwritten: is_output_exact }],
            gradients.into_iter().map(result).collect(),
            of_input.into_iter().map(result).collect(),
        ];
        let outputs: Vec<Id> = wanted.iter().flatten().filter_map(|wanted| wanted.id).collect();
        graph.fold_factors(&outputs);
        Ok(Recorded { graph, y, wanted, n_forward })
    }

    /// The stages: forward, gradients of the parameters, gradient of the input. `slots` gets the buffers that they need.
    pub(super) fn stages(&self, slots: &mut Vec<Slot>) -> Vec<Stage> {
        plan(&self.graph, &self.graph, &self.wanted, self.n_forward, slots)
    }

    /// The stages in the buffers of the same operations on more rows, or in those that are there.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] if they do not fit.
    pub(super) fn stages_within(&self, largest: &Recorded, slots: &[Slot]) -> Result<Vec<Stage>> {
        let (of, mut own) = if self.has_operations_of(largest) {
            (&largest.graph, Vec::new())
        } else {
            (&self.graph, slots.to_vec())
        };
        let stages = plan(&self.graph, of, &self.wanted, self.n_forward, &mut own);
        for (index, slot) in own.iter().enumerate() {
            let len = slots.get(index).map_or(0, |slot| slot.len);
            if slot.len > len || slots[index].dtype != slot.dtype {
                return Err(KernelError::OutOfRange { op: "expression", start: 0, end: slot.len, len });
            }
        }
        let is_smaller =
            |(own, other): (&super::graph::Node, &super::graph::Node)| own.numel() <= other.numel();
        if std::ptr::eq(of, &largest.graph)
            && !self.graph.nodes.iter().zip(&largest.graph.nodes).all(is_smaller)
        {
            let (end, len) = (self.graph.numel(self.y), largest.graph.numel(largest.y));
            return Err(KernelError::OutOfRange { op: "expression", start: 0, end, len });
        }
        Ok(stages)
    }

    /// Whether both are the same operations, apart from shapes.
    fn has_operations_of(&self, other: &Recorded) -> bool {
        let is_same = |(a, b): (&super::graph::Node, &super::graph::Node)| {
            let same_args = a.args.len() == b.args.len()
                && a.args.iter().zip(&b.args).all(|pair| match pair {
                    (Arg::Node(a), Arg::Node(b)) => a == b,
                    (Arg::Number(_), Arg::Number(_)) => true,
                    _ => false,
                });
            std::mem::discriminant(&a.op) == std::mem::discriminant(&b.op) && same_args && a.dtype == b.dtype
        };
        let (own, others) = (&self.graph.nodes, &other.graph.nodes);
        own.len() == others.len() && own.iter().zip(others).all(is_same)
    }

    /// Multiply-adds of the matmuls of the forward pass.
    pub(super) fn multiply_adds(&self) -> usize {
        let of = |id: Id| match self.graph.nodes[id].op {
            Op::Matmul { transpose: [of_a, _], .. } => {
                let dims = self.graph.dims(self.graph.first_input(id));
                let inner = dims[dims.len() - if of_a { 2 } else { 1 }];
                self.graph.numel(id) * inner
            }
            _ => 0,
        };
        (0..self.n_forward).map(of).sum()
    }
}

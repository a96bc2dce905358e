//! Variables outside a model, and the gradients of what is computed from them.

use std::borrow;
use std::cell::RefCell;
use std::ops::Index;
use std::rc::Rc;

use ddp_kernels::ops::MatmulMode;
use ddp_kernels::{DType, HostValue, KernelError, MemoryUse, Tensor};

use super::apart::{Apart, Mark};
use super::constants::Constants;
use super::graph::{Arg, Graph, Id, Leaf, Op, Result};
use super::program::Recorded;
use super::run::{Destination, Leaves};
use super::shapes::numel;
use super::var::{Recording, Var};

/// The operations up to a value, the tensors that they read, and the variables among them.
type Operations = (Graph, Constants, Vec<(Id, Mark)>);

/// The gradients of a value with respect to its variables: `&gradients[&w]`.
#[derive(Debug)]
pub struct Gradients(Vec<(Mark, Tensor)>);

impl Index<&Var> for Gradients {
    type Output = Tensor;

    /// # Panics
    /// If the value does not depend on the variable, or if `variable` is none.
    fn index(&self, variable: &Var) -> &Tensor {
        let mark = variable.mark();
        let found = self.0.iter().find(|(own, _)| mark.as_ref().is_some_and(|mark| Rc::ptr_eq(own, mark)));
        &found
            .unwrap_or_else(|| {
                panic!("the value does not depend on this variable, or it is none of `Var::new`")
            })
            .1
    }
}

/// Variables outside a model.
impl Var {
    /// A variable with these values, floats: what is computed from it has gradients ([`Var::backward`]).
    ///
    /// Nothing is computed before [`Var::backward`] or [`Var::tensor`], each of which computes all that it needs anew. Models have
    /// parameters of their own, which an optimizer updates.
    ///
    /// ```
    /// use ddp::nn::Var;
    /// use ddp::prelude::*;
    ///
    /// let x = Tensor::randn(&[64, 3], DType::F32, "cpu", 1)?;
    /// let y = x.matmul(&tensor![[1.0], [-2.0], [0.5]])?;
    /// let mut w = Var::new(Tensor::zeros(&[3, 1], DType::F32, "cpu")?)?;
    /// for _ in 0..200 {
    ///     let error = w.constant(&x).matmul(&w) - &y;
    ///     let gradients = error.pow(2.0).mean(None).backward()?;
    ///     w = Var::new(w.tensor()? - &gradients[&w] * 0.2)?;
    /// }
    /// assert!((w.tensor()?.row(1)?.item::<f32>()? + 2.0).abs() < 1e-3);
    /// # Ok::<(), KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::DTypeUnsupported`] for values that are not floats.
    ///
    /// Source: `torch.tensor(.., requires_grad=True)`.
    pub fn new(values: impl borrow::Borrow<Tensor>) -> Result<Var> {
        let values = borrow::Borrow::<Tensor>::borrow(&values).clone();
        if !values.dtype().is_float() {
            let operand = values.view().operand("values").into();
            return Err(KernelError::DTypeUnsupported { op: "Var::new", operand, takes: "floats" });
        }
        Ok(Var { recording: Rc::new(RefCell::new(Recording::for_variable(values, Mark::new(())))), id: 0 })
    }

    /// The values of a variable, or of what is computed from variables.
    ///
    /// # Errors
    /// The first error of the operations; [`KernelError::Misuse`] for a value of a model, which has none while it is recorded.
    pub fn tensor(&self) -> Result<Tensor> {
        let (graph, constants, _) = self.operations()?;
        if let Op::Leaf(Leaf::Constant(index)) = graph.nodes[self.id].op {
            return Ok(constants.kept()[index].1.clone());
        }
        Ok(compute(graph, self.id, &constants, &[])?.0)
    }

    /// The number that a value of one element is, as [`Tensor::item`].
    ///
    /// # Errors
    /// Same as [`Var::tensor`] and [`Tensor::item`].
    pub fn item<T: HostValue>(&self) -> Result<T> {
        self.tensor()?.item()
    }

    /// The gradients of this value, of one element, with respect to all variables that it is computed from.
    ///
    /// # Errors
    /// The first error of the operations; [`KernelError::Misuse`] for a value of several elements or of a model.
    ///
    /// Source: `torch.Tensor.backward`.
    pub fn backward(&self) -> Result<Gradients> {
        let (graph, constants, variables) = self.operations()?;
        if numel(graph.dims(self.id)) != 1 {
            let problem = format!("a value of shape {:?} has no gradient", graph.dims(self.id));
            return Err(KernelError::misuse(
                "backward",
                problem,
                "one number has: `.mean(None)` or `.sum(None)`",
            ));
        }
        let ids: Vec<Id> = variables.iter().map(|(id, _)| *id).collect();
        let gradients = compute(graph, self.id, &constants, &ids)?.1;
        Ok(Gradients(variables.into_iter().map(|(_, mark)| mark).zip(gradients).collect()))
    }

    fn operations(&self) -> Result<Operations> {
        let recording = self.recording.borrow();
        let Some(apart) = &recording.apart else {
            let problem = "a value of a model has no numbers while it is recorded";
            return Err(KernelError::misuse("backward", problem, "a variable of `Var::new` has them"));
        };
        if let Some(error) = &recording.error {
            return Err(error.clone());
        }
        let mut graph = Graph::new(recording.graph.device);
        graph.nodes = recording.graph.nodes[..=self.id].to_vec();
        let is_live = graph.live(&[self.id]);
        let variables = apart.variables.iter().filter(|&&id| id <= self.id && is_live[id]);
        let variables = variables.map(|&id| (id, Rc::clone(&apart.marks[id]))).collect();
        Ok((graph, recording.constants.clone(), variables))
    }

    fn mark(&self) -> Option<Mark> {
        self.recording.borrow().apart.as_ref()?.marks.get(self.id).cloned()
    }

    /// The recording of a result of this value: that of a variable stays as it is.
    pub(super) fn recording_of_result(&self) -> Rc<RefCell<Recording>> {
        let mut recording = self.recording.borrow_mut();
        let Recording { graph, constants, apart: Some(apart), .. } = &mut *recording else {
            return Rc::clone(&self.recording);
        };
        apart.mark_all(graph);
        if !apart.is_variable {
            return Rc::clone(&self.recording);
        }
        apart.is_variable = false;
        let mark = Rc::clone(&apart.marks[0]);
        let values = constants.kept()[0].1.clone();
        let variable = Recording::for_variable(values, mark);
        Rc::new(RefCell::new(std::mem::replace(&mut *recording, variable)))
    }

    /// The id of a value of another recording in this one, which takes over its operations.
    ///
    /// # Panics
    /// If one of them is a value of a model.
    pub(super) fn taken_over(&self, other: &Var) -> Id {
        let (mut own, from) = (self.recording.borrow_mut(), other.recording.borrow());
        let Recording { graph, constants, error, apart } = &mut *own;
        let (Some(apart), Some(of_other)) = (apart, &from.apart) else {
            panic!("operands are values of one expression, or all of variables outside a model")
        };
        apart.mark_all(graph);
        if error.is_none() {
            error.clone_from(&from.error);
        }
        if graph.device != from.graph.device {
            let (a, b) = (graph.operand(self.id, "a").into(), from.graph.operand(other.id, "b").into());
            error.get_or_insert(KernelError::DeviceMismatch { op: "operation", a, b });
            return self.id;
        }
        let is_live = from.graph.live(&[other.id]);
        let mut ids: Vec<Id> = vec![0; from.graph.nodes.len()];
        for (id, node) in from.graph.nodes.iter().enumerate().filter(|(id, _)| is_live[*id]) {
            let mark = &of_other.marks[id];
            ids[id] = apart.find(mark).unwrap_or_else(|| {
                let mut node = node.clone();
                for arg in &mut node.args {
                    if let Arg::Node(input) = arg {
                        *input = ids[*input];
                    }
                }
                if let Op::Leaf(Leaf::Constant(index)) = &mut node.op {
                    *index = constants.add(from.constants.kept()[*index].1.clone());
                }
                if of_other.variables.contains(&id) {
                    apart.variables.push(graph.nodes.len());
                }
                graph.nodes.push(node);
                apart.mark(Rc::clone(mark));
                graph.nodes.len() - 1
            });
        }
        ids[other.id]
    }
}

impl Recording {
    /// The recording of a variable alone.
    fn for_variable(values: Tensor, mark: Mark) -> Self {
        let (mut graph, constants) = (Graph::new(values.device()), Constants::default());
        let (dims, dtype) = (values.dims().to_vec(), values.dtype());
        let index = constants.add(values);
        graph.push(Op::Leaf(Leaf::Constant(index)), Vec::new(), &dims, dtype);
        let mut apart = Apart::default();
        (apart.is_variable, apart.variables) = (true, vec![0]);
        apart.mark(mark);
        Recording { graph, constants, error: None, apart: Some(apart) }
    }
}

/// The values of `y`, and its gradients with respect to `variables`.
fn compute(graph: Graph, y: Id, constants: &Constants, variables: &[Id]) -> Result<(Tensor, Vec<Tensor>)> {
    let device = graph.device;
    let shapes: Vec<(Vec<usize>, DType)> =
        variables.iter().map(|&id| (graph.dims(id).to_vec(), graph.dtype(id))).collect();
    let (dims, dtype) = (graph.dims(y).to_vec(), graph.dtype(y));
    let all: Vec<Option<Id>> = variables.iter().copied().map(Some).collect();
    let recorded = Recorded::with_gradients(graph, y, &all, false, true)?;
    let mut slots = Vec::new();
    let stages = recorded.stages(&mut slots);
    let zeros = |dims: &[usize], dtype| Tensor::zeros_for(MemoryUse::Workspace, dims, dtype, device);
    let mut buffers = slots.iter().map(|slot| zeros(&[slot.len], slot.dtype)).collect::<Result<Vec<_>>>()?;
    let mut values = zeros(&dims, dtype)?;
    let of_values = Tensor::full(&dims, 1.0, dtype, device)?;
    let mut gradients = shapes.iter().map(|(dims, dtype)| zeros(dims, *dtype)).collect::<Result<Vec<_>>>()?;
    let (input, gradient, mode) = (of_values.view(), Some(of_values.view()), MatmulMode::Strict);
    let constants = &constants.kept()[..];
    let leaves = Leaves { input, targets: None, gradient, params: None, registered: &[], constants };
    let destination = |to| Some(Destination { to, accumulate: false });
    stages[0].run(leaves, &mut buffers, mode, &mut [destination(values.view_mut())])?;
    if !variables.is_empty() {
        let mut results: Vec<_> = gradients.iter_mut().map(|to| destination(to.view_mut())).collect();
        stages[1].run(leaves, &mut buffers, mode, &mut results)?;
    }
    Ok((values, gradients))
}

//! The values of an expression, which record operations. Their methods, in the files after this one, have the names and the rules of
//! [`Tensor`](ddp_kernels::Tensor)'s.

use std::cell::RefCell;
use std::fmt;
use std::ops::Index;
use std::rc::Rc;

use ddp_kernels::{Axes, Axis, DType, Device, KernelError, Tensor};

use super::apart::Apart;
use super::constants::Constants;
use super::graph::{Arg, Graph, Id, Leaf, Op, Result};

/// The operations recorded so far, and the first error.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) graph: Graph,
    pub(super) constants: Constants,
    pub(super) error: Option<KernelError>,
    /// Needs of values outside a model.
    pub(super) apart: Option<Apart>,
}

/// A value of an [`Expression`](super::Expression), or of variables outside a model ([`Var::new`]).
///
/// Methods return a value even if they fail: building the model, [`Var::backward`] and [`Var::tensor`] return the first error.
#[derive(Clone)]
pub struct Var {
    pub(super) recording: Rc<RefCell<Recording>>,
    pub(super) id: Id,
}

impl fmt::Debug for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.recording.borrow().graph.operand(self.id, "value"))
    }
}

/// An operand of an operation of two: a value, or a number or a tensor next to one.
#[derive(Debug)]
pub enum Term {
    /// A value of the same expression.
    Var(Var),
    /// The same number for all elements.
    Number(f64),
    /// A constant ([`Var::constant`]), or the error of copying it.
    Tensor(Result<Tensor>),
}

impl From<Var> for Term {
    fn from(var: Var) -> Self {
        Term::Var(var)
    }
}

impl From<&Var> for Term {
    fn from(var: &Var) -> Self {
        Term::Var(var.clone())
    }
}

impl From<Tensor> for Term {
    fn from(values: Tensor) -> Self {
        Term::Tensor(Ok(values))
    }
}

impl From<&Tensor> for Term {
    fn from(values: &Tensor) -> Self {
        Term::Tensor(values.try_clone())
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl From<$number> for Term {
            fn from(number: $number) -> Self {
                Term::Number(f64::from(number))
            }
        })*
    };
}
numbers!(f64, f32, i32, u8);

/// The parameters and buffers of an [`Expression`](super::Expression) by the names that it gave them: `&own["gain"]`.
#[derive(Debug)]
pub struct Own {
    pub(super) values: Vec<(String, Var)>,
}

impl Index<&str> for Own {
    type Output = Var;

    /// # Panics
    /// If the expression has no such parameter or buffer.
    fn index(&self, name: &str) -> &Var {
        let names = || self.values.iter().map(|(own, _)| &own[..]).collect::<Vec<_>>().join(", ");
        let found = self.values.iter().find(|(own, _)| own == name);
        &found
            .unwrap_or_else(|| {
                panic!("the expression has no parameter or buffer {name}; it has: {}", names())
            })
            .1
    }
}

impl Var {
    pub(super) fn of(recording: &Rc<RefCell<Recording>>, id: Id) -> Self {
        Var { recording: Rc::clone(recording), id }
    }

    /// Another value of the same recording.
    pub(super) fn with_id(&self, id: Id) -> Self {
        Var::of(&self.recording, id)
    }

    pub(super) fn id(&self) -> Id {
        self.id
    }

    /// Records what `f` adds; after an error, a value of shape `dims` takes the place of the result.
    pub(super) fn record(&self, dims: &[usize], f: impl FnOnce(&mut Graph) -> Result<Id>) -> Var {
        self.record_with(dims, |graph, _| f(graph))
    }

    fn record_with(&self, dims: &[usize], f: impl FnOnce(&mut Graph, &Constants) -> Result<Id>) -> Var {
        let id = self.push(dims, f);
        Var::of(&self.recording_of_result(), id)
    }

    fn push(&self, dims: &[usize], f: impl FnOnce(&mut Graph, &Constants) -> Result<Id>) -> Id {
        let Recording { graph, constants, error, .. } = &mut *self.recording.borrow_mut();
        let dtype = graph.dtype(self.id);
        let id = if error.is_some() { None } else { f(graph, constants).map_err(|e| *error = Some(e)).ok() };
        id.unwrap_or_else(|| graph.push(Op::Leaf(Leaf::Invalid), Vec::new(), dims, dtype))
    }

    /// # Panics
    /// If the operand is of another expression.
    pub(super) fn arg(&self, term: &Term) -> Arg {
        match term {
            Term::Var(var) if Rc::ptr_eq(&self.recording, &var.recording) => Arg::Node(var.id),
            Term::Var(var) => Arg::Node(self.taken_over(var)),
            Term::Number(number) => Arg::Number(*number),
            Term::Tensor(values) => Arg::Node(self.add_constant(values.as_ref().map_err(Clone::clone))),
        }
    }

    fn add_constant(&self, values: Result<&Tensor>) -> Id {
        let dims = values.as_ref().map_or(Vec::new(), |values| values.dims().to_vec());
        self.push(&dims, |graph, constants| {
            let (index, dtype) = constants.find(values?, graph.dtype(self.id), graph.device)?;
            Ok(graph.push(Op::Leaf(Leaf::Constant(index)), Vec::new(), &dims, dtype))
        })
    }

    /// Constant with the values of a tensor; floats are converted to this value's format. Operands may be tensors, too: `&error * &weights`.
    ///
    /// Recording the expression copies the tensor to the device, once for equal values; later changes to the tensor have no effect. The copy
    /// lives as long as the expression. Prefer tensors in host memory: one that was copied before then needs no work on the device.
    pub fn constant(&self, values: &Tensor) -> Var {
        let id = self.add_constant(Ok(values));
        Var::of(&self.recording_of_result(), id)
    }

    /// The device on which the expression is computed.
    pub fn device(&self) -> Device {
        self.recording.borrow().graph.device
    }

    /// The dimensions. The first one of a layer's input is the number of rows of the pass, which differs between passes.
    pub fn dims(&self) -> Vec<usize> {
        self.recording.borrow().graph.dims(self.id).to_vec()
    }

    /// Number format: the format of activations for rows and parameters, f32 or f64 for the outputs that a loss reads.
    pub fn dtype(&self) -> DType {
        self.recording.borrow().graph.dtype(self.id)
    }

    pub(super) fn numel(&self) -> usize {
        self.recording.borrow().graph.numel(self.id)
    }

    pub(super) fn last_axis(&self) -> usize {
        self.dims().len().saturating_sub(1)
    }

    /// The axis from 0, of which a negative one counts from the end.
    pub(super) fn axis(&self, op: &'static str, axis: impl Into<Axis>) -> Result<usize> {
        self.axis_of(self.dims().len(), op, axis)
    }

    /// The same of a result with `n_axes`.
    pub(super) fn axis_of(&self, n_axes: usize, op: &'static str, axis: impl Into<Axis>) -> Result<usize> {
        axis.into().index_among(op, self.recording.borrow().graph.operand(self.id, "a"), n_axes)
    }

    /// The axes from 0, in ascending order.
    pub(super) fn axes(&self, op: &'static str, axes: &Axes) -> Result<Vec<usize>> {
        let recording = self.recording.borrow();
        axes.indices_among(op, recording.graph.operand(self.id, "a"), recording.graph.dims(self.id).len())
    }

    /// This value, after an operation that failed.
    pub(super) fn failed(&self, error: KernelError) -> Var {
        self.record(&self.dims(), |_| Err(error))
    }
}

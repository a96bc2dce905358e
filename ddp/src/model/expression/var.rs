//! The values of an expression. Their methods have the names and the rules of [`Tensor`](ddp_kernels::Tensor)'s; they record what is
//! to be computed.

use std::cell::RefCell;
use std::fmt;
use std::ops::Index;
use std::rc::Rc;

use ddp_kernels::ops::{Activation, CompareOp, MapOp, Pattern, ReduceOp};
use ddp_kernels::{DType, KernelError, Shape};

use super::graph::{Arg, Graph, Id, Leaf, Op, Result, wide};
use super::shapes::{self, numel};

/// The operations recorded so far, and the first error.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) graph: Graph,
    pub(super) error: Option<KernelError>,
}

/// A value of an [`Expression`](super::Expression).
///
/// A method that fails returns a value all the same: the first error is that of building the model.
#[derive(Clone)]
pub struct Var {
    recording: Rc<RefCell<Recording>>,
    id: Id,
}

impl fmt::Debug for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.recording.borrow().graph.operand(self.id, "value"))
    }
}

/// An operand of an operation of two: a value, or a number next to one.
#[derive(Debug, Clone)]
pub enum Term {
    /// A value of the same expression.
    Var(Var),
    /// The same number for all elements.
    Number(f64),
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
    fn record(&self, dims: &[usize], f: impl FnOnce(&mut Graph) -> Result<Id>) -> Var {
        let Recording { graph, error } = &mut *self.recording.borrow_mut();
        let dtype = graph.dtype(self.id);
        let id = if error.is_some() { None } else { f(graph).map_err(|e| *error = Some(e)).ok() };
        let id = id.unwrap_or_else(|| graph.push(Op::Leaf(Leaf::Invalid), Vec::new(), dims, dtype));
        Var::of(&self.recording, id)
    }

    /// # Panics
    /// If the operand is of another expression.
    fn arg(&self, term: &Term) -> Arg {
        match term {
            Term::Var(var) => {
                assert!(Rc::ptr_eq(&self.recording, &var.recording), "operands of one expression");
                Arg::Node(var.id)
            }
            Term::Number(number) => Arg::Number(*number),
        }
    }

    /// The dimensions. The first one of a layer's input is the number of rows of the pass, which differs between passes.
    pub fn dims(&self) -> Vec<usize> {
        self.recording.borrow().graph.dims(self.id).to_vec()
    }

    /// The number format: that of activations for rows and parameters, f32 or f64 for the outputs that a loss gets.
    pub fn dtype(&self) -> DType {
        self.recording.borrow().graph.dtype(self.id)
    }

    fn numel(&self) -> usize {
        self.recording.borrow().graph.numel(self.id)
    }

    fn last_axis(&self) -> usize {
        self.dims().len().saturating_sub(1)
    }

    fn map(&self, op: MapOp, b: Term) -> Var {
        let (a, b) = (Arg::Node(self.id), self.arg(&b));
        self.record(&self.dims(), |graph| graph.map(op, a, b))
    }

    /// `op(number, self)`.
    pub(super) fn map_after(&self, op: MapOp, number: f64) -> Var {
        let b = Arg::Node(self.id);
        self.record(&self.dims(), |graph| graph.map(op, Arg::Number(number), b))
    }

    fn compare(&self, op: CompareOp, b: Term) -> Var {
        let (a, b) = (Arg::Node(self.id), self.arg(&b));
        self.record(&self.dims(), |graph| graph.compare(op, a, b))
    }

    /// The axis and the number of elements before, along and after it.
    fn around(&self, op: &'static str, axis: usize) -> Result<[usize; 3]> {
        let dims = self.dims();
        if axis >= dims.len() {
            return Err(KernelError::OutOfRange { op, start: axis, end: axis + 1, len: dims.len() });
        }
        Ok(shapes::around(&dims, axis..axis + 1))
    }

    /// A reduction of all elements or along an axis, without that dimension.
    fn reduce(&self, op: ReduceOp, axis: Option<usize>) -> Var {
        let mut dims = self.dims();
        let layout = match axis {
            Some(axis) => self.around(op.name(), axis),
            None => Ok([1, self.numel(), 1]),
        };
        match axis {
            Some(axis) if axis < dims.len() => {
                dims.remove(axis);
            }
            _ => dims.clear(),
        }
        let x = self.id;
        self.record(&dims, |graph| {
            let reduced = match op {
                ReduceOp::Sum => graph.sum_along(x, layout?)?,
                ReduceOp::Mean => mean_along(graph, x, layout?)?,
                _ => graph.reduce(op, x, layout?)?,
            };
            Ok(graph.view(reduced, &dims))
        })
    }

    /// The same with length 1 in place of the reduced axis.
    fn reduce_keepdim(&self, op: ReduceOp, axis: usize) -> Var {
        let mut dims = self.dims();
        if let Some(n) = dims.get_mut(axis) {
            *n = 1;
        }
        self.reduce(op, Some(axis)).reshape(&dims)
    }

    /// The activation of each element.
    pub fn activation(&self, activation: Activation) -> Var {
        let x = self.id;
        self.record(&self.dims(), |graph| {
            if !graph.dtype(x).is_float() {
                let operand = graph.operand(x, "a").into();
                return Err(KernelError::DTypeUnsupported { op: "activation", operand, takes: "floats" });
            }
            Ok(graph.unary(Op::Activation(activation), x))
        })
    }
}

/// The mean along `len` of `[outer, len, inner]`, of sums that are not rounded.
fn mean_along(graph: &mut Graph, x: Id, layout: [usize; 3]) -> Result<Id> {
    let ([outer, len, _], dtype) = (layout, graph.dtype(x));
    if outer != 1 {
        return graph.reduce(ReduceOp::Mean, x, layout);
    }
    let sum = graph.sum_along(x, layout)?;
    let sum = if dtype == wide(dtype) { sum } else { graph.unrounded(sum) };
    let mean = graph.map(MapOp::Mul, Arg::Node(sum), Arg::Number(1.0 / len as f64))?;
    Ok(graph.convert(mean, dtype))
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        /// Elementwise functions.
        impl Var {
            $($(#[$doc])* pub fn $name(&self) -> Var { self.map(MapOp::$op, self.into()) })*
        }
    };
}
unary! {
    /// `-a`.
    neg => Neg;
    /// `e^a`.
    exp => Exp;
    /// The natural logarithm.
    log => Log;
    /// The square root.
    sqrt => Sqrt;
    /// `|a|`; its derivative at 0 is 0.
    abs => Abs;
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        /// Elementwise functions of two operands that broadcast as in PyTorch.
        impl Var {
            $($(#[$doc])* pub fn $name(&self, b: impl Into<Term>) -> Var { self.map(MapOp::$op, b.into()) })*
        }
    };
}
binary! {
    /// `a + b`.
    add => Add;
    /// `a - b`.
    sub => Sub;
    /// `a * b`.
    mul => Mul;
    /// `a / b`.
    div => Div;
    /// `a^b`.
    pow => Pow;
    /// The larger of the two; where they are equal, the gradient is `a`'s.
    maximum => Maximum;
    /// The smaller of the two; where they are equal, the gradient is `a`'s.
    minimum => Minimum;
}

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident => $activation:ident;)*) => {
        /// Activations.
        impl Var {
            $($(#[$doc])* pub fn $name(&self) -> Var { self.activation(Activation::$activation) })*
        }
    };
}
activations! {
    /// `max(a, 0)`.
    relu => Relu;
    /// `a·Φ(a)` with the error function.
    gelu => Gelu;
    /// GELU in its tanh approximation.
    gelu_tanh => GeluTanh;
    /// `a·sigmoid(a)`.
    silu => Silu;
    /// Hyperbolic tangent.
    tanh => Tanh;
    /// `1 / (1 + e^-a)`.
    sigmoid => Sigmoid;
}

/// Comparison and selection.
impl Var {
    /// `a == b`, as bool.
    pub fn eq(&self, b: impl Into<Term>) -> Var {
        self.compare(CompareOp::Eq, b.into())
    }

    /// `a < b`, as bool.
    pub fn lt(&self, b: impl Into<Term>) -> Var {
        self.compare(CompareOp::Lt, b.into())
    }

    /// `a > b`, as bool.
    pub fn gt(&self, b: impl Into<Term>) -> Var {
        self.compare(CompareOp::Gt, b.into())
    }

    /// `min(max(a, low), high)`.
    pub fn clamp(&self, low: f64, high: f64) -> Var {
        self.maximum(low).minimum(high)
    }

    /// Elements of this value where `condition` is true, else elements of `b`.
    pub fn where_(&self, condition: &Var, b: impl Into<Term>) -> Var {
        let (a, b) = (Arg::Node(self.id), self.arg(&b.into()));
        let Arg::Node(condition) = self.arg(&condition.into()) else { unreachable!("a value") };
        self.record(&self.dims(), |graph| graph.select(condition, a, b))
    }

    /// This value with `number` where `mask` is true.
    pub fn masked_fill(&self, mask: &Var, number: f64) -> Var {
        let (a, dims) = (Arg::Node(self.id), self.dims());
        let Arg::Node(mask) = self.arg(&mask.into()) else { unreachable!("a value") };
        self.record(&dims, |graph| {
            if shapes::broadcast(&dims, graph.dims(mask)).as_ref() != Some(&dims) {
                return Err(graph.mismatch("masked_fill", [a, Arg::Node(mask)], "broadcast"));
            }
            graph.select(mask, Arg::Number(number), a)
        })
    }

    /// Zero below diagonal `diagonal` of the last two dimensions.
    pub fn triu(&self, diagonal: i64) -> Var {
        self.triangle("triu", CompareOp::Lt, diagonal)
    }

    /// Zero above diagonal `diagonal` of the last two dimensions.
    pub fn tril(&self, diagonal: i64) -> Var {
        self.triangle("tril", CompareOp::Gt, diagonal)
    }

    /// Zero where column and row plus `diagonal` compare.
    fn triangle(&self, op: &'static str, compare: CompareOp, diagonal: i64) -> Var {
        let (x, dims) = (self.id, self.dims());
        self.record(&dims, |graph| {
            let [.., rows, columns] = dims[..] else {
                let operand = graph.operand(x, "a").into();
                return Err(KernelError::Shape { op, operand, expected: Shape::matrix(1, numel(&dims)) });
            };
            let line = |start, step| Pattern::Line { start, step };
            let row = graph.fill(line(diagonal as f64, 1.0), &[rows, 1], DType::I64);
            let column = graph.fill(line(0.0, 1.0), &[columns], DType::I64);
            let is_zero = graph.compare(compare, Arg::Node(column), Arg::Node(row))?;
            graph.select(is_zero, Arg::Number(0.0), Arg::Node(x))
        })
    }

    /// One-hot codes along a new last axis of length `n`, in the format `dtype`: 1 at the value, 0 elsewhere; only zeros for a value outside
    /// `0..n`.
    pub fn one_hot(&self, n: usize, dtype: DType) -> Var {
        let (x, own) = (self.id, self.dims());
        let dims = [&own[..], &[n]].concat();
        self.record(&dims, |graph| {
            let format = graph.dtype(x);
            let codes = graph.view(x, &[numel(&own), 1]);
            let line = graph.fill(Pattern::Line { start: 0.0, step: 1.0 }, &[n], format);
            let is_code = graph.compare(CompareOp::Eq, Arg::Node(codes), Arg::Node(line))?;
            let hot = graph.convert(is_code, dtype);
            Ok(graph.view(hot, &dims))
        })
    }

    /// The elements in another number format.
    pub fn to_dtype(&self, dtype: DType) -> Var {
        let x = self.id;
        self.record(&self.dims(), |graph| Ok(graph.convert(x, dtype)))
    }
}

/// Sums, means, extremes, norms and softmax.
impl Var {
    /// The sum of all elements, or along an axis, which the result lacks.
    pub fn sum(&self, axis: impl Into<Option<usize>>) -> Var {
        self.reduce(ReduceOp::Sum, axis.into())
    }

    /// The sum along an axis, which stays with length 1.
    pub fn sum_keepdim(&self, axis: usize) -> Var {
        self.reduce_keepdim(ReduceOp::Sum, axis)
    }

    /// The mean of all elements, or along an axis, which the result lacks.
    pub fn mean(&self, axis: impl Into<Option<usize>>) -> Var {
        self.reduce(ReduceOp::Mean, axis.into())
    }

    /// The mean along an axis, which stays with length 1.
    pub fn mean_keepdim(&self, axis: usize) -> Var {
        self.reduce_keepdim(ReduceOp::Mean, axis)
    }

    /// The largest element, or along an axis; equal ones share the gradient.
    pub fn max(&self, axis: impl Into<Option<usize>>) -> Var {
        self.reduce(ReduceOp::Max, axis.into())
    }

    /// The smallest element, or along an axis; equal ones share the gradient.
    pub fn min(&self, axis: impl Into<Option<usize>>) -> Var {
        self.reduce(ReduceOp::Min, axis.into())
    }

    /// The Euclidean norm, or along an axis; its gradient at 0 is 0.
    pub fn norm(&self, axis: impl Into<Option<usize>>) -> Var {
        self.reduce(ReduceOp::Norm, axis.into())
    }

    /// `e^a / sum(e^a)` along an axis.
    pub fn softmax(&self, axis: usize) -> Var {
        let rows = |x: &Var| {
            let (dims, id) = (x.dims(), x.id);
            let columns = dims.last().copied().unwrap_or(1);
            x.record(&dims, |graph| {
                if !graph.dtype(id).is_float() {
                    let operand = graph.operand(id, "a").into();
                    return Err(KernelError::DTypeUnsupported { op: "softmax", operand, takes: "floats" });
                }
                let rows = graph.view(id, &[numel(&dims) / columns.max(1), columns]);
                let soft = graph.unary(Op::Softmax, rows);
                Ok(graph.view(soft, &dims))
            })
        };
        self.with_axis_last("softmax", axis, rows)
    }

    /// `a - log(sum(e^a))` along an axis.
    pub fn log_softmax(&self, axis: usize) -> Var {
        let format = self.dtype();
        let x = self.to_dtype(wide(format));
        let rows = |x: &Var| {
            let last = x.last_axis();
            let shifted = x - x.detach().reduce_keepdim(ReduceOp::Max, last);
            &shifted - shifted.exp().sum_keepdim(last).log()
        };
        x.with_axis_last("log_softmax", axis, rows).to_dtype(format)
    }

    /// The same value, through which no gradient flows.
    ///
    /// Source: `torch.Tensor.detach`.
    pub fn detach(&self) -> Var {
        let x = self.id;
        self.record(&self.dims(), |graph| Ok(graph.unary(Op::Detach, x)))
    }

    /// `f` of this value with `axis` moved to the end, and back.
    fn with_axis_last(&self, op: &'static str, axis: usize, f: impl Fn(&Var) -> Var) -> Var {
        if let Err(error) = self.around(op, axis) {
            return self.record(&self.dims(), |_| Err(error));
        }
        let last = self.last_axis();
        if axis == last {
            return f(self);
        }
        let mut axes: Vec<usize> = (0..=last).collect();
        axes.swap(axis, last);
        f(&self.permute(&axes)).permute(&axes)
    }

    /// `(a - mean) / sqrt(variance + eps)` along the last axis: times a scale and plus a shift, layer norm.
    pub fn normalize(&self, eps: f64) -> Var {
        let last = self.last_axis();
        let centered = self - self.mean_keepdim(last);
        let variance = (&centered * &centered).mean_keepdim(last);
        centered / (variance + eps).sqrt()
    }
}

/// Shapes and products.
impl Var {
    /// The same elements under another shape.
    pub fn reshape(&self, dims: &[usize]) -> Var {
        let x = self.id;
        self.record(dims, |graph| {
            if graph.numel(x) != numel(dims) {
                let (got, shape) = (graph.numel(x), Shape::new(dims).unwrap_or(Shape::vector(numel(dims))));
                return Err(KernelError::ElementCount { op: "reshape", got, shape });
            }
            Ok(graph.view(x, dims))
        })
    }

    /// The transposed matrix, or a batch of them.
    pub fn t(&self) -> Var {
        match self.dims().len() {
            3 => self.permute(&[0, 2, 1]),
            _ => self.permute(&[1, 0]),
        }
    }

    /// The dimensions in another order: dimension `k` of the result is dimension `axes[k]`; at most 5.
    pub fn permute(&self, axes: &[usize]) -> Var {
        let (x, own) = (self.id, self.dims());
        let is_permutation =
            axes.len() == own.len() && axes.len() <= 5 && (0..own.len()).all(|axis| axes.contains(&axis));
        let dims: Vec<usize> = axes.iter().map(|&axis| own.get(axis).copied().unwrap_or(1)).collect();
        self.record(&dims, |graph| {
            if !is_permutation {
                let operand = graph.operand(x, "a").into();
                return Err(KernelError::Shape { op: "permute", operand, expected: Shape::new(&dims)? });
            }
            Ok(graph.permute(x, axes))
        })
    }

    /// Elements `start..start + len` along `axis`.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Var {
        let (x, mut dims) = (self.id, self.dims());
        if let Some(n) = dims.get_mut(axis) {
            *n = len;
        }
        let around = self.around("narrow", axis);
        self.record(&dims, |graph| {
            let [_, n, _] = around?;
            let end = start.saturating_add(len);
            if end > n {
                return Err(KernelError::OutOfRange { op: "narrow", start, end, len: n });
            }
            Ok(graph.narrow(x, axis, start, len))
        })
    }

    /// Element `index` of the first axis, without that dimension.
    pub fn row(&self, index: usize) -> Var {
        let dims = self.dims();
        self.narrow(0, index, 1).reshape(dims.get(1..).unwrap_or_default())
    }

    /// Values joined along `axis`; their other dimensions are equal.
    ///
    /// # Panics
    /// If there is no value.
    pub fn cat(parts: &[&Var], axis: usize) -> Var {
        let first = parts.first().expect("values to join");
        let mut dims = first.dims();
        let around = first.around("cat", axis);
        let ids: Vec<Arg> = parts.iter().map(|part| first.arg(&(*part).into())).collect();
        if let Some(n) = dims.get_mut(axis) {
            *n = parts.iter().filter_map(|part| part.dims().get(axis).copied()).sum();
        }
        first.record(&dims, |graph| {
            around?;
            for arg in &ids {
                let Arg::Node(id) = *arg else { unreachable!("parts are values") };
                let mut own = graph.dims(id).to_vec();
                if let Some(n) = own.get_mut(axis) {
                    *n = dims[axis];
                }
                if own != dims || graph.dtype(id) != graph.dtype(first.id) {
                    return Err(graph.mismatch("cat", [Arg::Node(first.id), *arg], "join along this axis"));
                }
            }
            let dtype = graph.dtype(first.id);
            Ok(if ids.len() == 1 { first.id } else { graph.push(Op::Cat { axis }, ids, &dims, dtype) })
        })
    }

    /// Values of one shape, joined along a new axis.
    ///
    /// # Panics
    /// If there is no value.
    pub fn stack(parts: &[&Var], axis: usize) -> Var {
        let with_axis: Vec<Var> = parts
            .iter()
            .map(|part| {
                let mut dims = part.dims();
                dims.insert(axis.min(dims.len()), 1);
                part.reshape(&dims)
            })
            .collect();
        Var::cat(&with_axis.iter().collect::<Vec<_>>(), axis)
    }

    /// The matrix product `[M, K]` times `[K, N]`. A transposed factor (`x.t()`) is read in place.
    pub fn matmul(&self, b: &Var) -> Var {
        let dims = [self.dims().first().copied().unwrap_or(1), b.dims().last().copied().unwrap_or(1)];
        self.product("matmul", b, 2, &dims)
    }

    /// The products of two batches of matrices, `[N, M, K]` times `[N, K, P]`. A transposed factor (`x.t()`) is read in place.
    pub fn bmm(&self, b: &Var) -> Var {
        let mut dims = self.dims();
        dims.resize(3, 1);
        dims[2] = b.dims().last().copied().unwrap_or(1);
        self.product("bmm", b, 3, &dims)
    }

    fn product(&self, op: &'static str, b: &Var, n_dims: usize, dims: &[usize]) -> Var {
        let (a, b) = (self.id, self.arg(&b.into()));
        self.record(dims, |graph| {
            let Arg::Node(b) = b else { unreachable!("a value") };
            if graph.dims(a).len() != n_dims || graph.dims(b).len() != n_dims {
                return Err(graph.mismatch(op, [Arg::Node(a), Arg::Node(b)], "multiply"));
            }
            graph.matmul(a, b, [false; 2])
        })
    }
}

//! The operations of an expression, as a list in which each refers to earlier ones, with the shape and format of each result.

use ddp_kernels::ops::{Activation, CompareOp, MapOp, Pattern, ReduceOp};
use ddp_kernels::{DType, Device, KernelError, Operand, Shape};

use super::shapes::{self, numel};

pub(super) type Result<T> = std::result::Result<T, KernelError>;

/// Index of a value in [`Graph::nodes`].
pub(super) type Id = usize;

/// A value that is there before the expression is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaf {
    /// The rows of a layer, the outputs that a loss is computed from.
    Input,
    /// The targets of a loss.
    Targets,
    /// The gradient of the result.
    Gradient,
    /// A parameter of the layer.
    Param(usize),
    /// A registered buffer of the layer.
    Registered(usize),
    /// A tensor of the program.
    Constant(usize),
    /// The result of an operation that failed.
    Invalid,
}

/// An operand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Arg {
    Node(Id),
    Number(f64),
}

impl Arg {
    /// The value that a condition is.
    ///
    /// # Errors
    /// [`KernelError::Misuse`] for a number.
    pub(super) fn value(self, op: &'static str) -> Result<Id> {
        match self {
            Arg::Node(id) => Ok(id),
            Arg::Number(_) => {
                let remedy = "give a value or a tensor of bool, such as `a.gt(0.0)`";
                Err(KernelError::misuse(op, "a number is no condition", remedy))
            }
        }
    }
}

/// An operation, with the settings that are not operands.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Op {
    Leaf(Leaf),
    /// The elements from this one on, in place.
    View(usize),
    /// The same value, through which no gradient flows.
    Detach,
    /// The operand repeated along dimensions of length 1.
    Expand,
    Map(MapOp),
    Compare(CompareOp),
    /// Condition, and the values where it is true and where it is false.
    Select,
    Convert,
    Activation(Activation),
    /// The value that forward saved, and the gradient of the result.
    ActivationBackward(Activation),
    /// Along the last axis.
    Softmax,
    /// Result of the softmax, and its gradient.
    SoftmaxBackward,
    /// Product of two matrices, or of two batches of them.
    Matmul {
        transpose: [bool; 2],
        alpha: f64,
    },
    Permute(Vec<usize>),
    /// The elements from this one on along an axis.
    Narrow {
        axis: usize,
        start: usize,
    },
    Cat {
        axis: usize,
    },
    /// Sum over the rows of a matrix, f32 for rows in a short format.
    ColumnSum,
    /// Reduction of `[outer, len, inner]` along `len`.
    Reduce {
        op: ReduceOp,
        layout: [usize; 3],
    },
    Fill(Pattern),
    /// The operand, whose elements are checked to be whole numbers below this one; on the CPU.
    Codes(usize),
}

/// One operation and its result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) op: Op,
    pub(super) args: Vec<Arg>,
    pub(super) dims: Vec<usize>,
    pub(super) dtype: DType,
}

impl Node {
    pub(super) fn numel(&self) -> usize {
        numel(&self.dims)
    }

    /// The operands that are values.
    pub(super) fn inputs(&self) -> impl Iterator<Item = Id> {
        self.args.iter().filter_map(|arg| match arg {
            Arg::Node(id) => Some(*id),
            Arg::Number(_) => None,
        })
    }
}

/// The operations, each after its operands.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
    pub(super) device: Device,
}

impl Graph {
    pub(super) fn new(device: Device) -> Self {
        Graph { nodes: Vec::new(), device }
    }

    pub(super) fn dims(&self, id: Id) -> &[usize] {
        &self.nodes[id].dims
    }

    pub(super) fn dtype(&self, id: Id) -> DType {
        self.nodes[id].dtype
    }

    pub(super) fn numel(&self, id: Id) -> usize {
        self.nodes[id].numel()
    }

    /// The value as error messages show it.
    pub(super) fn operand(&self, id: Id, name: &'static str) -> Operand {
        let Node { dims, dtype, .. } = &self.nodes[id];
        let shape = Shape::new(dims).unwrap_or(Shape::vector(numel(dims)));
        Operand { name, shape, dtype: *dtype, device: self.device }
    }

    /// Adds an operation, or finds the same one.
    pub(super) fn push(&mut self, op: Op, args: Vec<Arg>, dims: &[usize], dtype: DType) -> Id {
        let node = Node { op, args, dims: dims.to_vec(), dtype };
        match self.nodes.iter().position(|other| *other == node) {
            Some(same) => same,
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        }
    }

    pub(super) fn unary(&mut self, op: Op, x: Id) -> Id {
        let (dims, dtype) = (self.dims(x).to_vec(), self.dtype(x));
        self.push(op, vec![Arg::Node(x)], &dims, dtype)
    }

    /// `op(a, b)`, elementwise with broadcasting.
    pub(super) fn map(&mut self, op: MapOp, a: Arg, b: Arg) -> Result<Id> {
        let ([a, b], dims, dtype) = self.elementwise(op.name(), a, b)?;
        let needs_float = matches!(
            op,
            MapOp::Exp
                | MapOp::Log
                | MapOp::Log1p
                | MapOp::Sqrt
                | MapOp::Sin
                | MapOp::Cos
                | MapOp::Div
                | MapOp::Pow
        );
        if dtype == DType::Bool || needs_float && !dtype.is_float() {
            let takes = if needs_float { "floats" } else { "all but bool" };
            return Err(self.unsupported(op.name(), [a, b], takes));
        }
        Ok(self.push(Op::Map(op), vec![a, b], &dims, dtype))
    }

    /// `op(x)`, elementwise.
    pub(super) fn map_one(&mut self, op: MapOp, x: Id) -> Result<Id> {
        self.map(op, Arg::Node(x), Arg::Node(x))
    }

    /// `op(a, b)`, elementwise with broadcasting, as bool.
    pub(super) fn compare(&mut self, op: CompareOp, a: Arg, b: Arg) -> Result<Id> {
        let ([a, b], dims, _) = self.elementwise(op.name(), a, b)?;
        Ok(self.push(Op::Compare(op), vec![a, b], &dims, DType::Bool))
    }

    /// `condition ? a : b`, elementwise with broadcasting.
    pub(super) fn select(&mut self, condition: Id, a: Arg, b: Arg) -> Result<Id> {
        const OP: &str = "where_";
        if self.dtype(condition) != DType::Bool {
            return Err(self.unsupported(OP, [Arg::Node(condition); 2], "bool"));
        }
        let (_, dims, dtype) = self.elementwise(OP, a, b)?;
        let dims = shapes::broadcast(&dims, self.dims(condition))
            .ok_or_else(|| self.mismatch(OP, [a, b, Arg::Node(condition)], "broadcast"))?;
        let mut args = Vec::with_capacity(3);
        for arg in [Arg::Node(condition), a, b] {
            args.push(self.fit(arg, &dims));
        }
        Ok(self.push(Op::Select, args, &dims, dtype))
    }

    /// The leaves on which `id` depends.
    pub(super) fn leaves_of(&self, id: Id) -> Vec<Leaf> {
        let (mut is_used, mut leaves) = (vec![false; id + 1], Vec::new());
        is_used[id] = true;
        // Operands come before results.
        for id in (0..=id).rev().filter(|&id| self.nodes[id].op != Op::Leaf(Leaf::Invalid)) {
            if !is_used[id] {
                continue;
            }
            self.nodes[id].inputs().for_each(|input| is_used[input] = true);
            if let Op::Leaf(leaf) = self.nodes[id].op {
                leaves.push(leaf);
            }
        }
        leaves
    }

    /// Whether `id` is a sum over `n` rows, of terms that no number divides by about as much.
    pub(super) fn is_sum(&self, id: Id, n: usize) -> bool {
        match self.nodes[id].op {
            Op::View(_) | Op::Convert | Op::Map(MapOp::Neg) => self.is_sum(self.first_input(id), n),
            Op::ColumnSum | Op::Reduce { op: ReduceOp::Sum, .. } => {
                let mut term = self.first_input(id);
                while matches!(self.nodes[term].op, Op::View(_) | Op::Convert | Op::Map(MapOp::Neg)) {
                    term = self.first_input(term);
                }
                let Node { op, args, .. } = &self.nodes[term];
                let factor = args.iter().find_map(|arg| match (op, arg) {
                    (Op::Map(MapOp::Mul), Arg::Number(number)) => Some(number.abs()),
                    (Op::Map(MapOp::Div), Arg::Number(number)) => Some(1.0 / number.abs()),
                    _ => None,
                });
                self.dims(term).first() == Some(&n) && factor.is_none_or(|factor| factor * n as f64 > 1.5)
            }
            _ => false,
        }
    }

    /// Whether the first axis of each value up to `last` is that of the `n` rows, or of groups of values of a row after another.
    fn are_by_rows(&self, last: Id, n: usize) -> Vec<bool> {
        let mut are = vec![false; last + 1];
        for id in 0..=last {
            let Node { op, args, dims, .. } = &self.nodes[id];
            let first = dims.first().copied().unwrap_or(0);
            if first == 0 || first % n != 0 {
                continue;
            }
            let of = |arg: &Arg| matches!(arg, Arg::Node(input) if are[*input]);
            let whole = |arg: &Arg| matches!(arg, Arg::Node(input) if self.numel(*input) == self.numel(id));
            are[id] = match op {
                Op::Leaf(Leaf::Input | Leaf::Targets) => true,
                Op::Reduce { layout: [outer, ..], .. } => outer % n == 0 && args.iter().any(of),
                Op::Narrow { axis, .. } | Op::Cat { axis } => *axis > 0 && args.iter().any(of),
                Op::View(_) => args.iter().all(|arg| of(arg) && whole(arg)),
                Op::Matmul { transpose: [false, _], .. } => args.first().is_some_and(of),
                Op::Permute(axes) => axes.first() == Some(&0) && args.iter().any(of),
                Op::Map(_) | Op::Compare(_) | Op::Select | Op::Convert | Op::Activation(_) => {
                    args.iter().any(of)
                }
                Op::Detach | Op::Expand | Op::Softmax | Op::Codes(_) => args.iter().any(of),
                _ => false,
            };
        }
        are
    }

    /// Refuses values of the rows, `[n]` next to `[n, 1]`, in a loss: they would become a value for each pair of rows.
    fn check_rows(&self, op: &'static str, a: Id, b: Id) -> Result<()> {
        let is_pair = |rows: Id, column: Id| match (self.dims(rows), self.dims(column)) {
            (&[n], &[m, 1]) => n == m && n > 1,
            _ => false,
        };
        let is_loss = || self.nodes.iter().any(|node| node.op == Op::Leaf(Leaf::Targets));
        let n = self.numel(a);
        let are_of_rows = || {
            let are = self.are_by_rows(a.max(b), n);
            are[a] && are[b]
        };
        if !(is_pair(a, b) || is_pair(b, a)) || !is_loss() || !are_of_rows() {
            return Ok(());
        }
        Err(KernelError::ShapeMismatch {
            op,
            a: self.operand(a, "a").into(),
            b: self.operand(b, "b").into(),
            rule: "pair the values of each row",
            fix: format!(
                "`.reshape(&[{n}, 1])` compares row by row, `.reshape(&[1, {n}])` every row with every other"
            )
            .into(),
        })
    }

    /// Operands that kernels can repeat to the shape of the result, its shape, and the format of the operands.
    fn elementwise(&mut self, op: &'static str, a: Arg, b: Arg) -> Result<([Arg; 2], Vec<usize>, DType)> {
        let (dims, dtype) = match (a, b) {
            (Arg::Node(a), Arg::Node(b)) => {
                if self.dtype(a) != self.dtype(b) {
                    let (a, b) = (self.operand(a, "a").into(), self.operand(b, "b").into());
                    return Err(KernelError::DTypeMismatch { op, a, b });
                }
                self.check_rows(op, a, b)?;
                let dims = shapes::broadcast(self.dims(a), self.dims(b));
                (
                    dims.ok_or_else(|| self.mismatch(op, [Arg::Node(a), Arg::Node(b)], "broadcast"))?,
                    self.dtype(a),
                )
            }
            (Arg::Node(x), Arg::Number(_)) | (Arg::Number(_), Arg::Node(x)) => {
                (self.dims(x).to_vec(), self.dtype(x))
            }
            (Arg::Number(_), Arg::Number(_)) => unreachable!("an operation of two numbers is a number"),
        };
        Ok(([self.fit(a, &dims), self.fit(b, &dims)], dims, dtype))
    }

    /// The same elements under another shape with as many.
    pub(super) fn view(&mut self, x: Id, dims: &[usize]) -> Id {
        self.view_from(x, 0, dims)
    }

    /// Elements of `x` from `start` on under this shape.
    pub(super) fn view_from(&mut self, x: Id, start: usize, dims: &[usize]) -> Id {
        let (x, start) = match self.nodes[x].op {
            Op::View(before) => (self.first_input(x), before + start),
            _ => (x, start),
        };
        if start == 0 && self.dims(x) == dims {
            return x;
        }
        let dtype = self.dtype(x);
        self.push(Op::View(start), vec![Arg::Node(x)], dims, dtype)
    }

    pub(super) fn first_input(&self, id: Id) -> Id {
        self.nodes[id].inputs().next().expect("an operation of a value")
    }

    pub(super) fn permute(&mut self, x: Id, axes: &[usize]) -> Id {
        let dims: Vec<usize> = axes.iter().map(|&axis| self.dims(x)[axis]).collect();
        let dtype = self.dtype(x);
        self.push(Op::Permute(axes.to_vec()), vec![Arg::Node(x)], &dims, dtype)
    }

    /// Elements `start..start + len` along `axis`.
    pub(super) fn narrow(&mut self, x: Id, axis: usize, start: usize, len: usize) -> Id {
        let mut dims = self.dims(x).to_vec();
        let [outer, n, inner] = shapes::around(&dims, axis..axis + 1);
        if (start, len) == (0, n) {
            return x;
        }
        dims[axis] = len;
        if outer == 1 {
            return self.view_from(x, start * inner, &dims);
        }
        let dtype = self.dtype(x);
        self.push(Op::Narrow { axis, start }, vec![Arg::Node(x)], &dims, dtype)
    }

    pub(super) fn convert(&mut self, x: Id, dtype: DType) -> Id {
        if self.dtype(x) == dtype {
            return x;
        }
        let dims = self.dims(x).to_vec();
        self.push(Op::Convert, vec![Arg::Node(x)], &dims, dtype)
    }

    pub(super) fn fill(&mut self, pattern: Pattern, dims: &[usize], dtype: DType) -> Id {
        self.push(Op::Fill(pattern), Vec::new(), dims, dtype)
    }

    pub(super) fn zeros(&mut self, dims: &[usize], dtype: DType) -> Id {
        self.fill(Pattern::Line { start: 0.0, step: 0.0 }, dims, dtype)
    }

    pub(super) fn mismatch<const N: usize>(
        &self,
        op: &'static str,
        args: [Arg; N],
        rule: &'static str,
    ) -> KernelError {
        let mut ids = args.into_iter().filter_map(|arg| match arg {
            Arg::Node(id) => Some(id),
            Arg::Number(_) => None,
        });
        let a = ids.next().expect("two values");
        let b = ids.next_back().unwrap_or(a);
        let fix = match rule {
            "multiply" => {
                "the columns of a, or its last dimension, are the rows of b: use t(), permute(..) or reshape(..)"
            }
            _ => "use reshape(..) or narrow(..): dimensions, from the last on, must be equal or 1",
        };
        let (a, b) = (self.operand(a, "a").into(), self.operand(b, "b").into());
        KernelError::ShapeMismatch { op, a, b, rule, fix: fix.into() }
    }

    pub(super) fn unsupported(&self, op: &'static str, args: [Arg; 2], takes: &'static str) -> KernelError {
        let ids = args.iter().filter_map(|arg| match arg {
            Arg::Node(id) => Some(*id),
            Arg::Number(_) => None,
        });
        let operand = ids.into_iter().next().map(|id| self.operand(id, "a")).expect("a value").into();
        KernelError::DTypeUnsupported { op, operand, takes }
    }
}

/// The format of sums of this format.
pub(super) fn wide(dtype: DType) -> DType {
    if matches!(dtype, DType::BF16 | DType::F16) { DType::F32 } else { dtype }
}

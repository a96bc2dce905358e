//! Broadcasting and its reverse: operands that are repeated, and sums along axes.

use ddp_kernels::KernelError;
use ddp_kernels::ops::ReduceOp;

use super::graph::{Arg, Graph, Id, Op, Result, wide};
use super::shapes;

impl Graph {
    /// The operand, if kernels can repeat it to `dims`; else a copy of that shape.
    pub(super) fn fit(&mut self, arg: Arg, dims: &[usize]) -> Arg {
        match arg {
            Arg::Node(x) if self.dims(x) != dims && !shapes::is_cyclic(self.dims(x), dims) => {
                Arg::Node(self.expand(x, dims))
            }
            _ => arg,
        }
    }

    /// `x` repeated to `dims`, to which it broadcasts.
    pub(super) fn expand(&mut self, x: Id, dims: &[usize]) -> Id {
        if self.dims(x) == dims {
            return x;
        }
        if shapes::is_cyclic(self.dims(x), dims) {
            return self.expanded(x, dims);
        }
        // One run of axes at a time, as a matrix whose rows or columns are repeated.
        let mut own = shapes::padded(self.dims(x), dims.len());
        let mut x = x;
        for axes in shapes::repeated_axes(&own, dims) {
            let [outer, _, inner] = shapes::around(&own, axes.clone());
            let [_, len, _] = shapes::around(dims, axes.clone());
            x = if outer == 1 || inner == 1 {
                let from = self.view(x, &[outer, 1, inner]);
                self.expanded(from, &[outer, len, inner])
            } else {
                let from = self.view(x, &[1, outer * inner]);
                let repeated = self.expanded(from, &[len, outer * inner]);
                let repeated = self.view(repeated, &[len, outer, inner]);
                self.permute(repeated, &[1, 0, 2])
            };
            own[axes.clone()].copy_from_slice(&dims[axes]);
        }
        self.view(x, dims)
    }

    fn expanded(&mut self, x: Id, dims: &[usize]) -> Id {
        let dtype = self.dtype(x);
        self.push(Op::Expand, vec![Arg::Node(x)], dims, dtype)
    }

    /// The sum of `x` over the dimensions along which `dims` is repeated to its shape: the gradient of a broadcast operand.
    pub(super) fn sum_to(&mut self, x: Id, dims: &[usize]) -> Result<Id> {
        if self.dims(x) == dims {
            return Ok(x);
        }
        let mut large = self.dims(x).to_vec();
        let small = shapes::padded(dims, large.len());
        let mut x = x;
        for axes in shapes::repeated_axes(&small, &large) {
            let [outer, len, inner] = shapes::around(&large, axes.clone());
            x = self.sum_along(x, [outer, len, inner])?;
            large[axes].fill(1);
        }
        Ok(self.view(x, dims))
    }

    /// The sum of `x`, read as `[outer, len, inner]`, along `len`: `[outer, inner]`.
    pub(super) fn sum_along(&mut self, x: Id, layout: [usize; 3]) -> Result<Id> {
        let [outer, len, inner] = layout;
        if outer != 1 {
            return self.reduce(ReduceOp::Sum, x, layout);
        }
        let dtype = self.dtype(x);
        if inner == 1 && dtype.is_float() {
            // Sums of columns are in f32, side by side; a single one would stop at 2^24 ones. Rounded once, at the end.
            let exact = self.convert(x, wide(dtype));
            let sum = self.reduce(ReduceOp::Sum, exact, layout)?;
            return Ok(self.convert(sum, dtype));
        }
        if !dtype.is_float() {
            return Err(self.unsupported("sum", [Arg::Node(x); 2], "floats"));
        }
        let rows = self.view(x, &[len, inner]);
        let sum = self.push(Op::ColumnSum, vec![Arg::Node(rows)], &[outer, inner], wide(dtype));
        Ok(self.convert(sum, dtype))
    }

    /// A reduction of `x`, read as `[outer, len, inner]`, along `len`: `[outer, inner]`.
    pub(super) fn reduce(&mut self, op: ReduceOp, x: Id, layout: [usize; 3]) -> Result<Id> {
        let (dtype, [outer, len, inner]) = (self.dtype(x), layout);
        if !dtype.is_float() {
            return Err(self.unsupported(op.name(), [Arg::Node(x); 2], "floats"));
        }
        if len == 0 && outer * inner > 0 && matches!(op, ReduceOp::Max | ReduceOp::Min | ReduceOp::ArgMax) {
            let operand = self.operand(x, "a").into();
            return Err(KernelError::EmptyReduction { op: op.name(), operand });
        }
        Ok(self.push(Op::Reduce { op, layout }, vec![Arg::Node(x)], &[outer, inner], dtype))
    }
}

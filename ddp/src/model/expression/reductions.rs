//! Reductions of values, softmax, and norms of rows.

use ddp_kernels::KernelError;
use ddp_kernels::ops::{MapOp, ReduceOp};

use super::graph::{Arg, Graph, Id, Op, Result, wide};
use super::shapes::numel;
use super::var::Var;

impl Var {
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

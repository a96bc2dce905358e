//! Reductions of values, softmax, and norms of rows.

use ddp_kernels::ops::{MapOp, ReduceOp};
use ddp_kernels::{Axes, Axis, KernelError, keepdim};

use super::graph::{Arg, Graph, Id, Op, Result, wide};
use super::shapes::{self, numel};
use super::var::Var;

impl Var {
    /// A reduction along axes, all at once.
    fn reduce(&self, op: ReduceOp, axes: &Axes) -> Var {
        let indices = match self.axes(op.name(), axes) {
            Ok(indices) => indices,
            Err(error) => return self.failed(error),
        };
        let dims = self.dims();
        let is_reduced = |axis: usize| indices.contains(&axis);
        let lens = |keeps: &dyn Fn(usize) -> bool| -> Vec<usize> {
            (0..dims.len()).filter(|axis| keeps(*axis)).map(|axis| dims[axis]).collect()
        };
        let kept: Vec<usize> =
            (0..dims.len()).map(|axis| if is_reduced(axis) { 1 } else { dims[axis] }).collect();
        let shape = if axes.is_kept() { kept } else { lens(&|axis| !is_reduced(axis)) };
        let are_neighbors = indices.windows(2).all(|pair| pair[1] == pair[0] + 1);
        if are_neighbors && !indices.is_empty() {
            let layout = shapes::around(&dims, indices[0]..indices[0] + indices.len());
            return self.reduce_along(op, layout, &shape);
        }
        // The others in front.
        let order: Vec<usize> =
            (0..dims.len()).filter(|axis| !is_reduced(*axis)).chain(indices.iter().copied()).collect();
        let [outer, len] =
            [lens(&|axis| !is_reduced(axis)), lens(&|axis| is_reduced(axis))].map(|lens| numel(&lens));
        self.permute(&order).reduce_along(op, [outer, len, 1], &shape)
    }

    /// A reduction of these elements, `[outer, len, inner]`, along `len`, as a value of shape `dims`.
    fn reduce_along(&self, op: ReduceOp, layout: [usize; 3], dims: &[usize]) -> Var {
        let x = self.id;
        self.record(dims, |graph| {
            let reduced = match op {
                ReduceOp::Sum => graph.sum_along(x, layout)?,
                ReduceOp::Mean => mean_along(graph, x, layout)?,
                _ => graph.reduce(op, x, layout)?,
            };
            Ok(graph.view(reduced, dims))
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

/// Sums, means, extremes, norms and softmax.
impl Var {
    /// The sum of all elements (`None`), or along axes, which the result lacks, or keeps with [`keepdim`](ddp_kernels::keepdim).
    pub fn sum(&self, axes: impl Into<Axes>) -> Var {
        self.reduce(ReduceOp::Sum, &axes.into())
    }

    /// The sum along an axis, which stays with length 1.
    pub fn sum_keepdim(&self, axes: impl Into<Axes>) -> Var {
        self.sum(keepdim(axes))
    }

    /// The mean of all elements, or along axes.
    pub fn mean(&self, axes: impl Into<Axes>) -> Var {
        self.reduce(ReduceOp::Mean, &axes.into())
    }

    /// The mean along an axis, which stays with length 1.
    pub fn mean_keepdim(&self, axes: impl Into<Axes>) -> Var {
        self.mean(keepdim(axes))
    }

    /// The largest element, or along axes; equal ones share the gradient.
    pub fn max(&self, axes: impl Into<Axes>) -> Var {
        self.reduce(ReduceOp::Max, &axes.into())
    }

    /// The smallest element, or along axes; equal ones share the gradient.
    pub fn min(&self, axes: impl Into<Axes>) -> Var {
        self.reduce(ReduceOp::Min, &axes.into())
    }

    /// `ln(sum(e^a))` of all elements, or along axes, without overflow; 16-bit formats are computed in f32.
    ///
    /// Source: `torch.logsumexp`.
    pub fn logsumexp(&self, axes: impl Into<Axes>) -> Var {
        let axes = axes.into();
        let x = self.to_dtype(wide(self.dtype()));
        let shift = |axes: Axes| {
            let largest = x.detach().max(axes);
            // Of infinite elements alone the difference is NaN.
            largest.masked_fill(largest.abs().eq(f64::INFINITY), 0.0)
        };
        let sum = (&x - shift(keepdim(axes.clone()))).exp().sum(axes.clone()).log();
        (sum + shift(axes)).to_dtype(self.dtype())
    }

    /// The Euclidean norm, or along axes; its gradient at 0 is 0.
    pub fn norm(&self, axes: impl Into<Axes>) -> Var {
        self.reduce(ReduceOp::Norm, &axes.into())
    }

    /// The variance of all elements, or along axes: the sum of squared differences from the mean over `n - 1`.
    pub fn var(&self, axes: impl Into<Axes>) -> Var {
        let axes = axes.into();
        let n = match self.n_along("var", &axes) {
            Ok(n) => n,
            Err(error) => return self.failed(error),
        };
        let centered = self.centered(&axes);
        ((&centered * &centered).sum(axes) / (n as f64 - 1.0)).to_dtype(self.dtype())
    }

    /// The square root of the [variance](Var::var); its gradient is 0 where the variance is.
    pub fn std(&self, axes: impl Into<Axes>) -> Var {
        let axes = axes.into();
        match self.n_along("std", &axes) {
            Ok(n) => (self.centered(&axes).norm(axes) / (n as f64 - 1.0).sqrt()).to_dtype(self.dtype()),
            Err(error) => self.failed(error),
        }
    }

    /// Number of elements along these axes.
    fn n_along(&self, op: &'static str, axes: &Axes) -> Result<usize> {
        let dims = self.dims();
        Ok(self.axes(op, axes)?.into_iter().map(|axis| dims[axis]).product())
    }

    /// Differences from the means along these axes, which are not rounded to a short format.
    fn centered(&self, axes: &Axes) -> Var {
        let x = self.to_dtype(wide(self.dtype()));
        &x - x.mean(keepdim(axes.clone()))
    }

    /// `e^a / sum(e^a)` along an axis.
    pub fn softmax(&self, axis: impl Into<Axis>) -> Var {
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
    pub fn log_softmax(&self, axis: impl Into<Axis>) -> Var {
        let format = self.dtype();
        if self.dims().contains(&0) {
            return self.clone();
        }
        let x = self.to_dtype(wide(format));
        let rows = |x: &Var| {
            let last = x.last_axis();
            let shifted = x - x.detach().max(keepdim(last));
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
    pub(super) fn with_axis_last(
        &self,
        op: &'static str,
        axis: impl Into<Axis>,
        f: impl Fn(&Var) -> Var,
    ) -> Var {
        let axis = match self.axis(op, axis) {
            Ok(axis) => axis,
            Err(error) => return self.failed(error),
        };
        let last = self.last_axis();
        if axis == last {
            return f(self);
        }
        let mut axes: Vec<usize> = (0..=last).collect();
        axes.swap(axis, last);
        f(&self.permute(&axes)).permute(&axes)
    }

    /// `a / max(|a|, 1e-12)` with the lengths `|a|` along an axis.
    pub fn normalize(&self, axis: impl Into<Axis>) -> Var {
        // Squares of short formats overflow, and 1e-24 is 0 in f16.
        let exact = self.to_dtype(wide(self.dtype()));
        let squares = (&exact * &exact).sum(keepdim(axis.into()));
        (exact / squares.maximum(1e-24).sqrt()).to_dtype(self.dtype())
    }

    /// `(a - mean) / sqrt(variance + eps)` along the last axis: times a scale and plus a shift, a layer norm.
    pub fn layer_norm(&self, eps: f64) -> Var {
        let last = self.last_axis();
        let centered = self.centered(&last.into());
        let variance = (&centered * &centered).mean_keepdim(last);
        (centered / (variance + eps).sqrt()).to_dtype(self.dtype())
    }
}

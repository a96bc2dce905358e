//! Reductions, running sums, softmax and log-softmax.

use super::axes::keepdim;
use crate::base::check;
use crate::ops::{ReduceOp, ScanOp, reduce, scan};
use crate::{Axes, Axis, DType, KernelError, Result, Shape, Tensor, TensorRef};

readable! {
    /// The sum of all elements (`None`), a tensor without dimensions, or along one axis or several, which the result lacks; with
    /// [`keepdim`], it keeps them with length 1.
    ///
    /// Sums of floats are in f64 and rounded once; the order depends on the shape only, not on the number of threads. The sum of
    /// integers and of bool is i64, as in PyTorch.
    ///
    /// ```
    /// use ddp_kernels::{keepdim, tensor};
    ///
    /// let x = tensor![[1., 2.], [3., 4.]];
    /// assert_eq!(x.sum(None)?.item::<f32>()?, 10.0);
    /// assert_eq!(x.sum(-1)?.to_vec::<f32>()?, [3.0, 7.0]);
    /// assert_eq!(x.sum(keepdim([0, 1]))?.dims(), [1, 1]);
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::Axis`] for an axis that is not there or is given twice; as [`Tensor::zeros`].
    pub fn sum(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.view().reduced("sum", ReduceOp::Sum, &axes.into())
    }

    /// The mean of all elements, or along axes; of floats.
    ///
    /// # Errors
    /// Same as [`Tensor::sum`]; [`KernelError::DTypeUnsupported`] for integers.
    pub fn mean(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.view().reduced("mean", ReduceOp::Mean, &axes.into())
    }

    /// The product of all elements, or along axes, in f64 and rounded once; of integers and bool in i64.
    ///
    /// # Errors
    /// Same as [`Tensor::sum`].
    pub fn prod(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.view().product(&axes.into())
    }

    /// The variance of all elements, or along axes: the sum of squared differences from the mean over `n - 1`, as PyTorch's default;
    /// of floats, 16-bit floats computed in f32. NaN for fewer than two elements.
    ///
    /// # Errors
    /// Same as [`Tensor::mean`].
    pub fn var(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.view().spread("var", &axes.into())
    }

    /// The standard deviation: the root of [`Tensor::var`].
    ///
    /// # Errors
    /// Same as [`Tensor::mean`].
    pub fn std(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.view().spread("std", &axes.into())
    }

    /// The largest element, or along axes; NaN if there is one. Unlike PyTorch's, it returns no indices: [`Tensor::argmax`] does.
    ///
    /// # Errors
    /// Same as [`Tensor::sum`]; [`KernelError::EmptyReduction`].
    pub fn max(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.view().reduced("max", ReduceOp::Max, &axes.into())
    }

    /// The middle of the elements in order, the lower one of two, of all elements or along axes; NaN if there is one. Unlike PyTorch's,
    /// it returns no indices.
    ///
    /// # Errors
    /// Same as [`Tensor::max`].
    ///
    /// Source: `torch.median`.
    pub fn median(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.view().middle(&axes.into())
    }

    /// `ln(sum(e^a))` of all elements, or along axes, without overflow; of floats, 16-bit floats computed in f32.
    ///
    /// # Errors
    /// Same as [`Tensor::max`]; [`KernelError::DTypeUnsupported`] for integers.
    ///
    /// Source: `torch.logsumexp`.
    pub fn logsumexp(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.view().log_sum("logsumexp", &axes.into())
    }

    /// The smallest element, or along axes; NaN if there is one.
    ///
    /// # Errors
    /// Same as [`Tensor::max`].
    pub fn min(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.view().reduced("min", ReduceOp::Min, &axes.into())
    }

    /// The index of the first of the largest elements, along an axis or in row-major order of several, as i64; NaN counts as the
    /// largest.
    ///
    /// # Errors
    /// Same as [`Tensor::max`].
    pub fn argmax(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.view().reduced("argmax", ReduceOp::ArgMax, &axes.into())
    }

    /// The index of the first of the smallest elements, as [`Tensor::argmax`]; NaN counts as the smallest.
    ///
    /// # Errors
    /// Same as [`Tensor::max`].
    pub fn argmin(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.view().smallest(&axes.into())
    }

    /// The Euclidean norm of all elements, or along axes; of floats.
    ///
    /// # Errors
    /// Same as [`Tensor::mean`].
    pub fn norm(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.view().reduced("norm", ReduceOp::Norm, &axes.into())
    }

    /// Whether any element is not 0 (or true); false for no element.
    ///
    /// # Errors
    /// Same as [`Tensor::sum`].
    pub fn any(&self) -> Result<Tensor> {
        self.any_along(None)
    }

    /// [`Tensor::any`] along axes.
    ///
    /// # Errors
    /// Same as [`Tensor::sum`].
    pub fn any_along(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.ne(0)?.view().reduced("any", ReduceOp::Sum, &axes.into())?.gt(0)
    }

    /// Whether all elements are not 0 (or true); true for no element.
    ///
    /// # Errors
    /// Same as [`Tensor::sum`].
    pub fn all(&self) -> Result<Tensor> {
        self.all_along(None)
    }

    /// [`Tensor::all`] along axes.
    ///
    /// # Errors
    /// Same as [`Tensor::sum`].
    pub fn all_along(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        self.eq(0)?.view().reduced("all", ReduceOp::Sum, &axes.into())?.eq(0)
    }

    /// The sums of all elements up to each along an axis, in f64, each rounded once; of integers and bool in i64.
    ///
    /// ```
    /// use ddp_kernels::tensor;
    /// assert_eq!(tensor![1., 2., 3.].cumsum(0)?.to_vec::<f32>()?, [1.0, 3.0, 6.0]);
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::Axis`]; as [`Tensor::zeros`].
    pub fn cumsum(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        self.view().scanned("cumsum", ScanOp::Sum, axis.into())
    }

    /// The products of all elements up to each along an axis, as [`Tensor::cumsum`].
    ///
    /// # Errors
    /// Same as [`Tensor::cumsum`].
    pub fn cumprod(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        self.view().scanned("cumprod", ScanOp::Product, axis.into())
    }

    /// `e^a / sum(e^a)` along an axis; 16-bit floats are computed in f32.
    ///
    /// # Errors
    /// [`KernelError::Axis`]; [`KernelError::DTypeUnsupported`] for integers; as [`Tensor::zeros`].
    pub fn softmax(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        self.view().normalized("softmax", axis.into(), |_, exponentials, sums| exponentials.div(sums))
    }

    /// `a - log(sum(e^a))` along an axis; 16-bit floats are computed in f32.
    ///
    /// # Errors
    /// Same as [`Tensor::softmax`].
    pub fn log_softmax(&self, axis: impl Into<Axis>) -> Result<Tensor> {
        self.view().normalized("log_softmax", axis.into(), |shifted, _, sums| shifted.sub(&sums.log()?))
    }
}

impl TensorRef<'_> {
    fn reduced(self, op: &'static str, reduce_op: ReduceOp, axes: &Axes) -> Result<Tensor> {
        self.along(op, axes, |x, axis, shape| {
            let dtype = reduce_op.result_dtype(x.dtype());
            let mut out = Tensor::for_result(self.memory_use(), shape, dtype, self.device())?;
            reduce(reduce_op, x, axis, out.new_view_mut())?;
            Ok(out)
        })
    }

    /// Calls `f` with this tensor, the axis to reduce (None for all) and the shape of the result. Of several axes, `f` gets a view or a
    /// copy in which they are one.
    fn along(
        self,
        op: &'static str,
        axes: &Axes,
        f: impl FnOnce(TensorRef<'_>, Option<usize>, Shape) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let own = self.dims();
        let mask = axes.reduced_mask(op, self.operand("a"))?;
        let (gone, left): (Vec<usize>, Vec<usize>) = (0..own.len()).partition(|&axis| mask[axis]);
        let dims: Vec<usize> = if axes.is_kept() {
            own.iter().zip(mask).map(|(&n, is_gone)| if is_gone { 1 } else { n }).collect()
        } else {
            left.iter().map(|&axis| own[axis]).collect()
        };
        let shape = Shape::new(&dims)?;
        let [first, .., last] = gone[..] else {
            // One axis, or none of a tensor without dimensions.
            return f(self, gone.first().copied(), shape);
        };
        if left.is_empty() {
            return f(self, None, shape);
        }
        let size = |axes: &[usize]| axes.iter().map(|&axis| own[axis]).product::<usize>();
        if last - first + 1 == gone.len() {
            let joined = [own[..first].iter().product(), size(&gone), own[last + 1..].iter().product()];
            return f(self.reshape(&joined)?, Some(1), shape);
        }
        let moved = self.permuted(op, &[left.as_slice(), gone.as_slice()].concat().as_slice().into())?;
        f(moved.view().reshape(&[size(&left), size(&gone)])?, Some(1), shape)
    }

    fn product(self, axes: &Axes) -> Result<Tensor> {
        self.along("prod", axes, |x, axis, shape| {
            let x = if axis.is_none() { x.reshape(&[x.numel()])? } else { x };
            let axis = axis.unwrap_or(0);
            let n = x.dims()[axis];
            if n == 0 {
                let dtype = ScanOp::Product.result_dtype(x.dtype());
                return Tensor::ones(shape.dims(), dtype, x.device());
            }
            x.scanned("prod", ScanOp::Product, axis.into())?.narrow(axis, n - 1, 1)?.into_shape(shape.dims())
        })
    }

    fn scanned(self, op: &'static str, scan_op: ScanOp, axis: Axis) -> Result<Tensor> {
        let axis = axis.index(op, self.operand("a"))?;
        let dtype = scan_op.result_dtype(self.dtype());
        let mut out = Tensor::for_result(self.memory_use(), self.shape(), dtype, self.device())?;
        scan(scan_op, self, axis, out.new_view_mut())?;
        Ok(out)
    }

    /// The variance, or for `std` its root, which squares nothing in the tensor's own format.
    fn spread(self, op: &'static str, axes: &Axes) -> Result<Tensor> {
        check::dtype(op, self.operand("a"), check::FLOATS, check::FLOATS_NAMES)?;
        if check::is_short(self.dtype()) {
            let wide = self.to_dtype(DType::F32)?;
            return wide.view().spread(op, axes)?.to_dtype(self.dtype());
        }
        let mask = axes.reduced_mask(op, self.operand("a"))?;
        let n: usize =
            self.dims().iter().zip(mask).filter(|&(_, is_gone)| is_gone).map(|(&n, _)| n).product();
        let from_mean = |x: TensorRef<'_>| x.sub(&x.reduced(op, ReduceOp::Mean, &keepdim(axes.clone()))?);
        // The second mean is that by which the first one was rounded.
        let differences = from_mean(from_mean(self)?.view())?;
        let freedom = n.saturating_sub(1) as f64;
        if op == "std" {
            return differences.view().reduced(op, ReduceOp::Norm, axes)?.div(freedom.sqrt());
        }
        differences.mul(&differences)?.view().reduced(op, ReduceOp::Sum, axes)?.div(freedom)
    }

    fn middle(self, axes: &Axes) -> Result<Tensor> {
        const OP: &str = "median";
        self.along(OP, axes, |x, axis, shape| {
            let x = if axis.is_none() { x.reshape(&[x.numel()])? } else { x };
            let axis = axis.unwrap_or(0);
            let n = x.dims()[axis];
            if n == 0 {
                return Err(KernelError::EmptyReduction { op: OP, operand: self.operand("a").into() });
            }
            let sorted = x.sort(axis)?.0;
            // NaN is sorted behind all numbers.
            let last = sorted.narrow(axis, n - 1, 1)?;
            let middle = sorted.narrow(axis, (n - 1) / 2, 1)?.where_(last.eq(&last)?, &last)?;
            middle.into_shape(shape.dims())
        })
    }

    fn log_sum(self, op: &'static str, axes: &Axes) -> Result<Tensor> {
        check::dtype(op, self.operand("a"), check::FLOATS, check::FLOATS_NAMES)?;
        if check::is_short(self.dtype()) {
            return self.to_dtype(DType::F32)?.view().log_sum(op, axes)?.to_dtype(self.dtype());
        }
        let largest = self.max(keepdim(axes.clone()))?;
        // Of infinite elements alone the difference is NaN.
        let shift = largest.masked_fill(largest.isinf()?, 0.0)?;
        let sum = self.sub(&shift)?.exp()?.sum(axes.clone())?.log()?;
        let shape = sum.shape();
        sum.add(shift.into_shape(shape.dims())?)
    }

    fn smallest(self, axes: &Axes) -> Result<Tensor> {
        // The same order the other way round.
        let reversed = match self.dtype() {
            DType::Bool => self.eq(false)?,
            dtype if dtype.is_float() => self.neg()?,
            // The smallest integer has no negative: -1 - a exists for all, and wraps to it for unsigned ones.
            _ => self.neg()?.sub(1)?,
        };
        reversed.view().reduced("argmin", ReduceOp::ArgMax, axes).map_err(|error| match error {
            KernelError::EmptyReduction { .. } => {
                KernelError::EmptyReduction { op: "argmin", operand: self.operand("a").into() }
            }
            other => other,
        })
    }

    /// `f` of the elements less the largest along the axis, their exponentials, and the sums of those; in f32 or f64.
    fn normalized(
        self,
        op: &'static str,
        axis: Axis,
        f: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let operand = self.operand("a");
        check::dtype(op, operand, check::FLOATS, check::FLOATS_NAMES)?;
        axis.index(op, operand)?;
        if self.numel() == 0 {
            return self.to_tensor();
        }
        if check::is_short(self.dtype()) {
            return self.to_dtype(DType::F32)?.view().normalized(op, axis, f)?.to_dtype(self.dtype());
        }
        let shifted = self.sub(&self.max(keepdim(axis))?)?;
        let exponentials = shifted.exp()?;
        let sums = exponentials.sum(keepdim(axis))?;
        f(&shifted, &exponentials, &sums)
    }
}

#[cfg(test)]
mod tests {
    use crate::hint::with_hint;
    use crate::ops::testing::{devices, random};
    use crate::{DType, Result, Tensor, keepdim, tensor};

    /// A reduction's name and result, and its definition for one group of elements.
    type Case<'a> = (&'a str, Result<Tensor>, &'a dyn Fn(&[f64]) -> f64);

    fn numbers(x: Result<Tensor>) -> Vec<f64> {
        x.unwrap().to_dtype(DType::F64).unwrap().to_vec().unwrap()
    }

    /// Every set of axes of a tensor of four dimensions, against groups of elements that agree in all other indices.
    #[test]
    fn each_reduction_along_any_axes_follows_its_definition() {
        const DIMS: [usize; 4] = [2, 3, 4, 5];
        let values: Vec<f32> = random::<f32>(120, 4).iter().map(|v| (v * 8.0).round() / 4.0).collect();
        let index = |e: usize| [e / 60, e / 20 % 3, e / 5 % 4, e % 5];
        for device in devices() {
            let x = Tensor::from_slice(&values, &DIMS, device).unwrap();
            for mask in 1..16 {
                let axes: Vec<isize> =
                    (0..4).filter(|axis| mask >> axis & 1 == 1).map(|axis| axis - 4).collect();
                let axes = axes.as_slice();
                let dims: Vec<usize> =
                    DIMS.iter().enumerate().map(|(i, &n)| if mask >> i & 1 == 1 { 1 } else { n }).collect();
                let mut groups = vec![Vec::new(); dims.iter().product()];
                for (e, &v) in values.iter().enumerate() {
                    let at = index(e);
                    let group = (0..4).fold(0, |at_group, i| {
                        at_group * dims[i] + if mask >> i & 1 == 1 { 0 } else { at[i] }
                    });
                    groups[group].push(f64::from(v));
                }
                let mean = |g: &[f64]| g.iter().sum::<f64>() / g.len() as f64;
                let var = |g: &[f64]| {
                    let m = mean(g);
                    g.iter().map(|v| (v - m) * (v - m)).sum::<f64>() / (g.len() as f64 - 1.0)
                };
                let first = |g: &[f64], best: f64| g.iter().position(|&v| v == best).unwrap() as f64;
                let max = |g: &[f64]| g.iter().copied().fold(f64::MIN, f64::max);
                let min = |g: &[f64]| g.iter().copied().fold(f64::MAX, f64::min);
                let cases: [Case<'_>; 12] = [
                    ("sum", x.sum(axes), &|g| g.iter().sum()),
                    ("mean", x.mean(axes), &mean),
                    ("prod", x.prod(axes), &|g| g.iter().product()),
                    ("var", x.var(axes), &var),
                    ("std", x.std(axes), &|g| var(g).sqrt()),
                    ("max", x.max(axes), &max),
                    ("min", x.min(axes), &min),
                    ("argmax", x.argmax(axes), &|g| first(g, max(g))),
                    ("argmin", x.argmin(axes), &|g| first(g, min(g))),
                    ("norm", x.norm(axes), &|g| g.iter().map(|v| v * v).sum::<f64>().sqrt()),
                    ("any", x.gt(1.5).unwrap().any_along(axes), &|g| f64::from(g.iter().any(|&v| v > 1.5))),
                    ("all", x.gt(-1.5).unwrap().all_along(axes), &|g| f64::from(g.iter().all(|&v| v > -1.5))),
                ];
                for (name, got, want) in cases {
                    let got = got.unwrap();
                    assert_eq!(got.dims().len(), 4 - axes.len(), "{name}");
                    for (i, (got, group)) in numbers(Ok(got)).into_iter().zip(&groups).enumerate() {
                        let want = want(group);
                        // A few roundings in f32.
                        let is_close = (got - want).abs() <= 1e-6 * want.abs().max(1e-3);
                        assert!(
                            is_close,
                            "{name} along {axes:?} on {device}, result {i}: {got}, want {want}"
                        );
                    }
                }
                let (kept, gone) = (x.mean(keepdim(axes)).unwrap(), x.mean(axes).unwrap());
                assert_eq!(kept.dims(), dims);
                assert_eq!(kept.to_vec::<f32>().unwrap(), gone.to_vec::<f32>().unwrap());
            }
            assert_eq!(x.sum(keepdim(None)).unwrap().dims(), [1, 1, 1, 1]);
            assert_eq!(numbers(x.sum([0, 1, 2, 3])), numbers(x.sum(None)));
            let none: &[usize] = &[];
            assert_eq!(numbers(x.var(none)), numbers(x.var(None)));
        }
    }

    #[test]
    fn special_cases_are_pytorchs() {
        for device in devices() {
            let to = |x: Tensor| x.to(device).unwrap();
            let nothing = Tensor::zeros(&[0, 2], DType::F32, device).unwrap();
            assert_eq!(numbers(nothing.prod(0)), [1.0, 1.0]);
            assert_eq!(
                (numbers(nothing.any_along(0)), numbers(nothing.all_along(0))),
                (vec![0.0; 2], vec![1.0; 2])
            );
            assert!(numbers(nothing.var(0)).iter().all(|v| v.is_nan()));
            assert!(numbers(to(tensor![3.]).std(0))[0].is_nan(), "of one element");
            assert!(numbers(to(tensor![1., f32::INFINITY]).var(None))[0].is_nan());
            let nan = to(tensor![1., f32::NAN, 0.]);
            assert_eq!((numbers(nan.argmin(0)), numbers(nan.argmax(0))), (vec![1.0], vec![1.0]));
            assert!(numbers(nan.prod(0))[0].is_nan());
            assert_eq!(
                (numbers(nan.any_along(0)), numbers(nan.all_along(0))),
                (vec![1.0], vec![0.0]),
                "NaN is not 0"
            );
            let extremes = to(tensor![0, i64::MAX, i64::MIN, i64::MIN]);
            assert_eq!((numbers(extremes.argmin(0)), numbers(extremes.argmax(0))), (vec![2.0], vec![1.0]));
            for (dtype, smallest) in [(DType::U8, 1.0), (DType::I32, 1.0), (DType::Bool, 1.0)] {
                let x = to(tensor![1, 0, 1]).to_dtype(dtype).unwrap();
                assert_eq!(numbers(x.argmin(None)), [smallest], "{dtype}");
            }
            let x = to(tensor![[2, 3], [4, 5]]);
            assert_eq!((x.prod(0).unwrap().dtype(), numbers(x.prod(0))), (DType::I64, vec![8.0, 15.0]));
            assert!(x.var(0).is_err() && x.mean([0, 1]).is_err());
            // A mean far from 0, where a difference of squares would be wrong, and 16-bit floats.
            let far = to(tensor![10_000., 10_001., 10_002.]);
            assert_eq!(numbers(far.var(0)), [1.0]);
            // Their mean, 2^24 + 1, is no f32.
            let farther = to(tensor![16_777_216., 16_777_218.]);
            assert_eq!(numbers(farther.var(0)), [2.0]);
            assert_eq!(numbers(to(tensor![0.1, 0.1, 0.1]).var(0)), [0.0]);
            let short = to(tensor![100., 101., 102.]).to_dtype(DType::BF16).unwrap();
            assert_eq!((short.std(0).unwrap().dtype(), numbers(short.std(0))), (DType::BF16, vec![1.0]));
            let message = nothing.argmin(0).unwrap_err().to_string();
            assert!(
                message.starts_with("argmin: a [0, 2] f32") && message.contains("no element"),
                "{message}"
            );
            let message = with_hint(&x.sum([0, -2]).unwrap_err());
            assert!(
                message.starts_with(&format!("sum: a [2, 2] i64 on {device} is given twice the axis -2"))
            );
            let message = with_hint(&x.max(2).unwrap_err());
            assert!(
                message.contains("has no axis 2") && message.contains("hint: axes are 0 to 1"),
                "{message}"
            );
        }
    }
}

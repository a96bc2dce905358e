//! Matrix products that allocate their result.

use crate::base::check;
use crate::base::error::Operand;
use crate::ops::{addmm, bmm, broadcast_shape};
use crate::{AsView, DType, Device, KernelError, Result, Shape, Tensor, TensorRef};

readable! {
    /// The matrix product `[M, K]` times `[K, N]`, also of batches: `[.., M, K]` times `[.., K, N]`, whose first dimensions broadcast.
    /// Vectors count as a row on the left and a column on the right, and the result lacks that dimension.
    ///
    /// Takes floats. f32 sums are in f32; 16-bit floats are multiplied with sums in f32 and rounded once.
    ///
    /// ```
    /// use ddp_kernels::{DType, Tensor, tensor};
    /// let a = tensor![[1., 2.], [3., 4.]];
    /// assert_eq!(a.matmul(&tensor![1., 1.])?.to_vec::<f32>()?, [3.0, 7.0]);
    /// let (q, k) = (Tensor::ones(&[8, 4, 5, 3], DType::F32, "cpu")?, Tensor::ones(&[8, 1, 5, 3], DType::F32, "cpu")?);
    /// assert_eq!(q.matmul(&k.transpose(-1, -2)?)?.dims(), [8, 4, 5, 5]);
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::DeviceMismatch`], [`KernelError::DTypeMismatch`] or [`KernelError::ShapeMismatch`], which name both operands and
    /// the call that fixes it; [`KernelError::DTypeUnsupported`] for integers; on a GPU [`KernelError::Cublas`].
    ///
    /// Source: `torch.matmul`.
    pub fn matmul(&self, b: impl AsView) -> Result<Tensor> {
        self.view().times(b.as_view())
    }

    /// The products of two batches of matrices, `[N, M, K]` times `[N, K, P]`: `[N, M, P]`.
    ///
    /// Takes floats, as [`Tensor::matmul`] does; [`crate::ops::bmm`] writes into memory of the caller and transposes.
    ///
    /// ```
    /// use ddp_kernels::{DType, Device, Tensor};
    /// let a = Tensor::ones(&[4, 2, 3], DType::F32, Device::Cpu)?;
    /// let b = Tensor::ones(&[4, 3, 5], DType::F32, Device::Cpu)?;
    /// assert_eq!(a.bmm(&b)?.to_vec::<f32>()?, [3.0; 40]);
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`crate::ops::bmm`].
    ///
    /// Source: `torch.bmm`.
    pub fn bmm(&self, b: impl AsView) -> Result<Tensor> {
        self.view().batch_product(b.as_view())
    }
}

impl Tensor {
    /// `alpha * a * b + beta * c`, in a new tensor; `c`: `[M, N]`, or `[N]` or `[1]`, repeated over rows. The order of the arguments is
    /// that of [`crate::ops::addmm`], which writes into memory of the caller.
    ///
    /// With `beta = 0`, `c` is not read.
    ///
    /// # Errors
    /// Same as [`Tensor::matmul`].
    ///
    /// Source: `torch.addmm(c, a, b, beta=beta, alpha=alpha)`.
    pub fn addmm(alpha: f64, a: impl AsView, b: impl AsView, beta: f64, c: impl AsView) -> Result<Self> {
        const OP: &str = "addmm";
        let (a, b, c) = (a.as_view(), b.as_view(), c.as_view());
        let (a_op, b_op, c_op) = (a.operand("a"), b.operand("b"), c.operand("c"));
        check::same_kind(OP, &[a_op, b_op, c_op])?;
        for operand in [a_op, b_op] {
            check::matrix(OP, operand)?;
        }
        let [m, _, n] = product_dims(OP, a_op, b_op)?;
        let shape = Shape::matrix(m, n);
        if broadcast_shape(shape, c.shape()) != Some(shape) {
            return Err(crate::ops::shapes_differ(OP, Operand { shape, name: "a * b", ..a_op }, c_op));
        }
        product(alpha, a, b, beta, Some(c))
    }
}

impl TensorRef<'_> {
    fn times(self, b: TensorRef<'_>) -> Result<Tensor> {
        const OP: &str = "matmul";
        let (a_op, b_op) = (self.operand("a"), b.operand("b"));
        check::same_kind(OP, &[a_op, b_op])?;
        let [m, k, n] = product_dims(OP, a_op, b_op)?;
        let (left, right) = (batch_dims(self.dims()), batch_dims(b.dims()));
        // The dimensions of each matrix of the result.
        let mut matrix = vec![m, n];
        if b.dims().len() == 1 {
            matrix.pop();
        }
        if self.dims().len() == 1 {
            matrix.remove(0);
        }
        if right.is_empty() {
            // The rows of all matrices on the left are the rows of one.
            let rows = left.iter().product::<usize>() * m;
            let (a, dims) = (self.reshape(&[rows, k])?, [left, matrix.as_slice()].concat());
            return product(1.0, a, b.reshape(&[k, n])?, 0.0, None)?.into_shape(&dims);
        }
        let Some(batch) = broadcast_shape(Shape::new(left)?, Shape::new(right)?) else {
            let fix = "b.reshape(..): dimensions before the last two must be equal or 1".to_owned();
            return Err(differ(OP, a_op, b_op, fix));
        };
        // Repeated for each matrix of the batch, if necessary.
        let repeated = |x: TensorRef<'_>, own: &[usize], rows: usize, columns: usize| {
            let matrices = x.reshape(&[own, &[rows, columns]].concat())?;
            matrices.expanded(&[batch.dims(), &[rows, columns]].concat())
        };
        let (a_all, b_all);
        let a = if left == batch.dims() {
            self
        } else {
            a_all = repeated(self, left, m, k)?;
            a_all.view()
        };
        let b = if right == batch.dims() {
            b
        } else {
            b_all = repeated(b, right, k, n)?;
            b_all.view()
        };
        let (count, dims) = (batch.numel(), [batch.dims(), matrix.as_slice()].concat());
        a.reshape(&[count, m, k])?.batch_product(b.reshape(&[count, k, n])?)?.into_shape(&dims)
    }

    fn batch_product(self, b: TensorRef<'_>) -> Result<Tensor> {
        if self.device() == Device::Cpu && check::is_short(self.dtype()) && self.dtype() == b.dtype() {
            let (wide, b) = (self.to_dtype(DType::F32)?, b.to_dtype(DType::F32)?);
            return wide.view().batch_product(b.view())?.to_dtype(self.dtype());
        }
        // Other shapes are the operation's error.
        let last = b.dims().last().copied().unwrap_or(0);
        let dims = match *self.dims() {
            [batch, m, _] => [batch, m, last],
            _ => [1, 1, last],
        };
        let mut out = Tensor::for_result(self.memory_use(), Shape::new(&dims)?, self.dtype(), self.device())?;
        bmm(1.0, self, false, b, false, 0.0, out.new_view_mut())?;
        Ok(out)
    }
}

/// `alpha * a * b + beta * c` of checked matrices.
fn product(
    alpha: f64,
    a: TensorRef<'_>,
    b: TensorRef<'_>,
    beta: f64,
    c: Option<TensorRef<'_>>,
) -> Result<Tensor> {
    if a.device() == Device::Cpu && check::is_short(a.dtype()) {
        let wide = |x: TensorRef<'_>| x.to_dtype(DType::F32);
        let (wide_a, wide_b, c) = (wide(a)?, wide(b)?, c.map(wide).transpose()?);
        let c = c.as_ref().map(Tensor::view);
        return product(alpha, wide_a.view(), wide_b.view(), beta, c)?.to_dtype(a.dtype());
    }
    let shape = Shape::matrix(a.dims()[0], b.dims()[1]);
    let (mut out, beta) = match c {
        Some(c) if beta != 0.0 => (c.expanded(shape.dims())?, beta),
        _ => (Tensor::for_result(a.memory_use(), shape, a.dtype(), a.device())?, 0.0),
    };
    addmm(alpha, a, false, b, false, beta, out.new_view_mut())?;
    Ok(out)
}

/// The dimensions before the last two, which are a matrix.
fn batch_dims(dims: &[usize]) -> &[usize] {
    &dims[..dims.len().saturating_sub(2)]
}

/// Checks the matrices of two factors and returns their rows, inner length and columns.
fn product_dims(op: &'static str, a: Operand, b: Operand) -> Result<[usize; 3]> {
    check::dtype(op, a, check::FLOATS, check::FLOATS_NAMES)?;
    let (left, right) = (a.shape.dims(), b.shape.dims());
    let as_matrix = |dims: &[usize], vector: fn(usize) -> [usize; 2]| match *dims {
        [] => None,
        [n] => Some(vector(n)),
        [.., rows, columns] => Some([rows, columns]),
    };
    let t = |name: &str, dims: &[usize]| {
        if dims.len() > 2 { format!("{name}.transpose(-1, -2)") } else { format!("{name}.t()") }
    };
    match (as_matrix(left, |n| [1, n]), as_matrix(right, |n| [n, 1])) {
        (Some([m, k]), Some([rows, n])) if k == rows => Ok([m, k, n]),
        (Some([_, k]), Some([_, columns])) if k == columns => Err(differ(op, a, b, t(b.name, right))),
        (Some([rows, _]), Some([k, _])) if k == rows => Err(differ(op, a, b, t(a.name, left))),
        (Some([_, k]), _) => Err(differ(op, a, b, format!("{}.reshape(&[{k}, ..])", b.name))),
        (None, _) => Err(differ(op, a, b, format!("{}.mul(..): a number has no rows to multiply", a.name))),
    }
}

fn differ(op: &'static str, a: Operand, b: Operand, fix: String) -> KernelError {
    KernelError::ShapeMismatch { op, a: a.into(), b: b.into(), rule: "multiply", fix: fix.into() }
}

#[cfg(test)]
mod tests {
    use crate::hint::with_hint;
    use crate::ops::testing::{devices, random};
    use crate::{DType, Result, Tensor};

    /// Each element as a sum of products, with operands broadcast by their indices.
    #[test]
    fn batches_of_any_rank_are_products_of_their_matrices() {
        let cases: [(&[usize], &[usize], &[usize]); 13] = [
            (&[2, 3, 4, 5], &[2, 3, 5, 6], &[2, 3, 4, 6]),
            (&[2, 1, 4, 5], &[1, 3, 5, 6], &[2, 3, 4, 6]),
            (&[2, 3, 4, 5], &[5, 6], &[2, 3, 4, 6]),
            (&[4, 5], &[2, 3, 5, 6], &[2, 3, 4, 6]),
            (&[3, 4, 5], &[2, 1, 5, 6], &[2, 3, 4, 6]),
            (&[3, 4, 5], &[3, 5, 1], &[3, 4, 1]),
            (&[3, 4, 5], &[5], &[3, 4]),
            (&[5], &[3, 5, 6], &[3, 6]),
            (&[5], &[2, 3, 5, 6], &[2, 3, 6]),
            (&[5], &[5], &[]),
            (&[2, 3, 0], &[2, 0, 4], &[2, 3, 4]),
            (&[0, 3, 2], &[2, 4], &[0, 3, 4]),
            (&[2, 0, 5], &[1, 5, 3], &[2, 0, 3]),
        ];
        for device in devices() {
            for (dtype, tolerance) in [
                (DType::F64, 1e-14),
                (DType::F32, 1e-6),
                // Operands are exact; one rounding.
                (DType::BF16, 0.004),
                (DType::F16, 0.0005),
            ] {
                for (left, right, dims) in cases {
                    let make = |dims: &[usize], seed| {
                        let values: Vec<f64> = random::<f64>(dims.iter().product(), seed)
                            .iter()
                            .map(|v| (v * 8.0).round())
                            .collect();
                        let x = Tensor::from_slice(&values, dims, device).unwrap().to_dtype(dtype).unwrap();
                        (x, values)
                    };
                    let ((a, x), (b, y)) = (make(left, 1), make(right, 2));
                    let product = a.matmul(&b).unwrap();
                    assert_eq!(product.dims(), dims, "{left:?} times {right:?}");
                    let got = product.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
                    let want = reference(&x, left, &y, right);
                    assert_eq!(got.len(), want.len());
                    for (got, want) in got.iter().zip(&want) {
                        let what =
                            format!("{left:?} times {right:?} in {dtype} on {device}: {got}, want {want}");
                        assert!((got - want).abs() <= tolerance * want.abs(), "{what}");
                    }
                }
            }
        }
    }

    fn reference(x: &[f64], left: &[usize], y: &[f64], right: &[usize]) -> Vec<f64> {
        // Four dimensions: [b0, b1, rows, columns].
        let padded = |dims: &[usize], is_left: bool| -> [usize; 4] {
            let mut all = dims.to_vec();
            if all.len() == 1 {
                all.insert(if is_left { 0 } else { 1 }, 1);
            }
            [vec![1; 4 - all.len()], all].concat().try_into().unwrap()
        };
        let ([a0, a1, m, k], [b0, b1, _, n]) = (padded(left, true), padded(right, false));
        let at = |i: usize, n: usize| if n == 1 { 0 } else { i };
        let wide = |a: usize, b: usize| if a == 1 { b } else { a };
        let mut out = Vec::new();
        for i0 in 0..wide(a0, b0) {
            for i1 in 0..wide(a1, b1) {
                for i in 0..m {
                    for j in 0..n {
                        let row = ((at(i0, a0) * a1 + at(i1, a1)) * m + i) * k;
                        let matrix = (at(i0, b0) * b1 + at(i1, b1)) * k * n;
                        out.push((0..k).map(|l| x[row + l] * y[matrix + l * n + j]).sum());
                    }
                }
            }
        }
        out
    }

    #[test]
    fn factors_that_do_not_fit_are_named_with_the_call_that_mends_it() {
        let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, "cpu").unwrap();
        let message = |a: &[usize], b: &[usize]| with_hint(&zeros(a).matmul(zeros(b)).unwrap_err());
        for (a, b, fix) in [
            (&[2, 3, 4][..], &[2, 3, 4][..], "b.transpose(-1, -2)"),
            (&[2, 4, 3], &[2, 4, 5], "a.transpose(-1, -2)"),
            (&[2, 3], &[2, 3], "b.t()"),
            (&[2, 3, 4], &[3, 4, 5], "dimensions before the last two must be equal or 1"),
            (&[], &[3], "a.mul(..)"),
            (&[3], &[4], "b.reshape(&[3, ..])"),
        ] {
            let text = message(a, b);
            assert!(text.starts_with(&format!("matmul: a {a:?} f32 on cpu and b {b:?} f32")), "{text}");
            assert!(text.contains(fix), "{text}");
        }
        let refused = |x: Result<Tensor>| x.unwrap_err().to_string();
        let (c, a) = (zeros(&[2, 2]), zeros(&[1, 2, 2]));
        assert!(refused(Tensor::addmm(1.0, &a, &c, 1.0, &c)).starts_with("addmm: a [1, 2, 2] f32"));
        assert!(refused(c.matmul(c.to_dtype(DType::F64).unwrap())).contains("have different dtypes"));
    }
}

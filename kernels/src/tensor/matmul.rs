//! Matrix products that allocate their result.

use crate::base::check;
use crate::base::error::Operand;
use crate::ops::{addmm, bmm};
use crate::{DType, Device, KernelError, Result, Shape, Tensor};

impl Tensor {
    /// The matrix product `[M, K]` times `[K, N]`; vectors count as a row on the left and a column on the right, and the result lacks
    /// that dimension. [`Tensor::bmm`] multiplies batches of matrices.
    ///
    /// Takes floats. f32 sums are in f32; 16-bit floats are multiplied with sums in f32 and rounded once. Tensors of more dimensions are
    /// refused.
    ///
    /// ```
    /// use ddp_kernels::{DType, Device, Tensor};
    /// let a = Tensor::eye(2, DType::F32, Device::Cpu)?;
    /// let b = Tensor::arange(4, DType::F32, Device::Cpu)?.into_shape(&[2, 2])?;
    /// assert_eq!(a.matmul(&b)?.to_vec::<f32>()?, [0.0, 1.0, 2.0, 3.0]);
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::DeviceMismatch`], [`KernelError::DTypeMismatch`] or [`KernelError::ShapeMismatch`], which name both operands and
    /// the call that fixes it; [`KernelError::DTypeUnsupported`] for integers; on a GPU [`KernelError::Cublas`].
    ///
    /// Source: `torch.matmul`.
    pub fn matmul(&self, b: &Tensor) -> Result<Self> {
        const OP: &str = "matmul";
        let (a_op, b_op) = (self.view().operand("a"), b.view().operand("b"));
        let [m, n] = product_shape(OP, a_op, b_op)?;
        let mut dims = vec![m, n];
        if b.dims().len() == 1 {
            dims.pop();
        }
        if self.dims().len() == 1 {
            dims.remove(0);
        }
        product(1.0, self, b, 0.0, None, [m, n])?.into_shape(&dims)
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
    pub fn bmm(&self, b: &Tensor) -> Result<Self> {
        if self.device() == Device::Cpu && check::is_short(self.dtype()) && self.dtype() == b.dtype() {
            return self.to_dtype(DType::F32)?.bmm(&b.to_dtype(DType::F32)?)?.to_dtype(self.dtype());
        }
        // Other shapes are the operation's error.
        let last = |x: &Tensor| x.dims().last().copied().unwrap_or(0);
        let dims = match *self.dims() {
            [batch, m, _] => [batch, m, last(b)],
            _ => [1, 1, last(b)],
        };
        let shape = Shape::new(&dims)?;
        let mut out = Tensor::for_result(self.memory_use(), shape, self.dtype(), self.device())?;
        bmm(1.0, self.view(), false, b.view(), false, 0.0, out.view_mut())?;
        Ok(out)
    }

    /// `beta * c + alpha * a * b`, in a new tensor; `c`: `[M, N]`, or `[N]` or `[1]`, repeated over rows.
    ///
    /// With `beta = 0`, `c` is not read. [`crate::ops::addmm`] writes into memory of the caller instead.
    ///
    /// # Errors
    /// Same as [`Tensor::matmul`].
    ///
    /// Source: `torch.addmm`.
    pub fn addmm(beta: f64, c: &Tensor, alpha: f64, a: &Tensor, b: &Tensor) -> Result<Self> {
        const OP: &str = "addmm";
        let (a_op, b_op, c_op) = (a.view().operand("a"), b.view().operand("b"), c.view().operand("c"));
        check::same_kind(OP, &[a_op, b_op, c_op])?;
        let [m, n] = product_shape(OP, a_op, b_op)?;
        let shape = Shape::matrix(m, n);
        if crate::ops::broadcast_shape(shape, c.shape()) != Some(shape) {
            return Err(crate::ops::shapes_differ(OP, Operand { shape, name: "a * b", ..a_op }, c_op));
        }
        product(alpha, a, b, beta, Some(c), [m, n])
    }
}

/// `beta * c + alpha * a * b` of checked operands.
fn product(
    alpha: f64,
    a: &Tensor,
    b: &Tensor,
    beta: f64,
    c: Option<&Tensor>,
    [m, n]: [usize; 2],
) -> Result<Tensor> {
    if a.device() == Device::Cpu && check::is_short(a.dtype()) {
        let wide = |x: &Tensor| x.to_dtype(DType::F32);
        let c = c.map(wide).transpose()?;
        return product(alpha, &wide(a)?, &wide(b)?, beta, c.as_ref(), [m, n])?.to_dtype(a.dtype());
    }
    let mut out = Tensor::for_result(a.memory_use(), Shape::matrix(m, n), a.dtype(), a.device())?;
    let beta = match c {
        Some(c) if beta != 0.0 => {
            // Broadcast by adding to zeros.
            crate::ops::fill(out.view_mut(), crate::ops::Pattern::Line { start: 0.0, step: 0.0 })?;
            out = out.add(c)?;
            beta
        }
        _ => 0.0,
    };
    let (k, view) = (a.shape().rows_cols().1, out.view_mut());
    addmm(alpha, a.view().reshape(&[m, k])?, false, b.view().reshape(&[k, n])?, false, beta, view)?;
    Ok(out)
}

/// Checks two factors and returns rows and columns of their product.
fn product_shape(op: &'static str, a: Operand, b: Operand) -> Result<[usize; 2]> {
    check::same_kind(op, &[a, b])?;
    check::dtype(op, a, check::FLOATS, check::FLOATS_NAMES)?;
    let (left, right) = (a.shape.dims(), b.shape.dims());
    let as_matrix = |dims: &[usize], vector: fn(usize) -> [usize; 2]| match *dims {
        [n] => Some(vector(n)),
        [rows, columns] => Some([rows, columns]),
        _ => None,
    };
    match (as_matrix(left, |n| [1, n]), as_matrix(right, |n| [n, 1])) {
        (Some([m, k]), Some([rows, n])) if k == rows => Ok([m, n]),
        (Some([_, k]), Some([_, columns])) if k == columns => {
            Err(differ(op, a, b, format!("{}.t()", b.name)))
        }
        (Some([rows, _]), Some([k, _])) if k == rows => Err(differ(op, a, b, format!("{}.t()", a.name))),
        (Some([_, k]), _) => Err(differ(op, a, b, format!("{}.reshape(&[{k}, ..])", b.name))),
        (None, _) => Err(differ(op, a, b, format!("{}.reshape(&[.., ..]): a matrix or a vector", a.name))),
    }
}

fn differ(op: &'static str, a: Operand, b: Operand, fix: String) -> KernelError {
    KernelError::ShapeMismatch { op, a: a.into(), b: b.into(), rule: "multiply", fix: fix.into() }
}

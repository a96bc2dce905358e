//! Running sums and products along an axis.

mod cpu;
mod cuda;

pub(crate) use cuda::SOURCE;

use crate::base::check;
use crate::{DType, KernelError, Result, TensorMut, TensorRef};

/// The operation that is repeated from element to element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScanOp {
    /// The sum; integers wrap, as in the next one.
    Sum,
    /// The product.
    Product,
}

impl ScanOp {
    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            ScanOp::Sum => "cumsum",
            ScanOp::Product => "cumprod",
        }
    }

    /// The dtype of the result: i64 for integers and bool.
    pub fn result_dtype(self, dtype: DType) -> DType {
        if dtype.is_float() { dtype } else { DType::I64 }
    }
}

/// A tensor as `[outer, len, inner]`, whose elements are combined along `len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    outer: usize,
    len: usize,
    inner: usize,
}

/// `out[.., i, ..] = x[.., 0, ..] op ... op x[.., i, ..]` along `axis`.
///
/// - `x`: any shape and dtype; `out`: its shape, of [`ScanOp::result_dtype`]
/// - floats are combined in f64, and each result is rounded once
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`KernelError::OutOfRange`] for an axis that is not there; [`KernelError::DeviceMismatch`], [`KernelError::Shape`],
/// [`KernelError::DTypeUnsupported`].
///
/// Source: `torch.cumsum`, `torch.cumprod`.
pub fn scan(op: ScanOp, x: TensorRef<'_>, axis: usize, out: TensorMut<'_>) -> Result<()> {
    let name = op.name();
    let (x_op, out_op) = (x.operand("a"), out.operand("out"));
    check::same_device(name, &[x_op, out_op])?;
    check::shape(name, out_op, x.shape())?;
    let dtype = op.result_dtype(x_op.dtype);
    check::dtype(name, out_op, &[dtype], dtype.name())?;
    let dims = x.dims();
    if axis >= dims.len() {
        return Err(KernelError::OutOfRange { op: name, start: axis, end: axis + 1, len: dims.len() });
    }
    let layout = Layout {
        outer: dims[..axis].iter().product(),
        len: dims[axis],
        inner: dims[axis + 1..].iter().product(),
    };
    match out.gpu() {
        Some(gpu) => cuda::scan(gpu, op, x.cuda()?, layout, &mut out.into_cuda()?),
        None => cpu::scan(op, x, layout, out),
    }
}

#[cfg(test)]
mod tests {
    use crate::cpu::threads::join_pool;
    use crate::ops::testing::{devices, random};
    use crate::{DType, Device, Tensor, tensor};

    fn numbers(x: &Tensor) -> Vec<f64> {
        x.to_dtype(DType::F64).unwrap().to_vec().unwrap()
    }

    #[test]
    fn running_sums_and_products_follow_their_definition_in_every_dtype() {
        let shapes: [&[usize]; 6] = [&[1], &[1000], &[3, 257], &[256, 3], &[2, 30, 5], &[2, 0, 3]];
        for device in devices() {
            for dtype in DType::ALL {
                for dims in shapes {
                    let n: usize = dims.iter().product();
                    // Factors near 1, so that no product leaves the range of f16; whole numbers of 0 and 1.
                    let near = |v: f64| if dtype.is_float() { 1.0 + v / 1000.0 } else { (v > -0.9).into() };
                    let values: Vec<f64> = random::<f64>(n, 5).into_iter().map(near).collect();
                    let x = Tensor::from_slice(&values, dims, device).unwrap().to_dtype(dtype).unwrap();
                    let values = numbers(&x);
                    for axis in 0..dims.len() {
                        let (sums, products) = (x.cumsum(axis).unwrap(), x.cumprod(axis).unwrap());
                        let want_dtype = if dtype.is_float() { dtype } else { DType::I64 };
                        assert_eq!((sums.dtype(), sums.dims()), (want_dtype, dims));
                        let stride: usize = dims[axis + 1..].iter().product();
                        let (sums, products) = (numbers(&sums), numbers(&products));
                        for i in 0..n {
                            let before = (0..=i / stride % dims[axis]).map(|back| values[i - back * stride]);
                            let (sum, product) = (before.clone().sum::<f64>(), before.product::<f64>());
                            // Rounding to the dtype, once.
                            let rounding = match dtype {
                                DType::BF16 => 0.0040,
                                DType::F16 => 0.0005,
                                DType::F32 => 1e-7,
                                _ => 1e-12,
                            };
                            let what = format!("element {i} of {dtype} {dims:?} along {axis} on {device}");
                            assert!((sums[i] - sum).abs() <= rounding * sum.abs(), "sum {what}");
                            assert!((products[i] - product).abs() <= rounding * product, "product {what}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn nan_stays_from_where_it_is_and_integers_wrap() {
        for device in devices() {
            let x = tensor![1., f32::NAN, 2.].to(device).unwrap();
            let sums = x.cumsum(-1).unwrap().to_vec::<f32>().unwrap();
            assert!(sums[0] == 1.0 && sums[1].is_nan() && sums[2].is_nan(), "{sums:?} on {device}");
            let large = tensor![i64::MAX, 1, 2].to(device).unwrap();
            assert_eq!(large.cumsum(0).unwrap().to_vec::<i64>().unwrap(), [i64::MAX, i64::MIN, i64::MIN + 2]);
            assert_eq!(large.cumprod(0).unwrap().to_vec::<i64>().unwrap(), [i64::MAX, i64::MAX, -2]);
            let message = x.cumsum(1).unwrap_err().to_string();
            assert_eq!(message, format!("cumsum: a [3] f32 on {device} has no axis 1"));
        }
    }

    #[test]
    fn the_number_of_threads_changes_no_bit() {
        let results = |n_threads: usize| {
            let compute = move || {
                join_pool(n_threads).unwrap();
                let x = Tensor::randn(&[70, 900, 3], DType::F32, Device::Cpu, 5).unwrap();
                (0..3).flat_map(|axis| x.cumsum(axis).unwrap().to_vec::<f32>().unwrap()).collect::<Vec<_>>()
            };
            std::thread::spawn(compute).join().unwrap()
        };
        assert!(results(1) == results(3));
    }
}

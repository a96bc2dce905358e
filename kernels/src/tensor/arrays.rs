//! Exchange with the crate `ndarray` (feature `ndarray`): views in place, and copies.
//!
//! ```
//! use ddp_kernels::Tensor;
//! use ndarray::{Array2, arr2};
//!
//! let array: Array2<f32> = arr2(&[[1.0, 2.0], [3.0, 4.0]]);
//! let mut x = Tensor::from_ndarray(&array.t(), "cpu")?;
//! assert_eq!(x.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
//! x.view_mut().into_ndarray::<f32>()?[[0, 1]] = 7.0;
//! assert_eq!(x.view().as_ndarray::<f32>()?.sum(), 14.0);
//! assert_eq!(x.to_ndarray::<f32>()?.shape(), [2, 2]);
//! # Ok::<(), ddp_kernels::KernelError>(())
//! ```

use ndarray::{ArrayBase, ArrayD, ArrayViewD, ArrayViewMutD, Data, Dimension, IxDyn};

use crate::{Element, HostValue, IntoDevice, Result, Tensor, TensorMut, TensorRef};

/// Slices of a tensor have as many elements as its shape.
const FITS: &str = "a tensor is contiguous";

impl Tensor {
    /// Copies an array of any layout.
    ///
    /// # Errors
    /// [`KernelError::BadShape`](crate::KernelError::BadShape) for more than four dimensions; as [`Tensor::from_slice`].
    pub fn from_ndarray<T: HostValue, D: Dimension>(
        array: &ArrayBase<impl Data<Elem = T>, D>,
        device: impl IntoDevice,
    ) -> Result<Self> {
        match array.as_slice() {
            Some(values) => Self::from_slice(values, array.shape(), device),
            None => Self::from_vec(array.iter().copied().collect(), array.shape(), device),
        }
    }

    /// Copies the elements to an array, from any device.
    ///
    /// # Errors
    /// Same as [`Tensor::to_vec`].
    pub fn to_ndarray<T: HostValue>(&self) -> Result<ArrayD<T>> {
        Ok(ArrayD::from_shape_vec(IxDyn(self.dims()), self.to_vec()?).expect(FITS))
    }
}

impl<'a> TensorRef<'a> {
    /// This view as one of `ndarray`, without a copy.
    ///
    /// # Errors
    /// [`KernelError::WrongMemory`](crate::KernelError::WrongMemory) on a GPU;
    /// [`KernelError::DTypeUnsupported`](crate::KernelError::DTypeUnsupported) if the elements are of another type.
    pub fn as_ndarray<T: Element>(self) -> Result<ArrayViewD<'a, T>> {
        let shape = self.shape();
        Ok(ArrayViewD::from_shape(IxDyn(shape.dims()), self.as_slice("as_ndarray", "self")?).expect(FITS))
    }
}

impl<'a> TensorMut<'a> {
    /// This view as one of `ndarray`, without a copy.
    ///
    /// # Errors
    /// Same as [`TensorRef::as_ndarray`].
    pub fn into_ndarray<T: Element>(self) -> Result<ArrayViewMutD<'a, T>> {
        let shape = self.shape();
        Ok(ArrayViewMutD::from_shape(IxDyn(shape.dims()), self.into_slice("into_ndarray", "self")?)
            .expect(FITS))
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array, s};

    use super::*;
    use crate::{DType, Device};

    #[test]
    fn arrays_of_any_layout_become_tensors_and_back() {
        let array = Array::from_iter(0..24i64).into_shape_with_order((2, 3, 4)).unwrap();
        for view in [array.view(), array.view().reversed_axes(), array.slice(s![..;-1, 1.., ..;2])] {
            let x = Tensor::from_ndarray(&view, Device::Cpu).unwrap();
            assert_eq!(x.to_ndarray::<i64>().unwrap(), view.into_dyn());
        }
        let flags = Tensor::from_ndarray(&array.mapv(|v| v > 3), Device::Cpu).unwrap();
        assert_eq!(flags.to_ndarray::<bool>().unwrap(), array.mapv(|v| v > 3).into_dyn());
    }

    #[test]
    fn views_share_the_memory() {
        let mut x = Tensor::zeros(&[2, 3], DType::F32, Device::Cpu).unwrap();
        x.view_mut().rows(1, 2).unwrap().into_ndarray::<f32>().unwrap().fill(5.0);
        assert_eq!(x.to_vec::<f32>().unwrap(), [0.0, 0.0, 0.0, 5.0, 5.0, 5.0]);
        let address = x.view().as_slice::<f32>("test", "x").unwrap().as_ptr();
        assert_eq!(x.view().as_ndarray::<f32>().unwrap().as_ptr(), address);
        let message = x.view().as_ndarray::<f64>().unwrap_err().to_string();
        assert!(message.contains("as_ndarray") && message.contains("f64"), "{message}");
    }
}

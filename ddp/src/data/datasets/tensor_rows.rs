//! Rows from tensors of a program.

use ddp_kernels::{DType, Device, Tensor};

use crate::data::datasets::dataset::{Dataset, RowLayout, TargetLayout, numbered_columns};
use crate::data::datasets::resident::{Targets, TensorDataset};
use crate::data::error::{DataError, Result};
use crate::data::tensor_rows_error::TensorRowsError;

impl TensorDataset {
    /// Number of rows.
    #[expect(clippy::len_without_is_empty, reason = "`Dataset` has it")]
    pub fn len(&self) -> usize {
        Dataset::len(self)
    }

    /// Copies rows from tensors on any device to host memory.
    ///
    /// - `features`: `[N, F]` of f32, with `F` and `N` above 0
    /// - `targets`: class indices, `[N]` of i64, where the largest one plus 1 is the number of classes; or values, `[N]` or `[N, K]` of f32
    ///
    /// # Errors
    /// [`TensorRowsError`] for other shapes, dtypes and values.
    ///
    /// Source: `torch.utils.data.TensorDataset`.
    ///
    /// ```
    /// use ddp::data::{Dataset, TensorDataset};
    /// use ddp::prelude::*;
    ///
    /// let x = Tensor::randn(&[100, 8], DType::F32, Device::Cpu, 1)?;
    /// let y = x.sum(1)?.gt(0.0)?.to_dtype(DType::I64)?;
    /// let rows = TensorDataset::new(&x, &y)?;
    /// assert_eq!(rows.len(), 100);
    /// # Ok::<(), ddp::Error>(())
    /// ```
    pub fn new(features: &Tensor, targets: &Tensor) -> Result<Self> {
        let (n_rows, n_features) = match features.dims() {
            &[rows, columns] if rows > 0 && columns > 0 && features.dtype() == DType::F32 => (rows, columns),
            _ => {
                return Err(wrong("features", features, "[rows, columns] f32, neither of them 0".to_owned()));
            }
        };
        let host_features = features.to_vec::<f32>()?;
        check_finite("features", &host_features, n_features)?;
        let (targets, target_layout) = match (targets.dims(), targets.dtype()) {
            (&[n], DType::I64) if n == n_rows => classes(targets.to_vec::<i64>()?)?,
            (&[n] | &[n, _], DType::F32) if n == n_rows && targets.numel() > 0 => {
                let n_targets = targets.dims().get(1).copied().unwrap_or(1);
                let values = targets.to_vec::<f32>()?;
                check_finite("targets", &values, n_targets)?;
                let names = (0..n_targets).map(|i| format!("target{i}")).collect();
                (Targets::Values(values), TargetLayout::Values { names })
            }
            _ => {
                let expected = format!("[{n_rows}] i64, or [{n_rows}] or [{n_rows}, columns] f32");
                return Err(wrong("targets", targets, expected));
            }
        };
        Ok(TensorDataset {
            features: host_features,
            targets,
            weights: None,
            layout: RowLayout::new(numbered_columns(n_features), target_layout),
            source: "tensors".to_owned(),
        })
    }

    /// Rows of values from records of a program: `fill` writes the features and targets of each, which are 0 before.
    ///
    /// ```
    /// use ddp::data::{Dataset, TensorDataset};
    ///
    /// let houses = [(120.0_f32, 3.0_f32, 410.0_f32), (60.0, 2.0, 205.0)];
    /// let rows = TensorDataset::from_fn(&houses, 2, 1, |house, x, y| {
    ///     x.copy_from_slice(&[house.0, house.1]);
    ///     y[0] = house.2;
    /// })?;
    /// assert_eq!((rows.len(), rows.layout().n_features()), (2, 2));
    /// # Ok::<(), ddp::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`TensorDataset::new`].
    pub fn from_fn<T>(
        records: &[T],
        n_features: usize,
        n_targets: usize,
        mut fill: impl FnMut(&T, &mut [f32], &mut [f32]),
    ) -> Result<Self> {
        let mut x = vec![0.0; records.len() * n_features];
        let mut y = vec![0.0; records.len() * n_targets];
        for (n, record) in records.iter().enumerate() {
            let (x, y) = (&mut x[n * n_features..][..n_features], &mut y[n * n_targets..][..n_targets]);
            fill(record, x, y);
        }
        let tensor =
            |values: &[f32], columns| Tensor::from_slice(values, &[records.len(), columns], Device::Cpu);
        Self::new(&tensor(&x, n_features)?, &tensor(&y, n_targets)?)
    }

    /// Gives the rows weights, `[N]` of f32, finite and not negative, by which their losses count.
    ///
    /// # Errors
    /// [`TensorRowsError`] for other shapes, dtypes and values.
    pub fn with_weights(mut self, weights: &Tensor) -> Result<Self> {
        if weights.dims() != [self.len()] || weights.dtype() != DType::F32 {
            return Err(wrong("weights", weights, format!("[{}] f32", self.len())));
        }
        self.weights = Some(weights.to_vec::<f32>()?);
        self.layout.has_weights = true;
        self.check()?;
        Ok(self)
    }
}

fn classes(labels: Vec<i64>) -> Result<(Targets, TargetLayout)> {
    if let Some((row, &class)) = labels.iter().enumerate().find(|(_, class)| **class < 0) {
        return Err(TensorRowsError::NegativeClass { row, class }.into());
    }
    let n_classes = labels.iter().max().map_or(0, |class| *class as usize + 1);
    Ok((Targets::Labels(labels), TargetLayout::Classes { n_classes }))
}

fn check_finite(name: &'static str, values: &[f32], n_columns: usize) -> Result<()> {
    match values.iter().enumerate().find(|(_, value)| !value.is_finite()) {
        Some((i, &value)) => Err(TensorRowsError::NotFinite { name, row: i / n_columns, value }.into()),
        None => Ok(()),
    }
}

fn wrong(name: &'static str, tensor: &Tensor, expected: String) -> DataError {
    TensorRowsError::Tensor { name, shape: tensor.shape(), dtype: tensor.dtype(), expected }.into()
}

#[cfg(test)]
mod tests {
    use ddp_kernels::Device;

    use crate::data::datasets::tensor_rows::*;

    fn tensor(values: &[f32], dims: &[usize]) -> Tensor {
        Tensor::from_slice(values, dims, Device::Cpu).unwrap()
    }

    #[test]
    fn classes_and_values_become_rows() {
        let x = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2]);
        let labels = Tensor::from_slice(&[2i64, 0, 0], &[3], Device::Cpu).unwrap();
        let rows = TensorDataset::new(&x, &labels).unwrap();
        assert_eq!((rows.len(), &rows.layout().targets), (3, &TargetLayout::Classes { n_classes: 3 }));
        let batch = rows.in_place(1..2).unwrap().unwrap();
        assert_eq!(batch.x.to_vec::<f32>().unwrap(), [3.0, 4.0]);
        let rows = TensorDataset::new(&x, &tensor(&[0.5, 1.5, 2.5], &[3])).unwrap();
        assert_eq!(rows.targets, Targets::Values(vec![0.5, 1.5, 2.5]));
        let rows = TensorDataset::new(&x, &x).unwrap();
        let names = vec!["target0".to_owned(), "target1".to_owned()];
        assert_eq!(rows.layout().targets, TargetLayout::Values { names });
    }

    #[test]
    fn tensors_that_are_no_rows_are_named() {
        let x = tensor(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
        let error = |x: &Tensor, y: &Tensor| TensorDataset::new(x, y).unwrap_err().to_string();
        let flat = tensor(&[1.0, 2.0], &[2]);
        assert!(error(&flat, &flat).starts_with("features [2] f32 should be [rows, columns] f32"));
        let three = tensor(&[1.0; 3], &[3]);
        assert!(
            error(&x, &three).starts_with("targets [3] f32 should be [2] i64, or [2] or [2, columns] f32")
        );
        let negative = Tensor::from_slice(&[0i64, -1], &[2], Device::Cpu).unwrap();
        assert!(error(&x, &negative).contains("the class of row 1 is -1"));
        let nan = tensor(&[1.0, 2.0, 3.0, f32::NAN], &[2, 2]);
        assert!(error(&nan, &flat).contains("features: row 1 holds NaN"));
        assert!(error(&x, &nan).contains("targets: row 1 holds NaN"));
    }
}

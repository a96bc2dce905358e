//! Rows of a dataset as plain numbers, for reports on them.

use ddp::data::datasets::batch::BatchMut;
use ddp::data::datasets::dataset::Dataset;
use ddp::data::error::Result;
use ddp_kernels::{DType, Device, Tensor, ops};

/// Values of some rows.
pub struct RowValues {
    /// `[rows, n_features]`
    pub x: Vec<f32>,
    /// `[rows, n_targets]`: class numbers, or quantities that are f32.
    pub targets: Vec<f64>,
    /// `[rows]`
    pub weights: Option<Vec<f32>>,
}

impl RowValues {
    /// The rows of `dataset` with these numbers.
    ///
    /// # Errors
    /// [`DataError`](ddp::data::DataError) if rows cannot be read.
    pub fn read(dataset: &dyn Dataset, rows: &[usize]) -> Result<Self> {
        let (layout, n) = (dataset.layout(), rows.len());
        let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, Device::Cpu);
        let dims = [n, layout.n_features()];
        let mut raw = zeros(&dims, layout.dtype)?;
        let mut x = zeros(&dims, DType::F32)?;
        let mut targets = zeros(&layout.targets.dims(n), layout.targets.dtype())?;
        let mut weights = layout.has_weights.then(|| zeros(&[n], DType::F32)).transpose()?;
        let out = BatchMut {
            x: raw.view_mut(),
            targets: targets.view_mut(),
            weights: weights.as_mut().map(Tensor::view_mut),
        };
        dataset.gather(rows, out)?;
        ops::load_rows(raw.view(), None, None, x.view_mut())?;
        let targets = match targets.dtype() {
            DType::I64 => targets.to_vec::<i64>()?.into_iter().map(|class| class as f64).collect(),
            _ => targets.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
        };
        let weights = weights.map(|weights| weights.to_vec::<f32>()).transpose()?;
        Ok(RowValues { x: x.to_vec::<f32>()?, targets, weights })
    }
}

//! The values of some rows, for tests of this crate and of `ddp-tables`, each with its own names above.

use ddp_kernels::{DType, Device, Tensor};

use super::{BatchMut, DataError, Dataset};

/// Features, targets and weights, as f32.
pub(crate) type Gathered = (Vec<f32>, Vec<f32>, Option<Vec<f32>>);

/// Features (as f32), targets (as f32) and weights of some rows.
pub(crate) fn gathered(dataset: &dyn Dataset, rows: &[usize]) -> Gathered {
    try_gather(dataset, rows).unwrap()
}

/// Same as [`gathered`].
pub(crate) fn try_gather(dataset: &dyn Dataset, rows: &[usize]) -> Result<Gathered, DataError> {
    let layout = dataset.layout();
    let n = rows.len();
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, Device::Cpu).unwrap();
    let mut x = zeros(&[n, layout.n_features()], layout.dtype);
    let mut targets = zeros(&layout.targets.dims(n), layout.targets.dtype());
    let mut weights = layout.has_weights.then(|| zeros(&[n], DType::F32));
    let out = BatchMut {
        x: x.view_mut(),
        targets: targets.view_mut(),
        weights: weights.as_mut().map(Tensor::view_mut),
    };
    dataset.gather(rows, out)?;
    let floats = |tensor: &Tensor| match tensor.dtype() {
        DType::U8 => tensor.to_vec::<u8>().unwrap().into_iter().map(f32::from).collect(),
        DType::F16 => tensor.to_vec::<half::f16>().unwrap().into_iter().map(f32::from).collect(),
        DType::BF16 => tensor.to_vec::<half::bf16>().unwrap().into_iter().map(f32::from).collect(),
        DType::I64 => tensor.to_vec::<i64>().unwrap().into_iter().map(|v| v as f32).collect(),
        _ => tensor.to_vec::<f32>().unwrap(),
    };
    Ok((floats(&x), floats(&targets), weights.as_ref().map(floats)))
}

//! Selects the targets of one of several losses, and computes their row weights.

use crate::base::check;
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, KernelError, Result, Shape, TensorMut, TensorRef};

/// Columns of targets for one loss, and their weight.
#[derive(Debug, Clone, Copy)]
#[doc(hidden)]
pub struct TargetColumns {
    /// The first column.
    pub first: usize,
    /// Number of columns; 1 for class indices.
    pub len: usize,
    /// Factor of the rows' weights.
    pub factor: f32,
}

/// `selected[n, k] = targets[n, first + k]`, and `weights[n] = factor · row_weights[n]`; a row with NaN among these targets has 0 for
/// all of them, and the weight 0.
///
/// - `targets`: `[N, T]` f32
/// - `selected`: `[N, len]` f32, or `[N]` i64 for class indices, which `targets` holds as integers
/// - `row_weights`: `[N]` f32, default 1
/// - `weights`: `[N]` f32
///
/// Asynchronous on the device's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`KernelError::DeviceMismatch`], [`KernelError::DTypeUnsupported`], [`KernelError::Shape`]; [`KernelError::OutOfRange`] for
/// columns beyond `T`.
#[doc(hidden)]
pub fn select_targets(
    targets: TensorRef<'_>,
    columns: TargetColumns,
    row_weights: Option<TensorRef<'_>>,
    selected: TensorMut<'_>,
    weights: TensorMut<'_>,
) -> Result<()> {
    const OP: &str = "select_targets";
    let (targets_op, selected_op, weights_op) =
        (targets.operand("targets"), selected.operand("selected"), weights.operand("weights"));
    check::same_device(OP, &[targets_op, selected_op])?;
    check::same_device(OP, &[targets_op, weights_op])?;
    check::dtype(OP, targets_op, &[DType::F32], "f32")?;
    check::dtype(OP, selected_op, &[DType::F32, DType::I64], "f32 and i64")?;
    check::dtype(OP, weights_op, &[DType::F32], "f32")?;
    let (n_rows, n_targets) = check::matrix(OP, targets_op)?;
    let end = columns.first.saturating_add(columns.len);
    let is_class = selected.dtype() == DType::I64;
    if end > n_targets || (is_class && columns.len != 1) {
        return Err(KernelError::OutOfRange { op: OP, start: columns.first, end, len: n_targets });
    }
    let of_selected = if is_class { Shape::vector(n_rows) } else { Shape::matrix(n_rows, columns.len) };
    check::shape(OP, selected_op, of_selected)?;
    check::shape(OP, weights_op, Shape::vector(n_rows))?;
    if let Some(row_weights) = row_weights {
        let row_weights = row_weights.operand("row_weights");
        check::same_device(OP, &[targets_op, row_weights])?;
        check::dtype(OP, row_weights, &[DType::F32], "f32")?;
        check::shape(OP, row_weights, Shape::vector(n_rows))?;
    }
    if let Some(gpu) = targets.gpu() {
        let row_weights = row_weights.map(TensorRef::cuda).transpose()?;
        let (mut selected, mut weights) = (selected.into_cuda()?, weights.into_cuda()?);
        let targets = targets.cuda()?;
        return select_targets_cuda(
            gpu,
            targets,
            n_targets,
            columns,
            row_weights,
            &mut selected,
            &mut weights,
        );
    }
    let targets = targets.as_slice::<f32>(OP, "targets")?;
    let row_weights = row_weights.map(|weights| weights.as_slice::<f32>(OP, "row_weights")).transpose()?;
    let rows = Rows { targets, n_targets, columns, row_weights };
    let weights = weights.into_slice::<f32>(OP, "weights")?;
    if is_class {
        rows.classes(selected.into_slice::<i64>(OP, "selected")?, weights);
    } else {
        rows.values(selected.into_slice::<f32>(OP, "selected")?, weights);
    }
    Ok(())
}

/// Rows of targets, and which of their columns are selected.
#[derive(Debug, Clone, Copy)]
struct Rows<'a> {
    targets: &'a [f32],
    n_targets: usize,
    columns: TargetColumns,
    row_weights: Option<&'a [f32]>,
}

impl Rows<'_> {
    /// The selected targets of row `row`, unless one is NaN.
    fn row(&self, row: usize) -> Option<&[f32]> {
        let values = &self.targets[row * self.n_targets + self.columns.first..][..self.columns.len];
        (!values.iter().any(|value| value.is_nan())).then_some(values)
    }

    fn weight(&self, row: usize) -> f32 {
        self.columns.factor * self.row_weights.map_or(1.0, |weights| weights[row])
    }

    fn classes(self, classes: &mut [i64], weights: &mut [f32]) {
        for (row, (class, weight)) in classes.iter_mut().zip(weights).enumerate() {
            let values = self.row(row);
            (*class, *weight) = values.map_or((0, 0.0), |values| (values[0] as i64, self.weight(row)));
        }
    }

    fn values(self, selected: &mut [f32], weights: &mut [f32]) {
        for (row, weight) in weights.iter_mut().enumerate() {
            let to = &mut selected[row * self.columns.len..][..self.columns.len];
            match self.row(row) {
                Some(values) => to.copy_from_slice(values),
                None => to.fill(0.0),
            }
            *weight = self.row(row).map_or(0.0, |_| self.weight(row));
        }
    }
}

pub(crate) static SOURCE: Source = Source::new("select_targets", include_str!("kernel.cu"));

/// Threads per row: as many as it has targets, up to a warp.
///
/// Selects targets of a matrix of f32, `[weights.len(), n_targets]`; class indices i64, all other operands f32, all on this device.
fn select_targets_cuda(
    gpu: &'static Gpu,
    targets: CudaSlice<'_>,
    n_targets: usize,
    TargetColumns { first, len, factor }: TargetColumns,
    row_weights: Option<CudaSlice<'_>>,
    selected: &mut CudaSliceMut<'_>,
    weights: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let rows = weights.len();
    if rows == 0 {
        return Ok(());
    }
    let kernel = match selected.dtype() {
        DType::I64 => "select_targets_int64",
        _ => "select_targets_f32",
    };
    let lanes = len.clamp(1, 32).next_power_of_two();
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(rows * lanes, 1);
    let launch = launch.read(targets).read_opt(row_weights).write(selected).write(weights);
    let launch = launch.arg(rows).arg(n_targets).arg(first).arg(len).arg(factor).arg(lanes.ilog2());
    // SAFETY: select_targets(const float* targets, const float* row_weights, S* selected, float* weights, size_t rows, size_t
    // n_targets, size_t first, size_t len, float factor, u32 log2_lanes); targets holds rows · n_targets elements, selected rows · len, row_weights
    // and weights `rows`; the caller checked that first + len is at most n_targets.
    unsafe { launch.run() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{devices, tensor};
    use crate::{Device, Tensor};

    const NAN: f32 = f32::NAN;
    /// Four rows of a class, two quantities, and a class.
    const TARGETS: [f32; 16] = [
        2.0, 0.5, -1.5, 0.0, //
        NAN, 7.0, 8.0, 1.0, //
        0.0, NAN, 3.0, 1.0, //
        1.0, 4.0, NAN, NAN,
    ];

    fn run(
        first: usize,
        len: usize,
        is_class: bool,
        row_weights: bool,
        device: Device,
    ) -> (Vec<f64>, Vec<f32>) {
        let targets = tensor(&TARGETS, &[4, 4], device);
        let row_weights = row_weights.then(|| tensor(&[1.0f32, 2.0, 0.0, 4.0], &[4], device));
        let mut weights = tensor(&[-1.0f32; 4], &[4], device);
        let mut selected = if is_class {
            tensor(&[-1i64; 4], &[4], device)
        } else {
            tensor(&vec![-1.0f32; 4 * len], &[4, len], device)
        };
        let columns = TargetColumns { first, len, factor: 0.25 };
        let row_weights = row_weights.as_ref().map(Tensor::view);
        select_targets(targets.view(), columns, row_weights, selected.view_mut(), weights.view_mut())
            .unwrap();
        let selected = if is_class {
            selected.to_vec::<i64>().unwrap().into_iter().map(|class| class as f64).collect()
        } else {
            selected.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect()
        };
        (selected, weights.to_vec::<f32>().unwrap())
    }

    #[test]
    fn rows_without_a_target_weigh_nothing() {
        for device in devices() {
            let of = |first, len, is_class, weighted| run(first, len, is_class, weighted, device);
            assert_eq!(
                of(0, 1, true, false),
                (vec![2.0, 0.0, 0.0, 1.0], vec![0.25, 0.0, 0.25, 0.25]),
                "{device}"
            );
            assert_eq!(
                of(3, 1, true, true),
                (vec![0.0, 1.0, 1.0, 0.0], vec![0.25, 0.5, 0.0, 0.0]),
                "{device}"
            );
            let values = vec![0.5, -1.5, 7.0, 8.0, 0.0, 0.0, 0.0, 0.0];
            assert_eq!(of(1, 2, false, false), (values, vec![0.25, 0.25, 0.0, 0.0]), "{device}");
        }
    }

    #[test]
    fn devices_agree_on_rows_of_any_width() {
        for (n_rows, len) in [(40, 3), (300, 5), (9, 32), (5, 70), (3, 0)] {
            // One value in 97 is missing.
            let values: Vec<f32> =
                (0..n_rows * (len + 2)).map(|i| if i % 97 == 50 { NAN } else { i as f32 }).collect();
            let select = |device| {
                let targets = tensor(&values, &[n_rows, len + 2], device);
                let mut selected = Tensor::full(&[n_rows, len], -1.0, DType::F32, device).unwrap();
                let mut weights = Tensor::full(&[n_rows], -1.0, DType::F32, device).unwrap();
                let columns = TargetColumns { first: 1, len, factor: 0.25 };
                select_targets(targets.view(), columns, None, selected.view_mut(), weights.view_mut())
                    .unwrap();
                (selected.to_vec::<f32>().unwrap(), weights.to_vec::<f32>().unwrap())
            };
            let want = select(Device::Cpu);
            for device in devices() {
                assert_eq!(select(device), want, "{n_rows} rows of {len} on {device}");
            }
        }
    }

    #[test]
    fn wrong_operands_are_named() {
        let targets = tensor(&TARGETS, &[4, 4], Device::Cpu);
        let (mut selected, mut weights) =
            (tensor(&[0.0f32; 8], &[4, 2], Device::Cpu), tensor(&[0.0f32; 4], &[4], Device::Cpu));
        let mut select = |first, len| {
            let columns = TargetColumns { first, len, factor: 1.0 };
            select_targets(targets.view(), columns, None, selected.view_mut(), weights.view_mut())
                .unwrap_err()
        };
        assert!(matches!(select(3, 2), KernelError::OutOfRange { op: "select_targets", end: 5, .. }));
        assert!(matches!(select(0, 1), KernelError::Shape { op: "select_targets", .. }));
    }
}

//! The first kernel of a step: its scalars, and the numbers of the rows that it is computed from.

use crate::base::check;
use crate::base::permutation::N_ROUNDS;
use crate::cuda::launch::{Argument, Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::step_scalars::{STEP_SCALARS_LEN, StepScalars};
use crate::{DType, KernelError, KeyedPermutation, Result, Shape, TensorMut, TensorRef};

const OP: &str = "begin_step";

/// Scalars of a step, and the tensor that receives them.
#[derive(Debug)]
#[doc(hidden)]
pub struct ScalarsOutput<'a> {
    /// The scalars to write.
    pub scalars: StepScalars,
    /// `[STEP_SCALARS_LEN]` f64, in the layout of [`StepScalars::to_array`].
    pub to: TensorMut<'a>,
}

/// Runs of neighboring rows that follow each other in another order: number `n` stands for place `origin + n`, which is in the last
/// run `k` with `starts[k] <= origin + n`, and so for row `rows[k] + origin + n - starts[k]`.
#[derive(Debug, Clone, Copy)]
#[doc(hidden)]
pub struct RowPlaces<'a> {
    /// `[K]` i64, ascending: the place at which each run begins; the first is `origin` or before it.
    pub starts: TensorRef<'a>,
    /// `[K]` i64: the row with which each run begins.
    pub rows: TensorRef<'a>,
    /// Place of number 0.
    pub origin: usize,
}

/// Rows of a step, and the tensors that receive their row numbers.
#[derive(Debug)]
#[doc(hidden)]
pub struct RowNumbersOutput<'a> {
    /// Order of all rows.
    pub order: &'a KeyedPermutation,
    /// Position in the order of the first row.
    pub first: usize,
    /// Rows that the numbers of the order stand for, if they are not the rows' own.
    pub places: Option<RowPlaces<'a>>,
    /// `[B]` i64: receives the numbers of the rows at positions `first..first + B`.
    pub numbers: TensorMut<'a>,
    /// [`ROW_SUMS_LEN`] i64 to which the rows are added.
    pub sums: TensorMut<'a>,
}

/// Writes a step's scalars, and `numbers[i] = order(first + i)`, or the row at that place ([`RowPlaces`]); adds the mixes of these rows ([`mix_row`]) to `sums`.
///
/// On a GPU everything comes from the arguments of one launch, so nothing is copied; the same bits on every device.
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`KernelError::OutOfRange`] if the order has fewer rows; [`KernelError::DeviceMismatch`],
/// [`KernelError::DTypeUnsupported`], [`KernelError::Shape`].
#[doc(hidden)]
pub fn begin_step(scalars: Option<ScalarsOutput<'_>>, rows: Option<RowNumbersOutput<'_>>) -> Result<()> {
    if let Some(ScalarsOutput { to, .. }) = &scalars {
        let to = to.operand("scalars");
        check::dtype(OP, to, &[DType::F64], "f64")?;
        check::shape(OP, to, Shape::vector(STEP_SCALARS_LEN))?;
    }
    if let Some(RowNumbersOutput { order, first, places, numbers, sums }) = &rows {
        let (numbers_op, sums_op) = (numbers.operand("numbers"), sums.operand("sums"));
        check::same_device(OP, &[numbers_op, sums_op])?;
        if let Some(ScalarsOutput { to, .. }) = &scalars {
            check::same_device(OP, &[to.operand("scalars"), numbers_op])?;
        }
        check::dtype(OP, numbers_op, &[DType::I64], "i64")?;
        check::dtype(OP, sums_op, &[DType::I64], "i64")?;
        check::shape(OP, numbers_op, Shape::vector(numbers.numel()))?;
        check::shape(OP, sums_op, Shape::vector(ROW_SUMS_LEN))?;
        if let Some(RowPlaces { starts, rows, .. }) = places {
            let (starts, rows) = (starts.operand("starts"), rows.operand("rows"));
            check::same_device(OP, &[numbers_op, starts, rows])?;
            check::dtype(OP, starts, &[DType::I64], "i64")?;
            check::dtype(OP, rows, &[DType::I64], "i64")?;
            check::shape(OP, starts, Shape::vector(starts.shape.numel().max(1)))?;
            check::shape(OP, rows, starts.shape)?;
        }
        let (start, len) = (*first, order.len());
        let end = start.saturating_add(numbers.numel());
        if end > len {
            return Err(KernelError::OutOfRange { op: OP, start, end, len });
        }
    }
    let rows = rows.filter(|rows| rows.numbers.numel() > 0);
    let of_rows = rows.as_ref().and_then(|rows| rows.numbers.gpu());
    if let Some(gpu) = scalars.as_ref().and_then(|scalars| scalars.to.gpu()).or(of_rows) {
        let scalars = match scalars {
            Some(ScalarsOutput { scalars, to }) => Some((scalars, to.into_cuda()?)),
            None => None,
        };
        let rows = match rows {
            Some(RowNumbersOutput { order, first, places, numbers, sums }) => Some(Rows {
                order,
                first,
                places: match places {
                    Some(RowPlaces { starts, rows, origin }) => Some((starts.cuda()?, rows.cuda()?, origin)),
                    None => None,
                },
                numbers: numbers.into_cuda()?,
                sums: sums.into_cuda()?,
            }),
            None => None,
        };
        return begin_cuda(gpu, scalars, rows);
    }
    if let Some(ScalarsOutput { scalars, to }) = scalars {
        to.into_slice::<f64>(OP, "scalars")?.copy_from_slice(&scalars.to_array());
    }
    if let Some(RowNumbersOutput { order, first, places, numbers, sums }) = rows {
        let places = match places {
            Some(RowPlaces { starts, rows, origin }) => {
                Some((starts.as_slice(OP, "starts")?, rows.as_slice(OP, "rows")?, origin))
            }
            None => None,
        };
        let (numbers, sums) = (numbers.into_slice(OP, "numbers")?, sums.into_slice(OP, "sums")?);
        number_rows_cpu(order, first, places, numbers, sums);
    }
    Ok(())
}

/// Runs of rows: where they begin, the first row of each, and the place of number 0.
type Places<'a> = (&'a [i64], &'a [i64], usize);

/// Writes the rows at positions `first..` of `order` to `numbers`, and adds them to `sums`.
fn number_rows_cpu(
    order: &KeyedPermutation,
    first: usize,
    places: Option<Places<'_>>,
    numbers: &mut [i64],
    sums: &mut [i64],
) {
    let mut added = [0u64; ROW_SUMS_LEN];
    added[0] = numbers.len() as u64;
    for (i, number) in numbers.iter_mut().enumerate() {
        let row = match (order.index(first + i), places) {
            (row, None) => row,
            (number, Some((starts, rows, origin))) => {
                let place = (origin + number) as i64;
                let run = starts.partition_point(|&start| start <= place).saturating_sub(1);
                (rows[run] + place - starts[run]) as usize
            }
        };
        *number = row as i64;
        let mix = mix_row(row as u64);
        for (k, sum) in added[1..].iter_mut().enumerate() {
            *sum = sum.wrapping_add(u64::from((mix >> (32 * k)) as u32));
        }
    }
    for (sum, added) in sums.iter_mut().zip(added) {
        *sum = sum.wrapping_add(added as i64);
    }
}

pub(crate) static SOURCE: Source = Source::new("begin_step", include_str!("kernel.cu"));

/// `Scalars` of `kernel.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct ScalarsArgument([f64; STEP_SCALARS_LEN]);

impl Argument for ScalarsArgument {}

/// `Order` of `kernel.cu`; no bits are the identity.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct DeviceOrder {
    n: u64,
    keys: [u64; N_ROUNDS],
    high_bits: u32,
    low_bits: u32,
}

impl Argument for DeviceOrder {}

impl DeviceOrder {
    fn new(order: &KeyedPermutation) -> Self {
        let (high_bits, low_bits) = order.bits();
        DeviceOrder { n: order.len() as u64, keys: order.keys().unwrap_or_default(), high_bits, low_bits }
    }
}

/// Rows to number.
struct Rows<'a> {
    order: &'a KeyedPermutation,
    /// Position of the first.
    first: usize,
    /// Where runs of rows begin, the first row of each, and the place of number 0.
    places: Option<(CudaSlice<'a>, CudaSlice<'a>, usize)>,
    numbers: CudaSliceMut<'a>,
    sums: CudaSliceMut<'a>,
}

/// CUDA twin of the CPU function; the caller checked the operands, of which `rows` has at least one row.
fn begin_cuda(
    gpu: &'static Gpu,
    scalars: Option<(StepScalars, CudaSliceMut<'_>)>,
    rows: Option<Rows<'_>>,
) -> Result<()> {
    let (scalars, mut to) = scalars.unzip();
    let (mut numbers, mut sums) = (None, None);
    let mut order = <DeviceOrder as bytemuck::Zeroable>::zeroed();
    let (mut position, mut n_rows) = (0u64, 0usize);
    let mut places = None;
    if let Some(rows) = rows {
        (order, position, n_rows) = (DeviceOrder::new(rows.order), rows.first as u64, rows.numbers.len());
        (numbers, sums, places) = (Some(rows.numbers), Some(rows.sums), rows.places);
    }
    let n_runs = places.map_or(0, |(starts, ..)| starts.len());
    let origin = places.map_or(0, |(_, _, origin)| origin as u64);
    let launch = Launch::new(gpu, &SOURCE, "begin_step")?.for_elements(n_rows, 1);
    let launch = launch.arg(ScalarsArgument(scalars.unwrap_or_default().to_array()));
    let launch = launch.write_opt(to.as_mut()).arg(order).arg(position).arg(n_rows);
    let launch = launch.read_opt(places.map(|(starts, ..)| starts));
    let launch = launch.read_opt(places.map(|(_, rows, _)| rows)).arg(n_runs).arg(origin);
    let launch = launch.write_opt(numbers.as_mut()).write_opt(sums.as_mut());
    // SAFETY: begin_step(Scalars scalars, double* to, Order order, u64 first, size_t rows, const i64* starts, const i64* run_rows,
    // size_t runs, u64 origin, i64* numbers, u64* sums); `to` holds STEP_SCALARS_LEN elements, starts and run_rows `runs`, numbers one a
    // row, sums ROW_SUMS_LEN; the last two are used only if there are rows.
    unsafe { launch.run() }
}

/// Elements (i64, bits of u64) of the sums of mixes that [`begin_step`] adds to: the number of rows, then, modulo 2^64, the
/// sum of each 32-bit word of the rows' mixes, the lowest first.
#[doc(hidden)]
pub const ROW_SUMS_LEN: usize = 5;

/// A 128-bit mix of a row's number, whose sum over rows identifies the rows that were used.
///
/// Two bijective 64-bit mixers next to each other: Stafford's variant 13, as in SplitMix64, and the finalizer of MurmurHash3.
#[inline]
#[doc(hidden)]
pub fn mix_row(row: u64) -> u128 {
    let mut a = row.wrapping_add(0x9e37_79b9_7f4a_7c15);
    a = (a ^ (a >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    a = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    a ^= a >> 31;
    let mut b = row ^ 0xd1b5_4a32_d192_ed03;
    b = (b ^ (b >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    b = (b ^ (b >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    b ^= b >> 33;
    u128::from(a) << 64 | u128::from(b)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::ops::testing::devices;
    use crate::{Device, Tensor};

    const SCALARS: StepScalars = StepScalars {
        lr: 0.1,
        step: 7,
        seed: 3 << 40 | 5,
        first_row: 9,
        expected_weight: 0.5,
        unscale: 0.25,
        beta_powers: [0.81, 0.998],
        extra: 1_048_577.0,
        loss_limit: 3.5,
    };

    /// Numbers of `rows`, and their sums on top of `before`.
    fn number(
        order: &KeyedPermutation,
        rows: Range<usize>,
        before: i64,
        device: Device,
    ) -> (Vec<i64>, Vec<i64>) {
        let first = rows.start;
        let mut numbers = Tensor::zeros(&[rows.len()], DType::I64, device).unwrap();
        let mut sums = Tensor::full(&[ROW_SUMS_LEN], before as f64, DType::I64, device).unwrap();
        let (numbers_out, sums_out) = (numbers.view_mut(), sums.view_mut());
        let rows = RowNumbersOutput { order, first, places: None, numbers: numbers_out, sums: sums_out };
        begin_step(None, Some(rows)).unwrap();
        (numbers.to_vec().unwrap(), sums.to_vec().unwrap())
    }

    #[test]
    fn every_device_numbers_the_rows_in_the_order_of_the_permutation() {
        // Both sides of powers of two, where the network's halves change their width, and sizes that no table has.
        let sizes = [
            1,
            2,
            3,
            255,
            256,
            257,
            1000,
            1437,
            4096,
            4097,
            65_535,
            65_537,
            10_000_019,
            1 << 40,
            (1 << 62) - 5,
        ];
        for device in devices() {
            for (k, n_rows) in sizes.into_iter().enumerate() {
                for (seed, epoch) in [(0, 0), (42, 3), (u64::MAX, 1 << 33)] {
                    let order = KeyedPermutation::new(n_rows, seed, epoch);
                    let n = n_rows.min(700);
                    let first = (n_rows - n) / (k + 1);
                    let (numbers, sums) = number(&order, first..first + n, -1, device);
                    let want: Vec<i64> = (first..first + n).map(|i| order.index(i) as i64).collect();
                    assert_eq!(numbers, want, "{n_rows} rows, seed {seed}, epoch {epoch}, on {device}");
                    let mixes = || want.iter().map(|&row| mix_row(row as u64));
                    let word =
                        |k: usize| mixes().map(|mix| i64::from((mix >> (32 * k)) as u32)).sum::<i64>() - 1;
                    assert_eq!(sums, [n as i64 - 1, word(0), word(1), word(2), word(3)], "on {device}");
                }
            }
            let identity = KeyedPermutation::identity(1 << 50);
            let (numbers, _) = number(&identity, 1 << 49..(1 << 49) + 300, 0, device);
            assert_eq!(numbers, Vec::from_iter(1i64 << 49..(1 << 49) + 300));
        }
    }

    #[test]
    fn many_blocks_add_to_the_sums_of_earlier_steps() {
        let order = KeyedPermutation::new(300_000, 1, 2);
        for device in devices() {
            let (all, of_all) = number(&order, 0..300_000, 0, device);
            let (first, of_first) = number(&order, 0..100_000, 0, device);
            let (rest, of_rest) = number(&order, 100_000..300_000, 0, device);
            assert!(all == [first, rest].concat());
            let added: Vec<i64> = of_first.iter().zip(of_rest).map(|(a, b)| a.wrapping_add(b)).collect();
            assert_eq!(of_all, added);
            assert_eq!(of_all, number(&KeyedPermutation::identity(300_000), 0..300_000, 0, device).1);
        }
    }

    #[test]
    fn scalars_arrive_with_and_without_rows() {
        let order = KeyedPermutation::new(50, 1, 2);
        for device in devices() {
            for n in [0, 3] {
                let mut to = Tensor::zeros(&[STEP_SCALARS_LEN], DType::F64, device).unwrap();
                let mut numbers = Tensor::zeros(&[n], DType::I64, device).unwrap();
                let mut sums = Tensor::zeros(&[ROW_SUMS_LEN], DType::I64, device).unwrap();
                let rows = RowNumbersOutput {
                    order: &order,
                    first: 47,
                    places: None,
                    numbers: numbers.view_mut(),
                    sums: sums.view_mut(),
                };
                begin_step(Some(ScalarsOutput { scalars: SCALARS, to: to.view_mut() }), Some(rows)).unwrap();
                assert_eq!(StepScalars::from_slice(&to.to_vec::<f64>().unwrap()), SCALARS);
                assert_eq!(numbers.to_vec::<i64>().unwrap(), number(&order, 47..47 + n, 0, Device::Cpu).0);
                let mut to = to.zeros_like().unwrap();
                begin_step(Some(ScalarsOutput { scalars: SCALARS, to: to.view_mut() }), None).unwrap();
                assert_eq!(to.to_vec::<f64>().unwrap(), SCALARS.to_array());
            }
        }
        begin_step(None, None).unwrap();
    }

    #[test]
    fn every_device_finds_the_rows_of_runs() {
        let order = KeyedPermutation::new(1000, 3, 4);
        // Runs of 300, 1, 499 and 700 places from place 5000 on, of which the order covers the first 1000.
        let (starts, firsts) = ([5000i64, 5300, 5301, 5800], [70_000i64, 9, 1 << 40, 200]);
        for device in devices() {
            let [starts_there, firsts_there] =
                [&starts, &firsts].map(|values| Tensor::from_slice(&values[..], &[4], device).unwrap());
            for (first, n) in [(0, 1000), (123, 321), (999, 1)] {
                let mut numbers = Tensor::zeros(&[n], DType::I64, device).unwrap();
                let mut sums = Tensor::zeros(&[ROW_SUMS_LEN], DType::I64, device).unwrap();
                let places =
                    Some(RowPlaces { starts: starts_there.view(), rows: firsts_there.view(), origin: 5000 });
                let (to, of_rows) = (numbers.view_mut(), sums.view_mut());
                let rows = RowNumbersOutput { order: &order, first, places, numbers: to, sums: of_rows };
                begin_step(None, Some(rows)).unwrap();
                let row = |i: usize| {
                    let place = 5000 + order.index(i) as i64;
                    let run = starts.iter().rposition(|&start| start <= place).unwrap();
                    firsts[run] + place - starts[run]
                };
                let want: Vec<i64> = (first..first + n).map(row).collect();
                assert_eq!(numbers.to_vec::<i64>().unwrap(), want, "{n} from {first} on {device}");
                let word = |k: usize| {
                    want.iter().map(|&row| i64::from((mix_row(row as u64) >> (32 * k)) as u32)).sum::<i64>()
                };
                assert_eq!(sums.to_vec::<i64>().unwrap(), [n as i64, word(0), word(1), word(2), word(3)]);
            }
            let mut numbers = Tensor::zeros(&[3], DType::I64, device).unwrap();
            let mut sums = Tensor::zeros(&[ROW_SUMS_LEN], DType::I64, device).unwrap();
            let (starts, rows) = (starts_there.view(), firsts_there.view().range(0, 3).unwrap());
            let places = Some(RowPlaces { starts, rows, origin: 5000 });
            let (numbers, sums) = (numbers.view_mut(), sums.view_mut());
            let wrong = RowNumbersOutput { order: &order, first: 0, places, numbers, sums };
            assert!(matches!(begin_step(None, Some(wrong)), Err(KernelError::Shape { .. })));
        }
    }

    #[test]
    fn rows_beyond_the_order_and_wrong_tensors_are_refused() {
        let order = KeyedPermutation::new(50, 1, 2);
        for device in devices() {
            let zeros = |n, dtype| Tensor::zeros(&[n], dtype, device).unwrap();
            let refused = |first, mut numbers: Tensor, mut sums: Tensor| {
                let (numbers, sums) = (numbers.view_mut(), sums.view_mut());
                begin_step(None, Some(RowNumbersOutput { order: &order, first, places: None, numbers, sums }))
                    .unwrap_err()
            };
            let sums = || zeros(ROW_SUMS_LEN, DType::I64);
            let error = refused(48, zeros(3, DType::I64), sums());
            assert!(matches!(error, KernelError::OutOfRange { start: 48, end: 51, len: 50, .. }), "{error}");
            refused(0, zeros(3, DType::F64), sums());
            refused(0, zeros(3, DType::I64), zeros(4, DType::I64));
            refused(0, zeros(3, DType::I64), zeros(ROW_SUMS_LEN, DType::F64));
            for mut wrong in [zeros(STEP_SCALARS_LEN, DType::F32), zeros(3, DType::F64)] {
                let scalars = ScalarsOutput { scalars: SCALARS, to: wrong.view_mut() };
                assert!(begin_step(Some(scalars), None).is_err());
            }
        }
    }
}

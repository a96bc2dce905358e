//! One launch whose arguments are the scalars and the key of the order.

use crate::base::permutation::N_ROUNDS;
use crate::cuda::launch::{Argument, Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::step_scalars::{STEP_SCALARS_LEN, StepScalars};
use crate::{KeyedPermutation, Result};

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
pub(super) struct Rows<'a> {
    pub(super) order: &'a KeyedPermutation,
    /// Position of the first.
    pub(super) first: usize,
    /// Where runs of rows begin, the first row of each, and the place of number 0.
    pub(super) places: Option<(CudaSlice<'a>, CudaSlice<'a>, usize)>,
    pub(super) numbers: CudaSliceMut<'a>,
    pub(super) sums: CudaSliceMut<'a>,
}

/// CUDA twin of `cpu.rs`; the caller checked the operands, of which `rows` has at least one row.
pub(super) fn begin(
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
    let launch = Launch::new(gpu, &SOURCE, "begin_step")?
        .for_elements(n_rows, 1)
        .arg(ScalarsArgument(scalars.unwrap_or_default().to_array()))
        .write_opt(to.as_mut())
        .arg(order)
        .arg(position)
        .arg(n_rows)
        .read_opt(places.map(|(starts, ..)| starts))
        .read_opt(places.map(|(_, rows, _)| rows))
        .arg(n_runs)
        .arg(origin)
        .write_opt(numbers.as_mut())
        .write_opt(sums.as_mut());
    // SAFETY: begin_step(Scalars scalars, double* to, Order order, u64 first, size_t rows, const i64* starts, const i64* run_rows,
    // size_t runs, u64 origin, i64* numbers, u64* sums); `to` holds STEP_SCALARS_LEN elements, starts and run_rows `runs`, numbers one a
    // row, sums ROW_SUMS_LEN; the last two are used only if there are rows.
    unsafe { launch.run() }
}

//! Operations on `[rows, cols]` in one data type: their operands, times, and the minimum number of bytes that they move.

use ddp_kernels::{DType, KernelError, ops};
use serde::Serialize;

use super::buffers::{Rotating, n_sets};
use super::place::Place;
use super::report::{Row, number, percent, spread};
use super::timing::{Clock, Effort, Times};

pub(super) type Result<T> = std::result::Result<T, KernelError>;

/// Result of one operation.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    op: &'static str,
    dtype: String,
    rows: usize,
    cols: usize,
    moved_bytes: usize,
    #[serde(flatten)]
    times: Times,
    gb_per_s: f64,
    fraction_of_copy: f64,
}

impl Row for Measured {
    const TITLES: &'static [&'static str] =
        &["<operation", "<dtype", "moved MB", "ms median (min to max)", "GB/s", "of copy"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.op.to_owned(),
            self.dtype.clone(),
            number(self.moved_bytes as f64 * 1e-6),
            spread(&self.times),
            number(self.gb_per_s),
            percent(self.fraction_of_copy),
        ]
    }
}

/// Operations on `[rows, cols]` in one data type, and their results.
pub(super) struct Bench<'a> {
    pub(super) place: &'a Place,
    pub(super) clock: Clock,
    pub(super) effort: Effort,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) dtype: DType,
    /// Bandwidth of a plain copy of the same number of elements.
    pub(super) copy_gb_per_s: f64,
    pub(super) done: Vec<Measured>,
}

impl Bench<'_> {
    pub(super) fn n(&self) -> usize {
        self.rows * self.cols
    }

    /// Bytes of a tensor with all elements.
    pub(super) fn whole(&self) -> usize {
        self.n() * self.dtype.size_bytes()
    }

    /// A random tensor. Statistics and parameter gradients stay f32 in bf16 runs.
    pub(super) fn random(&self, dims: &[usize], dtype: DType, seed: u64) -> Result<Rotating> {
        Rotating::random(self.place, dims, dtype, n_sets(self.place, self.whole()), seed)
    }

    /// A tensor with all elements.
    pub(super) fn tensor(&self, seed: u64) -> Result<Rotating> {
        self.random(&[self.rows, self.cols], self.dtype, seed)
    }

    pub(super) fn run(
        &mut self,
        op: &'static str,
        moved_bytes: usize,
        work: impl FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        let times = self.clock.time(self.effort, work)?;
        self.record(op, moved_bytes, times);
        Ok(())
    }

    fn record(&mut self, op: &'static str, moved_bytes: usize, times: Times) {
        let gb_per_s = times.giga_per_s(moved_bytes as f64);
        if op == "copy" {
            self.copy_gb_per_s = gb_per_s;
        }
        let (dtype, rows, cols) = (self.dtype.to_string(), self.rows, self.cols);
        let fraction_of_copy = gb_per_s / self.copy_gb_per_s;
        self.done.push(Measured { op, dtype, rows, cols, moved_bytes, times, gb_per_s, fraction_of_copy });
    }

    pub(super) fn copy(&mut self) -> Result<()> {
        let (x, mut y) = (self.tensor(1)?, self.tensor(2)?);
        self.run("copy", 2 * self.whole(), |call| ops::copy(x.get(call)?, y.get_mut(call)?))
    }
}

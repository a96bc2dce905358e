//! One kernel for all patterns.

use super::{Pattern, n_integers, step_between};
use crate::Result;
use crate::cuda::launch::{Launch, Source, typed_kernel};
use crate::cuda::{CudaSliceMut, Gpu};

pub(crate) static SOURCE: Source = Source::new("fill", include_str!("kernel.cu"));

/// `x[i] = pattern(i)` on this device.
pub(super) fn fill(gpu: &'static Gpu, x: &mut CudaSliceMut<'_>, pattern: Pattern) -> Result<()> {
    let n = x.len();
    if n == 0 {
        return Ok(());
    }
    let (kind, start, step, end, word) = match pattern {
        Pattern::Line { start, step } => (0, start, step, 0.0, 0),
        Pattern::Between { start, end, n } => (1, start, step_between(start, end, n), end, n as u64),
        Pattern::Identity { n } => (2, 0.0, 0.0, 0.0, n as u64),
        Pattern::Integers { seed, low, high } => (4, low as f64, n_integers(low, high), 0.0, seed),
        Pattern::Normal { seed } => (3, 0.0, 0.0, 0.0, seed),
    };
    let launch = Launch::new(gpu, &SOURCE, typed_kernel!("fill", x.dtype()))?.for_elements(n, 4);
    let launch = launch.write(x).arg(n).arg(kind).arg(start).arg(step).arg(end).arg(word);
    // SAFETY: fill(T* x, size_t n, int kind, double start, double step, double end, u64 word); x holds n elements.
    unsafe { launch.run() }
}

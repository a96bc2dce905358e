//! Line by line, lines of neighboring elements together; lines are divided between the threads.

use half::{bf16, f16};

use super::{Layout, ScanOp};
use crate::cpu::cell::with_cells;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::ops::reduce::cpu::{ReduceCell, ReduceNumber, Wide};
use crate::{DType, Element, Result, TensorMut, TensorRef};

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;
/// Neighboring lines that are combined side by side.
const TILE: usize = 64;

/// `out = scan(x)`.
pub(super) fn scan(op: ScanOp, x: TensorRef<'_>, layout: Layout, out: TensorMut<'_>) -> Result<()> {
    let (name, dtype) = (op.name(), x.dtype());
    let bytes = x.as_bytes(name, "a")?;
    with_cells!(dtype, C => {
        let x: &[C] = bytemuck::cast_slice(bytes);
        if C::WIDE_SUM {
            run(op, x, layout, out.into_slice::<i64>(name, "out")?, Wide::integer);
        } else {
            run(op, x, layout, bytemuck::cast_slice_mut(out.into_bytes(name, "out")?), C::of_wide);
        }
        Ok(())
    })
}

fn run<C: ReduceCell, D: Element>(
    op: ScanOp,
    x: &[C],
    layout: Layout,
    out: &mut [D],
    finish: impl Fn(C::Wide) -> D + Sync,
) {
    match op {
        ScanOp::Sum => lines(x, layout, out, C::Wide::ZERO, Wide::add, finish),
        ScanOp::Product => lines(x, layout, out, C::Wide::ONE, Wide::multiply, finish),
    }
}

fn lines<C: ReduceCell, D: Element>(
    x: &[C],
    Layout { outer, len, inner }: Layout,
    out: &mut [D],
    start: C::Wide,
    combine: impl Fn(C::Wide, C::Wide) -> C::Wide + Sync,
    finish: impl Fn(C::Wide) -> D + Sync,
) {
    if out.is_empty() {
        return;
    }
    let tile = inner.min(TILE);
    let n_tiles = inner.div_ceil(tile);
    let out = SharedMut::new(out);
    for_parts(outer * n_tiles, MIN_PART.div_ceil(len * tile), 1, |part| {
        for task in part {
            let (o, first) = (task / n_tiles, task % n_tiles * tile);
            let n = tile.min(inner - first);
            let mut running = [start; TILE];
            for l in 0..len {
                let at = (o * len + l) * inner + first;
                // SAFETY: within `out`, and these lines are this task's alone.
                let out = unsafe { out.slice(at..at + n) };
                for ((out, running), cell) in out.iter_mut().zip(&mut running).zip(&x[at..at + n]) {
                    *running = combine(*running, cell.load().wide());
                    *out = finish(*running);
                }
            }
        }
    });
}

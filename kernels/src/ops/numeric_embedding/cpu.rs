//! Sixteen rows in parallel, one lane each. Rows over threads; for the gradients of parameters, columns of the input over threads, so
//! that their number changes no bit.

#![allow(clippy::needless_range_loop)] // Loops over lanes by index are what the compiler vectorizes.

use super::{Dims, NumericEmbedding};
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cpu::{Float, Stored};
use crate::{Element, Result};

/// Cosines per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 14;
/// Rows in parallel: one AVX-512 register of f32.
const LANES: usize = 16;

/// A number of each row.
type Lanes<R> = [R; LANES];

pub(super) struct Params<'a, T: Stored> {
    frequencies: &'a [T::Real],
    phases: &'a [T::Real],
    weight: &'a [T::Real],
    bias: &'a [T::Real],
}

impl<T: Stored> Clone for Params<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Stored> Copy for Params<'_, T> {}

impl<'a, T: Stored> Params<'a, T> {
    pub(super) fn new(op: &'static str, params: NumericEmbedding<'a>) -> Result<Self> {
        Ok(Params {
            frequencies: params.frequencies.as_slice(op, "frequencies")?,
            phases: params.phases.as_slice(op, "phases")?,
            weight: params.weight.as_slice(op, "weight")?,
            bias: params.bias.as_slice(op, "bias")?,
        })
    }

    /// Gradients of the angles of cosine `k`, given the sines and the gradients of the outputs.
    #[inline(always)]
    fn gradient_of_angle(&self, k: usize, sin: &Lanes<T::Real>, d: &[Lanes<T::Real>]) -> Lanes<T::Real> {
        let mut of_cos = [T::Real::ZERO; LANES];
        for (d, &weight) in d.iter().zip(&self.weight[k * d.len()..]) {
            for lane in 0..LANES {
                of_cos[lane] += d[lane] * weight;
            }
        }
        for lane in 0..LANES {
            of_cos[lane] = -of_cos[lane] * sin[lane];
        }
        of_cos
    }
}

/// Angles of one column's cosines for the rows of a block, cosine by cosine, and their sines and cosines.
///
/// In loops of a length that the compiler does not know: it would unroll those over lanes, and vectorize nothing of what is left.
struct Angles<R> {
    angles: Vec<R>,
    sin: Vec<R>,
    cos: Vec<R>,
}

impl<R: Float> Angles<R> {
    fn new(frequencies: usize) -> Self {
        let zeros = || vec![R::ZERO; frequencies * LANES];
        Angles { angles: zeros(), sin: zeros(), cos: zeros() }
    }

    /// Sets all angles. Returns whether [`Float::sin_near`] and [`Float::cos_near`] are accurate for all of them.
    #[inline(always)]
    fn set<T: Stored<Real = R>>(&mut self, params: &Params<'_, T>, feature: usize, x: &Lanes<R>) -> bool {
        let (angles, _) = self.angles.as_chunks_mut::<LANES>();
        let first = feature * angles.len();
        for (k, angles) in angles.iter_mut().enumerate() {
            let (turns, phase) = (two_pi::<T>() * params.frequencies[first + k], params.phases[first + k]);
            for lane in 0..LANES {
                angles[lane] = turns * x[lane] + phase;
            }
        }
        let mut largest = R::ZERO;
        for &angle in &self.angles {
            largest = if angle.abs() > largest { angle.abs() } else { largest };
        }
        largest <= R::MAX_ANGLE
    }

    /// Computes the cosines.
    #[inline(always)]
    fn set_cos(&mut self, are_near: bool) {
        for (cos, angle) in self.cos.iter_mut().zip(&self.angles) {
            *cos = angle.cos_near();
        }
        if !are_near {
            for (cos, angle) in self.cos.iter_mut().zip(&self.angles).filter(is_far) {
                *cos = R::from_f64(angle.to_f64().cos());
            }
        }
    }

    /// Computes the sines.
    #[inline(always)]
    fn set_sin(&mut self, are_near: bool) {
        for (sin, angle) in self.sin.iter_mut().zip(&self.angles) {
            *sin = angle.sin_near();
        }
        if !are_near {
            for (sin, angle) in self.sin.iter_mut().zip(&self.angles).filter(is_far) {
                *sin = R::from_f64(angle.to_f64().sin());
            }
        }
    }
}

/// Whether the angle needs the sine or cosine of f64. Each angle decides for itself, so that no row depends on its neighbours.
fn is_far<R: Float>((_, angle): &(&mut R, &R)) -> bool {
    angle.abs() > R::MAX_ANGLE
}

fn two_pi<T: Stored>() -> T::Real {
    T::Real::from_f64(std::f64::consts::TAU)
}

/// The numbers at `start`, `start + step` and so on, one for each row of a block; lanes without a row hold zeros.
#[inline(always)]
fn load<T: Stored>(from: &[T], start: usize, step: usize, n_rows: usize) -> Lanes<T::Real> {
    let mut lanes = [T::Real::ZERO; LANES];
    for row in 0..n_rows {
        lanes[row] = from[start + row * step].load();
    }
    lanes
}

/// Calls `f` with the first row of each block and its number of rows.
#[inline(always)]
fn for_blocks(rows: std::ops::Range<usize>, mut f: impl FnMut(usize, usize)) {
    for row in rows.clone().step_by(LANES) {
        f(row, LANES.min(rows.end - row));
    }
}

pub(super) fn forward<T: Stored>(x: &[T], params: Params<'_, T>, y: &mut [T], dims: Dims) {
    let Dims { features, frequencies, outputs } = dims;
    let (n_rows, width) = (x.len().checked_div(features).unwrap_or(0), 1 + outputs);
    let y = SharedMut::new(y);
    for_parts(n_rows, MIN_PART.div_ceil((features * frequencies).max(1)), 1, |part| {
        // SAFETY: these rows lie within `y` and are this thread's alone.
        let y = unsafe { y.slice(part.start * features * width..part.end * features * width) };
        let x = &x[part.start * features..part.end * features];
        let mut angles = Angles::new(frequencies);
        vectorize(
            #[inline(always)]
            || {
                for_blocks(
                    0..part.len(),
                    #[inline(always)]
                    |row, n_rows| {
                        for feature in 0..features {
                            let x = load(x, row * features + feature, features, n_rows);
                            let first = feature * frequencies;
                            let are_near = angles.set(&params, feature, &x);
                            angles.set_cos(are_near);
                            let (at, step) = ((row * features + feature) * width, features * width);
                            for row in 0..n_rows {
                                y[at + row * step] = T::store(x[row]);
                            }
                            for e in 0..outputs {
                                let mut sum = [params.bias[feature * outputs + e]; LANES];
                                let (cosines, _) = angles.cos.as_chunks::<LANES>();
                                for (k, cosines) in cosines.iter().enumerate() {
                                    let weight = params.weight[(first + k) * outputs + e];
                                    for lane in 0..LANES {
                                        sum[lane] += weight * cosines[lane];
                                    }
                                }
                                for row in 0..n_rows {
                                    y[at + 1 + e + row * step] = T::store(sum[row]);
                                }
                            }
                        }
                    },
                );
            },
        );
    });
}

pub(super) fn backward<T: Stored>(
    x: &[T],
    params: Params<'_, T>,
    d: &[T],
    grads: Vec<&mut [T::Real]>,
    dims: Dims,
) {
    let Dims { features, frequencies, outputs } = dims;
    let grads: Vec<_> = grads.into_iter().map(SharedMut::new).collect();
    let n_rows = x.len().checked_div(features).unwrap_or(0);
    for_parts(features, MIN_PART.div_ceil((n_rows * frequencies).max(1)), 1, |part| {
        let mut sums = ColumnSums::<T>::new(dims);
        for feature in part {
            sums.clear();
            vectorize(
                #[inline(always)]
                || {
                    for_blocks(
                        0..n_rows,
                        #[inline(always)]
                        |row, n_rows| sums.add(x, &params, d, feature, row, n_rows),
                    );
                },
            );
            let lens = [frequencies, frequencies, frequencies * outputs, outputs];
            for ((sums, grads), len) in sums.all().into_iter().zip(&grads).zip(lens) {
                // SAFETY: the gradients of this column's parameters lie within their tensors and are this thread's alone.
                let grads = unsafe { grads.slice(feature * len..(feature + 1) * len) };
                for (grad, lanes) in grads.iter_mut().zip(sums) {
                    *grad += lanes.iter().copied().sum();
                }
            }
        }
    });
}

/// Gradients of one column's parameters, for the rows of each lane.
struct ColumnSums<T: Stored> {
    dims: Dims,
    frequencies: Vec<Lanes<T::Real>>,
    phases: Vec<Lanes<T::Real>>,
    /// By cosine, then by output.
    weight: Vec<Lanes<T::Real>>,
    bias: Vec<Lanes<T::Real>>,
    /// Gradients of the outputs, and the angles, in the block at hand.
    d: Vec<Lanes<T::Real>>,
    angles: Angles<T::Real>,
}

impl<T: Stored> ColumnSums<T> {
    fn new(dims: Dims) -> Self {
        let zeros = |len| vec![[T::Real::ZERO; LANES]; len];
        let Dims { frequencies, outputs, .. } = dims;
        ColumnSums {
            dims,
            frequencies: zeros(frequencies),
            phases: zeros(frequencies),
            weight: zeros(frequencies * outputs),
            bias: zeros(outputs),
            d: zeros(outputs),
            angles: Angles::new(frequencies),
        }
    }

    fn all(&mut self) -> [&mut Vec<Lanes<T::Real>>; 4] {
        [&mut self.frequencies, &mut self.phases, &mut self.weight, &mut self.bias]
    }

    fn clear(&mut self) {
        for sums in self.all() {
            sums.fill([T::Real::ZERO; LANES]);
        }
    }

    /// Adds the gradients of a block of rows.
    #[inline(always)]
    fn add(&mut self, x: &[T], params: &Params<'_, T>, d: &[T], feature: usize, row: usize, n_rows: usize) {
        let Dims { features, frequencies, outputs } = self.dims;
        let (at, width) = (row * features + feature, 1 + outputs);
        let x = load(x, at, features, n_rows);
        for e in 0..outputs {
            self.d[e] = load(d, at * width + 1 + e, features * width, n_rows);
            for lane in 0..LANES {
                self.bias[e][lane] += self.d[e][lane];
            }
        }
        let are_near = self.angles.set(params, feature, &x);
        self.angles.set_sin(are_near);
        self.angles.set_cos(are_near);
        let (sin, _) = self.angles.sin.as_chunks::<LANES>();
        let (cos, _) = self.angles.cos.as_chunks::<LANES>();
        for (k, (sin, cos)) in sin.iter().zip(cos).enumerate() {
            let of_angle = params.gradient_of_angle(feature * frequencies + k, sin, &self.d);
            for lane in 0..LANES {
                self.frequencies[k][lane] += two_pi::<T>() * x[lane] * of_angle[lane];
                self.phases[k][lane] += of_angle[lane];
            }
            for (sum, d) in self.weight[k * outputs..].iter_mut().zip(&self.d) {
                for lane in 0..LANES {
                    sum[lane] += d[lane] * cos[lane];
                }
            }
        }
    }
}

pub(super) fn backward_input<T: Stored>(
    x: &[T],
    params: Params<'_, T>,
    d: &[T],
    d_x: &mut [T],
    accumulate: bool,
    dims: Dims,
) {
    let Dims { features, frequencies, outputs } = dims;
    let (n_rows, width) = (x.len().checked_div(features).unwrap_or(0), 1 + outputs);
    let d_x = SharedMut::new(d_x);
    for_parts(n_rows, MIN_PART.div_ceil((features * frequencies).max(1)), 1, |part| {
        // SAFETY: these rows lie within `d_x` and are this thread's alone.
        let d_x = unsafe { d_x.slice(part.start * features..part.end * features) };
        let x = &x[part.start * features..part.end * features];
        let d = &d[part.start * features * width..part.end * features * width];
        let mut of_outputs = vec![[T::Real::ZERO; LANES]; outputs];
        let mut angles = Angles::new(frequencies);
        vectorize(
            #[inline(always)]
            || {
                for_blocks(
                    0..part.len(),
                    #[inline(always)]
                    |row, n_rows| {
                        for feature in 0..features {
                            let at = row * features + feature;
                            let of = |e| load(d, at * width + e, features * width, n_rows);
                            for e in 0..outputs {
                                of_outputs[e] = of(1 + e);
                            }
                            let (mut sum, x) = (of(0), load(x, at, features, n_rows));
                            if accumulate {
                                let before = load(d_x, at, features, n_rows);
                                for lane in 0..LANES {
                                    sum[lane] += before[lane];
                                }
                            }
                            let are_near = angles.set(&params, feature, &x);
                            angles.set_sin(are_near);
                            let (sin, _) = angles.sin.as_chunks::<LANES>();
                            for (k, sin) in (feature * frequencies..).zip(sin) {
                                let of_angle = params.gradient_of_angle(k, sin, &of_outputs);
                                let turns = two_pi::<T>() * params.frequencies[k];
                                for lane in 0..LANES {
                                    sum[lane] += turns * of_angle[lane];
                                }
                            }
                            for row in 0..n_rows {
                                d_x[at + row * features] = T::store(sum[row]);
                            }
                        }
                    },
                );
            },
        );
    });
}

//! `ddp-train bench addmm`: matmuls of a model's layers, and square ones.

use ddp_comm::World;
use ddp_kernels::ops::{MatmulMode, split_factors_len};
use ddp_kernels::{DType, KernelError, Tensor, ops};

use super::buffers::{Rotating, n_sets};
use super::place::{Place, Work};
use super::report::{self, Row};
use super::timing::{Clock, Effort, Times};
use crate::cli::{BenchAddmmArgs, BenchDtype};
use crate::error::Error;
use crate::exit::Stop;

const ALL_DTYPES: [BenchDtype; 4] = [BenchDtype::F32, BenchDtype::F32x3, BenchDtype::Tf32, BenchDtype::Bf16];

/// A matmul `[m, k] · [k, n]`, either operand possibly stored transposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Product {
    /// Pass of the layer, or `square`.
    pub(super) pass: &'static str,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) transpose_a: bool,
    pub(super) transpose_b: bool,
    /// Whether the result is f32 even for bf16 operands.
    pub(super) is_wide: bool,
}

/// The matmuls of a training step, layer by layer; the input of the first layer needs no gradient.
pub(super) fn products_of_layers(dims: &[usize], batch: usize) -> Vec<Product> {
    let mut products = Vec::new();
    for (layer, widths) in dims.windows(2).enumerate() {
        let (i, o) = (widths[0], widths[1]);
        let product = |pass, m, n, k, transpose_a, transpose_b, is_wide| Product {
            pass,
            m,
            n,
            k,
            transpose_a,
            transpose_b,
            is_wide,
        };
        // y = x·Wᵀ, dW = dyᵀ·x, dx = dy·W; the outputs of the last layer and gradients of weights are f32.
        let is_last = layer + 2 == dims.len();
        products.push(product("forward", batch, o, i, false, true, is_last));
        products.push(product("d_weight", o, i, batch, true, false, true));
        if layer > 0 {
            products.push(product("d_input", batch, i, o, false, false, false));
        }
    }
    products
}

pub(super) fn square(side: usize) -> Product {
    Product {
        pass: "square",
        m: side,
        n: side,
        k: side,
        transpose_a: false,
        transpose_b: false,
        is_wide: false,
    }
}

impl Product {
    pub(super) fn flop(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }

    pub(super) fn tflops_per_s(&self, times: &Times) -> f64 {
        times.giga_per_s(self.flop()) * 1e-3
    }

    /// Measures the time on random operands that are not in a cache.
    pub(super) fn time(
        &self,
        place: &Place,
        dtype: BenchDtype,
        effort: Effort,
    ) -> Result<Times, KernelError> {
        let (inputs, output) = self.dtypes(dtype);
        let n_factors = (self.m + self.n) * self.k;
        let bytes = n_factors * inputs.size_bytes() + self.m * self.n * output.size_bytes();
        self.time_on(place, dtype, effort, n_sets(place, bytes))
    }

    /// Data types of the operands and of the result.
    fn dtypes(&self, dtype: BenchDtype) -> (DType, DType) {
        let inputs = dtype.precision().activations();
        (inputs, if self.is_wide { DType::F32 } else { inputs })
    }

    /// Measures the time on `sets` rotating sets of operands; a single set stays in a large enough cache, as in a step.
    pub(super) fn time_on(
        &self,
        place: &Place,
        dtype: BenchDtype,
        effort: Effort,
        sets: usize,
    ) -> Result<Times, KernelError> {
        let (inputs, output) = self.dtypes(dtype);
        let mode = dtype.precision().matmul_mode();
        let stored = |rows, cols, transpose| if transpose { [cols, rows] } else { [rows, cols] };
        let a_dims = stored(self.m, self.k, self.transpose_a);
        let b_dims = stored(self.k, self.n, self.transpose_b);
        let a = Rotating::random(place, &a_dims, inputs, sets, 1)?;
        let b = Rotating::random(place, &b_dims, inputs, sets, 2)?;
        let mut c = Rotating::random(place, &[self.m, self.n], output, sets, 3)?;
        let n_split = if mode == MatmulMode::F32x3 { split_factors_len(self.m, self.n, self.k) } else { 0 };
        let mut scratch = Tensor::zeros(&[n_split], DType::F32, place.device)?;
        let (ta, tb) = (self.transpose_a, self.transpose_b);
        Clock::of(place)?.time(effort, |call| {
            let (a, b, c) = (a.get(call)?, b.get(call)?, c.get_mut(call)?);
            match mode {
                MatmulMode::F32x3 => ops::addmm_f32x3(1.0, a, ta, b, tb, 0.0, c, scratch.view_mut()),
                _ => ops::addmm_with(mode, 1.0, a, ta, b, tb, 0.0, c),
            }
        })
    }
}

/// The result of one matmul, whose rate is compared with the best of the same data type.
fn measured(dtype: BenchDtype, product: Product, times: Times, best: f64) -> Row {
    let Product { pass, m, n, k, transpose_a, transpose_b, .. } = product;
    let tflops_per_s = product.tflops_per_s(&times);
    Row::default()
        .plain("<dtype", "dtype", dtype.precision().name())
        .plain("<matmul", "pass", pass)
        .plain("m", "m", m)
        .plain("n", "n", n)
        .plain("k", "k", k)
        .value("transpose_a", transpose_a)
        .value("transpose_b", transpose_b)
        .times(times)
        .number("TFLOP/s", "tflops_per_s", tflops_per_s)
        .percent("of best", "fraction_of_best", tflops_per_s / best)
}

/// Runs the benchmark and prints the results on rank 0; every rank of the world calls it.
pub(super) fn addmm(world: &World, args: &BenchAddmmArgs) -> Result<(), Stop> {
    let place = Place::pin(world, &args.place, Work::Operations, &args.dtype)?;
    let sides: &[usize] = match (&args.square[..], place.is_cpu()) {
        ([], true) => &[512, 1024, 2048],
        ([], false) => &[1024, 2048, 4096, 8192],
        (sides, _) => sides,
    };
    let mut products = products_of_layers(&args.dims.0, args.batch);
    products.extend(sides.iter().map(|&side| square(side)));
    let effort = Effort::new(args.timing);
    let mut rows = Vec::new();
    for dtype in place.dtypes(&args.dtype, &ALL_DTYPES) {
        let times: Result<Vec<Times>, _> = products.iter().map(|p| p.time(&place, dtype, effort)).collect();
        let times = times.map_err(Error::from)?;
        let all = || products.iter().zip(&times);
        let best = all().map(|(product, times)| product.tflops_per_s(times)).fold(0.0, f64::max);
        rows.extend(all().map(|(&product, &times)| measured(dtype, product, times, best)));
    }
    report::print(world, "addmm", &place, args.place.json, &rows)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use ddp::model::ModelSpec;

    use super::*;

    #[test]
    fn products_make_up_a_step() {
        let dims = [64, 128, 32, 10];
        let products = products_of_layers(&dims, 7);
        let flop: f64 = products.iter().map(Product::flop).sum();
        let spec = ModelSpec::plain(&dims, ops::Activation::Relu);
        assert_eq!(flop, spec.flop_per_row() as f64 * 7.0);
        let passes: Vec<_> = products.iter().map(|p| (p.pass, p.m, p.n, p.k)).collect();
        assert_eq!(passes[..3], [("forward", 7, 128, 64), ("d_weight", 128, 64, 7), ("forward", 7, 32, 128)]);
        assert_eq!(passes[4], ("d_input", 7, 128, 32));
        let wide: Vec<_> = products.iter().filter(|p| p.is_wide).map(|p| p.pass).collect();
        assert_eq!(wide, ["d_weight", "d_weight", "forward", "d_weight"]);
    }
}

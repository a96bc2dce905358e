//! `ddp-train bench kernels`: memory-bound operations.
//!
//! Reports the bytes that each operation must move (every input read once, every output written once) per time, and the fraction
//! of the bandwidth of a plain copy on the same device: a value far below 1 indicates extra traffic or stalls. Reductions only
//! read, so on the CPU they are compared with `read`, a plain loop over the same memory.

use std::hint::black_box;

use ddp_comm::World;
use ddp_kernels::ops::{
    self, Activation, CrossEntropyConfig, DropoutKey, ElementLoss, LayerNormGrads, LayerNormStats, MapOp,
    OptimizerKind, OptimizerParams, OptimizerTensors, ReduceOp, STEP_SUMS_LEN, SumsOutput, UniformStream,
};
use ddp_kernels::{DType, Device};
use rayon::prelude::*;

use super::buffers::{Rotating, UniformValues, n_sets};
use super::kernel_bench::{Bench, Result};
use super::place::Place;
use super::timing::{Clock, Effort};
use super::{layer_kernels, report};
use crate::cli::{BenchDtype, BenchKernelsArgs};
use crate::error::Error;
use crate::exit::Stop;

/// Runs the benchmark and prints the results on rank 0; every rank of the world calls it.
pub(super) fn kernels(world: &World, args: &BenchKernelsArgs) -> std::result::Result<(), Stop> {
    let place = Place::pin(world, &args.place, &args.dtype)?;
    let clock = Clock::of(&place).map_err(Error::from)?;
    let effort = Effort::new(args.timing);
    let (rows, cols) = (args.rows, args.cols);
    let mut bench = Bench {
        place: &place,
        clock,
        effort,
        rows,
        cols,
        dtype: DType::F32,
        copy_gb_per_s: f64::NAN,
        done: Vec::new(),
    };
    let mut dtypes = place.dtypes(&args.dtype, &[BenchDtype::F32, BenchDtype::Bf16]);
    // Only matmuls support tf32.
    dtypes.iter_mut().filter(|dtype| **dtype == BenchDtype::Tf32).for_each(|dtype| *dtype = BenchDtype::F32);
    dtypes.dedup();
    for dtype in dtypes {
        bench.dtype = dtype.precision().activations();
        bench.all().map_err(Error::from)?;
    }
    report::print(world, "kernels", &place, args.place.json, &bench.done)?;
    Ok(())
}

impl Bench<'_> {
    fn all(&mut self) -> Result<()> {
        self.copy()?;
        self.elementwise()?;
        self.tensor_operations()?;
        self.activations()?;
        self.layer_norm()?;
        self.losses()?;
        layer_kernels::norms(self)?;
        layer_kernels::gates_and_embeddings(self)?;
        layer_kernels::losses(self)?;
        if self.dtype == DType::F32 {
            self.reductions()?;
            self.optimizers()?;
            layer_kernels::two_pass_optimizers(self)?;
        }
        Ok(())
    }

    fn elementwise(&mut self) -> Result<()> {
        let (n, whole, rows, cols) = (self.n(), self.whole(), self.rows, self.cols);
        let (x, mut y) = (self.tensor(1)?, self.tensor(2)?);
        let bias = self.random(&[cols], self.dtype, 3)?;
        self.run("add_assign", 3 * whole, |call| ops::add_assign(y.get_mut(call)?, x.get(call)?))?;
        self.run("bias_forward", 2 * whole, |call| ops::bias_forward(bias.get(call)?, y.get_mut(call)?))?;
        let mut d_bias = self.random(&[cols], DType::F32, 3)?;
        self.run("bias_backward", whole, |call| {
            ops::bias_backward(x.get(call)?, d_bias.get_mut(call)?, false)
        })?;
        let key = DropoutKey { seed: 1, step: 2, layer: 3, first_row: 0 };
        self.run("dropout", 2 * whole, |call| ops::dropout(y.get_mut(call)?, 0.1, key, None))?;
        let stream = UniformStream { seed: 1, stream: [2, 3] };
        self.run("uniform", whole, |call| ops::uniform(y.get_mut(call)?, -1.0, 1.0, stream))?;
        let indices = Rotating::indices(self.place, rows, rows, n_sets(self.place, whole))?;
        self.run("gather_rows", 2 * whole + 8 * rows, |call| {
            ops::gather_rows(x.get(call)?, indices.get(call)?, y.get_mut(call)?)
        })?;
        if self.dtype == DType::F32 {
            return Ok(());
        }
        let wide = self.random(&[rows, cols], DType::F32, 4)?;
        self.run("cast (f32 to bf16)", n * (4 + 2), |call| ops::cast(wide.get(call)?, y.get_mut(call)?))
    }

    /// The generic elementwise operations and reductions of tensors.
    fn tensor_operations(&mut self) -> Result<()> {
        let (whole, rows, cols) = (self.whole(), self.rows, self.cols);
        let (x, mut y) = (self.tensor(1)?, self.tensor(2)?);
        let (z, bias) = (self.tensor(4)?, self.random(&[cols], self.dtype, 3)?);
        self.run("add", 3 * whole, |call| {
            ops::map(MapOp::Add, x.get(call)?.into(), z.get(call)?.into(), y.get_mut(call)?)
        })?;
        self.run("add (a row)", 2 * whole, |call| {
            ops::map(MapOp::Add, x.get(call)?.into(), bias.get(call)?.into(), y.get_mut(call)?)
        })?;
        self.run("mul (a scalar)", 2 * whole, |call| {
            ops::map(MapOp::Mul, x.get(call)?.into(), 0.5.into(), y.get_mut(call)?)
        })?;
        self.run("exp", 2 * whole, |call| {
            ops::map(MapOp::Exp, x.get(call)?.into(), x.get(call)?.into(), y.get_mut(call)?)
        })?;
        if self.place.device != Device::Cpu {
            // Reductions allocate their scratch memory during the call, which the graph that is timed on a GPU does not allow.
            return Ok(());
        }
        self.run("read", whole, |call| {
            black_box(sum_of_words(x.get(call)?.as_bytes("read", "x")?));
            Ok(())
        })?;
        for (op, name, axis) in [
            (ReduceOp::Sum, "sum", None),
            (ReduceOp::Sum, "sum (of rows)", Some(1)),
            (ReduceOp::Sum, "sum (of columns)", Some(0)),
            (ReduceOp::Max, "max", None),
            (ReduceOp::ArgMax, "argmax (of all)", None),
            (ReduceOp::Norm, "norm", None),
        ] {
            let n_results = axis.map_or(1, |axis| if axis == 0 { cols } else { rows });
            let dtype = op.result_dtype(self.dtype);
            let mut out = Rotating::zeros(self.place, &[n_results], dtype, 1)?;
            self.run(name, whole, |call| ops::reduce(op, x.get(call)?, axis, out.get_mut(0)?))?;
        }
        Ok(())
    }

    fn activations(&mut self) -> Result<()> {
        let whole = self.whole();
        let (x, mut y) = (self.tensor(1)?, self.tensor(2)?);
        let names = [
            (Activation::Relu, "activation_forward (relu)", "activation_backward (relu)"),
            (Activation::Gelu, "activation_forward (gelu)", "activation_backward (gelu)"),
        ];
        for (activation, forward, backward) in names {
            self.run(forward, 2 * whole, |call| {
                ops::activation_forward(activation, x.get(call)?, y.get_mut(call)?)
            })?;
            self.run(backward, 3 * whole, |call| {
                ops::activation_backward(activation, x.get(call)?, y.get_mut(call)?, None, false)
            })?;
        }
        Ok(())
    }

    fn layer_norm(&mut self) -> Result<()> {
        let (whole, rows, cols) = (self.whole(), self.rows, self.cols);
        let (x, mut y) = (self.tensor(1)?, self.tensor(2)?);
        let gamma = self.random(&[cols], DType::F32, 3)?;
        let (mut d_gamma, mut d_beta) =
            (self.random(&[cols], DType::F32, 4)?, self.random(&[cols], DType::F32, 5)?);
        let (mut mean, mut rstd) =
            (self.random(&[rows], DType::F32, 6)?, self.random(&[rows], DType::F32, 7)?);
        self.run("layer_norm_forward", 2 * whole + 8 * rows, |call| {
            let stats = LayerNormStats { mean: mean.get_mut(call)?, rstd: rstd.get_mut(call)? };
            ops::layer_norm_forward(
                x.get(call)?,
                gamma.get(call)?,
                gamma.get(call)?,
                1e-5,
                y.get_mut(call)?,
                stats,
            )
        })?;
        self.run("layer_norm_backward", 3 * whole + 8 * rows, |call| {
            let grads = LayerNormGrads {
                d: y.get_mut(call)?,
                d_gamma: d_gamma.get_mut(call)?,
                d_beta: d_beta.get_mut(call)?,
            };
            let (x, mean, rstd) = (x.get(call)?, mean.get(call)?, rstd.get(call)?);
            ops::layer_norm_backward(x, gamma.get(call)?, mean, rstd, grads, false)
        })
    }

    /// Loss sums and gradients in one pass.
    fn losses(&mut self) -> Result<()> {
        let (whole, rows, cols) = (self.whole(), self.rows, self.cols);
        let (x, mut d) = (self.tensor(1)?, self.tensor(2)?);
        let mut tail = Rotating::zeros(self.place, &[STEP_SUMS_LEN], DType::F32, 1)?;
        let labels = Rotating::indices(self.place, rows, cols, n_sets(self.place, whole))?;
        let config = CrossEntropyConfig::default();
        self.run("softmax_cross_entropy", 2 * whole + 8 * rows, |call| {
            let sums = SumsOutput { tail: tail.get_mut(0)?, accumulate: false, extra: None };
            ops::softmax_cross_entropy(
                x.get(call)?,
                labels.get(call)?,
                &config,
                1.0,
                Some(d.get_mut(call)?),
                sums,
            )
        })?;
        let target = self.tensor(3)?;
        for (name, loss) in [("mse", ElementLoss::Mse), ("bce_with_logits", ElementLoss::Bce)] {
            self.run(name, 3 * whole, |call| {
                let (sums, d) =
                    (SumsOutput { tail: tail.get_mut(0)?, accumulate: false, extra: None }, d.get_mut(call)?);
                ops::element_loss(loss, x.get(call)?, target.get(call)?, None, 1.0, Some(d), sums)
            })?;
        }
        Ok(())
    }

    fn reductions(&mut self) -> Result<()> {
        let (whole, rows, cols) = (self.whole(), self.rows, self.cols);
        let x = self.tensor(1)?;
        let mut out = Rotating::zeros(self.place, &[1], DType::F64, 1)?;
        self.run("sum_of_squares", whole, |call| ops::sum_of_squares(x.get(call)?, out.get_mut(0)?, false))?;
        let labels = Rotating::indices(self.place, rows, cols, n_sets(self.place, whole))?;
        self.run("count_correct", whole + 8 * rows, |call| {
            ops::count_correct(x.get(call)?, labels.get(call)?, None, out.get_mut(0)?, false)
        })?;
        let mut index = Rotating::zeros(self.place, &[rows], DType::I64, 1)?;
        self.run("argmax", whole + 8 * rows, |call| ops::argmax(x.get(call)?, index.get_mut(0)?))
    }

    /// Updates of the flat buffers, with and without the bf16 copy of the weights.
    fn optimizers(&mut self) -> Result<()> {
        let n = self.n();
        let (mut w, grads) = (self.random(&[n], DType::F32, 1)?, self.random(&[n], DType::F32, 2)?);
        // Second moments are not negative.
        let sets = n_sets(self.place, self.whole());
        let mut v = Rotating::uniform(
            self.place,
            &[n],
            DType::F32,
            sets,
            UniformValues { seed: 3, range: 0.0..1.0 },
        )?;
        let (mut m, mut copy) = (self.random(&[n], DType::F32, 4)?, self.random(&[n], DType::BF16, 5)?);
        let sgd = OptimizerParams { momentum: 0.9, ..OptimizerParams::default() };
        self.run("sgd_step (momentum)", 20 * n, |call| {
            let (master_weights, grads) = (w.get_mut(call)?, grads.get(call)?);
            let state = [Some(m.get_mut(call)?), None];
            let tensors = OptimizerTensors {
                master_weights,
                grads,
                state,
                average: None,
                compute_weights: None,
                norms: None,
            };
            ops::optimizer_step(OptimizerKind::Sgd, &sgd, tensors, None)
        })?;
        let adam = OptimizerParams { weight_decay: 0.01, ..OptimizerParams::default() };
        for (op, bytes, has_copy) in [("adam_step", 28, false), ("adam_step (and a bf16 copy)", 30, true)] {
            self.run(op, bytes * n, |call| {
                let (master_weights, grads) = (w.get_mut(call)?, grads.get(call)?);
                let state = [Some(m.get_mut(call)?), Some(v.get_mut(call)?)];
                let compute_weights = if has_copy { Some(copy.get_mut(call)?) } else { None };
                let tensors = OptimizerTensors {
                    master_weights,
                    grads,
                    state,
                    average: None,
                    compute_weights,
                    norms: None,
                };
                ops::optimizer_step(OptimizerKind::AdamW, &adam, tensors, None)
            })?;
        }
        Ok(())
    }
}

/// Reads memory with a plain loop on all compute threads.
fn sum_of_words(bytes: &[u8]) -> u64 {
    let words = bytes.as_chunks::<8>().0;
    let of_part =
        |part: &[[u8; 8]]| part.iter().fold(0_u64, |sum, &word| sum.wrapping_add(u64::from_ne_bytes(word)));
    let parts = words.par_chunks(words.len().div_ceil(rayon::current_num_threads()).max(1));
    parts.map(of_part).reduce(|| 0, u64::wrapping_add)
}

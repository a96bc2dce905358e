//! `ddp-train bench kernels`: memory-bound operations.
//!
//! Reports the bytes that each operation must move (every input read once, every output written once) per time, and the fraction
//! of the bandwidth of a plain copy on the same device: a value far below 1 indicates extra traffic or stalls. Reductions only
//! read, so on the CPU they are compared with `read`, a plain loop over the same memory.

use std::hint::black_box;

use ddp_comm::World;
use ddp_kernels::ops::{
    self, Activation, BatchNormGrads, BatchNormSaved, BatchNormStats, BatchNormSums, CrossEntropyConfig,
    DropoutKey, ElementLoss, FirstPassTensors, Gate, LayerNormGrads, LayerNormStats, MapOp, NumericEmbedding,
    NumericEmbeddingGrads, OptimizerKind, OptimizerParams, OptimizerTensors, ReduceOp, RmsNormGrads,
    RunningStats, STEP_SUMS_LEN, SumsOutput, TargetColumns, UniformStream,
};
use ddp_kernels::{DType, Device, KernelError, TensorMut};
use rayon::prelude::*;

use super::buffers::{Rotating, UniformValues, n_sets};
use super::place::{Place, Work};
use super::report::{self, Row, number};
use super::timing::{Clock, Effort};
use crate::cli::{BenchDtype, BenchKernelsArgs};
use crate::error::Error;
use crate::exit::Stop;

/// Runs the benchmark and prints the results on rank 0; every rank of the world calls it.
pub(super) fn kernels(world: &World, args: &BenchKernelsArgs) -> std::result::Result<(), Stop> {
    let place = Place::pin(world, &args.place, Work::Operations, &args.dtype)?;
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
    // Only matmuls support tf32 and f32x3.
    let of_matmuls = [BenchDtype::F32x3, BenchDtype::Tf32];
    dtypes.iter_mut().filter(|dtype| of_matmuls.contains(dtype)).for_each(|dtype| *dtype = BenchDtype::F32);
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
        norms(self)?;
        gates_and_embeddings(self)?;
        if self.dtype == DType::F32 {
            self.reductions()?;
            self.optimizers()?;
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
            let (gamma, y) = (gamma.get(call)?, y.get_mut(call)?);
            let stats = LayerNormStats { mean: mean.get_mut(call)?, rstd: rstd.get_mut(call)? };
            ops::layer_norm_forward(x.get(call)?, gamma, gamma, 1e-5, y, stats)
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

    /// Loss sums and gradients in one pass, and the targets of one head.
    fn losses(&mut self) -> Result<()> {
        let (whole, rows, cols) = (self.whole(), self.rows, self.cols);
        let (x, mut d) = (self.tensor(1)?, self.tensor(2)?);
        // Labels and quantities; the choice of values does not matter.
        let values = UniformValues { seed: 3, range: 0.0..1.0 };
        let sets = n_sets(self.place, whole);
        let target = Rotating::uniform(self.place, &[rows, cols], self.dtype, sets, values)?;
        let mut tail = Rotating::zeros(self.place, &[STEP_SUMS_LEN], DType::F32, 1)?;
        let labels = Rotating::indices(self.place, rows, cols, sets)?;
        let config = CrossEntropyConfig::default();
        self.run("softmax_cross_entropy", 2 * whole + 8 * rows, |call| {
            let (sums, d) = (sums_in(tail.get_mut(0)?), Some(d.get_mut(call)?));
            ops::softmax_cross_entropy(x.get(call)?, labels.get(call)?, &config, 1.0, d, sums)
        })?;
        self.run("ordinal", 2 * whole + 8 * rows, |call| {
            let (sums, d) = (sums_in(tail.get_mut(0)?), Some(d.get_mut(call)?));
            ops::ordinal(x.get(call)?, labels.get(call)?, None, 1.0, d, sums)
        })?;
        for (name, loss) in [
            ("mse", ElementLoss::Mse),
            ("bce_with_logits", ElementLoss::Bce),
            ("focal_with_logits", ElementLoss::Focal { gamma: 2.0 }),
            ("quantile", ElementLoss::Quantile { quantile: 0.9 }),
        ] {
            self.run(name, 3 * whole, |call| {
                let (sums, d) = (sums_in(tail.get_mut(0)?), Some(d.get_mut(call)?));
                ops::element_loss(loss, x.get(call)?, target.get(call)?, None, 1.0, d, sums)
            })?;
        }
        if self.dtype != DType::F32 {
            return Ok(());
        }
        let mut weights = self.random(&[rows], DType::F32, 4)?;
        let columns = TargetColumns { first: 0, len: cols, factor: 0.5 };
        self.run("select_targets", 2 * whole + 4 * rows, |call| {
            ops::select_targets(x.get(call)?, columns, None, d.get_mut(call)?, weights.get_mut(call)?)
        })
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

    /// Updates of the flat buffers, with and without the bf16 copy of the weights; of LAMB and Muon both passes over one matrix, without
    /// the work on a few numbers, or in matmuls, between them.
    fn optimizers(&mut self) -> Result<()> {
        let n = self.n();
        let (mut w, grads) = (self.random(&[n], DType::F32, 1)?, self.random(&[n], DType::F32, 2)?);
        // Second moments are not negative.
        let values = UniformValues { seed: 3, range: 0.0..1.0 };
        let mut v =
            Rotating::uniform(self.place, &[n], DType::F32, n_sets(self.place, self.whole()), values)?;
        let (mut m, mut copy) = (self.random(&[n], DType::F32, 4)?, self.random(&[n], DType::BF16, 5)?);
        let mut norms = Rotating::zeros(self.place, &[2], DType::F64, 1)?;
        let params = OptimizerParams { weight_decay: 0.01, momentum: 0.9, ..OptimizerParams::default() };
        for (op, kind) in
            [("lamb (first pass)", OptimizerKind::Lamb), ("muon (first pass)", OptimizerKind::Muon)]
        {
            let is_lamb = kind == OptimizerKind::Lamb;
            self.run(op, if is_lamb { 24 } else { 16 } * n, |call| {
                let tensors = FirstPassTensors {
                    master_weights: w.get(call)?,
                    grads: grads.get(call)?,
                    state: [m.get_mut(call)?, v.get_mut(call)?],
                    norms: if is_lamb { Some(norms.get_mut(0)?) } else { None },
                    accumulate: false,
                };
                ops::optimizer_first_pass(kind, &params, tensors, None)
            })?;
        }
        for (op, kind, bytes, has_v, has_copy) in [
            ("sgd_step (momentum)", OptimizerKind::Sgd, 20, false, false),
            ("adam_step", OptimizerKind::AdamW, 28, true, false),
            ("adam_step (and a bf16 copy)", OptimizerKind::AdamW, 30, true, true),
            ("lamb_step", OptimizerKind::Lamb, 20, true, false),
            ("muon_step", OptimizerKind::Muon, 12, true, false),
        ] {
            self.run(op, bytes * n, |call| {
                let tensors = OptimizerTensors {
                    master_weights: w.get_mut(call)?,
                    grads: grads.get(call)?,
                    state: [Some(m.get_mut(call)?), if has_v { Some(v.get_mut(call)?) } else { None }],
                    average: None,
                    compute_weights: if has_copy { Some(copy.get_mut(call)?) } else { None },
                    norms: if kind == OptimizerKind::Lamb { Some(norms.get(0)?) } else { None },
                };
                ops::optimizer_step(kind, &params, tensors, None)
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

/// Number of frequencies of a column, and number of columns that it expands to.
const N_FREQUENCIES: usize = 8;
const DIM: usize = 4;

/// Batch norm of one rank, and root mean square norm.
fn norms(bench: &mut Bench<'_>) -> Result<()> {
    let (whole, rows, cols) = (bench.whole(), bench.rows, bench.cols);
    let (x, mut y) = (bench.tensor(1)?, bench.tensor(2)?);
    let gamma = bench.random(&[cols], DType::F32, 3)?;
    let per_column = |seed| bench.random(&[cols], DType::F32, seed);
    let (mut mean, mut rstd) = (per_column(4)?, per_column(5)?);
    let (mut running_mean, mut running_var) = (per_column(6)?, per_column(7)?);
    let (mut d_gamma, mut d_beta) = (per_column(8)?, per_column(9)?);
    let doubles = |n: usize| Rotating::zeros(bench.place, &[n], DType::F64, 1);
    let (mut count, mut moments) = (doubles(1)?, doubles(ops::batch_norm_moments_len(cols))?);
    let mut sums = doubles(2 * cols)?;
    bench.run("batch_norm_moments", whole, |call| {
        ops::batch_norm_moments(x.get(call)?, moments.get_mut(0)?)
    })?;
    let stats = BatchNormStats { mean: mean.get_mut(0)?, rstd: rstd.get_mut(0)?, count: count.get_mut(0)? };
    let running =
        RunningStats { mean: running_mean.get_mut(0)?, var: running_var.get_mut(0)?, momentum: 0.1 };
    let all = moments.get(0)?;
    ops::batch_norm_statistics(all.reshape(&[1, all.numel()])?, 1e-5, stats, running)?;
    let saved = BatchNormSaved { mean: mean.get(0)?, rstd: rstd.get(0)?, count: count.get(0)? };
    bench.run("batch_norm_forward", 2 * whole, |call| {
        let gamma = gamma.get(call)?;
        ops::batch_norm_forward(x.get(call)?, gamma, gamma, saved, y.get_mut(call)?)
    })?;
    bench.run("batch_norm_backward_sums", 2 * whole, |call| {
        ops::batch_norm_backward_sums(x.get(call)?, y.get(call)?, saved, sums.get_mut(0)?)
    })?;
    bench.run("batch_norm_backward", 3 * whole, |call| {
        let grads = BatchNormGrads {
            d: y.get_mut(call)?,
            d_gamma: d_gamma.get_mut(call)?,
            d_beta: d_beta.get_mut(call)?,
        };
        let sums = BatchNormSums { own: sums.get_mut(0)?, all: None };
        ops::batch_norm_backward(x.get(call)?, gamma.get(call)?, saved, sums, grads, false)
    })?;
    let mut rstd = bench.random(&[rows], DType::F32, 10)?;
    bench.run("rms_norm_forward", 2 * whole + 4 * rows, |call| {
        ops::rms_norm_forward(x.get(call)?, gamma.get(call)?, 1e-5, y.get_mut(call)?, rstd.get_mut(call)?)
    })?;
    bench.run("rms_norm_backward", 3 * whole + 4 * rows, |call| {
        let grads = RmsNormGrads { d: y.get_mut(call)?, d_gamma: d_gamma.get_mut(call)? };
        ops::rms_norm_backward(x.get(call)?, gamma.get(call)?, rstd.get(call)?, grads, false)
    })
}

/// Gates and periodic embeddings, which are limited by computation rather than memory.
fn gates_and_embeddings(bench: &mut Bench<'_>) -> Result<()> {
    let (whole, rows, cols) = (bench.whole(), bench.rows, bench.cols);
    let (x, d) = (bench.random(&[rows, 2 * cols], bench.dtype, 1)?, bench.tensor(2)?);
    let (mut y, mut d_x) = (bench.tensor(3)?, bench.random(&[rows, 2 * cols], bench.dtype, 4)?);
    bench.run("glu_forward (swiglu)", 3 * whole, |call| {
        ops::glu_forward(Gate::SwiGlu, x.get(call)?, y.get_mut(call)?)
    })?;
    bench.run("glu_backward (swiglu)", 5 * whole, |call| {
        ops::glu_backward(Gate::SwiGlu, x.get(call)?, d.get(call)?, d_x.get_mut(call)?)
    })?;

    let n_numbers = cols.div_ceil(DIM);
    let (waves, outputs) = ([n_numbers, N_FREQUENCIES], DIM - 1);
    let dims: [&[usize]; 4] = [&waves, &waves, &[n_numbers, N_FREQUENCIES, outputs], &[n_numbers, outputs]];
    let of_params = |seed| {
        let make = |(dims, seed)| bench.random(dims, DType::F32, seed);
        dims.into_iter().zip(seed..).map(make).collect::<Result<Vec<_>>>()
    };
    let (params, mut grads) = (of_params(5)?, of_params(9)?);
    let x = bench.random(&[rows, n_numbers], bench.dtype, 13)?;
    let (mut y, mut d_x) = (
        bench.random(&[rows, n_numbers * DIM], bench.dtype, 14)?,
        bench.random(&[rows, n_numbers], bench.dtype, 15)?,
    );
    let of_numbers = rows * n_numbers * bench.dtype.size_bytes();
    let views = |call| {
        let get = |index: usize| params[index].get(call);
        Ok::<_, KernelError>(NumericEmbedding {
            frequencies: get(0)?,
            phases: get(1)?,
            weight: get(2)?,
            bias: get(3)?,
        })
    };
    bench.run("numeric_embedding_forward", (1 + DIM) * of_numbers, |call| {
        ops::numeric_embedding_forward(x.get(call)?, views(call)?, y.get_mut(call)?)
    })?;
    bench.run("numeric_embedding_backward", (1 + DIM) * of_numbers, |call| {
        let [frequencies, phases, weight, bias] = &mut grads[..] else { unreachable!("four parameters") };
        let grads = NumericEmbeddingGrads {
            frequencies: (frequencies.get_mut(call)?, false),
            phases: (phases.get_mut(call)?, false),
            weight: (weight.get_mut(call)?, false),
            bias: (bias.get_mut(call)?, false),
        };
        ops::numeric_embedding_backward(x.get(call)?, views(call)?, y.get(call)?, grads)
    })?;
    bench.run("numeric_embedding_backward_input", (2 + DIM) * of_numbers, |call| {
        let (x, d) = (x.get(call)?, y.get(call)?);
        ops::numeric_embedding_backward_input(x, views(call)?, d, d_x.get_mut(call)?, false)
    })
}

fn sums_in(tail: TensorMut<'_>) -> SumsOutput<'_> {
    SumsOutput { tail, accumulate: false, extra: None }
}

pub(super) type Result<T> = std::result::Result<T, KernelError>;

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
    pub(super) done: Vec<Row>,
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
        let gb_per_s = times.giga_per_s(moved_bytes as f64);
        if op == "copy" {
            self.copy_gb_per_s = gb_per_s;
        }
        let row = Row::default()
            .plain("<operation", "op", op)
            .plain("<dtype", "dtype", self.dtype.to_string())
            .value("rows", self.rows)
            .value("cols", self.cols)
            .cell("moved MB", number(moved_bytes as f64 * 1e-6))
            .value("moved_bytes", moved_bytes)
            .times(times)
            .number("GB/s", "gb_per_s", gb_per_s)
            .percent("of copy", "fraction_of_copy", gb_per_s / self.copy_gb_per_s);
        self.done.push(row);
        Ok(())
    }

    pub(super) fn copy(&mut self) -> Result<()> {
        let (x, mut y) = (self.tensor(1)?, self.tensor(2)?);
        self.run("copy", 2 * self.whole(), |call| ops::copy(x.get(call)?, y.get_mut(call)?))
    }
}

//! Operations of listed layers, of less common losses, and of optimizers with two passes.

use ddp_kernels::ops::{
    self, BatchNormGrads, BatchNormSaved, BatchNormStats, BatchNormSums, ElementLoss, FirstPassTensors, Gate,
    NumericEmbedding, NumericEmbeddingGrads, OptimizerKind, OptimizerParams, OptimizerTensors, RmsNormGrads,
    RunningStats, STEP_SUMS_LEN, SumsOutput, TargetColumns,
};
use ddp_kernels::{DType, TensorMut, TensorRef};

use super::buffers::{Rotating, UniformValues, n_sets};
use super::kernel_bench::{Bench, Result};

/// Number of frequencies of a column, and number of columns that it expands to.
const N_FREQUENCIES: usize = 8;
const DIM: usize = 4;

/// Batch norm of one rank, and root mean square norm.
pub(super) fn norms(bench: &mut Bench<'_>) -> Result<()> {
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
pub(super) fn gates_and_embeddings(bench: &mut Bench<'_>) -> Result<()> {
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
        Ok::<_, ddp_kernels::KernelError>(NumericEmbedding {
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

/// Loss sums and gradients in one pass, and the targets of one head.
pub(super) fn losses(bench: &mut Bench<'_>) -> Result<()> {
    let (whole, rows, cols) = (bench.whole(), bench.rows, bench.cols);
    let (x, mut d) = (bench.tensor(1)?, bench.tensor(3)?);
    // Labels and quantities; the choice of values does not matter.
    let values = UniformValues { seed: 2, range: 0.0..1.0 };
    let sets = n_sets(bench.place, whole);
    let target = Rotating::uniform(bench.place, &[rows, cols], bench.dtype, sets, values)?;
    let mut tail = Rotating::zeros(bench.place, &[STEP_SUMS_LEN], DType::F32, 1)?;
    let labels = Rotating::indices(bench.place, rows, cols, sets)?;
    bench.run("ordinal", 2 * whole + 8 * rows, |call| {
        let sums = sums_in(tail.get_mut(0)?);
        ops::ordinal(x.get(call)?, labels.get(call)?, None, 1.0, Some(d.get_mut(call)?), sums)
    })?;
    let [focal, quantile] = [ElementLoss::Focal { gamma: 2.0 }, ElementLoss::Quantile { quantile: 0.9 }];
    for (name, loss) in [("focal_with_logits", focal), ("quantile", quantile)] {
        bench.run(name, 3 * whole, |call| {
            let (sums, d) = (sums_in(tail.get_mut(0)?), Some(d.get_mut(call)?));
            ops::element_loss(loss, x.get(call)?, target.get(call)?, None, 1.0, d, sums)
        })?;
    }
    if bench.dtype != DType::F32 {
        return Ok(());
    }
    let mut weights = bench.random(&[rows], DType::F32, 4)?;
    let columns = TargetColumns { first: 0, len: cols, factor: 0.5 };
    bench.run("select_targets", 2 * whole + 4 * rows, |call| {
        ops::select_targets(x.get(call)?, columns, None, d.get_mut(call)?, weights.get_mut(call)?)
    })
}

fn sums_in(tail: TensorMut<'_>) -> SumsOutput<'_> {
    SumsOutput { tail, accumulate: false, extra: None }
}

/// Both passes of LAMB and Muon over one matrix, without the work on a few numbers, or in matmuls, between them.
pub(super) fn two_pass_optimizers(bench: &mut Bench<'_>) -> Result<()> {
    let n = bench.n();
    let (mut w, grads) = (bench.random(&[n], DType::F32, 1)?, bench.random(&[n], DType::F32, 2)?);
    let mut m = bench.random(&[n], DType::F32, 3)?;
    // Second moments are not negative.
    let values = UniformValues { seed: 4, range: 0.0..1.0 };
    let mut v = Rotating::uniform(bench.place, &[n], DType::F32, n_sets(bench.place, bench.whole()), values)?;
    let mut norms = Rotating::zeros(bench.place, &[2], DType::F64, 1)?;
    let params = OptimizerParams { weight_decay: 0.01, momentum: 0.95, ..OptimizerParams::default() };

    bench.run("lamb (first pass)", 24 * n, |call| {
        let tensors = FirstPassTensors {
            master_weights: w.get(call)?,
            grads: grads.get(call)?,
            state: [m.get_mut(call)?, v.get_mut(call)?],
            norms: Some(norms.get_mut(0)?),
            accumulate: false,
        };
        ops::optimizer_first_pass(OptimizerKind::Lamb, &params, tensors, None)
    })?;
    bench.run("lamb_step", 20 * n, |call| {
        let state = [Some(m.get_mut(call)?), Some(v.get_mut(call)?)];
        let norms = Some(norms.get(0)?);
        let tensors = update_of(w.get_mut(call)?, grads.get(call)?, state, norms);
        ops::optimizer_step(OptimizerKind::Lamb, &params, tensors, None)
    })?;
    bench.run("muon (first pass)", 16 * n, |call| {
        let tensors = FirstPassTensors {
            master_weights: w.get(call)?,
            grads: grads.get(call)?,
            state: [m.get_mut(call)?, v.get_mut(call)?],
            norms: None,
            accumulate: false,
        };
        ops::optimizer_first_pass(OptimizerKind::Muon, &params, tensors, None)
    })?;
    bench.run("muon_step", 12 * n, |call| {
        let state = [Some(m.get_mut(call)?), Some(v.get_mut(call)?)];
        let tensors = update_of(w.get_mut(call)?, grads.get(call)?, state, None);
        ops::optimizer_step(OptimizerKind::Muon, &params, tensors, None)
    })
}

fn update_of<'a>(
    master_weights: TensorMut<'a>,
    grads: TensorRef<'a>,
    state: [Option<TensorMut<'a>>; 2],
    norms: Option<TensorRef<'a>>,
) -> OptimizerTensors<'a> {
    OptimizerTensors { master_weights, grads, state, average: None, compute_weights: None, norms }
}

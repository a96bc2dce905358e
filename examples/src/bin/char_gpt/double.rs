//! The same model in f64 on one device, with its own loop: the reference for judging the trainer's f32.

use ddp::data::{GroupSampler, Sampler};
use ddp::nn::{LocalGradients, LossHead, Network, Precision, Sizes};
use ddp::ops::{LossSums, STEP_SUMS_LEN, SumsOutput};
use ddp::optim::{Optimizer, OptimizerConfig, UpdateScale};
use ddp::prelude::*;

use super::{CONTEXT, GLOBAL_SEQUENCES, transformer};

/// Losses of the first `n_steps` steps, starting from the weights of `initial`, on rows in the order of the trainer's run.
pub(crate) fn losses(
    initial: &Network,
    codes: &[usize],
    vocab: usize,
    optimizer: &OptimizerConfig,
    (order, n_steps): (&GroupSampler, usize),
) -> ddp::Result<Vec<f64>> {
    let (n_rows, device) = (CONTEXT * GLOBAL_SEQUENCES, initial.device());
    let sizes = Sizes { max_rows: n_rows, device, precision: Precision::F64 };
    let mut model = transformer(vocab, false)?.build(sizes, 0)?;
    let mut state = initial.state_dict(device)?;
    for values in state.values_mut() {
        *values = values.to_dtype(DType::F64)?;
    }
    model.load_state_dict(&state, true)?;

    let mut optimizer = Optimizer::for_model(optimizer, &model)?;
    let flat_len = model.layout().flat_len();
    let mut gradients = Tensor::zeros(&[flat_len], DType::F64, device)?;
    let mut sums = Tensor::zeros(&[STEP_SUMS_LEN], DType::F32, device)?;
    let rows: Vec<usize> = (0..).flat_map(|epoch| order.rows(epoch)).take(n_steps * n_rows).collect();
    let mut losses = Vec::with_capacity(n_steps);
    for rows in rows.chunks_exact(n_rows) {
        let x = rows.iter().map(|&row| codes[row] as f64).collect();
        let labels = rows.iter().map(|&row| codes[row + 1] as i64).collect();
        let x = Tensor::from_vec(x, &[n_rows, 1], device)?;
        let labels = Tensor::from_vec(labels, &[n_rows], device)?;

        model.forward(&x)?;
        let (outputs, d_outputs) = model.outputs_and_gradient()?;
        let output = SumsOutput { tail: sums.view_mut(), accumulate: false, extra: None };
        let mean = 1.0 / n_rows as f64;
        LossHead::cross_entropy().apply(outputs, labels.view(), None, mean, Some(d_outputs), output)?;
        // Sums are pairs of f32, which keep 48 bits.
        losses.push(LossSums::load(&sums.to_vec::<f32>()?).mean());

        model.backward(x.view(), None, false, &mut LocalGradients(gradients.view_mut()))?;
        optimizer.begin_step();
        let scale = UpdateScale::Host(1.0);
        optimizer.step_on(model.weights_mut(), gradients.view(), scale, 0..flat_len, 0)?;
    }
    Ok(losses)
}

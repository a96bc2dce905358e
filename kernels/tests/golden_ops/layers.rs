//! Matmuls, activations, norms, gates and embeddings.

use ddp_kernels::ops::{
    self, Activation, BatchNormGrads, BatchNormSaved, BatchNormStats, BatchNormSums, EmbeddingTable,
    EmbeddingTables, Gate, LayerNormGrads, LayerNormStats, LinearOutput, MatmulMode, NumericEmbedding,
    NumericEmbeddingGrads, RmsNormGrads, RunningStats, SavedForBackward,
};
use ddp_kernels::{DType, Tensor};

use crate::case::{Case, EPS, Golden, values};

pub(crate) fn addmm(case: &Case<'_>) {
    let (a, b, mut c) = (case.input("a"), case.input("b"), case.input("c"));
    let (trans_a, trans_b) = (case.flag("trans_a"), case.flag("trans_b"));
    let (alpha, beta) = (case.number("alpha"), case.number("beta"));
    if beta == 0.0 {
        c = case.nan_like(&c);
    }
    ops::addmm(alpha, a.view(), trans_a, b.view(), trans_b, beta, c.view_mut()).unwrap();
    // Another order of at most 19 products of numbers below 4. Each addition is off by at most EPS of a partial sum,
    // which stays below 16, in random directions: four such steps, 19 in a row being sqrt(19) of one.
    case.close("y", &c, 4.0 * 16.0 * EPS, 4.0 * EPS);
}

pub(crate) fn linear(case: &Case<'_>) {
    const STRICT: MatmulMode = MatmulMode::Strict;
    let (x, weight, d_y) = (case.input("x"), case.input("weight"), case.input("d_y"));
    let bias = case.has_input("bias").then(|| case.input("bias"));
    let ((n, i), (o, _)) = (x.shape().rows_cols(), weight.shape().rows_cols());
    // As in addmm: at most 19 products, sums below 16.
    let (atol, rtol) = (4.0 * 16.0 * EPS, 4.0 * EPS);

    let mut y = case.nan_like(&d_y);
    let mut workspace = case.nan(&[ops::linear_workspace_len(STRICT, n, i, o, DType::F32, case.device)]);
    let output = LinearOutput {
        y: y.view_mut(),
        pre_activation: None,
        relu_mask: None,
        workspace: workspace.view_mut(),
    };
    let bias_view = bias.as_ref().map(Tensor::view);
    ops::linear_forward(STRICT, x.view(), weight.view(), bias_view, None, output).unwrap();
    case.close("y", &y, atol, rtol);

    let mut d_x = case.nan_like(&x);
    let (d_y, weight, scratch) = (d_y.view(), weight.view(), workspace.view_mut());
    ops::linear_backward_input(STRICT, d_y, weight, d_x.view_mut(), None, false, scratch).unwrap();
    case.close("d_x", &d_x, atol, rtol);

    let mut d_weight = case.nan(weight.shape().dims());
    let mut d_bias = bias.as_ref().map(|bias| case.nan_like(bias));
    let mut backward = |d_weight: &mut Tensor, d_bias: &mut Option<Tensor>, accumulate| {
        let d_bias = d_bias.as_mut().map(Tensor::view_mut);
        let (d_weight, scratch) = (d_weight.view_mut(), workspace.view_mut());
        ops::linear_backward_weight(STRICT, d_y, x.view(), d_weight, d_bias, accumulate, scratch, None)
            .unwrap();
    };
    backward(&mut d_weight, &mut d_bias, false);
    case.close("d_weight", &d_weight, atol, rtol);
    if let Some(d_bias) = &d_bias {
        case.close("d_bias", d_bias, atol, rtol);
    }
    backward(&mut d_weight, &mut d_bias, true);
    let gradients = [("d_weight", Some(&d_weight)), ("d_bias", d_bias.as_ref())];
    for (name, got) in gradients.into_iter().filter_map(|(name, got)| Some((name, got?))) {
        let doubled: Vec<_> = case.output(name).values.iter().map(|v| 2.0 * v).collect();
        case.close_to(&format!("2 {name}"), &values(got), &doubled, 2.0 * atol, rtol);
    }
}

pub(crate) fn activation(case: &Case<'_>, activation: Activation) {
    let (x, mut d) = (case.input("x"), case.input("d_y"));
    let mut y = case.nan_like(&x);
    ops::activation_forward(activation, x.view(), y.view_mut()).unwrap();
    // exp, erf and tanh are each within 2 units of the last place of the true value, in both programs. GELU and SiLU
    // multiply a factor that cancels far below 0 by |x| up to 10: 10·EPS absolutely.
    case.close("y", &y, 10.0 * EPS, 8.0 * EPS);

    let saved = match activation.saved_for_backward() {
        SavedForBackward::Input => &x,
        SavedForBackward::Output => &y,
    };
    ops::activation_backward(activation, saved.view(), d.view_mut(), None, false).unwrap();
    // The same terms times |d_y| up to 3; 1 - y² of tanh cancels near 1, which leaves 2·EPS absolutely.
    case.close("d_x", &d, 30.0 * EPS, 12.0 * EPS);
}

pub(crate) fn layer_norm(case: &Case<'_>) {
    let (x, mut d) = (case.input("x"), case.input("d_y"));
    let (gamma, beta, eps) = (case.input("gamma"), case.input("beta"), case.number("eps"));
    let (rows, _) = x.shape().rows_cols();
    let (mut y, mut mean, mut rstd) = (case.nan_like(&x), case.nan(&[rows]), case.nan(&[rows]));
    let stats = LayerNormStats { mean: mean.view_mut(), rstd: rstd.view_mut() };
    ops::layer_norm_forward(x.view(), gamma.view(), beta.view(), eps, y.view_mut(), stats).unwrap();

    let (mut d_gamma, mut d_beta) = (case.nan_like(&gamma), case.nan_like(&beta));
    let grads = LayerNormGrads { d: d.view_mut(), d_gamma: d_gamma.view_mut(), d_beta: d_beta.view_mut() };
    let (mean_view, rstd_view) = (mean.view(), rstd.view());
    ops::layer_norm_backward(x.view(), gamma.view(), mean_view, rstd_view, grads, false).unwrap();

    // x - mean is off by EPS of the largest |x|, and is multiplied by rstd (316 in a constant row).
    let largest = |t: &Tensor| values(t).iter().fold(0.0, |m: f64, v| m.max(f64::from(v.abs())));
    let rounding = EPS * (largest(&x) * largest(&rstd)).max(4.0);
    case.close("y", &y, 2.0 * rounding, 8.0 * EPS);
    // d_y up to 3, gamma up to 2, summed over at most 5 rows.
    case.close("d_gamma", &d_gamma, 5.0 * rounding, 8.0 * EPS);
    case.close("d_beta", &d_beta, 16.0 * EPS, 8.0 * EPS);
    // rstd times d_y·gamma minus its means.
    case.close("d_x", &d, 6.0 * rounding.max(EPS * largest(&rstd)), 8.0 * EPS);
}

pub(crate) fn rms_norm(case: &Case<'_>) {
    let (x, mut d) = (case.input("x"), case.input("d_y"));
    let (gamma, eps) = (case.input("gamma"), case.number("eps"));
    let (rows, _) = x.shape().rows_cols();
    let (mut y, mut rstd, mut d_gamma) = (case.nan_like(&x), case.nan(&[rows]), case.nan_like(&gamma));
    ops::rms_norm_forward(x.view(), gamma.view(), eps, y.view_mut(), rstd.view_mut()).unwrap();
    let grads = RmsNormGrads { d: d.view_mut(), d_gamma: d_gamma.view_mut() };
    ops::rms_norm_backward(x.view(), gamma.view(), rstd.view(), grads, false).unwrap();
    // Normalized values up to 6, gamma and d_y up to 3, and rstd 1000 in a row of zeros.
    let largest = values(&rstd).iter().fold(1.0, |m: f64, v| m.max(f64::from(*v)));
    case.close("y", &y, 16.0 * EPS, 8.0 * EPS);
    case.close("d_gamma", &d_gamma, 32.0 * EPS, 8.0 * EPS);
    case.close("d_x", &d, 16.0 * EPS * largest, 8.0 * EPS);
}

pub(crate) fn batch_norm(case: &Case<'_>) {
    let (x, mut d) = (case.input("x"), case.input("d_y"));
    let (gamma, beta, eps) = (case.input("gamma"), case.input("beta"), case.number("eps"));
    let (mut running_mean, mut running_var) = (case.input("running_mean"), case.input("running_var"));
    let is_training = case.param("training").as_bool().unwrap();
    let (_, cols) = x.shape().rows_cols();
    let f64s = |len: usize| Tensor::zeros(&[len], DType::F64, case.device).unwrap();
    let (mut mean, mut rstd, mut count) = (case.nan(&[cols]), case.nan(&[cols]), f64s(1));
    let stats = BatchNormStats { mean: mean.view_mut(), rstd: rstd.view_mut(), count: count.view_mut() };
    if is_training {
        let mut moments = f64s(ops::batch_norm_moments_len(cols));
        ops::batch_norm_moments(x.view(), moments.view_mut()).unwrap();
        let all = moments.view().reshape(&[1, moments.numel()]).unwrap();
        let momentum = case.number("momentum");
        let (running_mean, running_var) = (running_mean.view_mut(), running_var.view_mut());
        let running = RunningStats { mean: running_mean, var: running_var, momentum };
        ops::batch_norm_statistics(all, eps, stats, running).unwrap();
    } else {
        ops::batch_norm_frozen(running_mean.view(), running_var.view(), eps, stats).unwrap();
    }
    let saved = BatchNormSaved { mean: mean.view(), rstd: rstd.view(), count: count.view() };
    let (mut y, mut sums) = (case.nan_like(&x), f64s(2 * cols));
    ops::batch_norm_forward(x.view(), gamma.view(), beta.view(), saved, y.view_mut()).unwrap();
    ops::batch_norm_backward_sums(x.view(), d.view(), saved, sums.view_mut()).unwrap();
    let (mut d_gamma, mut d_beta) = (case.nan_like(&gamma), case.nan_like(&beta));
    let grads = BatchNormGrads { d: d.view_mut(), d_gamma: d_gamma.view_mut(), d_beta: d_beta.view_mut() };
    let sums = BatchNormSums { own: sums.view_mut(), all: None };
    ops::batch_norm_backward(x.view(), gamma.view(), saved, sums, grads, false).unwrap();

    // As for layer norm: x - mean is off by EPS of the largest |x|, and is multiplied by rstd (316 in a constant column).
    let largest = |t: &Tensor| values(t).iter().fold(0.0, |m: f64, v| m.max(f64::from(v.abs())));
    let rounding = EPS * (largest(&x) * largest(&rstd)).max(4.0);
    case.close("y", &y, 2.0 * rounding, 8.0 * EPS);
    case.close("d_gamma", &d_gamma, 6.0 * rounding, 8.0 * EPS);
    case.close("d_beta", &d_beta, 16.0 * EPS, 8.0 * EPS);
    case.close("d_x", &d, 6.0 * rounding.max(EPS * largest(&rstd)), 8.0 * EPS);
    case.close("running_mean", &running_mean, 2.0 * EPS, 8.0 * EPS);
    case.close("running_var", &running_var, 16.0 * EPS, 16.0 * EPS);
}

pub(crate) fn gated(case: &Case<'_>, gate: Gate) {
    let (x, d_y) = (case.input("x"), case.input("d_y"));
    let (mut y, mut d_x) = (case.nan_like(&d_y), case.nan_like(&x));
    ops::glu_forward(gate, x.view(), y.view_mut()).unwrap();
    ops::glu_backward(gate, x.view(), d_y.view(), d_x.view_mut()).unwrap();
    // Factors up to 6, each some roundings of its own; GELU cancels far below 0.
    case.close("y", &y, 32.0 * EPS, 8.0 * EPS);
    case.close("d_x", &d_x, 32.0 * EPS, 8.0 * EPS);
}

pub(crate) fn embedding(case: &Case<'_>) {
    let (x, d_y) = (case.input("x"), case.input("d_y"));
    let (rows, _) = x.shape().rows_cols();
    let (mut tables, mut weights) = (Vec::new(), Vec::new());
    for t in 0..case.number("n_tables") as usize {
        let Golden { shape, values } = case.golden("inputs", &format!("table_{t}"));
        tables.push(EmbeddingTable { start: weights.len(), n_codes: shape[0], dim: shape[1] });
        weights.extend(values);
    }
    let places = tables.clone();
    let tables = EmbeddingTables::new(tables, case.device).unwrap();
    let weights = Tensor::from_slice(&weights, &[weights.len()], case.device).unwrap();
    let (mut y, mut d_weights) = (case.nan_like(&d_y), case.nan_like(&weights));
    ops::embedding_forward(x.view(), weights.view(), &tables, y.view_mut()).unwrap();
    case.close("y", &y, 0.0, 0.0);

    let mut workspace = Tensor::zeros(&[tables.workspace_len(rows)], DType::I64, case.device).unwrap();
    let (d_tables, workspace) = (d_weights.view_mut(), workspace.view_mut());
    ops::embedding_backward(x.view(), d_y.view(), &tables, d_tables, workspace, false).unwrap();
    let d_weights = values(&d_weights);
    for (t, table) in places.iter().enumerate() {
        let (name, got) = (format!("d_table_{t}"), &d_weights[table.start..][..table.n_codes * table.dim]);
        // At most 9 terms of up to 3.
        case.close_to(&name, got, &case.output(&name).values, 32.0 * EPS, 4.0 * EPS);
    }
}

pub(crate) fn numeric_embedding(case: &Case<'_>) {
    let (x, d) = (case.input("x"), case.input("d_y"));
    let [frequencies, phases, weight, bias] =
        ["frequencies", "phases", "weight", "bias"].map(|name| case.input(name));
    let params = NumericEmbedding {
        frequencies: frequencies.view(),
        phases: phases.view(),
        weight: weight.view(),
        bias: bias.view(),
    };
    let mut y = case.nan_like(&d);
    ops::numeric_embedding_forward(x.view(), params, y.view_mut()).unwrap();
    // Angles up to 60 with a rounding or two, and sums of at most 16 cosines times numbers below 3.
    let atol = 1000.0 * EPS;
    case.close("y", &y, atol, 8.0 * EPS);
    let [mut d_w, mut d_b, mut d_weight, mut d_bias, mut d_x] =
        [&frequencies, &phases, &weight, &bias, &x].map(|like| case.nan_like(like));
    let grads = NumericEmbeddingGrads {
        frequencies: (d_w.view_mut(), false),
        phases: (d_b.view_mut(), false),
        weight: (d_weight.view_mut(), false),
        bias: (d_bias.view_mut(), false),
    };
    ops::numeric_embedding_backward(x.view(), params, d.view(), grads).unwrap();
    ops::numeric_embedding_backward_input(x.view(), params, d.view(), d_x.view_mut(), false).unwrap();
    // Those of frequencies and of the input are up to 2π · 3 times larger.
    for (name, grad) in [("d_frequencies", &d_w), ("d_x", &d_x)] {
        case.close(name, grad, 20.0 * atol, 8.0 * EPS);
    }
    for (name, grad) in [("d_phases", &d_b), ("d_weight", &d_weight), ("d_bias", &d_bias)] {
        case.close(name, grad, 2.0 * atol, 8.0 * EPS);
    }
}

pub(crate) fn column_scale(case: &Case<'_>) {
    let (x, scale, mut d) = (case.input("x"), case.input("scale"), case.input("d_y"));
    let mut y = case.nan_like(&x);
    ops::column_scale_forward(x.view(), scale.view(), y.view_mut()).unwrap();
    case.close("y", &y, 0.0, 2.0 * EPS);
    let mut d_scale = case.nan_like(&scale);
    ops::column_scale_backward(x.view(), scale.view(), d.view_mut(), d_scale.view_mut(), false).unwrap();
    case.close("d_x", &d, 0.0, 2.0 * EPS);
    // Sums of at most 6 products below 10.
    case.close("d_scale", &d_scale, 64.0 * EPS, 8.0 * EPS);
}

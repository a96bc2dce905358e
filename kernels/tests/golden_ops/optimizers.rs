//! Optimizers and the moving average.

use ddp_kernels::ops::{
    self, Average, FirstPassTensors, NewtonSchulzMemory, OptimizerKind, OptimizerParams, OptimizerTensors,
};
use ddp_kernels::{DType, Tensor};

use crate::case::{Case, EPS, values};

pub(crate) fn sgd(case: &Case<'_>) {
    let (mut w, g) = (case.input("w"), case.input("g"));
    let (want_w, want_v) = (case.output("w"), case.output("momentum_buffer"));
    assert_eq!(case.number("dampening"), 0.0, "{}", case.label());
    let params = OptimizerParams {
        lr: case.number("lr"),
        momentum: case.number("momentum"),
        nesterov: case.flag("nesterov"),
        weight_decay: case.number("weight_decay"),
        ..OptimizerParams::default()
    };
    let dims = w.shape().dims().to_vec();
    let mut velocity = w.zeros_like().unwrap();
    for step in 0..g.shape().dims()[0] {
        let grads = g.view().rows(step, step + 1).unwrap().reshape(&dims).unwrap();
        let tensors = OptimizerTensors {
            grads,
            master_weights: w.view_mut(),
            state: [(params.momentum > 0.0).then(|| velocity.view_mut()), None],
            average: None,
            compute_weights: None,
            norms: None,
        };
        ops::optimizer_step(OptimizerKind::Sgd, &params, tensors, None).unwrap();
        // At most three steps of three roundings each, of numbers below 5.
        let atol = 16.0 * EPS;
        case.close_to(&format!("w after step {step}"), &values(&w), want_w.row(step), atol, 0.0);
        let name = format!("momentum_buffer after step {step}");
        case.close_to(&name, &values(&velocity), want_v.row(step), atol, 0.0);
    }
}

pub(crate) fn ema(case: &Case<'_>) {
    let (w, want) = (case.input("w"), case.output("ema"));
    let mut params = OptimizerParams { step: 0, ..OptimizerParams::default() };
    let mut ema = Tensor::zeros(&[w.shape().dims()[1]], w.dtype(), w.device()).unwrap();
    let grads = Tensor::zeros(ema.shape().dims(), w.dtype(), w.device()).unwrap();
    for step in 0..w.shape().dims()[0] {
        params.step += 1;
        // Without a gradient the step leaves the weights as they are.
        let mut weights = Tensor::zeros(ema.shape().dims(), w.dtype(), w.device()).unwrap();
        ops::copy(
            w.view().rows(step, step + 1).unwrap().reshape(ema.shape().dims()).unwrap(),
            weights.view_mut(),
        )
        .unwrap();
        let average =
            Average { ema: ema.view_mut(), decay: case.number("decay"), warms_up: false, step: params.step };
        let tensors = OptimizerTensors {
            grads: grads.view(),
            master_weights: weights.view_mut(),
            state: [None, None],
            average: Some(average),
            compute_weights: None,
            norms: None,
        };
        ops::optimizer_step(OptimizerKind::Sgd, &params, tensors, None).unwrap();
        // At most four updates of two roundings each, of numbers below 4.
        case.close_to(&format!("ema after step {step}"), &values(&ema), want.row(step), 8.0 * EPS, 0.0);
    }
}

pub(crate) fn adam(case: &Case<'_>, kind: OptimizerKind) {
    let (mut w, g) = (case.input("w"), case.input("g"));
    let (want_w, want_m, want_v) = (case.output("w"), case.output("m"), case.output("v"));
    let betas = case.param("betas").as_array().unwrap();
    let mut params = OptimizerParams {
        lr: case.number("lr"),
        betas: [betas[0].as_f64().unwrap(), betas[1].as_f64().unwrap()],
        eps: case.number("eps"),
        weight_decay: case.number("weight_decay"),
        step: 0,
        ..OptimizerParams::default()
    };
    let dims = w.shape().dims().to_vec();
    let (mut m, mut v) = (w.zeros_like().unwrap(), w.zeros_like().unwrap());
    for step in 0..g.shape().dims()[0] {
        params.step += 1;
        let grads = g.view().rows(step, step + 1).unwrap().reshape(&dims).unwrap();
        let tensors = OptimizerTensors {
            grads,
            master_weights: w.view_mut(),
            state: [Some(m.view_mut()), Some(v.view_mut())],
            average: None,
            compute_weights: None,
            norms: None,
        };
        ops::optimizer_step(kind, &params, tensors, None).unwrap();
        // Three steps of a rounding or two of w, below 4; the steps themselves are a few thousandths of that.
        case.close_to(&format!("w after step {step}"), &values(&w), want_w.row(step), 8.0 * EPS, 0.0);
        // Sums of terms below 1 that may cancel in m, and never do in v.
        case.close_to(&format!("m after step {step}"), &values(&m), want_m.row(step), EPS, 4.0 * EPS);
        case.close_to(&format!("v after step {step}"), &values(&v), want_v.row(step), 0.0, 8.0 * EPS);
    }
}

pub(crate) fn lion(case: &Case<'_>) {
    let betas = case.param("betas").as_array().unwrap();
    let params = OptimizerParams {
        lr: case.number("lr"),
        betas: [betas[0].as_f64().unwrap(), betas[1].as_f64().unwrap()],
        weight_decay: case.number("weight_decay"),
        ..OptimizerParams::default()
    };
    let as_f32 = |x: &Tensor| values(&x.to_dtype(DType::F32).unwrap());
    for dtype in [DType::F32, DType::F64] {
        let (mut w, g) = (case.input("w").to_dtype(dtype).unwrap(), case.input("g").to_dtype(dtype).unwrap());
        let (want_w, want_m) = (case.output("w"), case.output("m"));
        let dims = w.shape().dims().to_vec();
        let mut m = w.zeros_like().unwrap();
        // Three steps of two roundings of w, below 4; of f64 only those of the file's numbers.
        let atol_w = if dtype == DType::F64 { 4.0 * EPS } else { 8.0 * EPS };
        for step in 0..g.shape().dims()[0] {
            let grads = g.view().rows(step, step + 1).unwrap().reshape(&dims).unwrap();
            let tensors = OptimizerTensors {
                grads,
                master_weights: w.view_mut(),
                state: [Some(m.view_mut()), None],
                average: None,
                compute_weights: None,
                norms: None,
            };
            ops::optimizer_step(OptimizerKind::Lion, &params, tensors, None).unwrap();
            case.close_to(
                &format!("w after step {step}, {dtype}"),
                &as_f32(&w),
                want_w.row(step),
                atol_w,
                0.0,
            );
            // Sums of terms below 0.1 that may cancel.
            let what = format!("m after step {step}, {dtype}");
            case.close_to(&what, &as_f32(&m), want_m.row(step), EPS, 4.0 * EPS);
        }
    }
}

pub(crate) fn lamb(case: &Case<'_>) {
    let betas = case.param("betas").as_array().unwrap();
    let params = OptimizerParams {
        lr: case.number("lr"),
        lr_scale: case.number("lr_scale"),
        betas: [betas[0].as_f64().unwrap(), betas[1].as_f64().unwrap()],
        eps: case.number("eps"),
        weight_decay: case.number("weight_decay"),
        ..OptimizerParams::default()
    };
    // Three steps of a few roundings of w, below 4; of f64 only those of the file's numbers.
    two_passes(case, OptimizerKind::Lamb, params, [16.0 * EPS, 4.0 * EPS], |_| {});
}

pub(crate) fn muon(case: &Case<'_>) {
    let dims = case.input("w").shape().dims().to_vec();
    let params = OptimizerParams {
        lr: case.number("lr"),
        weight_decay: case.number("weight_decay"),
        momentum: case.number("momentum"),
        nesterov: case.flag("nesterov"),
        direction_scale: (dims[0] as f64 / dims[1] as f64).max(1.0).sqrt(),
        ..OptimizerParams::default()
    };
    // The iteration multiplies roundings of the smallest singular values by up to 3.4^5 = 480; a step takes 0.02 of that.
    two_passes(case, OptimizerKind::Muon, params, [400.0 * EPS, 4.0 * EPS], |direction| {
        let n = NewtonSchulzMemory::len(dims[0], dims[1]);
        let mut workspace = direction.new_zeros(&[n]).unwrap();
        let mut norm = Tensor::zeros(&[2], DType::F64, direction.device()).unwrap();
        let memory = NewtonSchulzMemory { workspace: workspace.view_mut(), norm: norm.view_mut() };
        ops::orthogonalize(direction.view_mut().reshape(&dims).unwrap(), memory).unwrap();
    });
}

/// Steps of an optimizer with a first pass, in f32 and f64; `between` completes the second tensor of state.
///
/// - `atol`: of weights in f32 and f64
pub(crate) fn two_passes(
    case: &Case<'_>,
    kind: OptimizerKind,
    mut params: OptimizerParams,
    atol: [f64; 2],
    between: impl Fn(&mut Tensor),
) {
    for (dtype, atol) in [DType::F32, DType::F64].into_iter().zip(atol) {
        let (mut w, g) = (case.input("w").to_dtype(dtype).unwrap(), case.input("g").to_dtype(dtype).unwrap());
        let dims = w.shape().dims().to_vec();
        let [mut m, mut v] = [w.zeros_like().unwrap(), w.zeros_like().unwrap()];
        let mut norms = Tensor::zeros(&[2], DType::F64, w.device()).unwrap();
        for step in 0..g.shape().dims()[0] {
            params.step = step as u64 + 1;
            let grads = g.view().rows(step, step + 1).unwrap().reshape(&dims).unwrap();
            let tensors = FirstPassTensors {
                master_weights: w.view(),
                grads,
                state: [m.view_mut(), v.view_mut()],
                norms: Some(norms.view_mut()),
                accumulate: false,
            };
            ops::optimizer_first_pass(kind, &params, tensors, None).unwrap();
            let is_lamb = kind == OptimizerKind::Lamb;
            if is_lamb {
                let v = values(&v.to_dtype(DType::F32).unwrap());
                case.close_to(
                    &format!("v after step {step}"),
                    &v,
                    case.output("v").row(step),
                    0.0,
                    8.0 * EPS,
                );
            }
            between(&mut v);
            let tensors = OptimizerTensors {
                grads,
                master_weights: w.view_mut(),
                state: [Some(m.view_mut()), Some(v.view_mut())],
                average: None,
                compute_weights: None,
                norms: is_lamb.then(|| norms.view()),
            };
            ops::optimizer_step(kind, &params, tensors, None).unwrap();
            let single = |tensor: &Tensor| values(&tensor.to_dtype(DType::F32).unwrap());
            case.close_to(
                &format!("{dtype} w after step {step}"),
                &single(&w),
                case.output("w").row(step),
                atol,
                0.0,
            );
            // Sums of terms below 0.4 that may cancel.
            let m_name = format!("{dtype} m after step {step}");
            case.close_to(&m_name, &single(&m), case.output("m").row(step), 2.0 * EPS, 4.0 * EPS);
        }
    }
}

//! Every operation in f32 against PyTorch, on every available device: the cases of `tests/golden/ops.json` (layout in its README).

#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::path::Path;

use ddp_kernels::cuda::Gpu;
use ddp_kernels::ops::{
    self, Activation, Average, CrossEntropyConfig, EmbeddingTable, EmbeddingTables, FirstPassTensors, Gate,
    LayerNormGrads, LayerNormStats, LinearOutput, LossSums, MatmulMode, NewtonSchulzMemory, OptimizerKind,
    OptimizerParams, OptimizerTensors, RmsNormGrads, STEP_SUMS_LEN, SavedForBackward, SumsOutput,
};
use ddp_kernels::{DType, Device, Result, Tensor, TensorMut, TensorRef};
use serde_json::Value;

/// How the cases of one operation are checked.
type Check = fn(&Case<'_>);

/// The operations of the file.
const OPS: [(&str, Check); 30] = [
    ("addmm", addmm),
    ("linear", linear),
    ("relu", |case| activation(case, Activation::Relu)),
    ("gelu", |case| activation(case, Activation::Gelu)),
    ("gelu_tanh", |case| activation(case, Activation::GeluTanh)),
    ("silu", |case| activation(case, Activation::Silu)),
    ("tanh", |case| activation(case, Activation::Tanh)),
    ("sigmoid", |case| activation(case, Activation::Sigmoid)),
    ("softmax_cross_entropy", softmax_cross_entropy),
    ("focal_softmax", softmax_cross_entropy),
    ("bce_with_logits", |case| {
        element_loss(case, ["logits", "targets", "d_logits"], |x, t, scale, d, sums| {
            ops::bce_with_logits(x, t, None, scale, d, sums)
        });
    }),
    ("mse", |case| {
        element_loss(case, ["pred", "target", "d_pred"], |x, t, scale, d, sums| {
            ops::mse(x, t, None, scale, d, sums)
        });
    }),
    ("huber", |case| {
        let delta = case.number("delta");
        element_loss(case, ["pred", "target", "d_pred"], |x, t, scale, d, sums| {
            ops::huber(x, t, None, delta, scale, d, sums)
        });
    }),
    ("log_cosh", |case| {
        element_loss(case, ["pred", "target", "d_pred"], |x, t, scale, d, sums| {
            ops::log_cosh(x, t, None, scale, d, sums)
        });
    }),
    ("quantile", |case| {
        let q = case.number("quantile");
        element_loss(case, ["pred", "target", "d_pred"], |x, t, scale, d, sums| {
            ops::quantile(x, t, None, q, scale, d, sums)
        });
    }),
    ("poisson", |case| {
        let size = |x: f32, t: f32| x.exp() + (t * x).abs();
        element_loss_within(case, ["pred", "target", "d_pred"], size, |x, t, scale, d, sums| {
            ops::poisson(x, t, None, scale, d, sums)
        });
    }),
    ("focal_with_logits", |case| {
        let gamma = case.number("gamma");
        element_loss(case, ["logits", "targets", "d_logits"], |x, t, scale, d, sums| {
            ops::focal_with_logits(x, t, None, gamma, scale, d, sums)
        });
    }),
    ("layer_norm", layer_norm),
    ("rms_norm", rms_norm),
    ("swiglu", |case| gated(case, Gate::SwiGlu)),
    ("geglu", |case| gated(case, Gate::GeGlu)),
    ("reglu", |case| gated(case, Gate::ReGlu)),
    ("embedding", embedding),
    ("sgd", sgd),
    ("adam", |case| adam(case, OptimizerKind::Adam)),
    ("adamw", |case| adam(case, OptimizerKind::AdamW)),
    ("lion", lion),
    ("lamb", lamb),
    ("muon", muon),
    ("ema", ema),
];

/// Half a unit in the last place of numbers in 1..2.
const EPS: f64 = 1.0 / (1 << 24) as f64;

#[test]
fn every_case_agrees_with_pytorch() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/ops.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file: Value = serde_json::from_str(&text).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(!cases.is_empty(), "{} has no cases", path.display());

    let n_gpus = Gpu::count();
    let required = std::env::var("REQUIRE_GPUS").ok().map_or(0, |n| n.parse().unwrap());
    assert!(n_gpus >= required, "needs {required} GPUs, found {n_gpus}");
    let devices: &[Device] = if n_gpus > 0 { &[Device::Cpu, Device::Cuda(0)] } else { &[Device::Cpu] };

    let mut failures = Vec::new();
    let mut n_cases = vec![0; OPS.len()];
    for value in cases {
        let name = value["op"].as_str().unwrap();
        let Some(op) = OPS.iter().position(|op| op.0 == name) else {
            panic!("no check for the operation {name} of {}", path.display());
        };
        n_cases[op] += 1;
        for &device in devices {
            let case = Case { value, device, failures: RefCell::default() };
            OPS[op].1(&case);
            failures.extend(case.failures.into_inner());
        }
    }
    for (op, n) in OPS.iter().zip(n_cases) {
        assert!(n > 0, "no case of {}", op.0);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// One case of the file.
struct Case<'a> {
    value: &'a Value,
    device: Device,
    failures: RefCell<Vec<String>>,
}

impl Case<'_> {
    fn param(&self, name: &str) -> &Value {
        let value = &self.value["params"][name];
        assert!(!value.is_null(), "{}: no parameter {name}", self.label());
        value
    }

    fn number(&self, name: &str) -> f64 {
        self.param(name).as_f64().unwrap()
    }

    fn flag(&self, name: &str) -> bool {
        self.param(name).as_bool().unwrap()
    }

    fn label(&self) -> String {
        let text = |key: &str| self.value[key].as_str().unwrap_or("?").to_owned();
        format!("{} {} on {}", text("op"), text("name"), self.device)
    }

    fn has_input(&self, name: &str) -> bool {
        !self.value["inputs"][name].is_null()
    }

    fn golden(&self, group: &str, name: &str) -> Golden {
        Golden::read(&self.value[group][name], &format!("{}: {group} {name}", self.label()))
    }

    /// The input on the case's device.
    fn input(&self, name: &str) -> Tensor {
        let golden = self.golden("inputs", name);
        Tensor::from_slice(&golden.values, &golden.shape, self.device).unwrap()
    }

    fn output(&self, name: &str) -> Golden {
        self.golden("outputs", name)
    }

    /// A tensor full of NaN, so that elements that an operation does not write are detected.
    fn nan(&self, dims: &[usize]) -> Tensor {
        Tensor::full(dims, f64::NAN, DType::F32, self.device).unwrap()
    }

    fn nan_like(&self, like: &Tensor) -> Tensor {
        self.nan(like.shape().dims())
    }

    /// `|got - want| <= atol + rtol·|want|` against the output `name`; NaN never passes.
    fn close(&self, name: &str, got: &Tensor, atol: f64, rtol: f64) {
        self.close_to(name, &values(got), &self.output(name).values, atol, rtol);
    }

    fn close_to(&self, name: &str, got: &[f32], want: &[f32], atol: f64, rtol: f64) {
        assert_eq!(got.len(), want.len(), "{} {name}", self.label());
        for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
            let gap = (f64::from(g) - f64::from(w)).abs();
            let bound = atol + rtol * f64::from(w).abs();
            if gap.is_nan() || gap > bound {
                self.failures.borrow_mut().push(format!(
                    "{} {name}[{i}]: got {g:e}, PyTorch {w:e}: {gap:e} apart, allowed {bound:e}",
                    self.label()
                ));
            }
        }
    }
}

/// A tensor of the file.
struct Golden {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Golden {
    fn read(tensor: &Value, what: &str) -> Self {
        assert_eq!(tensor["dtype"], "f32", "{what}");
        let shape: Vec<_> = shape_of(tensor);
        let data = tensor["data"].as_array().unwrap();
        let values: Vec<_> = data.iter().map(|v| v.as_f64().unwrap() as f32).collect();
        assert_eq!(values.len(), shape.iter().product::<usize>(), "{what}");
        Golden { shape, values }
    }

    fn row(&self, row: usize) -> &[f32] {
        let len = self.values.len() / self.shape[0];
        &self.values[row * len..(row + 1) * len]
    }
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

fn shape_of(tensor: &Value) -> Vec<usize> {
    let dims = tensor["shape"].as_array().unwrap();
    dims.iter().map(|d| d.as_u64().unwrap() as usize).collect()
}

fn addmm(case: &Case<'_>) {
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

fn linear(case: &Case<'_>) {
    const STRICT: MatmulMode = MatmulMode::Strict;
    let (x, weight, d_y) = (case.input("x"), case.input("weight"), case.input("d_y"));
    let bias = case.has_input("bias").then(|| case.input("bias"));
    let ((n, i), (o, _)) = (x.shape().rows_cols(), weight.shape().rows_cols());
    // As in addmm: at most 19 products, sums below 16.
    let (atol, rtol) = (4.0 * 16.0 * EPS, 4.0 * EPS);

    let mut y = case.nan_like(&d_y);
    let mut workspace = case.nan(&[ops::linear_workspace_len(n, i, o, DType::F32, case.device)]);
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
        ops::linear_backward_weight(STRICT, d_y, x.view(), d_weight, d_bias, accumulate, scratch).unwrap();
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

fn activation(case: &Case<'_>, activation: Activation) {
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

fn softmax_cross_entropy(case: &Case<'_>) {
    let logits = case.input("logits");
    let labels = &case.value["inputs"]["labels"];
    assert_eq!(labels["dtype"], "i64");
    let indices = labels["data"].as_array().unwrap();
    let indices: Vec<i64> = indices.iter().map(|v| v.as_i64().unwrap()).collect();
    let weights = case.has_input("class_weights").then(|| case.input("class_weights"));
    let config = CrossEntropyConfig {
        label_smoothing: case.number("label_smoothing"),
        class_weights: weights.as_ref().map(Tensor::view),
        row_weights: None,
        ignore_index: case.param("ignore_index").as_i64().unwrap(),
        focal_gamma: case.value["params"]["gamma"].as_f64().unwrap_or(0.0),
    };
    let labels = Tensor::from_slice(&indices, &shape_of(labels), case.device).unwrap();
    loss(case, "d_logits", &logits, 0.0, |scale, d, sums| {
        ops::softmax_cross_entropy(logits.view(), labels.view(), &config, scale, d, sums)
    });
}

fn element_loss(
    case: &Case<'_>,
    [x, target, d_x]: [&str; 3],
    op: impl Fn(TensorRef<'_>, TensorRef<'_>, f64, Option<TensorMut<'_>>, SumsOutput<'_>) -> Result<()>,
) {
    element_loss_within(case, [x, target, d_x], |_, _| 0.0, op);
}

/// As [`element_loss`], for a loss whose terms cancel: `size` of a prediction and a target, which the errors are proportional to.
fn element_loss_within(
    case: &Case<'_>,
    [x, target, d_x]: [&str; 3],
    size: impl Fn(f32, f32) -> f32,
    op: impl Fn(TensorRef<'_>, TensorRef<'_>, f64, Option<TensorMut<'_>>, SumsOutput<'_>) -> Result<()>,
) {
    let (x, target) = (case.input(x), case.input(target));
    let sizes: Vec<f32> = values(&x).iter().zip(values(&target)).map(|(&x, t)| size(x, t)).collect();
    let mean_size = sizes.iter().sum::<f32>() / sizes.len() as f32;
    loss(case, d_x, &x, 8.0 * EPS * f64::from(mean_size), |scale, d, sums| {
        op(x.view(), target.view(), scale, d, sums)
    });
}

/// The mean and its gradient, computed from a loss's sums as a caller does.
fn loss(
    case: &Case<'_>,
    d_name: &str,
    x: &Tensor,
    atol: f64,
    op: impl Fn(f64, Option<TensorMut<'_>>, SumsOutput<'_>) -> Result<()>,
) {
    let run = |scale: f64, d: Option<&mut Tensor>| {
        let mut tail = case.nan(&[STEP_SUMS_LEN]);
        let sums = SumsOutput { tail: tail.view_mut(), accumulate: false, extra: None };
        op(scale, d.map(Tensor::view_mut), sums).unwrap();
        LossSums::load(&values(&tail))
    };
    let sums = run(1.0, None);
    let mut d = case.nan_like(x);
    let again = run(1.0 / sums.weight, Some(&mut d));
    assert_eq!(sums, again, "{}: the sums depend on whether a gradient is computed", case.label());
    // Each row's loss is a few roundings in f32, mostly of the logits' size, which is up to 3 times the loss's;
    // PyTorch also sums the rows in f32.
    case.close_to("loss", &[sums.mean() as f32], &case.output("loss").values, atol, 8.0 * EPS);
    // A gradient is (p - t)/N with N at least 6 (3 for large logits, where p is 0 or 1): rounding of p <= 1 before it
    // cancels against t.
    case.close(d_name, &d, EPS, 8.0 * EPS);
}

fn layer_norm(case: &Case<'_>) {
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

fn rms_norm(case: &Case<'_>) {
    let (x, mut d) = (case.input("x"), case.input("d_y"));
    let (gamma, eps) = (case.input("gamma"), case.number("eps"));
    let (rows, _) = x.shape().rows_cols();
    let (mut y, mut rstd, mut d_gamma) = (case.nan_like(&x), case.nan(&[rows]), case.nan_like(&gamma));
    ops::rms_norm_forward(x.view(), gamma.view(), eps, y.view_mut(), rstd.view_mut()).unwrap();
    let grads = RmsNormGrads { d: d.view_mut(), d_gamma: d_gamma.view_mut() };
    ops::rms_norm_backward(x.view(), gamma.view(), rstd.view(), grads, false).unwrap();
    // Normalised values up to 6, gamma and d_y up to 3, and rstd 1000 in a row of zeros.
    let largest = values(&rstd).iter().fold(1.0, |m: f64, v| m.max(f64::from(*v)));
    case.close("y", &y, 16.0 * EPS, 8.0 * EPS);
    case.close("d_gamma", &d_gamma, 32.0 * EPS, 8.0 * EPS);
    case.close("d_x", &d, 16.0 * EPS * largest, 8.0 * EPS);
}

fn gated(case: &Case<'_>, gate: Gate) {
    let (x, d_y) = (case.input("x"), case.input("d_y"));
    let (mut y, mut d_x) = (case.nan_like(&d_y), case.nan_like(&x));
    ops::glu_forward(gate, x.view(), y.view_mut()).unwrap();
    ops::glu_backward(gate, x.view(), d_y.view(), d_x.view_mut()).unwrap();
    // Factors up to 6, each some roundings of its own; GELU cancels far below 0.
    case.close("y", &y, 32.0 * EPS, 8.0 * EPS);
    case.close("d_x", &d_x, 32.0 * EPS, 8.0 * EPS);
}

fn embedding(case: &Case<'_>) {
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

fn sgd(case: &Case<'_>) {
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

fn ema(case: &Case<'_>) {
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
        let average = Average { ema: ema.view_mut(), decay: case.number("decay"), step: params.step };
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

fn adam(case: &Case<'_>, kind: OptimizerKind) {
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

fn lion(case: &Case<'_>) {
    let (mut w, g) = (case.input("w"), case.input("g"));
    let (want_w, want_m) = (case.output("w"), case.output("m"));
    let betas = case.param("betas").as_array().unwrap();
    let params = OptimizerParams {
        lr: case.number("lr"),
        betas: [betas[0].as_f64().unwrap(), betas[1].as_f64().unwrap()],
        weight_decay: case.number("weight_decay"),
        ..OptimizerParams::default()
    };
    let dims = w.shape().dims().to_vec();
    let mut m = w.zeros_like().unwrap();
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
        // Three steps of two roundings of w, below 4.
        case.close_to(&format!("w after step {step}"), &values(&w), want_w.row(step), 8.0 * EPS, 0.0);
        // Sums of terms below 0.1 that may cancel.
        case.close_to(&format!("m after step {step}"), &values(&m), want_m.row(step), EPS, 4.0 * EPS);
    }
}

fn lamb(case: &Case<'_>) {
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

fn muon(case: &Case<'_>) {
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

/// Steps of an optimiser with a first pass, in f32 and f64; `between` completes the second tensor of state.
///
/// - `atol`: of weights in f32 and f64
fn two_passes(
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

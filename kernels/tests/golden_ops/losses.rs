//! Losses, and their gradients as means over the rows.

use ddp_kernels::ops::{self, CrossEntropyConfig, ElementLoss, LossSums, STEP_SUMS_LEN, SumsOutput};
use ddp_kernels::{Result, Tensor, TensorMut};

use crate::case::{Case, EPS, shape_of, values};

/// The classes of a case.
pub(crate) fn labels(case: &Case<'_>) -> Tensor {
    let labels = &case.value["inputs"]["labels"];
    assert_eq!(labels["dtype"], "i64");
    let indices = labels["data"].as_array().unwrap();
    let indices: Vec<i64> = indices.iter().map(|v| v.as_i64().unwrap()).collect();
    Tensor::from_slice(&indices, &shape_of(labels), case.device).unwrap()
}

pub(crate) fn softmax_cross_entropy(case: &Case<'_>) {
    let logits = case.input("logits");
    let labels = labels(case);
    let weights = case.has_input("class_weights").then(|| case.input("class_weights"));
    let config = CrossEntropyConfig {
        label_smoothing: case.number("label_smoothing"),
        class_weights: weights.as_ref().map(Tensor::view),
        row_weights: None,
        ignore_index: case.param("ignore_index").as_i64().unwrap(),
        focal_gamma: case.value["params"]["gamma"].as_f64().unwrap_or(0.0),
    };
    loss(case, "d_logits", &logits, 0.0, |scale, d, sums| {
        ops::softmax_cross_entropy(logits.view(), labels.view(), &config, scale, d, sums)
    });
}

pub(crate) fn element_loss(case: &Case<'_>, [x, target, d_x]: [&str; 3], of: ElementLoss) {
    element_loss_within(case, [x, target, d_x], |_, _| 0.0, of);
}

/// Same as [`element_loss`], for a loss whose terms cancel: `size` of a prediction and a target, which the errors are proportional to.
pub(crate) fn element_loss_within(
    case: &Case<'_>,
    [x, target, d_x]: [&str; 3],
    size: impl Fn(f32, f32) -> f32,
    of: ElementLoss,
) {
    let (x, target) = (case.input(x), case.input(target));
    let sizes: Vec<f32> = values(&x).iter().zip(values(&target)).map(|(&x, t)| size(x, t)).collect();
    let mean_size = sizes.iter().sum::<f32>() / sizes.len() as f32;
    loss(case, d_x, &x, 8.0 * EPS * f64::from(mean_size), |scale, d, sums| {
        ops::element_loss(of, x.view(), target.view(), None, scale, d, sums)
    });
}

/// The mean and its gradient, computed from a loss's sums as a caller does.
pub(crate) fn loss(
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

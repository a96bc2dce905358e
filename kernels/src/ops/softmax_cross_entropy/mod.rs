//! Softmax, cross-entropy and its gradient in one pass.

mod cpu;

use super::check;
use super::loss::LossSums;
use crate::{DType, KernelError, Result, Shape, TensorMut, TensorRef};

const OP: &str = "softmax_cross_entropy";

/// How the loss of a row is formed.
#[derive(Debug, Clone, Copy)]
pub struct CrossEntropyConfig<'a> {
    /// `ε`: the target is `1 - ε` on the label plus `ε / C` on every class.
    pub label_smoothing: f64,
    /// One weight a class, `[C]`; 1 where there are none.
    pub class_weights: Option<TensorRef<'a>>,
    /// Rows with this label count for nothing.
    pub ignore_index: i64,
}

impl Default for CrossEntropyConfig<'_> {
    fn default() -> Self {
        CrossEntropyConfig { label_smoothing: 0.0, class_weights: None, ignore_index: -100 }
    }
}

/// Sums of the rows' losses and weights, and `d_logits = scale · ∂(sum of losses)/∂logits`.
///
/// With `p = softmax(logits[n])`, label `y`, class weights `w` and smoothing `ε`:
/// `loss[n] = -(1 - ε)·w[y]·ln p[y] - ε/C·Σ_c w[c]·ln p[c]`, weight `w[y]`
///
/// - `logits`: `[N, C]` f32 or f64; `labels`: `[N]` i64; `d_logits`: `[N, C]`, not needed for evaluation
/// - the mean is that of PyTorch: the sum of losses divided by the sum of `w[y]`
///
/// # Errors
/// [`KernelError::Label`] for a label outside `0..C` that is not the ignored one (some of `d_logits` may be written by
/// then), [`KernelError::DeviceMismatch`], [`KernelError::DTypeMismatch`], [`KernelError::Shape`].
///
/// Source: `torch.nn.functional.cross_entropy` with class indices.
pub fn softmax_cross_entropy(
    logits: TensorRef<'_>,
    labels: TensorRef<'_>,
    config: &CrossEntropyConfig<'_>,
    scale: f64,
    d_logits: Option<TensorMut<'_>>,
) -> Result<LossSums> {
    let (logits_op, labels_op) = (logits.operand("logits"), labels.operand("labels"));
    check::same_device(OP, &[logits_op, labels_op])?;
    let (n_rows, n_classes) = check::matrix(OP, logits_op)?;
    check::shape(OP, labels_op, Shape::vector(n_rows))?;
    if labels.dtype() != DType::I64 {
        return Err(KernelError::DTypeUnsupported { op: OP, operand: labels_op.into(), takes: "i64" });
    }
    if let Some(d_logits) = &d_logits {
        check::same_kind(OP, &[logits_op, d_logits.operand("d_logits")])?;
        check::shape(OP, d_logits.operand("d_logits"), logits.shape())?;
    }
    if let Some(weights) = config.class_weights {
        check::same_kind(OP, &[logits_op, weights.operand("class_weights")])?;
        check::shape(OP, weights.operand("class_weights"), Shape::vector(n_classes))?;
    }
    let labels = labels.as_slice::<i64>(OP, "labels")?;
    check::float_dispatch!(OP, logits_op, T => {
        let weights = config.class_weights.map(|w| w.as_slice::<T>(OP, "class_weights")).transpose()?;
        let d_logits = d_logits.map(|d| d.into_slice::<T>(OP, "d_logits")).transpose()?;
        cpu::forward_backward(
            logits.as_slice::<T>(OP, "logits")?,
            labels,
            cpu::Rule { weights, smoothing: config.label_smoothing as T, ignore_index: config.ignore_index, n_classes },
            scale as T,
            d_logits,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{assert_gradient, random};

    #[test]
    fn gradient_matches_central_differences_in_every_mode() {
        for (rows, n_classes) in [(6, 1), (6, 3), (37, 10), (6, 64), (6, 65), (6, 100)] {
            let logits: Vec<f64> = random::<f64>(rows * n_classes, 1).iter().map(|v| 5.0 * v).collect();
            let mut labels: Vec<i64> = (0..rows as i64).map(|r| (r * 7) % n_classes as i64).collect();
            labels[2] = -100;
            let weights: Vec<f64> = random::<f64>(n_classes, 2).iter().map(|v| v + 1.5).collect();
            for smoothing in [0.0, 0.1] {
                for weights in [None, Some(TensorRef::from_slice(&weights, &[n_classes]).unwrap())] {
                    let config = CrossEntropyConfig {
                        label_smoothing: smoothing,
                        class_weights: weights,
                        ..Default::default()
                    };
                    let labels = TensorRef::from_slice(&labels, &[rows]).unwrap();
                    let loss = |logits: &[f64], d: Option<TensorMut<'_>>| {
                        let logits = TensorRef::from_slice(logits, &[rows, n_classes]).unwrap();
                        softmax_cross_entropy(logits, labels, &config, 0.5, d).unwrap().loss
                    };
                    let mut d = vec![f64::NAN; logits.len()];
                    loss(&logits, Some(TensorMut::from_slice(&mut d, &[rows, n_classes]).unwrap()));
                    assert_gradient(&logits, &d, |logits| 0.5 * loss(logits, None));
                    assert!(
                        d[2 * n_classes..3 * n_classes].iter().all(|&v| v == 0.0),
                        "the ignored row has no gradient"
                    );
                }
            }
        }
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let logits = [1000.0f32, 0.0, -1000.0, 1000.0];
        let labels = [0i64, 0];
        let logits = TensorRef::from_slice(&logits, &[2, 2]).unwrap();
        let labels = TensorRef::from_slice(&labels, &[2]).unwrap();
        let sums = softmax_cross_entropy(logits, labels, &CrossEntropyConfig::default(), 1.0, None).unwrap();
        assert_eq!((sums.loss, sums.weight), (2000.0, 2.0));
    }

    #[test]
    fn a_label_out_of_range_names_its_row() {
        let (logits, labels) = ([0.0f32; 6], [1i64, 3]);
        let logits = TensorRef::from_slice(&logits, &[2, 3]).unwrap();
        let labels = TensorRef::from_slice(&labels, &[2]).unwrap();
        let error =
            softmax_cross_entropy(logits, labels, &CrossEntropyConfig::default(), 1.0, None).unwrap_err();
        assert_eq!(error, KernelError::Label { op: OP, row: 1, label: 3, n_classes: 3 });
    }
}

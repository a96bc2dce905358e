//! The loss at the model's end, with its constants on the device.

use std::fmt;

use ddp_kernels::ops::{self, CrossEntropyConfig, SumsOutput};
use ddp_kernels::{Device, KernelError, Tensor, TensorMut, TensorRef};

use crate::config::{ClassWeights, Loss};

/// The loss with its constants on the device.
#[derive(Debug)]
pub enum LossHead {
    /// Softmax cross-entropy on class indices, or the focal loss of classes.
    CrossEntropy {
        /// Share of the target spread over all classes.
        label_smoothing: f64,
        /// One weight per class, `[C]`.
        class_weights: Option<Tensor>,
        /// Exponent of the probability that a label lacks; 0 for cross-entropy.
        focal_gamma: f64,
    },
    /// Binary cross-entropy with logits.
    Bce,
    /// Focal loss of labels.
    Focal {
        /// Exponent of the missing probability.
        gamma: f64,
    },
    /// Mean squared error.
    Mse,
    /// Huber's loss.
    Huber {
        /// Error at which it turns from squared to linear.
        delta: f64,
    },
    /// Logarithm of the error's hyperbolic cosine.
    LogCosh,
    /// Quantile (pinball) loss.
    Quantile {
        /// The quantile, in (0, 1).
        quantile: f64,
    },
    /// Poisson loss: the outputs are logarithms of rates.
    Poisson,
    /// Ordinal loss of class indices: the outputs are cumulative logits.
    Ordinal,
    /// A loss of another kind: that of several heads, or a program's own.
    Other(Box<dyn LossFunction>),
}

/// A loss that is computed from a model's outputs.
pub trait LossFunction: fmt::Debug + Send + Sync {
    /// Same as [`LossHead::apply`].
    ///
    /// # Errors
    /// Errors of its operations.
    fn apply(
        &self,
        outputs: TensorRef<'_>,
        targets: TensorRef<'_>,
        row_weights: Option<TensorRef<'_>>,
        scale: f64,
        d_outputs: Option<TensorMut<'_>>,
        sums: SumsOutput<'_>,
    ) -> Result<(), KernelError>;

    /// Same as [`LossHead::expected_weight`].
    fn expected_weight(&self, n_rows: usize, n_outputs: usize) -> f64;

    /// Same as [`LossHead::is_weighted`].
    fn is_weighted(&self, has_row_weights: bool) -> bool;
}

impl LossHead {
    /// Cross-entropy without smoothing or class weights.
    pub fn cross_entropy() -> Self {
        LossHead::CrossEntropy { label_smoothing: 0.0, class_weights: None, focal_gamma: 0.0 }
    }

    /// The loss of `config` on `device`, for targets of one kind.
    ///
    /// # Errors
    /// Out of memory, or no such device.
    ///
    /// # Panics
    /// For [`Loss::Heads`], and for balanced class weights before [`Loss::with_class_counts`].
    pub fn new(config: &Loss, device: Device) -> Result<Self, KernelError> {
        Ok(match config {
            Loss::CrossEntropy { label_smoothing, class_weights, focal_gamma } => LossHead::CrossEntropy {
                focal_gamma: *focal_gamma,
                label_smoothing: *label_smoothing,
                class_weights: match class_weights {
                    Some(ClassWeights::PerClass(weights)) => {
                        Some(Tensor::from_slice(weights, &[weights.len()], device)?)
                    }
                    Some(ClassWeights::Balanced) => panic!("balanced class weights need the training rows"),
                    None => None,
                },
            },
            Loss::Bce => LossHead::Bce,
            Loss::Focal { gamma } => LossHead::Focal { gamma: *gamma },
            Loss::Mse => LossHead::Mse,
            Loss::Huber { delta } => LossHead::Huber { delta: *delta },
            Loss::LogCosh => LossHead::LogCosh,
            Loss::Quantile { quantile } => LossHead::Quantile { quantile: *quantile },
            Loss::Poisson => LossHead::Poisson,
            Loss::Ordinal => LossHead::Ordinal,
            Loss::Heads(_) => panic!("several heads need the sizes of a model: `LossHead::for_model`"),
        })
    }

    /// Divisor of the sum of losses of `n_rows` rows if neither classes nor rows have weights.
    pub fn expected_weight(&self, n_rows: usize, n_outputs: usize) -> f64 {
        match self {
            LossHead::CrossEntropy { .. } => n_rows as f64,
            LossHead::Other(loss) => loss.expected_weight(n_rows, n_outputs),
            _ => n_rows as f64 * n_outputs as f64,
        }
    }

    /// Whether the sum of weights differs from [`LossHead::expected_weight`] and is known only after the forward pass: where
    /// rows have weights, and where classes do.
    pub fn is_weighted(&self, has_row_weights: bool) -> bool {
        match self {
            LossHead::CrossEntropy { class_weights: Some(_), .. } => true,
            LossHead::Other(loss) => loss.is_weighted(has_row_weights),
            _ => has_row_weights,
        }
    }

    /// Sums over the rows into `sums`, and `d_outputs = scale` times the gradient of the sum. `row_weights`, `[N]` f32, multiply
    /// the rows' losses and gradients, and the sum of weights is theirs.
    ///
    /// # Errors
    /// [`KernelError`] from the loss's operation.
    pub fn apply(
        &self,
        outputs: TensorRef<'_>,
        targets: TensorRef<'_>,
        row_weights: Option<TensorRef<'_>>,
        scale: f64,
        d_outputs: Option<TensorMut<'_>>,
        sums: SumsOutput<'_>,
    ) -> Result<(), KernelError> {
        match self {
            LossHead::CrossEntropy { label_smoothing, class_weights, focal_gamma } => {
                let config = CrossEntropyConfig {
                    label_smoothing: *label_smoothing,
                    class_weights: class_weights.as_ref().map(Tensor::view),
                    row_weights,
                    focal_gamma: *focal_gamma,
                    ..CrossEntropyConfig::default()
                };
                ops::softmax_cross_entropy(outputs, targets, &config, scale, d_outputs, sums)
            }
            LossHead::Bce => ops::bce_with_logits(outputs, targets, row_weights, scale, d_outputs, sums),
            LossHead::Focal { gamma } => {
                ops::focal_with_logits(outputs, targets, row_weights, *gamma, scale, d_outputs, sums)
            }
            LossHead::Mse => ops::mse(outputs, targets, row_weights, scale, d_outputs, sums),
            LossHead::Huber { delta } => {
                ops::huber(outputs, targets, row_weights, *delta, scale, d_outputs, sums)
            }
            LossHead::LogCosh => ops::log_cosh(outputs, targets, row_weights, scale, d_outputs, sums),
            LossHead::Quantile { quantile } => {
                ops::quantile(outputs, targets, row_weights, *quantile, scale, d_outputs, sums)
            }
            LossHead::Poisson => ops::poisson(outputs, targets, row_weights, scale, d_outputs, sums),
            LossHead::Ordinal => ops::ordinal(outputs, targets, row_weights, scale, d_outputs, sums),
            LossHead::Other(loss) => loss.apply(outputs, targets, row_weights, scale, d_outputs, sums),
        }
    }
}

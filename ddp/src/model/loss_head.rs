//! The loss on the model's outputs, with its constants on the device.

use std::fmt;

use ddp_kernels::ops::{self, CrossEntropyConfig, ElementLoss, SumsOutput};
use ddp_kernels::{Device, KernelError, Tensor, TensorMut, TensorRef};

use crate::config::{ClassWeights, Loss};

/// A loss with its constants on the device.
#[derive(Debug)]
pub struct LossHead(Kind);

#[derive(Debug)]
enum Kind {
    /// A loss of the config, never [`Loss::Heads`], and the weights of its classes, `[C]`.
    Config(Loss, Option<Tensor>),
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
        let loss = Loss::CrossEntropy { label_smoothing: 0.0, class_weights: None, focal_gamma: 0.0 };
        LossHead(Kind::Config(loss, None))
    }

    /// Mean squared error.
    pub fn mse() -> Self {
        LossHead(Kind::Config(Loss::Element(ElementLoss::Mse), None))
    }

    /// A loss of another kind: the loss of several heads, or a custom loss of a program.
    pub fn other(loss: impl LossFunction + 'static) -> Self {
        LossHead(Kind::Other(Box::new(loss)))
    }

    /// Creates the loss of `config` on `device`, for targets of one kind.
    ///
    /// # Errors
    /// Out of memory, or no such device.
    ///
    /// # Panics
    /// For [`Loss::Heads`], and for balanced class weights before [`Loss::with_class_counts`].
    pub fn new(config: &Loss, device: Device) -> Result<Self, KernelError> {
        let class_weights = match config {
            Loss::CrossEntropy { class_weights: Some(ClassWeights::PerClass(weights)), .. } => {
                Some(Tensor::from_slice(weights, &[weights.len()], device)?)
            }
            Loss::CrossEntropy { class_weights: Some(ClassWeights::Balanced), .. } => {
                panic!("balanced class weights need the training rows")
            }
            Loss::CrossEntropy { class_weights: None, .. } | Loss::Element(_) | Loss::Ordinal => None,
            Loss::Heads(_) => panic!("several heads need the sizes of a model: `LossHead::for_model`"),
        };
        Ok(LossHead(Kind::Config(config.clone(), class_weights)))
    }

    /// Divisor of the sum of the losses of `n_rows` rows if neither classes nor rows have weights.
    pub fn expected_weight(&self, n_rows: usize, n_outputs: usize) -> f64 {
        match &self.0 {
            Kind::Config(Loss::CrossEntropy { .. }, _) => n_rows as f64,
            Kind::Config(..) => n_rows as f64 * n_outputs as f64,
            Kind::Other(loss) => loss.expected_weight(n_rows, n_outputs),
        }
    }

    /// Whether the sum of weights differs from [`LossHead::expected_weight`] and is known only after the forward pass: true if
    /// rows or classes have weights.
    pub fn is_weighted(&self, has_row_weights: bool) -> bool {
        match &self.0 {
            Kind::Config(_, class_weights) => class_weights.is_some() || has_row_weights,
            Kind::Other(loss) => loss.is_weighted(has_row_weights),
        }
    }

    /// Adds up the losses of the rows in `sums`, and sets `d_outputs` to `scale` times the gradient of the sum. `row_weights`,
    /// `[N]` f32, multiply the rows' losses and gradients; the sum of weights is then theirs.
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
        let (loss, class_weights) = match &self.0 {
            Kind::Config(loss, class_weights) => (loss, class_weights),
            Kind::Other(loss) => return loss.apply(outputs, targets, row_weights, scale, d_outputs, sums),
        };
        match loss {
            Loss::CrossEntropy { label_smoothing, focal_gamma, .. } => {
                let config = CrossEntropyConfig {
                    label_smoothing: *label_smoothing,
                    class_weights: class_weights.as_ref().map(Tensor::view),
                    row_weights,
                    focal_gamma: *focal_gamma,
                    ..CrossEntropyConfig::default()
                };
                ops::softmax_cross_entropy(outputs, targets, &config, scale, d_outputs, sums)
            }
            Loss::Element(loss) => {
                ops::element_loss(*loss, outputs, targets, row_weights, scale, d_outputs, sums)
            }
            Loss::Ordinal => ops::ordinal(outputs, targets, row_weights, scale, d_outputs, sums),
            Loss::Heads(_) => unreachable!("`LossHead::new` refuses several heads"),
        }
    }
}

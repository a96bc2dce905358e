//! The loss on the model's outputs, with its constants on the device.

use std::fmt;
use std::sync::OnceLock;

use ddp_kernels::ops::{self, CrossEntropyConfig, ElementLoss, SumsOutput};
use ddp_kernels::{DType, Device, KernelError, Tensor, TensorMut, TensorRef};

use crate::config::{ClassWeights, Loss};

/// A loss with its constants on the device.
#[derive(Debug)]
pub struct LossHead(Kind);

#[derive(Debug)]
enum Kind {
    /// A loss of the config, never [`Loss::Heads`] or with balanced class weights, and its class weights, `[C]`, once they are on a device.
    Config(Loss, OnceLock<Tensor>),
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
    /// Cross-entropy without smoothing or class weights, over labels `[B]` in i64; rows with the label -100 are left out of the mean,
    /// and refused by a trainer, which divides by all rows.
    ///
    /// Source: `torch.nn.CrossEntropyLoss` with its default `ignore_index`.
    pub fn cross_entropy() -> Self {
        let loss = Loss::CrossEntropy { label_smoothing: 0.0, class_weights: None, focal_gamma: 0.0 };
        Self::on_first_device(loss)
    }

    /// Focal loss of classes: cross-entropy in which a row counts by the power `gamma`, from 0, of the probability that its label lacks.
    ///
    /// # Panics
    /// If `gamma` is negative or not finite.
    ///
    /// Source: Lin et al., Focal Loss for Dense Object Detection, arXiv:1708.02002.
    pub fn focal(gamma: f64) -> Self {
        assert!(
            gamma >= 0.0 && gamma.is_finite(),
            "focal: the exponent {gamma} is not a finite number of 0 or above"
        );
        let loss = Loss::CrossEntropy { label_smoothing: 0.0, class_weights: None, focal_gamma: gamma };
        Self::on_first_device(loss)
    }

    /// Moves this share, from 0 to below 1, of each label's probability to all classes alike; for cross-entropy and focal loss.
    ///
    /// # Errors
    /// [`KernelError::Misuse`] for another loss, and for another share.
    ///
    /// Source: the parameter of that name of `torch.nn.CrossEntropyLoss`.
    pub fn label_smoothing(self, share: f64) -> Result<Self, KernelError> {
        const OP: &str = "label_smoothing";
        let Kind::Config(Loss::CrossEntropy { class_weights, focal_gamma, .. }, _) = self.0 else {
            let problem = "only cross-entropy and focal loss have labels to smooth";
            return Err(KernelError::misuse(OP, problem, "`LossHead::cross_entropy()`"));
        };
        if !(0.0..1.0).contains(&share) {
            let problem = format!("the share is {share}");
            return Err(KernelError::misuse(OP, problem, "a fraction from 0 to below 1"));
        }
        Ok(Self::on_first_device(Loss::CrossEntropy { label_smoothing: share, class_weights, focal_gamma }))
    }

    /// Gives the classes of cross-entropy and focal loss weights, with which the mean is a weighted mean, as in PyTorch.
    ///
    /// # Errors
    /// [`KernelError::Misuse`] for another loss, and for weights that are negative or not finite.
    pub fn weights(self, classes: &[f32]) -> Result<Self, KernelError> {
        const OP: &str = "weights";
        let Kind::Config(Loss::CrossEntropy { label_smoothing, focal_gamma, .. }, _) = self.0 else {
            let problem = "only cross-entropy and focal loss have weights of classes";
            return Err(KernelError::misuse(
                OP,
                problem,
                "rows have weights by `TensorDataset::with_weights`",
            ));
        };
        if let Some(weight) = classes.iter().find(|weight| !(weight.is_finite() && **weight >= 0.0)) {
            let problem = format!("a class has the weight {weight}");
            return Err(KernelError::misuse(OP, problem, "finite numbers of 0 or above"));
        }
        let class_weights = Some(ClassWeights::PerClass(classes.to_vec()));
        Ok(Self::on_first_device(Loss::CrossEntropy { label_smoothing, class_weights, focal_gamma }))
    }

    /// A loss of each element of outputs and targets, such as [`ElementLoss::LogCosh`].
    pub fn element(loss: ElementLoss) -> Self {
        Self::on_first_device(Loss::Element(loss))
    }

    /// Mean squared error.
    pub fn mse() -> Self {
        Self::element(ElementLoss::Mse)
    }

    /// Binary cross-entropy of logits, with targets in `0..=1`.
    ///
    /// Source: `torch.nn.BCEWithLogitsLoss`.
    pub fn bce() -> Self {
        Self::element(ElementLoss::Bce)
    }

    /// [`LossHead::bce`] under PyTorch's name.
    pub fn bce_with_logits() -> Self {
        Self::bce()
    }

    /// Huber loss, which is linear beyond an error of `delta`.
    ///
    /// # Panics
    /// If `delta` is not a finite number above 0.
    ///
    /// Source: `torch.nn.HuberLoss`.
    pub fn huber(delta: f64) -> Self {
        assert!(delta > 0.0 && delta.is_finite(), "huber: the error {delta} is not a finite number above 0");
        Self::element(ElementLoss::Huber { delta })
    }

    /// Pinball loss, whose minimum is this quantile of the target.
    ///
    /// # Panics
    /// If `quantile` is not between 0 and 1.
    #[doc(alias("pinball"))]
    pub fn quantile(quantile: f64) -> Self {
        assert!(quantile > 0.0 && quantile < 1.0, "quantile: {quantile} is not between 0 and 1");
        Self::element(ElementLoss::Quantile { quantile })
    }

    /// Poisson loss of counts, of which outputs are the logarithms of the rates.
    ///
    /// Source: `torch.nn.PoissonNLLLoss`.
    pub fn poisson() -> Self {
        Self::element(ElementLoss::Poisson)
    }

    /// Its kind in words, the same on all ranks.
    pub(crate) fn kind(&self) -> String {
        match &self.0 {
            Kind::Config(loss, _) => format!("{loss:?}"),
            // What it shows may be of this rank, such as its device.
            Kind::Other(_) => "of another kind".to_owned(),
        }
    }

    /// Checks labels on any device; waits for it.
    ///
    /// # Errors
    /// [`KernelError::Label`] for the first label outside `0..n_outputs`, if the loss takes labels.
    pub(super) fn check_labels(&self, labels: TensorRef<'_>, n_outputs: usize) -> Result<(), KernelError> {
        let Kind::Config(Loss::CrossEntropy { .. }, _) = &self.0 else { return Ok(()) };
        let ignored = CrossEntropyConfig::default().ignore_index;
        let is_wrong = |label: i64| label != ignored && !(0..n_outputs as i64).contains(&label);
        match labels.to_vec::<i64>()?.into_iter().enumerate().find(|(_, label)| is_wrong(*label)) {
            Some((row, label)) => {
                Err(KernelError::Label { op: "softmax_cross_entropy", row, label, n_classes: n_outputs })
            }
            None => Ok(()),
        }
    }

    /// Checks targets of losses of probabilities; waits for the device.
    ///
    /// # Errors
    /// [`KernelError::Misuse`] for the first one outside `0..=1`.
    pub(super) fn check_targets(&self, targets: TensorRef<'_>) -> Result<(), KernelError> {
        let Kind::Config(Loss::Element(ElementLoss::Bce | ElementLoss::Focal { .. }), _) = &self.0 else {
            return Ok(());
        };
        let columns = targets.dims().get(1).copied().unwrap_or(1).max(1);
        let values = targets.to_dtype(DType::F32)?.to_vec::<f32>()?;
        match values.iter().position(|target| !(0.0..=1.0).contains(target) && !target.is_nan()) {
            Some(at) => {
                let problem = format!("the target of row {} is {}", at / columns, values[at]);
                Err(KernelError::misuse("loss", problem, "targets are probabilities: 0 for no and 1 for yes"))
            }
            None => Ok(()),
        }
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
        match config {
            Loss::CrossEntropy { class_weights: Some(ClassWeights::Balanced), .. } => {
                panic!("balanced class weights need the training rows")
            }
            Loss::CrossEntropy { .. } | Loss::Element(_) | Loss::Ordinal => {}
            Loss::Heads(_) => panic!("several heads need the sizes of a model: `LossHead::for_model`"),
        }
        let loss = Self::on_first_device(config.clone());
        loss.class_weights(device)?;
        Ok(loss)
    }

    /// A loss whose constants go to the device of the first outputs.
    fn on_first_device(loss: Loss) -> Self {
        LossHead(Kind::Config(loss, OnceLock::new()))
    }

    /// The weights of the classes, on `device` where they are on none yet.
    fn class_weights(&self, device: Device) -> Result<Option<&Tensor>, KernelError> {
        match &self.0 {
            Kind::Config(
                Loss::CrossEntropy { class_weights: Some(ClassWeights::PerClass(weights)), .. },
                known,
            ) => {
                if let Some(weights) = known.get() {
                    return Ok(Some(weights));
                }
                let weights = Tensor::from_slice(weights, &[weights.len()], device)?;
                Ok(Some(known.get_or_init(|| weights)))
            }
            _ => Ok(None),
        }
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
            Kind::Config(loss, _) => {
                matches!(loss, Loss::CrossEntropy { class_weights: Some(_), .. }) || has_row_weights
            }
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
        let loss = match &self.0 {
            Kind::Config(loss, _) => loss,
            Kind::Other(loss) => return loss.apply(outputs, targets, row_weights, scale, d_outputs, sums),
        };
        match loss {
            Loss::CrossEntropy { label_smoothing, focal_gamma, .. } => {
                let config = CrossEntropyConfig {
                    label_smoothing: *label_smoothing,
                    class_weights: self.class_weights(outputs.device())?.map(Tensor::view),
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

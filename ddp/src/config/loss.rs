//! `[loss]`: the training objective.

use ddp_kernels::ops::ElementLoss;
use toml::Value;

use super::data_values::Task;
use super::error::Result;
use super::key::{Key, Kind, Lookup, Range, key, number, one_of};
use super::loss_names::{AUTO, NAMES, loss_name, losses_of};
use super::raw::RawConfig;
use super::value::list;
use super::writer::Writer;

/// `[loss]`: the training objective; always the mean over the rows of a global batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Loss {
    /// Softmax cross-entropy on class indices, or the focal loss of classes.
    CrossEntropy {
        /// In [0, 1), as in PyTorch.
        label_smoothing: f64,
        /// Weights of the classes; with them the mean is a weighted mean, as in PyTorch.
        class_weights: Option<ClassWeights>,
        /// Exponent of the focal loss for classes, at least 0: a row is weighted by `(1 - p)^focal_gamma` for the probability `p`
        /// of its label.
        focal_gamma: f64,
    },
    /// A loss of labels or quantities, computed element by element and averaged over a row.
    Element(ElementLoss),
    /// Ordinal loss for ordered classes: each class but the last has an output that says whether a row's class is above it.
    Ordinal,
    /// The weighted mean of the losses of several heads.
    Heads(Vec<HeadLoss>),
}

/// The loss of a head and its weight in the total loss.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadLoss {
    /// Name of the head.
    pub name: String,
    /// Positive; only the ratio to the weights of the other heads matters.
    pub weight: f64,
    /// Never [`Loss::Heads`].
    pub loss: Loss,
}

/// Weights of the classes in the loss.
#[derive(Debug, Clone, PartialEq)]
pub enum ClassWeights {
    /// Weights computed from the training rows, so that each class has the same total weight; see [`Loss::with_class_counts`].
    Balanced,
    /// One positive weight per class.
    PerClass(Vec<f32>),
}

const BALANCED: &str = "balanced";

/// Positive in single precision too, because losses are weighted in single precision.
const WEIGHTS: Range = Range::above(0.0, "finite numbers above 0")
    .also(|weight| weight as f32 > 0.0 && (weight as f32).is_finite());

pub(super) const KEYS: &[Key] = &[
    one_of("loss.kind", NAMES)
        .help("Loss; \"auto\" is cross_entropy, bce or mse, by the task; ordinal is for classes in an order, see data.class_order")
        .default_depends("cross_entropy for classification, bce for multilabel, mse for regression")
        .example(r#""auto""#)
        .synonyms(&["loss", "loss_fn", "criterion", "objective"]),
    number("loss.label_smoothing", Range::from_below(0.0, 1.0, "a fraction from 0 to below 1"))
        .help("Label smoothing of cross_entropy and of focal on classes; a class weight weighs the smoothed loss of its rows")
        .default("0.0")
        .example("0.1")
        .hint("0 switches smoothing off, 0.1 is usual"),
    key("loss.class_weights", Kind::NumbersOr(WEIGHTS, BALANCED))
        .help("One weight per class for cross_entropy and focal, or \"balanced\"; the mean is then weighted, as in PyTorch")
        .absent("all classes weigh the same")
        .example("[1.0, 2.0]")
        .hint("1.0 leaves a class as it is, \"balanced\" gives each class the same total weight")
        .may_change_if(are_balanced, "from \"balanced\" to its numbers"),
    number("loss.gamma", Range::at_least(0.0, "a number from 0"))
        .help("Exponent of focal: how much less it counts what is predicted well")
        .default("2.0")
        .hint("2.0 is usual, 0 is plain cross-entropy")
        .synonyms(&["focal_gamma"]),
    number("loss.delta", Range::above(0.0, "a number above 0"))
        .help("Error at which huber changes from quadratic to linear")
        .default("1.0")
        .hint("1.0 is usual"),
    number("loss.quantile", Range::between(0.0, 1.0, "a fraction above 0 and below 1"))
        .help("Quantile of the target that the loss quantile predicts")
        .default("0.5")
        .example("0.9")
        .hint("0.5 predicts the median, 0.9 a value that nine of ten targets stay below")
        .synonyms(&["tau"]),
];

impl Loss {
    /// Reads the keys of `[loss]` for targets of one kind.
    ///
    /// - `auto_task`: whether `task` is provisional
    /// - `classes`: number of classes, if known
    pub(super) fn read(raw: &RawConfig, task: Task, auto_task: bool, classes: Option<usize>) -> Result<Self> {
        let kind = kind(raw, task, auto_task)?;
        let is_focal = kind == "focal";
        let is_of_classes =
            matches!(kind, AUTO | "cross_entropy") || (is_focal && task == Task::Classification);
        Ok(match kind {
            _ if is_of_classes => Loss::CrossEntropy {
                label_smoothing: raw.get("loss.label_smoothing")?,
                class_weights: class_weights(raw, classes)?,
                focal_gamma: if is_focal { raw.get("loss.gamma")? } else { 0.0 },
            },
            "focal" => Loss::Element(ElementLoss::Focal { gamma: raw.get("loss.gamma")? }),
            "bce" => Loss::Element(ElementLoss::Bce),
            "mse" => Loss::Element(ElementLoss::Mse),
            "huber" => Loss::Element(ElementLoss::Huber { delta: raw.get("loss.delta")? }),
            "log_cosh" => Loss::Element(ElementLoss::LogCosh),
            "quantile" => Loss::Element(ElementLoss::Quantile { quantile: raw.get("loss.quantile")? }),
            "poisson" => Loss::Element(ElementLoss::Poisson),
            "ordinal" => Loss::Ordinal,
            name => unreachable!("`loss.kind` has no value {name}"),
        })
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        if !matches!(self, Self::Heads(_)) {
            writer.put("loss.kind", &self.name().to_owned());
        }
        match self {
            Self::CrossEntropy { label_smoothing, class_weights, focal_gamma } => {
                if *focal_gamma > 0.0 {
                    writer.put("loss.gamma", focal_gamma);
                }
                writer.put("loss.label_smoothing", label_smoothing);
                if let Some(weights) = class_weights {
                    let weights = match weights {
                        ClassWeights::Balanced => format!("\"{BALANCED}\""),
                        ClassWeights::PerClass(weights) => list(weights, |weight| single(*weight)),
                    };
                    writer.put_toml("loss.class_weights", weights);
                }
            }
            Self::Element(ElementLoss::Focal { gamma }) => writer.put("loss.gamma", gamma),
            Self::Element(ElementLoss::Huber { delta }) => writer.put("loss.delta", delta),
            Self::Element(ElementLoss::Quantile { quantile }) => writer.put("loss.quantile", quantile),
            // Heads are written together with their targets.
            Self::Element(_) | Self::Ordinal | Self::Heads(_) => {}
        }
    }

    /// Whether the model's outputs are logarithms of the predicted quantities.
    pub fn predicts_logarithms(&self) -> bool {
        *self == Self::Element(ElementLoss::Poisson)
    }

    /// Number of outputs of a model with this many classes, labels or targets, over all heads.
    pub fn n_outputs(&self, n_targets: usize) -> usize {
        n_targets - self.n_without_output()
    }

    /// Number of classes, labels or targets of a model with this many outputs, over all heads.
    pub fn n_targets(&self, n_outputs: usize) -> usize {
        n_outputs + self.n_without_output()
    }

    /// Number of classes without an output of their own.
    fn n_without_output(&self) -> usize {
        match self {
            Self::Ordinal => 1,
            Self::Heads(heads) => heads.iter().map(|head| head.loss.n_without_output()).sum(),
            _ => 0,
        }
    }

    /// Whether the class weights are computed from the training rows.
    pub fn is_balanced(&self) -> bool {
        matches!(self, Self::CrossEntropy { class_weights: Some(ClassWeights::Balanced), .. })
    }

    /// Replaces balanced class weights by their values: `n / (k * n_c)` for a class with `n_c` of the `n` training rows, where
    /// `k` is the number of classes that have rows; 1 for a class without rows. Row weights are ignored.
    ///
    /// Source: `sklearn.utils.class_weight.compute_class_weight`.
    #[must_use]
    pub fn with_class_counts(&self, counts: &[u64]) -> Self {
        let mut loss = self.clone();
        if let Self::CrossEntropy { class_weights: Some(weights @ ClassWeights::Balanced), .. } = &mut loss {
            let n_rows: u64 = counts.iter().sum();
            let n_classes = counts.iter().filter(|count| **count > 0).count();
            let weight = |&count: &u64| match count {
                0 => 1.0,
                _ => (n_rows as f64 / (n_classes as f64 * count as f64)) as f32,
            };
            *weights = ClassWeights::PerClass(counts.iter().map(weight).collect());
        }
        loss
    }

    /// The value of `loss.kind` that this loss was read from, with `auto` resolved.
    pub(super) fn kind_in(&self, raw: &RawConfig) -> Result<&'static str> {
        let given = loss_name(raw)?;
        Ok(if given == AUTO { self.name() } else { given })
    }

    /// The name in the config.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CrossEntropy { focal_gamma, .. } if *focal_gamma > 0.0 => "focal",
            Self::CrossEntropy { .. } => "cross_entropy",
            Self::Element(loss) => match loss {
                ElementLoss::Bce => "bce",
                ElementLoss::Focal { .. } => "focal",
                ElementLoss::Mse => "mse",
                ElementLoss::Huber { .. } => "huber",
                ElementLoss::LogCosh => "log_cosh",
                ElementLoss::Quantile { .. } => "quantile",
                ElementLoss::Poisson => "poisson",
            },
            Self::Ordinal => "ordinal",
            Self::Heads(_) => "heads",
        }
    }
}

/// Reads the kind, which must fit the task.
fn kind(raw: &RawConfig, task: Task, auto_task: bool) -> Result<&'static str> {
    // The loss is checked again once the targets have determined the task.
    let fitting = if auto_task { &NAMES[1..] } else { losses_of(task) };
    let kind = loss_name(raw)?;
    if kind == AUTO {
        return Ok(fitting[0]);
    }
    match raw.given("loss.kind") {
        Some(setting) if !fitting.contains(&kind) => Err(setting.bad(
            format!("\"{}\" for task \"{task}\"", fitting.join("\" or \"")),
            "set `data.task` to the task you mean, or leave `loss.kind` out",
        )),
        _ => Ok(kind),
    }
}

/// A saved config holds the values of the weights; a new config derives the same values from the same rows.
fn are_balanced(ours: Lookup<'_>, _: Lookup<'_>) -> bool {
    ours("loss.class_weights").is_some_and(|value| value.as_str() == Some(BALANCED))
}

fn class_weights(raw: &RawConfig, classes: Option<usize>) -> Result<Option<ClassWeights>> {
    let Some(setting) = raw.setting("loss.class_weights") else { return Ok(None) };
    if let Value::String(text) = &setting.value {
        return match text.as_str() {
            BALANCED => Ok(Some(ClassWeights::Balanced)),
            _ => Err(setting.bad(format!("a list of numbers or \"{BALANCED}\""), setting.key.hint)),
        };
    }
    let weights = setting.numbers()?;
    if weights.is_empty() || classes.is_some_and(|classes| classes != weights.len()) {
        let expected = match classes {
            Some(classes) => format!("{classes} numbers, as many as `data.classes`"),
            None => "one number per class".to_owned(),
        };
        return Err(setting.bad(expected, "give one weight for each class, or leave the key out"));
    }
    Ok(Some(ClassWeights::PerClass(weights.into_iter().map(|weight| weight as f32).collect())))
}

/// Writes an f32 in its short form if that reads back as the same f32 through f64, which it nearly always does.
fn single(number: f32) -> String {
    let short = format!("{number:?}");
    if short.parse::<f64>().is_ok_and(|wide| wide as f32 == number) {
        short
    } else {
        format!("{:?}", f64::from(number))
    }
}

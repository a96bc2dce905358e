//! The optimizers: their names, hyper-parameters and state, and one step of any of them.
//!
//! An optimizer is one file, with its formula for the CPU and for GPUs and its [`Rule`], and its lines in this one: a module, a row of the table, a source. One whose step
//! depends on whole parameters has two passes, and between them their caller completes norms or directions over the shards: it asks for
//! [`WholeNeed`], never for the name of an optimizer.

mod params;
mod moments;
mod momentum;
mod step;
mod adam;
mod lion;
mod sgd;
mod lamb;
mod muon;

#[cfg(test)]
mod tests;

use std::fmt;

pub use self::params::OptimizerParams;
pub use self::step::{
    FirstPassTensors, OptimizerTensors, optimizer_first_pass, optimizer_step, optimizer_step_by_segment,
};
use super::{UpdateInputs, UpdateSegment};
use crate::Result;
use crate::cuda::launch::Source;

/// The particulars of an optimizer, beside its formula.
struct Rule {
    /// Its name in configs.
    name: &'static str,
    defaults: OptimizerDefaults,
    /// The need of a step for numbers of whole parameters.
    whole_need: Option<WholeNeed>,
    /// See [`OptimizerKind::state_names`].
    state_names: fn(&OptimizerParams) -> &'static [&'static str],
    /// See [`optimizer_first_pass`].
    first_pass: Option<FirstPass>,
    /// See [`optimizer_step`].
    step: Step,
}

type FirstPass = fn(&OptimizerParams, FirstPassTensors<'_>, Option<&UpdateInputs<'_>>) -> Result<()>;
type Step =
    fn(&OptimizerParams, &[UpdateSegment], OptimizerTensors<'_>, Option<&UpdateInputs<'_>>) -> Result<()>;

/// The table of optimizers: the enum, and the rule of each.
macro_rules! optimizers {
    ($($(#[$doc:meta])* $kind:ident => $rule:path,)*) => {
        /// Update rule of an optimizer; semantics of PyTorch where it has the rule.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum OptimizerKind {
            $($(#[$doc])* $kind,)*
        }

        impl OptimizerKind {
            /// All optimizers.
            pub const ALL: &'static [OptimizerKind] = &[$(OptimizerKind::$kind),*];

            /// Their names, in the same order.
            pub const NAMES: &'static [&'static str] = &[$($rule.name),*];

            fn rule(self) -> &'static Rule {
                match self {
                    $(OptimizerKind::$kind => &$rule,)*
                }
            }
        }
    };
}

optimizers! {
    /// Stochastic gradient descent with momentum.
    Sgd => sgd::RULE,
    /// Adam (arXiv:1412.6980).
    Adam => adam::ADAM,
    /// Adam with decoupled weight decay (arXiv:1711.05101).
    AdamW => adam::ADAMW,
    /// Steps by the sign of a momentum (arXiv:2302.06675).
    Lion => lion::RULE,
    /// Adam's direction in steps of a length relative to each parameter's norm (arXiv:1904.00962).
    Lamb => lamb::RULE,
    /// Steps by the orthogonalized momentum of a matrix.
    Muon => muon::RULE,
}

/// The kernels of all optimizers.
pub(crate) static SOURCES: [&Source; 7] = [
    &adam::SOURCE,
    &lamb::SOURCE,
    &lion::SOURCE,
    &moments::SOURCE,
    &momentum::SOURCE,
    &muon::SOURCE,
    &sgd::SOURCE,
];

/// Hyper-parameters that a user who names none gets; an optimizer ignores those that it does not use.
#[derive(Debug, Clone, Copy, PartialEq)]
#[doc(hidden)]
pub struct OptimizerDefaults {
    /// Learning rate.
    pub lr: f64,
    /// See [`OptimizerParams::betas`].
    pub betas: [f64; 2],
    /// See [`OptimizerParams::eps`].
    pub eps: f64,
    /// See [`OptimizerParams::weight_decay`].
    pub weight_decay: f64,
    /// See [`OptimizerParams::momentum`].
    pub momentum: f64,
    /// See [`OptimizerParams::nesterov`].
    pub nesterov: bool,
}

impl OptimizerDefaults {
    /// PyTorch's, but a momentum of 0.9.
    const USUAL: OptimizerDefaults = OptimizerDefaults {
        lr: 1e-3,
        betas: [0.9, 0.999],
        eps: 1e-8,
        weight_decay: 0.0,
        momentum: 0.9,
        nesterov: false,
    };
}

impl OptimizerKind {
    /// The name.
    pub fn name(self) -> &'static str {
        self.rule().name
    }

    /// Its usual hyper-parameters.
    pub fn defaults(self) -> OptimizerDefaults {
        self.rule().defaults
    }

    /// Whether one step serves several [`UpdateSegment`]s: those that see each element by itself do.
    pub fn takes_segments(self) -> bool {
        !self.has_first_pass()
    }

    /// Whether a step has a pass before [`optimizer_step`], which then reads what the caller completed over whole parameters: norms for
    /// LAMB, orthogonal directions for Muon ([`optimizer_first_pass`]).
    pub fn has_first_pass(self) -> bool {
        self.whole_need().is_some()
    }

    /// Returns the need of a step for numbers of whole parameters.
    pub fn whole_need(self) -> Option<WholeNeed> {
        self.rule().whole_need
    }

    /// Names of the state tensors, which have an element per weight; all start as zeros.
    pub fn state_names(self, params: &OptimizerParams) -> &'static [&'static str] {
        (self.rule().state_names)(params)
    }
}

/// Numbers of whole parameters that a step needs; its caller completes them between the two passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub enum WholeNeed {
    /// Norms of the weights and of the direction of each parameter ([`optimizer_first_pass`]).
    Norms,
    /// Orthogonal directions of hidden matrices ([`crate::ops::orthogonalize`]); AdamW updates the other parameters.
    Directions,
}

impl fmt::Display for OptimizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
